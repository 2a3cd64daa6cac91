//! Roofline plot of a chip: FLOP/s over FLOP/byte, both logarithmic. No step is above the roof; its distance below is
//! the cost of its launch, its tail and the chip's efficiency. All values are predicted.

use crate::svg::{Anchor, Canvas, fitted, spread};
use forge_ir::units::grouped;
use forge_planner::{Chip, Prediction, StepTime};

const WIDTH: f64 = 960.0;
/// Horizontal and vertical extent of the plot.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 770.0;
const TOP: f64 = 14.0;
/// Distance between two labels.
const LABEL: f64 = 16.0;

/// A logarithmic axis: its decades and its extent in pixels.
struct Axis {
    first: f64,
    last: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// The smallest range of whole decades that contains all values.
    fn of(values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Axis {
        let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            first = first.min(value.log10().floor());
            last = last.max(value.log10().ceil());
        }
        Axis { first, last: last.max(first + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let fraction = (value.log10() - self.first) / (self.last - self.first);
        self.from + fraction * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.first as i32..=self.last as i32).map(|power| 10f64.powi(power))
    }
}

/// One step as a point of the plot.
struct Point<'a> {
    step: &'a StepTime,
    intensity: f64,
    rate: f64,
}

fn points(prediction: &Prediction) -> Vec<Point<'_>> {
    let computes = prediction.steps.iter().filter(|step| step.cost.operations > 0 && step.cost.bytes() > 0);
    computes
        .map(|step| Point {
            step,
            intensity: step.cost.operations as f64 / step.cost.bytes() as f64,
            rate: step.cost.operations as f64 / step.time.seconds(),
        })
        .collect()
}

/// Plots a chip's roof with the decode steps, labeled on the left, and the prefill steps, labeled on the right.
pub(crate) fn picture(chip: &Chip, token: &Prediction, prompt: &Prediction) -> String {
    let sides = [points(token), points(prompt)];
    let most = sides.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let bottom = TOP + (most * LABEL).max(300.0);
    let (bandwidth, roof) = (chip.bandwidth * 1e9, chip.peak_rate());
    let ridge = roof / bandwidth;
    let all = || sides.iter().flatten();
    let x = Axis::of(all().map(|point| point.intensity).chain([0.1, ridge * 4.0]), (LEFT, RIGHT));
    let lowest = all().map(|point| point.rate).fold(roof, f64::min);
    let y = Axis::of([lowest, roof * 2.0].into_iter(), (bottom, TOP));
    let mut canvas = Canvas::new(WIDTH, bottom + 46.0);
    axes(&mut canvas, &x, &y);
    roofs(&mut canvas, chip, &x, &y);
    let class = ["token", "prompt"];
    for (side, points) in sides.iter().enumerate() {
        let wanted: Vec<f64> = points.iter().map(|point| y.at(point.rate)).collect();
        let places = spread(&wanted, LABEL, (TOP + 8.0, bottom - 8.0));
        let (mut leaders, mut dots) = (Vec::new(), Vec::new());
        for (point, place) in points.iter().zip(places) {
            let spot = (x.at(point.intensity), y.at(point.rate));
            let name = fitted(&point.step.step, LEFT - 24.0);
            let (label, anchor, end) = match side {
                0 => (LEFT - 16.0, Anchor::End, LEFT - 12.0),
                _ => (RIGHT + 16.0, Anchor::Start, RIGHT + 12.0),
            };
            leaders.push(((end, place), spot));
            let title = format!(
                "{}: {:.2} FLOP/byte, {:.0} GFLOP/s, bound by {}",
                point.step.step,
                point.intensity,
                point.rate / 1e9,
                point.step.time.limit().name()
            );
            dots.push((spot, title));
            canvas.text((label, place), anchor, "", &name);
        }
        canvas.dots(&dots, class[side]);
        canvas.lines(&leaders, "leader");
    }
    canvas.finish(&format!("Roofline of {}: decode and prefill steps", chip.name))
}

fn axes(canvas: &mut Canvas, x: &Axis, y: &Axis) {
    let upright = x.decades().map(|decade| ((x.at(decade), y.from), (x.at(decade), y.to)));
    let level = y.decades().map(|decade| ((x.from, y.at(decade)), (x.to, y.at(decade))));
    canvas.lines(&upright.chain(level).collect::<Vec<_>>(), "grid");
    for decade in x.decades() {
        canvas.text((x.at(decade), y.from + 12.0), Anchor::Middle, "quiet", &short(decade));
    }
    canvas.text(((x.from + x.to) / 2.0, y.from + 34.0), Anchor::Middle, "quiet", "FLOP/byte");
    // Only the ends of the axis have labels: step labels take the space of the others.
    let rate = |decade: f64| match decade {
        1e12.. => format!("{} TFLOP/s", short(decade / 1e12)),
        1e9.. => format!("{} GFLOP/s", short(decade / 1e9)),
        _ => format!("{} MFLOP/s", short(decade / 1e6)),
    };
    let (low, high) = (10f64.powf(y.first), 10f64.powf(y.last));
    canvas.text((x.from + 4.0, y.from - 10.0), Anchor::Start, "quiet", &rate(low));
    canvas.text((x.from + 4.0, y.to + 10.0), Anchor::Start, "quiet", &rate(high));
}

fn roofs(canvas: &mut Canvas, chip: &Chip, x: &Axis, y: &Axis) {
    let (bandwidth, peak, products) = (chip.bandwidth * 1e9, chip.peak_rate(), chip.tensor_rate());
    // The point where the slope enters the plot.
    let slope = |fraction: f64, roof: f64| {
        let begin = 10f64.powf(x.first).max(10f64.powf(y.first) / (fraction * bandwidth));
        ((x.at(begin), y.at(begin * fraction * bandwidth)), (x.at(roof / (fraction * bandwidth)), y.at(roof)))
    };
    let (begin, end) = slope(1.0, peak);
    canvas.line(begin, end, "roof");
    canvas.line(end, (x.to, y.at(peak)), "roof");
    let (begin, end) = slope(chip.efficiency, chip.efficiency * products);
    canvas.line(begin, end, "roof attained");
    canvas.line(end, (x.to, y.at(chip.efficiency * products)), "roof attained");
    let text = format!("{} GB/s, {:.1} TFLOPS", chip.bandwidth, peak / 1e12);
    canvas.text((x.to - 4.0, y.at(peak) - 10.0), Anchor::End, "quiet", &text);
}

/// Formats a power of ten.
fn short(value: f64) -> String {
    if value >= 1.0 { grouped(value.round() as u64) } else { format!("{value}") }
}

//! Timeline of one decoded token: the whole token, and one layer of each kind with its dispatches and barriers. All
//! times are predicted.

use crate::svg::{Anchor, Canvas, FONT, fitted, spread};
use forge_ir::units::grouped;
use forge_planner::{Plan, Prediction, StepTime, Time};
use std::collections::BTreeMap;

const WIDTH: f64 = 960.0;
/// Margin left and right of the bars.
const MARGIN: f64 = 10.0;
/// Height of a bar.
const BAR: f64 = 30.0;
/// Distance between the tops of two bars.
const STRIP: f64 = 104.0;
/// Width of a step label: two digits and a gap.
const LABEL: f64 = 22.0;

/// A part of a step's time.
type Part = fn(&Time) -> f64;

/// The parts in drawing order.
const PARTS: [(&str, Part); 4] = [
    ("launches", |time| time.launches),
    ("memory", |time| time.memory),
    ("arithmetic", |time| time.arithmetic),
    ("tail", |time| time.tail),
];

/// Plots one token. Steps are numbered from 1, in the order of the prediction.
pub(crate) fn picture(plan: &Plan, token: &Prediction) -> String {
    let strips = strips(plan, token);
    let mut canvas = Canvas::new(WIDTH, 70.0 + STRIP * strips.len() as f64);
    whole(&mut canvas, plan, token);
    for (index, strip) in strips.iter().enumerate() {
        draw(&mut canvas, strip, 70.0 + STRIP * index as f64);
    }
    canvas.finish("Decode timeline: the layers of a token, and the dispatches of a layer")
}

/// Plots the whole token, one section after another.
fn whole(canvas: &mut Canvas, plan: &Plan, token: &Prediction) {
    let mut of_section: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for step in &token.steps {
        let (seconds, steps) = of_section.entry(&step.section).or_default();
        *seconds += step.time.seconds();
        *steps += 1;
    }
    let seconds = token.time.seconds();
    let text = format!(
        "one token, at position {}: {:.3} ms predicted, {} dispatches",
        grouped(shown_position(plan)),
        seconds * 1e3,
        token.dispatches
    );
    canvas.text((MARGIN, 10.0), Anchor::Start, "", &text);
    let scale = (WIDTH - 2.0 * MARGIN) / seconds;
    let (mut x, mut edges, mut index) = (MARGIN, Vec::new(), 0);
    // Consecutive layers of one kind are one rectangle divided by lines, which keeps the page small.
    for run in plan.applications.chunk_by(|one, next| one.section == next.section) {
        let (first, last) = (index, index + run.len() - 1);
        index += run.len();
        let section = &plan.sections[run[0].section].name;
        let Some((seconds, steps)) = of_section.get(section.as_str()) else { continue };
        let is_outer = first == 0 || last + 1 == plan.applications.len();
        let (class, name) = match is_outer {
            true => ("span outer", section.clone()),
            false if first == last => ("span", format!("{section} {}", first - 1)),
            false => ("span", format!("{section} {} to {}, each", first - 1, last - 1)),
        };
        let title = format!("{name}: {steps} dispatches, {:.1} µs", seconds * 1e6);
        let width = seconds * scale;
        canvas.rect((x, 22.0), (width * run.len() as f64, BAR), class, &title);
        edges.extend((1..run.len()).map(|cut| x + width * cut as f64).map(|x| ((x, 22.0), (x, 22.0 + BAR))));
        x += width * run.len() as f64;
    }
    canvas.lines(&edges, "edge");
    canvas.rect((x, 22.0), ((WIDTH - MARGIN - x).max(0.5), BAR), "launches", "submission");
}

/// Steps plotted on one scale.
struct Strip<'a> {
    title: String,
    steps: Vec<(usize, &'a StepTime)>,
}

/// One strip per kind of layer, and one for the prologue and epilogue.
fn strips<'a>(plan: &Plan, token: &'a Prediction) -> Vec<Strip<'a>> {
    let numbered = || token.steps.iter().enumerate().map(|(index, step)| (index + 1, step));
    let outer =
        [plan.sections.first(), plan.sections.last()].map(|section| section.map(|it| it.name.as_str()));
    let is_outer = |step: &StepTime| outer.contains(&Some(step.section.as_str()));
    let mut strips: Vec<Strip<'a>> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (number, step) in numbered().filter(|(_, step)| !is_outer(step)) {
        match names.iter().position(|name| *name == step.section) {
            Some(strip) => strips[strip].steps.push((number, step)),
            None => {
                names.push(&step.section);
                let title = format!("{}, one of {}", step.section, step.times);
                strips.push(Strip { title, steps: vec![(number, step)] });
            }
        }
    }
    let once: Vec<_> = numbered().filter(|(_, step)| is_outer(step)).collect();
    strips.push(Strip { title: "before and after the layers".to_owned(), steps: once });
    strips
}

fn draw(canvas: &mut Canvas, strip: &Strip<'_>, top: f64) {
    let seconds: f64 = strip.steps.iter().map(|(_, step)| step.time.seconds()).sum();
    let text =
        format!("{}: {} dispatches in {:.1} µs; ▾ barrier", strip.title, strip.steps.len(), seconds * 1e6);
    canvas.text((MARGIN, top + 8.0), Anchor::Start, "", &fitted(&text, WIDTH - 2.0 * MARGIN));
    let scale = (WIDTH - 2.0 * MARGIN) / seconds.max(1e-12);
    let (bar, mut x) = (top + 46.0, MARGIN);
    let (mut middles, mut edges, mut barriers) = (Vec::new(), Vec::new(), Vec::new());
    for (_, step) in &strip.steps {
        let begin = x;
        let title = format!(
            "{}: {} bytes, {:.2} µs, bound by {}",
            step.step,
            step.cost.bytes(),
            step.time.seconds() * 1e6,
            step.time.limit().name()
        );
        canvas.open(&title);
        for (class, part) in PARTS {
            let width = part(&step.time) * scale;
            // Less than a tenth of a pixel is not visible.
            if width >= 0.1 {
                canvas.rect((x, bar), (width, BAR), class, "");
                x += width;
            }
        }
        canvas.close();
        edges.push(((begin, bar - 4.0), (begin, bar + BAR + 4.0)));
        if step.waits {
            barriers.push((begin, bar - 3.0));
        }
        middles.push((begin + x) / 2.0);
    }
    canvas.lines(&edges, "edge");
    canvas.marks(&barriers);
    let (low, high) = (MARGIN + FONT, WIDTH - MARGIN - FONT);
    let places = spread(&middles, LABEL, (low, high));
    let leaders: Vec<_> = middles
        .iter()
        .zip(&places)
        .map(|(middle, place)| ((*middle, bar - 10.0), (*place, top + 30.0)))
        .collect();
    canvas.lines(&leaders, "leader");
    let numbers = strip.steps.iter().map(|(number, _)| number.to_string());
    let labels: Vec<_> = places.into_iter().map(|place| (place, top + 24.0)).zip(numbers).collect();
    canvas.labels(&labels, "quiet");
}

/// The context length of the plotted token.
pub(crate) fn shown_position(plan: &Plan) -> u64 {
    plan.context.min(1024) as u64
}

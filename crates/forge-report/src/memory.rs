//! Memory plots: weights by role, total by context length, and the scratch arena with the lifetimes of its buffers.

use crate::svg::{Anchor, Canvas, FONT, fitted, spread};
use forge_ir::units::{grouped, size};
use forge_planner::{LENGTHS, Plan, Schedule, Scratch, packed_bytes};
use std::collections::BTreeMap;

const WIDTH: f64 = 960.0;
const ROW: f64 = 22.0;
/// Start and end of the bars. The label is on the left, the size on the right.
const BARS: (f64, f64) = (220.0, 700.0);

/// The weights of one role in all layers.
struct Group {
    name: String,
    formats: Vec<&'static str>,
    count: usize,
    bytes: u64,
}

fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for weight in &plan.weights {
        // `layers.12.qkv` has the role `qkv`.
        let role = weight.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let name = role.map_or(weight.name.as_str(), |(_, role)| role);
        let group = groups.entry(name.to_owned()).or_insert_with(|| Group {
            name: name.to_owned(),
            formats: Vec::new(),
            count: 0,
            bytes: 0,
        });
        group.count += 1;
        group.bytes += packed_bytes(weight);
        if !group.formats.contains(&weight.format.name()) {
            group.formats.push(weight.format.name());
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    groups
}

/// Plots the weights by role.
pub(crate) fn weights(plan: &Plan) -> String {
    let groups = groups(plan);
    let most = groups.iter().map(|group| group.bytes).max().unwrap_or(1).max(1) as f64;
    let mut canvas = Canvas::new(WIDTH, 8.0 + ROW * groups.len() as f64);
    for (index, group) in groups.iter().enumerate() {
        let y = 4.0 + ROW * (index as f64 + 0.5);
        let name = match group.count {
            1 => group.name.clone(),
            count => format!("{} × {count}", group.name),
        };
        let width = group.bytes as f64 / most * (BARS.1 - BARS.0);
        let text = format!("{} {}", size(group.bytes), group.formats.join(", "));
        canvas.text((BARS.0 - 10.0, y), Anchor::End, "", &fitted(&name, BARS.0 - 20.0));
        canvas.rect((BARS.0, y - 7.0), (width, 14.0), "weights", &format!("{} bytes", grouped(group.bytes)));
        canvas.text((BARS.0 + width + 8.0, y), Anchor::Start, "quiet", &fitted(&text, WIDTH - BARS.1 - 20.0));
    }
    canvas.finish("Bytes of weights by role")
}

/// Plots the total memory by context length.
pub(crate) fn totals(plan: &Plan) -> String {
    let context = plan.context as u64;
    let mut lengths: Vec<u64> = LENGTHS.into_iter().filter(|length| *length < context).collect();
    lengths.push(context);
    let (weights, scratch) = (plan.weight_bytes(), plan.arena_bytes as u64);
    let cache = |length: u64| plan.state_bytes(length as usize, plan.slots);
    let most = (weights + scratch + cache(context)).max(1) as f64;
    let mut canvas = Canvas::new(WIDTH, 8.0 + ROW * lengths.len() as f64);
    for (index, length) in lengths.into_iter().enumerate() {
        let y = 4.0 + ROW * (index as f64 + 0.5);
        let positions = if length == 1 { "1 token" } else { "tokens" };
        let label =
            if length == 1 { positions.to_owned() } else { format!("{} {positions}", grouped(length)) };
        canvas.text((BARS.0 - 10.0, y), Anchor::End, "", &label);
        let mut x = BARS.0;
        for (class, bytes) in [("weights", weights), ("cache", cache(length)), ("scratch", scratch)] {
            let width = bytes as f64 / most * (BARS.1 - BARS.0);
            canvas.rect((x, y - 7.0), (width, 14.0), class, &format!("{class}: {} bytes", grouped(bytes)));
            x += width;
        }
        let all = weights + scratch + cache(length);
        let text = format!("{}, KV cache {}", size(all), size(cache(length)));
        canvas.text((x + 8.0, y), Anchor::Start, "quiet", &text);
    }
    canvas.finish("Bytes of weights, KV cache and scratch by context length")
}

/// Plots the arena of one schedule: steps from left to right, bytes upwards, one rectangle per live range of a buffer.
pub(crate) fn arena(plan: &Plan, schedule: Schedule) -> String {
    const TOP: f64 = 10.0;
    const LEFT: f64 = 10.0;
    const RIGHT: f64 = 700.0;
    let here = |scratch: &Scratch| {
        scratch.lifetimes.is_empty() || scratch.lifetimes.iter().any(|life| life.schedule == schedule)
    };
    // A buffer has the same color in both plots.
    let buffers: Vec<(usize, &Scratch)> =
        plan.scratch.iter().enumerate().filter(|(_, scratch)| here(scratch)).collect();
    let height = (buffers.len() as f64 * 16.0).max(220.0);
    // Sections are side by side, with one column per step.
    let mut columns: Vec<String> = Vec::new();
    let mut first_of = Vec::new();
    for section in &plan.sections {
        first_of.push(columns.len());
        columns.extend(section.steps(schedule).iter().map(|step| step.name.clone()));
    }
    // Step names are vertical, under the columns.
    let longest = columns.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(24);
    let foot = 20.0 + longest as f64 * FONT * 0.62;
    let wide = ((RIGHT - LEFT) / columns.len().max(1) as f64).min(60.0);
    let right = LEFT + wide * columns.len() as f64;
    let mut canvas = Canvas::new(WIDTH, TOP + height + foot);
    let y = |byte: usize| TOP + height * (1.0 - byte as f64 / plan.arena_bytes.max(1) as f64);
    for (index, name) in columns.iter().enumerate() {
        let x = LEFT + wide * index as f64;
        let class = if first_of.contains(&index) { "edge" } else { "grid" };
        canvas.line((x, TOP), (x, TOP + height), class);
        // A column narrower than the text height has no label.
        if wide >= 14.0 {
            canvas.upright((x + wide / 2.0, TOP + height + 8.0), &fitted(name, foot - 12.0));
        }
    }
    canvas.line((LEFT, TOP + height), (right, TOP + height), "edge");
    canvas.line((LEFT, y(plan.arena_floor)), (right, y(plan.arena_floor)), "floor");
    let wanted: Vec<f64> = buffers.iter().map(|(_, it)| y(it.offset + it.bytes / 2)).collect();
    let labels = spread(&wanted, 16.0, (TOP + 8.0, TOP + height - 8.0));
    for ((index, scratch), label) in buffers.iter().zip(labels) {
        let class = format!("life c{}", index % 8);
        let title = format!("{}: bytes {}..{}", scratch.name, scratch.offset, scratch.offset + scratch.bytes);
        let (top, bottom) = (y(scratch.offset + scratch.bytes), y(scratch.offset));
        let mut end = LEFT;
        let lives = scratch.lifetimes.iter().filter(|life| life.schedule == schedule);
        let mut spans: Vec<(usize, usize)> = lives
            .map(|life| (first_of[life.section] + life.first, first_of[life.section] + life.last))
            .collect();
        if scratch.lifetimes.is_empty() && !columns.is_empty() {
            spans.push((0, columns.len() - 1));
        }
        for (first, last) in spans {
            let (from, to) = (LEFT + wide * first as f64, LEFT + wide * (last + 1) as f64);
            canvas.rect((from + 1.0, top), (to - from - 2.0, (bottom - top).max(2.0)), &class, &title);
            end = end.max(to);
        }
        canvas.line((end, (top + bottom) / 2.0), (right + 24.0, label), "leader");
        let text = format!("{} {}", scratch.name, size(scratch.bytes as u64));
        canvas.text((right + 28.0, label), Anchor::Start, "", &fitted(&text, WIDTH - right - 34.0));
    }
    canvas.finish(&format!("The arena in a pass of {}", schedule.name()))
}

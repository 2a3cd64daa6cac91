//! Quantization error plot: one cell per weight role and layer.

use crate::svg::{Anchor, Canvas, fitted};
use std::collections::BTreeMap;

const WIDTH: f64 = 960.0;
const ROW: f64 = 22.0;
const LEFT: f64 = 160.0;
const RIGHT: f64 = 800.0;

/// Plots one row per role and one cell per layer; a darker cell has a larger error. `errors` are the relative errors of the
/// stored weights by name. `None` if no weight has an error.
pub(crate) fn picture(errors: &[(String, f64)]) -> Option<String> {
    let lossy = errors.iter().filter(|(_, error)| *error > 0.0);
    let mut roles: BTreeMap<&str, BTreeMap<usize, f64>> = BTreeMap::new();
    for (name, error) in lossy {
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let (place, role) = match layer {
            Some((layer, role)) => (layer.parse().unwrap_or(0), role),
            None => (0, name.as_str()),
        };
        roles.entry(role).or_default().insert(place, *error);
    }
    if roles.is_empty() {
        return None;
    }
    let layers = roles.values().filter_map(|cells| cells.keys().max()).max().map_or(1, |last| last + 1);
    let most = roles.values().flat_map(BTreeMap::values).fold(0.0, |most: f64, error| most.max(*error));
    let wide = (RIGHT - LEFT) / layers as f64;
    let mut canvas = Canvas::new(WIDTH, 8.0 + ROW * roles.len() as f64);
    for (index, (role, cells)) in roles.iter().enumerate() {
        let y = 4.0 + ROW * (index as f64 + 0.5);
        canvas.text((LEFT - 10.0, y), Anchor::End, "", &fitted(role, LEFT - 20.0));
        for (layer, error) in cells {
            // Nine shades; more are not distinguishable.
            let class = format!("loss e{}", (error / most * 9.0).ceil() as u32);
            let title = format!("{role} {layer}: {:.2}%", error * 100.0);
            let width = if cells.len() == 1 { (RIGHT - LEFT).min(40.0) } else { wide };
            let x = LEFT + if cells.len() == 1 { 0.0 } else { wide * *layer as f64 };
            canvas.rect((x, y - 8.0), ((width - 1.0).max(1.0), 16.0), &class, &title);
        }
        let worst = cells.values().fold(0.0, |most: f64, error| most.max(*error));
        let text = format!("max {:.2}%", worst * 100.0);
        canvas.text((RIGHT + 10.0, y), Anchor::Start, "quiet", &text);
    }
    Some(canvas.finish("Quantization error by role and layer"))
}

/// A sentence with the largest errors of layers and of single weights.
pub(crate) fn worst(layers: &[(String, f64)], weights: &[(String, f64)]) -> String {
    let largest = |errors: &[(String, f64)]| {
        let mut errors: Vec<&(String, f64)> = errors.iter().filter(|(_, error)| *error > 0.0).collect();
        errors.sort_by(|a, b| b.1.total_cmp(&a.1));
        let text = |(name, error): &&(String, f64)| format!("{name} {:.2}%", error * 100.0);
        errors.iter().take(3).map(text).collect::<Vec<_>>().join(", ")
    };
    format!("Largest errors by layer: {}; by weight: {}.", largest(layers), largest(weights))
}

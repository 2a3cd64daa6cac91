//! What was chosen, for people, and as the table that `forge compile --tuned` takes.

use super::{Chosen, Knobs};
use serde_json::{Value, json};

/// Knobs, by the names that the compiler has for them.
fn named(knobs: Knobs) -> Value {
    let names = ["rows_per_simdgroup", "simdgroups", "split", "packets", "tile_rows", "tile_outputs"];
    Value::Object(names.into_iter().zip(knobs).map(|(name, knob)| (name.to_owned(), json!(knob))).collect())
}

/// The knobs that matter for so many rows, in short.
fn short(rows: &str, knobs: Knobs) -> String {
    let [own, simdgroups, split, packets, tile_rows, tile_outputs] = knobs;
    match rows {
        "one" => format!("{own} rows, {simdgroups} simdgroups, split {split}, {packets} packets"),
        "few" => format!("{own} rows, {simdgroups} simdgroups, split {split}"),
        _ => format!("tiles of {tile_rows} × {tile_outputs}, split {split}"),
    }
}

/// A line for people.
pub fn line(chosen: &Chosen) -> String {
    let Chosen { product, kernels, own, best, tried, wrong } = chosen;
    let what = format!("{} {} × {} {}", product.format, product.outputs, product.inputs, product.rows);
    let gained = match best.0 == own.0 {
        true => format!("{:>9.1} µs  stays", 1e6 * own.1),
        false => format!(
            "{:>9.1} µs → {:.1} µs ({:+.1}%)  {}",
            1e6 * own.1,
            1e6 * best.1,
            100.0 * (best.1 / own.1 - 1.0),
            short(product.rows, best.0)
        ),
    };
    let wrong = match wrong.len() {
        0 => String::new(),
        count => format!(", {count} more compute something else"),
    };
    format!("{what:<28} {:<24} {gained}  (of {tried}{wrong})\n", kernels.join(" "))
}

/// The table.
pub fn table(model: &str, device: &str, all: &[Chosen]) -> Value {
    let layouts = all.iter().map(|chosen| {
        let Chosen { product, kernels, own, best, tried, wrong } = chosen;
        let wrong = wrong.iter().map(|it| {
            let difference = &it.difference;
            json!({
                "kernel": it.kernel,
                "buffer": difference.buffer,
                "distance": difference.distance.is_finite().then_some(difference.distance),
                "bound": difference.bound,
            })
        });
        json!({
            "rows": product.rows,
            "format": product.format,
            "outputs": product.outputs,
            "inputs": product.inputs,
            "leaves": product.leaves,
            "knobs": named(best.0),
            "seconds": best.1,
            "knobs_before": named(own.0),
            "seconds_before": own.1,
            "kernels": kernels,
            "tried": tried,
            "wrong": wrong.collect::<Vec<_>>(),
        })
    });
    json!({ "model": model, "device": device, "layouts": layouts.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::super::{Difference, Product, Wrong};
    use super::*;

    #[test]
    fn a_line_tells_what_is_gained_and_the_table_by_what() {
        let product = Product { rows: "one", format: "q8_0", outputs: 3072, inputs: 2048, leaves: false };
        let (own, best) = (([4, 2, 1, 2, 1, 1], 12e-6), ([4, 8, 8, 1, 1, 1], 9e-6));
        let chosen = Chosen { product, kernels: &["qkv_one"], own, best, tried: 40, wrong: Vec::new() };
        assert_eq!(
            line(&chosen),
            "q8_0 3072 × 2048 one         qkv_one                       12.0 µs → 9.0 µs (-25.0%)  4 rows, 8 simdgroups, \
             split 8, 1 packets  (of 40)\n"
        );
        let difference = Difference { buffer: "y", distance: 0.5, bound: 1e-4 };
        let wrong = vec![Wrong { kernel: "qkv_one_r1_g2_s1_p1", difference }];
        let chosen = Chosen { best: own, wrong, ..chosen };
        assert_eq!(
            line(&chosen),
            "q8_0 3072 × 2048 one         qkv_one                       12.0 µs  stays  (of 40, 1 more compute something \
             else)\n"
        );
        let told = table("llama", "a GPU", &[chosen]);
        assert_eq!(told["layouts"][0]["knobs"]["rows_per_simdgroup"], 4);
        assert_eq!(told["layouts"][0]["wrong"][0]["kernel"], "qkv_one_r1_g2_s1_p1");
    }
}

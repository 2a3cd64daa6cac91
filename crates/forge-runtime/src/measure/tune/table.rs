//! Tuning results as text, and as tuned.json for `forge compile --tuned`.

use crate::measure::tune::result::TuningResult;
use forge_device::tuning_space::{ErrorModel, KernelLayout, KeyValue};
use serde_json::{Map, Value, json};

/// The knobs of a layout as JSON.
fn named(layout: KernelLayout) -> Value {
    Value::Object(layout.knobs.iter().map(|(name, knob)| ((*name).to_owned(), value(knob))).collect())
}

fn value(entry: &KeyValue) -> Value {
    match entry {
        KeyValue::Word(word) => json!(word),
        KeyValue::Number(number) => json!(number),
        KeyValue::Flag(flag) => json!(flag),
    }
}

/// One line of text.
pub fn line(chosen: &TuningResult) -> String {
    let TuningResult { subject, kernels, best, tried, wrong, .. } = chosen;
    let [before, after] = chosen.seconds();
    let gained = if chosen.has_faster_layout() {
        let percent = 100.0 * (after / before - 1.0);
        format!("{:>9.1} µs → {:.1} µs ({percent:+.1}%)  {}", 1e6 * before, 1e6 * after, best.name)
    } else {
        format!("{:>9.1} µs  unchanged", 1e6 * before)
    };
    let wrong = match wrong.len() {
        0 => String::new(),
        1 => ", 1 mismatch".to_owned(),
        count => format!(", {count} mismatches"),
    };
    format!("{:<28} {:<24} {gained}  (of {tried}{wrong})\n", subject.name, kernels.join(" "))
}

/// The content of tuned.json.
pub fn table(model: &str, device: &str, all: &[TuningResult]) -> Value {
    let layouts = all.iter().map(|chosen| {
        let TuningResult { subject, kernels, default: own, best, times, tried, wrong } = chosen;
        let wrong = wrong.iter().map(|it| {
            let difference = &it.difference;
            json!({
                "kernel": it.kernel,
                "buffer": difference.buffer,
                "distance": difference.distance.is_finite().then_some(difference.distance),
                "bound": difference.bound,
            })
        });
        let [before, after] = chosen.seconds();
        let mut layout: Map<String, Value> =
            subject.attributes.iter().map(|(name, entry)| ((*name).to_owned(), value(entry))).collect();
        let mut more = json!({
            "knobs": named(*best),
            "seconds": after,
            "default_knobs": named(*own),
            "default_seconds": before,
            "kernels": kernels,
            "candidates": tried,
            "mismatches": wrong.collect::<Vec<_>>(),
        });
        if let ErrorModel::Attention { .. } = subject.error_model {
            let of = |it: &crate::measure::tune::result::LayoutTimes| json!({ "positions": it.positions, "seconds": it.best, "default_seconds": it.default });
            more["texts"] = times.iter().map(of).collect();
        }
        layout.extend(more.as_object_mut().map(std::mem::take).unwrap_or_default());
        Value::Object(layout)
    });
    json!({ "model": model, "device": device, "layouts": layouts.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tune::{LayoutTimes, Mismatch, OutputDifference};
    use forge_device::tuning_space::TuningKey;

    #[test]
    fn tuning_output_lists_gains_and_knobs() {
        let subject = TuningKey {
            name: "q8_0 3072 × 2048 one",
            rows: "one",
            attributes: &[
                ("subject", KeyValue::Word("projection")),
                ("inputs", KeyValue::Number(2048)),
                ("writes_partials", KeyValue::Flag(true)),
            ],
            error_model: ErrorModel::Products(2048),
        };
        let own = KernelLayout {
            name: "4 rows, 2 simdgroups",
            knobs: &[("rows_per_simdgroup", KeyValue::Number(4)), ("simdgroups", KeyValue::Number(2))],
        };
        let best = KernelLayout {
            name: "4 rows, 8 simdgroups",
            knobs: &[("rows_per_simdgroup", KeyValue::Number(4)), ("simdgroups", KeyValue::Number(8))],
        };
        let times = vec![LayoutTimes { positions: 521, default: 12e-6, best: 9e-6 }];
        let chosen = TuningResult {
            subject,
            kernels: &["qkv_one"],
            default: own,
            best,
            times,
            tried: 40,
            wrong: Vec::new(),
        };
        assert_eq!(
            line(&chosen),
            "q8_0 3072 × 2048 one         qkv_one                       12.0 µs → 9.0 µs (-25.0%)  4 rows, 8 simdgroups  (of 40)\n"
        );
        let difference = OutputDifference { buffer: "y", distance: 0.5, bound: 1e-4 };
        let wrong = vec![Mismatch { kernel: "qkv_one_r1_g2_s1_p1", difference }];
        let chosen = TuningResult { best: own, wrong, ..chosen };
        assert_eq!(
            line(&chosen),
            "q8_0 3072 × 2048 one         qkv_one                       12.0 µs  unchanged  (of 40, 1 mismatch)\n"
        );
        let of_table = |chosen: &TuningResult| {
            table("llama", "a GPU", std::slice::from_ref(chosen))["layouts"][0].clone()
        };
        let entry = of_table(&chosen);
        assert_eq!(entry["subject"], "projection");
        assert_eq!((&entry["inputs"], &entry["writes_partials"]), (&json!(2048), &json!(true)));
        assert_eq!(entry["knobs"], json!({ "rows_per_simdgroup": 4, "simdgroups": 2 }));
        assert_eq!(entry["mismatches"][0]["kernel"], "qkv_one_r1_g2_s1_p1");
        assert_eq!(entry["texts"], Value::Null);
        let sums = ErrorModel::Attention { width: 64, window: None };
        let long = LayoutTimes { positions: 4096, default: 30e-6, best: 20e-6 };
        let times = [chosen.times.clone(), vec![long]].concat();
        let attention = TuningResult { subject: TuningKey { error_model: sums, ..subject }, times, ..chosen };
        let entry = of_table(&attention);
        assert_eq!(entry["texts"][1]["positions"], 4096);
        assert_eq!(entry["default_seconds"], json!(12e-6 + 30e-6));
    }
}

//! `verify`: whether this device computes what the reference computed. It asks for exact products, as the reference's are.

use super::super::golden::Golden;
use super::super::model::Model;
use super::super::open::{Program, Setup};
use super::arguments::{Common, Verify};
use super::output::{Outcome, print, print_json};
use serde_json::json;

/// Feeds every golden sequence and compares; right only if all are within the bound.
pub(super) fn run<M: Model>(program: &Program, common: &Common, command: &Verify) -> Outcome {
    let golden = Golden::read(&common.setup().path(program, "golden.json"))?;
    let bound = golden.tolerance.bound;
    let mut engine = Setup { exact: true, ..common.setup() }.engine::<M>(program, Some(golden.longest()))?;
    let device = engine.device().describe();
    let (mut ok, mut worst) = (true, 0.0_f64);
    let mut rows = Vec::new();
    if !command.json {
        print(&format!("{} on {device}; bound {bound:e} standard deviations\n", golden.model))?;
        print(&format!("{:>6}  {:<24} {:>12}  {:<10} next id\n", "ids", "passes", "distance", ""))?;
    }
    for sequence in &golden.sequences {
        let distance = sequence.measure(&mut engine)?;
        let within = distance.worst <= bound;
        ok &= within;
        worst = worst.max(distance.worst);
        if command.json {
            rows.push(json!({
                "ids": sequence.ids.len(),
                "chunks": sequence.chunks,
                "worst": finite(distance.worst),
                "at": distance.at,
                "same_next": distance.same_next,
                "ok": within,
            }));
        } else {
            let mut passes: Vec<String> = sequence.chunks.iter().take(4).map(usize::to_string).collect();
            if sequence.chunks.len() > 4 {
                passes.push(format!("... ({})", sequence.chunks.len()));
            }
            print(&format!(
                "{:>6}  {:<24} {:>12.3e}  {:<10} {}\n",
                sequence.ids.len(),
                passes.join(" "),
                distance.worst,
                if within { "ok" } else { "TOO FAR" },
                if distance.same_next { "same" } else { "differs" },
            ))?;
        }
    }
    if command.json {
        print_json(&json!({
            "ok": ok, "model": golden.model, "device": device, "bound": bound, "worst": finite(worst), "sequences": rows,
        }))?;
    } else {
        let verdict =
            if ok { "This device computes this model." } else { "This device does NOT compute this model." };
        print(&format!("{verdict}\n"))?;
    }
    Ok(ok)
}

/// JSON has no infinity.
fn finite(distance: f64) -> f64 {
    distance.min(f64::MAX)
}

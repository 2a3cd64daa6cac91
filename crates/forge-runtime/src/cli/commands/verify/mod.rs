//! `verify`: compares this device's logits with the reference logits.
//!
//! The reference uses f32 activations, so the device runs with f32 activations first. On a CPU with
//! quantized weights the default is int8 activations. Their logits are then compared with those of the same
//! device in f32, unless `--f32-activations` is given.

mod activations;

use crate::cli::arguments::Verify;
use crate::cli::command::{Command, Context};
use crate::cli::commands::verify::activations::{Divergence, all_logits};
use crate::cli::output::{Outcome, print, print_json};
use crate::engine::golden::Golden;
use crate::load::{DeviceKind, LoadOptions};
use serde_json::json;

impl Command for Verify {
    const NAME: &'static str = "verify";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let golden = Golden::read(&common.load_options().path(program, "golden.json"))?;
        let (bound, setup) = (golden.tolerance.bound, common.load_options());
        let has_int8 = setup.device_kind(program) == DeviceKind::Cpu
            && !setup.f32_activations
            && !golden.int8_activations.is_empty();
        let engine = |exact| {
            LoadOptions { f32_activations: exact, ..setup.clone() }.engine(program, Some(golden.max_length()))
        };
        let mut engine_f32 = engine(true)?;
        let device = engine_f32.device().describe();
        let (mut ok, mut worst) = (true, 0.0_f64);
        let mut rows = Vec::new();
        if !command.json {
            print(&format!("{} on {device}\n", golden.model))?;
            print(&format!(
                "f32 activations, compared with the reference logits; tolerance {bound:e} standard deviations\n"
            ))?;
            print(&format!("{:>6}  {:<24} {:>12}  {:<36} argmax\n", "tokens", "passes", "max error", ""))?;
        }
        for sequence in &golden.sequences {
            let distance = sequence.measure(&mut engine_f32)?;
            let within = distance.worst <= bound;
            ok &= within;
            worst = worst.max(distance.worst);
            if command.json {
                rows.push(json!({
                    "tokens": sequence.ids.len(),
                    "chunks": sequence.chunks,
                    "max_error": finite(distance.worst),
                    "max_error_token_id": distance.at,
                    "argmax_matches": distance.same_argmax,
                    "ok": within,
                }));
            } else {
                let mut passes: Vec<String> = sequence.chunks.iter().take(4).map(usize::to_string).collect();
                if sequence.chunks.len() > 4 {
                    passes.push(format!("... ({})", sequence.chunks.len()));
                }
                print(&format!(
                    "{:>6}  {:<24} {:>12.3e}  {:<36} {}\n",
                    sequence.ids.len(),
                    passes.join(" "),
                    distance.worst,
                    if within { "ok" } else { "FAIL: error above tolerance" },
                    if distance.same_argmax { "matches" } else { "differs" },
                ))?;
            }
        }
        let f32_ok = ok;
        let dispatches = engine_f32.device().completed_dispatches();
        let mut int8 = None;
        if has_int8 {
            let exact = all_logits(&golden, &mut engine_f32)?;
            // Frees the weights before the second engine copies them.
            drop(engine_f32);
            let found = Divergence::between(&exact, &all_logits(&golden, &mut engine(false)?)?);
            ok &= found.is_within(&golden.int8_activations);
            if !command.json {
                print("int8 activations, the default on CPUs, compared with f32 activations\n")?;
                print(&found.text(&golden.int8_activations))?;
            }
            int8 = Some(found.json(&golden.int8_activations));
        }
        if command.json {
            print_json(&json!({
                "f32_ok": f32_ok, "int8_activations": int8,
                "ok": ok, "model": golden.model, "device": device, "dispatches": dispatches, "tolerance": bound, "max_error": finite(worst), "sequences": rows,
            }))?;
        } else {
            let verdict = if ok {
                "ok: the logits match the reference."
            } else {
                "FAIL: the logits do not match the reference."
            };
            print(&format!("{verdict}\n"))?;
        }
        Ok(ok)
    }
}

/// Replaces infinity by the largest f64, because JSON has no infinity.
fn finite(distance: f64) -> f64 {
    distance.min(f64::MAX)
}

//! Predictions as text tables and as JSON.

use crate::plan::Plan;
use crate::plan::workload::Workload;
use crate::predict::chips::Chip;
use crate::predict::prediction::{Prediction, StepTime, predict, predict_prompt};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::{Display, Formatter, Result};

/// KV lengths at which decode is predicted, the token's own position included.
pub const LENGTHS: [u64; 4] = [1, 1024, 4096, 32768];

/// Numbers of sequences whose parallel decode is predicted.
const SEQUENCES: [u64; 6] = [2, 4, 8, 16, 32, 64];

/// Prompt lengths at which prefill is predicted, in tokens.
pub const PROMPTS: [u64; 3] = [512, 4096, 16384];

/// Disclaimer printed with every prediction.
const PREDICTED: &str =
    "predicted from specifications and published figures; nothing here was measured on this chip";

/// A plan's predictions for one chip, up to the plan's context length.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// Name of the model.
    pub model: String,
    /// The chip.
    pub chip: Chip,
    /// Decode at each length.
    pub decode: Vec<Prediction>,
    /// Decode of several sequences at the length of [`Forecast::typical`].
    pub decode_batches: Vec<Prediction>,
    /// Prefill of each prompt length.
    pub prefill: Vec<Prediction>,
}

impl Forecast {
    /// Runs all predictions.
    pub fn of(plan: &Plan, chip: &Chip) -> Forecast {
        let context = plan.context as u64;
        let fits = |length: &u64| *length <= context;
        // A short context is predicted at its end.
        let end = (context < LENGTHS[1]).then_some(context);
        let token = |length| predict(plan, chip, Workload::decode(length));
        let decode: Vec<Prediction> = LENGTHS.into_iter().filter(fits).chain(end).map(token).collect();
        let length = typical(&decode).map_or(1, |token| token.load.length);
        Forecast {
            model: plan.model.name.clone(),
            chip: *chip,
            decode,
            decode_batches: SEQUENCES
                .into_iter()
                .map(|sequences| predict(plan, chip, Workload::decode_batch(sequences, length)))
                .collect(),
            prefill: PROMPTS
                .into_iter()
                .filter(fits)
                .map(|tokens| predict_prompt(plan, chip, tokens))
                .collect(),
        }
    }

    /// The decode prediction whose steps are printed: the longest of at most 1024 positions.
    pub fn typical(&self) -> Option<&Prediction> {
        typical(&self.decode)
    }

    /// All predictions, in the order of tables.
    pub fn all(&self) -> impl Iterator<Item = &Prediction> {
        self.decode.iter().chain(&self.decode_batches).chain(&self.prefill)
    }

    /// JSON output.
    pub fn to_json(&self) -> Value {
        let loads = |predictions: &[Prediction]| predictions.iter().map(load_json).collect::<Vec<_>>();
        json!({
            "note": PREDICTED,
            "model": self.model,
            "chip": chip_json(&self.chip),
            "decode": loads(&self.decode),
            "decode_batches": loads(&self.decode_batches),
            "prefill": loads(&self.prefill),
        })
    }
}

fn typical(decode: &[Prediction]) -> Option<&Prediction> {
    decode.iter().rev().find(|token| token.load.length <= 1024)
}

fn chip_json(chip: &Chip) -> Value {
    let mut value = json!(chip);
    value["f32_rate"] = json!(chip.f32_rate());
    value["matrix_rate"] = json!(chip.matrix_rate());
    value["tensor_rate"] = json!(chip.tensor_rate());
    value
}

fn load_json(prediction: &Prediction) -> Value {
    let mut value = json!(prediction);
    value["seconds"] = json!(prediction.time.seconds());
    value["tokens_per_second"] = json!(prediction.load.rows as f64 / prediction.time.seconds());
    value["limit"] = json!(prediction.time.limit());
    value
}

impl Display for Forecast {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{} on {}: {PREDICTED}", self.model, about(&self.chip))?;
        for prediction in self.typical().into_iter().chain(self.prefill.first()) {
            match prediction.load.rows {
                1 => writeln!(f, "\na token at {} positions, in µs", prediction.load.length)?,
                rows => writeln!(f, "\nthe last pass of a prompt of {rows} tokens, in µs")?,
            }
            steps(f, &prediction.steps)?;
        }
        writeln!(
            f,
            "\n{:<22} {:>10} {:>8} {:>14} {:>10} {:>9} {:>10} {:>10} {:>8} {:>8} {:>11}  bound by",
            "in ms",
            "dispatches",
            "barriers",
            "bytes",
            "memory",
            "arithm.",
            "on-core",
            "tails",
            "launches",
            "all",
            "tokens/s"
        )?;
        for prediction in self.all() {
            let what = match prediction.load {
                Workload { rows: 1, length, .. } => format!("token at {length}"),
                Workload { rows, sequences: 1, .. } => format!("prompt of {rows}"),
                Workload { sequences, length, .. } => format!("{sequences} tokens at {length}"),
            };
            let (time, ms) = (prediction.time, |seconds: f64| format!("{:.3}", seconds * 1e3));
            writeln!(
                f,
                "{what:<22} {:>10} {:>8} {:>14} {:>10} {:>9} {:>10} {:>10} {:>8} {:>8} {:>11.1}  {}",
                prediction.dispatches,
                prediction.barriers,
                prediction.cost.bytes(),
                ms(time.memory),
                ms(time.arithmetic),
                ms(time.on_core),
                ms(time.tail),
                ms(time.launches),
                ms(time.seconds()),
                prediction.load.rows as f64 / time.seconds(),
                time.limit().name(),
            )?;
        }
        Ok(())
    }
}

fn steps(f: &mut Formatter<'_>, steps: &[StepTime]) -> Result {
    writeln!(
        f,
        "{:<22} {:>5}  {:<22} {:>12} {:>14} {:>7} {:>5} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9}  bound by",
        "step",
        "times",
        "kernel",
        "bytes",
        "operations",
        "groups",
        "waves",
        "memory",
        "arithm.",
        "on-core",
        "tail",
        "launch",
        "all"
    )?;
    for step in steps {
        let (time, us) = (step.time, |seconds: f64| format!("{:.2}", seconds * 1e6));
        writeln!(
            f,
            "{:<22} {:>5}  {:<22} {:>12} {:>14} {:>7} {:>5} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9}  {}",
            format!("{}.{}", step.section, step.step),
            step.times,
            step.kernel,
            step.cost.bytes(),
            step.cost.operations,
            step.groups,
            step.waves,
            us(time.memory),
            us(time.arithmetic),
            us(time.on_core),
            us(time.tail),
            us(time.launches),
            us(time.seconds()),
            time.limit().name(),
        )?;
    }
    Ok(())
}

fn about(chip: &Chip) -> String {
    format!(
        "{} ({}, {} cores, {} GB/s, {:.1} TFLOPS)",
        chip.name,
        chip.family.name(),
        chip.cores,
        chip.bandwidth,
        chip.f32_rate() / 1e12
    )
}

/// Table of all chips: their figures, and the totals of a plan on each.
pub fn chip_table(plan: &Plan) -> String {
    let mut text = format!("{}: {PREDICTED}\n\n", plan.model.name);
    let forecasts: Vec<Forecast> = Chip::ALL.iter().map(|chip| Forecast::of(plan, chip)).collect();
    let lengths =
        forecasts[0].decode.iter().map(|token| format!("{:>9}", format!("at {}", token.load.length)));
    let batches = forecasts[0].decode_batches.iter().map(|tokens| {
        let Workload { sequences, length, .. } = tokens.load;
        format!("{:>11}", format!("{sequences} at {length}"))
    });
    let prompts =
        forecasts[0].prefill.iter().map(|prompt| format!("{:>9}", format!("pp {}", prompt.load.rows)));
    let heads: Vec<String> = lengths.chain(batches).chain(prompts).collect();
    text += &format!(
        "{:<10} {:<8} {:>5} {:>5} {:>5} {:>6} {:>6} {:>5}  tokens/s:{}  a token is bound by\n",
        "chip",
        "family",
        "cores",
        "GB/s",
        "GHz",
        "TFLOPS",
        "cache",
        "µs",
        heads.join(" ")
    );
    for forecast in &forecasts {
        let chip = &forecast.chip;
        let speed = |prediction: &Prediction| {
            let width = if prediction.load.sequences > 1 { 11 } else { 9 };
            format!("{:>width$.1}", prediction.load.rows as f64 / prediction.time.seconds())
        };
        let speeds: Vec<String> = forecast.all().map(speed).collect();
        text += &format!(
            "{:<10} {:<8} {:>5} {:>5} {:>5} {:>6.1} {:>6} {:>5}           {}  {}\n",
            chip.name,
            chip.family.name(),
            chip.cores,
            chip.bandwidth,
            chip.clock,
            chip.f32_rate() / 1e12,
            chip.system_cache,
            chip.dispatch,
            speeds.join(" "),
            forecast.typical().map_or("", |token| token.time.limit().name()),
        );
    }
    text
}

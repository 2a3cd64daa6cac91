//! Runs compiled models through the host code for Metal, over the emulation. Its argument is a [`Job`] as JSON, and it
//! prints what came of it as JSON.
//!
//! Models and hosts are beside it, in `models.rs` and `hosts.rs`, which the tests write: the models are crates that forge
//! wrote, as libraries, and the hosts the runtime's `metal` as it is and with faults planted in it.

mod hosts;
mod models;
mod skewed;

use forge_emulation::{complaints, counts, emulate, execute, living};
use forge_runtime::device::{Device, Lead};
use forge_runtime::draw::{Draw, Weights};
use forge_runtime::engine::{Engine, Want};
use forge_runtime::failure::Failure;
use forge_runtime::golden::largest;
use forge_runtime::model::{Layout, Model};
use forge_runtime::open::{Program, Setup};
use forge_runtime::weights::WeightFile;
use serde::Deserialize;
use serde_json::{Value, json};

/// Puts a model on a device.
pub type Make = fn(&Program, &WeightFile, &Layout) -> Result<Box<dyn Device>, String>;

/// What is to be done.
#[derive(Deserialize)]
pub struct Job {
    /// The crate.
    model: String,
    /// `whole`, or what is wrong with the host.
    host: String,
    /// What is wrong with passes, if anything is.
    skew: Option<String>,
    texts: Vec<Text>,
}

/// A text to be written: a device is made for it, and is gone after it.
#[derive(Deserialize)]
struct Text {
    ids: Vec<u32>,
    /// How many ids are to follow.
    count: usize,
    context: u32,
    /// How far the device is ahead: ids of a pass, and passes.
    lead: (u32, usize),
    /// How ids are drawn, as words of which the number is that of the first; none takes the most probable.
    draw: Option<[u32; Draw::WORDS]>,
    /// Whether the host draws them, of logits that it is told after each.
    on_host: bool,
    /// Whether kernels are executed. If not, nobody knows what ids follow, and those beyond the context begin it anew.
    executed: bool,
}

fn main() {
    emulate();
    let job = std::env::args().nth(1).expect("a job is given");
    let job: Job = serde_json::from_str(&job).expect("a job is JSON");
    println!("{}", models::run(&job));
}

/// Does a job with a model.
pub fn work<M: Model>(program: &Program, job: &Job) -> Value {
    let texts: Vec<Value> = job.texts.iter().map(|text| write::<M>(program, job, text)).collect();
    json!({ "texts": texts, "living": living() })
}

fn write<M: Model>(program: &Program, job: &Job, text: &Text) -> Value {
    execute(text.executed);
    let mut ids = Vec::new();
    let mut passes = Vec::new();
    let outcome = written::<M>(program, job, text, &mut ids, &mut passes);
    let (logits, error) = match outcome {
        Ok(logits) => (logits, None),
        Err(failure) => (Vec::new(), Some(failure.to_string())),
    };
    json!({ "logits": logits, "ids": ids, "passes": passes, "error": error, "complaints": complaints() })
}

/// Writes a text; gives the logits after its beginning. Of it and of each id that follows it notes what was committed for it,
/// and what objects there are after it.
fn written<M: Model>(
    program: &Program,
    job: &Job,
    text: &Text,
    ids: &mut Vec<u32>,
    passes: &mut Vec<Value>,
) -> Result<Vec<f32>, Failure> {
    let setup = Setup { context: Some(text.context), ..Setup::default() };
    let loaded = setup.load::<M>(program, None)?;
    let mut device = hosts::find(&job.host)(program, &loaded.weights, loaded.model.layout())?;
    assert_eq!(device.describe(), "Metal, Emulated GPU");
    if let Some(skew) = &job.skew {
        device = Box::new(skewed::Skewed::new(device, skew));
    }
    drop(loaded.weights);
    let mut weights = Weights::default();
    let mut engine = Engine::new(loaded.model, device, text.context, 1);
    let mut before = counts();
    let mut note = || {
        let after = counts();
        passes.push(json!({
            "command_buffers": after.command_buffers - before.command_buffers,
            "dispatches": after.dispatches - before.dispatches,
            "barriers": after.barriers - before.barriers,
            "objects": living().values().sum::<usize>(),
        }));
        before = after;
    };
    let logits = engine.feed(0, &text.ids, Want::Logits)?.logits.pop().unwrap_or_default();
    note();
    let mut draw = text.draw.map(Draw::of);
    let mut drawn = |logits: &[f32], draw: &mut Option<Draw>| match draw {
        Some(draw) => weights.draw(logits, &draw.take()),
        None => largest(logits) as u32,
    };
    if text.count > 0 {
        ids.push(if text.executed { drawn(&logits, &mut draw) } else { 0 });
    }
    while text.on_host && ids.len() < text.count {
        let told = engine.feed(0, &ids[ids.len() - 1..], Want::Logits)?.logits;
        ids.push(drawn(&told[0], &mut draw));
        note();
    }
    let (per_pass, passes) = text.lead;
    while ids.len() < text.count {
        if engine.length(0) == text.context && !text.executed {
            engine.truncate(0, 0);
        }
        let room = (text.context - engine.length(0)) as usize;
        let last = if text.executed { ids[ids.len() - 1] } else { 0 };
        let mut chain = engine.chain(0, last, Lead { ids: per_pass, passes })?;
        if let Some(draw) = draw {
            chain = chain.drawing(draw);
        }
        for left in (1..=room.min(text.count - ids.len())).rev() {
            ids.push(chain.next(left)?);
            note();
        }
    }
    Ok(logits)
}

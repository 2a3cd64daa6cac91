//! Runs compiled models through the host code for Metal, over the emulation. Its argument is a [`Job`] as JSON, and it
//! prints what came of it as JSON.
//!
//! Models and hosts are beside it, in `models.rs` and `hosts.rs`, which the tests write: the models are crates that forge
//! wrote, as libraries, and the hosts `metal.rs` as it is and with faults planted in it.

mod hosts;
mod models;

use forge_emulation::{complaints, counts, emulate, execute, living};
use forge_runtime::device::Device;
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
    texts: Vec<Text>,
}

/// A text to be written: a device is made for it, and is gone after it.
#[derive(Deserialize)]
struct Text {
    ids: Vec<u32>,
    /// How many ids are to follow.
    count: usize,
    context: u32,
    /// Whether kernels are executed. If not, ids that follow are zeros, and those beyond the context begin it anew.
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
    let texts: Vec<Value> = job.texts.iter().map(|text| write::<M>(program, &job.host, text)).collect();
    json!({ "texts": texts, "living": living() })
}

fn write<M: Model>(program: &Program, host: &str, text: &Text) -> Value {
    execute(text.executed);
    let mut ids = Vec::new();
    let mut passes = Vec::new();
    let outcome = written::<M>(program, host, text, &mut ids, &mut passes);
    let (logits, error) = match outcome {
        Ok(logits) => (logits, None),
        Err(failure) => (Vec::new(), Some(failure.to_string())),
    };
    json!({ "logits": logits, "ids": ids, "passes": passes, "error": error, "complaints": complaints() })
}

/// Writes a text; gives the logits after its beginning. Of each pass it notes what was committed, and what objects there are
/// after it.
fn written<M: Model>(
    program: &Program,
    host: &str,
    text: &Text,
    ids: &mut Vec<u32>,
    passes: &mut Vec<Value>,
) -> Result<Vec<f32>, Failure> {
    let setup = Setup { context: Some(text.context), ..Setup::default() };
    let loaded = setup.load::<M>(program, None)?;
    let device = hosts::find(host)(program, &loaded.weights, loaded.model.layout())?;
    assert_eq!(device.describe(), "Metal, Emulated GPU");
    drop(loaded.weights);
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
    for index in 0..text.count {
        if index == 0 {
            ids.push(if text.executed { largest(&logits) as u32 } else { 0 });
            continue;
        }
        if engine.length(0) == text.context && !text.executed {
            engine.truncate(0, 0);
        }
        let next = engine.feed(0, &[ids[index - 1]], Want::Next)?.next;
        note();
        ids.push(if text.executed { next[0] } else { 0 });
    }
    Ok(logits)
}

//! Recordings of passes for the kernel checker.

use crate::model::Tiny;
use crate::runtime::device::{Binding, Kernel, Pass, Schedule};
use crate::runtime::engine::{Engine, Output};
use crate::runtime::measure::recorder::Recorder;
use crate::{model, weights};
use serde_json::json;

/// Counts the commands of a pass.
struct Counter {
    dispatches: u32,
    barriers: u32,
}

impl Pass for Counter {
    fn gpu_cores(&self) -> u32 {
        0
    }

    fn dispatch(&mut self, _: &'static Kernel, _: &[Binding], _: &[u32], _: [u32; 3]) {
        self.dispatches += 1;
    }

    fn barrier(&mut self) {
        self.barriers += 1;
    }
}

#[test]
fn a_recording_has_all_device_commands() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(&folder);
    let tiny = Tiny::load(&weights, 16, 1).unwrap();
    let mut counter = Counter { dispatches: 0, barriers: 0 };
    tiny.forward(&mut counter, &tiny.layout().rows(Schedule::Decode, 1, 1));
    tiny.head(&mut counter, Schedule::Decode, &tiny.layout().logit_rows(1, false));
    let cost = model::INFO.decode;
    assert_eq!((counter.dispatches, counter.barriers), (cost.dispatches, cost.barriers));

    let recorder = Recorder::new(weights.bytes(), tiny.layout(), 64);
    let mut engine = Engine::new(tiny, recorder, 16, 1);
    engine.run_tokens(0, &[3, 4, 5], Output::Nothing).unwrap();
    engine.device().label(0, "the first three");
    let fed = engine.run_tokens(0, &[6], Output::Logits).unwrap();
    assert_eq!(fed.logits, [vec![0.0; 50]]);
    engine.device().describe_read(json!({ "logits": { "sequence": 0, "position": 3 } }));
    let recording = engine.into_device().finish();
    assert_eq!(recording["buffers"]["weights"]["bytes"], weights.bytes());
    let passes = recording["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 2);
    assert_eq!(passes[0]["label"], "the first three");
    assert_eq!(passes[0]["reads"], json!([]));
    assert_eq!(passes[0]["writes"][0], json!({ "buffer": "rows", "offset": 0, "words": [3, 4, 5] }));
    assert_eq!(passes[1]["writes"][2]["words"], json!([3]));
    assert_eq!(
        passes[1]["reads"],
        json!([{ "buffer": "scratch", "offset": 11520, "bytes": 200,
                 "what": { "logits": { "sequence": 0, "position": 3 } } }])
    );
    let commands = passes[1]["commands"].as_array().unwrap();
    assert_eq!(commands.len() as u32, counter.dispatches + counter.barriers);
    assert_eq!(commands[1], json!({ "barrier": {} }));
    let embed = &commands[0]["dispatch"];
    assert_eq!(embed["kernel"], "embed");
    assert_eq!(
        (&embed["scalars"], &embed["groups"], &embed["threads"]),
        (&json!([1]), &json!([1, 1, 1]), &json!(64))
    );
    assert_eq!(
        embed["bindings"][3],
        json!({ "buffer": "scratch", "offset": 0, "bytes": 1280, "written": true })
    );
    assert_eq!(embed["bindings"][0]["buffer"], "weights");
}

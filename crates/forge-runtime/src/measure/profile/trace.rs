//! Profiles as a trace in Chrome's format, which Perfetto (ui.perfetto.dev) shows: an event for each dispatch, a track for each
//! profile.

use crate::measure::profile::Profile;
use serde_json::{Value, json};

/// The trace. Durations are the middle of all rounds, beginnings those of the last one.
pub fn trace(profiles: &[Profile]) -> Value {
    let mut events = Vec::new();
    for (track, profile) in profiles.iter().enumerate() {
        events.push(json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": { "name": profile.name },
        }));
        // Where a dispatch took longer than in the last round those after it begin later.
        let mut free: f64 = 0.0;
        for step in &profile.steps {
            let begin = free.max(step.begin);
            free = begin + step.seconds;
            events.push(json!({
                "name": step.kernel,
                "cat": profile.name,
                "ph": "X",
                "ts": microseconds(begin),
                "dur": microseconds(step.seconds),
                "pid": 1,
                "tid": track,
                "args": {
                    "kernel": step.kernel,
                    "layer": step.layer,
                    "bytes_read": step.done.read,
                    "bytes_written": step.done.written,
                    "operations": step.done.operations,
                },
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

/// To the nanosecond.
fn microseconds(seconds: f64) -> f64 {
    (1e9 * seconds).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernel_cost::DispatchCost;
    use crate::measure::profile::Step;

    #[test]
    fn a_dispatch_is_an_event_and_none_begins_before_the_one_before_it_ends() {
        let done = DispatchCost { read: 10, written: 20, operations: 30 };
        let step = |layer, begin, seconds| Step { kernel: "down", layer, done, seconds, begin };
        let steps = vec![step(Some(0), 0.0, 5e-6), step(Some(1), 4e-6, 5e-6)];
        let profile = Profile { name: "an id".to_owned(), rounds: 1, steps, whole: 1e-5 };
        let event = |layer: u32, begin: f64| {
            json!({
                "name": "down", "cat": "an id", "ph": "X", "ts": begin, "dur": 5.0, "pid": 1, "tid": 0,
                "args": {
                    "kernel": "down", "layer": layer, "bytes_read": 10, "bytes_written": 20, "operations": 30,
                },
            })
        };
        let named =
            json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": { "name": "an id" } });
        assert_eq!(
            trace(&[profile]),
            json!({ "traceEvents": [named, event(0, 0.0), event(1, 5.0)], "displayTimeUnit": "ns" })
        );
    }
}

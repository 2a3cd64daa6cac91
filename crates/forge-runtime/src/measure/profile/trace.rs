//! Profiles as a Chrome trace, for Perfetto (ui.perfetto.dev): an event for each dispatch, a track for each
//! profile.

use crate::measure::profile::timings::Profile;
use serde_json::{Value, json};

/// The trace. Durations are the median of all rounds; start times are those of the last round.
pub fn trace(profiles: &[Profile]) -> Value {
    let mut events = Vec::new();
    for (track, profile) in profiles.iter().enumerate() {
        events.push(json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": { "name": profile.name },
        }));
        // Delays later events where a median exceeds the duration in the last round.
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
                    "bytes_read": step.cost.read,
                    "bytes_written": step.cost.written,
                    "operations": step.cost.operations,
                },
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

/// Microseconds, rounded to nanoseconds.
fn microseconds(seconds: f64) -> f64 {
    (1e9 * seconds).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::profile::Step;
    use forge_device::device::kernel_cost::DispatchCost;

    #[test]
    fn dispatches_are_events_that_do_not_overlap() {
        let done = DispatchCost { read: 10, written: 20, operations: 30 };
        let step = |layer, begin, seconds| Step { kernel: "down", layer, cost: done, seconds, begin };
        let steps = vec![step(Some(0), 0.0, 5e-6), step(Some(1), 4e-6, 5e-6)];
        let profile = Profile { name: "decode".to_owned(), repetitions: 1, steps, pass_seconds: 1e-5 };
        let event = |layer: u32, begin: f64| {
            json!({
                "name": "down", "cat": "decode", "ph": "X", "ts": begin, "dur": 5.0, "pid": 1, "tid": 0,
                "args": {
                    "kernel": "down", "layer": layer, "bytes_read": 10, "bytes_written": 20, "operations": 30,
                },
            })
        };
        let named =
            json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": { "name": "decode" } });
        assert_eq!(
            trace(&[profile]),
            json!({ "traceEvents": [named, event(0, 0.0), event(1, 5.0)], "displayTimeUnit": "ns" })
        );
    }
}

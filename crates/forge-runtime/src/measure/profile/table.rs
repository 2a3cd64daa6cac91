//! A profile as a text table with a line for each kernel, and as JSON.

use crate::measure::profile::timings::Profile;
use forge_device::device::kernel_cost::DispatchCost;
use forge_device::model::memory::format_bytes;
use serde_json::{Value, json as value};

/// Memory bandwidth that a profile is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakBandwidth {
    /// Bandwidth in bytes/s.
    pub bytes: f64,
    /// Whether it was measured on this machine rather than published by the vendor.
    pub is_measured: bool,
}

/// All dispatches of a kernel.
struct Line {
    kernel: &'static str,
    calls: usize,
    seconds: f64,
    done: DispatchCost,
}

impl Line {
    fn per_second(&self, amount: u64) -> f64 {
        if self.seconds > 0.0 { amount as f64 / self.seconds } else { 0.0 }
    }

    fn per_call(&self, amount: u64) -> u64 {
        amount / self.calls as u64
    }
}

/// A line for each kernel, slowest first.
fn lines(profile: &Profile) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for step in &profile.steps {
        let place = lines.iter().position(|line| line.kernel == step.kernel).unwrap_or_else(|| {
            lines.push(Line { kernel: step.kernel, calls: 0, seconds: 0.0, done: DispatchCost::default() });
            lines.len() - 1
        });
        let line = &mut lines[place];
        line.calls += 1;
        line.seconds += step.seconds;
        line.done.read += step.cost.read;
        line.done.written += step.cost.written;
        line.done.operations += step.cost.operations;
    }
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    lines
}

/// The text table.
pub fn table(profile: &Profile, best: Option<PeakBandwidth>) -> String {
    let lines = lines(profile);
    let width = lines.iter().map(|line| line.kernel.len()).max().unwrap_or(0).max(6);
    let of_best = if best.is_some() { "  of peak" } else { "" };
    let mut text = format!(
        "{}\n{:<width$} {:>6} {:>11} {:>11} {:>6} {:>10} {:>10} {:>9}{of_best} {:>10}\n",
        profile.name, "kernel", "calls", "µs/call", "µs", "share", "read", "written", "GB/s", "GFLOP/s"
    );
    let sum = profile.sum();
    for line in &lines {
        let speed = line.per_second(line.done.bytes());
        let of_best = best.map_or_else(String::new, |best| format!("{:>8.0}%", 100.0 * speed / best.bytes));
        text += &format!(
            "{:<width$} {:>6} {:>11.2} {:>11.1} {:>5.1}% {:>10} {:>10} {:>9.2}{of_best} {:>10.2}\n",
            line.kernel,
            line.calls,
            1e6 * line.seconds / line.calls as f64,
            1e6 * line.seconds,
            100.0 * line.seconds / sum.max(f64::MIN_POSITIVE),
            format_bytes(line.per_call(line.done.read)),
            format_bytes(line.per_call(line.done.written)),
            speed / 1e9,
            line.per_second(line.done.operations) / 1e9,
        );
    }
    let calls: usize = lines.iter().map(|line| line.calls).sum();
    text += &format!(
        "{calls} dispatches: {:.1} µs isolated, {:.1} µs in the pass (median of {})\n",
        1e6 * sum,
        1e6 * profile.pass_seconds,
        profile.repetitions
    );
    text
}

/// The profile as JSON, with every dispatch.
pub fn json(profile: &Profile) -> Value {
    let lines = lines(profile).into_iter().map(|line| {
        value!({
            "kernel": line.kernel,
            "calls": line.calls,
            "seconds": line.seconds,
            "bytes_read": line.done.read,
            "bytes_written": line.done.written,
            "operations": line.done.operations,
            "bytes_per_second": line.per_second(line.done.bytes()),
            "operations_per_second": line.per_second(line.done.operations),
        })
    });
    let steps = profile.steps.iter().map(|step| {
        value!({
            "kernel": step.kernel,
            "layer": step.layer,
            "seconds": step.seconds,
            "bytes_read": step.cost.read,
            "bytes_written": step.cost.written,
            "operations": step.cost.operations,
        })
    });
    value!({
        "name": profile.name,
        "rounds": profile.repetitions,
        "seconds_isolated": profile.sum(),
        "seconds_in_pass": profile.pass_seconds,
        "kernels": lines.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::profile::Step;

    fn profile() -> Profile {
        let step = |kernel, layer, read, seconds, begin| Step {
            kernel,
            layer,
            cost: DispatchCost { read, written: 1000, operations: 2 * read },
            seconds,
            begin,
        };
        Profile {
            name: "decode at 512 tokens".to_owned(),
            repetitions: 3,
            steps: vec![
                step("embed", None, 4000, 2e-6, 0.0),
                step("qkv_one", Some(0), 2_000_000, 10e-6, 3e-6),
                step("qkv_one", Some(1), 2_000_000, 12e-6, 14e-6),
            ],
            pass_seconds: 20e-6,
        }
    }

    #[test]
    fn profile_output_lists_kernels_and_totals() {
        let output = table(&profile(), Some(PeakBandwidth { bytes: 400e9, is_measured: true }));
        assert_eq!(
            output,
            "decode at 512 tokens\n\
             kernel   calls     µs/call          µs  share       read    written      GB/s  of peak    GFLOP/s\n\
             qkv_one      2       11.00        22.0  91.7%    2.00 MB    1.00 kB    181.91      45%     363.64\n\
             embed        1        2.00         2.0   8.3%    4.00 kB    1.00 kB      2.50       1%       4.00\n\
             3 dispatches: 24.0 µs isolated, 20.0 µs in the pass (median of 3)\n"
        );
        assert!(!table(&profile(), None).contains("of peak"));
    }

    #[test]
    fn json_has_every_kernel_and_every_step() {
        let output = json(&profile());
        assert_eq!(output["kernels"][0]["kernel"], "qkv_one");
        assert_eq!(output["kernels"][0]["bytes_read"], 4_000_000);
        assert_eq!(output["steps"][2]["layer"], 1);
        assert_eq!(output["steps"].as_array().map(Vec::len), Some(3));
        assert_eq!(output["seconds_in_pass"], 20e-6);
    }
}

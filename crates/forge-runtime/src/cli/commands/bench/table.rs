//! The table of the tests, and the lines below it.

use crate::cli::commands::bench::result::Result;
use forge_device::device::PeakOps;
use forge_device::model::ModelInfo;
use forge_device::model::memory::format_bytes;

/// The columns that all tests have in common.
pub(super) struct BenchHeader<'a> {
    pub(super) info: &'static ModelInfo,
    pub(super) model: String,
    pub(super) device: &'a str,
    pub(super) threads: usize,
    /// Length of the longest test name in characters.
    pub(super) widest: usize,
}

/// The model name and the weight format that most of its bytes are in.
pub(super) fn described(info: &ModelInfo) -> String {
    let most = info.formats.iter().max_by_key(|(_, bytes)| *bytes);
    format!("{} {}", info.name, most.map_or("", |(format, _)| format))
}

/// Total weight size in bytes.
pub(super) fn size(info: &ModelInfo) -> u64 {
    info.formats.iter().map(|(_, bytes)| bytes).sum()
}

impl BenchHeader<'_> {
    /// The backend column: the first word of the device description.
    pub(super) fn backend(&self) -> &str {
        self.device.split([' ', ',']).next().unwrap_or_default()
    }

    /// The table header.
    pub(super) fn heading(&self) -> String {
        let (width, widest) = (self.model.chars().count().max(5), self.widest);
        format!(
            "| {:<width$} | {:>10} | {:>10} | {:<7} | {:>7} | {:>widest$} | {:>18} |\n\
             | {:-<width$} | ---------: | ---------: | ------- | ------: | {:->less$}: | -----------------: |\n",
            "model",
            "size",
            "params",
            "backend",
            "threads",
            "test",
            "t/s",
            "",
            "",
            less = widest - 1,
        )
    }

    /// One table row.
    pub(super) fn row(&self, result: &Result) -> String {
        let (width, widest) = (self.model.chars().count().max(5), self.widest);
        let (gibibytes, parameters) =
            (size(self.info) as f64 / (1_u64 << 30) as f64, self.info.parameters as f64);
        let size = if gibibytes >= 1.0 {
            format!("{gibibytes:.2} GiB")
        } else {
            format!("{:.2} MiB", gibibytes * 1024.0)
        };
        let parameters = if parameters >= 1e9 {
            format!("{:.2} B", parameters / 1e9)
        } else {
            format!("{:.2} M", parameters / 1e6)
        };
        let speed = format!("{:.2} ± {:.2}", result.mean(), result.deviation());
        format!(
            "| {:<width$} | {size:>10} | {parameters:>10} | {:<7} | {:>7} | {:>widest$} | {speed:>18} |\n",
            self.model,
            self.backend(),
            self.threads,
            result.name(),
        )
    }
}

/// Compares decode with the memory bandwidth. `bytes`: weights read per token; `best`: bandwidth in bytes/s.
pub(super) fn bandwidth_line(bytes: u64, per_second: f64, best: f64) -> String {
    let reached = bytes as f64 * per_second;
    format!(
        "decode: {} of weights per token × {per_second:.1} tok/s = {}/s, {:.0}% of the memory bandwidth of {}/s",
        format_bytes(bytes),
        format_bytes(reached as u64),
        100.0 * reached / best,
        format_bytes(best as u64),
    )
}

/// Compares prefill with the peak compute rate. `operations` are per token.
pub(super) fn compute_line(operations: u64, per_second: f64, best: PeakOps) -> String {
    let giga = |operations: f64| operations / 1e9;
    let int8 = best.int8.map(|int8| format!("{:.0} GOP/s in int8 and ", giga(int8))).unwrap_or_default();
    format!(
        "prefill: {:.1}M operations per token × {per_second:.1} tok/s = {:.0} GOP/s; the device reaches {int8}{:.0} GFLOP/s in f32",
        operations as f64 / 1e6,
        giga(operations as f64 * per_second),
        giga(best.f32),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_is_compared_with_the_memory_bandwidth() {
        let line = bandwidth_line(1_170_000_000, 37.0, 52e9);
        assert_eq!(
            line,
            "decode: 1.17 GB of weights per token × 37.0 tok/s = 43.29 GB/s, 83% of the memory bandwidth of 52.00 GB/s"
        );
    }

    #[test]
    fn prefill_is_compared_with_the_peak_compute_rate() {
        let line = compute_line(221_600_000, 388.0, PeakOps { int8: Some(339e9), f32: 120e9 });
        assert_eq!(
            line,
            "prefill: 221.6M operations per token × 388.0 tok/s = 86 GOP/s; the device reaches 339 GOP/s in int8 and 120 GFLOP/s in f32"
        );
        let line = compute_line(221_600_000, 388.0, PeakOps { int8: None, f32: 120e9 });
        assert!(line.ends_with("the device reaches 120 GFLOP/s in f32"), "{line}");
    }
}

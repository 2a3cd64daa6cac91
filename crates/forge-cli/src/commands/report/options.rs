//! Options of `forge report`.

use std::path::PathBuf;

/// Options of the command, apart from the model.
pub(crate) struct ReportOptions {
    /// The device to check.
    pub(crate) device: String,
    /// The file to write.
    pub(crate) out: PathBuf,
    /// Minutes of sustained decode.
    pub(crate) minutes: u32,
    /// Whether benchmarks are short.
    pub(crate) is_quick: bool,
    /// A program of the model that is already built.
    pub(crate) program: Option<PathBuf>,
}

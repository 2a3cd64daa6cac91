//! Packages kernel tests for a machine with an NVIDIA GPU. They compare the GPU's results with f64 arithmetic, with the same
//! sizes and tolerances as in the kernel checker.
//!
//! The tests first run here in the kernel checker, which also writes the PTX of all kernels. The package contains the PTX and
//! the test programs.

use super::linked::{run, write};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const TEST_KERNELS: &str = include_str!("../../gpu/test_kernels.sh");

/// The packaged tests by crate.
const TESTS: [(&str, &[&str]); 2] =
    [("forge-sim", &["attention", "experts", "experts_tiles", "projections"]), ("tests", &["sample"])];

/// Builds, runs and packages the tests into `pack/kernels`.
pub(super) fn pack_kernels(root: &Path, pack: &Path) -> Result<(), String> {
    let folder = pack.join("kernels");
    let ptx = folder.join("ptx");
    if ptx.is_dir() {
        fs::remove_dir_all(&ptx).map_err(|error| format!("{}: {error}", ptx.display()))?;
    }
    for (package, tests) in TESTS {
        for test in tests {
            let program = build(root, package, test)?;
            run(Command::new(&program).env("FORGE_GPU_PTX", &ptx).current_dir(root))?;
            let packed = folder.join(test);
            fs::copy(&program, &packed).map_err(|error| format!("{program}: {error}"))?;
            // Debug info is not needed. Without `strip` the package is only larger.
            let _ = Command::new("strip").arg(&packed).stderr(Stdio::null()).status();
        }
    }
    write(&folder.join("test_kernels.sh"), TEST_KERNELS.as_bytes())
}

/// Builds a test that can run on a GPU and returns its path.
fn build(root: &Path, package: &str, test: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--no-run", "--message-format", "json-render-diagnostics"]);
    command.args(["--package", package, "--test", test, "--features", "forge-sim/gpu"]).current_dir(root);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| {
            (message["target"]["name"] == test)
                .then(|| message["executable"].as_str().map(str::to_owned))
                .flatten()
        });
    program.filter(|_| output.status.success()).ok_or_else(|| format!("{command:?} failed"))
}

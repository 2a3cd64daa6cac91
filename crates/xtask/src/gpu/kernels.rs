//! Tests of kernels for whoever has an NVIDIA GPU: they compare what the card computes with plain arithmetic in f64, at the odd sizes and
//! within the tolerances that they hold the referee to.
//!
//! They are run here first, by the referee, which collects the PTX of whatever they compile; that and the tests themselves are packed.

use super::linked::{run, write};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("../../gpu/kernels.sh");

/// Tests whose kernels are compared with arithmetic, by their packages.
const TESTS: [(&str, &[&str]); 2] =
    [("forge-sim", &["attention", "experts", "experts_tiles", "projections"]), ("tests", &["sample"])];

/// Builds, runs and packs them into `pack/kernels`.
pub(super) fn pack_kernels(root: &Path, pack: &Path) -> Result<(), String> {
    let folder = pack.join("kernels");
    let texts = folder.join("texts");
    if texts.is_dir() {
        fs::remove_dir_all(&texts).map_err(|error| format!("{}: {error}", texts.display()))?;
    }
    for (package, tests) in TESTS {
        for test in tests {
            let program = build(root, package, test)?;
            run(Command::new(&program).env("FORGE_CARD_TEXTS", &texts).current_dir(root))?;
            let packed = folder.join(test);
            fs::copy(&program, &packed).map_err(|error| format!("{program}: {error}"))?;
            // Lines of the referee's own are of no use there. Where there is nothing to strip with, it is only larger.
            let _ = Command::new("strip").arg(&packed).stderr(Stdio::null()).status();
        }
    }
    write(&folder.join("kernels.sh"), SCRIPT.as_bytes())
}

/// A test whose dispatches a card can execute; gives its path.
fn build(root: &Path, package: &str, test: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--no-run", "--message-format", "json-render-diagnostics"]);
    command.args(["--package", package, "--test", test, "--features", "forge-sim/card"]).current_dir(root);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|said| {
            (said["target"]["name"] == test).then(|| said["executable"].as_str().map(str::to_owned)).flatten()
        });
    program.filter(|_| output.status.success()).ok_or_else(|| format!("{command:?} failed"))
}

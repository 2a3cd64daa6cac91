//! `cargo xtask reference-keys`: extracts the configuration keys that Hugging Face transformers reads.
//!
//! A Python script in this directory parses the sources of an installed package with `ast`, without executing them. The result
//! is committed. The frontend uses it to decide which unread keys of a checkpoint have no effect.

use forge_frontend::families;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Path of the result.
pub const FILE: &str = "crates/forge-frontend/src/config/reference_keys.json";

const SCRIPT: &str = include_str!("reference_keys.py");

/// Extracts the keys from the transformers package of `python` and writes [`FILE`].
///
/// # Errors
/// Python or the package cannot be run or found, or the file cannot be written.
pub fn write(python: &str) -> Result<(), String> {
    let [folder, release] = installed(python)?;
    let types: Vec<String> =
        families().iter().map(|family| format!("{}={}", family.model_type, family.class)).collect();
    let found = read(python, Path::new(&folder), &release, &types)?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    std::fs::write(&path, wrap_lines(&found)).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{}: transformers {release}, {} model types", path.display(), types.len());
    Ok(())
}

/// Directory and version of the transformers package of `python`.
fn installed(python: &str) -> Result<[String; 2], String> {
    const QUESTION: &str = "import importlib.util, importlib.metadata as m; print(importlib.util.find_spec('transformers').submodule_search_locations[0]); print(m.version('transformers'))";
    let answer = run(Command::new(python).args(["-c", QUESTION])).map_err(|_| {
        format!("{python} has no transformers package: run `{python} -m pip install transformers`, or pass another interpreter with --python")
    })?;
    let mut lines = answer.lines().map(str::to_owned);
    let mut next = || lines.next().ok_or_else(|| format!("{python}: cannot locate the transformers package"));
    Ok([next()?, next()?])
}

/// Runs the script on a package's sources, for these `TYPE=CLASS`.
///
/// # Errors
/// The script's message if it cannot parse the sources.
pub fn read(python: &str, folder: &Path, release: &str, types: &[String]) -> Result<Value, String> {
    let answer = run(Command::new(python).args(["-c", SCRIPT]).arg(folder).arg(release).args(types))?;
    serde_json::from_str(&answer).map_err(|error| error.to_string())
}

fn run(command: &mut Command) -> Result<String, String> {
    let python = PathBuf::from(command.get_program());
    let output = command.output().map_err(|error| format!("{}: {error}", python.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(stderr.lines().last().unwrap_or("the script failed").to_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

/// Formats the result with one key per line, so that diffs between versions are readable.
fn wrap_lines(found: &Value) -> String {
    let mut text = format!("{{\n  \"transformers\": {},\n  \"models\": {{\n", found["transformers"]);
    let models = found["models"].as_object().into_iter().flatten();
    let models: Vec<String> = models
        .map(|(model_type, model)| {
            let lines = |object: &str| -> Vec<String> {
                let entries = model[object].as_object().into_iter().flatten();
                entries.map(|(key, value)| format!("        \"{key}\": {value}")).collect()
            };
            let mut text = format!("    \"{model_type}\": {{\n      \"keys\": {{\n");
            let _ = write!(text, "{}\n      }},\n      \"nested\": {{\n", lines("keys").join(",\n"));
            let _ = write!(text, "{}\n      }}\n    }}", lines("nested").join(",\n"));
            text
        })
        .collect();
    let _ = write!(text, "{}\n  }}\n}}\n", models.join(",\n"));
    text
}

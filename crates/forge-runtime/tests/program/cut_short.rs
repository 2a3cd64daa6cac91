//! Interrupted commands: Ctrl-C and closed output pipes.

use crate::{directory, program, text};
use std::process::Stdio;
#[cfg(target_os = "linux")]
use {
    serde_json::Value,
    std::process::{Command, Output},
    tempfile::TempDir,
};

/// Runs a command and sends Ctrl-C, `after` a delay from when the process handles the signal. Returns its
/// output.
#[cfg(target_os = "linux")]
fn interrupted(folder: &TempDir, line: &str, after: std::time::Duration) -> Output {
    let mut command = program(folder, line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let notices = || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
        caught.and_then(|caught| u64::from_str_radix(caught, 16).ok()).is_some_and(|caught| caught & 2 != 0)
    };
    while !notices() {
        assert_eq!(child.try_wait().unwrap(), None, "{line} ends by itself");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::thread::sleep(after);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn interrupted_profiles_write_a_whole_trace_or_none() {
    let folder = directory(0.0);
    let file = folder.path().join("trace.json");
    std::fs::write(&file, "an older one").unwrap();
    let files = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    for milliseconds in [0, 500] {
        std::fs::write(&file, "an older one").unwrap();
        let line = format!("profile -r 4000000000 --trace {}", file.display());
        let output = interrupted(&folder, &line, std::time::Duration::from_millis(milliseconds));
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("interrupted: "), "{}", text(&output.stderr));
        let left = std::fs::read_to_string(&file).unwrap();
        if output.stdout.is_empty() {
            assert_eq!(left, "an older one");
        } else {
            let trace: Value = serde_json::from_str(&left).unwrap();
            assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 1));
        }
        assert_eq!(files(), before);
    }
}

/// A closed output pipe and Ctrl-C are not failures.
#[test]
fn generate_can_be_interrupted() {
    let folder = directory(0.0);
    let line = "generate --token-ids 3 --temperature 1 --seed 1 -n 60 --ctx-size 64 --ignore-eos";
    let mut child = program(&folder, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    // Messages on stderr may go to a full disk.
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        assert_eq!(program(&folder, line).stderr(full).output().unwrap().status.code(), Some(0));
    }
}

//! Checks of programs on the GPU: logits against the reference, text against the CPU's, sampling against the
//! host's.

use serde_json::Value;
use std::fmt::Write;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum duration of a command. Virtual GPUs have been seen to hang.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A compiled program.
#[derive(Clone, Debug)]
pub struct MetalProgram {
    /// Its name, for messages.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

/// Arguments of a generation from a fixed prompt.
const GENERATE: [&str; 5] = ["generate", "--token-ids", "1,2,3,4,5", "-n", "24"];

/// Sampling parameters.
const SAMPLING: [&str; 8] = ["--seed", "1", "--temperature", "0.8", "--top-k", "40", "--top-p", "0.95"];

/// Checks each program with these environment variables, and returns a summary. An error lists all failures.
pub fn check_programs(programs: &[MetalProgram], variables: &[(&str, &str)]) -> Result<String, String> {
    let mut failures = String::new();
    let mut dispatches = 0;
    for program in programs {
        match check(program, variables) {
            Ok((count, line)) => {
                println!("ok {}: {line}", program.name);
                dispatches += count;
            }
            Err(why) => _ = write!(failures, "\n{}: {why}", program.name),
        }
    }
    match () {
        () if programs.is_empty() => Err("no program was checked".to_owned()),
        () if !failures.is_empty() => Err(format!("Metal checks failed:{failures}")),
        () => Ok(format!("{} programs passed, with {dispatches} dispatches in verify", programs.len())),
    }
}

/// Checks a program; returns the dispatches of `verify`, and a line for people.
fn check(program: &MetalProgram, variables: &[(&str, &str)]) -> Result<(u64, String), String> {
    let run = |arguments: &[&str]| run(program, arguments, variables);
    let verified: Value = serde_json::from_str(&run(&["verify", "--json"])?)
        .map_err(|error| format!("verify --json prints no JSON: {error}"))?;
    let device = verified["device"].as_str().unwrap_or("no device");
    let dispatches = verified["dispatches"].as_u64().unwrap_or(0);
    if !device.starts_with("Metal, ") || dispatches == 0 {
        return Err(format!("{dispatches} dispatches on {device}: nothing ran on a Metal GPU"));
    }
    if verified["ok"] != true {
        return Err(format!("the logits on {device} differ from the reference: {verified}"));
    }
    // Kernels precompiled by Apple's tools and kernels compiled at start.
    // Prefill attention by the kernel for small batches. GEMM with tensors, where Metal 4 has them.
    for (variable, kernels) in [
        ("FORGE_METAL_SOURCE", "kernels compiled at start"),
        ("FORGE_SIMPLE_ATTENTION", "simple attention kernels"),
        ("FORGE_METAL_TENSORS", "tensor operations"),
    ] {
        let variables = [variables, &[(variable, "1")]].concat();
        let verified: Value = serde_json::from_str(&self::run(program, &["verify", "--json"], &variables)?)
            .map_err(|error| format!("verify --json prints no JSON: {error}"))?;
        if verified["ok"] != true {
            return Err(format!("{kernels} differ from the reference: {verified}"));
        }
    }
    let generate = |device: &[&str], more: &[&str]| run(&[device, &GENERATE, more].concat());
    let greedy = ["--temperature", "0"];
    let (on_gpu, on_cpu) =
        (generate(&[], &greedy)?, generate(&["--device", "cpu", "--f32-activations"], &greedy)?);
    if on_gpu != on_cpu {
        return Err(format!("the greedy text is {on_gpu:?} on {device}, {on_cpu:?} on the CPU"));
    }
    // A penalty moves sampling to the host, however small it is.
    let by_host = [&SAMPLING[..], &["--presence-penalty", "1e-30"]].concat();
    let (by_device, by_host) = (generate(&[], &SAMPLING)?, generate(&[], &by_host)?);
    if by_device != by_host {
        return Err(format!("the sampled text is {by_device:?} by {device}, {by_host:?} by the host"));
    }
    let error = verified["max_error"].as_f64().unwrap_or(f64::NAN);
    Ok((dispatches, format!("{dispatches} dispatches on {device}, largest error {error:.1e}, equal texts")))
}

/// Runs a command; returns its standard output. A missing GPU fails it, and so does the timeout.
fn run(program: &MetalProgram, arguments: &[&str], variables: &[(&str, &str)]) -> Result<String, String> {
    let shown = arguments.join(" ");
    let failed = |error: std::io::Error| format!("{shown}: {error}");
    let mut command = Command::new(&program.path);
    command.args(arguments).env("FORGE_REQUIRE_METAL", "1").envs(variables.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child).map_err(failed)?;
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    match status {
        None => Err(format!("{shown}: no end after {} s", TIMEOUT.as_secs())),
        Some(true) => Ok(stdout),
        Some(false) => Err(format!("{shown} failed: {}{}", stderr.trim_end(), stdout.trim_end())),
    }
}

/// Reads a stream on another thread, so that the program never waits for a reader.
fn reader(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a program: whether it succeeded; none if it was ended by the timeout.
fn wait(child: &mut Child) -> std::io::Result<Option<bool>> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

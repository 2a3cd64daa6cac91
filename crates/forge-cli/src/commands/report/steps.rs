//! The steps of a report: commands of the model's program, and what is compared between their results.

use crate::commands::report::options::ReportOptions;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The program of the model.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The device to check.
    pub(super) device: String,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Passed,
    /// Why it failed.
    Failed(String),
    /// Why it was not run.
    Skipped(String),
}

/// A step that has been run.
pub(super) struct Step {
    name: &'static str,
    pub(super) status: Status,
    seconds: f64,
    /// JSON of its commands, and their standard error.
    results: Vec<Value>,
}

/// What a step does; it keeps the JSON of its commands.
type Action = dyn Fn(&Program, &mut Vec<Value>) -> Result<(), Status>;

/// A step to be run.
pub(super) struct PlannedStep {
    pub(super) name: &'static str,
    action: Box<Action>,
}

impl PlannedStep {
    fn new(
        name: &'static str,
        action: impl Fn(&Program, &mut Vec<Value>) -> Result<(), Status> + 'static,
    ) -> PlannedStep {
        PlannedStep { name, action: Box::new(action) }
    }

    /// Runs it.
    pub(super) fn run(&self, program: &Program) -> Step {
        let (start, mut results) = (Instant::now(), Vec::new());
        let status = (self.action)(program, &mut results).err().unwrap_or(Status::Passed);
        Step { name: self.name, status, seconds: start.elapsed().as_secs_f64(), results }
    }
}

impl Step {
    /// Its name and outcome.
    pub(super) fn line(&self) -> String {
        match &self.status {
            Status::Passed => format!("passed   {} ({:.1} s)", self.name, self.seconds),
            Status::Failed(why) => {
                format!("FAILED   {}: {}", self.name, why.lines().next().unwrap_or_default())
            }
            Status::Skipped(why) => format!("skipped  {}: {why}", self.name),
        }
    }

    pub(super) fn json(&self) -> Value {
        let (status, why) = match &self.status {
            Status::Passed => ("passed", None),
            Status::Failed(why) => ("failed", Some(why)),
            Status::Skipped(why) => ("skipped", Some(why)),
        };
        json!({
            "name": self.name, "status": status, "reason": why, "seconds": self.seconds, "results": self.results,
        })
    }
}

/// Metal's validation layers.
const VALIDATION: [(&str, &str); 2] = [("MTL_DEBUG_LAYER", "1"), ("MTL_SHADER_VALIDATION", "1")];

/// All steps, the safest first.
pub(super) fn all(kernels: Option<&Path>, options: &ReportOptions) -> Vec<PlannedStep> {
    let kernels = kernels.map(Path::to_owned);
    let (is_quick, minutes) = (options.is_quick, options.minutes);
    vec![
        PlannedStep::new("model and device (info)", |program, results| {
            program.json(&["info", "--json"], &[], results).map(|_| ())
        }),
        PlannedStep::new("kernels compile without warnings", move |_, results| {
            validate(kernels.as_deref(), results)
        }),
        PlannedStep::new("logits on the CPU match the reference", |program, results| {
            verify(program, "cpu", &[], results)
        }),
        PlannedStep::new("logits match with validation layers", |program, results| {
            if program.device != "metal" {
                return Err(Status::Skipped("the layers are Metal's".to_owned()));
            }
            verify(program, &program.device, &VALIDATION, results)
        }),
        PlannedStep::new("logits match the reference", |program, results| {
            verify(program, &program.device, &[], results)
        }),
        PlannedStep::new("logits match with kernels compiled at start", |program, results| {
            if program.device != "metal" {
                return Err(Status::Skipped("other devices have one way".to_owned()));
            }
            verify(program, &program.device, &[("FORGE_METAL_SOURCE", "1")], results)
        }),
        PlannedStep::new("greedy text equals the CPU's", |program, results| {
            let greedy = ["--temperature", "0"];
            let found = generate(program, &["--device", &program.device], &greedy, results)?;
            let cpu = generate(program, &["--device", "cpu", "--f32-activations"], &greedy, results)?;
            same(&found, &cpu)
        }),
        PlannedStep::new("sampled text equals the host's", |program, results| {
            for seed in ["1", "2", "3", "4"] {
                let sampling = ["--seed", seed, "--temperature", "0.8", "--top-k", "40", "--top-p", "0.95"];
                // A penalty moves sampling to the host, however small it is.
                let on_host = [&sampling[..], &["--presence-penalty", "1e-30"]].concat();
                let device = ["--device", &program.device];
                same(
                    &generate(program, &device, &sampling, results)?,
                    &generate(program, &device, &on_host, results)?,
                )?;
            }
            Ok(())
        }),
        PlannedStep::new("speed (bench)", move |program, results| {
            let bench = program.bench(is_quick, results)?;
            program.timed(&bench, results)?;
            for tokens in ["1", "2", "4", "8"] {
                program.timed(
                    &[&bench[..], &own(&["-p", "0", "--tokens-per-pass", tokens])].concat(),
                    results,
                )?;
            }
            Ok(())
        }),
        PlannedStep::new("time of each kernel (profile)", move |program, results| {
            let rows = program.prompt_rows(is_quick, results)?;
            let repetitions = if is_quick { "1" } else { "10" };
            program.timed(&own(&["profile", "--json", "-p", &rows, "-r", repetitions]), results)
        }),
        PlannedStep::new("sustained speed (bench --minutes)", move |program, results| {
            if minutes == 0 {
                return Err(Status::Skipped("--minutes 0".to_owned()));
            }
            program.timed(&own(&["bench", "--json", "--minutes", &minutes.to_string()]), results)
        }),
    ]
}

fn own(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Program {
    /// Runs a command and keeps its JSON and its standard error.
    fn json(
        &self,
        arguments: &[&str],
        variables: &[(&str, &str)],
        results: &mut Vec<Value>,
    ) -> Result<Value, Status> {
        let shown = arguments.join(" ");
        let output = Command::new(&self.path)
            .args(arguments)
            .envs(variables.iter().copied())
            .output()
            .map_err(|error| Status::Failed(format!("{shown}: {error}")))?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        results.push(json!({
            "command": shown, "variables": variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "exit_code": output.status.code(), "result": value, "stderr": stderr,
        }));
        if value.is_null() {
            let last = stderr.lines().last().unwrap_or("no output");
            return Err(Status::Failed(format!("{shown}: {last}")));
        }
        Ok(value)
    }

    /// Runs a measurement on the device.
    fn timed(&self, arguments: &[String], results: &mut Vec<Value>) -> Result<(), Status> {
        let mut all = vec!["--device", &self.device];
        all.extend(arguments.iter().map(String::as_str));
        self.json(&all, &[], results).map(|_| ())
    }

    /// The arguments of `bench` that fit the model's context.
    fn bench(&self, is_quick: bool, results: &mut Vec<Value>) -> Result<Vec<String>, Status> {
        let rows = self.prompt_rows(is_quick, results)?;
        let rest = if is_quick { ["-n", "8", "-r", "1"] } else { ["-n", "64", "-r", "5"] };
        Ok([own(&["bench", "--json", "-p", &rows]), own(&rest)].concat())
    }

    /// The length of a prompt: 512, or half of the context if that is shorter.
    fn prompt_rows(&self, is_quick: bool, results: &mut Vec<Value>) -> Result<String, Status> {
        let info = self.json(&["info", "--json"], &[], results)?;
        // It is in the report already.
        results.pop();
        let most = info["context"].as_u64().unwrap_or(2) / 2;
        Ok(most.clamp(1, if is_quick { 16 } else { 512 }).to_string())
    }
}

/// Compiles the kernels with Apple's compiler.
fn validate(kernels: Option<&Path>, results: &mut Vec<Value>) -> Result<(), Status> {
    let Some(kernels) = kernels else {
        return Err(Status::Skipped("the program was built elsewhere".to_owned()));
    };
    let xcrun = |math: &[&str], file: &Path| {
        let mut command = Command::new("xcrun");
        command.args(["-sdk", "macosx", "metal", "-std=metal3.0", "-Wall", "-Werror", "-x", "metal", "-c"]);
        command.args(math).arg(file).args(["-o", "/dev/null"]).output().ok()
    };
    // Before Xcode 16 one option sets both.
    let math = ["-fmetal-math-mode=safe", "-fmetal-math-fp32-functions=precise"];
    let Some(probe) = xcrun(&math, Path::new("/dev/null")) else {
        return Err(Status::Skipped("no xcrun on this machine".to_owned()));
    };
    let math: &[&str] = if probe.status.success() { &math } else { &["-fno-fast-math"] };
    if xcrun(math, Path::new("/dev/null")).is_none_or(|output| !output.status.success()) {
        return Err(Status::Skipped("Apple's Metal compiler is not installed".to_owned()));
    }
    let Some(output) = xcrun(math, kernels) else {
        return Err(Status::Failed("xcrun cannot run".to_owned()));
    };
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    results.push(json!({ "options": math, "stderr": stderr }));
    match output.status.success() {
        true => Ok(()),
        false => Err(Status::Failed(stderr.lines().next().unwrap_or("no message").to_owned())),
    }
}

/// Compares logits with the reference.
fn verify(
    program: &Program,
    device: &str,
    variables: &[(&str, &str)],
    results: &mut Vec<Value>,
) -> Result<(), Status> {
    let found = program.json(&["--device", device, "verify", "--json"], variables, results)?;
    match found["ok"] == true {
        true => Ok(()),
        false => {
            Err(Status::Failed(format!("largest error {}, bound {}", found["max_error"], found["tolerance"])))
        }
    }
}

/// The token ids of a generation.
fn generate(
    program: &Program,
    device: &[&str],
    more: &[&str],
    results: &mut Vec<Value>,
) -> Result<Value, Status> {
    let arguments = ["generate", "--json", "--token-ids", "1,2,3,4,5", "-n", "40"];
    let found = program.json(&[device, &arguments, more].concat(), &[], results)?;
    Ok(found["token_ids"].clone())
}

fn same(found: &Value, expected: &Value) -> Result<(), Status> {
    let is_text = expected.as_array().is_some_and(|ids| !ids.is_empty());
    match is_text && found == expected {
        true => Ok(()),
        false => Err(Status::Failed(format!("tokens {found}, not {expected}"))),
    }
}

//! `forge verify`: runs a crate's Metal kernels on the CPU under the kernel checker.
//!
//! The crate is built, and its program records the dispatches that model.rs submits for each sequence of
//! golden.json: prefill, a small batch, decode, passes that continue a sequence, and multi-token decode on
//! the device. `forge-sim` replays each dispatch from the source of kernels.metal. The logits are compared
//! with the reference, and faults are reported by kernel and line.

mod memory_traffic;

use crate::build::BuildFeatures;
use crate::compile::output::MARKER;
use crate::compile::pipeline::REPORT;
use crate::error::Error;
use crate::{build, install_advice, terminal};
use forge_report::{Measurement, Verdict};
use forge_sim::{Counters, Fault, Program, ReadKind, Recording, Replay, Report, Weights};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Tokens that the device decodes without the host after a sequence.
const FOLLOWING: usize = 2;

/// Contents of golden.json.
#[derive(Deserialize)]
struct Golden {
    tolerance: Bound,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Bound {
    bound: f64,
}

#[derive(Deserialize)]
struct Sequence {
    ids: Vec<u32>,
    chunks: Vec<usize>,
    logits: Vec<f32>,
    deviation: f64,
}

/// Results over all sequences.
#[derive(Default)]
struct Findings {
    faults: Vec<Fault>,
    counters: BTreeMap<String, Counters>,
    steps: usize,
    barriers: usize,
    required_barriers: usize,
    worst: f64,
    stopped: Option<String>,
}

/// `forge verify`.
pub(crate) fn command(
    directory: &Path,
    program: Option<&Path>,
    to_report: bool,
    as_json: bool,
) -> Result<(), Error> {
    if !directory.join(MARKER).is_file() {
        return Err(Error::usage(format!(
            "{} was not written by forge: it has no {MARKER}",
            directory.display()
        )));
    }
    let golden = golden(directory)?;
    let text = read(&directory.join("src/kernels.metal"))?;
    let kernels = Program::compile(&text).map_err(|error| {
        Error::other(format!("{error}\n(to install clang: {})", install_advice::clang_advice()))
    })?;
    let program = match program {
        Some(program) => program.to_owned(),
        None => build::build(directory, None, BuildFeatures::NoServer)?,
    };
    let mut findings = Findings::default();
    // One sequence runs in two slots at once, so that tiles contain rows of both: the shortest one with a
    // prefill pass.
    let many = |sequence: &&Sequence| {
        sequence.chunks.first().is_some_and(|rows| *rows > forge_planner::SMALL_BATCH_MAX)
    };
    let texts = golden.sequences.iter().filter(many);
    let two_slots = texts.min_by_key(|sequence| sequence.ids.len()).map(|sequence| sequence.ids.len());
    // The reference used this context length for every sequence, and RoPE of some models depends on it.
    let context = golden.sequences.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0);
    let lengths = golden.sequences.iter().map(|sequence| sequence.ids.len());
    let continued = lengths.filter(|length| length + FOLLOWING <= context).min();
    for (index, sequence) in golden.sequences.iter().enumerate() {
        // Request logits for all rows of a small batch, so that the head kernel also runs for several rows.
        let all =
            sequence.chunks.first().is_some_and(|rows| (2..=forge_planner::SMALL_BATCH_MAX).contains(rows));
        let slots = if many(&sequence) && two_slots == Some(sequence.ids.len()) { 2 } else { 1 };
        // For one sequence that leaves space, let the device decode further tokens by itself.
        let continues = continued == Some(sequence.ids.len());
        let recording = record(&program, directory, sequence, (all, slots, context, continues))?;
        let report = replay(&kernels, &recording, directory, (index + 1, golden.sequences.len()))?;
        findings.add(report, sequence);
    }
    let bound = golden.tolerance.bound;
    if to_report {
        write_report(directory, &findings, bound)?;
    }
    if as_json {
        terminal::print(&format!("{:#}\n", findings.to_json(bound)))?;
    } else {
        terminal::print(&findings.to_text(bound))?;
    }
    if findings.ok(bound) { Ok(()) } else { Err(Error::Reported(1)) }
}

/// Writes the measurements into the crate's report.html.
fn write_report(directory: &Path, findings: &Findings, bound: f64) -> Result<(), Error> {
    let path = directory.join(REPORT);
    let page = read(&path)?;
    let measurements: Vec<Measurement> = findings
        .counters
        .iter()
        .map(|(kernel, counters)| memory_traffic::measurement(kernel, counters))
        .collect();
    let page =
        forge_report::with_measurements(&page, &findings.verdict(bound), &measurements).ok_or_else(|| {
            Error::other(format!("{} cannot hold measurements: compile the crate again", path.display()))
        })?;
    // Write to a temporary file and rename, so that the page is never truncated.
    let temporary = directory.join(format!(".{REPORT}.forge"));
    std::fs::write(&temporary, page).map_err(|error| Error::write(&temporary, &error))?;
    std::fs::rename(&temporary, &path).map_err(|error| Error::write(&path, &error))
}

fn golden(directory: &Path) -> Result<Golden, Error> {
    let path = directory.join("golden.json");
    if !path.is_file() {
        return Err(Error::other(format!(
            "{} not found: the crate was compiled with --certify none; compile it without",
            path.display()
        )));
    }
    serde_json::from_str(&read(&path)?).map_err(|error| Error::other(format!("{}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| Error::read(path, &error))
}

/// Records the program's dispatches for one sequence.
fn record(
    program: &Path,
    directory: &Path,
    sequence: &Sequence,
    (all, slots, context, continues): (bool, usize, usize, bool),
) -> Result<Recording, Error> {
    let list = |numbers: &[String]| numbers.join(",");
    let ids: Vec<String> = sequence.ids.iter().map(u32::to_string).collect();
    let chunks: Vec<String> = sequence.chunks.iter().map(usize::to_string).collect();
    let file = tempfile::NamedTempFile::new().map_err(|error| Error::write(&std::env::temp_dir(), &error))?;
    let output = Command::new(program)
        .args(["record", "--token-ids", &list(&ids), "--chunks", &list(&chunks), "--output"])
        .arg(file.path())
        .arg("--model-dir")
        .arg(directory)
        .args(["--slots", &slots.to_string(), "--ctx-size", &context.to_string()])
        .args(["--tokens-per-pass", &(if continues { FOLLOWING } else { 0 }).to_string()])
        .args(all.then_some("--all"))
        .output()
        .map_err(|error| Error::other(format!("{} cannot be started: {error}", program.display())))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::other(format!("{} record: {stderr}", program.display())));
    }
    Recording::parse(&read(file.path())?)
        .map_err(|error| Error::other(format!("cannot parse the recording: {error}")))
}

fn replay(
    program: &Program,
    recording: &Recording,
    directory: &Path,
    (text, of): (usize, usize),
) -> Result<Report, Error> {
    let weights = directory.join("weights.safetensors");
    let mut replay = Replay::new(program, recording, Weights::File(&weights))
        .map_err(|error| Error::other(format!("cannot replay the recording: {error}")))?;
    replay.counting_traffic();
    let bar = terminal::steps_bar("Verifying", recording.steps() as u64);
    if bar.is_hidden() {
        terminal::stage("Verifying", &format!("sequence {text} of {of}, {} dispatches", recording.steps()));
    }
    bar.set_message(format!("sequence {text} of {of}"));
    let report = replay.run(&mut |_, done| bar.set_position(done as u64));
    bar.finish_and_clear();
    Ok(report)
}

impl Findings {
    fn add(&mut self, report: Report, sequence: &Sequence) {
        let logits = report.reads.iter().find(|read| matches!(read.what, Some(ReadKind::Logits(_))));
        let last = |values: &[f32]| values.len().saturating_sub(sequence.logits.len());
        let distance =
            logits.map_or(f64::INFINITY, |read| distance(&read.values[last(&read.values)..], sequence));
        self.worst = self.worst.max(distance);
        self.steps += report.steps;
        self.barriers += report.waits.len();
        self.required_barriers += report.waits.iter().filter(|wait| wait.required).count();
        self.stopped = self.stopped.take().or(report.stopped);
        for fault in report.faults {
            let same = |other: &&mut Fault| {
                (other.kind, &other.kernel, other.line) == (fault.kind, &fault.kernel, fault.line)
            };
            match self.faults.iter_mut().find(same) {
                Some(known) => known.count += fault.count,
                None => self.faults.push(fault),
            }
        }
        for (kernel, counters) in report.counters {
            *self.counters.entry(kernel).or_default() += counters;
        }
    }

    fn ok(&self, bound: f64) -> bool {
        self.faults.is_empty() && self.stopped.is_none() && self.worst <= bound
    }

    fn verdict(&self, bound: f64) -> Verdict {
        Verdict {
            dispatches: self.steps,
            barriers: (self.barriers, self.required_barriers),
            faults: self.faults.len() + usize::from(self.stopped.is_some()),
            distance: (self.worst, bound),
        }
    }

    fn to_json(&self, bound: f64) -> Value {
        let fault = |fault: &Fault| json!({"kind": fault.kind.name(), "kernel": fault.kernel, "line": fault.line, "message": fault.message, "count": fault.count});
        json!({
            "ok": self.ok(bound),
            "faults": self.faults.iter().map(fault).collect::<Vec<_>>(),
            "steps": self.steps,
            "worst": self.worst,
            "bound": bound,
            "barriers": {"total": self.barriers, "required": self.required_barriers},
            "stopped": self.stopped,
            "counters": self.counters,
        })
    }

    /// The report as text.
    fn to_text(&self, bound: f64) -> String {
        let faults = self.faults.iter().map(Fault::to_string).chain(self.stopped.clone());
        let mut text: String = faults.map(|fault| terminal::fault_line(&fault) + "\n").collect();
        let faults = match self.faults.len() {
            0 => "no faults found".to_owned(),
            count => format!("{count} faults"),
        };
        text += &format!(
            "{} dispatches, {} barriers ({} required): {faults}\n",
            self.steps, self.barriers, self.required_barriers
        );
        text += &memory_traffic::table(&self.counters);
        let verdict = if self.worst <= bound { "within" } else { "FAIL: above" };
        text + &format!(
            "max logit error {:.1e} (standard deviations of the reference), {verdict} tolerance {bound:e}\n",
            self.worst
        )
    }
}

/// The largest logit error, in standard deviations of the reference logits. NaN counts as infinite.
fn distance(found: &[f32], sequence: &Sequence) -> f64 {
    if found.len() != sequence.logits.len() {
        return f64::INFINITY;
    }
    let differences = found.iter().zip(&sequence.logits).map(|(a, b)| f64::from(*a - *b).abs());
    let worst =
        differences.fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
    worst / sequence.deviation
}

//! `forge verify`: a crate's Metal kernels, executed on this CPU under the referee.
//!
//! The crate is built, and its own program records what its model.rs submits for each text of golden.json: a decode
//! step, a few rows, a prefill, passes that continue what others began, and one in which ids follow each other. `forge-sim`
//! replays each dispatch from the text of kernels.metal. What comes out is compared with the reference's logits, and
//! everything that the referee saw is told by kernel and line.

use crate::build::Parts;
use crate::compile::REPORT;
use crate::error::Error;
use crate::output::MARKER;
use crate::{build, doctor, memory_traffic, terminal};
use forge_codegen::{Measurement, Verdict};
use forge_sim::{Counters, Fault, Program, Recording, Replay, Report, Weights, What};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Ids that the device writes by itself after a text.
const FOLLOWING: usize = 2;

/// What golden.json holds.
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

/// What was found over all texts.
#[derive(Default)]
struct Findings {
    faults: Vec<Fault>,
    counters: BTreeMap<String, Counters>,
    steps: usize,
    barriers: usize,
    needed: usize,
    worst: f64,
    stopped: Option<String>,
}

/// `forge verify`.
pub(crate) fn command(directory: &Path, to_report: bool, as_json: bool) -> Result<(), Error> {
    if !directory.join(MARKER).is_file() {
        return Err(Error::usage(format!(
            "{} is not a crate that forge made: it has no {MARKER}",
            directory.display()
        )));
    }
    let golden = golden(directory)?;
    let text = read(&directory.join("src/kernels.metal"))?;
    let program = Program::compile(&text).map_err(|error| {
        Error::other(format!("{error}\n(where clang is missing: {})", doctor::clang_advice()))
    })?;
    let built = build::build(directory, None, Parts::NoServer)?;
    let mut findings = Findings::default();
    // Once, two slots are told the same text in the same passes, so that tiles of rows are of both: a text of many rows,
    // the shortest, for it takes twice as long.
    let many = |sequence: &&Sequence| sequence.chunks.first().is_some_and(|rows| *rows > forge_planner::FEW);
    let texts = golden.sequences.iter().filter(many);
    let told_twice = texts.min_by_key(|sequence| sequence.ids.len()).map(|sequence| sequence.ids.len());
    // The reference gave every text a slot of this size, which decides how some models turn heads.
    let context = golden.sequences.iter().map(|sequence| sequence.ids.len()).max().unwrap_or(0);
    let lengths = golden.sequences.iter().map(|sequence| sequence.ids.len());
    let followed = lengths.filter(|length| length + FOLLOWING <= context).min();
    for (index, sequence) in golden.sequences.iter().enumerate() {
        // Logits of every row once, so that the head is run for a few rows too; for a long text that would take long.
        let all = sequence.chunks.first().is_some_and(|rows| (2..=forge_planner::FEW).contains(rows));
        let slots = if many(&sequence) && told_twice == Some(sequence.ids.len()) { 2 } else { 1 };
        // Once, the device goes on by itself for two ids: after a text that leaves room for them.
        let is_followed = followed == Some(sequence.ids.len());
        let recording = record(&built, directory, sequence, (all, slots, context, is_followed))?;
        let report = replay(&program, &recording, directory, (index + 1, golden.sequences.len()))?;
        findings.add(report, sequence);
    }
    let bound = golden.tolerance.bound;
    if to_report {
        write_report(directory, &findings, bound)?;
    }
    if as_json {
        terminal::print(&format!("{:#}\n", findings.to_json(bound)))?;
    } else {
        terminal::print(&findings.told(bound))?;
    }
    if findings.ok(bound) { Ok(()) } else { Err(Error::Reported(1)) }
}

/// Puts what was measured into the crate's report.html.
fn write_report(directory: &Path, findings: &Findings, bound: f64) -> Result<(), Error> {
    let path = directory.join(REPORT);
    let page = read(&path)?;
    let measurements: Vec<Measurement> = findings
        .counters
        .iter()
        .map(|(kernel, counters)| memory_traffic::measurement(kernel, counters))
        .collect();
    let page = forge_codegen::with_measurements(&page, &findings.verdict(bound), &measurements).ok_or_else(
        || Error::other(format!("{} has no place for measurements: compile the crate again", path.display())),
    )?;
    // Whole or not at all: the page that was there is worth more than half of a new one.
    let fresh = directory.join(format!(".{REPORT}.forge"));
    std::fs::write(&fresh, page).map_err(|error| Error::write(&fresh, &error))?;
    std::fs::rename(&fresh, &path).map_err(|error| Error::write(&path, &error))
}

fn golden(directory: &Path) -> Result<Golden, Error> {
    let path = directory.join("golden.json");
    if !path.is_file() {
        return Err(Error::other(format!(
            "{} is missing: the crate was compiled with --no-reference-logits, and there is nothing to compare with",
            path.display()
        )));
    }
    serde_json::from_str(&read(&path)?).map_err(|error| Error::other(format!("{}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| Error::read(path, &error))
}

/// What the program asks of its device for one text.
fn record(
    program: &Path,
    directory: &Path,
    sequence: &Sequence,
    (all, slots, context, is_followed): (bool, usize, usize, bool),
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
        .args(["--tokens-per-pass", &(if is_followed { FOLLOWING } else { 0 }).to_string()])
        .args(all.then_some("--all"))
        .output()
        .map_err(|error| Error::other(format!("{} cannot be run: {error}", program.display())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::other(format!("{} record: {said}", program.display())));
    }
    Recording::parse(&read(file.path())?).map_err(|error| Error::other(format!("the recording: {error}")))
}

fn replay(
    program: &Program,
    recording: &Recording,
    directory: &Path,
    (text, of): (usize, usize),
) -> Result<Report, Error> {
    let weights = directory.join("weights.safetensors");
    let mut replay = Replay::new(program, recording, Weights::File(&weights))
        .map_err(|error| Error::other(format!("the recording cannot be replayed: {error}")))?;
    replay.counting_traffic();
    let bar = terminal::steps_bar("Verifying", recording.steps() as u64);
    if bar.is_hidden() {
        terminal::stage("Verifying", &format!("text {text} of {of}, {} dispatches", recording.steps()));
    }
    bar.set_message(format!("text {text} of {of}"));
    let report = replay.run(&mut |_, done| bar.set_position(done as u64));
    bar.finish_and_clear();
    Ok(report)
}

impl Findings {
    fn add(&mut self, report: Report, sequence: &Sequence) {
        let logits = report.reads.iter().find(|read| matches!(read.what, Some(What::Logits(_))));
        let last = |values: &[f32]| values.len().saturating_sub(sequence.logits.len());
        let distance =
            logits.map_or(f64::INFINITY, |read| distance(&read.values[last(&read.values)..], sequence));
        self.worst = self.worst.max(distance);
        self.steps += report.steps;
        self.barriers += report.waits.len();
        self.needed += report.waits.iter().filter(|wait| wait.needed).count();
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
            barriers: (self.barriers, self.needed),
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
            "barriers": {"total": self.barriers, "needed": self.needed},
            "stopped": self.stopped,
            "counters": self.counters,
        })
    }

    /// The report for people.
    fn told(&self, bound: f64) -> String {
        let faults = self.faults.iter().map(Fault::to_string).chain(self.stopped.clone());
        let mut text: String = faults.map(|fault| terminal::fault_line(&fault) + "\n").collect();
        let faults = match self.faults.len() {
            0 => "the referee has nothing to say".to_owned(),
            count => format!("{count} faults"),
        };
        text += &format!(
            "{} dispatches, {} barriers of which {} were needed: {faults}\n",
            self.steps, self.barriers, self.needed
        );
        text += &memory_traffic::table(&self.counters);
        let verdict = if self.worst <= bound { "within" } else { "BEYOND" };
        text + &format!(
            "logits differ from the reference's by {:.1e} of their deviation, {verdict} {bound:e}\n",
            self.worst
        )
    }
}

/// The largest difference of logits, in standard deviations of the reference's. What is not a number is infinitely far.
fn distance(found: &[f32], sequence: &Sequence) -> f64 {
    if found.len() != sequence.logits.len() {
        return f64::INFINITY;
    }
    let differences = found.iter().zip(&sequence.logits).map(|(a, b)| f64::from(*a - *b).abs());
    let worst =
        differences.fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
    worst / sequence.deviation
}

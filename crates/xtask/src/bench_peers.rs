//! `cargo xtask bench-peers`: benchmarks programs against llama.cpp on this machine.
//!
//! Each pair is a compiled program and a GGUF file of the same checkpoint in the same format. The program's `bench` and
//! llama-bench print the same JSON. The two run in alternation, and the order changes in every round, so that other load on the
//! machine affects both. The result is the median, minimum and maximum of the ratios of all rounds.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the benchmark.
pub struct BenchOptions<'a> {
    /// Build directory of llama.cpp, with `bin/llama-bench`.
    pub llama_cpp: &'a Path,
    /// The pairs, each `PROGRAM=FILE.gguf`.
    pub pairs: &'a [String],
    /// Prompt tokens and generated tokens.
    pub tests: [u32; 2],
    /// Number of rounds.
    pub turns: usize,
    /// CPU threads of both programs.
    pub threads: usize,
    /// Print JSON.
    pub json: bool,
}

/// One test of one pair.
struct Cell {
    model: String,
    test: String,
    /// Tokens per second of forge and llama.cpp in each round.
    turns: Vec<[f64; 2]>,
}

/// Runs the benchmark and prints a table.
pub fn bench_peers(question: &BenchOptions<'_>) -> Result<(), String> {
    let peer = question.llama_cpp.join("bin/llama-bench");
    let mut cells = Vec::new();
    for pair in question.pairs {
        let (program, file) = pair
            .split_once('=')
            .map(|(program, file)| (PathBuf::from(program), PathBuf::from(file)))
            .ok_or_else(|| format!("invalid pair `{pair}`: expected PROGRAM=FILE.gguf"))?;
        for (prompt, count) in [(question.tests[0], 0), (0, question.tests[1])] {
            if prompt + count > 0 {
                cells.push(measured(question, [(&program, None), (&peer, Some(&file))], prompt, count)?);
            }
        }
    }
    if question.json {
        println!(
            "{:#}",
            json!({ "threads": question.threads, "results": cells.iter().map(Cell::json).collect::<Vec<_>>() })
        );
        return Ok(());
    }
    println!("| model | test | forge t/s | llama.cpp t/s | ratio | range of {} rounds |", question.turns);
    println!("|---|---|---:|---:|---:|---|");
    cells.iter().for_each(|cell| println!("{}", cell.row()));
    Ok(())
}

/// Runs both programs in alternation.
fn measured(
    question: &BenchOptions<'_>,
    sides: [(&Path, Option<&Path>); 2],
    prompt: u32,
    count: u32,
) -> Result<Cell, String> {
    let mut cell = Cell { model: String::new(), test: String::new(), turns: Vec::new() };
    for turn in 0..question.turns {
        let mut speeds = [0.0; 2];
        let mut parameters = [0; 2];
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let (program, file) = sides[side];
            let found = run(program, file, [prompt, count], question.threads)?;
            parameters[side] = found.parameters;
            speeds[side] = found.speed;
            if side == 0 {
                (cell.model, cell.test) = (found.model, found.test);
            }
        }
        if parameters[0] != parameters[1] {
            return Err(format!(
                "{}: the program has {} parameters, but the GGUF file has {}",
                cell.model, parameters[0], parameters[1]
            ));
        }
        cell.turns.push(speeds);
    }
    eprintln!("{}", cell.row());
    Ok(cell)
}

/// The result of one run.
struct Found {
    model: String,
    test: String,
    parameters: u64,
    speed: f64,
}

/// Runs a program's `bench`, or llama-bench on a file. Both do one warm-up run and one measured run.
fn run(
    program: &Path,
    file: Option<&Path>,
    [prompt, count]: [u32; 2],
    threads: usize,
) -> Result<Found, String> {
    let mut command = Command::new(program);
    let threads = threads.to_string();
    match file {
        None => command.args(["bench", "--json", "--device", "cpu", "--threads", &threads]),
        Some(file) => command.args(["-o", "json", "-t", &threads, "-m"]).arg(file),
    };
    command.args(["-p", &prompt.to_string(), "-n", &count.to_string(), "-r", "1"]);
    let shown = program.display();
    let output = command.output().map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let value: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("{shown}: {error}"))?;
    // `bench` prints common fields once; llama-bench repeats them for every test.
    let (about, result) = match &value {
        Value::Array(results) => (&results[0], &results[0]),
        _ => (&value, &value["results"][0]),
    };
    let number = |value: &Value, key: &str| {
        value[key].as_f64().ok_or_else(|| format!("{shown}: missing `{key}` in its output"))
    };
    Ok(Found {
        model: about["model_type"].as_str().unwrap_or_default().to_owned(),
        test: result["test"].as_str().unwrap_or_default().to_owned(),
        parameters: number(about, "model_n_params")? as u64,
        speed: number(result, "avg_ts")?,
    })
}

/// Median, minimum and maximum.
fn median_min_max(numbers: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let half = sorted.len() / 2;
    let middle = if sorted.len() % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 };
    [middle, at(0), at(sorted.len().saturating_sub(1))]
}

impl Cell {
    /// Median, minimum and maximum of forge, of llama.cpp, and of the ratios.
    fn statistics(&self) -> [[f64; 3]; 3] {
        let turns = || self.turns.iter();
        [
            median_min_max(turns().map(|turn| turn[0])),
            median_min_max(turns().map(|turn| turn[1])),
            median_min_max(turns().map(|turn| turn[0] / turn[1])),
        ]
    }

    fn row(&self) -> String {
        let [ours, theirs, ratio] = self.statistics();
        format!(
            "| {} | {} | {:.1} | {:.1} | {:.2} | {:.2} to {:.2} |",
            self.model, self.test, ours[0], theirs[0], ratio[0], ratio[1], ratio[2]
        )
    }

    fn json(&self) -> Value {
        let [ours, theirs, ratio] = self.statistics();
        let value =
            |[median, least, most]: [f64; 3]| json!({ "median": median, "least": least, "most": most });
        json!({
            "model": self.model, "test": self.test, "forge_ts": value(ours), "llama_cpp_ts": value(theirs), "ratio": value(ratio),
            "turns_ts": self.turns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_the_median_of_all_rounds() {
        for (numbers, expected) in [
            (vec![3.0], [3.0, 3.0, 3.0]),
            (vec![4.0, 1.0, 2.0], [2.0, 1.0, 4.0]),
            (vec![4.0, 1.0, 2.0, 3.0], [2.5, 1.0, 4.0]),
        ] {
            assert_eq!(median_min_max(numbers.into_iter()), expected);
        }
        let turns = vec![[10.0, 5.0], [12.0, 10.0], [9.0, 3.0]];
        let cell = Cell { model: "m".to_owned(), test: "pp1".to_owned(), turns };
        assert_eq!(cell.row(), "| m | pp1 | 10.0 | 5.0 | 2.00 | 1.20 to 3.00 |");
    }
}

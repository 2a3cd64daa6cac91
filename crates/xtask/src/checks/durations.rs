//! Durations of test programs, read from the output of `cargo test`.

use std::fmt;

/// The durations, in the order of the output.
#[derive(Default)]
pub(crate) struct Durations {
    /// The program that is running.
    running: Option<String>,
    /// Program and seconds.
    finished: Vec<(String, f64)>,
}

/// Programs in the table.
const SLOWEST: usize = 12;

impl Durations {
    /// Reads a line of the output.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Running ") {
            // `Running tests/pipeline/main.rs (target/debug/deps/pipeline-0123456789abcdef)`
            let program =
                rest.rsplit_once("deps/").map_or(rest, |(_, program)| program.trim_end_matches(')'));
            self.running = Some(program.rsplit_once('-').map_or(program, |(name, _)| name).to_owned());
        } else if let Some(name) = line.strip_prefix("Doc-tests ") {
            self.running = Some(format!("doc-tests of {name}"));
        } else if line.starts_with("test result:")
            && let Some((_, seconds)) = line.rsplit_once("finished in ")
            && let Ok(seconds) = seconds.trim_end_matches('s').parse()
        {
            self.finished.extend(self.running.take().map(|program| (program, seconds)));
        }
    }
}

impl fmt::Display for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slowest: Vec<_> = self.finished.iter().collect();
        slowest.sort_by(|a, b| b.1.total_cmp(&a.1));
        let total: f64 = slowest.iter().map(|(_, seconds)| seconds).sum();
        writeln!(f, "\ntests ran for {total:.0} s in {} programs; the slowest:", slowest.len())?;
        for (program, seconds) in slowest.into_iter().take(SLOWEST) {
            writeln!(f, "{seconds:8.1} s  {program}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_tests_by_duration() {
        let mut durations = Durations::default();
        for line in [
            "     Running unittests src/lib.rs (target/debug/deps/forge_ir-c042a3b1)",
            "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "     Running tests/pipeline/main.rs (target/debug/deps/pipeline-97ffdac7)",
            "test metal::texts has been running for over 60 seconds",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 769.34s",
            "   Doc-tests forge_sim",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.50s",
            // Of merged doc-tests: no program of its own.
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ] {
            durations.read(line);
        }
        assert_eq!(
            durations.to_string(),
            "\ntests ran for 772 s in 3 programs; the slowest:\n   769.3 s  pipeline\n     2.5 s  doc-tests of forge_sim\n     \
             0.0 s  forge_ir\n"
        );
    }
}

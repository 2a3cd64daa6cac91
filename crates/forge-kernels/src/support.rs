//! Support functions that several kernels call, defined once in `kernels/support`. The functions that a
//! kernel calls are found by searching its source for their names.

use crate::catalogue::{SUPPORT, Source};
use std::sync::OnceLock;

/// A file of support functions.
struct Unit {
    source: &'static Source,
    /// Names of the functions that it defines.
    functions: Vec<&'static str>,
}

/// The files in topological order: callees first.
fn units() -> &'static [Unit] {
    static UNITS: OnceLock<Vec<Unit>> = OnceLock::new();
    UNITS.get_or_init(|| {
        let mut rest: Vec<Unit> =
            SUPPORT.iter().map(|source| Unit { source, functions: functions(source.text) }).collect();
        let mut ordered = Vec::new();
        while !rest.is_empty() {
            let calls_another = |unit: &Unit| {
                rest.iter().any(|other| other.source != unit.source && other.is_called(unit.source.text))
            };
            let next =
                rest.iter().position(|unit| !calls_another(unit)).expect("support files have cyclic calls");
            ordered.push(rest.remove(next));
        }
        ordered
    })
}

/// Paths of the files whose functions a kernel calls, directly or indirectly, in definition order.
pub(crate) fn called(text: &str) -> Vec<&'static str> {
    let mut is_called = vec![false; units().len()];
    // A file follows the files that it calls.
    for (index, unit) in units().iter().enumerate().rev() {
        let by_another = units()[index + 1..].iter().zip(&is_called[index + 1..]);
        let mut callers = by_another.filter(|(_, is_called)| **is_called).map(|(other, _)| other.source.text);
        is_called[index] = unit.is_called(text) || callers.any(|caller| unit.is_called(caller));
    }
    let called = units().iter().zip(is_called).filter(|(_, is_called)| *is_called);
    called.map(|(unit, _)| unit.source.path).collect()
}

/// Whether a support function has this name.
pub(crate) fn is_function(name: &str) -> bool {
    units().iter().any(|unit| unit.functions.contains(&name))
}

/// Contents of these files, in definition order.
pub(crate) fn texts(paths: &[&str]) -> Vec<&'static str> {
    units().iter().filter(|unit| paths.contains(&unit.source.path)).map(|unit| unit.source.text).collect()
}

impl Unit {
    /// Whether a source calls one of its functions.
    fn is_called(&self, text: &str) -> bool {
        self.functions.iter().any(|function| calls(text, function))
    }
}

/// Names of the functions that a source defines: the word before `(` on unindented lines.
fn functions(text: &'static str) -> Vec<&'static str> {
    let is_definition =
        |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase()) && !line.starts_with("using");
    let heads = text.lines().filter(is_definition).filter_map(|line| line.split_once('('));
    heads
        .filter_map(|(head, _)| head.trim_end().rsplit(|c: char| !is_word(c)).next())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Whether a source calls a function, outside comments.
fn calls(text: &str, function: &str) -> bool {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.into_iter().any(|line| {
        line.match_indices(function).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + function.len()..].trim_start_matches(is_template_argument);
            !before.is_some_and(is_word) && after.starts_with('(')
        })
    })
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_template_argument(c: char) -> bool {
    matches!(c, '<' | '>')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_names_before_parentheses() {
        for (text, expected) in [
            ("y = silu(x);", true),
            ("y = my_silu(x);", false),
            ("y = silu2(x);", false),
            ("// silu(x)", false),
            ("float silu = 0;", false),
        ] {
            assert_eq!(calls(text, "silu"), expected, "{text}");
        }
    }

    #[test]
    fn support_functions_are_defined_once() {
        let mut all: Vec<&str> = units().iter().flat_map(|unit| unit.functions.clone()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(units().iter().all(|unit| !unit.functions.is_empty()));
    }

    #[test]
    fn dependencies_are_defined_before_their_callers() {
        let called = called("y = q6_k_decode(x);");
        let place = |name: &str| called.iter().position(|path| path.ends_with(name));
        assert!(place("q6_k").is_some(), "{called:?}");
        for (index, path) in called.iter().enumerate() {
            let text = SUPPORT.iter().find(|source| source.path == *path).unwrap().text;
            for (other, unit) in units().iter().enumerate() {
                let is_needed = unit.source.path != *path && unit.is_called(text);
                assert!(!is_needed || called[..index].contains(&unit.source.path), "{path} {other}");
            }
        }
    }
}

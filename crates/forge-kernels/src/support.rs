//! Support functions that several kernels call, defined once in `kernels/support`. The functions that a
//! kernel calls are found among the tokens of its source.

use crate::catalog::{SUPPORT, Source};
use forge_msl::{called_names, functions, tokenize};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// A file of support functions.
struct Unit {
    source: &'static Source,
    /// Names of the functions that it defines.
    functions: Vec<&'static str>,
    /// Names that its functions call.
    calls: BTreeSet<&'static str>,
}

/// The files in topological order: callees first.
fn units() -> &'static [Unit] {
    static UNITS: OnceLock<Vec<Unit>> = OnceLock::new();
    UNITS.get_or_init(|| {
        let mut rest: Vec<Unit> = SUPPORT.iter().map(Unit::new).collect();
        let mut ordered = Vec::new();
        while !rest.is_empty() {
            let calls_another = |unit: &Unit| {
                rest.iter().any(|other| other.source != unit.source && other.is_called(&unit.calls))
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
    let tokens = tokenize(text).unwrap_or_default();
    let mut calls = called_names(&tokens);
    let mut is_called = vec![false; units().len()];
    // A file follows the files that it calls.
    for (unit, is_called) in units().iter().zip(&mut is_called).rev() {
        *is_called = unit.is_called(&calls);
        if *is_called {
            calls.extend(&unit.calls);
        }
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
    fn new(source: &'static Source) -> Unit {
        let tokens = tokenize(source.text).unwrap_or_default();
        let functions = functions(&tokens).iter().map(|function| function.name).collect();
        Unit { source, functions, calls: called_names(&tokens) }
    }

    /// Whether one of its functions is among these names.
    fn is_called(&self, names: &BTreeSet<&str>) -> bool {
        self.functions.iter().any(|function| names.contains(function))
    }
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
            let tokens = tokenize(text).unwrap();
            assert_eq!(called_names(&tokens).contains("silu"), expected, "{text}");
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
            let calls = &units().iter().find(|unit| unit.source.path == *path).unwrap().calls;
            for (other, unit) in units().iter().enumerate() {
                let is_needed = unit.source.path != *path && unit.is_called(calls);
                assert!(!is_needed || called[..index].contains(&unit.source.path), "{path} {other}");
            }
        }
    }
}

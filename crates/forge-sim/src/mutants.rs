//! Mutation testing of the checker: removes one barrier or one bound of a kernel at a time. A bound is a `min(a, b)` that
//! clamps an index, or a comparison that guards an access.

use crate::check::fault::Fault;
use crate::compile::clang::CompileError;
use crate::compile::program::{Options, Program};
use crate::sample::Sample;
use forge_msl::{
    DeclError, Function, Signature, Token, TokenKind, closing, for_language, functions, line_breaks,
    split_list, tokenize,
};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

/// The kind of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutation {
    /// A removed barrier.
    Barrier,
    /// A removed clamp: `min(a, b)` became `a`.
    Clamp,
    /// A removed guard: a comparison became a constant.
    Guard,
}

/// A source with one injected fault.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The mutated kernel, or a kernel that calls the mutated function.
    pub kernel: String,
    /// Line of the mutation.
    pub line: usize,
    /// Kind of the mutation.
    pub plant: Mutation,
    /// The replaced source and its replacement.
    pub change: String,
    /// The mutated source.
    pub text: String,
}

/// The outcome of running a mutant.
#[derive(Clone, Debug, PartialEq)]
pub enum MutantOutcome {
    /// The checker found a fault.
    Caught(Fault),
    /// No fault, but different results, which a comparison with reference logits detects.
    Different,
    /// No difference on these dispatches: the bound is never reached.
    Same,
    /// The mutant does not compile.
    Rejected(String),
    /// No sample of this kernel exists.
    NotRun,
}

/// All mutants of a source as Metal 3 sees it, in line order.
pub fn mutants(text: &str) -> Result<Vec<Mutant>, DeclError> {
    let text = &for_language(text, 300);
    let tokens = tokenize(text)?;
    let (kernels, functions) = (Signature::parse_all(text)?, functions(&tokens));
    let mut found = Vec::new();
    for index in 0..tokens.len() {
        for (plant, range, replacement) in planted(text, &tokens, index) {
            let Some(kernel) = owner(&tokens, &kernels, &functions, range.start) else { continue };
            let change = format!("`{}` -> `{replacement}`", one_line(&text[range.clone()]));
            let mutated = [&text[..range.start], &replacement, &text[range.end..]].concat();
            found.push(Mutant { kernel, line: tokens[index].line, plant, change, text: mutated });
        }
    }
    Ok(found)
}

/// The possible mutations at a token.
fn planted(text: &str, tokens: &[Token<'_>], index: usize) -> Vec<(Mutation, Range<usize>, String)> {
    let token = &tokens[index];
    let opens = tokens.get(index + 1).is_some_and(|next| next.is("("));
    let Some(close) = (token.kind == TokenKind::Word && opens).then(|| closing(tokens, index + 1)).flatten()
    else {
        return if token.is("?") { ternary(tokens, index) } else { Vec::new() };
    };
    // Keeps line numbers.
    let padded = |range: &Range<usize>, with: &str| with.to_owned() + &line_breaks(&text[range.clone()]);
    match token.text {
        "threadgroup_barrier" | "simdgroup_barrier" => {
            let range = token.offset..tokens[close].end();
            vec![(Mutation::Barrier, range.clone(), padded(&range, "(void)0"))]
        }
        "min" => {
            let arguments = split_list(tokens, index + 2..close);
            let [first, _] = arguments.as_slice() else { return Vec::new() };
            let kept = format!("({})", &text[tokens[first.start].offset..tokens[first.end - 1].end()]);
            vec![(Mutation::Clamp, token.offset..tokens[close].end(), kept)]
        }
        "if" => {
            // The guard of an early exit is disabled by `false`, the guard of a block by `true`.
            let leaves = tokens[close + 1..].iter().find(|token| !token.is("{"));
            let leaves = leaves.is_some_and(|token| matches!(token.text, "continue" | "return" | "break"));
            let open = if leaves { "false" } else { "true" };
            comparisons(tokens, index + 2, close)
                .into_iter()
                .map(|range| (Mutation::Guard, range.clone(), padded(&range, open)))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The condition of `condition ? a : b` that begins after `=`, `(`, `,`, `return` or `;`.
fn ternary(tokens: &[Token<'_>], question: usize) -> Vec<(Mutation, Range<usize>, String)> {
    let mut depth = 0;
    let mut first = question;
    while first > 0 {
        match tokens[first - 1].text {
            ")" | "]" => depth += 1,
            "(" | "[" if depth == 0 => break,
            "(" | "[" => depth -= 1,
            "," | ";" | "{" | "}" | "return" | "?" | ":" if depth == 0 => break,
            "=" if depth == 0
                && !matches!(tokens[first - 2].text, "=" | "<" | ">" | "!")
                && !tokens[first].is("=") =>
            {
                break;
            }
            _ => {}
        }
        first -= 1;
    }
    comparisons(tokens, first, question)
        .into_iter()
        .map(|range| (Mutation::Guard, range, "true".to_owned()))
        .collect()
}

/// The comparisons in `tokens[from..to]`, joined by `&&` or `||`.
fn comparisons(tokens: &[Token<'_>], from: usize, to: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (from, 0);
    for at in from..=to {
        let ends = at == to
            || (depth == 0
                && at + 1 < to
                && matches!(tokens[at].text, "&" | "|")
                && tokens[at + 1].is(tokens[at].text));
        if ends && start < at {
            parts.push(start..at);
        }
        if ends {
            start = at + 2;
        }
        match tokens[at].text {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            _ => {}
        }
    }
    let compares = |part: &Range<usize>| {
        let mut depth = 0;
        tokens[part.clone()].iter().any(|token| {
            match token.text {
                "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(token.text, "<" | ">" | "=")
        })
    };
    parts.retain(compares);
    let bytes = |part: Range<usize>| tokens[part.start].offset..tokens[part.end - 1].end();
    parts.into_iter().map(bytes).collect()
}

/// The kernel that a byte belongs to: the one around it, or the first that names the function around it.
fn owner(
    tokens: &[Token<'_>],
    kernels: &[Signature],
    functions: &[Function<'_>],
    at: usize,
) -> Option<String> {
    let function = functions.iter().find(|function| function.body.contains(&at))?;
    let uses = |kernel: &&Signature| {
        let mut body = tokens.iter().filter(|token| kernel.body.contains(&token.offset));
        body.any(|token| token.is(function.name))
    };
    let own = kernels.iter().find(|kernel| kernel.body.contains(&at));
    own.or_else(|| kernels.iter().find(uses)).map(|kernel| kernel.name.clone())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A sample with the results of the unmodified kernel.
struct Trial<'s> {
    sample: &'s Sample,
    right: Vec<Vec<u8>>,
}

/// Runs every mutant on the samples of its kernel. `limit` is the maximum number of accesses; `on_done` is called after each.
pub fn run(
    text: &str,
    mutants: &[Mutant],
    samples: &[Sample],
    limit: u64,
    on_done: &(dyn Fn(&Mutant, &MutantOutcome) + Sync),
) -> Result<Vec<MutantOutcome>, CompileError> {
    let failed = |source: io::Error| CompileError::Io { what: "cannot run a sample".to_owned(), source };
    let mut by_kernel: HashMap<&str, Vec<Trial<'_>>> = HashMap::new();
    let program = Program::compile(text)?;
    for sample in samples {
        let right = sample.run(&program, limit).map_err(failed)?;
        by_kernel.entry(&sample.kernel).or_default().push(Trial { sample, right: right.left });
    }
    let cache = tempfile::tempdir().map_err(failed)?;
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![MutantOutcome::NotRun; mutants.len()]);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(index) else { return };
            let trials = by_kernel.get(mutant.kernel.as_str()).map_or(&[][..], Vec::as_slice);
            let outcome = run_mutant(mutant, trials, limit, cache.path());
            on_done(mutant, &outcome);
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes[index] = outcome;
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(mutants.len().max(1));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    Ok(outcomes.into_inner().unwrap_or_default())
}

fn run_mutant(mutant: &Mutant, trials: &[Trial<'_>], limit: u64, cache: &std::path::Path) -> MutantOutcome {
    if trials.is_empty() {
        return MutantOutcome::NotRun;
    }
    let only = [mutant.kernel.as_str()];
    let program = match Program::compile_with(&mutant.text, Options { only: Some(&only), cache: Some(cache) })
    {
        Ok(program) => program,
        Err(error) => return MutantOutcome::Rejected(error.to_string()),
    };
    let mut result = MutantOutcome::Same;
    for trial in trials {
        match trial.sample.run(&program, limit) {
            Ok(outcome) if !outcome.faults.is_empty() => {
                return MutantOutcome::Caught(outcome.faults[0].clone());
            }
            Ok(outcome) if outcome.left != trial.right => result = MutantOutcome::Different,
            Ok(_) => {}
            Err(error) => return MutantOutcome::Rejected(error.to_string()),
        }
    }
    result
}

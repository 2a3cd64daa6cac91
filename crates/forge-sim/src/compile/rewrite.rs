//! Rewrites Metal source to C++ for clang. Threadgroup arrays become references to memory of the executor, unselected
//! kernels are removed, and each kernel gets a function that calls it for one thread. Line numbers do not change.

use crate::compile::lexer::{Sort, Token, blank, edit, tokens};
use crate::compile::signature::{Malformed, Signature, Source, Space, kernels, split};
use std::fmt::Write;

/// Index of each launch builtin in the words that the executor passes to a thread.
pub(crate) const BUILTINS: &[(&str, usize)] = &[
    ("thread_position_in_grid", 0),
    ("threadgroup_position_in_grid", 3),
    ("thread_position_in_threadgroup", 6),
    ("threads_per_threadgroup", 9),
    ("dispatch_threads_per_threadgroup", 9),
    ("threadgroups_per_grid", 12),
    ("threads_per_grid", 15),
    ("thread_index_in_threadgroup", 18),
    ("thread_index_in_simdgroup", 19),
    ("simdgroup_index_in_threadgroup", 20),
    ("simdgroups_per_threadgroup", 21),
    ("dispatch_simdgroups_per_threadgroup", 21),
    ("threads_per_simdgroup", 22),
    ("thread_execution_width", 22),
];

/// Number of words that the executor passes to a thread.
pub(crate) const BUILTIN_WORDS: usize = 24;

/// Index of the first threadgroup pointer in the pointers that the executor passes to a thread.
pub(crate) const FIRST_THREADGROUP: usize = 31;

/// Number of pointers that the executor passes to a thread.
pub(crate) const POINTERS: usize = FIRST_THREADGROUP + 8;

/// The C++ of `text` and its kernels; with `only`, other kernels are removed.
pub(crate) fn rewrite(text: &str, only: Option<&[&str]>) -> Result<(String, Vec<Signature>), Malformed> {
    let (text, found) = select(text, only)?;
    let mut source = edit(&text, &arrays(&text)?);
    source.push_str("\n#line 1 \"calls\"\n");
    for kernel in &found {
        write_call(&mut source, kernel)?;
    }
    Ok((source, found))
}

/// `text` without the unselected kernels, and the selected ones.
fn select(text: &str, only: Option<&[&str]>) -> Result<(String, Vec<Signature>), Malformed> {
    let all = kernels(text)?;
    let Some(only) = only else { return Ok((text.to_owned(), all)) };
    let (kept, dropped): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|kernel| only.contains(&kernel.name.as_str()));
    let edits: Vec<_> = dropped
        .into_iter()
        .map(|kernel| (kernel.range.clone(), blank(&text[kernel.range.clone()])))
        .collect();
    let edited = edit(text, &edits);
    // Removing kernels has moved the ranges.
    if edits.is_empty() {
        return Ok((edited, kept));
    }
    let kept = kernels(&edited)?;
    Ok((edited, kept))
}

/// The edits that turn declarations of threadgroup variables into references.
fn arrays(text: &str) -> Result<Vec<(std::ops::Range<usize>, String)>, Malformed> {
    let tokens = tokens(text);
    let mut edits = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if token.sort == Sort::Directive
            && token.text.starts_with("#define")
            && token.text.contains("threadgroup ")
        {
            let message = "unsupported threadgroup memory in a macro: declare it outside macros".to_owned();
            return Err(Malformed { line: token.line, message });
        }
        let begins = index > 0
            && (matches!(tokens[index - 1].text, ";" | "{" | "}")
                || tokens[index - 1].sort == Sort::Directive);
        if !token.is("threadgroup") || !begins {
            continue;
        }
        let Some(end) = (index..tokens.len()).find(|at| tokens[*at].is(";")) else { continue };
        if let Some(replacement) = declaration(text, &tokens, index + 1, end) {
            edits.push((token.start..tokens[end].end(), replacement));
        }
    }
    Ok(edits)
}

/// The replacement of `threadgroup <tokens[from..end]>;`; `None` if it declares pointers.
fn declaration(text: &str, tokens: &[Token<'_>], from: usize, end: usize) -> Option<String> {
    let declared = &tokens[from..end];
    let mut depth = 0;
    for token in declared {
        match token.text {
            "[" | "(" => depth += 1,
            "]" | ")" => depth -= 1,
            "*" | "&" | "=" if depth == 0 => return None,
            _ => {}
        }
    }
    let parts = split(tokens, from, end);
    // The first part has the type, the name and its dimensions.
    let first = parts.first()?.clone();
    let bracket = first.clone().find(|at| tokens[*at].is("[")).unwrap_or(first.end);
    let name = bracket.checked_sub(1).filter(|at| *at > from)?;
    let element = &text[tokens[from].start..tokens[name - 1].end()];
    let mut written = String::new();
    for (index, part) in parts.iter().enumerate() {
        let name = if index == 0 { name } else { part.start };
        let dimensions = &text[tokens[name].end()..tokens[part.end - 1].end()];
        let (id, name) = (tokens[name].start, tokens[name].text);
        let _ = write!(
            written,
            "typedef {element} forge_type_{id}{dimensions}; forge_type_{id}& {name} = *(forge_type_{id}*)\
             forge_threadgroup({id}u, sizeof(forge_type_{id}), alignof(forge_type_{id}), \"{name}\"); "
        );
    }
    // Keeps the line breaks of a declaration.
    written.push_str(&blank(&text[tokens[from].start..tokens[end].end()]));
    Some(written)
}

/// Writes the function that calls a kernel for one thread, and the size of its scalars.
fn write_call(source: &mut String, kernel: &Signature) -> Result<(), Malformed> {
    let malformed = |message: String| Malformed { line: kernel.line, message };
    let mut arguments = Vec::new();
    for parameter in &kernel.parameters {
        let (element, name) = (&parameter.element, &parameter.name);
        arguments.push(match &parameter.source {
            Source::Builtin(builtin) => {
                let Some((_, offset)) = BUILTINS.iter().find(|(known, _)| known == builtin) else {
                    return Err(malformed(format!("`{name}`: unknown launch builtin `{builtin}`")));
                };
                format!("forge_builtin<{element}>(words + {offset})")
            }
            Source::Slot(space, slot) => {
                let (first, limit) = match space {
                    Space::Threadgroup => (FIRST_THREADGROUP, POINTERS - FIRST_THREADGROUP),
                    _ => (0, FIRST_THREADGROUP),
                };
                if *slot >= limit {
                    return Err(malformed(format!(
                        "`{name}`: slot {slot} is out of range; the limit is {limit}"
                    )));
                }
                let star = if parameter.reference { "*" } else { "" };
                format!("{star}({element}*)pointers[{}]", first + slot)
            }
        });
    }
    let size = kernel.scalars().map_or("0".to_owned(), |(_, scalars)| format!("sizeof({})", scalars.element));
    let name = &kernel.name;
    let _ = writeln!(
        source,
        "extern \"C\" __attribute__((disable_sanitizer_instrumentation, visibility(\"default\")))\n\
         void forge_call_{name}(void* const* pointers, const uint* words) {{ {name}({}); }}\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const uint forge_scalars_{name} = {size};",
        arguments.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_parameters_become_references() {
        let text = "kernel void a(uint t [[thread_index_in_threadgroup]]) {\n threadgroup float s[2][4], u[3];\n threadgroup float4 v;\n threadgroup float* p = u;\n}\nkernel void b() {\n}\n";
        let (source, found) = rewrite(text, Some(&["a"])).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(found.len(), 1);
        let lines: Vec<_> = source.lines().collect();
        let id = text.find("s[2]").unwrap_or(0);
        assert!(lines[1].contains(&format!(
            "typedef float forge_type_{id}[2][4]; forge_type_{id}& s = *(forge_type_{id}*)forge_threadgroup({id}u"
        )));
        assert!(lines[1].contains("[3]; ") && lines[1].contains("\"u\""));
        assert!(lines[2].contains("typedef float4 forge_type_"));
        assert_eq!(lines[3], " threadgroup float* p = u;");
        assert!(!source.contains("void b"));
    }
}

//! Names in generated Rust code. All modules convert names of the plan here, so that they are spelled in one way.

use crate::runtime_files::packages;
use forge_ir::units::grouped;

/// The name of a crate and its binary: `SmolLM2-135M.Instruct` becomes `smollm2-135m-instruct`.
pub(crate) fn crate_name(name: &str) -> String {
    let mut text: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' })
        .collect();
    while text.contains("--") {
        text = text.replace("--", "-");
    }
    let text = text.trim_matches('-').to_owned();
    match text.chars().next() {
        None => "model".to_owned(),
        Some(first) if first.is_ascii_digit() => format!("model-{text}"),
        // Cargo rejects keywords and names of the standard crates, and a crate cannot depend on another of its own name.
        Some(_) if is_keyword(&text) || is_taken(&text) => format!("{text}-model"),
        Some(_) => text,
    }
}

/// Whether a standard crate or a dependency of the runtime has this name.
fn is_taken(name: &str) -> bool {
    ["alloc", "core", "proc-macro", "std", "test"].contains(&name)
        || packages().any(|package| package == name)
}

/// The type name of an architecture: `LlamaForCausalLM` becomes `Llama`.
pub(crate) fn type_name(architecture: &str) -> String {
    let base = architecture.strip_suffix("ForCausalLM").unwrap_or(architecture);
    let text: String = base.chars().filter(char::is_ascii_alphanumeric).collect();
    let starts_well = text.starts_with(|c: char| c.is_ascii_uppercase());
    // model.rs defines or imports these.
    let taken =
        ["Model", "Layer", "Cache", "Scratch", "Batch", "Info", "Layout", "Cost", "Span", "Buffer", "Pass"];
    if starts_well && !taken.contains(&text.as_str()) { text } else { format!("Compiled{text}") }
}

/// A section name as a type name: `layer_2` becomes `Layer2`.
pub(crate) fn camel_case(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
            .unwrap_or_default()
    };
    name.split('_').map(word).collect()
}

/// A name of the plan as a Rust identifier.
pub(crate) fn identifier(name: &str) -> String {
    if is_keyword(name) { format!("{name}_") } else { name.to_owned() }
}

fn is_keyword(name: &str) -> bool {
    const KEYWORDS: [&str; 52] = [
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do",
        "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
        "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self",
        "static", "struct", "super", "trait", "true", "try", "type", "typeof", "union", "unsafe", "unsized",
        "use", "virtual", "where", "while", "yield",
    ];
    KEYWORDS.contains(&name)
}

/// A string as a Rust string literal.
pub(crate) fn literal(text: &str) -> String {
    format!("{text:?}")
}

/// An integer as a Rust literal with digit groups: `151_936`. Rust style does not group four digits.
pub(crate) fn number(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { grouped(number).replace(',', "_") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_case_of_their_use() {
        let crates = [
            ("SmolLM2-135M.Instruct", "smollm2-135m-instruct"),
            ("7b", "model-7b"),
            ("", "model"),
            ("test", "test-model"),
        ];
        assert_eq!(crates.map(|(name, _)| crate_name(name)), crates.map(|(_, name)| name.to_owned()));
        assert_eq!(type_name("LlamaForCausalLM"), "Llama");
        assert_eq!(type_name("Model"), "CompiledModel");
        assert_eq!(camel_case("layer_2"), "Layer2");
        assert_eq!(identifier("type"), "type_");
        assert_eq!((number(151_936), number(4096)), ("151_936".into(), "4096".into()));
    }
}

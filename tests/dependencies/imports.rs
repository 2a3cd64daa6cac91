//! What a module of a crate names from the modules above it: `use` declarations and paths in code that start
//! with `crate`, `super` or `self`. Code under `#[cfg(test)]` is left out.

use crate::tokens::tokens;
use std::collections::{BTreeMap, BTreeSet};

/// A module's place in its crate, from the root: empty for `lib.rs` and `main.rs`.
type Module = Vec<String>;

/// The sources of a crate, by path below `src`.
pub(crate) type Sources = BTreeMap<String, String>;

/// The imports of a crate from modules above the importing one, as file and path. Paths start at the crate's
/// root.
pub(crate) fn from_above(sources: &Sources) -> Vec<(String, String)> {
    let scanned: Vec<_> = sources.iter().map(|(file, text)| (file, module_of(file), scan(text))).collect();
    let mut modules: BTreeSet<Module> = scanned.iter().map(|(_, module, _)| module.clone()).collect();
    let mut tests = Vec::new();
    for (_, module, scan) in &scanned {
        modules.extend(scan.inline.iter().map(|inline| [&module[..], inline].concat()));
        tests.extend(scan.tests.iter().map(|test| [&module[..], test].concat()));
    }
    let mut found = Vec::new();
    for (file, module, scan) in &scanned {
        if tests.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        for (inline, path) in &scan.paths {
            let (target, item) = resolve(&[&module[..], inline].concat(), path, &modules);
            if target.len() < module.len() && module.starts_with(&target) {
                let path: Vec<&str> =
                    ["crate"].into_iter().chain(target.iter().map(String::as_str)).chain(item).collect();
                found.push(((*file).clone(), path.join("::")));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The module that a file holds.
fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if ["lib", "main"].contains(&path) { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// The module that a path leads to, and the item that it names there; no item if it names the module.
fn resolve<'a>(from: &[String], path: &[&'a str], modules: &BTreeSet<Module>) -> (Module, Option<&'a str>) {
    let mut target = from.to_vec();
    for segment in path {
        match *segment {
            "crate" => target.clear(),
            "super" => _ = target.pop(),
            "self" => {}
            segment => {
                target.push(segment.to_owned());
                if !modules.contains(&target) {
                    target.pop();
                    return (target, Some(segment));
                }
            }
        }
    }
    (target, None)
}

/// What a source declares and names.
#[derive(Default)]
struct Scan<'a> {
    /// Modules written inside the file, relative to its own.
    inline: Vec<Module>,
    /// Modules under `#[cfg(test)]` that have a file of their own.
    tests: Vec<Module>,
    /// Paths that start with `crate`, `super` or `self`, each with the inline module that it stands in.
    paths: Vec<(Module, Vec<&'a str>)>,
}

fn scan(text: &str) -> Scan<'_> {
    let tokens = tokens(text);
    let mut scan = Scan::default();
    let (mut depth, mut at) = (0, 0);
    // The inline modules around `at`, each with the depth of its braces.
    let mut around: Vec<(String, usize)> = Vec::new();
    while at < tokens.len() {
        let module = || around.iter().map(|(name, _)| name.clone()).collect::<Module>();
        let rest = &tokens[at..];
        at += match rest {
            ["#", "[", "cfg", "(", ..] if is_test(rest) => {
                let item = item(rest);
                if let ["mod", name, ";"] = item[item.len().saturating_sub(3)..] {
                    scan.tests.push([module(), vec![name.to_owned()]].concat());
                }
                item.len()
            }
            ["mod", name, "{", ..] => {
                around.push(((*name).to_owned(), depth));
                scan.inline.push(around.iter().map(|(name, _)| name.clone()).collect());
                depth += 1;
                3
            }
            // `impl Trait + use<'a>` names lifetimes.
            ["use", "<", ..] => 1,
            ["use", ..] => {
                let end = rest.iter().position(|token| *token == ";").unwrap_or(rest.len());
                let mut paths = Vec::new();
                expand(&mut &rest[1..end], &mut Vec::new(), &mut paths);
                paths.retain(|path| ["crate", "super", "self"].contains(&path[0]));
                scan.paths.extend(paths.into_iter().map(|path| (module(), path)));
                end
            }
            // `pub(in crate::a)` names no item.
            ["pub", "(", "in", ..] => rest.iter().position(|token| *token == ")").unwrap_or(rest.len()),
            ["$", "crate", ..] => 2,
            ["crate" | "super" | "self", "::", ..] => {
                let path: Vec<&str> = rest.iter().copied().step_by(2).collect();
                let is_joined = |at: &usize| rest.get(2 * at - 1) == Some(&"::") && is_name(path[*at]);
                let names = 1 + (1..path.len()).take_while(is_joined).count();
                scan.paths.push((module(), path[..names].to_vec()));
                2 * names - 1
            }
            ["{", ..] => {
                depth += 1;
                1
            }
            ["}", ..] => {
                depth -= 1;
                around.pop_if(|(_, outer)| *outer == depth);
                1
            }
            _ => 1,
        };
    }
    scan
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Whether an attribute `#[cfg(…)]` is true in tests only.
fn is_test(tokens: &[&str]) -> bool {
    let attribute = tokens.split(|token| *token == "]").next().unwrap_or_default();
    attribute.contains(&"test") && !attribute.contains(&"not") && !attribute.contains(&"any")
}

/// An item with its attributes, up to its `;` or closing brace.
fn item<'a>(tokens: &'a [&'a str]) -> &'a [&'a str] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => depth -= 1,
            _ => {}
        }
        let is_use = tokens[..at].contains(&"use");
        if depth == 0 && (*token == ";" || *token == "}" && !is_use) {
            return &tokens[..=at];
        }
    }
    tokens
}

/// The paths of a `use` declaration: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand<'a>(tokens: &mut &[&'a str], prefix: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
    let outer = prefix.len();
    let mut is_group = false;
    while let Some((token, rest)) = tokens.split_first() {
        match *token {
            "," | "}" => break,
            "{" => {
                is_group = true;
                *tokens = rest;
                loop {
                    expand(tokens, prefix, paths);
                    let end = tokens.split_first();
                    *tokens = end.map_or(&[][..], |(_, rest)| rest);
                    if end.is_none_or(|(token, _)| *token == "}") {
                        break;
                    }
                }
                continue;
            }
            "as" => {
                *tokens = rest.get(1..).unwrap_or_default();
                continue;
            }
            "::" => {}
            name => prefix.push(name),
        }
        *tokens = rest;
    }
    if !is_group && prefix.len() > outer {
        paths.push(prefix.clone());
    }
    prefix.truncate(outer);
}

/// [`from_above`] of a crate with these files, as `file: path`.
#[cfg(test)]
fn found(crate_text: &[(&str, &str)]) -> Vec<String> {
    let sources = crate_text.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    from_above(&sources).into_iter().map(|(file, path)| format!("{file}: {path}")).collect()
}

#[test]
fn detects_imports_from_lib_rs() {
    let library = ("lib.rs", "mod a; pub use crate::a::A; pub struct Options;");
    assert_eq!(found(&[library, ("a.rs", "use crate::Options;")]), ["a.rs: crate::Options"]);
    assert_eq!(found(&[library, ("a.rs", "use crate::{A, a::B};")]), ["a.rs: crate::A"]);
    assert_eq!(
        found(&[library, ("a.rs", "fn f() -> crate::Options { super::g() }")]),
        ["a.rs: crate::Options", "a.rs: crate::g"]
    );
}

#[test]
fn detects_imports_from_parent_modules() {
    let parent = ("a/mod.rs", "mod b; mod c; pub use c::C; pub struct A;");
    assert_eq!(found(&[parent, ("a/b.rs", "use super::A;"), ("a/c.rs", "")]), ["a/b.rs: crate::a::A"]);
    assert_eq!(found(&[parent, ("a/b.rs", "use crate::a::C;"), ("a/c.rs", "")]), ["a/b.rs: crate::a::C"]);
    assert_eq!(found(&[parent, ("a/b.rs", "use super::*;"), ("a/c.rs", "")]), ["a/b.rs: crate::a::*"]);
    assert_eq!(found(&[parent, ("a/b.rs", "use crate::a;"), ("a/c.rs", "")]), ["a/b.rs: crate::a"]);
    assert_eq!(found(&[parent, ("a/b/d.rs", "use crate::a::A;"), ("a/b.rs", "")]), ["a/b/d.rs: crate::a::A"]);
}

#[test]
fn allows_imports_from_sibling_and_child_modules() {
    let modules = [("lib.rs", "mod a; mod d;"), ("a/mod.rs", "mod b; mod c;"), ("a/c.rs", ""), ("d.rs", "")];
    let found_in = |text| found(&[&modules[..], &[("a/b.rs", text)]].concat());
    assert!(found_in("use super::c; use super::c::C; use crate::d::{self, D};").is_empty());
    assert!(found_in("pub(in crate::a) fn f() { self::g(); crate::d::f::<super::c::C>() }").is_empty());
    assert!(found_in("mod inner { use super::A; } struct A;").is_empty());
}

#[test]
fn allows_tests_to_import_the_module_under_test() {
    let inline = ("a.rs", "fn f() {} #[cfg(test)] mod tests { use super::*; use crate::Options; }");
    assert!(found(&[("lib.rs", "mod a;"), inline]).is_empty());
    let parent = ("a/mod.rs", "#[cfg(test)]\nmod tests;\nfn f() {}");
    assert!(found(&[("lib.rs", "mod a;"), parent, ("a/tests.rs", "use super::f;")]).is_empty());
}

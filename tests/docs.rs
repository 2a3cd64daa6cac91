//! Every relative link of the documentation refers to an existing file, and every anchor to one of its headings.
//!
//! Links to other sites are not followed. Code blocks and inline code contain no links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Pages and directories of pages, relative to the repository's root.
const PAGES: [&str; 5] = ["README.md", "CONTRIBUTING.md", "docs", "examples", "tests/clients"];

#[test]
fn relative_links_and_anchors_resolve() {
    let root = root();
    let mut pages = Vec::new();
    PAGES.iter().for_each(|page| collect(&root.join(page), &mut pages));
    assert!(pages.len() > 30, "found {} pages only", pages.len());
    let broken: Vec<String> = pages.iter().flat_map(|page| broken_links(&root, page)).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn pages_fit_the_style_guide() {
    let root = root();
    let mut pages = Vec::new();
    PAGES.iter().for_each(|page| collect(&root.join(page), &mut pages));
    let generated = |text: &str| text.starts_with("<!-- Written by");
    let mut faults = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(&root).unwrap().display();
        if !generated(&text) && text.lines().count() > MOST_LINES {
            faults.push(format!(
                "{name} has {} lines; split it, {MOST_LINES} are the most",
                text.lines().count()
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Lines of a page.
const MOST_LINES: usize = 250;

#[test]
fn anchors_are_made_as_github_makes_them() {
    let text = "# A `B`: c, d\n## Same\n## Same\n```sh\n# not a heading\n```\n### x_y-z (1/2)\n## [Link](there.md)\n";
    let found = anchors(text);
    let expected = ["a-b-c-d", "link", "same", "same-1", "x_y-z-12"];
    assert_eq!(found, expected.iter().map(|anchor| (*anchor).to_owned()).collect());
}

#[test]
fn links_are_found_outside_code_alone() {
    let text = "[a](b.md) and [c](d.md#e), [f]( g.md \"title\") `[h](i.md)`\n\n```\n[j](k.md)\n```\n![l](m.png) [n](https://o.p)\n";
    let found: Vec<(usize, String)> = links(text);
    let expected = [(1, "b.md"), (1, "d.md#e"), (1, "g.md"), (6, "m.png"), (6, "https://o.p")]
        .map(|(line, to)| (line, to.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn a_missing_file_and_a_missing_anchor_are_reported() {
    let folder = std::env::temp_dir().join(format!("forge-docs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let page = folder.join("page.md");
    fs::write(&page, "# One\n[here](#one) [gone](#two) [no](no.md)\n[self](page.md#one) [out](../..)\n")
        .unwrap();
    let broken = broken_links(&folder, &page);
    fs::remove_dir_all(&folder).unwrap();
    let expected = [
        "page.md:2: #two: page.md has no such heading",
        "page.md:2: no.md: there is no such file",
        "page.md:3: ../..: leads out of the repository",
    ];
    assert_eq!(broken, expected);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").to_owned()
}

/// Adds a page, or all pages below a directory, in the order of their names.
fn collect(path: &Path, pages: &mut Vec<PathBuf>) {
    if path.is_dir() {
        if path.file_name().is_some_and(|name| name == "target" || name == "node_modules") {
            return;
        }
        let mut entries: Vec<PathBuf> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| collect(entry, pages));
    } else if path.extension().is_some_and(|extension| extension == "md") {
        pages.push(path.to_owned());
    }
}

/// One line for each link of a page that leads nowhere.
fn broken_links(root: &Path, page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    let folder = page.parent().expect("a page is in a folder");
    let mut broken = Vec::new();
    for (line, link) in links(&text) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) =
            link.split_once('#').map_or((&link[..], None), |(file, anchor)| (file, Some(anchor)));
        let target = if file.is_empty() { page.to_owned() } else { normal(&folder.join(file)) };
        let fault = if !target.starts_with(root) {
            Some("leads out of the repository".to_owned())
        } else if !target.exists() {
            Some("there is no such file".to_owned())
        } else if let Some(anchor) = anchor {
            let text = fs::read_to_string(&target).unwrap_or_default();
            (!anchors(&text).contains(anchor)).then(|| format!("{} has no such heading", name(&target)))
        } else {
            None
        };
        broken.extend(fault.map(|fault| format!("{}:{line}: {link}: {fault}", name(page))));
    }
    broken
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

/// The lines of a page outside code blocks, with line numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!is_fence && !in_code).then_some((index + 1, line))
    })
}

/// The targets of a page's links, with line numbers.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let plain = without_code(line);
        let mut rest = plain.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split_whitespace().next().unwrap_or("");
            links.push((number, target.to_owned()));
            rest = &rest[end..];
        }
    }
    links
}

/// The line without inline code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let level = line.len() - line.trim_start_matches('#').len();
        let Some(title) = line[level..].strip_prefix(' ').filter(|_| (1..=6).contains(&level)) else {
            continue;
        };
        let slug = slug(title.trim());
        let count = counts.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// Lower case; letters, digits, `-` and `_` stay, spaces become `-`, all else goes. Of a link its text counts.
fn slug(title: &str) -> String {
    let mut text = String::new();
    let mut rest = title;
    while let Some(close) = rest.find("](") {
        text.push_str(&rest[..close]);
        rest = rest[close..].find(')').map_or("", |end| &rest[close + end + 1..]);
    }
    text.push_str(rest);
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ if letter.is_alphanumeric() => Some(letter),
        _ => None,
    };
    text.to_lowercase().chars().filter_map(kept).collect()
}

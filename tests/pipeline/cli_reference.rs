//! `docs/reference/cli.md` has the help of every command: of `forge`, and of the programs that it makes.

use std::path::Path;
use std::process::Command;
use tests::{all_built, forge, root};

/// Set to write the page instead of comparing it.
const UPDATE: &str = "FORGE_UPDATE_DOCS";

#[test]
fn the_page_has_the_help_of_every_command() {
    let program =
        &all_built().iter().find(|built| built.model == "llama").expect("it is always built").program;
    let page = format!(
        "<!-- Written by {UPDATE}=1 cargo test -p tests --test pipeline cli_reference. -->\n# Command line\n\n## forge\n\n{}\n## A compiled model\n\nEvery program has these commands. Here it is called `llama`.\n\n{}",
        section(forge()),
        section(program),
    );
    let file = root().join("docs/reference/cli.md");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&file, &page).expect("the page is writable");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "{} is not what the programs print: {UPDATE}=1 writes it", file.display());
}

/// The help of a program and of its commands.
fn section(program: &Path) -> String {
    let top = help(program, &[]);
    let commands: Vec<&str> = top
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    let mut text = format!("```text\n{top}```\n");
    for command in commands {
        text += &format!("\n### {command}\n\n```text\n{}```\n", help(program, &[command]));
    }
    text
}

fn help(program: &Path, command: &[&str]) -> String {
    let output = Command::new(program).args(command).arg("--help").env("COLUMNS", "100").output();
    let output = output.expect("the program was built");
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8(output.stdout).expect("help is UTF-8");
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n"
}

//! Markdown from clap definitions.

use clap::{Arg, Command};
use std::fmt::Write;

/// Columns of a line of prose.
const COLUMNS: usize = 110;

/// A page of command lines.
pub(super) struct Page(String);

impl Page {
    /// A page that starts with this text.
    pub(super) fn new(head: &str) -> Page {
        Page(head.split("\n\n").map(|part| wrap(part.trim_end(), "", "")).collect::<Vec<_>>().join("\n"))
    }

    /// Adds a program: its commands, its global options, and each command's arguments.
    ///
    /// `shared` has title and group of options that several commands have. They get a section of their own, and the
    /// commands refer to it.
    pub(super) fn command_line(&mut self, program: &Command, shared: &[(&str, &str)]) {
        let name = program.get_name();
        let _ = writeln!(self.0, "\n## {name}");
        self.about(program);
        self.0.push_str("\n| command | |\n|---|---|\n");
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = format!("{name} {}", command.get_name());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let (link, about) = (path.replace(' ', "-"), inline(about.trim_end_matches('.')));
            let _ = writeln!(self.0, "| [`{path}`](#{link}) | {about} |");
        }
        self.after(program);
        self.options("Global options", program.get_arguments());
        for (title, group) in shared {
            let owner = program.get_subcommands().find(|command| !members(command, group).is_empty());
            let members = owner.map(|command| members(command, group)).unwrap_or_default();
            let _ = writeln!(self.0, "\n### {title}\n");
            members.into_iter().for_each(|argument| self.argument(argument));
        }
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            self.command(name, command, shared);
        }
    }

    /// The page's text.
    pub(super) fn finish(self) -> String {
        self.0
    }

    /// Adds the section of a subcommand.
    fn command(&mut self, program: &str, command: &Command, shared: &[(&str, &str)]) {
        let path = format!("{program} {}", command.get_name());
        let _ = writeln!(self.0, "\n### {path}");
        self.about(command);
        let usage = command.clone().bin_name(&path).render_usage().to_string();
        let _ = writeln!(self.0, "\n```text\n{}\n```", usage.trim_start_matches("Usage: "));
        let is_shared = |argument: &&Arg| {
            shared.iter().any(|(_, group)| {
                members(command, group).iter().any(|member| member.get_id() == argument.get_id())
            })
        };
        self.options("", command.get_arguments().filter(|argument| !is_shared(argument)));
        for (title, _) in shared.iter().filter(|(_, group)| !members(command, group).is_empty()) {
            let title = title.to_lowercase();
            let _ = writeln!(self.0, "\nIn addition, the [{title}](#{}).", title.replace(' ', "-"));
        }
        self.after(command);
    }

    /// Adds a list of arguments, below a heading if it has a title.
    fn options<'a>(&mut self, title: &str, arguments: impl Iterator<Item = &'a Arg>) {
        let arguments: Vec<&Arg> = arguments.filter(|argument| !argument.is_hide_set()).collect();
        if arguments.is_empty() {
            return;
        }
        if !title.is_empty() {
            let _ = writeln!(self.0, "\n### {title}");
        }
        self.0.push('\n');
        arguments.into_iter().for_each(|argument| self.argument(argument));
    }

    /// Adds a list item: the argument, its default, its help and its values.
    fn argument(&mut self, argument: &Arg) {
        let help =
            argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
        let mut paragraphs = help.split("\n\n");
        let mut first = format!("`{}`: {}", syntax(argument), inline(paragraphs.next().unwrap_or_default()));
        first.truncate(first.trim_end_matches('.').len());
        let takes_value = argument.get_action().takes_values();
        let defaults: Vec<String> = argument
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        if takes_value && !defaults.is_empty() {
            first = format!("{first} [default: {}]", defaults.join(","));
        }
        self.0.push_str(&wrap(&first, "- ", "  "));
        for paragraph in paragraphs {
            let _ = write!(self.0, "\n{}", wrap(&inline(paragraph), "  ", "  "));
        }
        let values = argument.get_possible_values();
        if takes_value && !values.is_empty() {
            let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| {
                let meaning = value.get_help().map(|help| inline(help.to_string().trim_end_matches('.')));
                let meaning = meaning.map_or(String::new(), |help| format!(" ({help})"));
                format!("`{}`{meaning}", value.get_name())
            });
            let values = format!("Values: {}.", values.collect::<Vec<_>>().join(", "));
            let _ = write!(self.0, "\n{}", wrap(&values, "  ", "  "));
        }
    }

    /// Adds the description of a command.
    fn about(&mut self, command: &Command) {
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
        self.text(&about.unwrap_or_default());
    }

    /// Adds the text that `--help` prints after the options.
    fn after(&mut self, command: &Command) {
        let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        self.text(&after.unwrap_or_default());
    }

    /// Adds paragraphs. Indented lines are a code block.
    fn text(&mut self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        for block in lines.chunk_by(|a, b| a.starts_with("  ") == b.starts_with("  ") && !b.is_empty()) {
            let block: Vec<&str> = block.iter().copied().filter(|line| !line.is_empty()).collect();
            if block.is_empty() {
                continue;
            }
            self.0.push('\n');
            if block[0].starts_with("  ") {
                let code: Vec<&str> = block.iter().map(|line| &line[2..]).collect();
                let _ = writeln!(self.0, "```text\n{}\n```", code.join("\n"));
            } else {
                self.0.push_str(&wrap(&inline(&block.join(" ")), "", ""));
            }
        }
    }
}

/// The arguments of a command's group.
fn members<'a>(command: &'a Command, group: &str) -> Vec<&'a Arg> {
    let found = command.get_groups().find(|found| found.get_id() == group);
    let ids: Vec<_> = found.map(|group| group.get_args().collect()).unwrap_or_default();
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    arguments.filter(|argument| ids.contains(&argument.get_id())).collect()
}

/// The argument as it is typed, such as `-o, --out <DIR>`.
fn syntax(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let name = argument.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
    let name = name.unwrap_or_else(|| argument.get_id().to_string().to_uppercase());
    match (flags.is_empty(), argument.get_action().takes_values()) {
        (true, _) => format!("<{name}>"),
        (false, true) => format!("{flags} <{name}>"),
        (false, false) => flags,
    }
}

/// Help text as Markdown: options become code, and what Markdown would interpret is escaped.
fn inline(text: &str) -> String {
    let mut markdown = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            let _ = write!(markdown, "`{part}`");
            continue;
        }
        let words = part.split(' ').map(|word| {
            let start = word.find(|letter: char| letter != '(').unwrap_or(word.len());
            let dashes = word[start..].len() - word[start..].trim_start_matches('-').len();
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            let end = word[start..].find(|letter| !is_name(letter)).map_or(word.len(), |end| start + end);
            if (1..=2).contains(&dashes) && end > start + dashes {
                format!("{}`{}`{}", &word[..start], &word[start..end], escaped(&word[end..]))
            } else {
                escaped(word)
            }
        });
        markdown.push_str(&words.collect::<Vec<_>>().join(" "));
    }
    markdown
}

/// The word with Markdown's special characters escaped.
fn escaped(word: &str) -> String {
    let is_special = |letter| matches!(letter, '<' | '*' | '|') || letter == '_' && word.starts_with('_');
    word.chars().flat_map(|letter| is_special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

/// Text in lines of at most [`COLUMNS`] columns, with a prefix for the first and for all others.
///
/// No line starts with a word that Markdown takes for a list or a heading.
fn wrap(text: &str, first: &str, other: &str) -> String {
    let mut lines = vec![first.to_owned()];
    let mut is_start = true;
    let is_marker = |word: &str| {
        matches!(word, "-" | "+" | "*" | "#")
            || word.ends_with('.') && word[..word.len() - 1].parse::<u32>().is_ok()
    };
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if is_start || line.len() + 1 + word.len() <= COLUMNS || is_marker(word) {
            if !is_start {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(format!("{other}{word}"));
        }
        is_start = false;
    }
    lines.join("\n") + "\n"
}

#[test]
fn arguments_become_list_items() {
    let command = Command::new("tool").arg(
        Arg::new("size")
            .short('s')
            .long("size")
            .value_name("N")
            .help("Size; see --other and `a*b`, <x> or x*y.\n\nSecond paragraph - with a dash")
            .default_value("3"),
    );
    let mut page = Page::new("");
    page.command_line(&Command::new("made").subcommand(command), &[]);
    let page = page.finish();
    let expected = "### made tool\n\n```text\nmade tool [OPTIONS]\n```\n\n\
        - `-s, --size <N>`: Size; see `--other` and `a*b`, \\<x> or x\\*y [default: `3`]\n\n  \
        Second paragraph - with a dash\n";
    assert!(page.ends_with(expected), "{page}");
}

#[test]
fn lines_do_not_start_with_a_list_marker() {
    let text = format!("{} - b", "a".repeat(COLUMNS - 1));
    assert_eq!(wrap(&text, "", ""), format!("{} -\nb\n", "a".repeat(COLUMNS - 1)));
}

//! `chat`: one message, and a conversation.

use crate::support::reference::Reference;
use crate::{directory, program, run, text};
use serde_json::Value;
use std::io::Write;
use std::process::{Output, Stdio};
use tempfile::TempDir;

/// A directory with a chat model. A message is rendered as `w3` and its text, and a reply starts after `w4`.
fn talkative() -> TempDir {
    let folder = directory(0.0);
    let template =
        "{% for m in messages %}w3 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}";
    let config = serde_json::json!({ "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

pub(crate) fn words(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ")
}

/// The program's output for these lines of standard input.
pub(crate) fn say(folder: &TempDir, line: &str, lines: &str) -> Output {
    let mut command = program(folder, line);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn chat_answers_one_prompt_or_each_line() {
    let folder = talkative();
    let reference = Reference::new();
    let first = reference.greedy(&[3, 7, 8, 4], 4);
    assert!(first.iter().all(|&id| id > 2), "the test wants ids that are words: {first:?}");
    let output = run(&folder, "chat -p w7 -n 4 --temperature 0");
    assert_eq!(text(&output.stdout), format!("{}\n", words(&reference.greedy(&[3, 7, 4], 4))));
    // The second message follows the first exchange.
    let mut ids = vec![3, 7, 8, 3];
    ids.extend(&first);
    ids.extend([3, 9, 4]);
    let second = reference.greedy(&ids, 4);
    let lines = "w7 w8\n\nw9\n/stats\n/save talk.json\n/nonsense\n/load nowhere.json\n/quit\nw9\n";
    let mut command = program(&folder, "chat -n 4 --temperature 0");
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "standard input is not a terminal, and two lines were invalid");
    assert_eq!(text(&output.stdout), format!("{}\n{}\n", words(&first), words(&second)));
    let stderr = text(&output.stderr);
    for part in ["decode 4 tokens", "of 64 tokens", "/nonsense: unknown command", "nowhere.json: "] {
        assert!(stderr.contains(part), "expected {part}: {stderr}");
    }
    // The saved conversation is continued, a reply is regenerated, and the conversation is cleared.
    let saved = folder.path().join("talk.json");
    let line = format!("chat -n 4 --temperature 0 --load {}", saved.display());
    let output = say(&folder, &line, "/retry\n/reset\nw7 w8\n");
    assert_eq!(text(&output.stdout), format!("{}\n{}\n", words(&second), words(&first)));
    // Slash commands report their effect. Two slashes begin a message, and a backslash continues it on the
    // next line.
    let mut command = program(&folder, "chat -n 1 --temperature 0");
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = "w7 \\\nw8\n//w9\n/system w5\n/save more.json\n/load more.json\n/system\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let did = [
        "system prompt set, 2 characters",
        "saved to more.json",
        "loaded from more.json",
        "system prompt removed",
    ];
    for part in did {
        assert!(stderr.contains(part), "expected {part}: {stderr}");
    }
    let saved = std::fs::read_to_string(folder.path().join("more.json")).unwrap();
    let saved: Vec<Value> = serde_json::from_str(&saved).unwrap();
    let contents = |role: &str| -> Vec<&str> {
        saved.iter().filter(|it| it["role"] == role).map(|it| it["content"].as_str().unwrap()).collect()
    };
    assert_eq!((contents("system"), contents("user")), (vec!["w5"], vec!["w7 \nw8", "/w9"]));
    // A message that does not fit is rejected, and the conversation is unchanged.
    let long = format!("{}\nw7 w8\n", "w5 ".repeat(80));
    let output = say(&folder, "chat -n 4 --temperature 0", &long);
    assert!(
        text(&output.stderr).contains("82 tokens exceed the context length of 64\n"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(text(&output.stdout), format!("{}\n", words(&first)));
    // The system message comes first.
    let output = run(&folder, "chat -p w8 --system w7 -n 4 --temperature 0");
    assert_eq!(text(&output.stdout), format!("{}\n", words(&reference.greedy(&[3, 7, 3, 8, 4], 4))));
}

//! Structured output: the server's answer follows the schema of a Rust struct, so it can be parsed into that
//! struct.
//!
//! Starts the server whose program is named on the command line, requests a story, and then its outline.

use schemars::{JsonSchema, schema_for};
use serde::Deserialize;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// What a story is made of. The server lets the model write nothing that is not one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "it is printed whole")]
struct Outline {
    hero: String,
    kind: String,
    #[serde(rename = "trait")]
    temper: Option<String>,
    want: String,
    obstacle: String,
    helper: Option<String>,
    thing: Option<String>,
    ending: Ending,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Ending {
    Happy,
    Sad,
    Funny,
}

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("outline PROGRAM, a program that forge has compiled")?;
    let server = Server::start(&program)?;
    let mut messages =
        vec![json!({ "role": "user", "content": "Please tell me a happy story about a troll and a goat." })];
    let story = server.ask(&messages, None)?;
    println!("{story}\n");

    messages.push(json!({ "role": "assistant", "content": story }));
    messages.push(json!({ "role": "user", "content": "Give me the outline as JSON." }));
    let schema = json!({
        "type": "json_schema",
        "json_schema": { "name": "outline", "strict": true, "schema": schema_for!(Outline) },
    });
    let answer = server.ask(&messages, Some(schema))?;
    let outline: Outline = serde_json::from_str(&answer)?;
    println!("{outline:#?}");
    Ok(())
}

/// A server process, which ends with this program.
struct Server {
    process: Child,
    /// Base URL of its API.
    base: String,
}

impl Server {
    /// Starts the server on a free port, and waits until it prints its address.
    fn start(program: &str) -> Result<Server, Box<dyn Error>> {
        let mut command = Command::new(program);
        let mut process = command.args(["serve", "--port", "0"]).stderr(Stdio::piped()).spawn()?;
        let said = process.stderr.take().ok_or("it has a standard error")?;
        for line in BufReader::new(said).lines() {
            let line = line?;
            if let Some(base) = line.split_whitespace().find(|word| word.starts_with("http://")) {
                return Ok(Server { process, base: base.to_owned() });
            }
            eprintln!("{line}");
        }
        Err(format!("{program} ended without serving").into())
    }

    /// The model's greedy reply to a conversation, in the given format.
    fn ask(&self, messages: &[Value], format: Option<Value>) -> Result<String, Box<dyn Error>> {
        let mut request = json!({ "messages": messages, "temperature": 0 });
        if let Some(format) = format {
            request["response_format"] = format;
        }
        let answer = ureq::post(format!("{}/chat/completions", self.base)).send_json(request);
        let answer: Value = answer?.body_mut().read_json()?;
        let content = answer["choices"][0]["message"]["content"].as_str();
        Ok(content.ok_or("the server's answer has no text")?.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

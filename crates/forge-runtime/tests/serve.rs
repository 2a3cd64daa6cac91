//! The server, asked over sockets: the tiny model, at its own speed or slow enough to interfere with.

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/model.rs"]
mod model;
mod support;

use forge_runtime as runtime;
use model::Tiny;
use runtime::cpu::CpuDevice;
use runtime::device::{Buffer, Device, Pass};
use runtime::engine::Engine;
use runtime::failure::Failure;
use runtime::model::Model;
use runtime::sampler::Sampling;
use runtime::serve::{Options, Server, Stop};
use runtime::template::Template;
use runtime::text::Text;
use runtime::weights::WeightFile;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::http::{Asked, Response, send};
use support::reference::{Reference, write_letters, write_tokenizer};
use tempfile::TempDir;

/// A device that takes its time.
struct Slow(CpuDevice, Duration);

impl Device for Slow {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.0.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.0.read(buffer, offset, bytes);
    }

    fn run(&mut self, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        std::thread::sleep(self.1);
        self.0.run(encode)
    }
}

struct Served {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    _folder: TempDir,
}

/// How the tiny model is served in a test.
#[derive(Clone, Default)]
struct Setting {
    slots: u32,
    queue: u32,
    /// Milliseconds of a pass.
    pace: u64,
    keys: Vec<String>,
    origins: Vec<String>,
    /// Whether ids are letters rather than words.
    letters: bool,
    /// In place of the one that knows no tools.
    template: Option<&'static str>,
    without_template: bool,
}

const PLAIN: Setting = Setting {
    slots: 4,
    queue: 64,
    pace: 0,
    keys: Vec::new(),
    origins: Vec::new(),
    letters: false,
    template: None,
    without_template: false,
};

const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
    {% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
    {% if message.role == 'user' %} w10 {% else %} w11 {% endif %}{{ message.content }}{% endfor %} w12";

fn serve(setting: &Setting) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    if setting.letters {
        write_letters(&tokenizer)
    } else {
        write_tokenizer(&tokenizer)
    }
    let text = Text::read(&tokenizer).unwrap();
    let specials = json!({ "bos_token": "<s>" }).as_object().unwrap().clone();
    let template = Template::new(setting.template.unwrap_or(TEMPLATE), None, specials).unwrap();
    let template = (!setting.without_template).then_some(template);
    let Setting { slots, queue, pace, .. } = *setting;
    let server = Server::listen(Options {
        host: "127.0.0.1".to_owned(),
        port: 0,
        api_keys: setting.keys.clone(),
        insecure: false,
        queue,
        origins: setting.origins.clone(),
        aliases: vec!["small".to_owned()],
    })
    .unwrap();
    let (address, stop) = (server.address(), server.stop());
    let thread = std::thread::spawn(move || {
        let tiny = Tiny::new(&weights, 64, slots).unwrap();
        let device = CpuDevice::new(&weights, tiny.layout(), Some(1)).unwrap();
        let engine = Engine::new(tiny, Slow(device, Duration::from_millis(pace)), 64, slots);
        let sampling = Sampling { temperature: 0.9, ..Sampling::default() };
        server.run(engine, slots, text, tokenizer, template, sampling)
    });
    let served = Served { address, stop, thread: Some(thread), _folder: folder };
    while served.get("/ready").status != 200 {
        std::thread::sleep(Duration::from_millis(2));
    }
    served
}

impl Served {
    fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    fn ask(&self, path: &str, body: &Value) -> Asked {
        send(self.address, "POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.ask(path, body).response()
    }

    /// The answer to a request that has to get one.
    fn answer(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        response.json()
    }

    /// One of the numbers of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("model_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until one of the numbers is what it has to become.
    fn becomes(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{name} is {}, not {value}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops it, and wants all to be well.
    fn end(mut self) {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

const CHAT: &str = "/v1/chat/completions";
const PLAINLY: &str = "/v1/completions";

/// Ids of words that make a prompt.
fn ids(seed: usize, count: usize) -> Vec<usize> {
    (0..count).map(|i| 3 + (seed * 17 + i * (seed % 5 + 1) * 7 + i * i) % 47).collect()
}

fn greedy(prompt: &[usize], count: usize) -> Value {
    json!({ "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true })
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn a_greedy_answer_is_the_models() {
    for slots in [1, 3] {
        let served = serve(&Setting { slots, ..PLAIN });
        let prompt = [1_u32, 5, 6, 7];
        let words: Vec<String> =
            Reference::new().greedy(&prompt, 12).iter().map(|id| format!("w{id}")).collect();
        for prompt in [json!("w5 w6 w7"), json!(prompt), json!(["w5 w6 w7"]), json!([prompt])] {
            let answer =
                served.answer(PLAINLY, &json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0 }));
            assert_eq!(text(&answer), words.join(" "), "{slots} slots");
            assert_eq!(answer["choices"][0]["finish_reason"], "length");
            assert_eq!(answer["object"], "text_completion");
            let usage = &answer["usage"];
            assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&4.into(), &12.into()));
        }
        served.end();
    }
}

/// Many clients at once, prompts of all lengths, some streamed, some that begin alike: what each gets is what it gets
/// when nobody else is there.
#[test]
fn an_answer_does_not_depend_on_who_else_asks() {
    let questions: Vec<Value> = (0..48)
        .map(|i| {
            let mut prompt = ids(i % 7, 1 + i * 11 % 40);
            prompt.extend(ids(i, 3));
            let mut question = greedy(&prompt, 1 + i * 5 % 20);
            question["stream"] = (i % 3 == 0).into();
            if i % 4 == 1 {
                question["temperature"] = 0.8.into();
                question["seed"] = i.into();
            }
            question
        })
        .collect();
    let ask = |served: &Served, question: &Value| {
        let response = served.post(PLAINLY, question);
        assert_eq!(response.status, 200, "{}", response.body);
        if question["stream"] == true {
            response.events().iter().map(|event| text(event).to_owned()).collect::<String>()
        } else {
            text(&response.json()).to_owned()
        }
    };
    // Alone: a server where nothing can be reused, for each.
    let alone: Vec<String> = questions
        .iter()
        .map(|question| {
            let served = serve(&Setting { slots: 2, ..PLAIN });
            let answer = ask(&served, question);
            served.end();
            answer
        })
        .collect();
    let served = serve(&Setting { slots: 5, pace: 1, ..PLAIN });
    for round in 0..2 {
        let together: Vec<String> = std::thread::scope(|scope| {
            let askers: Vec<_> =
                questions.iter().map(|question| scope.spawn(|| ask(&served, question))).collect();
            askers.into_iter().map(|asker| asker.join().unwrap()).collect()
        });
        for (question, (together, alone)) in questions.iter().zip(together.iter().zip(&alone)) {
            assert_eq!(together, alone, "round {round}: {question}");
        }
    }
    assert!(served.metric("prompt_tokens_reused_total") > 0.0);
    // Passes served several at once.
    assert!(served.metric("pass_rows_total") > 2.0 * served.metric("passes_total"));
    served.end();
}

#[test]
fn a_stream_says_piece_by_piece_what_the_whole_says_at_once() {
    let served = serve(&PLAIN);
    let messages = json!([{ "role": "system", "content": "w20" }, { "role": "user", "content": "w21 w22" }]);
    let mut question = json!({ "messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    let whole = served.answer(CHAT, &question);
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["role"], &whole["object"]), (&json!("assistant"), &json!("chat.completion")));
    assert_eq!(whole["usage"]["prompt_tokens"], 7, "<s> w11 w20 w10 w21 w22 w12");
    question["stream"] = true.into();
    question["stream_options"] = json!({ "include_usage": true });
    let response = served.post(CHAT, &question);
    assert!(response.head.to_lowercase().contains("content-type: text/event-stream"), "{}", response.head);
    let events = response.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let said: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, message["content"]);
    let reasons: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"])
        .filter(|reason| !reason.is_null())
        .collect();
    assert_eq!(reasons, ["length"]);
    let (last, others) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(9)));
    assert!(
        others.iter().all(|event| event["usage"].is_null() && event["object"] == "chat.completion.chunk")
    );
    // Without that option nothing is said of usage.
    question["stream_options"] = Value::Null;
    assert!(served.post(CHAT, &question).events().iter().all(|event| event.get("usage").is_none()));
    served.end();
}

#[test]
fn texts_end_for_the_reason_that_is_given() {
    let served = serve(&PLAIN);
    let prompt = ids(3, 5);
    let answer = served.answer(PLAINLY, &greedy(&prompt, 12));
    let words: Vec<&str> = text(&answer).split(' ').collect();
    let stopped = |stop: Value| {
        let mut question = greedy(&prompt, 12);
        question["stop"] = stop;
        served.answer(PLAINLY, &question)
    };
    let across = format!("{} {}", words[6], words[7]);
    for stop in [json!(across), json!(["never", across])] {
        let answer = stopped(stop);
        assert!(text(&answer).len() < words[..7].join(" ").len(), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    // The context is full.
    let full = served.answer(PLAINLY, &greedy(&ids(1, 60), 100));
    assert_eq!(
        (&full["choices"][0]["finish_reason"], &full["usage"]["completion_tokens"]),
        (&json!("length"), &json!(5))
    );
    // The model ends the text: some seed finds the id that does.
    let ended = (0..300).find_map(|seed| {
        let question = json!({ "prompt": [3, 4], "max_tokens": 50, "temperature": 3, "seed": seed });
        let answer = served.answer(PLAINLY, &question);
        (answer["choices"][0]["finish_reason"] == "stop").then_some(answer)
    });
    assert!(!text(&ended.expect("one of 300 texts ends")).contains("</s>"));
    served.end();
}

#[test]
fn texts_are_written_as_asked() {
    let served = serve(&PLAIN);
    let question = |more: Value| {
        let mut question =
            json!({ "prompt": ids(2, 6), "max_tokens": 8, "temperature": 1.5, "ignore_eos": true });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    let texts = |more: Value| -> Vec<String> {
        let answer = served.answer(PLAINLY, &question(more));
        let choices = answer["choices"].as_array().unwrap();
        assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    // The same seed gives the same texts, n of them differ, and the first is what it is by itself.
    let three = texts(json!({ "seed": 5, "n": 3 }));
    assert_eq!(three, texts(json!({ "seed": 5, "n": 3 })));
    assert_eq!(three[..1], texts(json!({ "seed": 5 })));
    assert!(three[0] != three[1] && three[1] != three[2]);
    assert_ne!(texts(json!({})), texts(json!({})), "without a seed texts are new ones");
    // Several prompts, each with its texts in turn.
    assert_eq!(texts(json!({ "prompt": ["w5 w6", "w7"], "n": 2, "seed": 1 })).len(), 4);
    // A bias that outweighs everything, and one that forbids.
    assert_eq!(texts(json!({ "logit_bias": { "33": 100 } })), [["w33"; 8].join(" ")]);
    let usual = texts(json!({ "temperature": 0 }))[0].clone();
    let first = usual.split(' ').next().unwrap();
    let other = texts(json!({ "temperature": 0, "logit_bias": { &first[1..]: -100 } }))[0].clone();
    assert!(!other.split(' ').any(|word| word == first), "{other}");
    // The most probable of one is the most probable.
    for strict in [json!({ "top_k": 1 }), json!({ "top_p": 1e-6 }), json!({ "min_p": 1 })] {
        assert_eq!(texts(strict)[0], usual);
    }
    // Words that were said are not said again.
    let fresh = texts(
        json!({ "temperature": 0, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 5 }),
    );
    let words: Vec<&str> = fresh[0].split(' ').collect();
    let different: std::collections::BTreeSet<&str> = words.iter().copied().collect();
    assert_eq!(words.len(), different.len(), "{fresh:?}");
    // The newer name of the count, and no name.
    let count = |more: Value| served.answer(PLAINLY, &question(more))["usage"]["completion_tokens"].clone();
    assert_eq!(count(json!({ "max_completion_tokens": 3 })), 3);
    assert_eq!(count(json!({ "max_tokens": null })), 16);
    served.end();
}

#[test]
fn probabilities_are_told_if_asked_for() {
    let served = serve(&PLAIN);
    let messages = json!([{ "role": "user", "content": "w5 w6" }]);
    let mut question = json!({ "messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 3 });
    let answer = served.answer(CHAT, &question);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &entry["token"]));
        let of = |i: usize| top[i]["logprob"].as_f64().unwrap();
        assert!(of(0) < 0.0 && of(0) >= of(1) && of(1) >= of(2), "{entry}");
        assert_eq!(entry["logprob"], top[0]["logprob"]);
    }
    question["stream"] = true.into();
    let streamed: Vec<Value> = served
        .post(CHAT, &question)
        .events()
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(&streamed, content);
    let plain =
        served.answer(PLAINLY, &json!({ "prompt": "w5", "max_tokens": 3, "temperature": 0, "logprobs": 2 }));
    let logprobs = &plain["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    served.end();
}

#[test]
fn a_prompt_is_read_once() {
    let served = serve(&PLAIN);
    let reused = |prompt: &[usize]| {
        let answer = served.answer(PLAINLY, &greedy(prompt, 6));
        let answered: Vec<usize> = text(&answer).split(' ').map(|word| word[1..].parse().unwrap()).collect();
        (answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(), answered)
    };
    let mut conversation = ids(4, 9);
    let (first, answer) = reused(&conversation);
    assert_eq!(first, 0);
    conversation.extend(answer);
    conversation.extend(ids(5, 4));
    // All but the answer's last id has been read.
    assert_eq!(reused(&conversation).0, 14);
    assert_eq!(reused(&conversation).0, 18, "all but the last id, which says what comes next");
    assert_eq!(reused(&ids(6, 8)).0, 0);
    // Another conversation has not cost the first its slot.
    assert_eq!(reused(&conversation).0, 18);
    assert_eq!(served.metric("prompt_tokens_reused_total"), (14 + 18 + 18) as f64);
    served.end();
}

#[test]
fn text_follows_a_grammar() {
    let served = serve(&Setting { letters: true, ..PLAIN });
    let asked = |more: Value| {
        let mut question = json!({ "prompt": "abc", "max_tokens": 60, "temperature": 1, "seed": 3 });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "kind": { "enum": ["cat", "dog"] },
            "age": { "type": "integer", "minimum": 0, "maximum": 20 },
        },
        "required": ["kind", "age"],
        "additionalProperties": false,
    });
    for seed in 0..10 {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "pet", "strict": true, "schema": schema } });
        for form in [json!({ "response_format": format }), json!({ "guided_json": schema })] {
            let mut question = asked(form);
            question["seed"] = seed.into();
            // Who likes blanks best, and may have as many as one likes, writes nothing else.
            question["logit_bias"] = json!({ "21": 100 });
            let answer = served.answer(PLAINLY, &question);
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            let pet: Value =
                serde_json::from_str(text(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert!(pet["kind"] == "cat" || pet["kind"] == "dog", "{pet}");
            assert!((0..=20).contains(&pet["age"].as_i64().unwrap()), "{pet}");
        }
        let mut question = asked(json!({ "guided_regex": "[a-c]{3}-[0-9]+z" }));
        question["seed"] = seed.into();
        let answer = served.answer(PLAINLY, &question);
        let (letters, rest) = text(&answer).split_once('-').unwrap_or_else(|| panic!("{answer}"));
        assert!(letters.len() == 3 && letters.chars().all(|letter| "abc".contains(letter)), "{answer}");
        let is_cut = answer["choices"][0]["finish_reason"] == "length";
        assert!(is_cut || rest.ends_with('z'), "{answer}");
        let answer =
            served.answer(PLAINLY, &asked(json!({ "guided_grammar": "start: \"x\" (\"yes\" | \"no\")" })));
        assert!(["xyes", "xno"].contains(&text(&answer)), "{answer}");
        let answer = served.answer(PLAINLY, &asked(json!({ "response_format": { "type": "json_object" } })));
        assert!(text(&answer).trim_start().starts_with('{'), "{answer}");
    }
    for (form, part) in [
        (json!({ "guided_regex": "(" }), "the grammar is not understood"),
        (json!({ "guided_grammar": "start: nothing" }), "the grammar is not understood"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } } }),
            "the grammar is not understood",
        ),
        (json!({ "response_format": { "type": "yaml" } }), "text, json_object or json_schema"),
        (json!({ "guided_regex": "a", "guided_json": {} }), "not several"),
    ] {
        let response = served.post(PLAINLY, &asked(form));
        assert_eq!(response.status, 400, "{}", response.body);
        let error = response.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        assert_eq!(error["param"], "response_format");
    }
    served.end();
}

/// As Qwen's template writes calls, and as Llama's does.
const TAGGED: &str = "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}<tool_call>\n\
    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>\
    {% endfor %}{% endfor %}";
const BARE: &str = "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}\
    {\"name\": \"{{ call.function.name }}\", \"parameters\": {{ call.function.arguments | tojson }}}\
    {% endfor %}{% endfor %}";

#[test]
fn functions_are_called_as_they_are_described() {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let sky = json!({
        "type": "object",
        "properties": { "d": { "enum": ["mon", "tue"] }, "h": { "type": "integer", "minimum": 0, "maximum": 23 } },
        "required": ["d", "h"],
        "additionalProperties": false,
    });
    let tools = json!([tool("sky", sky), tool("dice", json!({ "type": "object", "maxProperties": 0 }))]);
    let check = |call: &Value| {
        assert_eq!((call["type"].as_str(), call["id"].as_str().map(str::len)), (Some("function"), Some(9)));
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        match name.as_str() {
            "sky" => assert!(
                ["mon", "tue"].contains(&arguments["d"].as_str().unwrap())
                    && (0..24).contains(&arguments["h"].as_i64().unwrap())
            ),
            "dice" => assert_eq!(arguments, json!({})),
            other => panic!("{other}"),
        }
        name
    };
    for template in [TAGGED, BARE] {
        let served = serve(&Setting { letters: true, template: Some(template), ..PLAIN });
        let mut names = std::collections::BTreeSet::new();
        for seed in 0..12 {
            let mut question = json!({
                "messages": [{ "role": "user", "content": "abc" }], "tools": tools, "seed": seed,
                "tool_choice": "required", "parallel_tool_calls": false, "temperature": 3,
                // There is room for little.
                "logit_bias": { "21": -100 },
            });
            let answer = served.answer(CHAT, &question);
            let choice = &answer["choices"][0];
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &Value::Null)
            );
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            names.insert(check(&calls[0]));
            // The same, streamed: first the name, then the arguments bit by bit.
            question["stream"] = true.into();
            let (mut call, mut reason) = (json!({}), Value::Null);
            for event in served.post(CHAT, &question).events() {
                let choice = &event["choices"][0];
                assert!(choice["delta"]["content"].as_str().unwrap_or_default().is_empty(), "{event}");
                if let Some(delta) = choice["delta"]["tool_calls"].get(0) {
                    assert_eq!(delta["index"], 0);
                    if delta["id"].is_string() {
                        call = delta.clone();
                    } else {
                        let more = delta["function"]["arguments"].as_str().unwrap();
                        let arguments = call["function"]["arguments"].as_str().unwrap().to_owned() + more;
                        call["function"]["arguments"] = arguments.into();
                    }
                }
                reason = choice["finish_reason"].clone();
            }
            assert_eq!(reason, "tool_calls");
            assert_eq!(call["function"], calls[0]["function"]);
            // One that is named is the one that is called.
            question["stream"] = false.into();
            question["tool_choice"] = json!({ "type": "function", "function": { "name": "dice" } });
            let answer = served.answer(CHAT, &question);
            assert_eq!(check(&answer["choices"][0]["message"]["tool_calls"][0]), "dice");
            // As the model likes: once it opens a call, what follows is one.
            question["tool_choice"] = "auto".into();
            question["temperature"] = 2.into();
            if template == TAGGED {
                question["logit_bias"] = json!({ "21": -100, "48": 4 });
            }
            let choice = served.answer(CHAT, &question)["choices"][0].clone();
            for call in choice["message"]["tool_calls"].as_array().unwrap_or(&Vec::new()) {
                if choice["finish_reason"] == "tool_calls" {
                    check(call);
                    names.insert("freely".to_owned());
                }
            }
            // None may be called.
            question["tool_choice"] = "none".into();
            assert_eq!(served.answer(CHAT, &question)["choices"][0]["message"].get("tool_calls"), None);
        }
        let wanted = if template == TAGGED { 3 } else { 2 };
        assert!(names.len() >= wanted, "{names:?}");
        // What was called and what came of it goes back into the conversation.
        let call = json!({ "id": "abcdefghi", "type": "function", "function": { "name": "dice", "arguments": "{}" } });
        let messages = json!([
            { "role": "user", "content": "abc" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "abcdefghi", "content": "6" },
        ]);
        served.answer(CHAT, &json!({ "messages": messages, "tools": tools, "max_tokens": 3 }));
        for (more, param, part) in [
            (json!({ "tool_choice": "sometimes" }), "tool_choice", "none, auto, required"),
            (
                json!({ "tool_choice": { "function": { "name": "x" } } }),
                "tool_choice",
                "not among the `tools`",
            ),
            (json!({ "tools": [], "tool_choice": "required" }), "tool_choice", "there are no `tools`"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools", "a function with a name"),
        ] {
            let mut question = json!({ "messages": messages, "tools": tools });
            question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let response = served.post(CHAT, &question);
            let error = response.json()["error"].clone();
            assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{error}");
            assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        }
        served.end();
    }
    let served = serve(&PLAIN);
    let response =
        served.post(CHAT, &json!({ "messages": [{ "role": "user", "content": "w5" }], "tools": tools }));
    assert!(response.body.contains("this model's chat template knows no tools"), "{}", response.body);
    assert_eq!(served.post("/v1/embeddings", &json!({ "input": "w5" })).status, 404);
    served.end();
}

#[test]
fn responses_are_the_same_answers_in_another_shape() {
    let served = serve(&PLAIN);
    let mut question = json!({
        "instructions": "w20", "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "w21 w22" }] }],
        "max_output_tokens": 9, "temperature": 0, "ignore_eos": true, "store": false,
    });
    let whole = served.answer("/v1/responses", &question);
    let messages = json!([{ "role": "system", "content": "w20" }, { "role": "user", "content": "w21 w22" }]);
    let chat = json!({ "messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    let chat = served.answer(CHAT, &chat);
    assert_eq!(whole["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!((&whole["status"], &whole["usage"]["output_tokens"]), (&json!("incomplete"), &json!(9)));
    question["stream"] = true.into();
    let body = served.post("/v1/responses", &question).body;
    let events: Vec<Value> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == number));
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds.iter().map(|kind| kind.trim_start_matches("response.")).collect::<Vec<_>>(),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete",
        ]
    );
    let said: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, chat["choices"][0]["message"]["content"]);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input"),
    ] {
        let mut question = question.clone();
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = served.post("/v1/responses", &question);
        assert_eq!((response.status, response.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    served.end();
    // Calls, and what came of them.
    let served = serve(&Setting { letters: true, template: Some(TAGGED), ..PLAIN });
    let schema = json!({ "type": "object", "properties": { "d": { "enum": ["mon", "tue"] } }, "required": ["d"], "additionalProperties": false });
    let mut question = json!({
        "input": "abc",
        "tools": [{ "type": "function", "name": "sky", "parameters": schema, "strict": true }],
        "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": { "21": -100 },
    });
    let call = served.answer("/v1/responses", &question)["output"][0].clone();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("sky")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["mon", "tue"].contains(&arguments["d"].as_str().unwrap()));
    // The call and its result, sent back: no room is left for more than a few letters.
    question["input"] = json!([
        { "role": "user", "content": "abc" },
        { "type": "function_call", "call_id": "abcdefghi", "name": "sky", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "abcdefghi", "output": "a" },
    ]);
    question["tool_choice"] = "none".into();
    question["max_output_tokens"] = 3.into();
    let answer = served.answer("/v1/responses", &question);
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() >= 40, "{answer}");
    served.end();
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let served = serve(&PLAIN);
    let long: Vec<usize> = vec![5; 65];
    for (path, body, status, param, part) in [
        (PLAINLY, json!({}), 400, "prompt", "`prompt` is missing"),
        (PLAINLY, json!({ "prompt": "" , "max_tokens": 1 }), 200, "", ""),
        (PLAINLY, json!({ "prompt": [] }), 400, "prompt", "is empty"),
        (PLAINLY, json!({ "prompt": { "a": 1 } }), 400, "prompt", "a text, a list of token ids"),
        (PLAINLY, json!({ "prompt": [50] }), 400, "prompt", "outside the vocabulary"),
        (PLAINLY, json!({ "prompt": long }), 400, "prompt", "has 65 tokens, and the context here is 64"),
        (PLAINLY, json!({ "prompt": "w5", "echo": true }), 400, "echo", "`echo` is false"),
        (PLAINLY, json!({ "prompt": "w5", "temperature": "hot" }), 400, "temperature", "`temperature`"),
        (PLAINLY, json!({ "prompt": "w5", "temperature": -1 }), 400, "temperature", "0 to 100, not -1"),
        (PLAINLY, json!({ "prompt": "w5", "n": 1000 }), 400, "n", "`n` is 1 to 68"),
        (
            PLAINLY,
            json!({ "prompt": ["w5", "w6"], "n": 40 }),
            400,
            "n",
            "80 texts at once; the server takes 68",
        ),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": 0 }), 400, "max_tokens", "`max_tokens` is 1 to"),
        (PLAINLY, json!({ "prompt": "w5", "stop": [""] }), 400, "stop", "none of them empty"),
        (PLAINLY, json!({ "prompt": "w5", "logit_bias": { "x": 1 } }), 400, "logit_bias", "token ids"),
        (
            PLAINLY,
            json!({ "prompt": "w5", "stream_options": { "include_usage": true } }),
            400,
            "stream_options",
            "streamed",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "use_beam_search": true }),
            400,
            "use_beam_search",
            "is not understood here",
        ),
        (PLAINLY, json!({ "prompt": "w5", "model": "gpt-4" }), 404, "", "the model here is \"tiny\""),
        (
            PLAINLY,
            json!({ "prompt": "w5", "max_tokens": 1, "model": "small", "user": "me", "seed": null }),
            200,
            "",
            "",
        ),
        (CHAT, json!({}), 400, "messages", "`messages` is missing"),
        (CHAT, json!({ "messages": [] }), 400, "messages", "is empty"),
        (CHAT, json!({ "messages": [{ "content": "w5" }] }), 400, "messages", "role"),
        (
            CHAT,
            json!({ "messages": [{ "role": "tool", "content": "w5" }] }),
            400,
            "messages",
            "refuses this: no tools here",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            400,
            "messages",
            "this model reads text",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "w5" }] }], "max_tokens": 1 }),
            200,
            "",
            "",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "w5" }], "top_logprobs": 2 }),
            400,
            "top_logprobs",
            "comes with `logprobs`",
        ),
        ("/v1/nowhere", json!({}), 404, "", "there is nothing at /v1/nowhere"),
        ("/v1/models", json!({}), 405, "", "/v1/models does not take POST"),
    ] {
        let response = served.post(path, &body);
        assert_eq!(response.status, status, "{path} {body}: {}", response.body);
        if status != 200 {
            let error = response.json()["error"].clone();
            assert!(error["message"].as_str().unwrap().contains(part), "{path} {body}: {error}");
            assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{error}");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    for body in ["", "[1]", "{\"prompt\": ", "\u{0}"] {
        let response = send(served.address, "POST", PLAINLY, &[], body).response();
        assert_eq!(response.status, 400, "{body}");
        assert!(response.json()["error"]["message"].as_str().unwrap().contains("the body is not"), "{body}");
    }
    let huge = format!("{{\"prompt\": \"{}\"}}", "w5 ".repeat(1 << 20));
    assert_eq!(send(served.address, "POST", PLAINLY, &[], &huge).response().status, 413);
    served.end();
    let served = serve(&Setting { without_template: true, ..PLAIN });
    let response = served.post(CHAT, &json!({ "messages": [{ "role": "user", "content": "w5" }] }));
    assert_eq!(response.status, 400);
    assert!(response.body.contains("no chat template"), "{}", response.body);
    served.end();
}

#[test]
fn the_small_endpoints_answer() {
    let served = serve(&PLAIN);
    let page = served.get("/");
    assert!(page.head.contains("text/html") && page.body.contains("</html>"), "{}", page.head);
    assert!(!page.body.contains("http"), "the page asks nobody else for anything");
    assert_eq!(served.get("/health").json(), json!({ "status": "ok" }));
    assert_eq!(served.get("/ready").json(), json!({ "status": "ready" }));
    let models = served.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("tiny"), &json!("small")));
    assert_eq!(served.get("/v1/models/tiny").json()["context_length"], 64);
    assert_eq!(served.get("/v1/models/other").status, 404);
    let tokens = served.answer("/tokenize", &json!({ "prompt": "w5 w6" }));
    assert_eq!(tokens, json!({ "tokens": [1, 5, 6], "count": 3, "max_model_len": 64 }));
    let bare = served.answer("/tokenize", &json!({ "content": "w5 w6", "add_special_tokens": false }));
    assert_eq!(bare["tokens"], json!([5, 6]));
    let chat = served.answer("/tokenize", &json!({ "messages": [{ "role": "user", "content": "w5" }] }));
    assert_eq!(chat["tokens"], json!([1, 10, 5, 12]));
    assert_eq!(served.answer("/detokenize", &json!({ "tokens": [5, 6] }))["prompt"], "w5 w6");
    served.answer(PLAINLY, &json!({ "prompt": "w5 w6", "max_tokens": 3, "ignore_eos": true }));
    for (name, value) in
        [("tokens_total", 3.0), ("prompt_tokens_total", 3.0), ("texts_finished_total", 1.0), ("slots", 4.0)]
    {
        served.becomes(name, value);
    }
    served.end();
}

#[test]
fn only_who_may_gets_an_answer() {
    let served = serve(&Setting {
        keys: vec!["first".to_owned(), "second".to_owned()],
        origins: vec!["https://friend.example".to_owned()],
        ..PLAIN
    });
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        send(served.address, method, path, headers, "").response()
    };
    for (headers, status) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer third")], 401),
        (vec![("Authorization", "first")], 401),
        (vec![("Authorization", "Bearer second")], 200),
        (vec![("Authorization", "Bearer second"), ("Origin", "https://friend.example")], 200),
        (vec![("Authorization", "Bearer second"), ("Origin", "https://foe.example")], 403),
        (vec![("Authorization", "Bearer second"), ("Origin", "null")], 403),
        (
            vec![("Authorization", "Bearer second"), ("Host", "localhost"), ("Origin", "http://localhost")],
            200,
        ),
    ] {
        assert_eq!(ask("GET", "/v1/models", &headers).status, status, "{headers:?}");
    }
    assert_eq!(ask("GET", "/health", &[]).status, 200);
    assert_eq!(ask("GET", "/metrics", &[]).status, 401);
    let preflight = ask("OPTIONS", CHAT, &[("Origin", "https://friend.example")]);
    assert_eq!(preflight.status, 204);
    assert!(
        preflight.head.contains("access-control-allow-origin: https://friend.example"),
        "{}",
        preflight.head
    );
    assert_eq!(ask("OPTIONS", CHAT, &[("Origin", "https://foe.example")]).status, 403);
    served.end();
    // Without a key it matters by which name the server is asked: a page may have given this machine another.
    let served = serve(&Setting { origins: vec!["https://friend.example".to_owned()], ..PLAIN });
    for (host, status) in
        [("localhost:1", 200), ("127.0.0.1", 200), ("friend.example", 200), ("foe.example", 403)]
    {
        let response = send(served.address, "GET", "/v1/models", &[("Host", host)], "").response();
        assert_eq!(response.status, status, "{host}");
    }
    served.end();
}

#[test]
fn who_comes_when_all_places_are_taken_is_told_when_to_come_again() {
    let served = serve(&Setting { slots: 1, queue: 1, pace: 10, ..PLAIN });
    let mut first = served.ask(PLAINLY, &{
        let mut question = greedy(&ids(1, 3), 40);
        question["stream"] = true.into();
        question
    });
    first.event().unwrap();
    let second = served.ask(PLAINLY, &greedy(&ids(2, 3), 2));
    served.becomes("texts_waiting", 1.0);
    let third = served.post(PLAINLY, &greedy(&ids(3, 3), 2));
    assert_eq!(third.status, 429);
    assert!(third.head.to_lowercase().contains("retry-after: "), "{}", third.head);
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    assert_eq!(second.response().status, 200);
    assert_eq!(served.metric("requests_refused_total"), 1.0);
    assert_eq!(served.post(PLAINLY, &greedy(&ids(3, 3), 2)).status, 200);
    served.end();
}

#[test]
fn who_goes_away_leaves_a_slot_behind() {
    let served = serve(&Setting { slots: 1, pace: 30, ..PLAIN });
    for stream in [true, false] {
        let before = served.metric("texts_cancelled_total");
        let mut question = greedy(&ids(1, 3), 55);
        question["stream"] = stream.into();
        let mut asked = served.ask(PLAINLY, &question);
        if stream {
            asked.event().unwrap();
        }
        served.becomes("texts_active", 1.0);
        let waiting = served.ask(PLAINLY, &greedy(&ids(2, 3), 50));
        served.becomes("texts_waiting", 1.0);
        let (start, written) = (Instant::now(), served.metric("tokens_total"));
        drop(waiting);
        drop(asked);
        served.becomes("texts_cancelled_total", before + 2.0);
        served.becomes("texts_active", 0.0);
        let steps = served.metric("tokens_total") - written;
        assert!(steps < 20.0, "{steps} tokens were written to nobody in {:?}", start.elapsed());
    }
    // What it had read is not lost.
    let answer = served.answer(PLAINLY, &greedy(&ids(1, 3), 2));
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    served.end();
}

/// A prompt is read beside the rows of those who are written to, in the passes that these have anyway.
#[test]
fn a_long_prompt_keeps_nobody_waiting() {
    let served = serve(&Setting { slots: 2, pace: 15, ..PLAIN });
    let mut question = greedy(&ids(1, 3), 45);
    question["stream"] = true.into();
    let before = served.metric("passes_total");
    let mut asked = served.ask(PLAINLY, &question);
    asked.event().unwrap();
    let long = served.answer(PLAINLY, &greedy(&ids(2, 58), 2));
    assert_eq!(long["usage"]["completion_tokens"], 2);
    assert_eq!(served.metric("texts_active"), 1.0, "the first is still written to");
    while asked.event().is_some() {}
    // 46 passes for the first text; reading 58 ids by itself would have taken 8 more.
    assert!(served.metric("passes_total") - before <= 48.0);
    served.end();
}

#[test]
fn a_server_that_stops_lets_answers_come_to_their_end() {
    let mut served = serve(&Setting { slots: 2, pace: 5, ..PLAIN });
    let alone = text(&served.answer(PLAINLY, &greedy(&ids(1, 3), 40))).to_owned();
    let mut question = greedy(&ids(1, 3), 40);
    question["stream"] = true.into();
    let mut asked = served.ask(PLAINLY, &question);
    let mut said = text(&serde_json::from_str(&asked.event().unwrap()).unwrap()).to_owned();
    served.stop.stop();
    let start = Instant::now();
    while TcpStream::connect(served.address).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
    while let Some(event) = asked.event() {
        if event != "[DONE]" {
            said.push_str(text(&serde_json::from_str(&event).unwrap()));
        }
    }
    assert_eq!(said, alone);
    served.thread.take().unwrap().join().unwrap().unwrap();
}

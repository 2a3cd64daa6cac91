//! Responses: text, streaming, stop conditions and sampling options, independent of concurrent requests.

use crate::served::*;
use crate::support::halving::Halving;
use crate::support::reference::Reference;
use serde_json::{Value, json};

#[test]
fn greedy_answers_match_the_model() {
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

/// Many concurrent requests with prompts of all lengths, some streamed, some with a common prefix: each gets
/// the same response as without the others.

#[test]
fn an_answer_does_not_depend_on_concurrent_requests() {
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
    // Alone: each request on a new server, without reuse.
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
    assert!(served.metric("prompt_tokens_cached_total") > 0.0);
    // Passes had rows of several requests.
    assert!(served.metric("batch_tokens_total") > 2.0 * served.metric("forward_passes_total"));
    served.end();
}

#[test]
fn a_stream_has_the_same_text_as_a_single_response() {
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
    let streamed: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(streamed, message["content"]);
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
    // Without the option there is no usage.
    question["stream_options"] = Value::Null;
    assert!(served.post(CHAT, &question).events().iter().all(|event| event.get("usage").is_none()));
    served.end();
}

#[test]
fn answers_end_for_the_reported_reason() {
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
    // End of text: some seed samples the EOS token.
    let ended = (0..300).find_map(|seed| {
        let question = json!({ "prompt": [3, 4], "max_tokens": 50, "temperature": 3, "seed": seed });
        let answer = served.answer(PLAINLY, &question);
        (answer["choices"][0]["finish_reason"] == "stop").then_some(answer)
    });
    assert!(!text(&ended.expect("one of 300 texts ends")).contains("</s>"));
    served.end();
}

#[test]
fn generation_follows_the_request_parameters() {
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
    // The same seed gives the same choices; the n choices differ, and the first equals a single one.
    let three = texts(json!({ "seed": 5, "n": 3 }));
    assert_eq!(three, texts(json!({ "seed": 5, "n": 3 })));
    assert_eq!(three[..1], texts(json!({ "seed": 5 })));
    assert!(three[0] != three[1] && three[1] != three[2]);
    assert_ne!(texts(json!({})), texts(json!({})), "without a seed texts are new ones");
    // Several prompts, each with its choices in order.
    assert_eq!(texts(json!({ "prompt": ["w5 w6", "w7"], "n": 2, "seed": 1 })).len(), 4);
    // A bias that dominates all logits, and one that excludes a token.
    assert_eq!(texts(json!({ "logit_bias": { "33": 100 } })), [["w33"; 8].join(" ")]);
    let usual = texts(json!({ "temperature": 0 }))[0].clone();
    let first = usual.split(' ').next().unwrap();
    let other = texts(json!({ "temperature": 0, "logit_bias": { &first[1..]: -100 } }))[0].clone();
    assert!(!other.split(' ').any(|word| word == first), "{other}");
    // With `top_k` 1, sampling is greedy.
    for strict in [json!({ "top_k": 1 }), json!({ "top_p": 1e-6 }), json!({ "min_p": 1 })] {
        assert_eq!(texts(strict)[0], usual);
    }
    // The penalty prevents repeated words.
    let fresh = texts(
        json!({ "temperature": 0, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 5 }),
    );
    let words: Vec<&str> = fresh[0].split(' ').collect();
    let different: std::collections::BTreeSet<&str> = words.iter().copied().collect();
    assert_eq!(words.len(), different.len(), "{fresh:?}");
    // The newer name of `max_tokens`, and neither.
    let count = |more: Value| served.answer(PLAINLY, &question(more))["usage"]["completion_tokens"].clone();
    assert_eq!(count(json!({ "max_completion_tokens": 3 })), 3);
    assert_eq!(count(json!({ "max_tokens": null })), 16);
    served.end();
}

/// Prompts that wrap the ring of a layer and ones that do not, recurrent state, more and fewer choices than
/// slots, sampled and greedy.
#[test]
fn several_choices_prefill_their_prompt_once() {
    for (slots, length, temperature) in [(4, 140, 1.2), (4, 30, 1.2), (2, 140, 1.2), (4, 140, 0.0)] {
        three_texts(serve, slots, length, temperature);
        three_texts(|setting| serve_model(Halving::load, setting), slots, length, temperature);
    }
}

fn three_texts(serve: fn(&Setting) -> Served, slots: u32, length: usize, temperature: f64) {
    let served = serve(&Setting { slots, context: 170, ..PLAIN });
    let question = |seed: u32, texts: u32| {
        let mut question = greedy(&ids(3, length), 20);
        question["temperature"] = temperature.into();
        question["seed"] = seed.into();
        question["n"] = texts.into();
        question
    };
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let together = served.answer(PLAINLY, &question(7, 3));
    assert_eq!(together["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let (rows, reused) = (served.metric("batch_tokens_total"), served.metric("prompt_tokens_cached_total"));
    assert_eq!(reused as usize, 2 * (length - 1), "{slots} slots: the second and the third read its last id");
    assert!(rows as usize <= length + 2 + 3 * 20, "{slots} slots: {rows} rows");
    let alone: Vec<String> = (7..10)
        .flat_map(|seed| {
            let served = serve(&Setting { slots, context: 170, ..PLAIN });
            let answer = texts(&served.answer(PLAINLY, &question(seed, 1)));
            served.end();
            answer
        })
        .collect();
    assert_eq!(texts(&together), alone, "{slots} slots, {length} ids, temperature {temperature}");
    served.end();
}

/// A request whose prefix another request is processing waits for it, and processes only the rest.
#[test]
fn common_prefixes_are_prefilled_once() {
    let served = serve(&Setting { slots: 4, context: 600, pace: 5, ..PLAIN });
    let common = ids(1, 80);
    let questions: Vec<Vec<usize>> = (2..6).map(|seed| [common.clone(), ids(seed, 9)].concat()).collect();
    let pending: Vec<_> = questions.iter().map(|it| served.ask(PLAINLY, &greedy(it, 12))).collect();
    let answers: Vec<Value> = pending.into_iter().map(|pending| pending.response().json()).collect();
    assert_eq!(served.metric("prompt_tokens_cached_total"), 240.0, "three times what they have in common");
    let mut cached: Vec<u64> = answers
        .iter()
        .map(|answer| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
        .collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 80, 80, 80]);
    for (question, answer) in questions.iter().zip(&answers) {
        let alone = serve(&Setting { slots: 4, context: 170, ..PLAIN });
        assert_eq!(text(answer), text(&alone.answer(PLAINLY, &greedy(question, 12))));
        alone.end();
    }
    // The prefix of a running request can be copied too.
    let mut long = greedy(&questions[0], 500);
    long["stream"] = true.into();
    let mut pending = served.ask(PLAINLY, &long);
    pending.event().unwrap();
    let before = served.metric("prompt_tokens_cached_total");
    served.answer(PLAINLY, &greedy(&[questions[0].clone(), ids(8, 3)].concat(), 2));
    // The first request is still running.
    served.becomes("requests_running", 1.0);
    assert_eq!(served.metric("prompt_tokens_cached_total") - before, 89.0);
    while pending.event().is_some() {}
    served.end();
}

#[test]
fn repeated_prompts_are_prefilled_once() {
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
    // All tokens are cached except the last one of the response.
    assert_eq!(reused(&conversation).0, 14);
    assert_eq!(reused(&conversation).0, 18, "all but the last id, which says what comes next");
    assert_eq!(reused(&ids(6, 8)).0, 0);
    // Another conversation did not evict the slot of the first.
    assert_eq!(reused(&conversation).0, 18);
    assert_eq!(served.metric("prompt_tokens_cached_total"), (14 + 18 + 18) as f64);
    served.end();
}

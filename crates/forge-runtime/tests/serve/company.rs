//! Several clients at once, and their coming and going.

use crate::served::*;
use serde_json::Value;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    // The first is still written to.
    served.becomes("texts_active", 1.0);
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

/// What reads experts from a disk may fail in the middle of a pass, and so in the middle of a text.
#[test]
fn a_device_that_fails_ends_who_is_written_to_and_the_server_goes_on() {
    let broken = Arc::new(AtomicBool::new(false));
    let served = serve(&Setting { slots: 2, pace: 10, broken: Some(broken.clone()), ..PLAIN });
    let question = greedy(&ids(1, 3), 30);
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    let whole = text(served.answer(PLAINLY, &question));
    let (one, other) = (served.ask(PLAINLY, &question), served.ask(PLAINLY, &greedy(&ids(2, 3), 30)));
    served.becomes("texts_active", 2.0);
    broken.store(true, Ordering::Relaxed);
    for asked in [one, other] {
        let response = asked.response();
        assert_eq!(response.status, 500);
        assert!(response.json()["error"]["message"].as_str().unwrap().contains("the disk is broken"));
    }
    assert_eq!(served.metric("texts_failed_total"), 2.0);
    assert_eq!(served.get("/ready").status, 200);
    broken.store(false, Ordering::Relaxed);
    assert_eq!(text(served.answer(PLAINLY, &question)), whole);
    served.end();
}

/// What was read before the first text, as the server got ready, was for nobody's.
#[test]
fn what_was_read_of_experts_is_counted() {
    let served = serve(&PLAIN);
    assert_eq!(served.metric("experts_asked_total"), 0.0);
    served.answer(PLAINLY, &greedy(&ids(1, 3), 2));
    let (passes, rows) = (served.metric("passes_total"), served.metric("pass_rows_total"));
    assert!(passes > 1.0);
    for (name, of_pass) in [
        ("asked", OF_PASS.asked as f64),
        ("found", OF_PASS.found as f64),
        ("foreseen", OF_PASS.foreseen as f64),
        ("wanted_bytes", OF_PASS.wanted as f64),
        ("bytes", OF_PASS.bytes as f64),
        ("stalled_seconds", OF_PASS.stalled.as_secs_f64()),
    ] {
        assert_eq!(served.metric(&format!("experts_{name}_total")), passes * of_pass, "{name}");
    }
    assert_eq!(served.metric("experts_disk_bytes_per_second"), DISK);
    let permitted = served.metric("experts_rows_per_second_permitted");
    assert_eq!(permitted, DISK * rows / (passes * OF_PASS.wanted as f64));
    let reached = served.metric("experts_rows_per_second_reached_ratio");
    assert!((reached * served.metric("pass_seconds_total") * permitted / rows - 1.0).abs() < 1e-9);
    served.end();
}

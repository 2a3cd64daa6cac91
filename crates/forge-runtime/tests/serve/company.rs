//! Concurrent clients, and clients that connect and disconnect.

use crate::runtime::device::RunAhead;
use crate::served::*;
use serde_json::Value;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn full_queues_answer_with_retry_after() {
    let served = serve(&Setting { slots: 1, queue: 1, pace: 10, ..PLAIN });
    let mut first = served.ask(PLAINLY, &{
        let mut question = greedy(&ids(1, 3), 40);
        question["stream"] = true.into();
        question
    });
    first.event().unwrap();
    let second = served.ask(PLAINLY, &greedy(&ids(2, 3), 2));
    served.becomes("requests_waiting", 1.0);
    let third = served.post(PLAINLY, &greedy(&ids(3, 3), 2));
    assert_eq!(third.status, 429);
    assert!(third.head.to_lowercase().contains("retry-after: "), "{}", third.head);
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    assert_eq!(second.response().status, 200);
    assert_eq!(served.metric("requests_rejected_total"), 1.0);
    assert_eq!(served.post(PLAINLY, &greedy(&ids(3, 3), 2)).status, 200);
    served.end();
}

#[test]
fn idle_servers_keep_the_devices_memory_resident() {
    let renewals = Arc::new(AtomicUsize::new(0));
    let served = serve(&Setting { renewals: Some(renewals.clone()), ..PLAIN });
    let before = renewals.load(Ordering::Relaxed);
    let start = Instant::now();
    while renewals.load(Ordering::Relaxed) < before + 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "residency is not renewed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() > Duration::from_millis(900), "renewed 3 times within {:?}", start.elapsed());
    assert_eq!(served.post(PLAINLY, &greedy(&ids(1, 3), 2)).status, 200);
    served.end();
}

#[test]
fn a_disconnected_client_frees_its_slot() {
    let served = serve(&Setting { slots: 1, pace: 30, ..PLAIN });
    for stream in [true, false] {
        let before = served.metric("requests_cancelled_total");
        let mut question = greedy(&ids(1, 3), 55);
        question["stream"] = stream.into();
        let mut pending = served.ask(PLAINLY, &question);
        if stream {
            pending.event().unwrap();
        }
        served.becomes("requests_running", 1.0);
        let waiting = served.ask(PLAINLY, &greedy(&ids(2, 3), 50));
        served.becomes("requests_waiting", 1.0);
        let (start, written) = (Instant::now(), served.metric("generation_tokens_total"));
        drop(waiting);
        drop(pending);
        served.becomes("requests_cancelled_total", before + 2.0);
        served.becomes("requests_running", 0.0);
        let steps = served.metric("generation_tokens_total") - written;
        assert!(steps < 20.0, "{steps} tokens were generated after the disconnect, in {:?}", start.elapsed());
    }
    // The processed prompt of the disconnected client is reused.
    let answer = served.answer(PLAINLY, &greedy(&ids(1, 3), 2));
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    served.end();
}

/// Mixed batches: a prompt is processed in the same passes as the decode rows of running requests.

#[test]
fn a_long_prompt_does_not_delay_other_requests() {
    let served = serve(&Setting { slots: 2, pace: 15, ..PLAIN });
    let mut question = greedy(&ids(1, 3), 45);
    question["stream"] = true.into();
    let before = served.metric("forward_passes_total");
    let mut pending = served.ask(PLAINLY, &question);
    pending.event().unwrap();
    let long = served.answer(PLAINLY, &greedy(&ids(2, 58), 2));
    assert_eq!(long["usage"]["completion_tokens"], 2);
    // The first request is still running.
    served.becomes("requests_running", 1.0);
    while pending.event().is_some() {}
    // 46 passes for the first request; separate prefill of 58 tokens would take 8 more.
    assert!(served.metric("forward_passes_total") - before <= 48.0);
    served.end();
}

#[test]
fn shutdown_completes_running_requests() {
    let mut served = serve(&Setting { slots: 2, pace: 5, ..PLAIN });
    let alone = text(&served.answer(PLAINLY, &greedy(&ids(1, 3), 40))).to_owned();
    let mut question = greedy(&ids(1, 3), 40);
    question["stream"] = true.into();
    let mut pending = served.ask(PLAINLY, &question);
    let mut streamed = text(&serde_json::from_str(&pending.event().unwrap()).unwrap()).to_owned();
    served.stop.stop();
    let start = Instant::now();
    while TcpStream::connect(served.address).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
    while let Some(event) = pending.event() {
        if event != "[DONE]" {
            streamed.push_str(text(&serde_json::from_str(&event).unwrap()));
        }
    }
    assert_eq!(streamed, alone);
    served.thread.take().unwrap().join().unwrap().unwrap();
}

/// Expert streaming may fail in the middle of a pass, and so in the middle of a response.
#[test]
fn a_device_failure_ends_running_requests_and_the_server_continues() {
    let disk_fails = Arc::new(AtomicBool::new(false));
    let served = serve(&Setting { slots: 2, pace: 10, disk_fails: Some(disk_fails.clone()), ..PLAIN });
    let question = greedy(&ids(1, 3), 30);
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    let whole = text(served.answer(PLAINLY, &question));
    let (one, other) = (served.ask(PLAINLY, &question), served.ask(PLAINLY, &greedy(&ids(2, 3), 30)));
    served.becomes("requests_running", 2.0);
    disk_fails.store(true, Ordering::Relaxed);
    for pending in [one, other] {
        let response = pending.response();
        assert_eq!(response.status, 500);
        assert!(response.json()["error"]["message"].as_str().unwrap().contains("the disk is broken"));
    }
    assert_eq!(served.metric("requests_failed_total"), 2.0);
    assert_eq!(served.get("/ready").status, 200);
    disk_fails.store(false, Ordering::Relaxed);
    assert_eq!(text(served.answer(PLAINLY, &question)), whole);
    served.end();
}

/// Reads during the server's warm-up belong to no request.
#[test]
fn expert_reads_are_counted() {
    let served = serve(&PLAIN);
    assert_eq!(served.metric("expert_cache_requests_total"), 0.0);
    served.answer(PLAINLY, &greedy(&ids(1, 3), 2));
    let (passes, rows) = (served.metric("forward_passes_total"), served.metric("batch_tokens_total"));
    assert!(passes > 1.0);
    for (name, of_pass) in [
        ("requests", OF_PASS.requests as f64),
        ("hits", OF_PASS.hits as f64),
        ("prefetch_hits", OF_PASS.prefetch_hits as f64),
        ("miss_bytes", OF_PASS.miss_bytes as f64),
        ("read_bytes", OF_PASS.read_bytes as f64),
        ("stall_seconds", OF_PASS.stall_time.as_secs_f64()),
    ] {
        assert_eq!(served.metric(&format!("expert_cache_{name}_total")), passes * of_pass, "{name}");
    }
    assert_eq!(served.metric("expert_disk_bytes_per_second"), DISK);
    let permitted = served.metric("expert_disk_bound_tokens_per_second");
    assert_eq!(permitted, DISK * rows / (passes * OF_PASS.miss_bytes as f64));
    let reached = served.metric("expert_disk_bound_ratio");
    assert!((reached * served.metric("forward_seconds_total") * permitted / rows - 1.0).abs() < 1e-9);
    served.end();
}

/// What a client sees must not depend on how far the device runs ahead of the host: alone, with a stop string, until the
/// context is full, and joined by another client.
#[test]
fn answers_do_not_depend_on_run_ahead() {
    let observed = |run_ahead| {
        let served = serve(&Setting { run_ahead, pace: 1, ..PLAIN });
        let mut answers = Vec::new();
        let mut sampled = greedy(&ids(4, 3), 30);
        sampled["temperature"] = 1.0.into();
        sampled["seed"] = 7.into();
        let whole = served.answer(PLAINLY, &greedy(&ids(1, 3), 30));
        let word = text(&whole).split_whitespace().nth(9).unwrap().to_owned();
        let mut stopped = greedy(&ids(1, 3), 30);
        stopped["stop"] = word.into();
        for question in [sampled, stopped, greedy(&ids(5, 3), 61), greedy(&ids(1, 3), 1)] {
            answers.push(served.answer(PLAINLY, &question)["choices"][0].clone());
        }
        let alone = served.passes.load(Ordering::Relaxed);
        // The second client arrives while the first one's tokens are computed ahead.
        let mut first = served.ask(PLAINLY, &{
            let mut question = greedy(&ids(6, 3), 50);
            question["stream"] = true.into();
            question
        });
        let mut pieces = String::new();
        let mut second = None;
        while let Some(event) = first.event() {
            let event: Value = serde_json::from_str(&event).unwrap_or_default();
            pieces += event["choices"][0]["text"].as_str().unwrap_or_default();
            second.get_or_insert_with(|| served.ask(PLAINLY, &greedy(&ids(7, 20), 20)));
        }
        let second = second.unwrap().response().json();
        answers.extend([whole["choices"][0].clone(), pieces.into(), second["choices"][0].clone()]);
        // The processed tokens of an ended sequence are reused.
        let longer = [ids(6, 3), vec![0]].concat();
        let next = served.answer(PLAINLY, &greedy(&longer, 2));
        answers.push(next["usage"]["prompt_tokens_details"]["cached_tokens"].clone());
        served.end();
        (answers, alone)
    };
    let (expected, separate) = observed(None);
    for run_ahead in [(4, 2), (1, 2), (3, 3)] {
        let run_ahead = RunAhead { tokens_per_pass: run_ahead.0, passes: run_ahead.1 };
        let (answers, passes) = observed(Some(run_ahead));
        assert_eq!(answers, expected, "{run_ahead:?}");
        let is_ahead = 2 * passes < separate;
        assert!(is_ahead || run_ahead.tokens_per_pass == 1, "{passes} passes instead of {separate}");
    }
}

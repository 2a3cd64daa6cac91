//! The host code for Metal, executed: the runtime's `metal` as it is, over the emulated Metal of `forge-emulation`, whose kernels are
//! those of each model's kernels.metal.

use crate::logits::{bound, golden, is_restretched};
use forge_runtime::draw::Draw;
use forge_runtime::sampler::Sampling;
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Mutex;
use tests::emulated::{PLANTED, Planted, SKEWED};
use tests::{Built, distance, emulated, ids, model, numbers, run};

/// A text that a model is to write.
#[derive(Clone)]
struct Text {
    ids: Vec<u32>,
    count: usize,
    context: usize,
    /// Ids of a pass, and passes that have begun before the host looks at the first.
    lead: (u32, usize),
    /// How ids are drawn, if by chance.
    draw: Option<Draw>,
    /// Whether the host draws them.
    on_host: bool,
}

impl Text {
    /// The most probable ids.
    fn greedy(ids: Vec<u32>, count: usize, context: usize, lead: (u32, usize)) -> Text {
        Text { ids, count, context, lead, draw: None, on_host: false }
    }
}

/// The host looks at each id before the next; and it is behind by as many as there can be.
const LEADS: [(u32, usize); 2] = [(1, 1), (8, 2)];

/// What came of a job with a model on a host.
fn drive(built: &Built, host: &str, texts: &[Text], executed: bool) -> Value {
    drive_skewed(built, (host, None), texts, executed)
}

/// The same, with a fault in what the host is told.
fn drive_skewed(built: &Built, (host, skew): (&str, Option<&str>), texts: &[Text], executed: bool) -> Value {
    let text = |text: &Text| {
        let Text { ids, count, context, lead, draw, on_host } = text;
        json!({
            "ids": ids, "count": count, "context": context, "lead": lead, "executed": executed,
            "draw": draw.map(|draw| draw.words()), "on_host": on_host,
        })
    };
    let texts: Vec<Value> = texts.iter().map(text).collect();
    let job = json!({ "model": built.name(), "host": host, "skew": skew, "texts": texts });
    let output = run(Command::new(emulated().1).arg(job.to_string()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// For each model, the complaints that `check` has; as many at a time as the machine does at once.
fn every_model(check: impl Fn(&Built) -> Vec<String> + Sync) {
    let (complaints, models) = (Mutex::new(Vec::new()), Mutex::new(emulated().0.into_iter()));
    let next = || models.lock().expect("nobody panics with it").next();
    let work = || {
        while let Some(built) = next() {
            let found = check(built).into_iter().map(|complaint| format!("{}: {complaint}", built.name()));
            complaints.lock().expect("nobody panics with it").extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let complaints = complaints.into_inner().expect("nobody panicked with it");
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Whether positions are turned by how long a slot is.
fn is_stretched(name: &str) -> bool {
    let text = std::fs::read_to_string(model(name).join("config.json")).expect("a model has config.json");
    ["\"dynamic\"", "\"longrope\""].iter().any(|kind| text.contains(kind))
}

#[test]
fn every_model_writes_through_the_emulated_metal_as_the_reference() {
    every_model(|built| {
        let prompts = golden(&built.model);
        // Where positions are turned by a slot's context, the reference's logits are of a slot that its prompt fills.
        let alone = usize::from(is_stretched(&built.model));
        let each = alone + LEADS.len();
        let texts: Vec<Text> = prompts
            .iter()
            .flat_map(|(ids, greedy, _)| {
                let (ids, context) = (ids.clone(), ids.len() + greedy.len());
                let whole = LEADS.map(|lead| Text::greedy(ids.clone(), greedy.len(), context, lead));
                let beginning = Text::greedy(ids.clone(), 0, ids.len(), LEADS[0]);
                std::iter::once(beginning).filter(move |_| alone == 1).chain(whole)
            })
            .collect();
        let found = drive(built, "whole", &texts, true);
        let found = found["texts"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), texts.len());
        let is_wrong = |text: &&Value| !text["error"].is_null() || text["complaints"] != json!([]);
        let told =
            found.iter().filter(is_wrong).map(|text| format!("{}, {}", text["error"], text["complaints"]));
        let mut complaints: Vec<String> = told.collect();
        if !complaints.is_empty() {
            return complaints;
        }
        for ((prompt, greedy, logits), found) in prompts.iter().zip(found.chunks(each)) {
            let distance = distance(&numbers(&found[0]["logits"]), logits);
            println!("{} {} ids: {distance:.1e}", built.name(), prompt.len());
            if distance > bound(built) {
                complaints
                    .push(format!("logits after {} ids are {distance:.1e} deviations off", prompt.len()));
            }
            for (found, lead) in found[alone..].iter().zip(LEADS) {
                let written = ids(&found["ids"]);
                if written != *greedy && !is_restretched(&built.model, prompt.len() + greedy.len()) {
                    complaints.push(format!("{written:?} is not {greedy:?}, ahead by {lead:?}"));
                }
            }
        }
        complaints
    });
}

/// By the same settings and seed, whoever draws and however far it is ahead; of logits of the same device.
#[test]
fn the_emulated_metal_draws_what_the_host_draws() {
    every_model(|built| {
        let plain = Sampling::default();
        let settings = [
            Sampling { temperature: 2.5, ..plain.clone() },
            Sampling { temperature: 1.5, top_k: 20, top_p: 0.9, min_p: 0.02, ..plain },
        ];
        let count = 18;
        let texts = |sampling: &Sampling| {
            let (ids, draw) = (vec![1, 2, 3], Some(sampling.draw(5, 0)));
            let text = |lead| Text { draw, ..Text::greedy(ids.clone(), count, ids.len() + count, lead) };
            [Text { on_host: true, ..text(LEADS[0]) }, text(LEADS[0]), text(LEADS[1])]
        };
        let texts: Vec<Text> = settings.iter().flat_map(texts).collect();
        let found = drive(built, "whole", &texts, true);
        let found = found["texts"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), texts.len());
        let is_wrong = |text: &&Value| !text["error"].is_null() || text["complaints"] != json!([]);
        let mut complaints: Vec<String> = found.iter().filter(is_wrong).map(Value::to_string).collect();
        for of_settings in found.chunks(3) {
            let [host, one, many] = [0, 1, 2].map(|text| ids(&of_settings[text]["ids"]));
            if host.len() != count || host != one || host != many {
                complaints.push(format!("the host draws {host:?}, the device {one:?} and {many:?}"));
            }
        }
        complaints
    });
}

#[test]
fn ids_are_as_many_dispatches_and_barriers_as_info_tells_and_a_barrier_stands_between_those_of_a_pass() {
    every_model(|built| {
        let info = built.json(&["info", "--json", "--context", "32"]);
        let told = ["dispatches", "barriers"].map(|what| info["decode"][what].as_u64().expect("it is told"));
        let check = |(lead, draw): ((u32, usize), Option<Draw>)| {
            let text = Text { draw, ..Text::greedy(vec![1, 2, 3], 22, 32, lead) };
            let found = drive(built, "whole", &[text], false);
            let notes = found["texts"][0]["passes"].as_array().cloned().unwrap_or_default();
            let sum = |what: &str| notes.iter().skip(1).filter_map(|note| note[what].as_u64()).sum::<u64>();
            let ids = 21;
            let passes = u64::div_ceil(ids, lead.0.into());
            let expected = [passes, ids * told[0], ids * told[1] + ids - passes];
            let counted = ["command_buffers", "dispatches", "barriers"].map(sum);
            (counted != expected)
                .then(|| format!("ahead by {lead:?}: {counted:?} is not {expected:?}, {found}"))
        };
        // What draws an id is in the place of what finds the most probable one.
        let draws = [None, Some(Sampling::default().draw(1, 0))];
        LEADS.into_iter().flat_map(|lead| draws.map(|draw| (lead, draw))).filter_map(check).collect()
    });
}

/// Kernels are not executed here: only the host's objects are counted.
#[test]
fn no_object_is_left_of_a_thousand_tokens() {
    let (models, _) = emulated();
    let Some(built) = models.first() else { return };
    for lead in LEADS {
        let text = Text::greedy(vec![1, 2, 3], 1001, 200, lead);
        let found = drive(built, "whole", &[text], false);
        let text = &found["texts"][0];
        assert_eq!((&text["complaints"], &text["error"]), (&json!([]), &Value::Null));
        let notes = text["passes"].as_array().expect("passes are listed");
        assert_eq!(notes.len(), 1001);
        let objects: Vec<u64> = notes.iter().filter_map(|note| note["objects"].as_u64()).collect();
        // A command buffer for each pass that is on its way when the host has looked at one.
        let most = objects[0] + lead.1 as u64 - 1;
        assert!(objects.iter().all(|count| (objects[0]..=most).contains(count)), "{objects:?}");
        assert_eq!(objects[1000], objects[0], "nothing is on its way");
        assert_eq!(found["living"], json!({}), "objects are left when the device is gone");
    }
}

#[test]
fn every_fault_planted_in_the_host_is_found() {
    let (models, _) = emulated();
    let built =
        models.iter().find(|built| built.model == "llama").or(models.first()).expect("there is a model");
    let text = Text::greedy((1..8).collect(), 7, 16, (2, 2));
    let whole = drive(built, "whole", std::slice::from_ref(&text), true);
    assert_eq!(whole["texts"][0]["complaints"], json!([]), "before anything is planted");
    let missed: Vec<String> = PLANTED
        .iter()
        .filter_map(|planted| {
            let said = said(&drive(built, planted.name, std::slice::from_ref(&text), true), &whole);
            println!("{}: {}", planted.name, said.chars().take(300).collect::<String>());
            let Planted { name, found, .. } = planted;
            (!said.contains(found)).then(|| format!("{name} should be found by {found:?}: {said}"))
        })
        .collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
    for (skew, found) in SKEWED {
        let job = drive_skewed(built, ("whole", Some(skew)), std::slice::from_ref(&text), true);
        let said = said(&job, &whole);
        assert!(said.contains(found), "{skew} should be found by {found:?}: {said}");
    }
}

/// What shows that a host is not whole.
fn said(found: &Value, whole: &Value) -> String {
    let (text, right) = (&found["texts"][0], &whole["texts"][0]);
    let mut said: Vec<String> = Vec::new();
    said.extend(text["error"].as_str().map(str::to_owned));
    said.extend(
        text["complaints"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned),
    );
    if text["error"].is_null() && [&text["logits"], &text["ids"]] != [&right["logits"], &right["ids"]] {
        said.push("other numbers".to_owned());
    }
    let objects = |found: &Value| found["passes"].as_array()?.last()?["objects"].as_u64();
    if objects(text) > objects(right) {
        said.push("objects grow".to_owned());
    }
    said.join("; ")
}

//! Fuzz tests of a checkpoint's files: any content is used or rejected, without a panic, without a hang, and
//! with no more memory than the file's size plus 500 MB.
//!
//! A target is a kind of file: how such files are mutated, and what checks them. Each runs its regression
//! seeds (`seeds/<target>`, each of which failed once), the files of the repository's models, and [`MUTANTS`]
//! mutants of both. A mutant is determined by the target's name and its index, so runs are reproducible.
//!
//! The file under test is in the build's temporary directory, and a failure prints its path. If the process
//! dies, as by a stack overflow, the file remains. Before fixing a failure, move the file to the target's
//! seeds. `FORGE_FUZZ=100000` tests that many mutants instead.

mod check;
mod corpus;
mod limits;
mod mutate;

use corpus::{models, seeds};
use mutate::{Random, json, mutated_bytes, mutated_json};
use std::path::{Path, PathBuf};

/// Mutants per target, unless `FORGE_FUZZ` sets another number.
const MUTANTS: u64 = 10_000;

/// One of this many accepted configurations is also planned, because planning dominates the time.
const PLAN_INTERVAL: u64 = 20;

/// Makes a mutant of files.
type Mutate<'a> = dyn Fn(&mut Random, &[Vec<u8>]) -> Vec<u8> + 'a;

/// A kind of file.
struct Target<'a> {
    name: &'static str,
    /// The file's name in a checkpoint.
    file: &'static str,
    /// Files to make mutants of.
    corpus: Vec<Vec<u8>>,
    mutate: &'a Mutate<'a>,
    /// The test of a file, which is the only one in its directory. The number is the mutant's index, or 0 for
    /// seeds.
    check: &'a dyn Fn(&Path, &[u8], u64),
}

impl Target<'_> {
    fn run(mut self) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(self.name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let seeds = seeds(self.name);
        self.corpus.extend(seeds.iter().map(|(_, bytes)| bytes.clone()));
        let mut failed = 0;
        let mut attempt = |what: &str, bytes: &[u8], number: u64| {
            let path = folder.join(self.file);
            std::fs::write(&path, bytes).unwrap();
            if let Err(fault) =
                limits::run_limited(&path, bytes.len(), || (self.check)(&folder, bytes, number))
            {
                failed += 1;
                let kept = folder.join(format!("{failed}.{}", self.file));
                std::fs::copy(&path, &kept).unwrap();
                eprintln!("{}, {what}: {fault}: {}", self.name, kept.display());
            }
        };
        for (name, bytes) in &seeds {
            attempt(&format!("seed {name}"), bytes, 0);
        }
        for (number, bytes) in self.corpus.iter().enumerate() {
            attempt("a file as it is", bytes, number as u64);
        }
        let mutants = std::env::var("FORGE_FUZZ").map_or(MUTANTS, |count| count.parse().unwrap());
        for number in 0..mutants {
            let bytes = (self.mutate)(&mut Random::new(self.name, number), &self.corpus);
            attempt(&format!("mutant {number}"), &bytes, number);
        }
        assert_eq!(failed, 0, "files that broke something are in {}", folder.display());
    }
}

#[test]
fn configs_never_panic() {
    let corpus = corpus::files("config.json");
    let dictionary = json::Dictionary::of(&corpus);
    Target {
        name: "config",
        file: "config.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|_, bytes, number| check::config(bytes, number.is_multiple_of(PLAN_INTERVAL)),
    }
    .run();
}

#[test]
fn generation_configs_never_panic() {
    let corpus = corpus::files("generation_config.json");
    let dictionary = json::Dictionary::of(&corpus);
    Target {
        name: "generation_config",
        file: "generation_config.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|_, bytes, _| check::config_with_file("generation_config.json", bytes),
    }
    .run();
}

#[test]
fn safetensors_headers_never_panic() {
    let model = corpus::model("odd/gemma2_uncapped");
    let corpus: Vec<Vec<u8>> = models().iter().filter_map(|model| corpus::header(model)).collect();
    let headers: Vec<Vec<u8>> = corpus.iter().map(|header| header[8..].to_vec()).collect();
    let dictionary = json::Dictionary::of(&headers);
    Target {
        name: "safetensors",
        file: "model.safetensors",
        corpus,
        mutate: &|random, corpus| corpus::mutated_header(random, corpus, &dictionary),
        check: &|_, bytes, _| check::header(&model, bytes),
    }
    .run();
}

#[test]
fn gguf_files_never_panic() {
    let (corpus, tensor_data) = corpus::gguf();
    if corpus.is_empty() {
        return;
    }
    Target {
        name: "gguf",
        file: "head.gguf",
        corpus,
        mutate: &corpus::mutated_binary,
        check: &|_, bytes, _| check::gguf(&[bytes, &tensor_data].concat()),
    }
    .run();
}

#[test]
fn shard_indices_never_panic() {
    let model = corpus::model("odd/llama_sharded");
    let corpus = corpus::files("model.safetensors.index.json");
    let dictionary = json::Dictionary::of(&corpus);
    Target {
        name: "index",
        file: "model.safetensors.index.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|_, bytes, _| check::with(&model, "model.safetensors.index.json", bytes),
    }
    .run();
}

#[test]
fn tokenizers_never_panic() {
    let corpus = corpus::files("tokenizer.json");
    let dictionary = json::Dictionary::of(&corpus);
    Target {
        name: "tokenizer",
        file: "tokenizer.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|folder, _, _| check::tokenizer(&folder.join("tokenizer.json")),
    }
    .run();
}

#[test]
fn tekken_tokenizers_never_panic() {
    let corpus = vec![std::fs::read(folder("tekken/tekken.json")).unwrap()];
    let dictionary = json::Dictionary::of(&corpus);
    let mut model = corpus::model("models/mistral");
    model.0.remove("tokenizer.json");
    Target {
        name: "tekken",
        file: "tekken.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|folder, bytes, _| check::tekken(&model, folder, bytes),
    }
    .run();
}

#[test]
fn tokenizer_configs_never_panic() {
    let corpus = corpus::files("tokenizer_config.json");
    let dictionary = json::Dictionary::of(&corpus);
    Target {
        name: "tokenizer_config",
        file: "tokenizer_config.json",
        corpus,
        mutate: &|random, corpus| mutated_json(random, corpus, &dictionary),
        check: &|folder, bytes, _| {
            check::config_with_file("tokenizer_config.json", bytes);
            check::template(folder);
        },
    }
    .run();
}

#[test]
fn chat_templates_never_panic() {
    Target {
        name: "template",
        file: "chat_template.jinja",
        corpus: corpus::templates(),
        mutate: &|random, corpus| mutated_bytes(random, corpus, corpus::TEMPLATE_FRAGMENTS),
        check: &|folder, _, _| check::template(folder),
    }
    .run();
}

/// A folder of the repository's tests.
fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

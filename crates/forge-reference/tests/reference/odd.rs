//! The reference implementation against Hugging Face transformers, on the models of tests/odd. They have odd sizes, and options
//! that the models of tests/models lack. `tests/odd/make.py` creates them and describes each.

use crate::common::{deviation, distance, folder, odd_cases};
use forge_ir::{Format, tolerance};
use forge_reference::{Positions, evaluate};
use std::collections::BTreeMap;

#[test]
fn odd_models_match_transformers() {
    let bound = tolerance(Format::F32).bound;
    let mut far = Vec::new();
    for case in odd_cases() {
        let worst = (0..2).map(|text| {
            let logits =
                evaluate(&case.opened.graph, &case.stored(), &case.ids(text), Positions::Last).unwrap();
            let expected = case.logits(&format!("last_{text}")).remove(0);
            distance(&logits[0], &expected) / deviation(&expected)
        });
        let worst = worst.fold(0.0, f64::max);
        println!("{}: {worst:.1e} of a standard deviation from the oracle", case.name);
        if worst > bound {
            far.push(format!("{}: {worst:e}", case.name));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn every_architecture_has_three_odd_models() {
    let mut models: BTreeMap<String, usize> = BTreeMap::new();
    for case in odd_cases() {
        let architecture = case.opened.graph.model.architecture.clone();
        *models.entry(architecture).or_default() += 1;
    }
    let architectures = std::fs::read_dir(folder("../../crates/forge-frontend/src/architectures")).unwrap();
    let files = architectures.filter(|file| file.as_ref().unwrap().file_name() != "mod.rs").count();
    assert_eq!(models.len(), files + 4, "one class per file, and four multimodal classes");
    assert!(models.values().all(|count| *count >= 3), "{models:?}");
}

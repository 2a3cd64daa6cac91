//! RoPE: every type of scaling, and every way to configure it.

use crate::common::configured;
use forge_ir::{Graph, Op, RopeParameters};
use serde_json::{Value, json};

/// The RoPE parameters of the first layer with RoPE.
fn rope_parameters(graph: &Graph) -> RopeParameters {
    let body = graph.body(&graph.layers[0]);
    let rope = body.nodes.iter().find_map(|node| match &node.op {
        Op::Rope { rope, .. } => Some(rope.clone()),
        _ => None,
    });
    rope.unwrap()
}

fn frequencies(graph: &Graph) -> Vec<f32> {
    rope_parameters(graph).frequencies.into_owned()
}

#[test]
fn scales_rope_positions() {
    let plain = frequencies(&configured("llama", |_| {}));
    let linear =
        |scaling: Value| frequencies(&configured("llama", |config| config["rope_scaling"] = scaling));
    let quarter: Vec<f32> = plain.iter().map(|frequency| frequency / 4.0).collect();
    assert_eq!(linear(json!({"type": "linear", "factor": 4})), quarter);
    assert_eq!(linear(json!({"rope_type": "linear", "factor": 4.0})), quarter);

    // The original context length defaults to half of the maximum. The longest kept and the shortest scaled
    // wavelength depend on it.
    let llama3 = |original: Option<usize>| {
        let mut scaling =
            json!({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4});
        if let Some(original) = original {
            scaling["original_max_position_embeddings"] = json!(original);
        }
        linear(scaling)
    };
    assert_eq!(llama3(None), llama3(Some(256)));
    assert_ne!(llama3(Some(64)), llama3(Some(256)));
    let stretched = llama3(Some(64));
    assert_eq!(stretched[0], plain[0], "a short wave is kept");
    assert_eq!(stretched[7], plain[7] / 2.0, "a long wave is stretched");
}

#[test]
fn rope_scaling_matches_transformers() {
    let llama = |changes: Value| {
        let graph = configured("llama", |config| {
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        });
        rope_parameters(&graph)
    };
    let plain = llama(json!({}));
    let yarn = |more: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        llama(json!({"rope_scaling": scaling}))
    };
    let usual = yarn(json!({}));
    assert_eq!(usual.frequencies[0], plain.frequencies[0], "what turns often is kept");
    assert_eq!(usual.frequencies[7], plain.frequencies[7] / 4.0, "what turns rarely is stretched");
    assert!((usual.magnitude - (0.1 * 4_f32.ln() + 1.0)).abs() < 1e-6);
    assert_eq!(yarn(json!({"beta_fast": 32, "beta_slow": 1, "truncate": true, "mscale": 0})), usual);
    assert_eq!(yarn(json!({"attention_factor": 0.5})).magnitude, 0.5);
    assert_eq!(yarn(json!({"mscale": 1.0, "mscale_all_dim": 1.0})).magnitude, 1.0);
    assert_ne!(yarn(json!({"truncate": false})).frequencies, usual.frequencies);
    // Half of the model's 256 positions, or of a larger maximum.
    assert_eq!(yarn(json!({"factor": null})), usual);

    let long = |context: usize, original: usize| {
        let factors = |factor: f32| vec![factor; 8];
        llama(json!({
            "max_position_embeddings": context,
            "rope_scaling": {
                "rope_type": "longrope", "short_factor": factors(1.0), "long_factor": factors(2.0),
                "original_max_position_embeddings": original
            }
        }))
    };
    let rope = long(256, 64);
    assert_eq!(rope.within(64), plain.frequencies);
    let halves: Vec<f32> = plain.frequencies.iter().map(|frequency| frequency / 2.0).collect();
    assert_eq!([rope.within(65), rope.within(256)], [&halves[..], &halves[..]]);
    assert!((rope.magnitude - (1.0 + 4_f32.ln() / 64_f32.ln()).sqrt()).abs() < 1e-6);
    assert_eq!((long(64, 64).long, long(64, 64).magnitude), (None, 1.0), "no context is long");

    // theta * (factor * context / 64 - (factor - 1))^(channels / (channels - 2)), which is theta in 64
    // positions.
    let dynamic = llama(json!({
        "max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 4.0}
    }));
    assert_eq!([dynamic.within(1), dynamic.within(64)], [&plain.frequencies[..], &plain.frequencies[..]]);
    for context in [65, 100, 256] {
        let base = 1e4 * (4.0 * context as f64 / 64.0 - 3.0).powf(16.0 / 14.0);
        for (pair, frequency) in dynamic.within(context).iter().enumerate() {
            let expected = base.powf(-(pair as f64) / 8.0);
            assert!((f64::from(*frequency) / expected - 1.0).abs() < 1e-6, "{context} {pair}");
        }
    }

    // Two of eight pairs rotate, with the frequencies of full RoPE.
    let proportional = |more: Value| {
        let mut scaling = json!({"rope_type": "proportional", "partial_rotary_factor": 0.37});
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        llama(json!({"rope_scaling": scaling})).frequencies.into_owned()
    };
    let [first, second] = [plain.frequencies[0], plain.frequencies[1]];
    assert_eq!(proportional(json!({})), [first, second, 0., 0., 0., 0., 0., 0.]);
    assert_eq!(proportional(json!({"factor": 4})), [first / 4., second / 4., 0., 0., 0., 0., 0., 0.]);
    assert_eq!(proportional(json!({"partial_rotary_factor": null})), plain.frequencies[..]);
    let half_of_heads = configured("glm4", |config| {
        config["rope_scaling"] = json!({"rope_type": "proportional"});
    });
    let half_of_heads = frequencies(&half_of_heads);
    let (turning, still) = half_of_heads.split_at(4);
    assert!(turning.iter().all(|frequency| *frequency > 0.0) && still == [0.0; 4], "as without a kind");

    let hunyuan = configured("hunyuan_v1_dense", |config| {
        config["rope_scaling"] = json!({"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0});
    });
    let stretched = 1.0 / (1e4 * 1000_f64.powf(16.0 / 14.0)).powf(14.0 / 16.0);
    let last = f64::from(frequencies(&hunyuan)[7]);
    assert!((last / stretched - 1.0).abs() < 1e-6, "{last} is not {stretched}");
}

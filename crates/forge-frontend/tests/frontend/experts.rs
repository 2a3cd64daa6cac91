//! Mixture-of-experts models: their graphs, alternative and missing config keys, and every storage layout of
//! expert weights.

use crate::common::{Raw, edit_weights, model, read};
use forge_frontend::{DummyWeights, Options, read_model};
use forge_ir::{Graph, Op, Routing, Stack};
use serde_json::{Value, json};

/// The graph of a configuration alone.
fn graph(config: &Value) -> Graph {
    let config = config.to_string();
    let shapes =
        DummyWeights::new(&config, &Options::default()).unwrap_or_else(|faults| panic!("{faults:#?}"));
    read_model(&shapes, &Options::default()).unwrap_or_else(|faults| panic!("{faults:#?}")).graph
}

/// A small model of this type.
fn small(family: &str, own: &Value) -> Value {
    let mut config = json!({
        "model_type": family, "vocab_size": 31, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "tie_word_embeddings": true,
    });
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    config
}

/// Asserts that the graph is the same with further keys.
fn same(family: &str, own: &Value, more: &Value) {
    let mut all = own.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(graph(&small(family, own)), graph(&small(family, &all)), "{family} with {more}");
}

fn routings(graph: &Graph) -> Vec<&Routing> {
    let nodes = graph.layers.iter().flat_map(|layer| &graph.body(layer).nodes);
    nodes
        .filter_map(|node| match &node.op {
            Op::Route(routing) => Some(routing),
            _ => None,
        })
        .collect()
}

#[test]
fn reads_quantized_experts() {
    insta::assert_snapshot!("qwen3_moe_mlxmix", read(&model("qwen3_moe_mlxmix")).unwrap().graph);
}

#[test]
fn published_moe_model_has_its_published_size() {
    let graph = graph(&json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151_936,
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0, "tie_word_embeddings": false,
        "use_sliding_window": false, "sliding_window": null, "max_window_layers": 48, "attention_bias": false,
        "output_router_logits": false, "router_aux_loss_coef": 0.001,
    }));
    assert_eq!((parameters(&graph), graph.bodies.len()), (30_532_122_624, 3));
    // Keys absent from the file have the defaults of the class.
    let graph = self::graph(&json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201_088,
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4,
    }));
    assert_eq!((parameters(&graph), graph.bodies.len()), (20_914_757_184, 4));
}

fn parameters(graph: &Graph) -> usize {
    graph.weights.iter().map(|weight| weight.rows() * weight.columns()).sum()
}

#[test]
fn alternative_and_absent_keys_are_equivalent() {
    let qwen = json!({"num_experts": 4, "moe_intermediate_size": 12});
    for (key, default) in [
        ("num_local_experts", json!(4)),
        ("norm_topk_prob", json!(false)),
        ("decoder_sparse_step", json!(1)),
        ("mlp_only_layers", json!([])),
        ("use_sliding_window", json!(false)),
        ("max_window_layers", json!(3)),
        ("attention_bias", json!(false)),
    ] {
        same("qwen3_moe", &qwen, &json!({key: default}));
    }
    let qwen = json!({"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20});
    for (key, default) in [("norm_topk_prob", json!(false)), ("qkv_bias", json!(true))] {
        same("qwen2_moe", &qwen, &json!({key: default}));
    }
    same("mixtral", &json!({"num_local_experts": 4}), &json!({"num_experts": 4, "sliding_window": null}));
    let glm = json!({"n_routed_experts": 4, "moe_intermediate_size": 12});
    for (key, default) in [
        ("num_local_experts", json!(4)),
        ("n_shared_experts", json!(1)),
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
        ("routed_scaling_factor", json!(1.0)),
        ("norm_topk_prob", json!(true)),
        ("first_k_dense_replace", json!(1)),
        ("use_qk_norm", json!(false)),
        ("partial_rotary_factor", json!(0.5)),
        ("num_nextn_predict_layers", json!(1)),
    ] {
        same("glm4_moe", &glm, &json!({key: default}));
    }
    let yarn = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096, "rope_theta": 150_000.0,
    });
    let types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    for (key, default) in [
        ("num_experts", json!(4)),
        ("head_dim", json!(64)),
        ("hidden_act", json!("silu")),
        ("sliding_window", json!(128)),
        ("layer_types", json!(types)),
        ("attention_bias", json!(true)),
        ("swiglu_limit", json!(7.0)),
        ("swiglu_alpha", json!(1.702)),
        ("rms_norm_eps", json!(1e-5)),
        ("max_position_embeddings", json!(131_072)),
        ("rope_theta", json!(150_000)),
        ("rope_scaling", json!(null)),
        ("rope_parameters", yarn),
        ("quantization_config", json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})),
    ] {
        same("gpt_oss", &json!({"num_local_experts": 4}), &json!({key: default}));
    }
}

#[test]
fn config_selects_the_moe_layers() {
    let with = |family: &str, own: Value| {
        let graph = graph(&small(family, &own));
        let has = |layer: &forge_ir::Apply| {
            graph.body(layer).nodes.iter().any(|node| matches!(node.op, Op::Experts(_)))
        };
        graph.layers.iter().map(has).collect::<Vec<bool>>()
    };
    let qwen = |step: usize, listed: Value| {
        with(
            "qwen3_moe",
            json!({
                "num_experts": 4, "moe_intermediate_size": 12, "decoder_sparse_step": step, "mlp_only_layers": listed
            }),
        )
    };
    assert_eq!(qwen(1, json!([])), [true; 4]);
    assert_eq!(qwen(2, json!([])), [false, true, false, true]);
    assert_eq!(qwen(1, json!([2, 0])), [false, true, false, true]);
    assert_eq!(qwen(2, json!([3])), [false, true, false, false]);
    let glm = |first: usize| {
        let own = json!({"n_routed_experts": 4, "moe_intermediate_size": 12, "first_k_dense_replace": first});
        with("glm4_moe", own)
    };
    assert_eq!(glm(0), [true; 4]);
    assert_eq!(glm(3), [false, false, false, true]);
}

#[test]
fn routing_weight_normalization_depends_on_the_architecture() {
    let renormalize = |family: &str, own: Value| {
        let graph = graph(&small(family, &own));
        routings(&graph).iter().map(|routing| routing.renormalize).collect::<Vec<bool>>()
    };
    assert_eq!(renormalize("mixtral", json!({"num_local_experts": 4})), [true; 4]);
    let own = |renormalize: bool| json!({"num_experts": 4, "moe_intermediate_size": 12, "norm_topk_prob": renormalize});
    assert_eq!(renormalize("qwen3_moe", own(true)), [true; 4]);
    assert_eq!(renormalize("qwen3_moe", own(false)), [false; 4]);
}

/// Removes and returns the expert tensors of one projection of one layer, in order of expert index.
fn taken(all: &mut Vec<Raw>, layer: usize, projection: &str) -> Vec<Raw> {
    let experts = (0..4).map(|expert| {
        let name = format!("model.layers.{layer}.mlp.experts.{expert}.{projection}.weight");
        let place = all.iter().position(|tensor| tensor.name == name).unwrap();
        all.remove(place)
    });
    experts.collect()
}

/// Concatenates tensors to one of this name and shape.
fn stacked(parts: &[Raw], name: String, shape: Vec<usize>) -> Raw {
    let bytes = parts.iter().flat_map(|part| &part.bytes).copied().collect();
    Raw { name, dtype: parts[0].dtype.clone(), shape, bytes }
}

#[test]
fn reads_separate_stacked_and_fused_experts() {
    let apart = read(&model("qwen3_moe")).unwrap().graph;
    let mut files = model("qwen3_moe");
    edit_weights(&mut files, |all| {
        for layer in 0..2 {
            for (projection, shape) in
                [("gate_proj", [4, 24, 64]), ("up_proj", [4, 24, 64]), ("down_proj", [4, 64, 24])]
            {
                let parts = taken(all, layer, projection);
                let name = format!("model.layers.{layer}.mlp.switch_mlp.{projection}.weight");
                all.push(stacked(&parts, name, shape.to_vec()));
            }
        }
    });
    let whole = read(&files).unwrap().graph;
    let mut files = model("qwen3_moe");
    edit_weights(&mut files, |all| {
        for layer in 0..2 {
            let [gates, ups, downs] = ["gate_proj", "up_proj", "down_proj"].map(|it| taken(all, layer, it));
            let pairs: Vec<Raw> = gates.into_iter().zip(ups).flat_map(|(gate, up)| [gate, up]).collect();
            let experts = format!("model.layers.{layer}.mlp.experts");
            all.push(stacked(&pairs, format!("{experts}.gate_up_proj"), vec![4, 48, 64]));
            all.push(stacked(&downs, format!("{experts}.down_proj"), vec![4, 64, 24]));
        }
    });
    let joined = read(&files).unwrap().graph;
    for other in [&whole, &joined] {
        assert_eq!((&other.bodies, &other.layers), (&apart.bodies, &apart.layers));
    }
    let stacks = |graph: &Graph| graph.weights.iter().filter_map(|weight| weight.stack).collect::<Vec<_>>();
    assert_eq!(stacks(&apart), [Stack::Apart; 6]);
    assert_eq!([stacks(&whole), stacks(&joined)], [[Stack::Whole; 6]; 2].map(Vec::from));
}

#[test]
fn mxfp4_experts_match_float_experts() {
    let [plain, coded] = ["gpt_oss", "gpt_oss_mxfp4"].map(|name| read(&model(name)).unwrap().graph);
    let shapes = |graph: &Graph| -> Vec<Vec<usize>> {
        graph.weights.iter().map(|weight| weight.shape.clone()).collect()
    };
    assert_eq!(shapes(&coded), shapes(&plain));
    let error_with = |tensor: &'static str, change: fn(&mut Raw)| {
        let mut files = model("gpt_oss_mxfp4");
        let name = format!("model.layers.1.mlp.experts.{tensor}");
        edit_weights(&mut files, |all| change(all.iter_mut().find(|tensor| tensor.name == name).unwrap()));
        let faults = read(&files).unwrap_err();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let faults = [
        error_with("gate_up_proj_scales", |tensor| tensor.name.push('x')),
        error_with("gate_up_proj_scales", |tensor| tensor.dtype = "I8".to_owned()),
        error_with("down_proj_scales", |tensor| tensor.shape = vec![4, 32, 2]),
        error_with("down_proj_blocks", |tensor| tensor.shape = vec![4, 64, 16]),
        error_with("down_proj_blocks", |tensor| tensor.dtype = "I8".to_owned()),
        error_with("gate_up_proj_bias", |tensor| tensor.shape = vec![8, 32]),
    ];
    insta::assert_snapshot!("faults_of_mxfp4", faults.join("\n"));
}

#[test]
fn rejects_missing_extra_and_mismatched_experts() {
    let error_with = |change: fn(&mut Vec<Raw>)| {
        let mut files = model("qwen3_moe");
        edit_weights(&mut files, change);
        let faults = read(&files).unwrap_err();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    const THIRD: &str = "model.layers.1.mlp.experts.3.up_proj.weight";
    let few = error_with(|all| all.retain(|tensor| tensor.name != THIRD));
    assert!(few.contains(&format!("[F0301] missing tensor {THIRD} [24, 64]")), "{few}");
    let many = error_with(|all| {
        let mut more = all.iter().find(|tensor| tensor.name == THIRD).unwrap().clone();
        more.name = THIRD.replace(".3.", ".4.");
        all.push(more);
    });
    assert!(many.contains("[F0303] unused tensor model.layers.1.mlp.experts.4.up_proj.weight"), "{many}");
    let other = error_with(|all| {
        let third = all.iter_mut().find(|tensor| tensor.name == THIRD).unwrap();
        third.dtype = "F16".to_owned();
    });
    let stored = format!("model.layers.1.mlp.experts.0.up_proj.weight is stored as bf16 and {THIRD} as f16");
    assert!(other.contains(&stored), "{other}");
}

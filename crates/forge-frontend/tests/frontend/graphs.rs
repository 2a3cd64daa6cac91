//! Snapshots of the graphs of the test models, and spellings that make the same graph.

use crate::common::{Raw, edit, edit_weights, model, models, read, shard};
use forge_frontend::{Memory, Options, read_model};
use forge_ir::{Graph, Op};
use serde_json::{Value, json};

#[test]
fn graphs() {
    for name in models() {
        let options = Options { name: name.clone(), ..Options::default() };
        let opened =
            read_model(&model(&name), &options).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"));
        insta::assert_snapshot!(name, opened.graph);
    }
}

/// The graph of a model after a change to its configuration.
fn configured(name: &str, change: impl FnOnce(&mut Value)) -> Graph {
    let mut files = model(name);
    edit(&mut files, "config.json", change);
    read(&files).unwrap_or_else(|faults| panic!("{name}: {faults:#?}")).graph
}

fn without(config: &mut Value, keys: &[&str]) {
    keys.iter().for_each(|key| {
        config.as_object_mut().unwrap().remove(*key).unwrap();
    });
}

#[test]
fn both_spellings_and_absent_keys_mean_the_same() {
    let plain = |name: &str| configured(name, |_| {});
    let same = |name: &str, change: &dyn Fn(&mut Value)| {
        assert_eq!(configured(name, change), plain(name), "{name}");
    };
    same("llama", &|config| without(config, &["rope_theta", "tie_word_embeddings", "architectures"]));
    same("llama", &|config| without(config, &["model_type", "bos_token_id", "torch_dtype"]));
    same("llama", &|config| config["rope_scaling"] = json!(null));
    same("llama", &|config| config["rope_scaling"] = json!({"type": "default"}));
    same("llama", &|config| {
        without(config, &["rope_theta"]);
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 10000});
    });
    same("llama", &|config| {
        config["head_dim"] = json!(16);
        config["attention_bias"] = json!(false);
        config["hidden_act"] = json!("silu");
        config["num_key_value_heads"] = json!(2);
    });
    same("llama", &|config| config["head_dim"] = json!(null));
    same("llama", &|config| {
        config["sliding_window"] = json!(null);
        config["pretraining_tp"] = json!(1);
        config["id2label"] = json!({"0": "LABEL_0"});
        config["attention_dropout"] = json!(0.5);
    });
    same("llama3_rope", &|config| {
        let mut scaling = config["rope_scaling"].take();
        scaling["rope_theta"] = config["rope_theta"].take();
        config["rope_parameters"] = scaling;
    });
    same("llama3_rope", &|config| {
        without(config, &["head_dim"]);
        config["rope_scaling"]["type"] = json!("llama3");
    });
    same("llama_bias", &|config| {
        without(config, &["rope_parameters", "head_dim", "hidden_act", "dtype"]);
        config["rope_theta"] = json!(1e4);
    });
    same("qwen2", &|config| {
        without(config, &["rms_norm_eps", "use_sliding_window", "sliding_window", "max_window_layers"]);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    same("qwen2", &|config| {
        // From the third layer on, and there are two.
        config["use_sliding_window"] = json!(true);
    });
    same("qwen2", &|config| config["max_window_layers"] = json!(0));
    same("qwen3", &|config| without(config, &["rms_norm_eps", "attention_bias", "architectures"]));
    same("qwen3", &|config| {
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(24);
        config["max_window_layers"] = json!(1);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    same("mistral", &|config| {
        without(config, &["rope_theta", "tie_word_embeddings", "head_dim", "model_type"])
    });
    same("gemma2", &|config| {
        without(config, &["hidden_activation", "rms_norm_eps", "rope_theta", "model_type"]);
        config["hidden_act"] = json!("silu");
        config["sliding_window_size"] = json!(1);
        config["cache_implementation"] = json!("hybrid");
        config["tie_word_embeddings"] = json!(true);
        config["attention_bias"] = json!(false);
        config["use_bidirectional_attention"] = json!(null);
        config["layer_types"] = json!(["sliding_attention", "full_attention"]);
    });
    same("gemma2", &|config| config["hidden_activation"] = json!("gelu_new"));
    same("olmo2", &|config| {
        without(config, &["tie_word_embeddings", "model_type"]);
        config["attention_bias"] = json!(false);
        config["hidden_act"] = json!("silu");
        config["head_dim"] = json!(16);
    });
    same("smollm3", &|config| {
        without(config, &["rms_norm_eps", "tie_word_embeddings", "no_rope_layer_interval", "model_type"]);
        config["no_rope_layers"] = json!([1, 1, 0, 0]);
        config["attention_bias"] = json!(false);
        config["mlp_bias"] = json!(false);
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(24);
        config["max_window_layers"] = json!(1);
        config["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
    });
    // Where the models have another value than the one that is assumed.
    let assumes = |name: &str, assumed: Value| {
        let keys: Vec<&str> = assumed.as_object().unwrap().keys().map(String::as_str).collect();
        let absent = configured(name, |config| without(config, &keys));
        let given = configured(name, |config| {
            config.as_object_mut().unwrap().extend(assumed.as_object().unwrap().clone());
        });
        assert_eq!(absent, given, "{name}");
    };
    assumes(
        "gemma2",
        json!({
            "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50, "final_logit_softcapping": 30,
            "sliding_window": 4096, "max_position_embeddings": 8192
        }),
    );
    assumes("olmo2", json!({"rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}));
    assumes(
        "smollm3",
        json!({"rope_theta": 2e6, "max_position_embeddings": 32768, "no_rope_layer_interval": 4}),
    );
    assumes("qwen2", json!({"rope_theta": 1e4, "max_position_embeddings": 32768}));
    assumes(
        "mistral",
        json!({"rms_norm_eps": 1e-6, "max_position_embeddings": 131_072, "sliding_window": 4096}),
    );
}

/// What every layer sees.
fn windows(graph: &Graph) -> Vec<Option<usize>> {
    let window = |op: &Op| match op {
        Op::Attention { window, .. } => Some(*window),
        _ => None,
    };
    let nodes = |layer| graph.body(layer).nodes.iter().find_map(|node| window(&node.op)).unwrap();
    graph.layers.iter().map(nodes).collect()
}

#[test]
fn layers_see_windows() {
    let mistral = |context: usize, window: Value| {
        windows(&configured("mistral", |config| {
            config["max_position_embeddings"] = json!(context);
            config["sliding_window"] = window;
            config.as_object_mut().unwrap().retain(|_, value| value != "REMOVE");
        }))
    };
    assert_eq!(mistral(256, json!(24)), [Some(24); 2]);
    assert_eq!(mistral(256, json!(null)), [None; 2]);
    assert_eq!(mistral(256, json!(255)), [Some(255); 2]);
    assert_eq!(mistral(256, json!(256)), [None; 2], "it holds all positions that there are");
    assert_eq!(mistral(8192, json!("REMOVE")), [Some(4096); 2], "what the configuration class assumes");
    assert_eq!(mistral(256, json!("REMOVE")), [None; 2]);

    for name in ["qwen2", "qwen3"] {
        let qwen = |changes: Value| {
            let graph = configured(name, |config| {
                config["use_sliding_window"] = json!(true);
                config["sliding_window"] = json!(24);
                config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            });
            let bodies = graph.bodies.len() - 2;
            (windows(&graph), bodies)
        };
        let second = || (vec![None, Some(24)], 2);
        assert_eq!(qwen(json!({"max_window_layers": 1})), second());
        assert_eq!(qwen(json!({"layer_types": ["full_attention", "sliding_attention"]})), second());
        assert_eq!(qwen(json!({"max_window_layers": 0})), (vec![Some(24); 2], 1));
        assert_eq!(qwen(json!({"max_window_layers": 2})), (vec![None; 2], 1));
        assert_eq!(qwen(json!({"max_window_layers": null})), (vec![None; 2], 1), "from the 28th on");
        assert_eq!(qwen(json!({"max_window_layers": 1, "sliding_window": null})), (vec![None; 2], 1));
        assert_eq!(qwen(json!({"max_window_layers": 1, "use_sliding_window": false})), (vec![None; 2], 1));
    }

    let gemma = |changes: Value| {
        windows(&configured("gemma2", |config| {
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        }))
    };
    assert_eq!(gemma(json!({})), [Some(16), None]);
    assert_eq!(gemma(json!({"sliding_window": 256})), [None, None]);
    assert_eq!(gemma(json!({"layer_types": ["full_attention", "sliding_attention"]})), [None, Some(16)]);
    let full = ["full_attention", "full_attention"];
    assert_eq!(gemma(json!({"layer_types": full, "sliding_window": null})), [None, None]);
}

#[test]
fn caps_may_be_left_out() {
    let caps = |changes: Value| {
        let graph = configured("gemma2", |config| {
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        });
        let nodes = graph.bodies.iter().flat_map(|body| &body.nodes);
        let of = |op: &Op| match op {
            Op::Attention { softcap, .. } => *softcap,
            Op::Softcap(cap) => Some(*cap),
            _ => None,
        };
        nodes.filter_map(|node| of(&node.op)).collect::<Vec<f32>>()
    };
    assert_eq!(caps(json!({})), [5.0, 5.0, 6.0]);
    assert_eq!(caps(json!({"attn_logit_softcapping": null})), [6.0]);
    assert_eq!(caps(json!({"final_logit_softcapping": null})), [5.0, 5.0]);
}

/// The frequencies of the first rotation of the first layer.
fn frequencies(graph: &Graph) -> Vec<f32> {
    let body = graph.body(&graph.layers[0]);
    let rotation = body.nodes.iter().find_map(|node| match &node.op {
        Op::Rotate { rotation, .. } => Some(rotation.frequencies.clone()),
        _ => None,
    });
    rotation.unwrap()
}

#[test]
fn positions_are_scaled() {
    let plain = frequencies(&configured("llama", |_| {}));
    let linear =
        |scaling: Value| frequencies(&configured("llama", |config| config["rope_scaling"] = scaling));
    let quarter: Vec<f32> = plain.iter().map(|frequency| frequency / 4.0).collect();
    assert_eq!(linear(json!({"type": "linear", "factor": 4})), quarter);
    assert_eq!(linear(json!({"rope_type": "linear", "factor": 4.0})), quarter);

    // Half of the positions it was made for are the original ones unless the file says so: the longest wave that is
    // kept and the shortest that is stretched move with them.
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
fn tokens_with_a_meaning_are_found() {
    let specials = |change: &dyn Fn(&mut Memory)| {
        let mut files = model("llama");
        change(&mut files);
        let specials = read(&files).unwrap().graph.model.specials.clone();
        (specials.begin, specials.end)
    };
    let generation = |value: Value| {
        move |files: &mut Memory| edit(files, "generation_config.json", |config| *config = value.clone())
    };
    assert_eq!(specials(&|_| {}), (Some(495), vec![499]));
    let list = generation(json!({"bos_token_id": 1, "eos_token_id": [2, 3]}));
    assert_eq!(specials(&list), (Some(1), vec![2, 3]));
    assert_eq!(specials(&generation(json!({"eos_token_id": null}))), (Some(495), vec![499]), "config.json's");
    assert_eq!(specials(&generation(json!({"eos_token_id": -1}))), (Some(495), vec![499]));
    let names = specials(&|files| {
        files.0.remove("generation_config.json");
        edit(files, "config.json", |config| without(config, &["bos_token_id", "eos_token_id"]));
        edit(files, "tokenizer_config.json", |config| {
            config["bos_token"] = json!({"content": "<|begin_of_text|>"});
            config["eos_token"] = json!("<|end_of_text|>");
        });
    });
    assert_eq!(names, (Some(495), vec![496]));
    let none = specials(&|files| {
        files.0.remove("generation_config.json");
        files.0.remove("tokenizer_config.json");
        edit(files, "config.json", |config| without(config, &["bos_token_id", "eos_token_id"]));
    });
    assert_eq!(none, (None, vec![]));
}

#[test]
fn shards_make_the_same_model() {
    for name in ["llama", "llama_bias"] {
        let mut files = model(name);
        let whole = read(&files).unwrap();
        shard(&mut files, 3);
        let sharded = read(&files).unwrap();
        assert_eq!(whole.graph, sharded.graph);
        assert_eq!(sharded.tensors.files().len(), 3);
        for weight in &whole.graph.weights {
            let tensor = whole.tensors.get(&weight.tensor).unwrap();
            let (mut a, mut b) = (vec![0; tensor.bytes as usize], vec![1; tensor.bytes as usize]);
            whole.tensors.read(&model(name), &weight.tensor, 0, &mut a).unwrap();
            sharded.tensors.read(&files, &weight.tensor, 0, &mut b).unwrap();
            assert_eq!(a, b, "{}", weight.tensor);
            assert!(whole.tensors.read(&files, &weight.tensor, 1, &mut a).is_err());
        }
    }
}

#[test]
fn what_a_model_does_not_need_is_left_out_knowingly() {
    let mut files = model("llama3_rope");
    let plain = read(&files).unwrap();
    assert!(plain.ignored.is_empty());
    edit_weights(&mut files, |all| {
        let table = all.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap().clone();
        all.push(Raw { name: "lm_head.weight".to_owned(), ..table });
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
        all.push(Raw { name, dtype: "F32".to_owned(), shape: vec![8], bytes: vec![0; 32] });
    });
    let more = read(&files).unwrap();
    assert_eq!(more.graph, plain.graph);
    assert_eq!(more.ignored, ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]);
}

#[test]
fn unknown_keys_may_be_allowed() {
    let mut files = model("llama");
    edit(&mut files, "config.json", |config| {
        config["mystery"] = json!(1);
        config["rope_scaling"] = json!({"type": "default", "fog": 2});
    });
    assert_eq!(read(&files).unwrap_err().len(), 2);
    let allow_unknown = vec!["mystery".to_owned(), "rope_scaling.fog".to_owned()];
    read_model(&files, &Options { name: "test".to_owned(), allow_unknown }).unwrap();
}

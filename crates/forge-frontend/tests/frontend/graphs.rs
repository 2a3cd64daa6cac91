//! Snapshots of the graphs of the test models, and config variants that give the same graph.

use crate::common::{Raw, configured, edit, edit_weights, model, models, read, shard};
use crate::spellings::without;
use forge_frontend::{MemoryCheckpoint, Options, read_model};
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

/// The attention window of every layer.
fn windows(graph: &Graph) -> Vec<Option<usize>> {
    let window = |op: &Op| match op {
        Op::Attention { window, .. } => Some(*window),
        _ => None,
    };
    let nodes = |layer| graph.body(layer).nodes.iter().find_map(|node| window(&node.op)).unwrap();
    graph.layers.iter().map(nodes).collect()
}

#[test]
fn layers_have_sliding_windows() {
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

    for name in ["mistral", "gemma3_text"] {
        let stretched = configured(name, |config| {
            config["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 1.5});
            config["sliding_window"] = json!(300);
        });
        assert_eq!(stretched.model.context, 384, "{name}: one and a half times 256");
        assert_eq!(windows(&stretched)[0], Some(300), "{name}: and so it is a window");
    }

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
fn softcaps_are_optional() {
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

/// transformers pads the keys of `per_layer_config` to as many digits as the longest has.
#[test]
fn accepts_zero_padded_layer_keys() {
    let layers_of = |padded: bool| {
        let mut files = model("gemma4_moe");
        edit(&mut files, "config.json", |config| {
            let own = config["per_layer_config"]["1"].take();
            let kinds: Vec<&str> = (0..11)
                .map(|layer| ["sliding_attention", "full_attention"][layer % 2])
                .chain(["full_attention"])
                .collect();
            config["layer_types"] = json!(kinds);
            config["num_hidden_layers"] = json!(kinds.len());
            let layers = (0..kinds.len()).filter(|layer| kinds[*layer] == "full_attention");
            let key = |layer: usize| if padded { format!("{layer:02}") } else { layer.to_string() };
            config["per_layer_config"] = layers.map(|layer| (key(layer), own.clone())).collect();
        });
        edit_weights(&mut files, |all| {
            let layers: Vec<Raw> =
                all.iter().filter(|raw| raw.name.starts_with("model.layers.")).cloned().collect();
            for raw in layers {
                let rest = raw.name.strip_prefix("model.layers.").unwrap();
                let (from, module) = rest.split_once('.').unwrap();
                for layer in 2..12 {
                    let kind = usize::from(layer == 11 || layer % 2 == 1);
                    if from == kind.to_string() {
                        all.push(Raw { name: format!("model.layers.{layer}.{module}"), ..raw.clone() });
                    }
                }
            }
        });
        read(&files).unwrap_or_else(|faults| panic!("padded: {padded}: {faults:#?}")).graph
    };
    assert_eq!(layers_of(true), layers_of(false));
}

#[test]
fn reads_wrapped_text_models() {
    let gemma_3 = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "vision_config": {"hidden_size": 16}, "mm_tokens_per_image": 4, "image_token_index": 500,
        "bos_token_id": 2, "eos_token_id": 1
    });
    let gemma_4 = json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "vision_config": {"hidden_size": 16}, "audio_config": null, "image_token_id": 500,
    });
    let qwen_3_5 = |class: &str, family: &str| {
        json!({
            "architectures": [class], "model_type": family, "vision_config": {"hidden_size": 16},
            "image_token_id": 500, "tie_word_embeddings": true
        })
    };
    let qwen_3_5_moe = qwen_3_5("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe");
    let qwen_3_5 = qwen_3_5("Qwen3_5ForConditionalGeneration", "qwen3_5");
    let nested = "model.language_model.";
    let [tower, visual] = ["vision_tower.encoder", "visual"].map(|of| format!("model.{of}.0.mlp.fc1.weight"));
    for (name, wrapper, plain, prefix, other) in [
        ("gemma3_text", gemma_3, "", "language_model.", "vision_tower.encoder.layers.0.mlp.fc1.weight"),
        ("gemma4_text", gemma_4.clone(), "model.", nested, &tower),
        ("gemma4_moe", gemma_4, "model.", nested, &tower),
        ("qwen3_5_text", qwen_3_5, "model.", nested, &visual),
        ("qwen3_5_moe_text", qwen_3_5_moe, "model.", nested, &visual),
    ] {
        let text = model(name);
        let mut wrapped = text.clone();
        edit(&mut wrapped, "config.json", |config| {
            let mut text = std::mem::replace(config, wrapper);
            text.as_object_mut().unwrap().retain(|key, _| {
                !["architectures", "dtype", "torch_dtype", "transformers_version"].contains(&key.as_str())
            });
            config["text_config"] = text;
        });
        edit_weights(&mut wrapped, |all| {
            for tensor in all.iter_mut() {
                tensor.name = format!("{prefix}{}", tensor.name.strip_prefix(plain).unwrap());
            }
            all.push(Raw {
                name: other.to_owned(),
                dtype: "F32".to_owned(),
                shape: vec![2],
                bytes: vec![0; 8],
            });
        });
        let wrapped = read(&wrapped).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"));
        let text = read(&text).unwrap();
        assert_eq!(wrapped.ignored, [other]);
        assert_eq!((&wrapped.graph.bodies, &wrapped.graph.layers), (&text.graph.bodies, &text.graph.layers));
        let names = |opened: &forge_frontend::LoadedCheckpoint, prefix: &str| -> Vec<String> {
            let names = opened.graph.weights.iter().map(|weight| weight.tensor.strip_prefix(prefix));
            names.map(|name| name.unwrap().to_owned()).collect()
        };
        assert_eq!(names(&wrapped, prefix), names(&text, plain));
    }
}

#[test]
fn accepts_gpt2_names_without_prefix() {
    let mut bare = model("gpt2");
    edit_weights(&mut bare, |all| {
        for tensor in all.iter_mut() {
            tensor.name = tensor.name.trim_start_matches("transformer.").to_owned();
        }
        let name = "h.0.attn.bias".to_owned();
        all.push(Raw { name, dtype: "U8".to_owned(), shape: vec![1, 1, 1, 1], bytes: vec![1] });
    });
    let bare = read(&bare).unwrap();
    assert_eq!(bare.ignored, ["h.0.attn.bias"]);
    assert_eq!(bare.graph.bodies, read(&model("gpt2")).unwrap().graph.bodies);
    let scales = |changes: Value| {
        let graph = configured("gpt2", |config| {
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        });
        let scale = |layer| {
            graph.body(layer).nodes.iter().find_map(|node| match node.op {
                Op::Attention { scale, .. } => Some(scale),
                _ => None,
            })
        };
        graph.layers.iter().map(|layer| scale(layer).unwrap()).collect::<Vec<f32>>()
    };
    assert_eq!(scales(json!({})), [0.25, 0.25]);
    assert_eq!(scales(json!({"scale_attn_weights": false})), [1.0, 1.0]);
    assert_eq!(scales(json!({"scale_attn_by_inverse_layer_idx": true})), [0.25, 0.125]);
}

#[test]
fn finds_bos_and_eos_tokens() {
    let specials = |change: &dyn Fn(&mut MemoryCheckpoint)| {
        let mut files = model("llama");
        change(&mut files);
        let specials = read(&files).unwrap().graph.model.specials.clone();
        (specials.begin, specials.end)
    };
    let generation = |value: Value| {
        move |files: &mut MemoryCheckpoint| {
            edit(files, "generation_config.json", |config| *config = value.clone())
        }
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
fn sharded_checkpoints_give_the_same_model() {
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
fn reports_ignored_tensors() {
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
fn accepts_unknown_keys_on_request() {
    let mut files = model("llama");
    edit(&mut files, "config.json", |config| {
        config["attention_chunk_size"] = json!(1);
        config["rope_scaling"] = json!({"type": "default", "beta_fast": 2});
    });
    assert_eq!(read(&files).unwrap_err().len(), 2);
    let allowing = |keys: &[&str]| {
        let allow_unknown = keys.iter().map(|key| (*key).to_owned()).collect();
        read_model(&files, &Options { name: "test".to_owned(), allow_unknown })
    };
    allowing(&["attention_chunk_size", "rope_scaling.beta_fast"]).unwrap();
    // Allowing a key that the file does not have is an error: probably a typo.
    let faults = allowing(&["attention_chunk_size", "rope_scaling.beta_fast", "rope_scaling.frog", "nope"])
        .unwrap_err();
    let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "--ignore-config-key rope_scaling.frog: config.json has no such key",
            "--ignore-config-key nope: config.json has no such key",
        ]
    );
}

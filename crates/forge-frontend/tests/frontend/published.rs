//! Extra tensors and files in published checkpoints: each is used, ignored or named in a diagnostic.

use crate::common::{Raw, changed, edit, edit_weights, fault, file, model, read, shard, tensors};
use forge_frontend::MemoryCheckpoint;
use serde_json::json;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

fn add(files: &mut MemoryCheckpoint, name: &str, dtype: &str, shape: &[usize], bytes: usize) {
    let (name, dtype, shape) = (name.to_owned(), dtype.to_owned(), shape.to_vec());
    edit_weights(files, |all| all.push(Raw { name, dtype, shape, bytes: vec![0; bytes] }));
}

#[test]
fn ignores_rotary_buffers_and_kv_cache_scales() {
    let names = [
        "model.layers.0.self_attn.k_scale",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.v_proj.v_scale",
        "model.layers.1.self_attn.kv_scale",
    ];
    let opened = changed("llama", |files| names.iter().for_each(|name| add(files, name, "F32", &[1], 4)));
    assert_eq!(opened.ignored, names);
}

#[test]
fn accepts_tensor_names_without_prefix() {
    let bare = changed("qwen3", |files| {
        edit_weights(files, |all| {
            for tensor in all {
                tensor.name = tensor.name.trim_start_matches("model.").to_owned();
            }
        });
    });
    let published = changed("qwen3", |_| {});
    assert_eq!(bare.graph.weights.len(), published.graph.weights.len());
    assert_eq!(bare.graph.layers, published.graph.layers);
}

#[test]
fn ties_the_head_if_lm_head_is_absent() {
    let opened = changed("llama", |files| {
        edit_weights(files, |all| all.retain(|tensor| tensor.name != "lm_head.weight"));
    });
    assert_eq!(
        opened.notes,
        [
            "missing lm_head.weight although tie_word_embeddings is false: using the embedding table as the head"
        ]
    );
    let head = opened.graph.epilogue.weights.iter().map(|id| &opened.graph.weights[id.0].tensor);
    assert!(head.into_iter().any(|tensor| tensor == "model.embed_tokens.weight"));
}

#[test]
fn drops_rows_beyond_the_vocabulary() {
    let opened = changed("llama", |files| edit(files, CONFIG, |config| config["vocab_size"] = json!(500)));
    assert_eq!(opened.graph.model.vocabulary, 500);
    assert_eq!(opened.ignored, ["lm_head.weight[500..512]", "model.embed_tokens.weight[500..512]"]);
    assert!(opened.notes[0].starts_with("the embedding table has 512 rows and vocab_size is 500"));
}

#[test]
fn keys_unread_by_transformers_have_no_effect() {
    let plain = changed("llama", |_| {});
    let opened = changed("llama", |files| {
        edit(files, CONFIG, |config| {
            config["pretraining_tp"] = json!(2);
            config["is_llama_config"] = json!(true);
            config["transformers.js_config"] = json!({"dtype": "q4"});
            // The key is read and has the default value of the class.
            config["is_causal"] = json!(true);
            config["rope_scaling"] = json!({"rope_type": "default", "fog": 1});
        });
    });
    assert_eq!(opened.graph.to_string(), plain.graph.to_string());
    let ignored =
        ["is_causal", "is_llama_config", "pretraining_tp", "rope_scaling.fog", "transformers.js_config"];
    for key in ignored {
        assert!(opened.keys.ignored.iter().any(|path| path == key), "{key}: {:?}", opened.keys.ignored);
    }
    let message = fault("llama", |files| edit(files, CONFIG, |config| config["is_causal"] = json!(false)));
    assert!(message.contains("unsupported key is_causal, which transformers"), "{message}");
    let own = json!({"0": {"head_dim": 8}});
    let message = fault("llama", |files| edit(files, CONFIG, |config| config["per_layer_config"] = own));
    assert!(message.contains("unsupported key per_layer_config, which transformers"), "{message}");
}

#[test]
fn suggests_the_nearest_key() {
    let opened = changed("llama", |files| {
        edit(files, CONFIG, |config| {
            config.as_object_mut().unwrap().remove("rms_norm_eps");
            config["rms_norm_epsilon"] = json!(1e-5);
        });
    });
    assert_eq!(
        opened.notes,
        ["config.json: transformers ignores rms_norm_epsilon; did you mean rms_norm_eps?"]
    );
}

#[test]
fn accepts_empty_quantization_config() {
    changed("llama", |files| edit(files, CONFIG, |config| config["quantization_config"] = json!({})));
}

#[test]
fn architecture_names_ignore_case() {
    let opened = changed("llama", |files| {
        edit(files, CONFIG, |config| config["architectures"] = json!(["LLaMAForCausalLM"]));
    });
    assert_eq!(opened.graph.model.architecture, "LlamaForCausalLM");
}

#[test]
fn remote_code_models_are_compiled_by_architecture() {
    let opened = changed("deepseek_v3", |files| {
        edit(files, CONFIG, |config| {
            config["model_type"] = json!("kimi_k2");
            config["auto_map"] = json!({"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"});
        });
    });
    assert_eq!(opened.graph.model.architecture, "DeepseekV3ForCausalLM");
    assert_eq!(
        opened.notes,
        ["custom code (auto_map) is ignored: compiling as transformers' DeepseekV3ForCausalLM"]
    );
    let message = fault("deepseek_v3", |files| {
        edit(files, CONFIG, |config| config["model_type"] = json!("llama"));
    });
    assert!(message.contains("model_type"), "{message}");
}

#[test]
fn accepts_text_models_with_a_multimodal_architecture() {
    for (name, class, wrapper) in [
        ("qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    ] {
        let plain = changed(name, |_| {});
        let named = |files: &mut MemoryCheckpoint| {
            edit(files, CONFIG, |config| config["architectures"] = json!([wrapper]));
        };
        let opened = changed(name, named);
        assert_eq!(opened.graph.model.architecture, class);
        assert_eq!(opened.graph.to_string(), plain.graph.to_string());
        assert_eq!(
            opened.notes,
            [format!(
                "architectures is {wrapper}, but the configuration is that of its text model: compiling as {class}"
            )]
        );
        let message = fault(name, |files| {
            named(files);
            edit(files, CONFIG, |config| config["text_config"] = json!({"hidden_size": 64}));
        });
        assert!(message.contains(&format!("the architecture {wrapper} has model_type")), "{message}");
    }
    let message = fault("llama", |files| {
        edit(files, CONFIG, |config| config["architectures"] = json!(["Qwen3_5ForConditionalGeneration"]));
    });
    assert!(message.contains("has model_type qwen3_5, found llama"), "{message}");
}

#[test]
fn finds_the_text_model_in_multimodal_checkpoints() {
    let plain = changed("qwen3_5_text", |_| {});
    let opened = changed("qwen3_5_text", |files| {
        edit_weights(files, |all| {
            for tensor in all {
                if let Some(name) = tensor.name.strip_prefix("model.") {
                    tensor.name = format!("model.language_model.{name}");
                }
            }
        });
        add(files, "model.visual.blocks.0.norm1.weight", "F32", &[2], 8);
    });
    assert_eq!(opened.ignored, ["model.visual.blocks.0.norm1.weight"]);
    assert_eq!(opened.graph.bodies, plain.graph.bodies);
    assert_eq!(opened.graph.weights.len(), plain.graph.weights.len());
}

#[test]
fn reads_python_only_numbers() {
    changed("llama", |files| {
        let text = String::from_utf8(files.0[CONFIG].clone()).unwrap();
        let text = text.trim_end().trim_end_matches('}').to_owned()
            + r#", "bad_words_ids": [0.0, Infinity], "typical_p": NaN}"#;
        files.0.insert(CONFIG.to_owned(), text.into_bytes());
    });
    let message = fault("llama", |files| {
        let text = String::from_utf8(files.0[CONFIG].clone()).unwrap();
        let text =
            text.trim_end().trim_end_matches('}').to_owned() + r#", "partial_rotary_factor": Infinity}"#;
        files.0.insert(CONFIG.to_owned(), text.into_bytes());
    });
    assert!(message.contains("partial_rotary_factor: expected a finite number"), "{message}");
}

#[test]
fn ignores_invalid_generation_config() {
    // One published file lacks a comma, and another has one too many.
    const BROKEN: &str = "{\"eos_token_id\": 7\n \"max_new_tokens\": 1024,}";
    let opened = changed("llama", |files| {
        edit(files, CONFIG, |config| config["eos_token_id"] = json!([5, 6]));
        files.0.insert("generation_config.json".to_owned(), BROKEN.into());
    });
    assert_eq!(opened.graph.model.specials.end, [5, 6]);
    assert_eq!(opened.unusable, ["generation_config.json"]);
    let [note] = &opened.notes[..] else { panic!("{:?}", opened.notes) };
    assert!(
        note.contains("generation_config.json is not valid JSON") && note.contains("ignoring the file"),
        "{note}"
    );
    assert!(changed("llama", |_| {}).unusable.is_empty());
}

#[test]
fn rope_type_takes_precedence_over_the_legacy_key() {
    let scaling = |kind: serde_json::Value| {
        changed("llama3_rope", |files| {
            edit(files, CONFIG, |config| {
                let key = if config["rope_scaling"].is_object() { "rope_scaling" } else { "rope_parameters" };
                if kind.is_string() {
                    config[key]["type"] = kind;
                }
            });
        })
        .graph
        .bodies
        .clone()
    };
    assert_eq!(scaling(json!("default")), scaling(json!(null)));
}

#[test]
fn ignores_other_weight_files_next_to_shards() {
    changed("llama", |files| {
        shard(files, 2);
        files.0.insert("consolidated.safetensors".to_owned(), vec![1, 2, 3]);
        files.0.insert("pytorch_model.bin".to_owned(), vec![1, 2, 3]);
    });
}

#[test]
fn unsupported_weight_files_are_reported_with_a_remedy() {
    let only = |name: &str| {
        fault("llama", |files| {
            files.0.remove(WEIGHTS);
            files.0.insert(name.to_owned(), vec![0; 9]);
        })
    };
    assert!(only("pytorch_model-00001-of-00002.bin").contains("save_pretrained(OUT)"));
    assert!(only("consolidated.safetensors").contains("download the files that transformers reads"));
    assert!(only("adapter_model.safetensors").contains("is a LoRA adapter: merge it"));
}

#[test]
fn reports_git_lfs_pointers() {
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n";
    for name in [WEIGHTS, CONFIG, "generation_config.json"] {
        let message = fault("llama", |files| {
            files.0.insert(name.to_owned(), POINTER.into());
        });
        assert!(
            message.contains(&format!("{name} is a Git LFS pointer")) && message.contains("git lfs pull"),
            "{message}"
        );
    }
    let gguf = MemoryCheckpoint([("model.gguf".to_owned(), POINTER.into())].into());
    let message = read(&gguf).unwrap_err()[0].to_string();
    assert!(message.contains("model.gguf is a Git LFS pointer"), "{message}");
}

#[test]
fn rejects_tied_heads_that_differ() {
    let copy = |change: fn(&mut Vec<u8>)| {
        let mut files = model("gemma2");
        let mut all = tensors(&files.0[WEIGHTS]);
        let mut head = all.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap().clone();
        head.name = "lm_head.weight".to_owned();
        change(&mut head.bytes);
        all.push(head);
        files.0.insert(WEIGHTS.to_owned(), file(&all));
        read(&files)
    };
    assert_eq!(copy(|_| {}).unwrap().ignored, ["lm_head.weight"]);
    assert!(copy(|bytes| bytes[9] ^= 1).unwrap_err()[0].to_string().contains("differs from"));
}

"""Writes a checkpoint that transformers and forge load: six small files."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import chat

TEMPERATURE, TOP_P = 0.7, 0.95


def config(shape, tokenizer):
    """config.json"""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads, "head_dim": shape.head_width, "hidden_act": "silu",
        "max_position_embeddings": shape.context, "rms_norm_eps": shape.epsilon, "rope_theta": shape.theta, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": tokenizer.token_to_id(chat.BEGIN), "eos_token_id": tokenizer.token_to_id(chat.END), "torch_dtype": "bfloat16",
    }


def tokenizer_config(shape, tokenizer):
    """tokenizer_config.json"""
    mark = lambda text: {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "added_tokens_decoder": {str(tokenizer.token_to_id(text)): mark(text) for text in chat.MARKS}, "bos_token": chat.BEGIN, "eos_token": chat.END, "pad_token": chat.END,
        "clean_up_tokenization_spaces": False, "model_max_length": shape.context, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat.TEMPLATE,
    }


def generation_config(tokenizer):
    """generation_config.json"""
    return {"bos_token_id": tokenizer.token_to_id(chat.BEGIN), "eos_token_id": tokenizer.token_to_id(chat.END), "pad_token_id": tokenizer.token_to_id(chat.END), "do_sample": True,
            "temperature": TEMPERATURE, "top_p": TOP_P}


def export(model, tokenizer, folder):
    """Writes the checkpoint in bf16."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in (("config", config(model.shape, tokenizer)), ("tokenizer_config", tokenizer_config(model.shape, tokenizer)), ("generation_config", generation_config(tokenizer))):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")

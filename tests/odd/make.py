#!/usr/bin/env python3
"""Models of odd sizes and unusual options, with the logits that transformers computes of them.

    python3 tests/odd/make.py [NAME ...]

writes a directory next to this file for every entry of MODELS: `config.json`, the weights, and `golden.safetensors` with two
lists of ids and the logits after the last of each, computed in float32 with eager attention. Tests go from
the folder through the frontend to the reference, by ids, so there is no tokenizer. Every number follows from a tensor's
name: two runs with the same torch and transformers (2.13, 5.23) write the same bytes.

Options of an entry:
  dtype    of the weights; norms=True leaves gains and biases in float32
  style    old: config.json has the entry's keys, as files on the hub do; new: as transformers 5 writes it
  shard    maximum bytes of a file
  extra    unused tensors in the files
  strip    prefix removed from the tensor names
  scores   standard deviation of attention scores, which the gains of queries and keys set; without it the gains are near 1
  fused    True: the experts of a layer are one tensor, and their gates and ups too
"""
import json, os, re, shutil, sys, tempfile, zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = dict(bf16=("bfloat16", torch.bfloat16), f16=("float16", torch.float16), f32=("float32", torch.float32))
LENGTHS = (5, 23)


def model(family, hidden, inner, heads, keys, vocabulary, layers=2, context=90, **config):
    """An entry. Sizes that are None are omitted from the config; options are stored outside the config."""
    sizes = dict(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                 num_attention_heads=heads, num_key_value_heads=keys, max_position_embeddings=context)
    options = {key: config.pop(key) for key in list(config) if key in
               ("dtype", "norms", "style", "shard", "extra", "strip", "wrapper", "fused", "scores")}
    sizes = {key: size for key, size in sizes.items() if size is not None}
    return dict(dict(family=family, dtype="bf16", style="old"), config=dict(sizes, **config), **options)


def gpt2(width, layers, heads, vocabulary, **config):
    """The same for GPT-2, which has names of its own for everything."""
    entry = model("gpt2", None, None, None, None, vocabulary, None, None, **config)
    entry["config"].update(n_embd=width, n_layer=layers, n_head=heads)
    return entry


def gemma4_text_only(text, **options):
    """The multimodal class of Gemma 4, without vision and audio."""
    config = dict(text_config=dict(text["config"], model_type="gemma4_text"), vision_config=None, audio_config=None)
    return dict(text, family="gemma4", config=config, wrapper="Gemma4ForConditionalGeneration", **options)


def gemma3_multimodal(text, **options):
    """Gemma 3 with a vision tower."""
    vision = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                  num_attention_heads=2, image_size=8, patch_size=4)
    config = dict(text_config=dict(text["config"], model_type="gemma3_text"), vision_config=vision,
                  mm_tokens_per_image=4, image_token_index=64, boi_token_index=62, eoi_token_index=63)
    return dict(text, family="gemma3", config=config, wrapper="Gemma3ForConditionalGeneration", **options)


def qwen_multimodal(text, family="qwen3_5", wrapper="Qwen3_5ForConditionalGeneration", **options):
    """Qwen 3.5 with a vision tower."""
    vision = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=text["config"]["hidden_size"],
                  num_position_embeddings=16, patch_size=4)
    config = dict(text_config=dict(text["config"], model_type=f"{family}_text"), vision_config=vision,
                  image_token_id=60, video_token_id=59, vision_start_token_id=58, vision_end_token_id=57,
                  tie_word_embeddings=text["config"].get("tie_word_embeddings", False))
    return dict(text, family=family, config=config, wrapper=wrapper, **options)


def qwen_moe_multimodal(text, **options):
    """Qwen 3.5 MoE with a vision tower."""
    return qwen_multimodal(text, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", **options)


def delta_net_sizes(key_heads, key_width, value_heads, value_width, taps=4, **keys):
    """The sizes of Gated DeltaNet; those that are None are left out."""
    sizes = dict(linear_num_key_heads=key_heads, linear_key_head_dim=key_width, linear_num_value_heads=value_heads,
                 linear_value_head_dim=value_width, linear_conv_kernel_dim=taps)
    return dict({key: size for key, size in sizes.items() if size is not None}, **keys)


def yarn(**keys):
    return dict(dict(rope_type="yarn", factor=3.0, original_max_position_embeddings=30), **keys)


MODELS = {
    "llama_yarn": model("llama", 40, 27, 4, 1, 61, dtype="f32", tie_word_embeddings=True, rope_theta=5000.0,
        rope_scaling=dict(type="yarn", factor=3.0, original_max_position_embeddings=30)),
    "llama_biased": model("llama", 44, 30, 4, 2, 67, dtype="f16", style="new", head_dim=6, attention_bias=True,
        mlp_bias=True, hidden_act="gelu", tie_word_embeddings=False, rope_theta=500000.0, rms_norm_eps=1e-5,
        rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
                          original_max_position_embeddings=20)),
    "llama_sharded": model("llama", 44, 31, 2, None, 71, context=None, shard=20_000, extra="frequencies",
        hidden_act="relu", rope_scaling=dict(type="linear", factor=2.5), tie_word_embeddings=False),
    "llama_squared": model("llama", 40, 26, 4, 2, 71, dtype="f16", hidden_act="relu2", tie_word_embeddings=True),
    "llama_magnified": model("llama", 42, 25, 3, 3, 73, style="new", tie_word_embeddings=True,
        rope_scaling=yarn(factor=8.0, mscale=0.7, mscale_all_dim=0.5, truncate=False, beta_fast=4.0, beta_slow=2)),
    "llama_long": model("llama", 48, 26, 6, 2, 79, extra="head", tie_word_embeddings=True,
        rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.2, 2.0, 4.5, 9.0],
                          original_max_position_embeddings=16, factor=4.0)),
    "llama_proportional": model("llama", 44, 28, 2, 1, 83, dtype="f16", tie_word_embeddings=False, rope_theta=3000.0,
        rope_scaling=dict(rope_type="proportional", partial_rotary_factor=0.3, factor=2.5)),

    "mistral_narrow": model("mistral", 42, 29, 3, 3, 67, dtype="f16", head_dim=10, sliding_window=7,
        tie_word_embeddings=True, rope_scaling=yarn(attention_factor=0.8)),
    "mistral_whole": model("mistral", 40, 35, 5, 1, 89, style="new", head_dim=None, sliding_window=None,
        rope_scaling=dict(rope_type="linear", factor=3.0), hidden_act="gelu_pytorch_tanh"),
    "mistral_bare": model("mistral", 48, 23, 8, None, 101, context=None, norms=True, shard=15_000),

    "qwen2_windows": model("qwen2", 40, 27, 5, 1, 83, use_sliding_window=True, max_window_layers=1,
        sliding_window=5, tie_word_embeddings=True, rope_theta=1e6),
    "qwen2_wide": model("qwen2", 44, 31, 3, None, 79, shard=18_000, num_key_value_heads=None, head_dim=12,
        rope_scaling=dict(type="yarn", factor=2.0, original_max_position_embeddings=45, beta_fast=20, beta_slow=2)),
    "qwen2_listed": model("qwen2", 42, 37, 3, 1, 97, style="new", dtype="f16", hidden_act="gelu_new",
        use_sliding_window=True, sliding_window=9, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"]),

    "qwen3_biased": model("qwen3", 50, 21, 3, 1, 73, style="new", head_dim=10, attention_bias=True,
        use_sliding_window=True, sliding_window=6, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention"]),
    "qwen3_bare": model("qwen3", 40, 33, 2, 1, 61, layers=1, context=None, tie_word_embeddings=True,
        rope_scaling=dict(rope_type="linear", factor=1.5)),
    "qwen3_shared": model("qwen3", 48, 27, 4, None, 91, dtype="f16", shard=16_000, num_key_value_heads=None,
        head_dim=10, rms_norm_eps=1e-4, rope_scaling=yarn(beta_fast=8), tie_word_embeddings=True),
    "qwen3_proportional": model("qwen3", 42, 29, 3, 1, 71, style="new", head_dim=14, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=20000.0)),

    "qwen3_5_text_biased": model("qwen3_5_text", 44, 27, 3, 1, 79, style="new", head_dim=16, attention_bias=True,
        tie_word_embeddings=True, layer_types=["full_attention", "linear_attention"],
        **delta_net_sizes(3, 10, 3, 6, 3)),
    "qwen3_5_text_shared": model("qwen3_5_text", 40, 23, 5, 5, 67, layers=3, dtype="f16", shard=16_000, head_dim=10,
        full_attention_interval=2, partial_rotary_factor=0.6, rope_theta=500.0, rms_norm_eps=1e-4,
        **delta_net_sizes(2, 6, 8, 14, 5)),
    "qwen3_5_text_bare": model("qwen3_5_text", 40, 25, 4, None, 61, layers=4, context=None, norms=True, head_dim=16,
        extra="guesses", **delta_net_sizes(None, 5, None, 3, None)),

    "qwen3_5_old": qwen_multimodal(model("qwen3_5", 42, 25, 3, 1, 71, head_dim=20, full_attention_interval=2,
        rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.3,
                             mrope_section=[1, 1, 1], mrope_interleaved=True), attn_output_gate=True,
        mamba_ssm_dtype="float32", **delta_net_sizes(3, 6, 6, 9))),
    "qwen3_5_new": qwen_multimodal(model("qwen3_5", 40, 30, 2, 2, 73, head_dim=18, tie_word_embeddings=True,
        layer_types=["linear_attention", "full_attention"], partial_rotary_factor=1.0, **delta_net_sizes(2, 8, 2, 5, 2)),
        style="new", dtype="f16"),
    "qwen3_5_tied": qwen_multimodal(model("qwen3_5", 44, 21, 4, 2, 83, layers=1, head_dim=16, tie_word_embeddings=True,
        **delta_net_sizes(1, 7, 3, 11)), shard=12_000),

    "qwen3_5_moe_text_biased": model("qwen3_5_moe_text", 44, None, 3, 1, 79, style="new", head_dim=16,
        attention_bias=True, tie_word_embeddings=True, layer_types=["full_attention", "linear_attention"], num_experts=5,
        num_experts_per_tok=3, moe_intermediate_size=19, shared_expert_intermediate_size=10,
        **delta_net_sizes(3, 10, 3, 6, 3)),
    "qwen3_5_moe_text_all": model("qwen3_5_moe_text", 40, None, 5, 5, 67, layers=3, dtype="f16", shard=16_000, head_dim=10,
        full_attention_interval=2, partial_rotary_factor=0.6, rope_theta=500.0, rms_norm_eps=1e-4, num_experts=4,
        num_experts_per_tok=4, moe_intermediate_size=11, shared_expert_intermediate_size=29, **delta_net_sizes(2, 6, 8, 14, 5)),
    "qwen3_5_moe_text_bare": model("qwen3_5_moe_text", 40, None, 4, None, 61, layers=4, context=None, norms=True,
        head_dim=16, extra="guesses", num_experts=6, num_experts_per_tok=1, moe_intermediate_size=9,
        shared_expert_intermediate_size=12, fused=True, **delta_net_sizes(None, 5, None, 3, None)),

    "qwen3_5_moe_old": qwen_moe_multimodal(model("qwen3_5_moe", 42, None, 3, 1, 71, head_dim=20, full_attention_interval=2,
        rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.3,
                             mrope_section=[1, 1, 1], mrope_interleaved=True), attn_output_gate=True,
        mamba_ssm_dtype="float32", num_experts=7, num_experts_per_tok=2, moe_intermediate_size=13,
        shared_expert_intermediate_size=17, **delta_net_sizes(3, 6, 6, 9)), fused=True),
    "qwen3_5_moe_new": qwen_moe_multimodal(model("qwen3_5_moe", 40, None, 2, 2, 73, head_dim=18, tie_word_embeddings=True,
        layer_types=["linear_attention", "full_attention"], partial_rotary_factor=1.0, num_experts=3,
        num_experts_per_tok=2, moe_intermediate_size=15, shared_expert_intermediate_size=15, **delta_net_sizes(2, 8, 2, 5, 2)),
        style="new", dtype="f16"),
    "qwen3_5_moe_tied": qwen_moe_multimodal(model("qwen3_5_moe", 44, None, 4, 2, 83, layers=1, head_dim=16,
        tie_word_embeddings=True, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=21,
        shared_expert_intermediate_size=8, **delta_net_sizes(1, 7, 3, 11)), shard=12_000),

    "qwen3_next_listed": model("qwen3_next", 44, 25, 3, 1, 79, style="new", head_dim=16, attention_bias=True,
        tie_word_embeddings=True, layer_types=["full_attention", "linear_attention"], num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=17, shared_expert_intermediate_size=9, mlp_only_layers=[0],
        norm_topk_prob=False, **delta_net_sizes(3, 8, 9, 6, 3)),
    "qwen3_next_sparse": model("qwen3_next", 40, 21, 5, 5, 67, layers=4, dtype="f16", shard=16_000, head_dim=10,
        full_attention_interval=3, partial_rotary_factor=0.6, rope_theta=500.0, rms_norm_eps=1e-4, num_experts=3,
        num_experts_per_tok=3, moe_intermediate_size=14, shared_expert_intermediate_size=23, decoder_sparse_step=2,
        fused=True, **delta_net_sizes(2, 6, 4, 10, 5)),
    "qwen3_next_bare": model("qwen3_next", 40, 19, 4, None, 61, layers=4, context=None, norms=True, head_dim=16,
        extra="guesses", num_experts=6, num_experts_per_tok=4, moe_intermediate_size=12,
        shared_expert_intermediate_size=16, rope_scaling=yarn(), **delta_net_sizes(None, 5, None, 3, None)),

    "phi3_long": model("phi3", 48, 23, 4, 2, 103, pad_token_id=0, partial_rotary_factor=0.5, tie_word_embeddings=True,
        original_max_position_embeddings=16,
        rope_scaling=dict(type="longrope", short_factor=[1.0, 1.2, 1.4], long_factor=[1.5, 3.0, 7.0])),
    "phi3_partial": model("phi3", 48, 31, 3, 1, 71, style="new", dtype="f16", pad_token_id=0, sliding_window=11,
        partial_rotary_factor=0.75, rms_norm_eps=1e-6),
    "phi3_bare": model("phi3", 40, 26, 5, None, 83, shard=14_000, pad_token_id=0, sliding_window=2047, rope_scaling=None,
        context=None, hidden_act="gelu"),
    "phi3_new": model("phi3", 56, 19, 4, 1, 67, style="new", pad_token_id=0, original_max_position_embeddings=40,
        rope_scaling=dict(rope_type="longrope", short_factor=[1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7],
                          long_factor=[1, 2, 3, 4, 5, 6, 7], attention_factor=1.3)),

    "gemma2_uncapped": model("gemma2", 42, 27, 3, 1, 83, style="new", head_dim=10, query_pre_attn_scalar=13,
        sliding_window=5, attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=["full_attention", "sliding_attention"]),
    "gemma2_bare": model("gemma2", 40, 22, 1, 1, 61, layers=1, context=None),
    "gemma2_untied": model("gemma2", 44, 29, 4, None, 71, dtype="f16", head_dim=6, attention_bias=True,
        hidden_activation="gelu", query_pre_attn_scalar=10, attn_logit_softcapping=3.0, final_logit_softcapping=None,
        sliding_window=8, tie_word_embeddings=False, rope_scaling=dict(type="linear", factor=2.0)),

    "gemma3_text_nested": model("gemma3_text", 44, 27, 4, 2, 79, style="new", head_dim=14,
        query_pre_attn_scalar=20, sliding_window=9, final_logit_softcapping=7.0, attention_bias=True,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=500000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=20000.0))),
    "gemma3_text_pattern": model("gemma3_text", 40, 31, 5, 1, 89, dtype="f16", head_dim=10, sliding_window=6,
        sliding_window_pattern=2, rope_scaling=dict(rope_type="linear", factor=8.0), rope_local_base_freq=3000.0,
        rope_theta=50000.0, query_pre_attn_scalar=17, attn_logit_softcapping=5.0, tie_word_embeddings=False),
    "gemma3_text_bare": model("gemma3_text", 40, 29, None, None, 97, context=None, head_dim=6, sliding_window=7,
        shard=12_000),

    "gemma3_old": gemma3_multimodal(model("gemma3", 40, 27, 4, 1, 83, head_dim=10, sliding_window=7,
        sliding_window_pattern=2, query_pre_attn_scalar=14, rope_scaling=dict(rope_type="linear", factor=8.0))),
    "gemma3_new": gemma3_multimodal(model("gemma3", 42, 30, 3, 3, 73, head_dim=12, sliding_window=9,
        query_pre_attn_scalar=11, layer_types=["sliding_attention", "full_attention"]),
        style="new", dtype="f16"),
    "gemma3_sharded": gemma3_multimodal(model("gemma3", 48, 25, 8, 2, 71, head_dim=6, sliding_window=5, rope_theta=200000.0,
        rope_local_base_freq=5000.0, attention_bias=True), shard=20_000),

    "gemma4_text_shared": model("gemma4_text", 40, 27, 4, 2, 79, layers=5, head_dim=10, global_head_dim=14,
        sliding_window=6, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=6, scores=1,
        vocab_size_per_layer_input=83, final_logit_softcapping=7.0, hidden_activation="gelu", attention_bias=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
    "gemma4_text_equal": model("gemma4_text", 42, 30, 4, 4, 73, layers=3, style="new", dtype="f16", head_dim=6,
        global_head_dim=12, attention_k_eq_v=True, num_global_key_value_heads=1, sliding_window=5,
        hidden_size_per_layer_input=0, rms_norm_eps=1e-4, tie_word_embeddings=False, max_position_embeddings=60,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, factor=2.0,
                                                 rope_theta=5000.0),
                             sliding_attention=dict(rope_type="linear", factor=3.0, rope_theta=20000.0))),
    "gemma4_text_bare": model("gemma4_text", 40, 22, None, 1, 61, layers=7, context=None, shard=60_000, head_dim=6,
        global_head_dim=10, vocab_size_per_layer_input=61, hidden_size_per_layer_input=3, sliding_window=9,
        use_bidirectional_attention="vision"),
    "gemma4_text_wide": model("gemma4_text", 40, 22, 2, 1, 67, layers=2, head_dim=32, global_head_dim=512,
        sliding_window=8, hidden_size_per_layer_input=0, scores=1,
        layer_types=["sliding_attention", "full_attention"]),

    "gemma4_text_experts": model("gemma4_text", 42, 27, 3, 1, 79, layers=3, head_dim=10, global_head_dim=14,
        sliding_window=6, num_kv_shared_layers=1, use_double_wide_mlp=True, hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=79, enable_moe_block=True, num_experts=7, top_k_experts=3, moe_intermediate_size=13,
        layer_types=["sliding_attention", "full_attention", "full_attention"]),
    "gemma4_text_chosen": model("gemma4_text", 40, 22, 4, 2, 67, layers=2, style="new", dtype="f16", head_dim=8,
        global_head_dim=12, sliding_window=5, hidden_size_per_layer_input=0, rms_norm_eps=1e-4, enable_moe_block=True,
        hidden_activation="gelu", num_experts=4, top_k_experts=4, moe_intermediate_size=9),
    "gemma4_experts": gemma4_text_only(model("gemma4_text", 44, 19, 2, 2, 73, layers=3, head_dim=6, global_head_dim=10,
        attention_k_eq_v=True, sliding_window=7, hidden_size_per_layer_input=0, final_logit_softcapping=9.0,
        enable_moe_block=True, num_experts=37, top_k_experts=1, moe_intermediate_size=11), shard=60_000),

    "gemma4_old": gemma4_text_only(model("gemma4_text", 42, 31, 3, 1, 67, layers=4, head_dim=8, global_head_dim=12,
        sliding_window=7, num_kv_shared_layers=2, hidden_size_per_layer_input=5, vocab_size_per_layer_input=67,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"])),
    "gemma4_new": gemma4_text_only(model("gemma4_text", 44, 26, 6, 3, 71, layers=3, head_dim=10, global_head_dim=14,
        attention_k_eq_v=True, sliding_window=8, hidden_size_per_layer_input=4, vocab_size_per_layer_input=75,
        final_logit_softcapping=11.0, layer_types=["sliding_attention", "full_attention", "full_attention"]),
        style="new", dtype="f16"),
    "gemma4_sharded": gemma4_text_only(model("gemma4_text", 40, 23, 4, 2, 89, layers=3, head_dim=6, global_head_dim=6,
        attention_bias=True, hidden_size_per_layer_input=0, layer_types=["full_attention"] * 3,
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=3000.0))), shard=20_000),

    "olmo2_linear": model("olmo2", 42, 31, 3, 1, 83, dtype="f16", attention_bias=True, tie_word_embeddings=True,
        rope_scaling=dict(type="linear", factor=2.0)),
    "olmo2_yarn": model("olmo2", 40, 27, 5, None, 79, style="new", rope_scaling=yarn(), rms_norm_eps=1e-4,
        tie_word_embeddings=False),
    "olmo2_bare": model("olmo2", 44, 35, 4, 2, 67, context=None, shard=15_000, hidden_act="gelu_new", head_dim=6),

    "smollm3_listed": model("smollm3", 42, 23, 3, 1, 83, dtype="f16", pad_token_id=0, no_rope_layers=[0, 1],
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "smollm3_yarn": model("smollm3", 40, 21, 5, 5, 73, layers=3, style="new", pad_token_id=0, no_rope_layer_interval=2,
        rope_scaling=yarn(factor=5.0)),
    "smollm3_bare": model("smollm3", 40, 19, 4, None, 61, layers=4, context=None, pad_token_id=0, shard=14_000),

    "granite_biased": model("granite", 48, 27, 6, 3, 71, style="new", dtype="f16", attention_bias=True, mlp_bias=True,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.078125, logits_scaling=8.0,
        tie_word_embeddings=False, hidden_act="gelu_pytorch_tanh"),
    "granite_linear": model("granite", 42, 29, 3, 1, 97, rope_scaling=dict(type="linear", factor=2.5),
        embedding_multiplier=0.5, residual_multiplier=1.5, logits_scaling=0.25, tie_word_embeddings=True),
    "granite_bare": model("granite", 40, 33, 4, None, 83, context=None, shard=15_000, rope_scaling=yarn()),

    "glm4_quarter": model("glm4", 44, 27, 3, 1, 79, style="new", pad_token_id=0, head_dim=24, partial_rotary_factor=0.25,
        attention_bias=False, tie_word_embeddings=True),
    "glm4_bare": model("glm4", 40, 25, 4, None, 71, context=None, dtype="f16", shard=18_000, pad_token_id=0, head_dim=12),
    "glm4_linear": model("glm4", 42, 23, 5, 5, 67, pad_token_id=0, head_dim=10, partial_rotary_factor=1.0,
        attention_bias=True, hidden_act="gelu", rope_scaling=dict(rope_type="linear", factor=3.0), rms_norm_eps=1e-4),
    "glm4_yarn": model("glm4", 46, 31, 2, 1, 89, style="new", pad_token_id=0, head_dim=12, rope_scaling=yarn()),

    "hunyuan_stretched": model("hunyuan_v1_dense", 44, 31, 3, 1, 79, pad_token_id=0, head_dim=10, attention_bias=True,
        mlp_bias=False, tie_word_embeddings=False, rope_scaling=dict(type="dynamic", alpha=1000.0, factor=1.0,
        beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)),
    "hunyuan_new": model("hunyuan_v1_dense", 40, 26, 4, 1, 83, layers=2, style="new", dtype="f16", pad_token_id=0,
        head_dim=14, tie_word_embeddings=True, rope_scaling=dict(type="dynamic", alpha=50.0, factor=1.0)),
    "hunyuan_bare": model("hunyuan_v1_dense", 40, 21, 5, None, 67, context=None, shard=16_000, pad_token_id=0, head_dim=10,
        rope_scaling=dict(type="linear", factor=2.0)),

    "ernie4_5_biased": model("ernie4_5", 40, 27, 3, 1, 79, style="new", pad_token_id=0, head_dim=10, use_bias=True,
        tie_word_embeddings=False),
    "ernie4_5_bare": model("ernie4_5", 40, 23, 2, None, 61, layers=1, context=None, dtype="f16", pad_token_id=0),
    "ernie4_5_yarn": model("ernie4_5", 44, 29, 3, None, 71, shard=18_000, pad_token_id=0, num_key_value_heads=None,
        head_dim=14, hidden_act="gelu_pytorch_tanh", rope_scaling=yarn(truncate=False), rope_theta=20000.0),

    "cohere2_biased": model("cohere2", 42, 29, 3, 1, 97, pad_token_id=0, sliding_window=7,
        sliding_window_pattern=2, logit_scale=0.5, attention_bias=True),
    "cohere2_listed": model("cohere2", 40, 27, 5, 5, 79, style="new", dtype="f16", pad_token_id=0, sliding_window=5,
        layer_types=["full_attention", "sliding_attention"], layer_norm_eps=1e-3, hidden_act="gelu_pytorch_tanh",
        logit_scale=2.0),
    "cohere2_bare": model("cohere2", 40, 21, 4, None, 61, layers=4, context=None, shard=15_000, pad_token_id=0,
        rope_scaling=yarn()),

    "qwen3_moe_sparse": model("qwen3_moe", 44, 27, 3, 1, 79, layers=3, style="new", head_dim=10, num_experts=5,
        num_experts_per_tok=3, moe_intermediate_size=19, norm_topk_prob=True, decoder_sparse_step=2,
        use_sliding_window=True, sliding_window=7, tie_word_embeddings=True),
    "qwen3_moe_all": model("qwen3_moe", 40, 31, 5, None, 83, dtype="f16", shard=20_000, num_key_value_heads=5,
        head_dim=8, num_experts=3, num_experts_per_tok=3, moe_intermediate_size=22, norm_topk_prob=False,
        attention_bias=True, tie_word_embeddings=False, hidden_act="gelu"),
    "qwen3_moe_listed": model("qwen3_moe", 42, 25, 3, 1, 61, context=None, num_experts=37, num_experts_per_tok=9,
        moe_intermediate_size=9, norm_topk_prob=True, mlp_only_layers=[1], rope_scaling=yarn(),
        tie_word_embeddings=True, fused=True),

    "mixtral_windows": model("mixtral", 44, 21, 4, 2, 71, style="new", num_local_experts=5, num_experts_per_tok=1,
        sliding_window=7, head_dim=12, tie_word_embeddings=True),
    "mixtral_all": model("mixtral", 42, 19, 3, 1, 67, dtype="f16", shard=16_000, num_local_experts=3,
        num_experts_per_tok=3, hidden_act="gelu", rms_norm_eps=1e-4),
    "mixtral_bare": model("mixtral", 48, 17, 8, None, 89, context=None, num_local_experts=6, num_experts_per_tok=4,
        tie_word_embeddings=False, rope_scaling=dict(type="linear", factor=2.0)),

    "qwen2_moe_windows": model("qwen2_moe", 40, 27, 5, 1, 83, layers=4, style="new", use_sliding_window=True,
        max_window_layers=3, sliding_window=5, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=13,
        shared_expert_intermediate_size=21, norm_topk_prob=True, decoder_sparse_step=2, qkv_bias=False),
    "qwen2_moe_fused": model("qwen2_moe", 40, 31, 4, 4, 79, dtype="f16", shard=18_000, num_experts=7,
        num_experts_per_tok=5, moe_intermediate_size=15, shared_expert_intermediate_size=10, fused=True,
        mlp_only_layers=[0], tie_word_embeddings=True, rope_scaling=yarn(truncate=False)),
    "qwen2_moe_listed": model("qwen2_moe", 42, 29, 3, 1, 67, context=None, num_experts=4, num_experts_per_tok=4,
        moe_intermediate_size=11, shared_expert_intermediate_size=33, hidden_act="gelu_new", use_sliding_window=True,
        sliding_window=9, layer_types=["full_attention", "sliding_attention"]),

    "glm4_moe_groups": model("glm4_moe", 44, 27, 3, 1, 79, style="new", pad_token_id=0, head_dim=16,
        partial_rotary_factor=0.25, n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3,
        moe_intermediate_size=11, n_group=4, topk_group=2, first_k_dense_replace=0, norm_topk_prob=False,
        routed_scaling_factor=1.5, use_qk_norm=True, tie_word_embeddings=True),
    "glm4_moe_further": model("glm4_moe", 40, 25, 4, 2, 71, dtype="f16", shard=18_000, pad_token_id=0, head_dim=12,
        attention_bias=True, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=17,
        routed_scaling_factor=2.5, num_nextn_predict_layers=1, extra="further"),
    "glm4_moe_bare": model("glm4_moe", 64, 23, 8, None, 67, layers=3, context=None, pad_token_id=0,
        n_routed_experts=6, num_experts_per_tok=6, moe_intermediate_size=14, first_k_dense_replace=2,
        hidden_act="gelu", rope_scaling=dict(rope_type="linear", factor=3.0)),

    "gpt_oss_listed": model("gpt_oss", 44, 27, 3, 1, 79, layers=3, style="new", dtype="f16", head_dim=10,
        num_local_experts=5, num_experts_per_tok=2, sliding_window=7, swiglu_limit=0.8, swiglu_alpha=1.3,
        attention_bias=False, tie_word_embeddings=True, rms_norm_eps=1e-4,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "gpt_oss_all": model("gpt_oss", 40, 19, 4, 2, 71, shard=20_000, head_dim=12, num_local_experts=3,
        num_experts_per_tok=3, sliding_window=5, swiglu_limit=1.5, rope_theta=5000.0,
        rope_scaling=yarn(beta_fast=8, truncate=False)),
    "gpt_oss_bare": model("gpt_oss", 40, 17, 8, None, 61, context=None, num_local_experts=6, num_experts_per_tok=4),

    "deepseek_v2_groups": model("deepseek_v2", 44, 27, 4, None, 79, layers=3, q_lora_rank=20, kv_lora_rank=18,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=7, n_routed_experts=12, n_shared_experts=2,
        num_experts_per_tok=3, moe_intermediate_size=11, n_group=6, topk_group=2, topk_method="group_limited_greedy",
        routed_scaling_factor=1.5, first_k_dense_replace=1, attention_bias=True,
        rope_scaling=dict(yarn(), mscale=0.7, mscale_all_dim=0.9)),
    "deepseek_v2_fused": model("deepseek_v2", 42, 25, 3, 3, 71, style="new", dtype="f16", q_lora_rank=None,
        kv_lora_rank=22, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=5, n_shared_experts=1,
        num_experts_per_tok=5, moe_intermediate_size=13, mlp_bias=True, hidden_act="gelu", tie_word_embeddings=True,
        fused=True),
    "deepseek_v2_bare": model("deepseek_v2", 40, 19, 2, None, 61, layers=1, context=None, q_lora_rank=None, norms=True,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=9),

    "deepseek_v3_groups": model("deepseek_v3", 44, 21, 4, 4, 83, layers=3, q_lora_rank=None, kv_lora_rank=26,
        qk_nope_head_dim=9, qk_rope_head_dim=10, v_head_dim=5, n_routed_experts=12, n_shared_experts=2,
        num_experts_per_tok=4, moe_intermediate_size=10, n_group=3, topk_group=2, rope_interleave=False,
        first_k_dense_replace=1, norm_topk_prob=False, routed_scaling_factor=1.25, attention_bias=True),
    "deepseek_v3_further": model("deepseek_v3", 40, 23, 5, 5, 67, dtype="f16", shard=16_000, q_lora_rank=16,
        kv_lora_rank=21, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=9, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=12, n_group=1, topk_group=1, first_k_dense_replace=0, num_nextn_predict_layers=1,
        extra="further", rope_scaling=dict(yarn(), mscale=1.0, mscale_all_dim=0.8)),
    "deepseek_v3_bare": model("deepseek_v3", 42, 17, 2, 2, 73, layers=4, context=None, style="new", q_lora_rank=14,
        kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=8, n_routed_experts=16,
        num_experts_per_tok=5, moe_intermediate_size=8, tie_word_embeddings=True, hidden_act="relu"),

    "gpt2_narrow": gpt2(42, 2, 7, 101, n_inner=31, n_positions=37, activation_function="gelu_pytorch_tanh",
        scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3, dtype="f16", strip="transformer.", extra="masks"),
    "gpt2_untied": gpt2(40, 1, 5, 83, n_positions=41, scale_attn_weights=False, tie_word_embeddings=False,
        activation_function="silu", style="new"),
    "gpt2_sharded": gpt2(45, 2, 5, 67, n_inner=29, n_positions=33, activation_function="relu", shard=15_000,
        reorder_and_upcast_attn=True),
    "gpt2_bare": gpt2(40, 1, 2, 61, n_inner=50, n_positions=29, n_ctx=29, activation_function="gelu"),
}


def random_like(entry, config, name, tensor):
    """What a tensor holds. Of such sizes that every layer has its say in the logits."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    numbers = torch.randn(tensor.shape, generator=generator)
    tied = config.tie_word_embeddings
    if re.search(r"(embed_tokens|wte)\.weight$", name):
        if entry["family"].startswith("gemma"):
            return numbers * 0.4 / config.hidden_size ** 0.5
        return numbers * (0.1 if tied else 0.35) / getattr(config, "embedding_multiplier", 1.0)
    if "wpe" in name:
        return numbers * 0.4
    if name.endswith("bias"):
        return numbers * 0.2
    if name.endswith("A_log"):
        return numbers - 1.5
    if "scores" in entry and name.endswith(("q_norm.weight", "k_norm.weight")):
        return (1.0 + 0.2 * numbers) * (entry["scores"] / tensor.numel() ** 0.5) ** 0.5
    if tensor.dim() == 1:
        plus_one = bool((tensor == 0).all())
        last = 3.0 if tied and re.search(r"(^|\.)(norm|ln_f)\.weight$", name) else 1.0
        return last * (1.0 + 0.2 * numbers) - (1.0 if plus_one else 0.0)
    if tensor.dim() == 3:
        return numbers * 1.2 / tensor.shape[-1] ** 0.5
    inputs = tensor.shape[0] if entry["family"] == "gpt2" and "lm_head" not in name else tensor[0].numel()
    return numbers * (2.0 if "lm_head" in name else 1.2) / inputs ** 0.5


def initialized(entry):
    """The model with its random weights."""
    config = CONFIG_MAPPING[entry["family"]](**json.loads(json.dumps(entry["config"])))
    kind = getattr(transformers, entry["wrapper"]) if "wrapper" in entry else \
        AutoModelForCausalLM._model_mapping[type(config)]
    model, seen = kind(config), set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameter.copy_(random_like(entry, config.get_text_config(), name, parameter))
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.copy_(random_like(entry, config.get_text_config(), name, buffer))
    return model


def unused(entry, tensors):
    """Tensors that files carry and nobody uses."""
    config, dtype = entry["config"], TYPES[entry["dtype"]][1]
    kind = entry.get("extra")
    if kind == "frequencies":
        width = config["hidden_size"] // config["num_attention_heads"]
        frequencies = 1.0 / 10000.0 ** (torch.arange(0, width, 2).float() / width)
        return {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": frequencies.clone()
                for layer in range(config["num_hidden_layers"])}
    if kind == "head":
        return {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    if kind == "guesses":
        return {"mtp.fc.weight": torch.ones(config["hidden_size"], 2 * config["hidden_size"]).to(dtype)}
    if kind == "further":
        layer = f"model.layers.{config['num_hidden_layers']}"
        return {f"{layer}.eh_proj.weight": torch.ones(2, 3), f"{layer}.shared_head.norm.weight": torch.ones(3)}
    if kind == "masks":
        side = config["n_positions"]
        mask = torch.tril(torch.ones(side, side)).view(1, 1, side, side).to(torch.uint8)
        return {f"h.{layer}.attn.bias": mask.clone() for layer in range(config["n_layer"])}
    return {}


def fused(tensors):
    """The same with the experts of each layer in one tensor, gates above ups."""
    parts, others = {}, {}
    for name, tensor in tensors.items():
        match = re.match(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$", name)
        if match:
            parts.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = tensor
        else:
            others[name] = tensor
    for layer, experts in parts.items():
        each = [experts[number] for number in sorted(experts)]
        others[f"{layer}.gate_up_proj"] = torch.stack([torch.cat([it["gate"], it["up"]]) for it in each])
        others[f"{layer}.down_proj"] = torch.stack([it["down"] for it in each])
    return others


def write_weights(entry, tensors, folder):
    """One file, or as many as a shard's size asks for, with their index."""
    shards, size = [{}], 0
    for name in sorted(tensors):
        length = tensors[name].numel() * tensors[name].element_size()
        if size + length > entry.get("shard", 1 << 40) and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name].contiguous()
        size += length
    if len(shards) == 1:
        save_file(shards[0], f"{folder}/model.safetensors", metadata={"format": "pt"})
        return
    places = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, f"{folder}/{file}", metadata={"format": "pt"})
        places.update((name, file) for name in shard)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(dict(metadata=dict(total_size=total), weight_map=places), f"{folder}/model.safetensors.index.json")


def write_json(value, path):
    with open(path, "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")


def write(entry, folder):
    """The checkpoint."""
    name, dtype = TYPES[entry["dtype"]]
    model = initialized(entry)
    with tempfile.TemporaryDirectory() as scratch:
        model.config.dtype = dtype
        model.save_pretrained(scratch)
        config = json.load(open(f"{scratch}/config.json"))
        tensors = load_file(f"{scratch}/model.safetensors")
    single = lambda key, tensor: entry.get("norms") and tensor.dim() == 1 or key.endswith("correction_bias")
    tensors = {key: tensor if single(key, tensor) else tensor.to(dtype) for key, tensor in tensors.items()}
    tensors = {key.removeprefix(entry.get("strip", "")): tensor for key, tensor in tensors.items()}
    tensors = fused(tensors) if entry.get("fused") else tensors
    tensors.update(unused(entry, tensors))
    if entry["style"] == "old":
        architecture = dict(architectures=config["architectures"], model_type=entry["family"])
        config = dict(architecture, **entry["config"], torch_dtype=name)
    os.makedirs(folder)
    write_weights(entry, tensors, folder)
    write_json(config, f"{folder}/config.json")


def load(entry, folder):
    """The model that transformers loads from the directory."""
    kind = getattr(transformers, entry["wrapper"]) if "wrapper" in entry else AutoModelForCausalLM
    model, loading_info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                       output_loading_info=True)
    passed_over = ["unexpected_keys"] if "extra" in entry else []
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert what in passed_over or not loading_info[what], (what, loading_info[what])
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


@torch.no_grad()
def golden(entry, folder):
    """Ids, and the logits after the last of them."""
    model, found = load(entry, folder), {}
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(zlib.crc32(os.path.basename(folder).encode()))
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(0, min(vocabulary, 60), (length,), generator=generator)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1].float()
        assert torch.isfinite(logits).all()
        found[f"ids_{number}"], found[f"last_{number}"] = ids.to(torch.int32), logits.contiguous().clone()
    for number in range(len(LENGTHS)):
        try:
            exact = load(entry, folder).double()(input_ids=found[f"ids_{number}"].long()[None], use_cache=False)
        except RuntimeError:  # Some of transformers' attention insists on float32.
            continue
        last = found[f"last_{number}"]
        noise = float((exact.logits[0, -1] - last.double()).abs().max() / last.std())
        assert noise < 5e-5, f"float32 is {noise} from float64"
    save_file(found, f"{folder}/golden.safetensors")
    return float(found["last_1"].std())


def main():
    names, total = sys.argv[1:] or list(MODELS), 0
    for name in names:
        folder = os.path.join(HERE, name)
        shutil.rmtree(folder, ignore_errors=True)
        write(MODELS[name], folder)
        spread = golden(MODELS[name], folder)
        size = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))
        total += size
        print(f"{name:20} {size / 1000:5.0f} kB, logits spread over {spread:.2f}", flush=True)
    print(f"{len(names)} models, {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

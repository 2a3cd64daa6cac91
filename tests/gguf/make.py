"""Makes the files beside this script: tiny models, converted by llama.cpp, with the logits of transformers.

  LLAMA_CPP=/path/to/llama.cpp python make.py [--out DIR] [--all] [NAME ...]

llama.cpp is commit 0c1e57098; transformers 5.23, torch 2.15, sentencepiece 0.2. `--all` makes every family in every type,
which is too much to keep; NAME is such a name, `llama-q8_0`. Nothing of llama.cpp is patched but what its converter does
not know of a tokenizer that nobody published: the name of its pre-tokenizer, and that ERNIE's is not SentencePiece here.

Weights are random, norms and biases too. Matrices of the model that gives the logits are quantized and dequantized by
gguf-py, so that the logits are those of the numbers that the file holds.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import zlib

LLAMA = os.environ.get("LLAMA_CPP", "llama.cpp")
sys.path[:0] = [LLAMA, LLAMA + "/gguf-py"]
HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
SMALL = dict(SIZES, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
MOE = dict(SMALL, intermediate_size=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2)
DELTA_NET = dict(head_dim=32, partial_rotary_factor=0.5, full_attention_interval=2, layer_types=["linear_attention", "full_attention"],
                 linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
HYBRID = dict(MOE, **DELTA_NET, shared_expert_intermediate_size=32)
LATER = dict(SMALL, moe_intermediate_size=32, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, pad_token_id=0)
MLA = dict(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)
GEMMA4 = dict(SIZES, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16, global_head_dim=32, sliding_window=16,
              final_logit_softcapping=8.0, tie_word_embeddings=True, rope_parameters=dict(
              sliding_attention=dict(rope_type="default", rope_theta=1e4),
              full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25)))
# The converter takes no others for control tokens.
MARKERS = dict(extra_special_tokens=["<start_of_turn>", "<end_of_turn>"])
SHORT = [1.0, 1.02, 1.05, 1.1, 1.3, 1.7, 2.1, 2.6]
LONG = [1.1, 1.5, 2.2, 3.0, 4.1, 6.3, 9.0, 14.5]

# The converter expects layers for multi-token prediction, which transformers does not have.
WITHOUT_MTP = ["qwen3_next", "qwen35", "glm4_moe"]

# Name: class of the configuration, its keys, the tokenizer's model in tests/models, its pre-tokenizer, keys that the
# converter wants in config.json and transformers does not write.
FAMILIES = {
    "tiny": ("Llama", dict(SIZES, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, tie_word_embeddings=True), "llama", "llama-bpe", {}),
    "wide": ("Llama", dict(SIZES, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_key_value_heads=1,
             tie_word_embeddings=True), "llama", "llama-bpe", {}),
    "llama": ("Llama", dict(SIZES, rms_norm_eps=1e-5), "llama", "llama-bpe", {}),
    "llama3": ("Llama", dict(SIZES, tie_word_embeddings=True, head_dim=32, rope_parameters=LLAMA3), "llama", "llama-bpe", {}),
    "llama_bias": ("Llama", dict(SIZES, attention_bias=True, mlp_bias=True), "llama", "llama-bpe", {}),
    "linear": ("Llama", dict(SIZES, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)), "llama", "llama-bpe", {}),
    "yarn": ("Llama", dict(SIZES, rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=16.0,
             original_max_position_embeddings=64)), "llama", "llama-bpe", {}),
    "mistral": ("Mistral", dict(SIZES, head_dim=32, sliding_window=None), "mistral", None, {}),
    "qwen2": ("Qwen2", dict(SIZES, tie_word_embeddings=True, rope_theta=1e6), "qwen2", "qwen2", {}),
    "qwen3": ("Qwen3", dict(SIZES, head_dim=32, rope_theta=1e6), "qwen3", "qwen2", {}),
    "phi3": ("Phi3", dict(SIZES, pad_token_id=0, sliding_window=24, original_max_position_embeddings=256), "phi3", None,
             dict(original_max_position_embeddings=256)),
    "phi3_longrope": ("Phi3", dict(SIZES, pad_token_id=0, max_position_embeddings=384, tie_word_embeddings=True,
                      original_max_position_embeddings=48, rope_parameters=dict(rope_type="longrope", rope_theta=1e4,
                      short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=48)), "gpt2", "gpt-2",
                      dict(original_max_position_embeddings=48, tokenizer_class="GPT2Tokenizer")),
    "phi3_partial": ("Phi3", dict(SIZES, pad_token_id=0, original_max_position_embeddings=256, partial_rotary_factor=0.5,
                     rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)), "phi3", None,
                     dict(original_max_position_embeddings=256)),
    "gemma2": ("Gemma2", dict(SIZES, head_dim=32, query_pre_attn_scalar=32, sliding_window=16,
               attn_logit_softcapping=5.0, final_logit_softcapping=6.0), "gemma2", None, {}),
    "gemma3": ("Gemma3Text", dict(SIZES, num_hidden_layers=7, head_dim=32, query_pre_attn_scalar=32, sliding_window=16,
               rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                    sliding_attention=dict(rope_type="default", rope_theta=1e4))), "gemma3_text", None, {}),
    "olmo2": ("Olmo2", dict(SIZES, rope_theta=5e5), "olmo2", "gpt-2", {}),
    "smollm3": ("SmolLM3", dict(SIZES, num_hidden_layers=5, pad_token_id=0, rope_theta=5e6), "smollm3", "llama-bpe", {}),
    "granite": ("Granite", dict(SIZES, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.15,
                logits_scaling=3.0, tie_word_embeddings=True), "granite", "gpt-2", {}),
    "glm4": ("Glm4", dict(SIZES, head_dim=32, pad_token_id=0, attention_bias=True, partial_rotary_factor=0.5), "glm4", "glm4", {}),
    "hunyuan": ("HunYuanDenseV1", dict(SIZES, head_dim=32, pad_token_id=0, tie_word_embeddings=True), "hunyuan_v1_dense", "llama-bpe", {}),
    "hunyuan_alpha": ("HunYuanDenseV1", dict(SIZES, head_dim=32, pad_token_id=0, tie_word_embeddings=True,
                      max_position_embeddings=32768, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, alpha=1000.0,
                      factor=1.0)), "hunyuan_v1_dense", "llama-bpe", {}),
    "ernie4_5": ("Ernie4_5", dict(SIZES, head_dim=16, pad_token_id=0, tie_word_embeddings=True), "ernie4_5", "gpt-2", {}),
    "cohere2": ("Cohere2", dict(SIZES, num_hidden_layers=5, sliding_window=16, logit_scale=0.25, pad_token_id=0), "cohere2", "gpt-2",
                dict(rotary_pct=1.0)),
    "gpt2": ("GPT2", dict(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=128), "gpt2", "gpt-2", dict(n_ctx=128)),
    "qwen2_moe": ("Qwen2Moe", dict(MOE, shared_expert_intermediate_size=64, norm_topk_prob=False), "qwen2_moe", "qwen2", {}),
    "qwen3_moe": ("Qwen3Moe", dict(MOE, head_dim=32, norm_topk_prob=True), "qwen3_moe", "qwen2", {}),
    "mixtral": ("Mixtral", dict(SMALL, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=None), "mixtral", None, {}),
    "gpt_oss": ("GptOss", dict(MOE, num_local_experts=4, head_dim=16, intermediate_size=32, sliding_window=16, tie_word_embeddings=False,
                max_position_embeddings=32768, rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0,
                beta_slow=1.0, original_max_position_embeddings=1024, truncate=False)), "gpt_oss", "glm4", {}),
    "qwen3_next": ("Qwen3Next", dict(HYBRID, norm_topk_prob=True), "qwen3_next", "qwen2", {}),
    "qwen35": ("Qwen3_5Text", dict(SMALL, **DELTA_NET), "qwen3_5_text", "qwen2", {}),
    "qwen35_moe": ("Qwen3_5MoeText", dict(HYBRID), "qwen3_5_moe_text", "qwen2", {}),
    "glm4_moe": ("Glm4Moe", dict(LATER, n_routed_experts=4, head_dim=16, attention_bias=True, use_qk_norm=True, n_group=1, topk_group=1,
                 routed_scaling_factor=1.5, norm_topk_prob=True), "glm4_moe", "glm4", {}),
    "deepseek_v2": ("DeepseekV2", dict(LATER, **MLA, q_lora_rank=None, n_routed_experts=4, n_group=1, topk_group=1, topk_method="greedy",
                    routed_scaling_factor=1.0, norm_topk_prob=False, num_key_value_heads=2), "deepseek_v2", "glm4", {}),
    "deepseek_v3": ("DeepseekV3", dict(LATER, **MLA, q_lora_rank=32, n_routed_experts=8, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                    norm_topk_prob=True, num_key_value_heads=2, max_position_embeddings=32768, rope_parameters=dict(rope_type="yarn",
                    rope_theta=1e4, factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                    original_max_position_embeddings=4096)), "deepseek_v3", "glm4", dict(scoring_func="sigmoid")),
    "gemma4": ("Gemma4Text", dict(GEMMA4, num_hidden_layers=3, hidden_size_per_layer_input=8, vocab_size_per_layer_input=512,
               layer_types=["sliding_attention", "full_attention", "full_attention"], num_kv_shared_layers=1,
               use_double_wide_mlp=True), "gemma4_text", None, MARKERS),
    "gemma4_moe": ("Gemma4Text", dict(GEMMA4, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2,
                   moe_intermediate_size=32, layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0,
                   attention_k_eq_v=True, num_global_key_value_heads=1), "gemma4_moe", None, MARKERS),
    "qwen35_equal": ("Qwen3_5Text", dict(SMALL, **dict(DELTA_NET, linear_num_value_heads=2)), "qwen3_5_text", "qwen2", {}),
    "qwen35_three": ("Qwen3_5Text", dict(SMALL, **dict(DELTA_NET, linear_num_value_heads=6, linear_value_head_dim=32)),
                     "qwen3_5_text", "qwen2", {}),
    "glm4_moe_plain": ("Glm4Moe", dict(LATER, n_routed_experts=4, head_dim=16, attention_bias=False, use_qk_norm=False, n_group=2,
                       topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=False, first_k_dense_replace=0), "glm4_moe", "glm4", {}),
    "deepseek_v2_groups": ("DeepseekV2", dict(LATER, **MLA, q_lora_rank=32, n_routed_experts=8, n_group=4, topk_group=2,
                           topk_method="group_limited_greedy", routed_scaling_factor=16.0, norm_topk_prob=False, num_key_value_heads=2,
                           max_position_embeddings=32768, rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=40.0,
                           beta_fast=32.0, beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707,
                           original_max_position_embeddings=4096)), "deepseek_v2", "glm4", {}),
    "deepseek_v3_plain": ("DeepseekV3", dict(LATER, **MLA, q_lora_rank=None, n_routed_experts=4, n_group=1, topk_group=1,
                          routed_scaling_factor=1.0, norm_topk_prob=False, num_key_value_heads=2, n_shared_experts=2,
                          tie_word_embeddings=False), "deepseek_v3", "glm4", dict(scoring_func="sigmoid")),
    "gemma4_plain": ("Gemma4Text", dict(GEMMA4, hidden_size_per_layer_input=0, final_logit_softcapping=None,
                     layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0), "gemma4_text", None, MARKERS),
}
KEPT = ["tiny-f32", "tiny-f16", "wide-q4_k", "llama-q4_0", "llama3-q8_0", "mistral-q5_0", "gemma2-q5_1", "gemma3-q4_1", "phi3_longrope-q4_0",
        "qwen2-bf16", "glm4-q4_0", "gpt2-q8_0", "qwen2_moe-q5_0", "qwen3_moe-q4_0", "mixtral-q4_0", "gpt_oss-mxfp4", "qwen3_next-q4_1",
        "qwen35-f16", "qwen35_moe-f16", "glm4_moe-q5_1", "deepseek_v2-f16", "deepseek_v3-f16", "gemma4-q4_1", "gemma4_moe-q5_0",
        "llama-nvfp4"]
FLOATS = ["f32", "f16", "bf16"]
CONVERTED = FLOATS + ["q8_0"]
TYPES = CONVERTED + ["q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]
# The converter permutes columns of these models or transposes matrices, and so would quantized rows differ.
ONLY_FLOATS = ["qwen35", "deepseek"]
# It quantizes no router, which `rounded` does.
WITH_ROUTER = ["moe", "mixtral", "gpt_oss", "qwen3_next"]
# gguf-py reads superblocks and does not make them: a row's are any bytes, the same for the same row. Of "wide" alone.
SUPERBLOCKS = {"q4_k": 0, "q5_k": 0, "q6_k": 208}
# Other types that it reads and does not make: where halves are, and what they are there. Scales of nvfp4 are bytes.
HALVES = {"q2_k": {80: 0.006, 82: 0.006}, "q3_k": {108: 0.002}, "iq1_s": {0: 0.008}, "iq2_xxs": {0: 0.001}, "iq2_xs": {0: 0.001},
          "iq2_s": {0: 0.001}, "iq3_xxs": {0: 0.0005}, "iq3_s": {0: 0.0005}, "iq4_nl": {0: 0.001}, "iq4_xs": {0: 6e-5},
          "tq1_0": {52: 0.06}, "tq2_0": {64: 0.06}, "nvfp4": {}}


def model_of(family):
    name, keys, *_ = FAMILIES[family]
    config = getattr(transformers, name + "Config")(**keys, attn_implementation="eager")
    for key in ["bos_token_id", "eos_token_id"]:
        setattr(config, key, None)
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if "correction" in name]
        for name, weight in list(model.named_parameters()) + buffers:
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1] ** 0.5 * (3.0 if "emb" in name else 1.0))
            elif "bias" in name or "emma" in family:
                weight.copy_(torch.randn_like(weight) * 0.2)
            else:
                weight.copy_(1.0 + torch.randn_like(weight) * 0.2)
    return model


def sentencepiece(tokenizer, path):
    """A tokenizer.model of the same pieces, the scores being the order of the merges."""
    from sentencepiece import sentencepiece_model_pb2 as proto
    model = proto.ModelProto()
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    order = {}
    for index, merge in enumerate(tokenizer["model"]["merges"]):
        order.setdefault("".join(merge if isinstance(merge, list) else merge.split(" ")), index)
    specials = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = proto.ModelProto.SentencePiece
    pieces = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    for text, index in pieces:
        kind = kinds.NORMAL
        if text == "<unk>":
            kind, model.trainer_spec.unk_id = kinds.UNKNOWN, index
        elif text in specials:
            kind = kinds.CONTROL
        elif text.startswith("<0x") and len(text) == 6:
            kind = kinds.BYTE
        # What is never made of others comes last.
        score = -float(order[text]) if text in order else -float(len(order) + index)
        model.pieces.append(kinds(piece=text, score=0.0 if kind != kinds.NORMAL else score, type=kind))
    for key in ["bos", "eos", "pad"]:
        setattr(model.trainer_spec, key + "_id", -1)
    model.normalizer_spec.add_dummy_prefix = tokenizer["normalizer"]["type"] == "Sequence"
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    model.normalizer_spec.name = "identity"
    with open(path, "wb") as file:
        file.write(model.SerializeToString())


def folder_of(family, model, path):
    """What Hugging Face would have of it."""
    _, _, base, pre, more = FAMILIES[family]
    base = os.path.join(MODELS, base)
    model.save_pretrained(path)
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]:
        if os.path.exists(os.path.join(base, file)):
            shutil.copy(os.path.join(base, file), path)
    given = json.load(open(os.path.join(base, "config.json")))
    config = json.load(open(os.path.join(path, "config.json")))
    config.update({key: given[key] for key in ["bos_token_id", "eos_token_id"] if key in given})
    of_tokenizer = ["tokenizer_class", "extra_special_tokens"]
    config.update({key: value for key, value in more.items() if key not in of_tokenizer})
    json.dump(config, open(os.path.join(path, "config.json"), "w"))
    texts = json.load(open(os.path.join(path, "tokenizer_config.json")))
    texts.update({key: value for key, value in more.items() if key in of_tokenizer})
    if pre is None:
        # The published files of such models do not say it, and the converter believes it.
        texts.pop("add_prefix_space", None)
        sentencepiece(json.load(open(os.path.join(path, "tokenizer.json"))), os.path.join(path, "tokenizer.model"))
    json.dump(texts, open(os.path.join(path, "tokenizer_config.json"), "w"))


def convert(family, path, kind, out):
    import conversion.base as base
    import conversion.ernie as ernie
    pre = FAMILIES[family][3]
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    if pre is not None:
        ernie.Ernie4_5Model.set_vocab = lambda self: self._set_vocab_gpt2()
        from conversion.glm import Glm4Model, Glm4MoeModel
        Glm4Model.set_vocab = Glm4MoeModel.set_vocab = lambda self: self._set_vocab_gpt2()
    import convert_hf_to_gguf
    sys.argv = ["convert_hf_to_gguf.py", path, "--outfile", out, "--outtype", kind] + (["--no-mtp"] if any(family.startswith(name) for name in WITHOUT_MTP) else [])
    convert_hf_to_gguf.main()


def quantized(data, to):
    kind = to.name.lower()
    columns, size = gguf.GGML_QUANT_SIZES[to]
    if kind in HALVES:
        def any_row(numbers):
            made = np.random.default_rng(zlib.crc32(numbers.tobytes())).integers(0, 256, (len(numbers) // columns, size), dtype=np.uint8)
            for place, half in HALVES[kind].items():
                made[:, place:place + 2] = np.array([half], dtype=np.float16).view(np.uint8)
            if kind == "nvfp4":
                made[:, :4] = 16 + made[:, :4] % 8
            return made.reshape(-1)
        return np.stack([any_row(numbers) for numbers in np.ascontiguousarray(data, dtype=np.float32)])
    if kind not in SUPERBLOCKS:
        return gguf.quants.quantize(data, to)
    halves = np.array([0.002 if kind == "q6_k" else 0.006], dtype=np.float16).view(np.uint8)

    def row(numbers):
        made = np.random.default_rng(zlib.crc32(numbers.tobytes())).integers(0, 256, (len(numbers) // 256, size), dtype=np.uint8)
        if kind == "q6_k":
            # Its scales are signed bytes.
            made[:, 192:208] >>= 4
            made[:, 208:210] = halves
        else:
            made[:, 0:4] = np.concatenate([halves, (halves.view(np.float16) * np.float16(7.5)).view(np.uint8)])
        return made.reshape(-1)
    return np.stack([row(numbers) for numbers in np.ascontiguousarray(data, dtype=np.float32)])


def requantize(source, kind, out):
    """The same file with matrices of another type."""
    reader = gguf.GGUFReader(source)
    text = lambda field: field.contents()
    writer = gguf.GGUFWriter(out, text(reader.fields["general.architecture"]))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds = field.types
        writer.add_key_value(name, field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        to = gguf.GGMLQuantizationType[kind.upper()] if is_quantized(tensor.name, data.shape) else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantized(data, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def is_quantized(name, shape):
    return len(shape) >= 2 and shape[-1] % 32 == 0 and not any(part in name for part in ["position", "wpe", "bias", "conv1d", "gate_inp_shexp", "shared_expert_gate"])


def rounded(model, kind):
    """Makes the model's matrices what they are in the file."""
    to = gguf.GGMLQuantizationType[kind.upper()]
    turned = [id(module.weight) for module in model.modules() if type(module).__name__ == "Conv1D"]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_turned = id(weight) in turned or type(model).__name__.startswith("GptOss") and weight.dim() == 3
            given = weight.transpose(-1, -2) if is_turned else weight
            if weight.dim() >= 2 and (kind in FLOATS or is_quantized(name, given.shape)):
                made = gguf.quants.dequantize(quantized(given.contiguous().numpy(), to), to)
                made = torch.from_numpy(np.array(made, dtype=np.float32)).reshape(given.shape)
                weight.copy_(made.transpose(-1, -2) if is_turned else made)


def golden(model, out):
    tensors = {}
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for index, length in enumerate([1, 12, 60]):
            ids = torch.randint(0, 490, (length,), generator=generator)
            logits = model(ids[None]).logits[0].float()
            tensors[f"ids_{index}"] = ids.int()
            tensors[f"logits_{index}"] = logits if index == 1 else logits[-1:].clone()
    save_file(tensors, out)


def pieces(path, out):
    """What SentencePiece itself makes of texts, for the vocabularies that have scores."""
    from sentencepiece import SentencePieceProcessor
    processor = SentencePieceProcessor(os.path.join(path, "tokenizer.model"))
    texts = json.load(open(os.path.join(MODELS, "mistral", "tokenizer_golden.json")))["texts"]
    texts = [entry["text"] for entry in texts if "<" not in entry["text"]]
    json.dump([dict(text=text, ids=processor.encode(text)) for text in texts], open(out, "w"))


def make(name, out):
    family, kind = name.rsplit("-", 1)
    with tempfile.TemporaryDirectory() as path:
        model = model_of(family)
        if kind in FLOATS:
            # The converter keeps some matrices in F32.
            rounded(model, kind)
        folder_of(family, model, path)
        target = os.path.join(out, name + ".gguf")
        if kind in CONVERTED:
            convert(family, path, kind, target)
        else:
            convert(family, path, "f32", path + "/f32.gguf")
            requantize(path + "/f32.gguf", kind, target)
        if kind not in FLOATS:
            rounded(model, kind)
        golden(model, os.path.join(out, name + ".safetensors"))
        # Gemma 4's files have merges.
        if FAMILIES[family][3] is None and not family.startswith("gemma4"):
            pieces(path, os.path.join(out, family + ".pieces.json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    def is_made(family, kind):
        only_floats = any(family.startswith(name) for name in ONLY_FLOATS)
        has_router = any(name in family for name in WITH_ROUTER)
        return kind in FLOATS or not only_floats and not (has_router and kind == "q8_0")

    everything = [f"{family}-{kind}" for family in FAMILIES for kind in TYPES if is_made(family, kind)] + [f"wide-{kind}" for kind in [*SUPERBLOCKS, *HALVES]]
    for name in arguments.names or (everything if arguments.all else KEPT):
        make(name, arguments.out)

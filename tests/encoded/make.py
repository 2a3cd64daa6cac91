#!/usr/bin/env python3
"""Checkpoints in the quantization formats of other tools, with their dequantized weights and logits.

    python3 tests/encoded/make.py [NAME ...]

writes a directory next to this file for every entry of ENTRIES: `config.json`, `model.safetensors`, and
`golden.safetensors` with

* `crc32.NAME`: CRC-32 of the matrix NAME, dequantized in f32, as little-endian bytes row by row;
* `ids_N` and `last_N`: token ids, and the logits after the last, which transformers computes in f32 with eager
  attention on the dequantized weights.

A format is written and dequantized by the tool that defines it: transformers 5.24 (FP8), compressed-tensors
0.20, bitsandbytes 0.50 and mlx 0.32 (on CPU). AWQ, GPTQ, ModelOpt's NVFP4 and the values of bitsandbytes' int8
follow the definitions below. Weights follow from the names of the tensors.
"""
import json, os, shutil, sys, tempfile, zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = (5, 17)
SIZES = dict(vocab_size=96, num_hidden_layers=1, max_position_embeddings=64, tie_word_embeddings=False,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA = ("llama", dict(SIZES, hidden_size=128, intermediate_size=256, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=64))
QWEN3 = ("qwen3", dict(SIZES, hidden_size=128, intermediate_size=192, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=64))
PHI3 = ("phi3", dict(SIZES, hidden_size=128, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1))
QWEN3_MOE = ("qwen3_moe", dict(SIZES, hidden_size=64, intermediate_size=64, num_attention_heads=2,
                               num_key_value_heads=1, head_dim=32, num_experts=4, num_experts_per_tok=2,
                               moe_intermediate_size=64))
DEEPSEEK = ("deepseek_v3", dict(SIZES, num_hidden_layers=2, hidden_size=192, intermediate_size=320,
                                num_attention_heads=2, num_key_value_heads=2, q_lora_rank=160, kv_lora_rank=144,
                                qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4,
                                num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
                                moe_intermediate_size=96, first_k_dense_replace=1))


def noise(name, shape):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def published(family, keys):
    """The configuration, and the tensors by their names on the hub."""
    config = CONFIG_MAPPING[family](**keys)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.load(open(f"{folder}/config.json"))
        tensors = load_file(f"{folder}/model.safetensors")
    config.pop("transformers_version", None)
    config["dtype"] = "bfloat16"
    for name, tensor in tensors.items():
        wide = 0.2 * noise(name, tensor.shape) + (1 if tensor.dim() == 1 else 0)
        tensors[name] = wide.to(torch.bfloat16)
    return config, tensors


def is_linear(name, tensor):
    plain = ("embed_tokens", "lm_head", "mlp.gate.weight")
    return tensor.dim() == 2 and not any(part in name for part in plain)


# Formats. Each takes a module's name and its weight, and returns its tensors and the dequantized weight.

E4M3 = torch.float8_e4m3fn


def fp8(block=None, scale=torch.float32, name="weight_scale_inv", power=False, extra=()):
    def write(module, weight):
        rows, columns = weight.shape
        high, wide = (rows if block == "tensor" else 1 if block == "row" else block[0],
                      columns if block in ("tensor", "row") else block[1])
        across, along = -(-rows // high), -(-columns // wide)
        padded = torch.zeros(across * high, along * wide)
        padded[:rows, :columns] = weight
        blocks = padded.reshape(across, high, along, wide)
        scales = blocks.abs().amax(dim=(1, 3)) / 448
        scales = torch.exp2(torch.ceil(torch.log2(scales))) if power else scales.to(scale).float()
        codes = (blocks / scales[:, None, :, None]).clamp(-448, 448).to(E4M3)
        whole = (codes.float() * scales[:, None, :, None]).reshape(across * high, along * wide)[:rows, :columns]
        codes = codes.reshape(across * high, along * wide)[:rows, :columns].contiguous()
        if block not in ("tensor", "row") and rows % high == 0 and columns % wide == 0:
            from transformers.integrations.finegrained_fp8 import Fp8Dequantize
            own = Fp8Dequantize(None)._dequantize_one(codes, scales, output_dtype=torch.float32)
            assert torch.equal(own, whole)
        stored = scales.reshape(()) if block == "tensor" else scales
        found = {"weight": codes, name: stored.to(scale)}
        return dict(found, **{part: torch.tensor(1.5) for part in extra}), whole.contiguous()
    return write


def compressed(kind, num_bits, strategy, symmetric=True, group=None, scale=torch.bfloat16, type_="int"):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize

    arguments = QuantizationArgs(num_bits=num_bits, type=type_, strategy=strategy, symmetric=symmetric,
                                 group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)

    def write(module, weight):
        groups = weight.reshape(weight.shape[0], -1, group or weight.shape[1])
        low, high = groups.amin(-1), groups.amax(-1)
        scales, zeros = calculate_qparams(low, high, arguments)
        scales, zeros = scales.to(scale), zeros.to(torch.int8)
        state = {"weight": weight.clone(), "weight_scale": scales.float(), "weight_zero_point": zeros}
        tensors = BaseCompressor.get_value_from_registry(kind).compress(state, scheme)
        tensors["weight_scale"] = scales
        codes = quantize(weight, scales.float(), None if symmetric else zeros, arguments, dtype=torch.int8)
        whole = dequantize(codes, scales.float(), None if symmetric else zeros, arguments)
        return {part: tensor.contiguous() for part, tensor in tensors.items()}, whole
    return write


def compressed_fp4(kind):
    """NVFP4 or MXFP4 of compressed-tensors."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    is_nv = kind.startswith("nv")
    group = 16 if is_nv else 32
    arguments = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group" if is_nv else "group",
                                 group_size=group, symmetric=True,
                                 scale_dtype=torch.float8_e4m3fn if is_nv else torch.uint8)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)

    def write(module, weight):
        largest = weight.reshape(weight.shape[0], -1, group).abs().amax(-1)
        state = {"weight": weight.clone()}
        if is_nv:
            factor = (448 * 6 / weight.abs().max()).reshape(1)
            scales = (largest / 6 * factor).to(E4M3).float()
            state.update(weight_scale=scales, weight_global_scale=factor)
        else:
            scales = torch.exp2(torch.ceil(torch.log2(largest / 6)))
            state.update(weight_scale=scales)
        tensors = BaseCompressor.get_value_from_registry(kind).compress(state, scheme)
        codes = unpack_fp4_from_uint8(tensors["weight_packed"], *weight.shape).float()
        scales = scales / factor if is_nv else scales
        whole = (codes.reshape(weight.shape[0], -1, group) * scales[..., None]).reshape(weight.shape)
        return {part: tensor.contiguous() for part, tensor in tensors.items()}, whole
    return write


def words(codes, bits, order=None):
    """Codes along the last axis in words of 32 bits, lowest bits first; `order[i]`: the column at place i."""
    each = 32 // bits
    codes = codes.reshape(*codes.shape[:-1], -1, each)
    codes = codes[..., list(order)] if order else codes
    shifts = bits * np.arange(each, dtype=np.uint32)
    return torch.from_numpy((codes.astype(np.uint32) << shifts).sum(-1, dtype=np.uint32).view(np.int32))


def integers(weight, bits, group, symmetric, groups=None):
    """Codes and zero points from 0 to 2^bits - 1, scales in f16, and the values. `groups`: of every column."""
    columns = weight.shape[1]
    groups = np.arange(columns) // group if groups is None else groups
    order = np.argsort(groups, kind="stable")
    sorted_ = weight.numpy()[:, order].reshape(weight.shape[0], -1, group)
    low, high = np.minimum(sorted_.min(-1), 0), np.maximum(sorted_.max(-1), 0)
    top = 2**bits - 1
    if symmetric:
        scales = (np.maximum(-low, high) * 2 / top).astype(np.float16)
        zeros = np.full(scales.shape, 2**(bits - 1))
    else:
        scales = ((high - low) / top).astype(np.float16)
        zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, top - 1)
    wide = scales.astype(np.float32)[:, groups]
    codes = np.clip(np.round(weight.numpy() / wide + zeros[:, groups]), 0, top)
    whole = ((codes - zeros[:, groups]).astype(np.float32) * wide).astype(np.float32)
    return codes.astype(np.uint32), zeros.astype(np.uint32), torch.from_numpy(scales), torch.from_numpy(whole)


def awq(group):
    def write(module, weight):
        codes, zeros, scales, whole = integers(weight, 4, group, False)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {"qweight": words(codes.T, 4, order), "qzeros": words(zeros.T, 4, order),
                "scales": scales.T.contiguous()}, whole
    return write


def gptq(bits, group, symmetric, version, reorder=False):
    def write(module, weight):
        columns = weight.shape[1]
        groups = np.arange(columns, dtype=np.int32) // group
        if reorder:
            groups = groups[np.random.default_rng(zlib.crc32(module.encode())).permutation(columns)]
        codes, zeros, scales, whole = integers(weight, bits, group, symmetric, groups)
        zeros = zeros - 1 if version == 1 else zeros
        return {"qweight": words(codes, bits).T.contiguous(), "qzeros": words(zeros.T, bits),
                "scales": scales.T.contiguous(), "g_idx": torch.from_numpy(groups)}, whole
    return write


FLOATS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def modelopt_nvfp4(module, weight):
    factor = weight.abs().max() / (6 * 448)
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / (6 * factor)).to(E4M3)
    wide = (scales.float() * factor)[..., None]
    magnitude = ((blocks / wide).abs()[..., None] - FLOATS).abs().argmin(-1)
    codes = (magnitude + 8 * (blocks < 0)).to(torch.uint8).reshape(weight.shape)
    whole = (torch.where(blocks < 0, -FLOATS[magnitude], FLOATS[magnitude]) * wide).reshape(weight.shape)
    return {"weight": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales, "weight_scale_2": factor,
            "input_scale": torch.tensor(0.01)}, whole


def mlx(mode, bits, group, dtype=None):
    import mlx.core as mx

    def torch_of(array):
        return torch.from_numpy(np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array))

    def write(module, weight):
        found = mx.quantize(mx.array(weight.numpy()), group_size=group, bits=bits, mode=mode)
        whole = mx.dequantize(*found, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
        names = ("weight", "scales", "biases")
        return {name: torch_of(part) for name, part in zip(names, found)}, torch_of(whole)
    return write


def bitsandbytes(kind, nested=False):
    import bitsandbytes.functional as bnb

    def write(module, weight):
        if kind == "int8":
            codes, largest, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
            return {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, \
                codes.float() * (largest / 127)[:, None]
        codes, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        tensors = {f"weight.{part}": tensor for part, tensor in state.as_dict(packed=True).items()}
        return dict(tensors, weight=codes), bnb.dequantize_4bit(codes, state).float()
    return write


def hub(method, **keys):
    return {"quantization_config": dict(quant_method=method, **keys)}


def groups(format_, **weights):
    group = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return hub("compressed-tensors", format=format_, config_groups=group, ignore=["lm_head"],
               quantization_status="compressed", kv_cache_scheme=None)


def of_mlx(mode, bits, group):
    keys = {"mode": mode, "bits": bits, "group_size": group}
    return {"quantization": keys, "quantization_config": keys}


SKIPPED = ["lm_head", "model.embed_tokens"]
ENTRIES = {
    "fp8_block": (DEEPSEEK, lambda: fp8((128, 128)),
                  hub("fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])),
    "fp8_power": (QWEN3, lambda: fp8((64, 64), power=True),
                  hub("fp8", fmt="e4m3", activation_scheme="dynamic", scale_fmt="ue8m0",
                      weight_block_size=[64, 64], modules_to_not_convert=SKIPPED)),
    "fp8_tensor": (LLAMA, lambda: fp8("tensor", torch.bfloat16, extra=("activation_scale",)),
                   hub("fp8", activation_scheme="static", weight_block_size=None)),
    "ct_fp8": (LLAMA, lambda: fp8("row", torch.bfloat16, "weight_scale"),
               groups("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True)),
    "ct_int8": (QWEN3, lambda: compressed("int-quantized", 8, "channel"),
                groups("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True)),
    "ct_int4": (QWEN3_MOE, lambda: compressed("pack-quantized", 4, "group", group=32),
                groups("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)),
    "ct_int4_asym": (LLAMA, lambda: compressed("pack-quantized", 4, "group", False, 64, torch.float16),
                     groups("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64,
                            symmetric=False)),
    "ct_nvfp4": (LLAMA, lambda: compressed_fp4("nvfp4-pack-quantized"),
                 groups("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)),
    "ct_mxfp4": (LLAMA, lambda: compressed_fp4("mxfp4-pack-quantized"),
                 groups("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32)),
    "awq": (QWEN3, lambda: awq(64),
            hub("awq", bits=4, group_size=64, zero_point=True, version="gemm", modules_to_not_convert=None)),
    "awq_fused": (PHI3, lambda: awq(32), hub("awq", bits=4, group_size=32, zero_point=True, version="GEMM")),
    "gptq": (LLAMA, lambda: gptq(4, 64, True, 1),
             hub("gptq", bits=4, group_size=64, sym=True, desc_act=False, checkpoint_format="gptq")),
    "gptq_reordered": (LLAMA, lambda: gptq(4, 32, False, 2, True),
                       hub("gptq", bits=4, group_size=32, sym=False, desc_act=True, checkpoint_format="gptq_v2")),
    "gptq_int8": (QWEN3, lambda: gptq(8, 64, True, 1), hub("gptq", bits=8, group_size=64, sym=True, desc_act=False)),
    "modelopt_fp8": (QWEN3, lambda: fp8("tensor", name="weight_scale", extra=("input_scale",)), None),
    "modelopt_nvfp4": (QWEN3_MOE, lambda: modelopt_nvfp4,
                       {"quantization_config": {"quant_algo": "NVFP4", "producer": {"name": "modelopt"},
                                                "ignore": ["lm_head", "*.mlp.gate"], "quant_method": "modelopt"}}),
    "mlx_f32": (LLAMA, lambda: mlx("affine", 6, 64), of_mlx("affine", 6, 64)),
    "mlx_mxfp8": (LLAMA, lambda: mlx("mxfp8", 8, 32), of_mlx("mxfp8", 8, 32)),
    "mlx_nvfp4": (QWEN3_MOE, lambda: mlx("nvfp4", 4, 16), of_mlx("nvfp4", 4, 16)),
    "bnb_nf4": (LLAMA, lambda: bitsandbytes("nf4", True),
                hub("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                    bnb_4bit_quant_storage="uint8", llm_int8_skip_modules=None)),
    "bnb_fp4": (QWEN3, lambda: bitsandbytes("fp4"),
                hub("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=False)),
    "bnb_int8": (QWEN3, lambda: bitsandbytes("int8"), hub("bitsandbytes", load_in_8bit=True)),
}


def logits(config, tensors):
    """Token ids and logits that transformers computes."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        json.dump(config, open(f"{folder}/config.json", "w"))
        save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()},
                  f"{folder}/model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        for index, length in enumerate(LENGTHS):
            ids = torch.randint(0, config["vocab_size"], (1, length), generator=torch.Generator().manual_seed(length))
            with torch.no_grad():
                found[f"last_{index}"] = model(ids).logits[0, -1].float().contiguous()
            found[f"ids_{index}"] = ids[0].to(torch.int32)
    return found


def stacked(tensors):
    """Experts as MLX stores them: one tensor per projection."""
    experts = [name for name in tensors if ".experts." in name]
    found = {name: tensor for name, tensor in tensors.items() if name not in experts}
    for name in experts:
        module, _, rest = name.partition(".experts.")
        index, part = rest.split(".", 1)
        if index == "0":
            all_ = [tensors[f"{module}.experts.{other}.{part}"] for other in range(len(experts))
                    if f"{module}.experts.{other}.{part}" in tensors]
            found[f"{module}.switch_mlp.{part}"] = torch.stack(all_)
    return found


def make(name):
    (family, keys), write, quantization = ENTRIES[name]
    config, tensors = published(family, keys)
    write, stored, plain, golden = write(), {}, {}, {}
    for full, tensor in tensors.items():
        module = full.removesuffix(".weight")
        if not is_linear(full, tensor):
            stored[full] = plain[full] = tensor
            continue
        parts, whole = write(module, tensor.float())
        stored.update({f"{module}.{part}": part_tensor for part, part_tensor in parts.items()})
        plain[full] = whole
    golden.update(logits(config, plain))
    if name.startswith("mlx"):
        stored, plain = stacked(stored), stacked(plain)
    for full, whole in plain.items():
        if whole.dtype == torch.float32:
            code = zlib.crc32(np.ascontiguousarray(whole.numpy()).tobytes())
            golden[f"crc32.{full}"] = torch.tensor([code], dtype=torch.int64)
    folder = f"{HERE}/{name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if quantization is None:
        file = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
        json.dump(file, open(f"{folder}/hf_quant_config.json", "w"), indent=1)
        for layer in range(keys["num_hidden_layers"]):
            for part in ("k", "v"):
                stored[f"model.layers.{layer}.self_attn.{part}_proj.{part}_scale"] = torch.tensor(0.5)
    json.dump(dict(config, **(quantization or {})), open(f"{folder}/config.json", "w"), indent=1, sort_keys=True)
    stored = {part: tensor.contiguous() for part, tensor in stored.items()}
    save_file(stored, f"{folder}/model.safetensors", metadata={"format": "pt"})
    save_file(golden, f"{folder}/golden.safetensors")
    print(name, sum(os.path.getsize(f"{folder}/{file}") for file in os.listdir(folder)), "bytes")


for entry in sys.argv[1:] or ENTRIES:
    make(entry)

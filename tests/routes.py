#!/usr/bin/env python3
"""Which experts transformers gives each token of the goldens to.

    python3 tests/routes.py [NAME ...]

writes `routes.safetensors` into the folders of tests/models whose layers have experts: of every text of golden.json, the
prompt and what follows it greedily, `experts_I`: int32 [layers with experts, tokens, experts of a token], by number.
Computed in float32 by the plainest attention there is, as the goldens are (torch 2.15, transformers 5.23).
"""
import json, os, sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
FAMILIES = ("deepseek_v2", "deepseek_v3", "gemma4_moe", "glm4_moe", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_5_moe_text",
            "qwen3_moe", "qwen3_next")


def routes(name):
    folder = os.path.join(MODELS, name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    chosen = []
    for module in model.modules():
        # A router gives logits, weights and experts.
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(lambda _module, _inputs, given: chosen.append(given[2]))
    found = {}
    for index, text in enumerate(json.load(open(f"{folder}/golden.json"))["sequences"]):
        chosen.clear()
        with torch.no_grad():
            model(torch.tensor([text["ids"] + text["greedy"]]))
        found[f"experts_{index}"] = torch.stack(chosen).sort(dim=-1).values.to(torch.int32).contiguous()
    save_file(found, f"{folder}/routes.safetensors")
    print(name, {key: list(value.shape) for key, value in found.items()})


for name in sys.argv[1:] or FAMILIES:
    routes(name)

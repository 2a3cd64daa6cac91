"""Makes the model from nothing: data, tokenizer, training, export, evaluation. One command, one GPU.

    python train.py                everything, into out/
    python train.py --quick        the same with little data and few steps, to see that it works
"""

import argparse
import json
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask

import chat
import data
import evaluate
from check import report
from export import export
from model import Llama, Shape
from optimizer import Optimizer
from prompts import PROMPTS

SEED = 20260
HELD_OUT_SEED, VALIDATION_SEED, TOKENIZER_SEED, DATA_SEED = 1_000_000, 2_000_000, 3_000_000, 4_000_000
ROWS = 128
"""Rows in a batch: 128 rows of 2,048 tokens."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="out", type=Path)
    parser.add_argument("--conversations", default=900_000, type=int)
    parser.add_argument("--steps", default=5600, type=int)
    parser.add_argument("--rate", default=1.2e-2, type=float)
    parser.add_argument("--quick", action="store_true", help="little of everything")
    options = parser.parse_args()
    if options.quick:
        options.conversations, options.steps = 32_000, 120
    return options


def log(text, start=time.time()):
    print(f"{time.time() - start:6.1f}s  {text}", flush=True)


class Batches:
    """Rows on the GPU, in an order that a seed decides."""

    def __init__(self, packed, seed):
        ids, learned, documents = packed
        self.ids, self.learned, self.documents = (torch.from_numpy(part).cuda() for part in (ids.astype(np.int16), learned, documents))
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.long)

    def next(self, rows=ROWS):
        """One batch: (ids, targets, documents)."""
        if len(self.order) < rows:
            self.order = torch.cat((self.order, torch.randperm(len(self.ids), generator=self.generator)))
        chosen, self.order = self.order[:rows].cuda(), self.order[rows:]
        return self.at(chosen)

    def at(self, chosen):
        """The batch of these rows."""
        ids, learned, documents = self.ids[chosen].long(), self.learned[chosen], self.documents[chosen].int()
        targets = torch.full_like(ids, -100)
        keep = learned[:, 1:] & (documents[:, 1:] == documents[:, :-1])
        targets[:, :-1] = torch.where(keep, ids[:, 1:], -100)
        return ids, targets, documents


def blocks(documents):
    """What may attend to what: the tokens before, in the same document."""
    def mask(batch, _head, query, key):
        return (query >= key) & (documents[batch, query] == documents[batch, key])
    return create_block_mask(mask, documents.shape[0], None, documents.shape[1], documents.shape[1], device="cuda")


def schedule(step, steps):
    """The part of the rate at a step: a short rise, a plateau, a long linear fall to nothing."""
    warm, fall = max(20, steps // 40), int(steps * 0.65)
    return min(1.0, (step + 1) / warm, (steps - step) / fall)


@torch.no_grad()
def validation(compiled, mask_of, batches):
    """Loss a token over held-out conversations."""
    total, count = 0.0, 0
    for start in range(0, len(batches.ids) - ROWS + 1, ROWS):
        ids, targets, documents = batches.at(torch.arange(start, start + ROWS).cuda())
        with torch.autocast("cuda", torch.bfloat16):
            total += compiled(ids, targets, mask_of(documents)).item()
        count += (targets >= 0).sum().item()
    return total / max(count, 1)


def train(options, packed, held):
    """The trained model and how its loss went."""
    torch.manual_seed(SEED)
    model = Llama(Shape()).cuda()
    log(f"{model.count():,} parameters")
    compiled, mask_of = torch.compile(model), blocks
    optimizer = Optimizer(model, options.rate)
    batches, held = Batches(packed, SEED), Batches(held, SEED)
    history, begun, first = [], time.time(), 0
    for step in range(options.steps):
        ids, targets, documents = batches.next()
        learned = (targets >= 0).sum()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, targets, mask_of(documents)) / learned
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(schedule(step, options.steps))
        if step in (0, 10) or (step + 1) % 100 == 0:
            if step == 10:
                torch.cuda.synchronize()
                begun, first = time.time(), step
            speed = (step - first) * ids.numel() / (time.time() - begun) if step > 10 else 0
            log(f"step {step + 1:5} loss {loss.item():.4f}  {speed / 1e6:.2f} M tokens/s")
        if (step + 1) % 500 == 0 or step + 1 == options.steps:
            history.append({"step": step + 1, "tokens": (step + 1) * ids.numel(), "held_out_loss": round(validation(compiled, mask_of, held), 4)})
            log(f"held-out conversations: {history[-1]}")
    return model, history


def held_out_stories(path, count=200):
    """Stories of which training has seen none, one after the other with a line between them."""
    stories = [data.story_turn(random.Random(HELD_OUT_SEED + index), keys=())[2] for index in range(count)]
    path.write_text(evaluate.SEPARATOR.join(stories) + "\n")


def _checker_figures(quick):
    checker = report.learned(3000 if quick else 10_000)
    return checker, report.report(checker, 200 if quick else 1000)


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    log("making texts for the tokenizer")
    tokenizer = chat.train(data.texts(TOKENIZER_SEED, 2000 if options.quick else 24_000))
    kept_out = frozenset(data.normal(prompt) for prompt, _ in PROMPTS)
    width = Shape().context
    log("making conversations")
    encoded = data.encoded(tokenizer, DATA_SEED, options.conversations, kept_out, width)
    packed = data.rows(*encoded, width, SEED)
    held = data.rows(*data.encoded(tokenizer, VALIDATION_SEED, 4000, kept_out, width), width, SEED)
    log(f"{len(encoded[2]):,} conversations, {len(encoded[0]):,} tokens, {len(packed[0]):,} rows of {width}, {(packed[2] >= 0).mean():.1%} full")
    model_folder = options.out / "model"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        figures = pool.submit(_checker_figures, options.quick)
        model, history = train(options, packed, held)
        export(model, tokenizer, model_folder)
        held_out_stories(options.out / "held-out.txt")
        checker, checker_lines = figures.result()
    log("evaluating")
    results = {"parameters": model.count(), "conversations": len(encoded[2]), "tokens": len(encoded[0]), "steps": options.steps, "history": history, "checker": checker_lines}
    del model
    torch.cuda.empty_cache()
    results.update(evaluate.everything(model_folder, options.out, checker, options.quick))
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    log("done")
    print(json.dumps({key: value for key, value in results.items() if key != "samples"}, indent=1))


if __name__ == "__main__":
    main()

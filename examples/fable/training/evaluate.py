"""What the exported model does, as transformers runs it: loss on held-out stories, stories against the checker, answers.

    python evaluate.py out/model           after training, everything again
"""

import json
import random
import re
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import chat
from export import TEMPERATURE, TOP_P
from fable.conversation import story_turn
from fable.questions import OUTLINE_REQUESTS, outline, pairs
from prompts import PROMPTS
from verdict import judged

SEPARATOR = "\n\n* * *\n\n"
LONGEST = 560
"""Tokens after which an answer is taken to have no end."""
QUESTION_SEED, REQUEST_SEED, OUTLINE_SEED = 5_000_000, 6_000_000, 7_000_000


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def load(folder, dtype):
    """The tokenizer and the model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    return tokenizer, AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device()).eval()


@torch.no_grad()
def held_out_loss(folder, path, dtype):
    """Mean loss a token over the held-out stories, each alone: <|begin|>, its text, <|end|>; <|begin|> is not predicted."""
    tokenizer, model = load(folder, dtype)
    total, count = 0.0, 0
    for story in Path(path).read_text().removesuffix("\n").split(SEPARATOR):
        ids = torch.tensor([tokenizer.encode(chat.BEGIN + story + chat.END, add_special_tokens=False)], device=device())
        logits = model(ids).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits.double(), ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return {"loss": round(total / count, 6), "perplexity": round(float(torch.tensor(total / count).exp()), 6), "tokens": count}


@torch.no_grad()
def answers(tokenizer, model, prompts, seed=None, batch=512, longest=LONGEST, temperature=TEMPERATURE, top_p=TOP_P):
    """Answers to texts that end where an answer begins: greedy, or drawn with a seed as generation_config.json says."""
    found = []
    if seed is not None:
        torch.manual_seed(seed)
    how = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None} if seed is None else {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    for start in range(0, len(prompts), batch):
        encoded = tokenizer(prompts[start:start + batch], return_tensors="pt", padding=True, add_special_tokens=False).to(device())
        out = model.generate(encoded["input_ids"], attention_mask=encoded["attention_mask"], max_new_tokens=longest, pad_token_id=tokenizer.eos_token_id, **how)
        found += [tokenizer.decode(row, skip_special_tokens=True).strip() for row in out[:, encoded["input_ids"].shape[1]:]]
    return found


def requests(count):
    """Requests that the generator draws from seeds that training has not used, and what they ask for."""
    drawn = []
    for index in range(count):
        scene, text, _ = story_turn(random.Random(REQUEST_SEED + index))
        drawn.append((text, scene.wanted))
    return drawn


def questions(tokenizer, model, count):
    """Questions about stories of the generator: the share of answers that are word for word one that the generator would give."""
    asked, expected, keys = [], [], []
    for index in range(count):
        rng = random.Random(QUESTION_SEED + index)
        scene, request, story = story_turn(rng)
        # a story may have several titles, of which the scene knows one; outlines are counted by themselves
        key, question, _ = rng.choice([entry for entry in pairs(scene, rng) if entry[0] not in ("title", "outline")])
        accepted = set()
        for attempt in range(12):
            accepted |= {_plain(answer, scene) for other, asked_as, answer in pairs(scene, random.Random(attempt)) if other == key and (key not in ("plot", "unknown") or asked_as == question or key == "unknown")}
        if key == "plot":
            accepted = {_plain(scene.write("^" + answer), scene) for forms, answer in scene.asked if question in [scene.write(form) for form in forms]}
        asked.append(chat.prompt([(request, story), (question,)]))
        expected.append(accepted)
        keys.append((key, question, scene, story))
    got = answers(tokenizer, model, asked, longest=100)
    right, by_key, wrong = 0, {}, []
    for answer, accepted, (key, question, scene, _) in zip(got, expected, keys):
        good = _plain(answer, scene) in accepted
        right += good
        tally = by_key.setdefault(key, [0, 0])
        tally[0] += good
        tally[1] += 1
        if not good and len(wrong) < 25:
            wrong.append({"question": question, "answer": answer, "accepted": sorted(accepted)[:2]})
    return {"asked": count, "right": right, "by_kind": {key: f"{good} of {all_}" for key, (good, all_) in sorted(by_key.items())}, "wrong": wrong}


def outlines(tokenizer, model, count):
    """Outlines of the generator's stories: the share that is the generator's to the letter, and how often each part is right."""
    asked, expected = [], []
    for index in range(count):
        rng = random.Random(OUTLINE_SEED + index)
        scene, request, story = story_turn(rng)
        asked.append(chat.prompt([(request, story), (rng.choice(OUTLINE_REQUESTS),)]))
        expected.append(outline(scene))
    got = answers(tokenizer, model, asked, longest=200)
    parts = {key: sum(_parts(answer).get(key, "") == json.loads(line)[key] for answer, line in zip(got, expected)) for key in json.loads(expected[0])}
    wrong = [{"answer": answer, "expected": line} for answer, line in zip(got, expected) if answer != line]
    return {"asked": count, "right": count - len(wrong), "json": sum(list(_parts(answer)) == list(parts) for answer in got), "by_part": parts, "wrong": wrong[:25]}


def own_outlines(tokenizer, model, told):
    """Outlines of the model's own stories, (request, story) each: how many are complete and name only what their story does."""
    got = answers(tokenizer, model, [chat.prompt([turn, (OUTLINE_REQUESTS[0],)]) for turn in told], longest=200)
    bad = []
    for (request, story), answer in zip(told, got):
        parts = _parts(answer)
        named = [parts.get(key) for key in ("hero", "kind", "trait", "thing")] + ([parts["helper"]] if parts.get("helper") else [])
        if len(parts) != 8 or not all(isinstance(word, str) and word in story for word in named):
            bad.append({"request": request, "answer": answer})
    return {"asked": len(told), "borne_out": len(told) - len(bad), "others": bad}


def _parts(answer):
    """What an outline says; nothing where it is no JSON object."""
    try:
        parts = json.loads(answer)
    except ValueError:
        return {}
    return parts if isinstance(parts, dict) else {}


def _plain(answer, scene):
    """An answer with one word for each person, whatever it calls them."""
    for actor, word in ((scene.h, "H"), (scene.o, "O")):
        answer = re.sub(rf"\b(?:{actor.name}|[Tt]he (?:{actor.trait or 'x'} )?{actor.kind.noun})\b", word, answer)
    return re.sub(r"\b(?:[Hh]e|[Ss]he)\b", "H", answer).strip()


def everything(folder, out, checker, quick=False):
    """Every figure of the card."""
    results = {"held_out": {name: held_out_loss(folder, Path(out) / "held-out.txt", dtype) for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))}}
    tokenizer, model = load(folder, torch.float32)
    fifty = [chat.prompt([(request,)]) for request, _ in PROMPTS]
    greedy = answers(tokenizer, model, fifty)
    results["fifty_greedy"] = judged(checker, PROMPTS, greedy)
    samples = [{"request": request, "greedy": story} for (request, _), story in zip(PROMPTS, greedy)]
    for seed in (0,) if quick else (0, 1, 2):
        drawn = answers(tokenizer, model, fifty, seed=seed)
        results[f"fifty_drawn_{seed}"] = judged(checker, PROMPTS, drawn)
        for sample, story in zip(samples, drawn):
            sample[f"drawn_{seed}"] = story
    many = requests(64 if quick else 512)
    texts = [chat.prompt([(request,)]) for request, _ in many]
    results["many_greedy"] = judged(checker, many, answers(tokenizer, model, texts))
    for temperature in (TEMPERATURE,) if quick else (TEMPERATURE, 1.0):
        results[f"many_drawn_{temperature}"] = judged(checker, many, answers(tokenizer, model, texts, seed=9, temperature=temperature))
    results["questions"] = questions(tokenizer, model, 64 if quick else 512)
    results["outlines"] = outlines(tokenizer, model, 64 if quick else 512)
    results["own_outlines"] = own_outlines(tokenizer, model, [(request, story) for (request, _), story in zip(PROMPTS, greedy)])
    results["talk"] = talk(tokenizer, model)
    (Path(out) / "samples.json").write_text(json.dumps(samples, indent=1) + "\n")
    return results


TALK = ("Hello!", "Who are you?", "Thank you.", "What can you do?", "What is the capital of Norway?", "Tell me a story about a spaceship", "Write a C program.", "How much is 17 + 4?", "Tell me a story about a platypus and a toaster", "Good night", "Tell me a story", "fox")


def talk(tokenizer, model):
    """A few words that are no requests for a story, greedy."""
    return dict(zip(TALK, (answer[:300] for answer in answers(tokenizer, model, [chat.prompt([(text,)]) for text in TALK]))))


if __name__ == "__main__":
    from check.report import learned
    model_folder = Path(sys.argv[1])
    found = everything(model_folder, model_folder.parent, learned())
    (model_folder.parent / "evaluation.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))

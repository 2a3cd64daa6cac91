#!/usr/bin/env python3
"""Evaluates a server with lm-evaluation-harness: harness.py http://127.0.0.1:8080/v1 CRATE [PROGRAM]

Wants: pip install "lm_eval[api]" transformers. CRATE is the directory that has the model's tokenizer.json, PROGRAM the
program itself, whose own measure of perplexity is to be the harness's. The task is made here, of texts that lie in this
repository: how probable each is by itself, and which of two endings of a story is the more probable.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
import lm_eval
from lm_eval.tasks import TaskManager

URL, CRATE = sys.argv[1], sys.argv[2]
PROGRAM = sys.argv[3] if len(sys.argv) > 3 else None
STORIES = pathlib.Path(__file__).resolve().parents[2] / "examples/fable/held-out.txt"
STORIES = [story.strip() for story in STORIES.read_text().split("\n* * *\n")][:6]

MODEL = json.load(urllib.request.urlopen(URL + "/models"))["data"][0]["id"]

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    # Two sentences of each story, and what follows them or something that does not.
    choices = []
    for number, story in enumerate(STORIES):
        words = story.split(" ")
        other = STORIES[(number + 1) % len(STORIES)].split(" ")
        choices.append({"begin": " ".join(words[:40]), "right": " ".join(words[40:60]), "wrong": " ".join(other[45:65])})
    (folder / "stories.jsonl").write_text("".join(json.dumps({"text": story}) + "\n" for story in STORIES))
    (folder / "choices.jsonl").write_text("".join(json.dumps(choice) + "\n" for choice in choices))
    common = "dataset_path: json\ntest_split: test\ndataset_kwargs: {data_files: {test: %s}}\n"
    (folder / "rolling.yaml").write_text("task: stories_rolling\noutput_type: loglikelihood_rolling\n" + common % (folder / "stories.jsonl")
        + 'doc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n')
    (folder / "choice.yaml").write_text("task: stories_choice\noutput_type: multiple_choice\n" + common % (folder / "choices.jsonl")
        + 'doc_to_text: "{{begin}}"\ndoc_to_choice: ["{{right}}", "{{wrong}}"]\ndoc_to_target: 0\ntarget_delimiter: " "\n'
        + "metric_list: [{metric: acc}]\n")
    (folder / "write.yaml").write_text("task: stories_write\noutput_type: generate_until\n" + common % (folder / "choices.jsonl")
        + 'doc_to_text: "{{begin}}"\ndoc_to_target: "{{right}}"\ngeneration_kwargs: {until: ["."], max_gen_toks: 24}\n'
        + "metric_list: [{metric: exact_match}]\n")
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=dict(base_url=URL + "/completions", model=MODEL, tokenizer=CRATE, tokenizer_backend="huggingface",
                        max_length=512, num_concurrent=4, add_bos_token=False),
        tasks=["stories_rolling", "stories_choice", "stories_write"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    bits = results["stories_rolling"]["bits_per_byte,none"]
    accuracy = results["stories_choice"]["acc,none"]
    print(f"lm_eval: {bits:.6f} bits a byte, {accuracy:.2f} of endings predicted, {results['stories_write']['exact_match,none']:.2f} written exactly")
    # An untrained model gets about half of them right.
    assert accuracy >= 0.8, accuracy
    if PROGRAM:
        (folder / "stories.txt").write_text("\n* * *\n".join(STORIES))
        own = json.loads(subprocess.run([PROGRAM, "perplexity", folder / "stories.txt", "--separator", "* * *", "--json", "--model-dir", CRATE],
                                        check=True, capture_output=True).stdout)
        own = own["bits_per_byte"]
        # They differ by the rounding of small and large batches.
        assert abs(bits / own - 1) < 1e-3, (bits, own)

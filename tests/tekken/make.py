#!/usr/bin/env python3
"""Writes tekken.json, a small tokenizer in Mistral's format, and golden.json: what mistral-common makes of texts with it.

The tokens are those that byte-level BPE training finds in SAMPLE. The file has more tokens than default_vocab_size and
fewer special tokens than default_num_special_tokens, as Mistral's files have.

    pip install mistral-common==1.13.1 transformers==5.24.0 regex
    python3 tests/tekken/make.py
"""

import base64
import json
from collections import Counter
from pathlib import Path

import regex
from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
from transformers.integrations.mistral.tokenizer import MistralConverter

FOLDER = Path(__file__).parent
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<pad>"]
SPECIAL_COUNT = 24
MERGES = 200
SPARE = 12

SAMPLE = """
The fox and the lantern. Once upon a time there was a fox that lived near the river, and every evening the fox
went down to the water with a small lantern. "Where are you going?" the river asked. "I am going nowhere," the
fox answered, "the lantern is going, and I am following it." There were 12 stones in the river, and 345 stars
above them; the fox counted them all, one after the other, and then counted them again.

Le renard et la lanterne. Il était une fois un renard qui vivait près de la rivière, et chaque soir le renard
descendait à la rivière avec une petite lanterne. « Où vas-tu ? » demanda la rivière. « Je ne vais nulle part. »
Η αλεπού και το φανάρι: μια φορά κι έναν καιρό ήταν μια αλεπού που ζούσε κοντά στο ποτάμι.
狐狸和灯笼。从前有一只狐狸,住在河边。狐狸每天晚上提着灯笼到河边去。狐狸说:我只是跟着灯笼走。

def count(stones, stars):
    total = 0
    for stone in stones:
        total += len(stone)
    return total + sum(len(star) for star in stars)

aaaaaaaa aaaaaaaaaaaa abababab abababababab ------- ======= haha hahahaha
"""

TEXTS = [
    "",
    " ",
    "a",
    "Once upon a time there was a fox",
    "The FOX's lantern, the fox's LANTERN; iPhone McDonald",
    "1234567890 and 3.14",
    "  leading, trailing and   inner   spaces  ",
    "\n\n\ttabs\r\nand\rlines\n \n  \n",
    "La rivière près d'une forêt où vivait le renard… « déjà » vu",
    "e\u0301 composed and decomposed \u00e9, \ufb01 and \u2126",
    "Η αλεπού ζούσε κοντά στο ποτάμι",
    "狐狸和灯笼,从前 日本語 한국어",
    "\U0001f98a\U0001f3ee \U0001f469\u200d\U0001f680 flags \U0001f1eb\U0001f1f7",
    "def count(stones):\n    return sum(len(stone) for stone in stones)  # 12\n",
    "aaaaaaaaaaaaaaaaaaaaa abababababababa bababab hahahahahah",
    "----------======--- a//b/*c*/ ///\n//\n",
    "\u00a0\u00ad\u0000\u007f\u0085\u2028 controls",
    "x" * 70,
]

# What a chat template would write: special tokens in it are recognized.
RENDERED = [
    "<s>[INST]Tell me about the fox[/INST] The fox lived near the river.</s>",
    "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST] 12 stones\n[/INST]",
    "<SPECIAL_20>[INST",
]


def train(text, merges):
    """Bytes of the tokens that are merged, in their order."""
    words = {tuple(bytes([b]) for b in word.encode()): n for word, n in Counter(regex.findall(PATTERN, text)).items()}
    tokens = []
    while len(tokens) < merges:
        pairs = Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        (left, right), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if left + right not in tokens:
            tokens.append(left + right)
        merged = Counter()
        for word, n in words.items():
            parts, at = [], 0
            while at < len(word):
                is_pair = word[at : at + 2] == (left, right)
                parts.append(left + right if is_pair else word[at])
                at += 2 if is_pair else 1
            merged[tuple(parts)] += n
        words = merged
    return tokens


def entry(rank, token):
    try:
        text = token.decode()
    except UnicodeDecodeError:
        text = None
    return {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": text}


def text_of(value):
    """JSON whose innermost lists and objects take one line each."""
    lines = json.dumps(value, indent=1)
    inner = r'[\[{]\s+(?:"(?:[^"\\]|\\.)*"|[^\[\]{}"])*[\]}]'
    return regex.sub(inner, lambda found: regex.sub(r"\n\s*", " ", found[0]), lines) + "\n"


def main():
    tokens = [bytes([byte]) for byte in range(256)] + train(SAMPLE, MERGES)
    file = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) - SPARE + SPECIAL_COUNT,
            "default_num_special_tokens": SPECIAL_COUNT,
            "version": "v11",
        },
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIALS)
        ],
        "vocab": [entry(rank, token) for rank, token in enumerate(tokens)],
    }
    path = FOLDER / "tekken.json"
    path.write_text(text_of(file))

    tokenizer = Tekkenizer.from_file(path)
    converted = MistralConverter(str(path)).converted()
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text, bos=True, eos=False)
        plain = tokenizer.encode(text, bos=False, eos=False)
        assert converted.encode(text).ids == plain, text
        decoded = tokenizer.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE)
        texts.append({"text": text, "ids": ids, "ids_no_special": plain, "decoded": decoded})
    rendered = [{"text": text, "ids": converted.encode(text).ids} for text in RENDERED]
    golden = {"texts": texts, "rendered": rendered}
    (FOLDER / "golden.json").write_text(text_of(golden))


main()

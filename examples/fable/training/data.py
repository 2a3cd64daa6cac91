"""Conversations by the hundred thousand, as rows of tokens.

Conversations are made in chunks, each from its own seed, so that the data is the same on any number of processors.
A row holds whole conversations one after the other; `documents` says which token belongs to which, so that none
attends to another.
"""

import os
import random
from multiprocessing import get_context

import numpy as np

import chat
from fable.conversation import conversation, story_turn

CHUNK = 2000
PLAIN = 0.08
"""The share of texts that are a story alone, without a request."""


def normal(request):
    """A request as it is compared with others."""
    return "".join(letter for letter in request.lower() if letter.isalnum() or letter == " ").strip()


def turns(seed, count, kept_out=frozenset()):
    """Conversations of one chunk. Requests that are kept out for evaluation are drawn again."""
    rng = random.Random(seed)
    made = []
    while len(made) < count:
        if rng.random() < PLAIN:
            made.append((story_turn(rng)[2],))
        else:
            talk = conversation(rng)
            if not any(normal(request) in kept_out for request, _ in talk):
                made.append(tuple(talk))
    return made


def _texts(arguments):
    return [text for talk in turns(*arguments) for turn in talk for text in ((turn,) if isinstance(turn, str) else turn)]


def texts(seed, count):
    """The texts of some conversations, for the tokenizer."""
    with get_context("fork").Pool() as pool:
        chunks = pool.map(_texts, [(seed + index, 500) for index in range(count // 500)])
    return [text for chunk in chunks for text in chunk]


_TOKENIZER = None


def _encoded(arguments):
    seed, count, kept_out, longest = arguments
    ids, learned, lengths = [], [], []
    for talk in turns(seed, count, kept_out):
        while True:
            one, mask = chat.encode_plain(_TOKENIZER, talk[0]) if isinstance(talk[0], str) else chat.encode(_TOKENIZER, talk)
            if len(one) <= longest:
                break
            talk = talk[:-1]
        ids += one
        learned += mask
        lengths.append(len(one))
    return np.array(ids, np.uint16), np.array(learned, np.bool_), np.array(lengths, np.int32)


def encoded(tokenizer, seed, count, kept_out, longest):
    """Conversations as (ids, learned, lengths), each the concatenation over all of them."""
    global _TOKENIZER
    _TOKENIZER = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    jobs = [(seed + index, CHUNK, kept_out, longest) for index in range(max(1, count // CHUNK))]
    with get_context("fork").Pool() as pool:
        chunks = []
        for chunk in pool.imap(_encoded, jobs, chunksize=1):
            chunks.append(chunk)
            if len(chunks) % 50 == 0:
                print(f"    {len(chunks)} of {len(jobs)} chunks", flush=True)
    return tuple(np.concatenate(parts) for parts in zip(*chunks))


def rows(ids, learned, lengths, width, seed):
    """Whole conversations laid into rows of `width` tokens: (ids, learned, documents), best fit among some open rows."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    open_rows, done = [], []
    for index in rng.permutation(len(lengths)):
        length = int(lengths[index])
        best = min((row for row in open_rows if row[0] >= length), key=lambda row: row[0], default=None)
        if best is None:
            best = [width, []]
            open_rows.append(best)
        best[0] -= length
        best[1].append(index)
        if best[0] < 24:
            open_rows.remove(best)
            done.append(best[1])
        elif len(open_rows) > 48:
            fullest = min(open_rows, key=lambda row: row[0])
            open_rows.remove(fullest)
            done.append(fullest[1])
    done += [row[1] for row in open_rows]
    out_ids = np.zeros((len(done), width), np.uint16)
    out_learned = np.zeros((len(done), width), np.bool_)
    documents = np.full((len(done), width), -1, np.int16)
    for row, members in enumerate(done):
        at = 0
        for document, index in enumerate(members):
            start, length = starts[index], lengths[index]
            out_ids[row, at:at + length] = ids[start:start + length]
            out_learned[row, at:at + length] = learned[start:start + length]
            documents[row, at:at + length] = document
            at += length
    return out_ids, out_learned, documents

"""Spoils good stories in one place, as a small model would, to see whether the checker notices.

Every spoiler gives the spoiled text, or nothing where the story has nothing to spoil in that way.
"""

import re

from fable import names
from fable.cast import KINDS
from fable.places import PLACES
from fable.things import THINGS

from .reading import mentions, read


def _later(rng, found, least=1):
    """One of the later mentions."""
    return rng.choice(found[least:]) if len(found) > least else None


def _put(text, start, end, new):
    return text[:start] + new + text[end:]


def _of(text, table):
    """The mentions of one sort, by noun, in order."""
    by_noun = {}
    for position, before, between, noun, ending in mentions(text):
        if noun in table and not ending and before == "the" and not between:
            by_noun.setdefault(noun, []).append((position, position + len(noun)))
    return by_noun


def _swap_noun(rng, text, table, least):
    by_noun = {noun: spans for noun, spans in _of(text, table).items() if len(spans) > least}
    if not by_noun:
        return None
    noun = rng.choice(sorted(by_noun))
    span = _later(rng, by_noun[noun], least)
    others = [other for other in table if other not in text]
    return span and _put(text, *span, rng.choice(others))


def other_kind(rng, text, _):
    """The fox becomes a hare in one place."""
    return _swap_noun(rng, text, KINDS, 1)


def other_thing(rng, text, _):
    """The lantern becomes a kettle in one place."""
    return _swap_noun(rng, text, THINGS, 1)


def other_place(rng, text, _):
    """The harbour becomes a barn in one place."""
    return _swap_noun(rng, text, PLACES, 1)


def other_name(rng, text, _):
    """Somebody is called otherwise in one place."""
    story = read(text)
    name = rng.choice(sorted(story.names))
    spans = [match.span() for match in re.finditer(rf"\b{name}\b", text)]
    span = _later(rng, spans)
    return span and _put(text, *span, rng.choice([other for other in names.HIS + names.HERS if other not in text]))


def other_pronoun(rng, text, _):
    """He becomes she in one sentence."""
    swap = {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her", "she": "he", "She": "He", "her": "his", "Her": "His", "himself": "herself", "herself": "himself"}
    story = read(text)
    sentences = [sentence for sentence, _ in story.sentences if re.search(r"\b(?:he|she)\b", sentence, re.IGNORECASE) and '"' not in sentence]
    if not sentences:
        return None
    sentence = rng.choice(sentences)
    return text.replace(sentence, re.sub(r"\b(?:" + "|".join(swap) + r")\b", lambda match: swap[match.group(0)], sentence), 1)


def other_ending(rng, text, other):
    """The last paragraph is another story's."""
    parts = text.split("\n\n")
    return "\n\n".join(parts[:-1] + [other.split("\n\n")[-1]])


def fitted_ending(rng, text, other):
    """The last paragraph is another story's, but with this story's names, kinds, things and places."""
    ours, theirs = read(text), read(other)
    ending = other.split("\n\n")[-1]
    swaps = dict(zip(theirs.names, ours.names))
    kinds = [sorted(kinds)[0] if kinds else None for kinds in ours.names.values()]
    for (_, was), now in zip(theirs.names.items(), kinds):
        if was and now:
            swaps[sorted(was)[0]] = now
    for table in (THINGS, PLACES):
        here, there = list(_of(text, table)), list(_of(other, table))
        swaps.update(zip(there, here))
    pattern = re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, swaps), key=len, reverse=True)) + r")\b")
    ending = pattern.sub(lambda match: swaps[match.group(0)], ending)
    return "\n\n".join(text.split("\n\n")[:-1] + [ending])


def said_twice(rng, text, _):
    """A sentence is said again further on."""
    story = read(text)
    sentences = [sentence for sentence, _ in story.sentences if len(sentence.split()) > 4]
    sentence = rng.choice(sentences)
    return text + " " + sentence


def wrong_article(rng, text, _):
    """A becomes an, or an a."""
    found = list(re.finditer(r"\b(an?) (?=[a-z])", text))
    if not found:
        return None
    match = rng.choice(found)
    return _put(text, match.start(1), match.end(1), "a" if match.group(1) == "an" else "an")


def giver_and_taker(rng, text, _):
    """Who gives and who takes change places."""
    story = read(text)
    found = [match for match in re.finditer(r"\b([A-Z][a-z]+|[Tt]he [a-z]+) gave (him|her|[A-Z][a-z]+|the [a-z]+) (the [a-z]+)", text)]
    if not found or len(story.names) < 2:
        return None
    match = rng.choice(found)
    giver, taker = match.group(1), match.group(2)
    who = [name for name in story.names if name != giver and not (giver.lower().startswith("the ") and giver.lower()[4:] in story.names[name])]
    if taker in ("him", "her"):
        if not who:
            return None
        taker = who[0]
    return _put(text, match.start(), match.end(), f"{taker[0].upper() + taker[1:]} gave {giver if giver[0] != 'T' else giver.lower()} {match.group(3)}")


def broken_word(rng, text, _):
    """A word comes out wrong."""
    found = [match for match in re.finditer(r"\b[a-z]{5,}\b", text)]
    match = rng.choice(found)
    word = match.group(0)
    cut = rng.randrange(2, len(word) - 1)
    return _put(text, match.start(), match.end(), word[:cut] + word[cut - 1:])


def cut_off(rng, text, _):
    """The story stops in the middle of a sentence."""
    return text[: rng.randrange(len(text) * 2 // 3, len(text) - 20)].rstrip(".!?\" ")


SPOILERS = (other_kind, other_thing, other_place, other_name, other_pronoun, other_ending, fitted_ending, said_twice, wrong_article, giver_and_taker, broken_word, cut_off)

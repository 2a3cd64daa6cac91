"""A text as the checker sees it: sentences, and in them the people, things and places that are spoken of."""

import re
from dataclasses import dataclass, field

from fable.cast import KINDS
from fable.places import PLACES
from fable.things import THINGS

SENTENCE = re.compile(r'(?<=[.!?])\s+(?=["A-Z])|(?<=[.!?]")\s+(?=["A-Z])|\n+')
QUOTED = re.compile(r'"[^"]*"')
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[0-9]+")


def alternatives(nouns):
    """A pattern for any of the nouns, the longest first, so that a bell ringer is not a bell."""
    return "|".join(sorted((re.escape(noun) for noun in nouns), key=len, reverse=True))


KIND, THING, PLACE = (alternatives(nouns) for nouns in (KINDS, THINGS, PLACES))
ANY_NOUN = alternatives(list(KINDS) + list(THINGS) + list(PLACES))
NAME = r"[A-Z][a-z]+"

MENTION = re.compile(rf"\b(?:([Aa]|[Aa]n|[Tt]he|[Hh]is|[Hh]er|their|one|another|no|third|second|my|your|own|that|this|every|any|[A-Z][a-z]+'s)\s+)?((?:(?!(?:an?|the|his|her|to|of|in|at|on|for|with|and|that)\b)[a-z-]+\s+){{0,3}}?)({ANY_NOUN})(s|es|'s)?\b(?!-)")
INTRODUCED = [re.compile(pattern) for pattern in (
    rf"\b[Aa]n? (?:[a-z-]+ )?({KIND}) (?:named|called) ({NAME})\b",
    rf"\b[Aa]n? (?:[a-z-]+ )?({KIND}), (?:whose name was )?({NAME})\b",
    rf"\bthe ({KIND}) (?:named|called) ({NAME})\b",
    rf"\ban? ({KIND}) whom s?he knew, named ({NAME})\b",
)]
INTRODUCED_AFTER = [re.compile(pattern) for pattern in (
    rf"\b({NAME}) the ({KIND})\b", rf"\b({NAME}) was an? (?:[a-z-]+ )?({KIND})\b", rf"\b({NAME}), an? (?:[a-z-]+ )?({KIND})\b",
    rf"\b({NAME}) who came, an? (?:[a-z-]+ )?({KIND})\b",
)]
NO_NAMES = {"And", "There", "It", "But", "So", "Then", "Here", "Where", "What", "Who", "This", "That", "He", "She", "Now", "Once", "One"}
SPOKEN_NAME = re.compile(rf"(?:[Mm]y name is|I am|name of|whose name was|called) ({NAME})\b|\"({NAME})(?:,\" said (?:the stranger|another))")


@dataclass
class Reading:
    """A story, read."""

    text: str
    paragraphs: list = field(default_factory=list)
    sentences: list = field(default_factory=list)
    """All sentences in order, each with the number of its paragraph."""
    names: dict = field(default_factory=dict)
    """What each introduced name is, as far as the story says: a set of kinds."""
    hero: str = ""
    """The first kind spoken of."""
    hero_name: str = ""


def read(text):
    """Reads a story."""
    story = Reading(text, [part for part in text.split("\n\n") if part.strip()])
    for index, paragraph in enumerate(story.paragraphs):
        story.sentences += [(sentence.strip(), index) for sentence in SENTENCE.split(paragraph) if sentence.strip()]
    found = []
    for pattern in INTRODUCED:
        found += [(match.start(), match.group(2), match.group(1)) for match in pattern.finditer(text)]
    for pattern in INTRODUCED_AFTER:
        found += [(match.start(), match.group(1), match.group(2)) for match in pattern.finditer(text)]
    found = [entry for entry in found if entry[1] not in NO_NAMES]
    for _, name, kind in sorted(found):
        story.names.setdefault(name, set()).add(kind)
    for match in SPOKEN_NAME.finditer(text):
        story.names.setdefault(match.group(1) or match.group(2), set())
    if found:
        _, story.hero_name, story.hero = min(found)
    return story


def mentions(text):
    """Every mention of a tracked noun: (position, the word before it, adjectives, noun, plural or possessive ending)."""
    found = []
    for match in MENTION.finditer(text):
        found.append((match.start(3), (match.group(1) or "").lower(), match.group(2).strip(), match.group(3), match.group(4) or ""))
    return found


def without_quotes(sentence):
    """A sentence without what is said in it."""
    return QUOTED.sub('""', sentence)


def words(text):
    """The words of a text."""
    return WORD.findall(text)

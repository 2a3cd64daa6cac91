"""The course of a story: a want that the ending speaks of, habits that were shown before they come back, no sentence twice, and a length."""

import re

from .reading import NAME, THING, words

WANTED = re.compile(r"\b(?:wanted|want)\b(.{3,400}?)(?:[.;!]|$)")

ANSWERS = (
    # what is wanted, and the words of which an ending has at least one
    ("sea", "sea wave sand salt"), ("echo", "echo"), ("sun come up", "sun cloud"), ("sister", "sister"), ("thanked", "thank"), ("pears", "pear"), ("whistle a tune", "tune whistle hum"), ("river came", "river spring water drop pipe puddle rock"),
    ("salt", "salt"), ("tree for advice", "tree advice stump bark trunk"), ("sleep for", "sleep asleep slept awake dream snor"), ("lit the lamp", "lamp light lit oil thank"), ("whole play", "play curtain stage hat clap"),
    ("answer", "answer question teacher"), ("end of a story", "story end"), ("ride on a train", "train"), ("asked to dance", "danc"), ("company", "name"), ("somebody to talk to", "name"), ("at the other side of the table", "name"), ("peace", "name"), ("quiet", "name"), ("come back", "name"),
    ("be afraid", "afraid fear brave courage show need helped hero taller"), ("lose", "afraid fear brave courage show need helped hero taller"), ("rid of it", "afraid fear brave courage show need helped hero taller"), ("without fear", "afraid fear brave courage show need helped hero taller"), ("be right", "right thing"), ("to win", "thing win won prize"),
    ("last week", "name"), ("put it right", "name"), ("should not be angry", "name"), ("see it grow", "it grow leaves"), ("was alive", "it"), ("would be there when", "it"), ("finest thing", "it"),
)

HABITS = (
    # the word by which a habit is known at the end, and those by which it has been shown
    ("radishes", "radish"), ("pillows", "pillow"), ("his string", "string"), ("her string", "string"), ("the sign on the gate", "sign"), ("moths brought", "moth"), ("moths came", "moth"), ("waistcoat", "waistcoat"), ("bowed to the pond", "pond"), ("bow to the pond", "pond"), ("beetle", "beetle"),
    ("walked round it", "puddle"), ("asked a puddle", "puddle"), ("look under, and", "stone"), ("half a note too high", "song"), ("little lower than before", "song"), ("her egg", "egg"), ("his egg", "egg"), ("his list", "list"), ("her list", "list"), ("up the list", "list"), ("the stool", "stool"), ("lost wasp", "wasp"),
    ("spider", "spider"), ("knees said", "knees"), ("four books", "books"), ("five books", "books"), ("third supper", "supper"), ("last crust", "crust"), ("into the beam", "beam"), ("two of everything", "two of everything"),
    ("worries", "worries"), ("the soup to cool", "soup"), ("grew quite cold", "soup"), ("under the bed", "under the bed"), ("the table for two", "table for two"), ("to the chairs", "chairs"), ("danced home", "danced"), ("cap", "cap"), ("the one chair", "one chair"), ("not humming", "hummed"),
    ("buttered", "buttered"), ("to sit down to eat", "standing"), ("ate sitting", "standing"),
)


def faults(story, _learned=None):
    """What is wrong with the course of the story."""
    return _want(story) + _habits(story) + _repeats(story) + _length(story)


def _ending(story):
    """The last paragraph, and the one before it where the last is short."""
    ending = story.paragraphs[-1] if story.paragraphs else ""
    if len(words(ending)) < 45 and len(story.paragraphs) > 1:
        ending = story.paragraphs[-2] + " " + ending
    return ending


def _want(story):
    wants = [match.group(1) for match in WANTED.finditer(story.text)]
    if not wants:
        return ["nobody wants anything"]
    ending = _ending(story).lower()
    things = set(re.findall(rf"\b(?:{THING})\b", story.text))
    for want in wants:
        keys = [answer for cue, answer in ANSWERS if re.search(rf"\b{cue}\b", want)]
        stems = " ".join(keys).split()
        if not keys:
            stems = [word.lower() for word in re.findall(rf"\b(?:{THING})\b", want)] + ["name" for _ in re.findall(NAME, want)]
        if not stems:
            stems = ["name"]
        if "name" in stems and any(name.lower() in ending for name in story.names):
            return []
        if "thing" in stems and any(thing in ending for thing in things):
            return []
        if any(re.search(rf"\b{re.escape(stem)}", ending) for stem in stems if stem not in ("name", "thing")):
            return []
    return [f"the ending does not speak of what was wanted:{wants[0]}"]


def _habits(story):
    found = []
    if len(story.paragraphs) < 2:
        return found
    ending, before = story.paragraphs[-1], " ".join(story.paragraphs[:-1])
    tail = " ".join(re.split(r"(?<=[.!?])\s", ending)[-3:])
    for cue, shown in HABITS:
        if cue in tail and not any(word in before.lower() for word in shown.split("|")) and not any(word in ending[:-len(tail)].lower() for word in shown.split("|")):
            found.append(f"a habit comes back that was never shown: {cue}")
    return found


def _repeats(story):
    found, seen = [], set()
    for sentence, _ in story.sentences:
        key = " ".join(words(sentence.lower()))
        if len(key.split()) >= 4 and key in seen:
            found.append(f"said twice: {sentence}")
        seen.add(key)
    return found


def _length(story):
    count = len(words(story.text))
    if count < 70:
        return [f"only {count} words"]
    return [f"{count} words"] if count > 480 else []

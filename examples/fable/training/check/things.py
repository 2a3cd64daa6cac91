"""Things and places stay what they are, and nobody uses what somebody else holds."""

import re

from fable.places import PLACES
from fable.things import THINGS

from .reading import KIND, NAME, THING, mentions, without_quotes, words

PERSON = rf"(?:{NAME}|[Tt]he (?:[a-z]+ )?(?:{KIND})|[Hh]e|[Ss]he|[Hh]im|[Hh]er)"
GIVES = [re.compile(pattern) for pattern in (
    rf"\b(?P<giver>{PERSON})(?: [a-z]+)? (?:gave|handed) (?P<taker>{PERSON}) (?:the|a|an) (?:[a-z-]+ ){{0,2}}(?P<thing>{THING})\b",
    rf"\b(?P<giver>{PERSON}) (?:gave|handed) (?:the) (?P<thing>{THING}) to (?P<taker>{PERSON})\b",
    rf"\b(?P<giver>{PERSON}) [^.,]*?, and gave (?P<taker>{PERSON}) the (?P<thing>{THING})\b",
)]
USES = re.compile(rf"\b(?P<user>{PERSON}) (?:lit|held up|took out|opened|put up|played|sounded|polished|carried|unfolded|rang|beat on|held out|put down|laid down|raised|waved) (?:the) (?P<thing>{THING})\b")
OWNS = [re.compile(pattern) for pattern in (
    rf"\b(?P<user>{PERSON}) (?:had|owned|kept|found|borrowed|got) (?:a|an) (?:[a-z-]+ ){{0,2}}(?P<thing>{THING})\b",
    rf"\b(?P<user>{PERSON})(?: [a-z]+)? (?:took) the (?P<thing>{THING})\b",
    rf"\b(?P<user>{PERSON}) wanted to bring (?:(?:the|an?) (?:[a-z-]+ ){{0,2}}|{NAME} (?:an?) (?:[a-z-]+ ){{0,2}})(?P<thing>{THING})\b",
    rf"\b(?P<user>{PERSON}) (?:left|went|set out|crept|packed|waited)\b[^.\"]*\b(?:with|took) (?:the|an?) (?:[a-z-]+ ){{0,2}}(?P<thing>{THING})\b",
)]
CHANGES_HANDS = re.compile(r"\b(?:borrow|gone|lost|slipped|keep it|found it|only the wall|nothing there|swapped|side of the house)")
"""After such words nobody is known to hold anything."""


def faults(story, learned=None):
    """What is wrong with the things and the places; with `learned`, also with what else has to be introduced."""
    return _introduced(story) + _places(story) + _held(story) + (_unheard(story, learned.introduced) if learned else [])


def _unheard(story, introduced):
    """What the ending takes for known, and no other story's ending does before it has been spoken of."""
    before = set(words(" ".join(story.paragraphs[:-1]).lower()))
    ending = words(story.paragraphs[-1].lower()) if len(story.paragraphs) > 1 else []
    found = []
    for index in range(1, len(ending)):
        if ending[index - 1] == "the" and ending[index] in introduced and ending[index] not in before and ending[index] not in ending[:index]:
            found.append(f"the {ending[index]} at the end is new")
    return found


def _introduced(story):
    found, known = [], set()
    for position, before, between, noun, ending in mentions(story.text):
        if noun not in THINGS or ending in ("s", "es"):
            known.add(noun) if noun in THINGS else None
            continue
        if before == "the" and len(between.split()) <= 1 and noun not in known:
            rest = story.text[position + len(noun):position + len(noun) + 24]
            if not re.match(r" (?:across|of|in the window|that|went out)", rest):
                found.append(f"the {noun} was not introduced")
        known.add(noun)
    return found


def _places(story):
    """A place that matters is spoken of more than once; a single "the harbour" late in a story is another story's."""
    count, late = {}, {}
    for position, before, between, noun, ending in mentions(story.text):
        if noun in PLACES and before == "the" and not between and not ending:
            count[noun] = count.get(noun, 0) + 1
            late[noun] = position
    first = len("\n\n".join(story.paragraphs[:2]))
    found = [f"the {noun} is spoken of only once" for noun, times in count.items() if times == 1 and late[noun] > first]
    after_home = [noun for noun, position in late.items() if position > len(story.paragraphs[0])]
    if len(after_home) > 1:
        found.append(f"it is told of {' and '.join(after_home)}")
    return found


def _who(story, word):
    """The name behind a word for somebody, if it is clear."""
    if word in story.names:
        return word
    kind = re.sub(r"^[Tt]he (?:[a-z]+ )?", "", word)
    for name, kinds in story.names.items():
        if kind in kinds:
            return name
    for name, kinds in story.names.items():
        if any(word.lower() == f"the {kind}" for kind in kinds):
            return name
    return None


def _held(story):
    found, holder = [], {}
    for sentence, _ in story.sentences:
        events = []
        bare = without_quotes(sentence)
        for pattern in GIVES:
            events += [(match.start(), "give", match) for match in pattern.finditer(bare)]
        for pattern in OWNS:
            events += [(match.start(), "own", match) for match in pattern.finditer(bare)]
        events += [(match.start(), "use", match) for match in USES.finditer(bare)]
        for _, what, match in sorted(events, key=lambda event: event[0]):
            thing = match.group("thing")
            if what == "give":
                giver, taker = _who(story, match.group("giver")), _who(story, match.group("taker"))
                if giver and giver == taker:
                    found.append(f"{giver} gives the {thing} to {taker}")
                if giver and holder.get(thing) not in (None, giver):
                    found.append(f"{giver} gives the {thing}, which {holder[thing]} has")
                holder[thing] = taker
            else:
                user = _who(story, match.group("user"))
                if what == "use" and user and holder.get(thing) not in (None, user):
                    found.append(f"{user} uses the {thing}, which {holder[thing]} has")
                if what == "own" or user:
                    holder[thing] = user
        if CHANGES_HANDS.search(bare):
            holder.clear()
    return found

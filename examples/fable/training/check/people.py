"""People stay who they are: names, kinds and pronouns."""

import re

from fable.cast import KINDS

from .reading import KIND, NAME, QUOTED, SENTENCE, mentions, without_quotes

CAPITALS = {"I", "GO", "AWAY", "PLEASE", "COME", "IN", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "Mondays", "Tuesdays", "Sundays", "Wednesdays", "Christmas", "March", "May",
            "October", "Patience", "Gerald", "A", "Z", "September", "April", "June"}
STARTS = set("""When Over Behind Before After Like Both So As Then Next While Only If But And Was In On At To From With By For That There What It Let Who He She All Even Now Under Once Where Somebody Nobody Everybody
Up Down Not Was Had Did Could Would Were Since Until Because Meanwhile Besides Near Beside Across Round Along Above Below Against""".split())
OTHERS = re.compile(r"\b(?:if|how|whom|what|where|than)\b")
"""Behind such a word the pronoun may well be somebody else's."""
AFTER_NAME = re.compile(r"\b[A-Z][a-z]+ the (?:[a-z]+ )?$")
STARTERS = re.compile(r'(?:^|[.!?:]"?\s+"?|\n\s*"?|^"|\s")$')
PERSON = re.compile(rf"\b(?:{KIND}|sister|brother|mother|father|woman|man|boy|girl|aunt|uncle|peddler|steward|teacher|child|neighbours?|cousin|niece|lady|keeper|stranger|mayor|priest|wife|daughter|son|shepherdess|villain|hero|actor|bride|doctor|washerwoman|nephew|lamb|calf|baby|dog)\b")


def faults(story, learned=None):
    """What is wrong with the people. With `learned`, a word that begins a sentence and is no word is a name, too."""
    return _names(story, learned.small if learned else None) + _kinds(story) + _pronouns(story)


def _names(story, small):
    found = []
    for match in re.finditer(r"\b[A-Z][A-Za-z]+", story.text):
        word = match.group(0)
        if word in story.names or word in CAPITALS:
            continue
        before = story.text[max(0, match.start() - 4):match.start()]
        if not before or STARTERS.search(before):
            after = story.text[match.end():match.end() + 12]
            is_name = after.startswith("'s ") or re.match(r" the (?:" + KIND + ")", after) or small is not None and word.lower() not in small
            if word in STARTS or not is_name:
                continue
        found.append(f"nobody is called {word}")
    for name, kinds in story.names.items():
        if len(kinds) > 1:
            found.append(f"{name} is more than one kind: {', '.join(sorted(kinds))}")
    return found


def _kinds(story):
    found, known = [], set()
    for position, before, between, noun, ending in mentions(story.text):
        if noun not in KINDS:
            continue
        if AFTER_NAME.search(story.text[max(0, position - 24):position]):
            known.add(noun)
        if before == "the" and not between or before == "the" and len(between.split()) == 1:
            if noun not in known and ending in ("", "'s"):
                found.append(f"the {noun} was not introduced")
        else:
            known.add(noun)
    return found


def _pronouns(story):
    """In a sentence about one person alone, the pronoun is that person's, every time."""
    found, seen = [], {}
    owners = {kind: name for name, kinds in story.names.items() for kind in kinds}
    for sentence, _ in story.sentences:
        bare = without_quotes(sentence)
        who = {match.group(0) for match in re.finditer(NAME, bare) if match.group(0) in story.names}
        people = [match.group(0) for match in PERSON.finditer(bare)]
        who |= {owners[kind] for kind in people if kind in owners}
        if len(who) != 1 or any(kind not in owners for kind in people) or QUOTED.search(sentence):
            continue
        name = next(iter(who))
        if not re.match(rf'(?:{name}|The (?:[a-z]+ )?(?:{KIND}))\b', bare):
            continue
        bare = OTHERS.split(bare)[0]
        said = {"m": len(re.findall(r"\b(?:he|himself|his)\b", bare)), "f": len(re.findall(r"\b(?:she|herself|her own)\b", bare))}
        for gender in "mf":
            if said[gender]:
                seen.setdefault(name, {"m": 0, "f": 0})[gender] += 1
    _alone(story, owners, seen)
    for name, count in seen.items():
        if count["m"] and count["f"]:
            found.append(f"{name} is both he and she")
    if not found and story.sentences:
        found += _opening_pronoun(story, seen)
    return found


def _opening_pronoun(story, seen):
    """Before anybody else has come in, every pronoun is the hero's."""
    gender = {"m": 0, "f": 0}
    for sentence, index in story.sentences:
        bare = without_quotes(sentence)
        others = [name for name in story.names if name != story.hero_name and name in bare]
        people = [kind for kind in PERSON.findall(bare) if kind != story.hero] if PERSON.search(bare) else []
        if others or people or index:
            break
        gender["m"] += len(re.findall(r"\b(?:[Hh]e|[Hh]im|[Hh]is|[Hh]imself)\b", bare))
        gender["f"] += len(re.findall(r"\b(?:[Ss]he|[Hh]er|[Hh]erself)\b", bare))
    if gender["m"] and gender["f"]:
        return [f"{story.hero_name} is both he and she at the beginning"]
    known = seen.get(story.hero_name)
    if known and (gender["m"] and known["f"] or gender["f"] and known["m"]):
        return [f"{story.hero_name} changes from he to she or back"]
    return []


def _alone(story, owners, seen):
    """As long as a paragraph has spoken of one person only, a sentence that begins with a pronoun is about that person."""
    people, paragraph = set(), -1
    for sentence, index in story.sentences:
        if index != paragraph:
            people, paragraph = set(), index
        bare = without_quotes(sentence)
        start = re.match(r"(He|She|His|Her)\b", bare)
        if start and len(people) == 1 and None not in people and QUOTED.search(sentence) is None:
            gender = "m" if start.group(1) in ("He", "His") else "f"
            seen.setdefault(next(iter(people)), {"m": 0, "f": 0})[gender] += 1
        people |= {name for name in story.names if re.search(rf"\b{name}\b", sentence)}
        people |= {owners.get(match.group(0)) for match in PERSON.finditer(sentence)}

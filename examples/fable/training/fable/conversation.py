"""Conversations: requests, stories, questions and small talk, put together as people do it."""

from itertools import count

from . import questions, requests, smalltalk
from .casting import tell
from .cast import KINDS
from .places import PLACES
from .prose import takes_an
from .things import THINGS
from .traits import TRAITS
from .weather import WEATHERS

REVEALED = (
    # what a request shows, and how often
    (("kind",), 10), (("thing",), 6), (("place",), 5), (("kind", "thing"), 14), (("kind", "trait"), 5), (("kind", "place"), 5), (("kind", "other"), 6), (("kind", "other", "thing"), 3), (("kind", "thing", "place"), 3),
    (("thing", "place"), 2), (("kind", "trait", "thing"), 3), (("kind", "trait", "place"), 2), (("kind", "name"), 4), (("kind", "name", "thing"), 3), (("kind", "trait", "name"), 2),
    (("mood",), 8), (("kind", "mood"), 14), (("kind", "thing", "mood"), 10), (("kind", "trait", "mood"), 8), (("thing", "mood"), 6), (("place", "mood"), 4), (("kind", "mood", "place"), 4), (("kind", "other", "mood"), 4),
    (("kind", "name", "mood"), 3), (("mood", "length"), 2), (("kind", "thing", "mood", "length"), 2), (("kind", "weather", "mood"), 1), (("kind", "theme", "mood"), 1),
    (("length",), 3), (("kind", "length"), 4), (("kind", "thing", "length"), 3), (("kind", "trait", "length"), 1), (("theme",), 4), (("kind", "theme"), 2), (("weather",), 2), (("kind", "weather"), 2),
    (("kind", "moral"), 2), (("moral",), 2), (("kind", "title"), 1), (("kind", "thing", "title"), 1),
)
_SETS, _WEIGHTS = [keys for keys, _ in REVEALED], [weight for _, weight in REVEALED]

FIELDS = {"kind": lambda scene: scene.h.kind.noun, "other": lambda scene: scene.o.kind.noun, "thing": lambda scene: scene.x.thing.noun, "place": lambda scene: scene.p.place.noun,
          "trait": lambda scene: scene.h.trait, "mood": lambda scene: scene.mood, "weather": lambda scene: scene.weather.noun, "name": lambda scene: scene.h.name}


def with_article(noun):
    """A noun with a or an."""
    return ("an " if takes_an(noun) else "a ") + noun


def draw(rng, keys, **fixed):
    """What a request will ask for, drawn evenly: the plots that suit only some things must not make others rare."""
    asked = dict(fixed)
    if "kind" in keys:
        asked.setdefault("kind", rng.choice(list(KINDS)))
    if "thing" in keys:
        asked.setdefault("thing", rng.choice(list(THINGS)))
    if "place" in keys:
        asked.setdefault("place", rng.choice(list(PLACES)))
    if "other" in keys:
        asked.setdefault("other", rng.choice([noun for noun in KINDS if noun != asked.get("kind")]))
    if "trait" in keys:
        asked.setdefault("trait", rng.choice(TRAITS))
    if "mood" in keys:
        asked.setdefault("mood", rng.choice(("happy", "funny", "sad")))
    if "weather" in keys:
        asked.setdefault("weather", rng.choice(list(WEATHERS)))
    if "theme" in keys:
        asked.setdefault("theme", rng.choice(list(requests.THEMES)))
    if "length" in keys:
        asked.setdefault("length", rng.choice(("short", "short", "long")))
    if "name" in keys:
        asked["named"] = True
    return asked


def story_turn(rng, keys=None, asked_as=None, **fixed):
    """A request and its story: (scene, request, answer)."""
    for attempt in count():
        if attempt == 20:
            # what is fixed does not go together, such as a bell ringer and a bell; the first of it is kept
            fixed = dict(list(fixed.items())[:1])
        chosen = keys if keys is not None else rng.choices(_SETS, _WEIGHTS)[0]
        asked = draw(rng, chosen, **fixed)
        scene = tell(rng, asked)
        if scene is None:
            continue
        scene.theme = asked.get("theme", "")
        scene.named = [key for key in chosen if key in FIELDS]
        text = asked_as or (rng.choice(requests.PLAIN) if not chosen else requests.request(scene, rng, chosen))
        story = scene.text()
        if "title" in chosen:
            story = scene.facts["title"] + "\n\n" + story
        if "moral" in chosen:
            story += "\n\n" + questions.moral(scene, rng)
        scene.wanted = {key: FIELDS[key](scene) for key in scene.named}
        return scene, text, story


def _filled(rng, text):
    a, b = with_article(rng.choice(list(KINDS))), with_article(rng.choice(list(THINGS)))
    return text.replace("{a}", a).replace("{b}", b), a


def _talk(rng):
    asked, answers = rng.choice(smalltalk.GREETINGS)
    return rng.choice(asked), _filled(rng, rng.choice(answers))[0]


def _beyond(rng):
    question = rng.choice(smalltalk.BEYOND_QUESTIONS) if rng.random() < 0.6 else rng.choice(smalltalk.BEYOND_FORMS).format(rng.choice(smalltalk.BEYOND_SUBJECTS))
    answer = rng.choice(smalltalk.BEYOND_ANSWERS)
    return question if rng.random() < 0.8 else question.lower().rstrip("?."), _filled(rng, answer)[0]


def _declined(rng):
    """A request that no story can honour, the answer, and with luck the story offered instead."""
    word = rng.choice(smalltalk.STRANGE_WORDS)
    head = rng.choice(requests.HEADS)
    mood = rng.choice(("", "", "", rng.choice(("sad ", "funny ", "happy ", "short "))))
    other = " and " + with_article(rng.choice(smalltalk.STRANGE_WORDS + tuple(THINGS))) if rng.random() < 0.3 else ""
    request = f"{head} a {mood}story about {with_article(word)}{other}" + rng.choice((".", "", "?" if head.startswith(("Can", "Could")) else "."))
    template = rng.choice(smalltalk.DECLINED)
    kind, thing = rng.choice(list(KINDS)), rng.choice(list(THINGS))
    answer = template.replace("{a}", with_article(kind)).replace("{b}", with_article(thing))
    turns = [(request, answer)]
    if rng.random() < 0.6:
        if rng.random() < 0.85:
            fixed = {"kind": kind, "thing": thing} if "{b}" in template else {"kind": kind}
            scene, _, story = story_turn(rng, keys=(), asked_as=rng.choice(smalltalk.YES), **fixed)
            turns.append((rng.choice(smalltalk.YES), story))
            turns += _about(rng, scene, rng.choice((0, 1)))
        else:
            turns.append((rng.choice(smalltalk.NO[0]), rng.choice(smalltalk.NO[1])))
    return turns


def _about(rng, scene, count):
    """Questions about a story, no kind of question twice."""
    pool = questions.pairs(scene, rng)
    weights = {"want": 5, "ending": 3, "why": 2, "plot": 2.5, "unknown": 2, "summary": 1.5, "helper": 2, "obstacle": 2, "solved": 2, "name": 2.5, "other_name": 2.5, "other": 1.5, "kind": 1.5, "outline": 4}
    turns, used = [], set()
    while pool and len(turns) < count:
        total = [weights.get(key, 1) for key, _, _ in pool]
        index = rng.choices(range(len(pool)), total)[0]
        key, question, answer = pool.pop(index)
        if key in used and key != "plot" or question in used:
            continue
        if key == "why" and question == "Why?" and not (turns and "want" in used and turns[-1][2] == "want"):
            continue
        used |= {key, question}
        turns.append((question if rng.random() < 0.88 else question[0].lower() + question[1:].rstrip("?"), answer, key))
    return [(question, answer) for question, answer, _ in turns]


def conversation(rng):
    """One conversation, as (request, answer) pairs."""
    draw_ = rng.random()
    if draw_ < 0.045:
        turns = [_talk(rng)]
        if rng.random() < 0.5:
            scene, text, story = story_turn(rng, keys=None if rng.random() < 0.7 else ())
            turns.append((text, story))
        return turns
    if draw_ < 0.085:
        turns = [_beyond(rng)]
        if rng.random() < 0.4:
            scene, text, story = story_turn(rng)
            turns.append((text, story))
        elif rng.random() < 0.3:
            turns.append(_beyond(rng))
        return turns
    if draw_ < 0.12:
        return _declined(rng)
    keys = () if rng.random() < 0.07 else None
    scene, text, story = story_turn(rng, keys)
    turns = [(text, story)]
    turns += _about(rng, scene, rng.choice((0, 0, 1, 1, 2, 3, 4, 5)))
    if rng.random() < 0.1:
        turns.append(_talk(rng) if rng.random() < 0.6 else _beyond(rng))
    while rng.random() < 0.24:
        scene, text, story = _next(rng, scene)
        turns.append((text, story))
        turns += _about(rng, scene, rng.choice((0, 0, 1, 2)))
    return turns


def _next(rng, scene):
    """A further story after one has been told."""
    draw_ = rng.random()
    if draw_ < 0.3:
        return story_turn(rng)
    if draw_ < 0.55:
        return story_turn(rng, keys=(), asked_as=rng.choice(requests.ANOTHER))
    if draw_ < 0.7:
        mood = rng.choice(("happy", "funny", "sad"))
        return story_turn(rng, keys=(), asked_as=rng.choice(requests.ANOTHER_MOOD[mood]), mood=mood)
    same = {"kind": scene.h.kind.noun, "name": scene.h.name, "gender": scene.h.gender, "trait": scene.h.trait}
    if draw_ < 0.85:
        return story_turn(rng, keys=(), asked_as=rng.choice(requests.SAME_HERO).format(name=scene.h.name, kind=scene.h.kind.noun), **same)
    mood = rng.choice([mood for mood in ("happy", "funny", "sad") if mood != scene.mood])
    same.update(other=scene.o.kind.noun, thing=scene.x.thing.noun, plot=scene.plot.NAME)
    if "p" in scene.roles:
        same["place"] = scene.p.place.noun
    told = tell(rng, dict(same, mood=mood))
    if told is None:
        return story_turn(rng)
    return told, rng.choice(requests.SAME_MOOD[mood]), told.text()

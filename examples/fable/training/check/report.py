"""How good the checker is: what it says of good stories, of spoiled ones, and of good ones that answer another request."""

import random
from collections import Counter

from fable.conversation import story_turn
from fable.casting import tell

from .checker import Checker
from .corrupt import SPOILERS

MISMATCHES = ("kind", "thing", "place", "trait", "name", "mood")


def learned(count=20000, seed=1):
    """A checker that has read stories of its own."""
    rng = random.Random(seed)
    scenes = [tell(rng, {}) for _ in range(count)]
    return Checker([(scene.text(), scene.mood) for scene in scenes if scene])


def report(checker, count=2000, seed=2):
    """Figures, as lines of text."""
    rng = random.Random(seed)
    turns = [story_turn(rng) for _ in range(count)]
    clean = [(scene.text(), scene.wanted) for scene, _, _ in turns]
    passed = sum(not checker.faults(text, wanted) for text, wanted in clean)
    lines = [f"good stories that pass: {passed} of {count} ({passed / count:.1%})"]
    caught_all = tried_all = 0
    for spoiler in SPOILERS:
        tried = caught = 0
        for index, (text, wanted) in enumerate(clean[: count // 2]):
            spoiled = spoiler(rng, text, clean[(index + count // 2) % count][0])
            if spoiled is None or spoiled == text:
                continue
            tried += 1
            caught += bool(checker.faults(spoiled, wanted))
        lines.append(f"{spoiler.__doc__.strip()} caught {caught} of {tried} ({caught / max(tried, 1):.0%})")
        caught_all, tried_all = caught_all + caught, tried_all + tried
    lines.append(f"spoiled stories caught: {caught_all} of {tried_all} ({caught_all / tried_all:.1%})")
    wrong, seen = Counter(), Counter()
    for index, (text, _) in enumerate(clean):
        scene = turns[(index + 1) % count][0]
        for key, value in scene.wanted.items():
            own = turns[index][0]
            if key in MISMATCHES and value != _value(own, key):
                seen[key] += 1
                wrong[key] += bool(checker.faults(text, {key: value}))
    lines.append("a story for another request is refused: " + ", ".join(f"{key} {wrong[key]} of {seen[key]} ({wrong[key] / max(seen[key], 1):.0%})" for key in MISMATCHES))
    return lines


def _value(scene, key):
    from fable.conversation import FIELDS
    try:
        return FIELDS[key](scene)
    except AttributeError:
        return None


if __name__ == "__main__":
    print("\n".join(report(learned())))

"""Whether a story has what was asked for."""

import re
from collections import Counter
from math import log

from .reading import mentions, words
from fable.cast import KINDS
from fable.places import PLACES
from fable.things import THINGS


def faults(story, wanted, moods=None):
    """What was asked for and is not there. `wanted` has kind, other, thing, place, name, trait and mood, as far as asked."""
    found = []
    nouns = Counter(noun for _, _, _, noun, _ in mentions(story.text))
    first = " ".join(story.paragraphs[:2])
    if "kind" in wanted and (story.hero != wanted["kind"] and wanted["kind"] not in [kind for kinds in story.names.values() for kind in kinds]):
        found.append(f"the story is not about the {wanted['kind']}")
    if "other" in wanted and nouns[wanted["other"]] < 1:
        found.append(f"there is no {wanted['other']}")
    if "thing" in wanted and nouns[wanted["thing"]] < 2:
        found.append(f"there is no {wanted['thing']}")
    if "place" in wanted and nouns[wanted["place"]] < 1:
        found.append(f"it is not told of the {wanted['place']}")
    if "name" in wanted and wanted["name"] not in story.names:
        found.append(f"nobody is called {wanted['name']}")
    if "trait" in wanted and not re.search(rf"\b{wanted['trait']}\b", first):
        found.append(f"nobody is {wanted['trait']}")
    if "mood" in wanted and moods is not None and not moods.accepts(story, wanted["mood"]):
        found.append(f"it is not {wanted['mood']}")
    return found


def known(noun):
    """What sort of thing a noun is to a request."""
    return "kind" if noun in KINDS else "thing" if noun in THINGS else "place" if noun in PLACES else None


class Moods:
    """How sad, funny and happy endings sound: word counts of other stories' endings, compared by likelihood."""

    def __init__(self, endings):
        self.counts = {"happy": Counter(), "funny": Counter(), "sad": Counter()}
        for text, mood in endings:
            self.counts[mood].update(self._features(text))
        self.vocabulary = set().union(*self.counts.values())
        self.totals = {mood: sum(counter.values()) for mood, counter in self.counts.items()}

    @staticmethod
    def _features(text):
        tokens = [word.lower() for word in words(text)]
        return set(tokens) | set(zip(tokens, tokens[1:]))

    def scores(self, text):
        """The log likelihood of an ending under each mood."""
        features = self._features(text) & self.vocabulary
        return {mood: sum(log((counter[feature] + 0.5) / (self.totals[mood] + 0.5 * len(self.vocabulary))) for feature in features)
                for mood, counter in self.counts.items()}

    def accepts(self, story, mood):
        """Whether the ending sounds as asked. It has to be clearly something else to be refused."""
        scores = self.scores(story.paragraphs[-1] if len(story.paragraphs) > 1 else story.text)
        return scores[mood] > max(scores.values()) - 4.0

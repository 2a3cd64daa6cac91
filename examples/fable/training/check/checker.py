"""All the rules together."""

from collections import Counter

from . import asked, course, grammar, people, things
from fable.cast import KINDS
from fable.things import THINGS

from .reading import read, words

RULES = {"people": people.faults, "things": things.faults, "course": course.faults}


class Checker:
    """Checks stories, with what it has learned of other stories: the words there are, and how moods sound."""

    def __init__(self, stories):
        self.vocabulary = {word.lower() for text, _ in stories for word in words(text)}
        for noun in list(KINDS.values()) + list(THINGS.values()):
            self.vocabulary |= {word.lower() for form in (noun.noun, noun.plural, noun.noun + "'s") for word in words(form)}
        self.small = {word for text, _ in stories for word in words(text) if word[0].islower()} | _never_names(stories[:4000])
        self.introduced = _introduced(stories)
        self.moods = asked.Moods([(text.split("\n\n")[-1], mood) for text, mood in stories])

    def faults(self, text, wanted=None):
        """What is wrong with a story, by rule."""
        story = read(text)
        found = [(rule, fault) for rule, faults in RULES.items() for fault in faults(story, self)]
        found += [("grammar", fault) for fault in grammar.faults(text, self.vocabulary)]
        found += [("asked", fault) for fault in asked.faults(story, wanted or {}, self.moods)]
        return found


def _never_names(stories):
    """The words with a capital that are nobody's name."""
    return {word.lower() for text, _ in stories for names in [read(text).names] for word in words(text) if word[0].isupper() and word not in names and word.removesuffix("'s") not in names}


def _introduced(stories, least=25):
    """The words that come with "the" in endings only where they have been spoken of before, one story in two hundred excepted."""
    seen, before = Counter(), Counter()
    for text, _ in stories:
        parts = text.split("\n\n")
        earlier, ending = set(words(" ".join(parts[:-1]).lower())), words(parts[-1].lower())
        for index in {ending.index(word) for word in set(ending)}:
            if index and ending[index - 1] == "the":
                seen[ending[index]] += 1
                before[ending[index]] += ending[index] in earlier
    return {word for word, count in seen.items() if count >= least and before[word] >= 0.995 * count}

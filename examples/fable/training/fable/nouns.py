"""The nouns that stories keep track of, and the words by which each may turn up in a text."""

from .cast import KINDS
from .places import PLACES
from .things import THINGS


def _words():
    words = {}
    for noun, entry in list(KINDS.items()) + list(THINGS.items()):
        words[noun] = frozenset(noun.split() + [entry.plural.split()[-1]])
    for noun in PLACES:
        words[noun] = frozenset(noun.split() + [noun.split()[-1] + "s"])
    return words


TRACKED = _words()
"""Of every kind, thing and place: the words that speak of it."""

"""Templates to text.

A template is a sentence or a few. `[a|b|]` is a choice (nested as deep as one likes), `{h.his}` asks the scene for a
word, and `^` makes the next letter a capital where that does not follow from the full stop before it. A template is
parsed once; what it mentions outside its slots is known without writing it, so that a scene can pass over a template
that speaks of somebody else's kettle.
"""

import re
from functools import lru_cache

TOKEN = re.compile(r"\[|\]|\||\{[a-z_.']+\}|[^\[\]|{}]+")
WORD = re.compile(r"[a-z]+")


class Template:
    """A parsed template: nested sequences of text, slots and choices."""

    def __init__(self, text):
        self.text = text
        tokens = TOKEN.findall(text)
        if "".join(tokens) != text:
            raise ValueError(f"not a template: {text}")
        self.parts, rest = _sequence(tokens, 0, inside=False)
        if rest != len(tokens):
            raise ValueError(f"brackets do not match: {text}")
        self.words = frozenset(WORD.findall(re.sub(r"\{[^}]*\}", " ", text.lower())))
        self.slots = frozenset(token[1:-1] for token in tokens if token[0] == "{")

    def write(self, rng, look_up, clause=False):
        """The template's text with every choice made and every slot filled; a clause keeps its small first letter."""
        out = []
        _write(self.parts, rng, look_up, out)
        return tidy(("\0" if clause else "") + "".join(out)).lstrip("\0")


def _sequence(tokens, index, inside):
    parts = []
    while index < len(tokens):
        token = tokens[index]
        if token == "[":
            options = []
            index += 1
            while True:
                option, index = _sequence(tokens, index, inside=True)
                options.append(option)
                if index >= len(tokens):
                    raise ValueError("a choice is not closed")
                index += 1
                if tokens[index - 1] == "]":
                    break
            parts.append(options)
        elif token in "]|":
            if not inside:
                raise ValueError("a choice is not opened")
            return parts, index
        else:
            parts.append(token)
            index += 1
    return parts, index


def _write(parts, rng, look_up, out):
    for part in parts:
        if isinstance(part, list):
            _write(part[int(rng.random() * len(part))], rng, look_up, out)
        elif part[0] == "{":
            out.append(look_up(part[1:-1]))
        else:
            out.append(part)


@lru_cache(maxsize=None)
def template(text):
    """The parsed form of a template, made once."""
    return Template(text)


SPACES = re.compile(r" {2,}")
BEFORE_MARK = re.compile(r" +([.,;:?!])")
AFTER_STOP = re.compile(r'(^|[.!?] |\." |\n)("?)([a-z])')
RAISED = re.compile(r"\^(\"?)([A-Za-z])")
COMMA_OUTSIDE = re.compile(r'(\w)",')
ARTICLE = re.compile(r"\b([Aa])n? (?=([A-Za-z]+))")
AN = re.compile(r"(?:[aeio]|u(?!ni|se|su|ti|ke)|hour|honest|heir)", re.IGNORECASE)
A_ANYWAY = re.compile(r"(?:one\b|once\b|eu|ewe)", re.IGNORECASE)


def takes_an(word):
    """Whether a word is said with `an` before it."""
    return bool(AN.match(word)) and not A_ANYWAY.match(word)


def _article(found):
    letter, word = found.group(1), found.group(2)
    return f"{letter}n " if takes_an(word) else f"{letter} "


def tidy(text):
    """Spaces, articles and capitals put right."""
    text = SPACES.sub(" ", text).strip()
    text = BEFORE_MARK.sub(r"\1", text)
    text = COMMA_OUTSIDE.sub(r'\1,"', text)
    text = ARTICLE.sub(_article, text)
    text = AFTER_STOP.sub(lambda found: found.group(1) + found.group(2) + found.group(3).upper(), text)
    return RAISED.sub(lambda found: found.group(1) + found.group(2).upper(), text)

"""English: articles, doubled words, agreement, quotation marks, ends, and words that nobody has heard of."""

import re

from .reading import words

ARTICLE = re.compile(r"\b([Aa]n?) ([A-Za-z]+)")
LIKE_A = re.compile(r"(?:one\b|once\b|eu|ewe|uni|use|usu|uti|uke)", re.IGNORECASE)
LIKE_AN = re.compile(r"(?:[aeiou]|hour|honest|heir)", re.IGNORECASE)
DOUBLED = re.compile(r"\b([a-z]+) \1\b", re.IGNORECASE)
MAY_DOUBLE = {"had", "that", "very", "said", "good", "no", "shh", "plink", "mine", "calling", "away", "do"}
DISAGREES = re.compile(r"\b(?:he|she|it) (?:were|have|are|do|go|am)\b|\b(?:they|we) (?:was|has|is|does)\b|\b(?:I) (?:is|are|has)\b|\b(?:he|she) (?:him|her|them)\b", re.IGNORECASE)
ENDS = re.compile(r'[.!?]"?$')


def faults(text, vocabulary=None):
    """What is wrong with the English."""
    found = []
    for match in ARTICLE.finditer(text):
        article, word = match.group(1).lower(), match.group(2)
        if match.group(1) == "A" and word[0].isupper():
            continue
        should_be_an = bool(LIKE_AN.match(word)) and not LIKE_A.match(word)
        if should_be_an != (article == "an"):
            found.append(f"article: {match.group(0)}")
    for match in DOUBLED.finditer(text):
        if match.group(1).lower() not in MAY_DOUBLE:
            found.append(f"doubled word: {match.group(0)}")
    for match in DISAGREES.finditer(text):
        if "if" not in text[max(0, match.start() - 6):match.start()]:
            found.append(f"agreement: {match.group(0)}")
    for paragraph in text.split("\n\n"):
        if paragraph.count('"') % 2:
            found.append("quotation marks do not close")
    paragraphs = text.strip().split("\n\n")
    if not ENDS.search(paragraphs[-1]):
        found.append("the story has no end")
    if vocabulary is not None:
        for word in words(text):
            if word.lower() not in vocabulary and not word[0].isupper():
                found.append(f"no such word: {word}")
    return found

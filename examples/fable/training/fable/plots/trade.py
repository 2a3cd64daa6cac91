"""Trade: somebody wants a thing, has another, and swaps. It takes three to make one exchange come out even."""

from ..beats import opening, owning
from ..needs import NEEDS

NAME = "trade"
THEMES = ("sharing", "cleverness", "kindness")
ROLES = ("h", "o", "t", "x", "y", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the needs, and `y` is what the hero wants."""
    if not cast.find_place() or not cast.find_second() or not cast.find_third():
        return False
    mine = [need for need in NEEDS[cast.second.group] if cast.allows(need.plea, need.because, need.result)]
    theirs = [need for need in NEEDS[cast.thing.group] if cast.allows(need.plea, need.because, need.result)]
    if not mine or not theirs:
        return False
    cast.picked = {"mine": cast.rng.choice(mine), "theirs": cast.rng.choice(theirs)}
    return True


WANTED = (
    "But what {h} wanted was {y.a}, because {because}.",
    "All the same, {h} wanted something else, namely {y.a}: {because}.",
    "It was a fine thing to have, but it was no help. What {h} wanted that winter was {y.a}, for {because}.",
    "Only, {h} did not need it just then. {h.he} wanted {y.a}, since {because}.",
)

KNEW = (
    "{o.name} the {o.kind}, who lived {p.at}, had one. {day} {h} {h.went} to {p.the}, with {x.the} for the exchange.",
    "{o.name} the {o.kind}, who lived {p.at}, had one. So {day} {h} took {x.the} and went to {p.the}.",
    "There was only one to be had, and it belonged to {o.a} named {o.name}, {p.at}. {day} {h} set out for {p.the} with {x.the}.",
    "{o.a} named {o.name} had one and lived {p.at}. {h} put {h.his} pride in a drawer and set out for {p.the} {day}, with {x.the}.",
)

REFUSED = (
    "\"{x.a}?\" said {o.name}. \"What should I do with that? What I need is company at supper.\" {h} offered {h.himself}, but {o.name} meant for always.",
    "{o.name} turned {x.the} over and gave it back. \"It is a good one,\" {o.he} said, \"but I have nowhere to put it. Now, if you had a story.\"",
    "{o.name} shook {o.his} head. \"I would not swap mine for that,\" {o.he} said, \"but I would swap it for a good strong pair of shoes, size enormous.\"",
    "\"No,\" said {o.name}, \"but I will tell you what I would swap it for: a sack of meal. My shelf is empty.\"",
)

WISHES = ("company", "a story", "shoes", "meal")

GOT = {
    "company": ("a kitten", "kitten", "\"I have a kitten too many,\" said {t.name}"),
    "a story": ("a story", "story", "\"All I own is a story,\" said {t.name}, \"but it is a long one\""),
    "shoes": ("a pair of enormous shoes", "shoes", "\"These shoes were left here by a giant of a man,\" said {t.name}"),
    "meal": ("a sack of meal", "meal", "\"Meal I have,\" said {t.name}, \"more than mice\""),
}

MET = (
    "On the way home {h.he} met {t.a} named {t.name}, who was sitting on a wall and sighing. \"{plea},\" said {t.name}.",
    "At the first bend {t.a} named {t.name} came towards {h.him} and stopped. \"Is that {x.a} you have there?\" said {t.name}. \"{plea}.\"",
    "Behind the hedge somebody was talking to {t.himself}. It was {t.a} named {t.name}. \"{plea},\" said {t.name} to nobody.",
)

SWAPPED = (
    "{h} gave {t.him} {x.the}, then and there. {offer}, and gave {h.him} {goods}.",
    "So {h} gave {t.name} {x.the}. {offer}, and would not let {h.him} go without {goods}.",
)

HAPPY = (
    "With {goods} {h} went back to {o.name}, as fast as {h.he} could. {o.name} laughed out loud and gave {h.him} {y.the}. And {mine}.",
    "{h} turned round on the spot and brought {o.name} {goods}. \"That is exactly it,\" said {o.name}, and gave {h.him} {y.the} with both {o.hands}. And so {mine}.",
    "{h} knocked at {o.name}'s door with {goods} and did not say a word. {o.name} went red with joy, vanished, and came back with {y.the}. \"It has been waiting for you,\" {o.he} said, \"only I did not know it.\" And {mine}.",
)

HAPPY_END = (
    "As for {t.name}, {theirs}. So all three had what they needed, and nobody had paid for it.",
    "And {theirs}. It is odd that a thing can be worth so much more one house further on.",
    "Meanwhile {theirs}. They meet once a year now, all three, to see that everything is still in the right house.",
)

FUNNY = (
    "{h} ran back to {o.name} with {goods}. But {o.name} was no longer at home: {o.he} had gone and swapped {y.the} for {x.the}, with {t.name}'s cousin, because it had pleased {o.him} after all. It took four days, a cow and a written list before {h} had {y.the}.",
    "Then {h} swapped {goods} for a cow, the cow for a wagon, the wagon for a song, and the song, since he was fond of music, {o.name} took in exchange for {y.the}. \"You could have sung it to me straight away,\" said {o.name}. {h} sat down in the road.",
    "When {h} came back with {goods}, {o.name} already had some. \"But {y.the} you may have,\" {o.he} said. \"Nobody had said please until now.\" {h} had not said please either. {h.he} said it then.",
    "{o.name} took {goods}, gave {h.him} {y.the}, and asked what had become of {x.the}, for now that it was gone {o.he} rather liked it. {h} said where it was. Half way there they met {t.name}, who was coming to ask for {y.the}. All three sat down by the road and began again from the beginning.",
)

FUNNY_END = (
    "When {h} came home at last with {y.the}, {h.he} found another one there, behind the chimney.",
    "<cow>{h} wrote down the whole exchange to see who had gained by it. As far as {h.he} could make out, it was the cow.",
    "And {mine}. Still, {h} looks twice now before {h.he} says what a thing is worth.",
    "{h} had {y.the}, and that was that. Only {t.name} had come along as well, to see how it would end.",
)

SAD = (
    "{h} brought {o.name} {goods} and got {y.the}. {h.he} carried it home. And {mine}. But the place where {x.the} had been was empty, and {h} had not known how often {h.he} looked that way.",
    "With {goods} {h} came back to {p.the}. {o.name} gave {h.him} {y.the} and wished {h.him} joy of it. It was too late by then: what {h} had wanted it for was over when {h.he} got home. {h.he} would have liked to have {x.the} back. But a swap is a swap.",
    "{o.name} took {goods} and gave {h.him} {y.the}, and the bargain was made. That night {h} heard, from {t.name}'s window, somebody being glad of {x.the}. {h.he} held on to {y.the} and listened. It had been a fair exchange. It is only that fair is not the same as warm.",
)

SAD_END = (
    "Once {h.he} heard of {x.the}: {theirs}. That was good. {h} told {h.himself} so.",
    "{h} passes {t.name}'s window sometimes and sees {x.the} in it. It looks well there.",
    "One has two {h.hands}, and what one puts into them, one must first have put down.",
    "{y.the} is a good one, everybody says so. {h} nods.",
)


def tell(s):
    """Tells it."""
    mine, theirs = s.picked["mine"], s.picked["theirs"]
    opening(s)
    owning(s, origin=0.5)
    s.roles["n"], s.roles["z"] = s.h, s.x
    s.state.take("o", "y")
    because = told(s, mine.because, "h", "y")
    result_mine, result_theirs = told(s, mine.result, "h", "y"), told(s, theirs.result, "t", "x")
    s.say(*[text.replace("{because}", because) for text in WANTED])
    s.break_()
    s.say(*KNEW)
    s.state.go("h", s.p.place.noun)
    s.sight(0.35)
    index = s.rng.randrange(len(WISHES))
    while not s.fits(REFUSED[index] + GOT[WISHES[index]][2]):
        index = s.rng.randrange(len(WISHES))
    s.say(REFUSED[index])
    goods, _, offer = GOT[WISHES[index]]
    s.sign(0.3)
    s.break_()
    s.say(*[text.replace("{plea}", told(s, theirs.plea, "t", "x")) for text in MET])
    s.state.give("h", "t", "x")
    s.say(*[text.replace("{offer}", offer).replace("{goods}", goods) for text in SWAPPED])
    s.break_()
    goods = {"a kitten": "the kitten", "a story": "the story", "a pair of enormous shoes": "the shoes", "a sack of meal": "the meal"}[goods]
    fill = lambda options: [text.replace("{goods}", goods).replace("{mine}", result_mine).replace("{theirs}", result_theirs) for text in options]
    body, end = {"happy": (HAPPY, HAPPY_END), "funny": (FUNNY, FUNNY_END), "sad": (SAD, SAD_END)}[s.mood]
    s.state.give("o", "h", "y")
    s.turn()
    s.say(*fill(body))
    s.say(*fill(end))
    s.echo(0.5)
    ending = {"happy": "{h} got {y.the}, {t.name} got {x.the}, and everybody was content", "funny": "{h} got {y.the}, after far too many swaps",
              "sad": "{h} got {y.the}, but missed {x.the}"}[s.mood]
    s.fact(want="to have {y.a}", why=because, obstacle="{o.name} did not want {x.the} in exchange", object="{x.a}",
           where="{h.name} went to {p.the}", other="{o.name} was {o.a} who had {y.a}", helper="{t.name} the {t.kind} gave {h.him} something that {o.name} wanted", helper_name="{t.name}",
           solved="{h.he} gave {x.the} to {t.name} and brought {o.name} what {t.name} gave for it", ending=ending, holder="{t.name} had {x.the}" if not s.funny else "{h.name} had {y.the}",
           moral={"happy": "One person's spare thing is another's treasure.", "funny": "Say please first.", "sad": "Every swap costs something."}[s.mood],
           title="[The Great Exchange|{h.name} Makes a Swap|{x.noun} for {y.noun}]")
    s.ask(["Who had {y.the} at first?", "Who had the {y.noun} that {h.name} wanted?"], "{o.name} the {o.kind} had it.")
    s.ask(["Whom did {h.name} give {x.the} to?", "Who got {x.the}?"], "{h.he} gave {x.the} to {t.name} the {t.kind}.")
    s.ask(["Where did {o.name} live?", "Where did {h.name} go?"], "{o.name} lived {p.at}.")


def told(s, text, who, what):
    """A sentence about a need, as it stands for one person and one thing."""
    return text.replace("{n.", "{" + who + ".").replace("{n}", "{" + who + "}").replace("{x.", "{" + what + ".")

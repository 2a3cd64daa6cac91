"""Growing: somebody puts something small into the ground and has to wait for it."""

from ..beats import opening

NAME = "growing"
THINGS = ("seed", "acorn", "rose")
THEMES = ("patience", "hope", "nature")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; only what grows can be planted, and only outdoors."""
    if cast.thing.noun not in THINGS or cast.weather in ("snow", "frost"):
        return False
    if cast.place is None:
        places = [place for place in OUTDOORS if f"not:{place}" not in cast.kind.tags and cast.allows(f"the {place}")]
        cast.place = cast.rng.choice(places)
    return cast.place in OUTDOORS


OUTDOORS = ("orchard", "meadow", "hill", "garden", "moor", "churchyard", "island", "square", "quarry", "ruin", "well", "school", "station")

GIVEN = (
    "A peddler who could not pay for his soup left {h.him} {x.a} instead.",
    "{day} {h} found {x.a} in the pocket of an old jacket.",
    "In {h.his} mother's sewing box, under the thread, {h} found {x.a}.",
    "{day} the wind brought {h.him} {x.a} and laid it on the windowsill.",
)

WANTED = (
    "{h} wanted to see it grow, and more than that: {h.he} wanted to sit in its shade.",
    "{h} wanted something of {h.his} own that was alive.",
    "All at once {h} wanted to make something that would be there when {h.he} was not.",
    "{h} wanted it to be the finest thing for miles, and by Thursday.",
)

PLANTED = (
    "So {h.he} took {x.the} to {p.the}, dug a hole with a spoon, put it in and said good night to it.",
    "{h.he} carried {x.the} to {p.the} and planted it where it would have a view.",
    "{h.he} planted {x.the} {p.at} and stuck a twig beside it, so as not to lose it, and then could not tell which was the twig.",
)

WAITED = (
    "For a week {h.he} sat beside it. Nothing came up but an ant, who asked {h.him} to move.",
    "{h.he} watered it morning and evening, and sometimes, when nobody was near, {h.he} read to it.",
    "{h.he} told it about everything that it would see, if only it came up.",
    "After ten days there was a thing like a green comma. {h} lay on {h.his} stomach before it until dark.",
    "<good night>The neighbours said that nothing had ever grown there. {h} said that nobody had ever said good night.",
)

SETBACK = (
    "Then came a week without a drop, and the little stalk hung its head.",
    "Then one morning a goat-shaped hole was in the hedge, and all the leaves but one were gone.",
    "Then somebody drove over the place with a cart, by mistake, and did not even notice.",
    "Then there was one late cold night, and in the morning everything green had turned black.",
)

HELPER = (
    "{o.a} named {o.name} was passing by just then and stopped. \"May I?\" said {o.name}, and knelt down, and put {o.his} {o.hands} round it.",
    "It was {o.name} who came, {o.a} whom nobody knew very well. {o.he} had brought a can of water and asked no questions.",
    "{h} wept. Over the wall looked {o.a}, whose name was {o.name}. \"Let me sit with it tonight,\" {o.he} said. \"You sleep.\"",
)

HAPPY = (
    "They took turns after that, {h} by day and {o.name} by night. In the second spring it was as high as {h.his} chin, and in the third there was just enough shade for two. They sat in it, very close together.",
    "And it came up again, from below, thicker than before. The year it first bore flowers, {h} and {o.name} carried a table out and asked everybody who had said that it would come to nothing.",
    "It took years. But there came a morning when {h} leaned against it, and it held. \"Good morning,\" said {h}. Up in the leaves somebody was already building a nest.",
    "It sulked for a month. Then, one night when nobody was looking, it made up its mind and grew. By midsummer there was a bench beside it, and on the bench, most evenings, sat two who had once been strangers and now shared a newspaper.",
)

FUNNY = (
    "It grew, and how it grew. It was a cabbage. {h} looked at it for a long time. \"It has a good face,\" said {o.name}. They could not bring themselves to eat it, and it came to be godfather to two of the neighbour's children.",
    "<twig>It grew as high as the knee and then as high as the house. Only, it was the twig. What {h} had planted was never seen again. \"One must love what comes up,\" said {o.name}, and {h} did.",
    "In the autumn it bore its fruit: another one, exactly like the first. {h} held it up. \"And now?\" \"Now,\" said {o.name}, \"you have two.\" {h} had to sit down, for {h.he} saw where this was leading.",
    "It did grow again, but sideways. It went along the ground, over the path and into a drain, and one day it looked in at the window of the town hall. \"At least it takes an interest,\" said {o.name}. {h} was rather proud of it.",
)

SAD = (
    "They did what could be done. It held on until October. {h} took out the stick that had held it up, and did not know what to do with the stick. {o.name} put it in the ground again, a little further on. \"One never knows,\" {o.he} said.",
    "It lived. But such things are slow, and {h} was no longer young. {h.he} saw it as high as {h.his} knee. It is {o.name} who sits in the shade now, and who tells the children whose shade it is.",
    "One branch lived and the rest did not. Each spring it put out three leaves, no more and no fewer. {h} came and counted them, until the year when there was nobody to come and {o.name} counted them alone.",
    "It flowered only once. {h} was away that day, at a funeral, and saw no more than the petals on the ground. \"What was it like?\" {h.he} asked. {o.name} told {h.him}, and told it so well that {h} never knew how much it had been.",
)

AFTER = {
    "happy": ("<good night>It grows there still, and it still likes to be told good night.", "What {h} had wanted was a bit of shade. {h.he} had not known that it would come with company.", "If you sit under it and are quiet, you can hear it being in no hurry."),
    "funny": ("{h} had wanted something of {h.his} own that was alive. It was alive, nobody could deny it.", "It got third prize at the show, and sulked.", "They water it on Sundays, and it looks as if it knew."),
    "sad": ("The place is easy to find. Somebody always seems to have watered it.", "It did not grow as {h} had wanted. But somebody stops there now and then, and that is something that grows as well.", "<good night>Good night, people say as they go by, and do not know why."),
}


def tell(s):
    """Tells it."""
    opening(s)
    s.say(*GIVEN)
    s.state.take("h", "x")
    s.about(probability=0.6)
    s.say(*WANTED)
    s.break_()
    s.state.needs("h", "x")
    s.say(*PLANTED)
    s.state.lose("h", "x")
    s.state.go("h", s.p.place.noun)
    s.sight(0.4)
    s.also(*WAITED)
    s.maybe(0.5, *WAITED)
    s.break_()
    s.say(*SETBACK)
    s.say(*HELPER)
    s.turn()
    s.say(*{"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood])
    s.close(*AFTER[s.mood])
    s.echo(0.5)
    ending = {"happy": "it grew after all, and {h} and {o.name} sat in its shade", "funny": "something grew, though it was not what {h} had expected", "sad": "it did not grow as {h} had hoped, but {o.name} looked after the place"}[s.mood]
    s.fact(want="to see it grow", why="{h.he} wished for something of {h.his} own that was alive", obstacle="the little plant was nearly lost", object="{x.a}", where="{h.name} planted it {p.at}",
           other="{o.name} was {o.a} who came by and helped", helper="{o.name} the {o.kind} helped", helper_name="{o.name}", solved="{o.name} came by and helped", ending=ending, holder="nobody had {x.the}; it was in the ground {p.at}",
           moral={"happy": "What is small needs time and company.", "funny": "Love what comes up.", "sad": "One plants for others too."}[s.mood], title="[The {x.noun}|{h.name}'s {x.noun}|Good Night, Little {x.noun}]")
    s.ask(["What did {h.name} plant?", "What did the {h.kind} plant?"], "{h.he} planted {x.a}.")
    s.ask(["Where did {h.name} plant {x.the}?", "Where was it planted?"], "{h.he} planted it {p.at}.")

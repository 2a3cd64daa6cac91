"""Wish: somebody wants to see or do something far off, sets out, is stopped, and gets there in company."""

from ..beats import GREETINGS, opening, owning, setting_out, whereabouts
from ..obstacles import OBSTACLES
from ..wishes import WISHES

NAME = "wish"
THEMES = ("adventure", "friendship", "courage")
ROLES = ("h", "o", "x", "p")


def obstacles(cast):
    """The obstacles that stop this hero and give way to this thing, in this weather."""
    return [obstacle for obstacle in OBSTACLES
            if obstacle.ways(cast.thing) and obstacle.stops(cast.kind) and obstacle.weather in ("", cast.weather)
            and cast.allows(obstacle.name, *obstacle.met, *obstacle.ways(cast.thing))]


def wishes(cast):
    """The wishes that lead to this place, if one is asked for, and speak of nothing that is already in the story."""
    return [wish for wish in WISHES if cast.place in (None, wish.place) and f"not:{wish.place}" not in cast.kind.tags
            and cast.allows(wish.want, wish.why, *getattr(wish, cast.mood), *wish.end.values())]


def suits(cast):
    """Whether the plot can be told with this cast; decides on the place."""
    cast.choices = {"obstacle": obstacles(cast), "wish": wishes(cast)}
    if not all(cast.choices.values()):
        return False
    cast.picked = {name: cast.rng.choice(options) for name, options in cast.choices.items()}
    cast.place = cast.picked["wish"].place
    return True


WANTED = (
    "More than anything else {h} wanted {want}, for {why}.",
    "What {h} wanted was {want}, because {why}.",
    "All that year {h} wanted only one thing: {want}. The reason was that {why}.",
    "{h} wanted {want}. [There was a reason for it|It was not just a whim]: {why}.",
    "There was one thing that {h} wanted, and that was {want}, since {why}.",
)

TOLD_NOT_TO = (
    "Everybody said that it was much too far.",
    "\"What for?\" asked the neighbours. {h} could not have said.",
    "Nobody {h.he} knew had ever done it, which was either a good sign or a bad one.",
    "{h} had told nobody, because it is hard to be laughed at before breakfast.",
    "{h.he} had put it off for years, first because of the potatoes and then because of the shoes.",
    "It was the kind of wish that does not go away when one feeds it excuses.",
)

MET = (
    "{where} sat {o.a} named {o.name}, [waiting for an idea|looking the other way|with both feet up]. {greeting}",
    "Somebody else was stuck there already: {o.a} named {o.name}. {greeting}",
    "{where} {h} found {o.a}, whose name was {o.name}. {greeting}",
    "There {h} was not alone. {o.a} named {o.name} had been sitting {where} since [breakfast|yesterday|the day before]. {greeting}",
)

TALK = (
    "\"Where to?\" asked {o.name}. \"To {p.the},\" said {h}, and explained. {o.name} [nodded slowly|thought about it]. \"Then I had better come with you,\" {o.he} said. \"I have not had a reason to go anywhere since May.\"",
    "\"You will not get through,\" said {o.name}. \"I have been told so before,\" said {h}. \"By whom?\" \"By everybody.\" {o.name} got up. \"In that case I am coming along,\" {o.he} said.",
    "\"Are you somebody who goes back,\" asked {o.name}, \"or somebody who goes on?\" \"I do not know yet,\" said {h}. \"Good,\" said {o.name}, \"nor do I.\"",
    "{o.name} wanted to know everything: where from, where to, and what for. At the end of it {o.he} said, \"I have been sitting here for want of just such a story.\"",
    "\"I would go with you,\" said {o.name}, \"if somebody asked me.\" So {h} asked.",
)

ONWARD = (
    "They went on together and [talked of soup|told each other their names for things|said little, in a friendly way].",
    "From there on they were two, and the way was half as long.",
    "{o.name} knew a song with forty verses. They got to the nineteenth.",
    "They shared what there was to eat, and {o.name} took the smaller half, which {h} noticed.",
    "They did not talk much, but they did it together.",
)

HOME_GLAD = (
    "They walked home by the long road, since neither was in a hurry to have it over.",
    "On the way back {o.name} turned off at the place where they had met, and then thought better of it and came along.",
    "{x.the} hung in its old place that night, and looked as if it had known all along.",
    "\"And what shall we want next?\" asked {o.name} on the way home.",
)

HOME_SAD = (
    "They went home without talking. {o.name} carried {x.the} for {h.him}.",
    "On the way home {o.name} walked between {h} and the wind.",
    "{x.the} went back to its old place, and for a long time nobody took it down.",
    "It was a long way home. But there were two of them, and that is not nothing.",
)


def tell(s):
    """Tells it."""
    wish, obstacle = s.picked["wish"], s.picked["obstacle"]
    opening(s)
    fill = lambda text: text.replace("{want}", wish.want).replace("{why}", wish.why)
    s.say(*[fill(text) for text in WANTED])
    s.maybe(0.4, *TOLD_NOT_TO)
    owning(s, origin=0.25)
    s.break_()
    setting_out(s)
    s.sign(0.4)
    s.say(*obstacle.met)
    where, greeting = whereabouts(s), s.rng.choice(GREETINGS) if s.chance(0.5) else ""
    first = [text for text in MET if not text.startswith("{where}")] if s.rng.random() < 0.5 else MET
    s.say(*[text.replace("{where}", where).replace("{greeting}", greeting) for text in first])
    s.maybe(0.75, *TALK)
    s.break_()
    s.state.needs("h", "x")
    s.say(*obstacle.ways(s.x.thing))
    s.maybe(0.5, *ONWARD)
    s.state.go("h", s.p.place.noun)
    s.say("So they came to {p.the}.", "In the evening they stood before {p.the}.", "Two days later they were at {p.the}.",
          "{p.the} was further than it had looked. But then they were there.", "They came to {p.the} just as the lamps were being lit." if s.fits("lamps") else "They came to {p.the} at last.")
    s.sight(0.45)
    s.break_()
    s.turn()
    s.say(*getattr(wish, s.mood))
    s.maybe(0.35, *(HOME_SAD if s.sad else HOME_GLAD))
    s.echo(0.6)
    s.fact(want=wish.want, why=wish.why, obstacle=obstacle.name, object="{x.a}", where="{h.he} went to {p.the}",
           other="{o.name} was {o.a} whom {h.name} met on the way", helper="{o.name} the {o.kind} came along and kept {h.him} company", helper_name="{o.name}",
           solved="{h.he} got past it with the help of {x.the}", ending=wish.end[s.mood], holder="{h.name} still had {x.the}", moral=wish.moral,
           title="[{h.name} and the " + s.p.place.noun + "|The Way to the " + s.p.place.noun + "|What {h.name} Wanted]")
    s.ask(["Whom did {h.name} meet on the way?", "Who did {h.name} meet?"], "{h.he} met {o.a} named {o.name}.")
    s.ask(["Where did {h.name} go?", "Where did the {h.kind} go?", "Where did the story take place?"], "{h.he} went to {p.the}.")
    s.ask(["How did {h.name} get past it?", "What did {h.name} use {x.the} for?"], "With the help of {x.the} {h.he} got through when " + obstacle.name + ".")

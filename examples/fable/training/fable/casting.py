"""Who is in a story: the draws that a plot starts from, what a request has fixed, and what a plot decides itself."""

from . import names, tone
from .cast import KINDS
from .nouns import TRACKED
from .places import PLACES
from .plots import borrowed, boast, errand, fear, growing, lost, quarrel, trade, trouble, visitor, waiting, wish
from .prose import template
from .scene import Scene
from .things import THINGS
from .traits import TRAITS
from .weather import WEATHERS
from .world import Actor, Item, Setting

PLOTS = (wish, wish, errand, lost, trade, trouble, quarrel, visitor, boast, waiting, fear, borrowed, growing)
MOODS = ("happy", "happy", "funny", "sad")


class Cast:
    """What is drawn for a story before it is told."""

    def __init__(self, rng, asked, plot):
        self.rng = rng
        self.asked = asked
        self.kind = KINDS[asked.get("kind") or rng.choice(list(KINDS))]
        self.other = KINDS[asked.get("other") or rng.choice([noun for noun in KINDS if noun != self.kind.noun])]
        self.thing = THINGS[asked.get("thing") or rng.choice(getattr(plot, "THINGS", None) or list(THINGS))]
        self.place = asked.get("place")
        self.trait = asked.get("trait") or rng.choice(TRAITS)
        self.mood = asked.get("mood") or rng.choice(MOODS)
        self.weather = asked.get("weather") or rng.choice(tone.WEATHERS[self.mood])
        self.weather_asked = "weather" in asked
        self.second = None
        self.third = None
        self.picked = {}

    def taken(self):
        """The words that speak of somebody or something in the story."""
        nouns = [self.kind.noun, self.other.noun, self.thing.noun, self.place, self.second and self.second.noun, self.third and self.third.noun]
        return set().union(*[TRACKED[noun] for noun in nouns if noun])

    def allows(self, *texts):
        """Whether none of these sentences uses the name of anything in the story for something else."""
        taken = self.taken()
        return not any(template(text).words & taken for text in texts)

    def find_place(self):
        """Decides on the place, unless the request has."""
        if self.place is not None:
            return f"not:{self.place}" not in self.kind.tags
        home = " ".join(self.kind.homes + self.other.homes)
        places = [noun for noun in PLACES if f"not:{noun}" not in self.kind.tags and noun not in home
                  and not TRACKED[noun] & self.taken()]
        self.place = self.rng.choice(places)
        return True

    def find_second(self):
        """Decides on a second thing."""
        things = [thing for thing in THINGS.values() if thing.group != self.thing.group and not TRACKED[thing.noun] & self.taken()
                  and thing.group not in ("grow", "travel")]
        self.second = self.rng.choice(things)
        return True

    def find_third(self):
        """Decides on a third person."""
        kinds = [kind for kind in KINDS.values() if not TRACKED[kind.noun] & self.taken()]
        self.third = self.rng.choice(kinds)
        return True


def _actor(rng, kind, name, unlike, trait=""):
    gender = kind.gender
    if gender == "e":
        gender = {"m": "f", "f": "m"}[unlike.gender] if unlike else rng.choice("mf")
    actor = Actor(kind, name or "", gender, trait)
    actor.pronouns = unlike is None or unlike.gender != gender
    return actor


def _names(rng, actors, asked):
    used = set()
    for index, actor in enumerate(actors):
        name = actor.name
        while not name or name in used or any(name[0] == other[0] for other in used):
            name = names.pick(rng, actor.gender, "person" in actor.kind.tags, asked and index == 0)
            asked = asked and rng.random() < 0.9
        actor.name = name
        used.add(name)


def tell(rng, asked):
    """A story that honours what is asked; the plot is one that suits it."""
    plots = [plot for plot in PLOTS if plot.NAME == asked["plot"]] if "plot" in asked else list(PLOTS)
    if "theme" in asked:
        plots = [plot for plot in plots if asked["theme"] in plot.THEMES]
    for _ in range(60):
        plot = rng.choice(plots)
        cast = Cast(rng, asked, plot)
        if TRACKED[cast.kind.noun] & TRACKED[cast.other.noun] or (TRACKED[cast.kind.noun] | TRACKED[cast.other.noun]) & TRACKED[cast.thing.noun]:
            continue
        if cast.place and cast.place in " ".join(cast.kind.homes):
            continue
        if plot.suits(cast):
            return _told(rng, plot, cast, asked)
    return None


def _told(rng, plot, cast, asked):
    hero = _actor(rng, cast.kind, asked.get("name"), None, cast.trait)
    if asked.get("gender") and cast.kind.gender == "e":
        hero.gender = asked["gender"]
    other = _actor(rng, cast.other, None, hero)
    actors = [hero, other]
    roles = {"h": hero, "o": other, "x": Item(cast.thing, rng.choice(cast.thing.looks))}
    if cast.place:
        roles["p"] = Setting(PLACES[cast.place])
    if cast.second:
        roles["y"] = Item(cast.second, rng.choice(cast.second.looks))
    if cast.third:
        roles["t"] = _actor(rng, cast.third, None, hero)
        actors.append(roles["t"])
    _names(rng, actors, asked.get("named", False))
    hero.place_home(rng, cast.taken() - TRACKED[cast.kind.noun])
    scene = Scene(rng, roles, WEATHERS[cast.weather], cast.mood, asked.get("length", "normal"))
    scene.picked = cast.picked
    scene.plot = plot
    scene.mood_asked = "mood" in asked
    plot.tell(scene)
    return scene

"""A story while it is told: its people, things, place and weather, its sentences so far, and what it has made true.

Plots speak through a scene. The scene chooses among the sentences that a plot offers, never the same one twice, passes
over those that speak of another thing by the name of one in the story, and decides between a name and "the fox".
"""

from .nouns import TRACKED
from .places import INDOORS
from .prose import template
from .things import BIG
from .tone import BEFOREHAND, TURN
from .traits import HABITS
from .world import Actor, Item, Setting, State

LENGTHS = {"short": 0.0, "normal": 0.28, "long": 2.0}
"""How much of what may be told is told."""

CRAMPED = frozenset({"nail", "pocket", "pillow", "cushion", "windowsill", "shelf", "wall", "hung", "shirt", "slipped", "hole", "sewing"})
HELD = frozenset({"h.arm", "h.grip", "o.arm", "h.hand"})
"""Words and slots that speak of a thing as small; nothing big is told of with them."""

HOMEWARD = ("way home", "danced home", "way in", "last gate", "door at last", "home that")
"""What somebody who has not been out cannot do."""


class Scene:
    """One story on its way to being told."""

    def __init__(self, rng, roles, weather, mood, length):
        self.rng = rng
        self.roles = roles
        self.weather = weather
        self.mood = mood
        self.length = length
        self.state = State()
        self.facts = {}
        self.asked = []
        self.paragraphs = [[]]
        self.told = set()
        self.last_reference = None
        self.weather_shown = False
        self.habit_shown = False
        self.went_out = True
        self.mood_asked = False
        self.habit = rng.choice(HABITS[roles["h"].trait])
        self.refresh()

    def refresh(self):
        """Takes note of the nouns in the story, which no passing remark may use for something else."""
        nouns = {actor.kind.noun for actor in self.roles.values() if isinstance(actor, Actor)}
        nouns |= {item.thing.noun for item in self.roles.values() if isinstance(item, Item)}
        nouns |= {setting.place.noun for setting in self.roles.values() if isinstance(setting, Setting)}
        forms = set()
        for noun in nouns:
            forms |= TRACKED[noun]
        if "p" in self.roles and self.roles["p"].place.noun in INDOORS:
            forms |= {"grass"}
        self.taken = forms
        self.big = "x" in self.roles and self.roles["x"].thing.noun in BIG

    # What plots read.

    def __getattr__(self, role):
        roles = self.__dict__.get("roles", {})
        if role in roles:
            return roles[role]
        raise AttributeError(role)

    @property
    def funny(self):
        return self.mood == "funny"

    @property
    def sad(self):
        return self.mood == "sad"

    @property
    def happy(self):
        return self.mood == "happy"

    def chance(self, probability):
        """Whether something of this probability happens; longer stories let more happen."""
        return self.rng.random() < probability * LENGTHS[self.length]

    # What plots say.

    def look_up(self, path):
        """The word for a slot."""
        role, _, attribute = path.partition(".")
        if role == "day":
            self.weather_shown = True
            return f"one {self.rng.choice(self.weather.adjectives)} {self.rng.choice(DAYS)}"
        if role.endswith("'s"):
            return self.reference(role[:-2]) + "'s"
        if not attribute:
            return self.reference(role)
        return self.roles[role].word(attribute, self.rng)

    def reference(self, role):
        """A name or "the fox", not twice the same in a row where it can be helped."""
        actor = self.roles[role]
        chance = 0.3 if self.last_reference == (role, "the") else 0.45
        form = "the" if self.rng.random() < chance else "name"
        self.last_reference = (role, form)
        if form == "name":
            return actor.name
        if role == "h" and actor.trait in ("old", "young", "small", "poor") and self.rng.random() < 0.4:
            return f"the {actor.trait} {actor.kind.noun}"
        return f"the {actor.kind.noun}"

    def fits(self, text):
        """Whether a sentence speaks of nothing by the name of something else in the story."""
        parsed = template(text)
        if parsed.words & self.taken:
            return False
        return not self.big or not (parsed.words & CRAMPED or parsed.slots & HELD)

    def choose(self, options):
        """One of the sentences that fit and have not been used."""
        ready = [option for option in options if self.follows(option)] or list(options)
        fresh = [option for option in ready if option not in self.told and self.fits(option)]
        if not fresh:
            fresh = [option for option in ready if option not in self.told] or ready
        if self.length == "short" and len(fresh) > 2:
            fresh = sorted(fresh, key=len)[:(len(fresh) + 1) // 2]
        option = self.rng.choice(fresh)
        self.told.add(option)
        return option.partition(">")[2] if option[0] == "<" else option

    def follows(self, option):
        """Whether what a sentence refers to has been told: `<bull>` before a sentence asks for a bull."""
        return option[0] != "<" or option[1:].partition(">")[0] in " ".join(" ".join(part) for part in self.paragraphs)

    def write(self, text):
        """A template's text, now."""
        return template(text).write(self.rng, self.look_up)

    def say(self, *options):
        """Tells one of the options."""
        text = self.write(self.choose(options))
        if text:
            self.paragraphs[-1].append(text)

    def also(self, *options):
        """Tells one of the options, except in the shortest stories, which can do without."""
        if self.length != "short":
            self.say(*options)

    def maybe(self, probability, *options):
        """Tells one of the options, or nothing."""
        if self.chance(probability):
            self.say(*options)

    def tone(self):
        """What the teller lets one know beforehand; where a mood has been asked for, it is nearly always shown."""
        likely = {"short": 0.5, "normal": 0.65, "long": 0.85}[self.length]
        self.maybe_always(0.9 if self.mood_asked else likely, *BEFOREHAND[self.mood])

    def maybe_always(self, probability, *options):
        """Tells one of the options, or nothing, whatever the length."""
        if self.rng.random() < probability:
            self.say(*options)

    def turn(self):
        """A word about where the story goes now."""
        self.maybe_always(0.3, *TURN[self.mood])

    def break_(self):
        """Begins a new paragraph."""
        if self.paragraphs[-1]:
            self.paragraphs.append([])
            self.last_reference = None

    # What every plot needs.

    def sign(self, probability=0.5):
        """A word about the weather."""
        if self.chance(probability):
            self.weather_shown = True
            self.say(*[clause + "." for clause in self.weather.signs])

    def night(self, probability=0.4):
        """A word about the night."""
        if self.chance(probability):
            self.weather_shown = True
            self.say(*["[That night|By then] " + clause + "." for clause in self.weather.night])

    def sight(self, probability=0.7, role="p"):
        """A word about the place, which has just been named."""
        if self.chance(probability):
            self.say(*[clause + "." for clause in self.roles[role].place.sights])

    def about(self, role="x", probability=0.75, by_name=False):
        """A word about a thing: by its name, or as "it" where it has just been named."""
        if self.chance(probability):
            said = [clause + "." for clause in self.roles[role].thing.said]
            if by_name:
                said = ["{" + role + ".the} " + clause[3:] for clause in said if clause.startswith("it ")]
            if said:
                self.say(*said)

    def close(self, *options):
        """A last word; the shortest stories mostly do without."""
        if self.length != "short" or self.rng.random() < 0.25:
            self.say(*options)

    def echo(self, probability=0.5):
        """The hero's habit again, at the end."""
        line = self.habit.sad if self.sad else self.habit.glad
        if not self.habit_shown or self.rng.random() > probability or not self.fits(line):
            return
        if not self.went_out and any(words in line for words in HOMEWARD):
            return
        self.say(line)

    def fact(self, **facts):
        """What the story has made true, for questions; written at once, with the names that were used."""
        for name, text in facts.items():
            written = template(text).write(self.rng, self.look_up, clause=True)
            self.facts[name] = titled(written) if name == "title" else written

    def ask(self, questions, answer):
        """A question that only this plot can be asked, in several forms, and its answer."""
        self.asked.append((questions, answer))

    def text(self):
        """The story."""
        return "\n\n".join(" ".join(paragraph) for paragraph in self.paragraphs if paragraph)


def titled(text):
    """Capitals as titles have them."""
    small = {"a", "an", "the", "and", "for", "of", "to", "at", "in", "on", "with", "by", "who"}
    words = text.split()
    return " ".join(word if index and word in small else word[0].upper() + word[1:] for index, word in enumerate(words))


DAYS = ("morning", "morning", "morning", "Monday", "Tuesday", "Thursday", "Saturday", "Sunday", "day")

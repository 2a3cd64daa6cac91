"""Who is where, who holds what, and how each of them is spoken of.

An actor, an item and a setting answer for the words that templates ask of them; the state is what plots change and
what their sentences are held to: whoever uses a thing has to hold it.
"""

from dataclasses import dataclass, field

PRONOUNS = {"m": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
            "f": {"he": "she", "him": "her", "his": "her", "himself": "herself"}}


@dataclass
class Actor:
    """Somebody in a story."""

    kind: object
    name: str
    gender: str
    trait: str = ""
    home: str = ""
    pronouns: bool = True
    """Whether pronouns are clear. Where the hero is of the same gender, the noun stands in for them."""

    def word(self, attribute, rng):
        """The word that a template asks for as `{h.attribute}`."""
        if attribute in ("he", "him", "his") and not self.pronouns:
            return f"the {self.kind.noun}'s" if attribute == "his" else f"the {self.kind.noun}"
        if attribute in PRONOUNS["m"]:
            return PRONOUNS[self.gender][attribute]
        if attribute == "went":
            return rng.choice(self.kind.verbs)
        if attribute == "grip":
            return self.kind.grip.replace("{his}", PRONOUNS[self.gender]["his"])
        plain = {"name": self.name, "kind": self.kind.noun, "the": f"the {self.kind.noun}",
                 "a": f"a {self.kind.noun}", "such": f"a {self.trait} {self.kind.noun}", "trait": self.trait,
                 "house": self.kind.house, "home": self.home, "hand": self.kind.hand, "hands": self.kind.hands,
                 "arm": self.kind.arm, "full": f"{self.name} the {self.kind.noun}"}
        return plain[attribute]

    def place_home(self, rng, unless):
        """Chooses where the actor lives, among what does not speak of `unless`."""
        his = PRONOUNS[self.gender]
        homes = [home for home in self.kind.homes if not any(word in home for word in unless)] or self.kind.homes
        self.home = rng.choice(homes).replace("{his}", his["his"]).replace("{him}", his["him"])


@dataclass
class Item:
    """A thing in a story."""

    thing: object
    look: str

    def word(self, attribute, _rng):
        """The word that a template asks for as `{x.attribute}`."""
        noun = self.thing.noun
        return {"the": f"the {noun}", "a": f"a {self.look} {noun}", "noun": noun, "plain": f"a {noun}",
                "full": f"{self.look} {noun}", "plural": self.thing.plural}[attribute]


@dataclass
class Setting:
    """A place in a story."""

    place: object

    def word(self, attribute, _rng):
        """The word that a template asks for as `{p.attribute}`."""
        return {"at": self.place.at, "to": self.place.to, "the": f"the {self.place.noun}", "noun": self.place.noun}[attribute]


class ContradictionError(Exception):
    """A plot told of something that the state does not allow."""


@dataclass
class State:
    """Who holds what, and where everybody is."""

    holder: dict = field(default_factory=dict)
    at: dict = field(default_factory=dict)
    log: list = field(default_factory=list)

    def take(self, role, item):
        """Somebody comes to hold a thing that nobody holds."""
        if self.holder.get(item) not in (None, role):
            raise ContradictionError(f"{role} takes {item}, which {self.holder[item]} holds")
        self.holder[item] = role
        self.log.append(("take", role, item))

    def give(self, giver, taker, item):
        """A thing passes from one to another."""
        self.needs(giver, item)
        self.holder[item] = taker
        self.log.append(("give", giver, taker, item))

    def lose(self, role, item):
        """A thing passes from somebody to nobody."""
        self.needs(role, item)
        self.holder[item] = None
        self.log.append(("lose", role, item))

    def needs(self, role, item):
        """Refuses to go on unless somebody holds a thing."""
        if self.holder.get(item) != role:
            raise ContradictionError(f"{role} uses {item}, which {self.holder.get(item)} holds")

    def go(self, role, place):
        """Somebody goes somewhere."""
        self.at[role] = place
        self.log.append(("go", role, place))

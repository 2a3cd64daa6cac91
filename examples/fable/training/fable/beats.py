"""What many stories have in common: how one begins, what somebody owns, setting out, and meeting somebody."""

OPENINGS = (
    "There was once {h.such} named {h.name} who lived {h.home}.",
    "There once lived {h.such} named {h.name}. The {h.kind} lived {h.home}.",
    "^{h.home} lived {h.such} named {h.name}.",
    "{h.name} was {h.such} who lived {h.home}.",
    "{h.name} was {h.such} and lived {h.home}.",
    "{h.such} named {h.name} lived {h.home}.",
    "They still talk about {h.such} named {h.name}, who lived {h.home}.",
    "^{h.home}, [a good way from anywhere|not far from here|when the roads were still bad|in the days before clocks agreed], lived {h.such} named {h.name}.",
    "In a valley [that is on few maps|where the post came on Wednesdays|shaped like a spoon|where everybody knew everybody] there was {h.such} named {h.name}, who lived {h.home}.",
    "Of all who lived in the valley, {h.name} the {h.kind} was the [one most talked about|one whom people mentioned first]. {h.he} was {h.such} and lived {h.home}.",
    "This is the story of {h.such} named {h.name}, who lived {h.home}.",
)

HABIT_LEADS = ("{habit}.",) * 9 + ("As for habits, {habit}.", "It was well known that {habit}.", "People said that {habit}, and it was true.")


def opening(s):
    """Who the hero is."""
    s.say(*OPENINGS)
    shown = s.habit.shown
    if s.rng.random() < {"short": 0.4, "normal": 0.75, "long": 1.0}[s.length]:
        s.habit_shown = True
        s.say(s.rng.choice(HABIT_LEADS).replace("{habit}", shown))
    s.tone()
    s.fact(trait="{h.trait}", habit=shown + ".", home="{h.name} lived {h.home}.", home_at="{h.home}")


KEPT = (
    "{h.his} dearest possession was {x.a}.",
    "{h} had {x.a} that {h.he} [was very fond of|would not have sold for a house|was never seen without].",
    "Among the few things that {h} owned was {x.a}.",
    "{h} owned {x.a}, and was rather proud of it.",
    "On a nail by the door {h} kept {x.a}.",
    "{h} had few things, but one of them was {x.a}.",
    "When {h} wanted to be glad of something, {h.he} looked at {x.a} that {h.he} had.",
    "What {h} loved best in the house was {x.a}.",
)

ORIGINS = (
    "{h.his} grandmother had left it to {h.him}, together with a good deal of advice.",
    "It had come to {h.him} from a great-aunt who had never once lent it out.",
    "{h.he} had got it for a week's work and thought it a bargain.",
    "{h.his} father had brought it home from a long journey, under his shirt.",
    "{h.he} had found it in a ditch after a flood, and nobody had ever asked for it back.",
    "It was the only thing that had come through the fire, years ago, without a mark.",
    "An uncle had won it at cards and been sorry ever since.",
    "{h.he} had been given it on the day when {h.he} was old enough, and had been careful ever since.",
)


def owning(s, origin=0.45):
    """What the hero has: the thing of the story."""
    s.state.take("h", "x")
    s.say(*KEPT)
    s.about(probability=0.8)
    s.maybe(origin, *ORIGINS)


PROVISIONS = ("a heel of bread", "two boiled eggs", "a cold potato in each pocket", "a slice of bacon in a leaf", "some plums in a handkerchief",
              "six walnuts", "a bottle of cold tea", "half an onion", "a bag of dried peas")


def setting_out(s):
    """The hero leaves with the thing."""
    food = s.rng.choice([food for food in PROVISIONS if s.fits(food)])
    s.state.needs("h", "x")
    s.state.go("h", "road")
    s.say("So {day} {h} took {x.the} and " + food + " and set out for {p.the}.",
          "So {day} {h.he} packed " + food + ", took {x.the} and set out for {p.the}.",
          "And {day} {h.he} shut the door, opened it again to fetch {x.the}, and set out for {p.the}.",
          "And so {h} left {day}, with {x.the} and " + food + ", and took the road to {p.the}.",
          "{day}, before [anybody could say anything sensible|there was time to think better of it], {h} took {x.the} and set out for {p.the}.")


GREETINGS = (
    "{o} looked {h.him} over from top to toe.",
    "{o} moved up to make room.",
    "{o} nodded, as one does to people whom one means to like.",
    "{o} did not look up at once, because {o.he} was counting.",
    "{o} pretended to have been expecting somebody.",
)


def whereabouts(s):
    """Where one finds the other one: a place that needs no tracking."""
    return s.rng.choice(("on a stone by the road", "under a thorn bush", "on an upturned pail", "on the step of a wagon",
                         "in the shade of a wall", "beside a milestone", "on a fallen tree", "at a bend in the road"))

"""Fear: somebody is afraid of one thing and tells nobody. Then a friend is just there, where it is worst."""

from ..beats import opening, owning

NAME = "fear"
THEMES = ("courage", "friendship", "night")
ROLES = ("h", "o", "x", "p")

FEARS = (
    # what is feared, where it is (places), what happens to the friend, what it turns out to be (happy, funny, sad)
    ("the dark", ("cave", "forest", "bell tower", "barn", "attic"), "My light has gone out and I have turned my ankle",
     "The dark was only the day with its eyes shut", "The most dreadful shape in the dark turned out to be a coat on a hook, and {h} begged its pardon", "The dark was just as bad as {h} had thought"),
    ("high places", ("bell tower", "mountain", "lighthouse", "windmill", "castle"), "I climbed up to see the view and I cannot get down again",
     "From up there one could see how small the things were of which one is afraid below", "{h} did it all with {h.his} eyes shut, and found out afterwards that it had been three steps", "It was every bit as high as {h} had thought"),
    ("deep water", ("lake", "harbour", "marsh", "ferry landing", "mill"), "I have slipped from the planks and I cannot hold on for ever",
     "The water was cold and wet, and that was all it was", "When {h} stood up in the deep water, it came to {h.his} knees", "The water was as cold and as black as {h} had always known"),
    ("ghosts", ("churchyard", "ruin", "castle", "attic", "theatre"), "I wanted to prove that there was nothing here, and now the door will not open",
     "There was nothing in all that dark but a draught and {o.name}", "Something white came towards {h.him} with outstretched arms, and it was the washing of the priest", "There was nothing there, and the nothing was worse"),
    ("being looked at by many people", ("market", "square", "theatre", "school", "fair"), "They are all laughing at me and I cannot find the way out",
     "They had kind faces, on the whole, and some had jam on them", "It turned out that everybody was looking at the hat of the lady behind {h.him}", "They all looked, every one of them, and they did not look away"),
    ("thunder", ("hill", "moor", "meadow", "mountain", "windmill"), "I am caught out here and the next one will be nearer",
     "Thunder, it turned out, is only the sky moving its furniture", "The loudest clap of all turned out to be a barn door, and {h} had a word with it", "The thunder was as loud as {h} had always thought"),
    ("geese and whatever else hisses", ("mill", "market", "meadow", "lake", "barn"), "They have driven me up a pump and they show no sign of leaving",
     "The ganders looked at {h}, and {h} looked at the ganders, and it was the ganders who remembered something they had to do", "What hissed so horribly was a kettle that somebody had left on a fire", "The ganders did what ganders do, and it hurt"),
    ("silence", ("library", "churchyard", "moor", "quarry", "ruin"), "I have lost my voice and nobody can hear me",
     "It was not silent at all there, if one listened: there were leaves, and a clock, and two people breathing", "It was so silent that {h} could hear {h.his} own stomach, and it said something rude", "It was so silent that it rang"),
)


def suits(cast):
    """Whether the plot can be told with this cast; decides on the fear and the place where it is worst."""
    if cast.thing.group in ("open", "time", "grow"):
        return False
    fears = [fear for fear in FEARS if (cast.place is None or cast.place in fear[1]) and cast.allows(fear[0], *fear[2:])
             and not (fear[0] in ("high places",) and "flies" in cast.kind.tags) and not (fear[0] == "deep water" and "swims" in cast.kind.tags)
             and not (fear[0] == "thunder" and cast.weather in ("snow", "fog", "frost"))]
    if not fears:
        return False
    fear = cast.rng.choice(fears)
    places = [cast.place] if cast.place else [place for place in fear[1] if f"not:{place}" not in cast.kind.tags and cast.allows(f"the {place}")]
    if not places:
        return False
    cast.picked = {"fear": fear}
    cast.place = cast.rng.choice(places)
    return True


SECRET = (
    "There was one thing that nobody knew: {h} was afraid of {fear}.",
    "But {h} had a secret, and the secret was that {h.he} was afraid of {fear}.",
    "{h} was afraid of {fear}. {h.he} had told nobody, not even {h.his} pillow.",
    "Now {h} was afraid of {fear}, so much that {h.he} always had an excuse ready, and a second one under it.",
)

WANTED = (
    "{h} wanted not to be afraid any more. {h.he} had tried being angry, and singing, and a tea made of nettles.",
    "What {h} wanted was to be without fear for one single day.",
    "More than all else {h.he} wanted to be rid of it. But a fear is not a coat.",
    "{h} wanted to lose {h.his} fear, and would have paid for somebody to find it.",
)

CALLED = (
    "Then {day} a small boy came running. {o.name} was {p.at}, he said, {o.name} the {o.kind}, and had called out: \"{plea}!\"",
    "{day} a voice came from {p.the}. It was {o.name}, {o.a} who lived nearby. \"Help!\" it cried. \"{plea}!\"",
    "{day} {h} passed near {p.the}, at a safe distance, and heard somebody call. It was {o.a} whom {h.he} knew, named {o.name}. \"{plea}!\"",
)

NOBODY = (
    "{h} looked round. There was nobody else.",
    "{h} waited for somebody brave to come by. The road was empty in both directions.",
    "\"Somebody ought to do something,\" said {h}, and heard how it sounded.",
    "{h.his} legs said no. {h} said, \"Legs, I did not ask you.\"",
    "{h} had an excuse ready. {h.he} looked at it, and put it down by the side of the road.",
)

WENT = (
    "Then {h.he} took {x.the} and went to {p.the}, one step after the other, because there is no other way of doing it.",
    "{h.he} ran for {x.the}, and then {h.he} ran to {p.the}, before {h.he} could catch up with {h.himself}.",
    "{h.he} held on to {x.the} with all {h.his} strength and walked to {p.the}, straight into it.",
    "So {h} took {x.the}, shut {h.his} eyes, opened them again, because it was worse, and went to {p.the}.",
)

HELPED = {
    "light": "In the light of {x.the} there was {o.name}, very pale, and {h} took hold of {o.him} and held on",
    "sound": "{h} made a noise with {x.the} that could be heard for miles, and {o.name} came towards it, step by step",
    "music": "{h} played on {x.the}, all wrong, and {o.name} followed the tune like a thread, until they could touch",
    "warm": "{h} held out one end of {x.the}, and {o.name} caught it, and {h} pulled. Then {h.he} wrapped it round both of them",
    "reach": "{h} reached out with {x.the} as far as it would go, and one bit further, and {o.name} got hold of it",
    "vessel": "{h} beat on {x.the} to show where {h.he} was, and {o.name} came towards the noise and took hold of {h.his} {h.arm}",
    "tool": "{h} held out {x.the} as far as it would go, and {o.name} got hold of the other end",
    "travel": "{h} pushed {x.the} ahead as far as {h.he} could, and {o.name} held on to it, and {h} pulled them both back",
    "carry": "{h} put down {x.the}, and {o.name} got in, eyes shut, and {h} pulled",
    "guide": "{h} looked only at {x.the}, step by step, until {h.he} had reached {o.name}, and step by step back",
    "shelter": "{h} held {x.the} over both of them, and under it they went out together, leaning on each other",
    "words": "{h} read aloud from {x.the} the whole time, so as to hear somebody, and {o.name} came to where the voice was",
    "bright": "{h} held up {x.the}, and {o.name} saw it gleam and came towards it, and {h} reached out a {h.hand}",
    "play": "{h} gave {o.name} {x.the} to hold on to, because it helps to hold something, and led {o.him} out",
    "food": "{h} gave {o.name} a piece of {x.the}, for strength, and took one {h.himself}, and then they went out together, holding on to each other",
}

HAPPY = (
    "\"You came,\" said {o.name}. \"I was passing,\" said {h}. Only on the way home {h.he} noticed that {h.he} had forgotten to be afraid, somewhere in the middle.",
    "They sat down in the grass. \"Were you not afraid?\" asked {o.name}. \"Yes,\" said {h}, \"the whole time.\" It was the first time that {h.he} had said it, and it was not so large when it was out.",
    "{h} shook for an hour afterwards, and {o.name} sat next to {h.him} and shook too. Then they began to laugh, and could not stop until the stars were out.",
    "{o.name} held on to {h.him} for a good while longer than was needed. \"How did you do it?\" {o.he} asked. {h} thought about it. \"Badly,\" {h.he} said, \"and then it was done.\"",
)

FUNNY = (
    "\"Were you afraid?\" asked {o.name}. \"Not at all,\" said {h}, from behind {o.name}.",
    "\"My hero,\" said {o.name}. {h} bowed, and fell over {x.the}.",
    "\"You were very brave,\" said {o.name}. \"And you can let go of my ear now.\"",
    "\"I thought that you were afraid of such things,\" said {o.name}. \"I am,\" said {h}, \"but I had no time.\" Then {h.his} knees, which had been waiting politely, gave way, both at once.",
)

SAD = (
    "{o.name} was safe. But {x.the} had been left behind in there, and it had been the dearest thing that {h} had. {h.he} knew where it was. {h.he} could not make {h.himself} go in a second time.",
    "{o.name} was safe, and thanked {h.him}, and moved away that autumn to a place where such things do not happen. {h} was less afraid than before. {h.he} would rather have been afraid, and had {o.name}.",
    "\"I thought that you would come sooner,\" said {o.name}, and that was all. {h} had stood outside too long, and both of them knew for how long. One can be brave a little late.",
    "They came out again, and {o.name} laughed and ran to the others, who were calling, and forgot to look round. {h} sat down on a stone with {x.the}. It was the bravest thing that {h.he} had ever done, and nobody had seen it.",
)

AFTER = {
    "happy": ("{h} is still a bit afraid of {fear}. But now somebody knows, and that makes it half as much.", "Nobody is without fear, {h} says now. One only needs to have something more important to do.",
              "The next time {h.he} was afraid, {h.he} thought of {p.the}, and it helped.", "On the shelf {x.the} stands in front, where one can see it at once, if one should need it."),
    "funny": ("<coat on a hook>{h} is not afraid of {fear} any more. {h.he} is afraid of coats now, a little.",
              "{h} is not afraid of {fear} any more, or only on Mondays.", "{o.name} has told it to everybody, and in every version {h} is a little taller.",
              "The fear came back once, to fetch its things. {h} did not let it in.", "Since then {h} goes there every Sunday, to show that {h.he} can. {h.he} takes {o.name} along, but only to carry {x.the}."),
    "sad": ("{h} had lost {h.his} fear. It was only that {h.he} had lost something else as well.", "People called {h.him} brave after that. {h} always looked at the floor.",
            "{h} is no longer afraid of {fear}. It takes up less room than one thinks, the place where a fear has been.", "There are nights when {h.he} goes as far as {p.the}, and stands there, and goes home."),
}


def tell(s):
    """Tells it."""
    fear, _, plea, *turns = s.picked["fear"]
    turn = dict(zip(("happy", "funny", "sad"), turns))[s.mood]
    opening(s)
    s.say(*[text.replace("{fear}", fear) for text in SECRET])
    s.say(*WANTED)
    owning(s, origin=0.2)
    s.break_()
    s.say(*[text.replace("{plea}", plea) for text in CALLED])
    s.sign(0.3)
    s.also(*NOBODY)
    s.state.needs("h", "x")
    s.say(*WENT)
    s.state.go("h", s.p.place.noun)
    s.sight(0.25)
    s.break_()
    s.turn()
    s.say(turn + ".")
    s.say("^" + HELPED[s.x.thing.group] + ".")
    body = {"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood]
    s.say(*body)
    if s.sad and any("left behind in there" in text for text in s.told):
        s.state.lose("h", "x")
    s.say(*[text.replace("{fear}", fear) for text in AFTER[s.mood] if s.state.holder["x"] or "{x." not in text])
    s.echo(0.5)
    ending = {"happy": "{h} helped {o.name} and was less afraid afterwards", "funny": "{h} helped {o.name}, though it was not as dangerous as it had seemed", "sad": "{o.name} was safe, but {h} had lost something"}[s.mood]
    s.fact(want="not to be afraid any more", why="{h.he} was afraid of " + fear, obstacle="{h.he} was afraid of " + fear, object="{x.a}", where="{h.name} went to {p.the}",
           other="{o.name} was {o.a} who needed help", helper="{h.name} was the one who helped: {h.he} helped {o.name}", solved="{h.he} took {x.the} and went to {p.the} all the same",
           ending=ending, holder="{h.name} had {x.the}" if s.state.holder["x"] else "nobody had {x.the}; it was left behind", moral="One can be afraid and go." if not s.sad else "Courage should not come late.",
           title="[{h.name} Is Afraid|What {h.name} Was Afraid Of|The Brave {h.kind}]")
    s.ask(["What was {h.name} afraid of?", "What was the {h.kind} afraid of?", "What did {h.name} fear?"], "{h.he} was afraid of " + fear + ".")
    s.ask(["Who needed help?", "Who called for help?", "Whom did {h.name} help?"], "It was {o.name} the {o.kind}.")
    s.ask(["Where was {o.name}?", "Where did {h.name} go?"], "{h.name} went to {p.the}, where {o.name} was." )

"""Waiting: somebody has gone away and promised to come back, and somebody keeps a thing ready."""

from ..beats import opening

NAME = "waiting"
THEMES = ("patience", "love", "friendship")
ROLES = ("h", "o", "x", "p")

KEEPING = {
    "light": "Every evening {h} carried {x.the} up to {p.the} and lit it, so that {o.name} should find the way",
    "sound": "Every evening {h} went to {p.the} and sounded {x.the} three times, and listened",
    "music": "Every evening {h} sat down {p.at} and played {o.name}'s tune on {x.the}",
    "warm": "Every week {h} hung {x.the} out {p.at}, to air it, so that it should be warm for {o.name}",
    "vessel": "Every evening {h} brought {x.the} to {p.the}, full of something hot, in case {o.name} should come hungry",
    "tool": "Every Saturday {h} took {x.the} to {p.the} and kept the path clear for {o.name}",
    "travel": "Every spring {h} brought {x.the} to {p.the}, mended and painted, for {o.name} to come home with",
    "shelter": "On every wet day {h} stood {p.at} with {x.the}, so that {o.name} should come home dry",
    "time": "Every noon {h} went to {p.the} with {x.the}, for {o.name} had said noon",
    "words": "Every evening {h} sat {p.at} and read in {x.the}, at the place where {o.name} had stopped",
    "bright": "Every day {h} polished {x.the} and held it up {p.at}, so that {o.name} should see it from far away",
    "play": "Every Sunday {h} took {x.the} to {p.the}, because that was where they had always played with it, {o.name} and {h}",
    "grow": "Every evening {h} went to {p.the} with {x.the} and told it that {o.name} would soon be here",
    "guide": "Every evening {h} took {x.the} to {p.the} and looked for the way by which {o.name} would come",
}


def suits(cast):
    """Whether the plot can be told with this cast; decides on the place."""
    if cast.thing.group not in KEEPING or cast.thing.noun in ("rose", "balloon", "needle", "hammer") or not cast.find_place():
        return False
    aways = [away for away in AWAY if cast.allows(*away)]
    if not aways:
        return False
    cast.picked = {"away": cast.rng.choice(aways)}
    return True


AWAY = (
    ("gone to sea on a ship with a green sail", "before the first snow"),
    ("gone over the mountains to look for work", "when the cherries are red"),
    ("gone out one evening to see what was at the end of the road", "as soon as I know"),
    ("been sent for by an old uncle in a far city", "before the candles are used up"),
    ("gone off with a travelling show to hold the lions", "when the swallows do"),
    ("gone to find a doctor for a cough that would not go away", "as soon as I am well"),
    ("taken the train, because there was a war somewhere and they had run out of people", "by Christmas"),
)

LEFT = (
    "In the same house there had once been {o.a} named {o.name}. But {o.name} had {away}. \"I shall be back {when},\" {o.he} had said, and had left {h.him} {x.a} to look after.",
    "{h.his} dearest friend in the world was {o.a} named {o.name}, who had {away}. \"Back {when},\" {o.name} had said at the gate, and had put {x.a} into {h.his} {h.hands}.",
    "There was one who was missing, {o.a} named {o.name}. {o.name} had {away}. \"I will come back {when},\" {o.he} had promised. All that was left of {o.him} was {x.a}.",
)

WANTED = (
    "{h} wanted {o.name} to come back. That was all {h.he} wanted, morning, noon and night.",
    "What {h} wanted was not much: to see {o.name} come back down that road.",
    "{h} wanted only for {o.name} to come back, and in the meantime {h.he} wanted nobody to say that {o.he} would not.",
)

TIME = (
    "The time came and went, and so did the time after that.",
    "The months went by, each with its own excuse.",
    "The first year was long. The second was longer, though it had the same number of days.",
    "It snowed, it thawed, the cherries grew red and were eaten.",
    "People stopped asking. Then they stopped looking in that direction.",
    "Somebody said, quite kindly, that it would be better to put {x.the} away.",
)

STILL = (
    "\"One cannot be late,\" said {h}, \"if somebody is still waiting.\"",
    "{h} said that a promise has no last page.",
    "<quite kindly>{h} only nodded and went on with it.",
    "\"{o.name} walks slowly,\" said {h}.",
    "{h} missed only one evening, because of a fever, and apologised to the road the day after.",
)

HAPPY = (
    "Then {day} somebody came {p.to_at}, thin and brown and out of breath. \"Am I very late?\" asked {o.name}. {h} looked at {x.the} and then at {o.him}. \"The soup is still warm,\" said {h}. It was, too: {h.he} had warmed it four hundred times.",
    "And {day} there was a speck on the road, and the speck had {o.name}'s way of walking. {h} wanted to run and could not, and so {o.name} ran. \"I lost my way,\" {o.he} said, \"until I saw you {p.at}, with {x.the}.\"",
    "{day} {h} turned round, and there stood {o.name}, as if {o.he} had only gone to fetch the milk. \"You have kept {x.the},\" said {o.name}. \"You said that I should look after it,\" said {h}. After that they both talked at once until it was light.",
    "There came an evening when {h} was ill and could not go. And {day} somebody sat at the foot of the bed. \"You were not there,\" said {o.name}, \"and so I had to find the house by myself.\" {h} said that it must be the fever. \"Then the fever has brought you oranges,\" said {o.name}, and began to peel one.",
)

FUNNY = (
    "Then {day} somebody sat down next to {h} {p.at}. \"For whom are you waiting?\" asked the stranger. \"For {o.name},\" said {h}. \"That is odd,\" said {o.name}. \"I have been waiting for you, at the other end. You said you would come after me.\" They had both waited beautifully, and they agreed that next time only one of them should.",
    "{day} a head looked out of the topmost window. \"Is it time?\" called {o.name}. {o.he} had come back two years before, in the night, had not wanted to wake anybody, and had lain down for a little. {h} put {x.the} down very carefully and went in to shout.",
    "{day} {o.name} came walking up at last. \"I would have been here sooner,\" {o.he} said, \"but whenever I came near, there was somebody {p.at} with {x.the}, and I took it for a robber.\" {h} has had to hear this story at every supper since.",
    "{day} somebody with a great deal of hair tapped {h} on the shoulder. \"It is me,\" said {o.name}. \"I did not know you,\" said {h}. \"Nor I you,\" said {o.name}. \"I have asked you the way to your house four times this week.\"",
)

SAD = (
    "{day} there came a letter instead. It was from a stranger and had a black edge, and in it lay a button from {o.name}'s coat. {h} read it twice. Then {h.he} took {x.the} and went to {p.the}, as on any other evening, since there might be others on the way.",
    "{o.name} did not come. {h} grew old {p.at}, with {x.the} beside {h.him}, and in the end there was a child who carried it for {h.him}, because it had become too heavy. \"Who is it for?\" asked the child. \"For somebody who is late,\" said {h}.",
    "{day} {o.name} did come by, in a fine coat, with strangers. {o.he} looked at {h} as one looks at somebody whose name is on the tip of one's tongue. Then the carriage went on. {h} stood {p.at} a little longer with {x.the}, and then {h.he} carried it home for the last time.",
    "{day} {h} thought that {h.he} saw {o.name} at the end of the road, and ran, and it was only an old jacket on a fence. {h.he} stood beside it for a while, since neither of them had anywhere to be. Then {h.he} straightened its collar and went back to {h.his} place {p.at}, to {x.the}.",
)

AFTER = {
    "happy": ("{o.name} had come back. Nobody in the village had doubted it, they all said.", "{x.the} was put on the shelf that night. It had earned a rest.", "They still go to {p.the} in the evenings, both of them, to see who else might be coming.",
              "\"What did you do all that time?\" asked {o.name}. \"Nothing much,\" said {h}."),
    "funny": ("{o.name} had come back, and the first thing they did was to have an argument about whose fault it was.", "Since then they leave notes for each other, even when one of them only goes to the pump.",
              "{h} kept {x.the}, but {h.he} keeps it indoors.", "The village had a good laugh, and then another, and then asked for the dates."),
    "sad": ("{x.the} is there still. If you pass that way, look for it.", "Nobody says any more that {h.he} should put it away.", "One can get used to waiting. It is a kind of company.",
            "{o.name} did not come back to {h.him}. But others have found their way by {h.him} since, more than one."),
}


def tell(s):
    """Tells it."""
    away, when = s.picked["away"]
    opening(s)
    s.state.take("h", "x")
    s.say(*[text.replace("{away}", away).replace("{when}", when) for text in LEFT])
    s.about(probability=0.5, by_name=True)
    s.say(*WANTED)
    s.break_()
    s.state.needs("h", "x")
    s.say(KEEPING[s.x.thing.group] + ".")
    s.sight(0.6)
    s.also(*TIME)
    s.maybe(0.4, *TIME)
    s.maybe(0.7, *STILL)
    s.break_()
    to_at = "down the road"
    s.turn()
    s.say(*[text.replace("{p.to_at}", to_at) for text in {"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood]])
    s.night(0.2)
    s.close(*AFTER[s.mood])
    s.echo(0.45)
    ending = {"happy": "{o.name} came back, and {h} was still there", "funny": "{o.name} had been quite near all the time", "sad": "{o.name} never came back to {h}"}[s.mood]
    s.fact(want="{o.name} to come back", why="{o.name} was dear to {h.him} and had promised to return", obstacle="{o.name} had " + away, object="{x.a}", where="{h.name} waited {p.at}",
           other="{o.name} was {o.a}, and {h.name} missed {o.him}", helper="nobody could; {h.he} could only wait", solved="{h.he} went on waiting {p.at} with {x.the}",
           ending=ending, holder="{h.name} had {x.the}", moral={"happy": "Love is also a way of waiting.", "funny": "Say clearly where you will wait.", "sad": "A light kept for one may help another."}[s.mood],
           title="[The Long Wait|{h.name} Waits|Until {o.name} Comes]")
    s.ask(["Who went away?", "For whom did {h.name} wait?", "Whom was {h.name} waiting for?"], "{h.he} waited for {o.name} the {o.kind}.")
    s.ask(["Where did {h.name} wait?", "Where did the {h.kind} wait?"], "{h.he} waited {p.at}.")
    s.ask(["What did {o.name} leave behind?", "What did {h.name} look after?"], "{o.name} left {x.a}.")

"""Boast: somebody says a thing too loudly, and then it has to be done in front of everybody."""

from ..beats import opening
from ..places import INDOORS

NAME = "boast"
THEMES = ("pride", "friendship", "humility")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the feat and the place. The thing is the prize."""
    if not cast.find_place():
        return False
    feats = [feat for feat in FEATS if cast.allows(*[part for part in feat if isinstance(part, str)], *feat[3].values())
             and not set(feat[4]) & (cast.kind.tags | ({"indoors"} if cast.place in INDOORS else set()))]
    if not feats:
        return False
    cast.picked = {"feat": cast.rng.choice(feats)}
    return True


FEATS = (
    ("stay awake for three nights", "stayed awake", "On the first night {h} sang to {h.himself}. On the second {h.he} stood in a tub of cold water.",
     {"happy": "On the third {h.he} nodded, and {o.name} coughed loudly, and coughed again each time, until it was morning",
      "funny": "On the third {h.he} fell asleep standing, with {h.his} eyes wide open, and nobody noticed until {h.he} began to snore the victory speech",
      "sad": "On the third night {h.he} was still awake when the sun came up. But everybody else had gone to bed"}, ()),
    ("jump over the mill stream", "jumped", "{h} walked back thirty steps, and then, to be safe, thirty more. Then {h.he} ran.",
     {"happy": "{h.he} landed with a splash exactly in the middle, and {o.name} jumped in after, so that nobody should be wet alone",
      "funny": "{h.he} flew through the air beautifully, and came down in a washtub with a washerwoman in it, who won",
      "sad": "{h.he} cleared it by a yard, turned round to hear the cheering, and there was none: the others had gone to look at a fire"}, ("flies", "swims", "indoors")),
    ("eat forty pancakes", "ate the pancakes", "The first ten were a pleasure. At twenty {h} loosened something. At thirty {h.he} had stopped speaking.",
     {"happy": "At thirty-eight {h.he} looked at {o.name}, and {o.name} looked at {h.him}, and quietly ate the last two under the table",
      "funny": "At thirty-nine {h.he} asked whether there was any jam, and that was when {h.he} fell off the bench",
      "sad": "{h.he} ate all forty. Then {h.he} saw the children at the fence, who had not had a single one"}, ()),
    ("whistle louder than anybody in three valleys", "whistled", "Everybody in the row whistled, and some of it was very fine. Then it was {h.his} turn, and {h} put two fingers, or what {h.he} had, in {h.his} mouth.",
     {"happy": "Nothing came out but air. So {o.name} began, and {h} came in on the second note, and together they could be heard in four valleys",
      "funny": "Nothing came out. But every dog in three valleys sat up and came running, two hundred of them, and would not go home",
      "sad": "It was the loudest whistle that anybody had ever heard. And all the birds flew up and left, and have not come back"}, ()),
    ("carry the great stone round the field", "carried the stone", "{h} spat, took hold and lifted, and for a moment it looked as if the stone might be interested.",
     {"happy": "It did not move. Then {o.name} put a shoulder under it, and then a boy from next door, and then half the village, and it went round like a feather bed",
      "funny": "It did not move, but {h.his} trousers did. {h} walked round the field very fast, backwards, without the stone",
      "sad": "{h.he} carried it all the way round. It came down on the little flower bed that {o.name} had planted, and nobody clapped"}, ("indoors",)),
    ("tell a story that nobody could believe", "told the story", "The others told of talking fish and walking churches, and everybody nodded and believed every word.",
     {"happy": "Then {h} stood up, red to the ears. \"I am sometimes afraid that I am not worth much,\" {h.he} said. \"That,\" cried {o.name}, \"nobody can believe!\" And everyone agreed",
      "funny": "Then it was {h.his} turn. \"I have never boasted in my life,\" said {h}, and the prize was given to {h.him} before the laughter stopped",
      "sad": "{h} told how happy {h.he} was at home and how many friends {h.he} had. Nobody believed it, and so {h.he} won"}, ()),
    ("find the way round the village with {h.his} eyes tied shut", "found the way", "They tied a cloth over {h.his} eyes and turned {h.him} round three times.",
     {"happy": "{h.he} walked straight towards the pond. \"It smells of roses here,\" {o.name} remarked from the left, and \"what a nice dry wall\" a little later, all the way round",
      "funny": "{h.he} marched off with great confidence. They found {h.him} two days later in the next county, where {h.he} was judging a dog show",
      "sad": "{h.he} came all the way round and tore off the cloth. It had taken so long that the sun was down and the benches empty"}, ("indoors",)),
    ("keep a straight face whatever happened", "kept a straight face", "They tried jokes, and false noses, and a song about the tax collector. {h} did not move a muscle.",
     {"happy": "Then {o.name} came and sat down opposite, and did nothing at all, and looked at {h.him}. It began in {h.his} ears. After a minute they were both lying on the ground, holding on to each other",
      "funny": "{h.he} kept it when the bench broke, and when the tent came down, and when they carried {h.him} home. It took until Friday before it came off",
      "sad": "{h.he} kept it to the end. Afterwards the children were a little afraid of {h.him}, and one of them cried"}, ()),
    ("be the first to wish the mayor a good morning", "wished him a good morning", "{h} sat down before the mayor's door at midnight, in {h.his} best collar.",
     {"happy": "{o.name} came too, with a blanket of newspapers, and they sat back to back. At six the mayor opened the door. \"Good morning,\" they said, exactly together",
      "funny": "At six the door opened. \"Good morning!\" shouted {h}. It was the cleaning woman. The mayor had left by the window, as he did every year",
      "sad": "At six the door opened, and {h} was the first, and the mayor shook {h.his} {h.hand}. {o.name}, who had stood in the line behind, had already gone home"}, ("indoors",)),
)

BOAST = (
    "One evening {h} said, a good deal too loudly, that {h.he} could {feat}.",
    "\"I,\" said {h} to everybody who was there, \"could {feat}, if I wanted.\"",
    "It began with {h} saying, between two spoonfuls, that {h.he} could easily {feat}.",
    "Nobody had asked. But {h} told them all the same that {h.he} could {feat}.",
)

DOUBT = (
    "\"Is that so?\" said {o.a} named {o.name}, who was known for asking.",
    "There was {o.a} named {o.name} among them. \"When?\" said {o.name}. That was all.",
    "\"I should like to see that,\" said {o.name}, {o.a} with a very friendly voice, and that made it worse.",
)

SET = (
    "And so {day} everybody came together {p.at}. There was even a prize: {x.a}, which stood on a barrel for all to see.",
    "It was arranged for {p.at}, {day}, and somebody gave {x.a} as a prize.",
    "So {day} there they stood {p.at}, with a speech to begin it and {x.a} for the prize." ,
    "{day} there was not a seat to be had {p.at}. On a cushion lay the prize, {x.a}.",
)

WANTED = (
    "{h} did not want the prize so much as {h.he} wanted to be right.",
    "{h} wanted to win. {h.he} wanted it so much that {h.his} ears hurt.",
    "Now {h} wanted very much to win, and even more to be at home in bed.",
)

WHY = ("{h.he} had said it in front of everybody", )

RESULT = {
    "happy": ("It did not count, strictly speaking. But everybody had laughed, and they gave {x.the} to the two of them together.",
              "The judges put their heads together. \"The prize goes to both,\" they said, \"and the bill for the breakages too.\" {h} and {o.name} carried {x.the} home between them.",
              "{h} won, or somebody did. {h.he} took {x.the}, and then {h.he} turned round and put it into {o.name}'s {o.hands}."),
    "funny": ("Nobody could agree whether this was winning or losing, so {x.the} was given to the oldest person present, who had slept through it.",
              "In the excitement somebody had sat on {x.the}. They gave {h.him} what was left, and {h.he} thanked them at length.",
              "{o.name} said that in all {o.his} life {o.he} had never seen anything like it, and handed {h.him} {x.the} as a matter of course."),
    "sad": ("So {h} had won. {h.he} took {x.the} from the barrel {h.himself}, since there was nobody to hand it over.",
            "{h} got {x.the}. It was handed to {h.him} by a tired man who was stacking the chairs.",
            "{h} carried {x.the} home by the back way, so as not to meet anyone."),
}

AFTER = {
    "happy": ("{h} still says things too loudly. But now {o.name} says them with {h.him}.", "It is pleasant to be right. It is pleasanter to be two.", "Next year, {h} announced on the way home, they would do it backwards.",
              "{x.the} stands with each of them for half the year, and everybody may come and look."),
    "funny": ("\"I could do it again,\" said {h}, and the whole village shouted no.", "They still tell of it when the evenings are long, and {h} corrects them where it was worse.",
              "{h} has not boasted since. Nobody boasts as little as {h.he} does, {h.he} says.", "As to whether {h.he} had been right, {h} says that it depends on the question."),
    "sad": ("{h.he} had wanted to be right, and {h.he} was right, all the way home.", "At home {h} put {x.the} on the table and looked for somebody to show it to.",
            "{h} would have given {x.the} to hear one person clap.", "Since that day {h} speaks more softly, and people move a little closer to hear."),
}


def tell(s):
    """Tells it."""
    feat, done, effort, outcome, _ = s.picked["feat"]
    opening(s)
    s.say(*[text.replace("{feat}", feat) for text in BOAST])
    s.say(*DOUBT)
    s.break_()
    s.say(*SET)
    s.state.go("h", s.p.place.noun)
    s.about(probability=0.35, by_name=True)
    s.sight(0.3)
    s.sign(0.3)
    s.say(*WANTED)
    s.break_()
    s.say(effort)
    s.turn()
    s.say(outcome[s.mood] + ".")
    s.state.take("h", "x")
    s.say(*RESULT[s.mood])
    s.close(*AFTER[s.mood])
    s.echo(0.5)
    ending = {"happy": "{h} and {o.name} did it together and shared {x.the}", "funny": "nobody could say whether {h} had won, but everybody laughed", "sad": "{h} won {x.the}, but nobody was there to be glad with {h.him}"}[s.mood]
    s.fact(want="to win and to be right", why=WHY[0], obstacle="{h.he} had boasted that {h.he} could " + feat, object="{x.a}", where="it happened {p.at}",
           other="{o.name} was {o.a} who asked {h.him} to prove it", helper="{o.name} the {o.kind} helped a little" if s.happy else "nobody did", helper_name="{o.name}" if s.happy else "", solved="{h.he} tried it in front of everybody",
           ending=ending, holder={"happy": "they shared {x.the}", "funny": "it is not quite clear who had {x.the}", "sad": "{h.name} had {x.the}"}[s.mood],
           moral={"happy": "What one cannot do alone, two can do badly, which is better.", "funny": "Think before you speak, or at least afterwards.", "sad": "It is lonely to be right alone."}[s.mood],
           title="[{h.name}'s Boast|The {h.kind} Who Said Too Much]")
    s.ask(["What did {h.name} boast about?", "What did the {h.kind} say {h.he} could do?"], "{h.he} said that {h.he} could " + feat + ".")
    s.ask(["What was the prize?", "What could one win?"], "The prize was {x.a}.")
    s.ask(["Where did the contest take place?", "Where did they meet?"], "It was {p.at}.")

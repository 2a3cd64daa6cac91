"""Quarrel: two friends, one thing. Who is to have it?"""

from ..beats import opening
from .trade import told

NAME = "quarrel"
THEMES = ("friendship", "sharing", "forgiveness")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the place."""
    return cast.find_place()


FRIENDS = (
    "{h.his} best friend was {o.a} named {o.name}. They had [one garden fence between them and no secrets|known each other since they were both knee high].",
    "Next door lived {o.a} named {o.name}, and the two were friends. They [shared a newspaper, a wash line and most opinions|had never in their lives quarrelled about anything bigger than a pea].",
    "Every evening {o.name} the {o.kind} came over to [play draughts and lose|say that it was getting late, and stayed until it was]. The two had always been friends.",
)

FOUND = (
    "{day} the two of them found {x.a} {p.at}. {about} \"I saw it first,\" said {h}. \"I touched it first,\" said {o.name}.",
    "{day} they were {p.at}, and there in the grass lay {x.a}. {about} Both of them laid a {h.hand} on it, and neither let go.",
    "{day} they walked to {p.the}, and there, with nobody near, they found {x.a}. {about} They looked at it for just as long as it takes two friends to have the same thought.",
)

WANTED = (
    "{h} wanted to have {x.the} all to {h.himself}. The bad thing was that so did {o.name}.",
    "{h} wanted {x.the} very much. {o.name} wanted it too, and rather more loudly.",
    "Both said, \"You take it,\" and neither meant it. {h} wanted {x.the} as {h.he} had never wanted anything.",
)

REASONING = (
    "They tried taking turns. But it always seemed to be somebody else's turn.",
    "\"Let us saw it in half,\" said {o.name}. {h} went pale. \"You see,\" said {o.name}, \"I thought so.\"",
    "They asked a passing cow, who went on chewing, and each thought that the cow had agreed with the other." ,
    "They drew straws, and {h} said that {o.name} had drawn the straw in a special way.",
    "{h} listed nine reasons why it should be {h.his}. {o.name} had ten, but two of them were the same.",
)

TOOK = (
    "In the end {h} simply took {x.the} and carried it home, and {o.name} shut the shutters on that side of the house.",
    "At last {h} put {x.the} under one {h.arm} and went. Neither of them said good night, for the first time in all those years.",
    "So {h} took {x.the}, and {o.name} took offence, and each went home by a different way.",
)

ALONE = (
    "{h} sat before {x.the} that evening and waited to be glad.",
    "It was a fine thing to have. {h} showed it to the wall, and the wall said nothing that {o.name} would have said.",
    "{x.the} stood in the best place in the room, and the room seemed larger than before, and not in a good way.",
    "For three days there were two columns of smoke from two chimneys, and they leaned away from each other.",
    "{h} thought of something funny, and turned round to say it, and there was only {x.the}.",
)

HAPPY = (
    "On the fourth night {h} heard a cry: the wind had pushed in {o.name}'s chimney. {h} was over the fence before {h.he} had thought about it, and {x.the} was the first thing to hand. They worked until morning, and when it was done neither could say whose {x.the} was.",
    "On the third evening {h} took {x.the}, went to the fence and met {o.name}, who was just coming to the fence. \"I wanted to say,\" said {h}. \"So did I,\" said {o.name}. They put {x.the} on the fence, exactly in the middle, and there it has its place to this day.",
    "Then {h} carried {x.the} over and put it in front of {o.name}'s door, knocked and ran. The next morning it stood in front of {h.his} own. The morning after it was at {o.name}'s again. They kept it up for a week, and on Sunday they both came out too early and met.",
    "On the sixth day it was {h.his} birthday. Nobody came, which was no wonder, since the only one who ever came was {o.name}. Then there was a parcel on the step. In it lay a card, and on the card it said: You saw it first. {h} ran across in {h.his} slippers, with {x.the}, and to this day they argue about which of them has to keep it.",
)

FUNNY = (
    "On the third day there was a knock at both doors. It was an old woman in a bonnet. \"I left {x.a} {p.at},\" she said. They gave {x.the} back to her, looking at their feet. She gave them a toffee for their honesty. It was one toffee. They looked at each other.",
    "They agreed to fight it out with turnips at dawn. But dawn was cold, and the turnips were, after all, turnips. By eight o'clock they had been made into soup, and {x.the} stood on the table between the plates and belonged to both of them.",
    "\"I do not even know what I want it for,\" {h} said to the fence at last. \"Nor do I,\" said the fence, which was {o.name}. They gave {x.the} to a pair of twins. Over the hedge one can hear the twins now, from morning to night: mine, mine, mine. And {h} and {o.name} sit there and listen, and have never enjoyed anything so much.",
    "They went to the judge, an old woman with a cold. \"Whoever can say nothing for an hour shall have it,\" said the judge. It was the longest hour in the history of the valley. After four minutes {o.name} said that {h} was breathing on purpose, {h} said that {o.name} had lost, and so the judge kept {x.the}.",
)

SAD = (
    "On the fifth day {h} took {x.the} and went over to give it up. The shutters were still closed. {o.name} had gone to a cousin in the south, said a boy, early that morning, with one suitcase. {h} stood there with {x.the}. Nobody wanted it now.",
    "{h} waited for {o.name} to come and say sorry. {o.name} waited for {h} to come. They were both very good at waiting. It grew to be a year, and then {o.name} died, in her sleep or his, as one does, and {h} walked behind with {x.the} and did not know where to put it.",
    "{h} did go over in the end, and said it, and {o.name} said that it was all right. They sat together in the evening as before. But when {h} spoke of {x.the}, {o.name} looked at the fire. Something had got a crack, and it was not {x.the}.",
    "One morning {h} found {x.the} broken on the floor. Nobody had touched it. {h.he} carried the pieces to {o.name}'s door, to have somebody to be sad with. {o.name} looked at them. \"You should have come before,\" {o.he} said, and {h} did not ask before what.",
)

AFTER = {
    "happy": ("\"What were we quarrelling about?\" {o.name} asks now and then. \"I forget,\" says {h}, who does not.", "{h} no longer wanted it all to {h.himself}. It was better with somebody on the other end.",
              "{x.the} is a little worn by now. They both say that this is the other one's side.", "They have one thing more now, and one reason less to shut the shutters."),
    "funny": ("{h} had wanted {x.the}, and what {h.he} got was a good laugh. {h.he} says that it was a bargain.", "They have not quarrelled since, except about who began it.",
              "It is said that they shook hands on it so hard that both had to lie down.", "{x.the} never said what it thought of the matter."),
    "sad": ("{h} had wanted {x.the}, and {h.he} had it.", "{x.the} stands in the shed now with a cloth over it.", "There is still a gap in the fence, just wide enough. Nobody comes through.",
            "If somebody asks, {h} says that {h.he} will give {x.the} to anyone who can tell {h.him} what it is worth."),
}


def tell(s):
    """Tells it."""
    opening(s)
    s.say(*FRIENDS)
    s.break_()
    about = "^" + s.rng.choice(s.x.thing.said) + "." if s.chance(0.7) else ""
    s.say(*[text.replace("{about}", about) for text in FOUND])
    s.say(*WANTED)
    s.maybe(0.75, *REASONING)
    s.state.take("h", "x")
    s.say(*TOOK)
    s.break_()
    s.also(*ALONE)
    s.sign(0.3)
    s.maybe(0.35, *ALONE)
    s.break_()
    options = {"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood]
    s.turn()
    s.say(*[told(s, text.replace("in her sleep or his", "in {o.his} sleep"), "o", "x") for text in options])
    s.close(*AFTER[s.mood])
    s.echo(0.5)
    ending = {"happy": "{h} and {o.name} made it up and shared {x.the}", "funny": "{h} and {o.name} stopped quarrelling, and laughed about it",
              "sad": "{h} kept {x.the}, but nothing was as it had been with {o.name}"}[s.mood]
    s.fact(want="to have {x.the} all to {h.himself}", why="it was a beautiful thing, and {h.he} thought that {h.he} had seen it first", obstacle="{o.name} wanted {x.the} too", object="{x.a}",
           where="they found {x.the} {p.at}", other="{o.name} was {o.a} and {h.his} best friend", helper="nobody did; they had to do it by themselves",
           solved="first they quarrelled, and then {h.he} simply took {x.the}", ending=ending, holder={"happy": "it belonged to both of them", "funny": "it was no longer only {h.name}'s", "sad": "{h.name} still had {x.the}"}[s.mood],
           moral={"happy": "A friend is worth more than a thing.", "funny": "Most quarrels are about a turnip.", "sad": "Say sorry while there is somebody to hear it."}[s.mood],
           title="[{h.name} and {o.name} Quarrel|Two Friends and One {x.noun}]")
    s.ask(["What did they quarrel about?", "What was the quarrel about?"], "They quarrelled about {x.a}.")
    s.ask(["Where did they find {x.the}?", "Where was {x.the}?"], "They found it {p.at}.")
    s.ask(["Who quarrelled?", "Who was {h.name}'s friend?"], "{h.name} the {h.kind} and {o.name} the {o.kind} were friends, and they quarrelled.")

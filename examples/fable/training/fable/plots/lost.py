"""Lost: somebody loses a dear thing, asks after it, and finds it with one who has a use for it."""

from ..beats import opening, owning
from ..needs import NEEDS

NAME = "lost"
THEMES = ("kindness", "sharing", "friendship")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the finder's need and on the place."""
    needs = [need for need in NEEDS[cast.thing.group] if cast.allows(need.plea, need.because, need.using, need.result)]
    if not needs or not cast.find_place():
        return False
    cast.picked = {"need": cast.rng.choice(needs)}
    return True


LOST = (
    "<nail>But {day} it was gone. The nail where it had hung was only a nail.",
    "But {day} it was gone. There was a clean patch in the dust where it had been.",
    "Then, {day}, {h} put out a {h.hand} for it, and there was nothing there.",
    "{day} {h} came home, and the door stood open, and {x.the} was gone.",
    "{h.he} took it along to the fields {day}, laid it on a wall while {h.he} rested, and when {h.he} turned round there was only the wall.",
    "Somewhere between the brook and the stile, {day}, {x.the} slipped away from {h.him}. {h.he} noticed it only at home.",
    "There was a hole in the bag that {h} carried {day}. It was not a large hole, but {x.the} found it.",
)

SEARCHED = (
    "{h} looked under the bed, behind the stove and, though it made no sense, in the soup.",
    "{h.he} turned the house upside down, and then, to be fair to it, the right way up again.",
    "{h.he} looked everywhere twice and in the flour bin three times.",
    "{h} went back along the whole way with {h.his} nose to the ground.",
    "{h.he} looked in all the places where it could be, and then in those where it could not.",
)

WANTED = (
    "{h} did not want another one. {h.he} wanted {x.the} back.",
    "\"Get a new one,\" said the neighbours. But {h} wanted {x.the} back, that one and no other.",
    "All {h} wanted was to have {x.the} back.",
    "{h} could not sleep. {h.he} wanted to have {x.the} back, dent for dent.",
    "There is no word for how much {h} wanted {x.the} back.",
)

TRACE = (
    "A peddler had seen something go by in the direction of {p.the}. \"It went quickly,\" he said, \"and there was somebody under it.\"",
    "A child on a fence, when asked three times, said that somebody had carried a thing like that to {p.the}.",
    "\"Try {p.the},\" said an old woman who knew everything and told half of it.",
    "The milk woman thought that she had seen it near {p.the}, or else she had dreamed it.",
    "There were tracks by the gate. {h} followed them, over the brook, along the hedge and all the way to {p.the}.",
)

FOUND = (
    "And there, {p.at}, was {o.a} named {o.name}, {using}.",
    "There was indeed somebody {p.at}: {o.a}, whose name was {o.name}, {using}.",
    "{p.at} {h.he} came upon {o.a} named {o.name}, who was {using}.",
)

CONFRONT = (
    "\"That,\" said {h}, \"is mine.\" {o.name} went very red. \"I found it in a ditch,\" {o.he} said. \"I asked it whose it was. {plea}.\"",
    "{h} had meant to shout. But {o.name} looked up and said, \"Is it yours? I was afraid that it might be somebody's. {plea}.\"",
    "\"You have {x.the},\" said {h}. \"Yes,\" said {o.name}. \"I meant to bring it back as soon as I knew where back was. {plea}.\"",
    "\"Where did you get it?\" asked {h}. \"It lay in the road, all by itself,\" said {o.name}. \"{plea}. And I thought that it might have been sent.\"",
)

SILENCE = ("{h} said nothing for a while.", "{h} looked at {x.the}, and then at {h.his} feet.", "That was not what {h} had expected to hear.",
           "{h.he} had prepared a speech about thieves. It no longer fitted.", "For a moment it was so still that one could hear somebody think.")

HAPPY = (
    "\"Keep it until you are done,\" {h} said in the end. \"I can wait.\" And {result}. A week later {o.name} stood at {h.his} door with {x.the}, polished, and a plum cake under one {o.arm}.",
    "\"It can be yours on weekdays,\" said {h}, \"and mine on Sundays.\" And so they did it. {o.name} brought {x.the} every Saturday evening and stayed to supper.",
    "{h} sat down. \"Let me help you with it,\" {h.he} said, \"I know how it likes to be held.\" So they did it together, and {result}. After that {o.name} gave {x.the} back, and {h} gave {o.him} a standing invitation.",
    "{h} turned to go, and turned back. \"Show me,\" {h.he} said, and {o.name} showed {h.him}. So {result}. When it was over, {o.name} put {x.the} into {h.his} {h.hands} and kept hold of the other end. They carried it home together, though it was not heavy.",
    "\"Then it was lost in the right direction,\" said {h}. {h.he} stayed until all was done, and {result}. In the evening {o.name} gave {x.the} back, tied up with a bow, and {h} gave {o.him} the bow.",
)

HAPPY_GLAD = (
    "So {h} had {x.the} back, and somebody to show it to.",
    "{h} got back what {h.he} had lost, and something that {h.he} had not known was missing.",
    "<nail>It hung on its nail again, and there was a second cup on the table.",
    "Whenever it was missing after that, {h} knew where to look, and took along a cake.",
)

FUNNY = (
    "\"And what,\" asked {o.name}, \"is that on your back?\" {h} felt behind {h.him}. There it was: {h.his} own {x.noun}, tied on with {h.his} own knot, so that {h.he} should not lose it. The one {o.name} had was quite another. They looked the same, except that {o.name}'s was cleaner.",
    "{h} took {x.the} and looked at it, and looked again. It was not {h.his} at all; there was another name on the bottom. Now they were two who had lost something. They went out to look for the owner, and met somebody who was looking for them, with a third {x.noun}.",
    "\"I have walked behind you for two days to give it back,\" said {o.name}, \"but you were always running after somebody.\" \"I was running after you,\" said {h}. They sat down to rest, and {o.name} gave {h.him} {x.the}, and they agreed that next time one of them should stand still.",
    "{o.name} gave {x.the} back at once. \"To be honest, it is a difficult thing,\" {o.he} said. \"It talks in the night.\" \"That is me,\" said {h}. \"I live next door.\" There was a short silence, as between neighbours.",
    "{o.name} gave back {x.the}, and with it a spoon and a slipper that had lain in the ditch beside it. \"These are not mine,\" said {h}. \"Nor mine,\" said {o.name}. They have been looking for the owner of the slipper ever since, and it has taken them as far as the coast.",
    "\"I looked for you everywhere,\" said {o.name}. \"I put up a notice.\" \"I saw it,\" said {h}. \"It said: found, something. So I did not think that it was mine.\" {o.name} gave {h.him} {x.the} and a short lesson in reading to the end.",
)

FUNNY_GLAD = (
    "So {h} had {x.the} back, and since then {h.he} looks behind {h.him} first.",
    "When {h} had {x.the} at home again {h.he} tied a bell to it. Since then one always knows where the bell is.",
    "{h} wrote {h.his} name on {x.the} in big letters, and then, to be safe, on everything else, and on {o.name}.",
    "They put up a notice: {x.the} found, all is well, please stop looking. Three people brought {x.plural} all the same.",
)

SAD = (
    "{h} laid {x.the} back where it had been. \"You need it more,\" {h.he} said, and it was true, and that did not make it any lighter. {o.name} could not say anything. And {result}. But {h} was on the road by then.",
    "{o.name} held out {x.the}. It had broken in the ditch, and {o.he} had put it together as well as {o.he} could. It still did what it had to, if one was gentle. {h} saw how gentle {o.he} was with it. \"It knows you now,\" said {h}, and let {o.him} keep it.",
    "\"Take it,\" said {o.name}, \"it is yours.\" {h} took {x.the} and got as far as the gate. Then {h.he} thought of what would happen without it, and went back, and gave it to {o.him} without a word.",
    "{h} had brought money to buy it back. {h.he} looked round and saw what {o.name} owned, which was {x.the} and not much besides. {h.he} put down the money, too, beside {x.the}, and left before anybody could thank {h.him}.",
    "\"I will bring it tomorrow,\" said {o.name}, \"if I may have it this one night more.\" {h} agreed. In the night there was a fire. {o.name} got out, and {x.the} did not. They stood side by side in front of what was left. It was nobody's fault, and that is the hardest kind.",
)

SAD_END = (
    "<nail>{h} had found {x.the}, and gone home without it. The nail is still in the wall. {h.he} hangs nothing on it.",
    "Sometimes, in the evening, {h.he} puts out a {h.hand} for {x.the}, from habit, and then remembers, and leaves the {h.hand} there a little.",
    "{x.the} never came back, and {h} never asked for it. {h.he} only goes by there, now and then, and does not go in.",
    "People asked whether {h.he} had found {x.the}. \"Yes,\" {h} said, and talked of something else.",
)


def tell(s):
    """Tells it."""
    need = s.picked["need"]
    s.roles["n"] = s.o
    opening(s)
    owning(s, origin=0.6)
    s.break_()
    s.state.lose("h", "x")
    s.say(*LOST)
    s.sign(0.3)
    s.maybe(0.6, *SEARCHED)
    s.say(*WANTED)
    s.say(*TRACE)
    s.maybe(0.6, "So {h} {h.went} to {p.the}.", "{h} {h.went} there at once.")
    s.break_()
    s.state.go("h", s.p.place.noun)
    s.state.take("o", "x")
    s.say(*[text.replace("{using}", need.using) for text in FOUND])
    s.sight(0.3)
    s.say(*[text.replace("{plea}", need.plea) for text in CONFRONT])
    s.maybe(0.5, *SILENCE)
    s.break_()
    fill = lambda options: [text.replace("{result}", need.result) for text in options]
    s.turn()
    if s.happy:
        s.say(*fill(HAPPY))
        s.state.give("o", "h", "x")
        s.say(*HAPPY_GLAD)
        ending, holder, moral = "{h} lent {o.name} {x.the}, got it back, and the two became friends", "{h.name} had {x.the} again", "What is shared is not lost."
    elif s.funny:
        s.say(*FUNNY)
        s.state.give("o", "h", "x")
        s.say(*FUNNY_GLAD)
        ending, holder, moral = "{h} had {x.the} at home again, after a good deal of confusion", "{h.name} had {x.the} again", "Look at home before you look abroad."
    else:
        s.say(*fill(SAD))
        s.say(*SAD_END)
        ending, holder, moral = "{h} let {o.name} keep {x.the} and went home without it", "{o.name} had {x.the}", "Sometimes one finds a thing in order to give it away."
    s.echo(0.55)
    s.fact(want="to have {x.the} back", why="{h.he} was very fond of it", obstacle="{x.the} was lost and nobody knew where it was", object="{x.a}",
           where="{h.name} found it {p.at}", other="{o.name} was {o.a} who had found {x.the}", helper="somebody on the road told {h.him} to look {p.at}",
           solved="{h.he} asked until somebody told {h.him} to go to {p.the}", ending=ending, holder=holder, moral=moral,
           title="[The Lost {x.noun}|{h.name} and the Lost {x.noun}]")
    s.ask(["What did {h.name} lose?", "What was lost?"], "{h.he} lost {x.a}.")
    s.ask(["Who had found {x.the}?", "Who had {x.the} when {h.name} came?", "With whom was {x.the}?"], "{o.name} the {o.kind} had found it.")
    s.ask(["Where was {x.the}?", "Where did {h.name} find {x.the}?"], "It was {p.at}.")
    s.ask(["Why did {o.name} need {x.the}?", "What did {o.name} need it for?", "Why did the {o.kind} keep {x.the}?"], "Because " + need.because + ".")

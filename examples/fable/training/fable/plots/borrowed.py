"""Borrowed: somebody borrows a thing, and something happens to it. Now it has to be said."""

from ..beats import opening

NAME = "borrowed"
THEMES = ("honesty", "forgiveness", "friendship")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the place and on what happens."""
    if not cast.find_place():
        return False
    damages = [damage for damage in DAMAGES.get(cast.thing.noun, DAMAGES.get(cast.thing.group, DAMAGES["any"])) + DAMAGES["any"] if cast.allows(*damage)]
    if not damages:
        return False
    cast.picked = {"damage": cast.rng.choice(damages)}
    return True


# what happened to it, and the same as a clause for questions
DAMAGES = {
    "any": [("{h} put {x.the} down for one moment, only to look at a snail, and a cart went over it", "a cart went over {x.the}"),
            ("a gust took {x.the} out of {h.his} {h.hands} and set it down again on a rock, hard", "a gust threw {x.the} on a rock"),
            ("{h} stumbled over {h.his} own good mood, and {x.the} flew in a beautiful curve against a wall", "{h.he} stumbled and {x.the} flew against a wall"),
            ("{h} sat down to rest, with a sigh, and what {h.he} sat down on was {x.the}", "{h.he} sat down on {x.the}")],
    "light": [("{x.the} slipped, rolled down the bank and went into the brook with a hiss", "{x.the} fell into the brook")],
    "music": [("at the highest note there was a sound that was not music, and {x.the} had a crack from end to end", "{x.the} cracked at the highest note")],
    "warm": [("{x.the} caught on a nail, and {h} walked on, and when {h.he} looked round there was a thread the length of the road", "{x.the} caught on a nail and came undone")],
    "vessel": [("{x.the} came down on the stones and said what such things say when they do that", "{x.the} fell on the stones")],
    "words": [("a calf ate the middle of {x.the} while {h} was asleep beside it", "a calf ate the middle of {x.the}")],
    "food": [("{h} only wanted to try whether {x.the} was still good, and then whether it was good all the way through", "{h.he} ate {x.the}")],
    "bright": [("{x.the} slipped through {h.his} {h.hands} and between two boards, and one could hear it fall for a long time", "{x.the} fell between two boards")],
    "play": [("{x.the} went up, as such things do, and came down in a thorn hedge", "{x.the} came down in a thorn hedge")],
}

OCCASION = (
    "{h} was asked to a wedding {p.at} and wanted to look like somebody.",
    "There was to be a feast {p.at}, and {h} wanted to bring something to it that would be talked about.",
    "An important aunt was expected {p.at}, and {h} wanted to make a good impression.",
    "{h} had been invited to a party {p.at} for the first time in {h.his} life and did not want to come with empty {h.hands}.",
)

LENT = (
    "So {h.he} borrowed {x.a} from {o.a} named {o.name}, who lived across the way.",
    "So {h.he} went across the lane to {o.name} the {o.kind} and asked for the loan of {x.a}.",
    "{o.a} named {o.name} had {x.a}, and {h} asked whether {h.he} might borrow it until Sunday.",
)

CARE = (
    "\"Take care of it,\" said {o.name}. \"It is the only one I have.\"",
    "\"Of course,\" said {o.name}, \"you I would lend my own ears.\"",
    "{o.name} held it a little longer than is usual when one gives a thing away.",
    "\"Bring it back whole,\" said {o.name}, and laughed, because it went without saying.",
)

HIDE = (
    "{h} looked to the left and to the right. Nobody had seen it. That made it worse.",
    "{h} tried glue, string, and looking at it from the other side.",
    "{h.he} put it in a bag, and the bag under the bed, and {h.himself} on the bed, and could not sleep.",
    "For two days {h} went the long way round, so as not to pass {o.name}'s window.",
    "{h.he} thought of eleven stories in which it was somebody else's fault. The one with the bull was the best.",
)

WANTED = (
    "{h} wanted it to be last week again.",
    "{h} wanted nothing so much as to put it right.",
    "All {h} wanted now was that {o.name} should not be angry.",
)

TOLD = (
    "<bull>On the third evening {h} stood at {o.name}'s door with what was left. \"I have to tell you something,\" {h.he} said, and did not mention any bull.",
    "On the third evening {h} stood at {o.name}'s door with what was left. \"I have to tell you something,\" {h.he} said, and told it from the beginning.",
    "<bag>Then {h} took heart, and the bag, and went across. \"It was me,\" {h.he} said as soon as the door was open, to be on the safe side.",
    "In the end {h} went over and told {o.him} everything. It took one breath. {h.he} had been carrying it for days.",
)

HAPPY = (
    "{o.name} looked at it and was silent. \"It was I who dropped it first,\" {o.he} said then, \"years ago. See, there is my glue.\" They mended it together, hers beside his, and it holds to this day.",
    "{o.name} looked at {h} and not at {x.the}. \"A thing can be mended,\" {o.he} said. \"I was afraid that you did not come by any more because you had stopped liking me.\"",
    "\"I saw it happen,\" said {o.name}. \"I was standing at the window. I have only been waiting to see whether you would come.\" And {o.he} fetched two cups, which nobody had broken yet.",
    "{o.name} said nothing, went to the cupboard and took out a jug without a handle. \"Yours,\" {o.he} said, \"since the summer before last. I have been trying to tell you.\" They put the two side by side and looked at them, and it was hard to say which of the friends felt lighter.",
)

FUNNY = (
    "{o.name} began to laugh and had to hold on to the door. \"That was never mine,\" {o.he} said. \"I borrowed it from you, four years ago, and did not dare to bring it back.\"",
    "\"Thank goodness,\" said {o.name}. \"I never could stand it. It was a present from my aunt, and every year she comes to see whether it is still there.\" {o.he} kissed {h} on both cheeks and wrote to the aunt that same evening.",
    "\"Oh dear,\" said {o.name}, \"and I have sat on the cake that you lent me.\" They looked at each other, and at what was left, and it was hard to say which of the two was flatter.",
    "\"Which one?\" said {o.name}, and opened the cupboard. There were six more. \"Everybody who borrows it breaks it,\" {o.he} said. \"I have learned to keep a supply.\"",
)

SAD = (
    "{o.name} took the pieces and laid them in {o.his} lap. \"It was my mother's,\" {o.he} said. {o.he} was not angry. {h} would have liked it better if {o.he} had been.",
    "\"It does not matter,\" said {o.name}, and it was kindly said. But {o.he} never again lent {h.him} anything, and {h} never again asked.",
    "{o.name} forgave {h.him} on the spot. It was {h} who could not. Whenever {h.he} saw {o.him} coming, {h.he} thought of it, and so they saw each other less, and then only at Christmas.",
    "\"I knew,\" said {o.name}. \"I have known it for three days. I stood at the window each evening and hoped that you would come.\" {h} did not know what to say to that. It is bad to break a thing. It is worse to have been waited for.",
)

AFTER = {
    "happy": ("It was put right, then, though not as it had been. It was better.", "{h} wanted nothing more that evening, except perhaps another cup.", "{o.name} was not angry, then or later. One can see the crack, if one knows where it is, and both of them are rather fond of it.",
              "\"Next time,\" said {o.name}, \"just come in.\""),
    "funny": ("Nobody was angry. They agreed that from now on they would lend each other only stones.", "So everything was put right, apart from {x.the}.", "Since then, if something breaks in that lane, people say that it has been to a wedding.",
              "<bull>{h} went home with a light heart, and on the way {h.he} told the bull that it was innocent.",
              "They laughed until the fire went out, and then in the dark."),
    "sad": ("One cannot put everything right. {h} had said it, and that was what could be done.", "It was not last week again. It was never last week again.", "{h} still has one of the pieces. {h.he} keeps it where {h.he} has to see it.",
            "{o.name} was not angry with {h.him}. That was what {h} had wanted, and it was not enough."),
}


def tell(s):
    """Tells it."""
    damage, clause = s.picked["damage"]
    opening(s)
    s.say(*OCCASION)
    s.say(*LENT)
    s.about(probability=0.6, by_name=True)
    s.maybe(0.75, *CARE)
    s.state.take("o", "x")
    s.state.give("o", "h", "x")
    s.break_()
    s.say("{day} {h} set out for {p.the} with {x.the} {h.grip}.", "{day} {h} {h.went} to {p.the}, with {x.the}, and felt like somebody else.", "And so {day} {h} went off to {p.the}, with {x.the}, and felt very fine.", "{day} {h} carried {x.the} down the road to {p.the}, and people turned round.")
    s.sign(0.35)
    s.say("It all went well as far as the second bend. Then " + damage + ".", "Nothing happened on the way there. It was on the way back that " + damage + ".",
          "And it would have been a fine day. But " + damage + ".")
    s.say(*WANTED)
    s.maybe(0.6, *HIDE)
    s.maybe(0.4, *HIDE)
    s.break_()
    s.turn()
    s.say(*TOLD)
    s.say(*[text.replace("hers beside his", "the new glue beside the old") for text in {"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood]])
    s.close(*AFTER[s.mood])
    s.echo(0.5)
    ending = {"happy": "{h} told {o.name} the truth, and {o.name} forgave {h.him}", "funny": "{h} told {o.name} the truth, and {o.name} did not mind at all", "sad": "{h} told {o.name} the truth, but it was never quite the same again"}[s.mood]
    s.fact(want="to put it right again after " + clause, why="{x.the} belonged to {o.name}", obstacle="{x.the} was borrowed, and " + clause, object="{x.a}", where="{h.name} went to {p.the}",
           other="{o.name} was {o.a} who lent {h.him} {x.the}", helper="nobody did; {h.he} had to say it {h.himself}", solved="{h.he} went to {o.name} and told the truth",
           ending=ending, holder="{o.name} had what was left of {x.the}", moral="The truth is lighter than the bag one hides it in." if not s.sad else "Some things cannot be mended, but they can be told.",
           title="[The Borrowed {x.noun}|What Happened to the {x.noun}]")
    s.ask(["Who did {x.the} belong to?", "Whose was {x.the}?", "From whom did {h.name} borrow {x.the}?"], "It belonged to {o.name} the {o.kind}.")
    s.ask(["What happened to {x.the}?", "How was {x.the} broken?"], "^" + clause + ".")
    s.ask(["Did {h.name} tell the truth?", "Did {h.name} own up?"], "Yes. {h.he} went to {o.name} and told {o.him} everything.")
    s.ask(["Where did {h.name} go?", "Where was {h.name} going?"], "{h.he} went to {p.the}.")

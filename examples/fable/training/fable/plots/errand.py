"""Errand: somebody has to bring a thing to somebody in time, and something comes between."""

from ..beats import opening
from ..obstacles import OBSTACLES

NAME = "errand"
THEMES = ("adventure", "kindness", "patience")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the obstacle, the reason and the place."""
    if not cast.find_place():
        return False
    obstacles = [obstacle for obstacle in OBSTACLES
                 if obstacle.ways(cast.thing) and obstacle.stops(cast.kind) and obstacle.weather in ("", cast.weather)
                 and cast.allows(obstacle.name, *obstacle.met, *obstacle.ways(cast.thing))]
    reasons = [reason for reason in REASONS if cast.allows(*reason) and (reason[1] != "an illness" or cast.mood == "sad")]
    if not obstacles or not reasons:
        return False
    cast.picked = {"obstacle": cast.rng.choice(obstacles), "reason": cast.rng.choice(reasons)}
    return True


REASONS = (
    ("it was {o.name}'s birthday, the first for which anybody had asked {o.him} what {o.he} would like", "a birthday"),
    ("{o.name} was ill in bed and had asked for it in a very shaky hand", "an illness"),
    ("{h} had promised it to {o.name} in the spring, and a promise does not get lighter by being carried about", "a promise"),
    ("{o.name} had once done {h.him} a great kindness, and it had been on {h.his} mind ever since", "a kindness"),
    ("{o.name} was to be married on Sunday and had nothing old, nothing new and nothing borrowed", "a wedding"),
    ("it had belonged to {o.name} all along, and {h} had found out only now", "a thing that was not {h.his}"),
    ("{o.name} had written that {o.he} had everything {o.he} needed but that", "a letter"),
    ("it was {o.name}'s first night in a new house, and nobody should spend that alone", "a new house"),
)

TASK = (
    "{h.he} wanted to bring {x.a} to {o.a} named {o.name}, who lived {p.at}, because {reason}.",
    "One thing {h} wanted to do that week, and that was to bring {x.a} to {o.name}, {o.a} who lived {p.at}. There was a reason: {reason}.",
    "There was {o.a} named {o.name} who lived {p.at}. To {o.him} {h} wanted to bring {x.a}, for {reason}.",
    "{h} wanted to bring {o.name} {x.a}. {o.name} was {o.a} and lived {p.at}. The reason was that {reason}.",
)

HASTE = (
    "It had to be there before dark.",
    "It was a day's walk, if one did not stop to look at things.",
    "\"I shall be back for supper,\" {h.he} told the stove.",
    "{h.he} had wrapped it up, and unwrapped it once to see whether it was still as good.",
    "{h.he} practised on the way what {h.he} would say. It got longer at every bend.",
    "The neighbours said that it could wait. {h} said that this was what they had said about the roof.",
)

LEFT = (
    "So {day} {h.he} took {x.the} and set out for {p.the}.",
    "{day} {h} left, with {x.the} {h.grip}, on the road to {p.the}.",
    "And {day} {h} shut the door behind {h.him} and carried {x.the} down the road to {p.the}.",
    "{h} set out for {p.the} {day}, and carried {x.the} as one carries a full bowl.",
)

WAVER = (
    "For a moment {h} thought of turning back. But {o.name} would be looking out of the window.",
    "\"Well,\" said {h} to {x.the}, \"you will have to help.\"",
    "{h.he} thought it over, which took as long as it takes to eat a cold potato.",
    "Another would have gone home. {h} thought about being another, and decided against it.",
    "It would have been a good moment for somebody to come along. Nobody did.",
)

ARRIVED = (
    "It was late when {h} came to {p.the}. {h.he} knocked, and brushed off the worst of the road.",
    "So {h.he} came to {p.the}, tired, with {x.the} safe and sound.",
    "There was still some light in the sky when {h} saw {p.the}. The last bit {h.he} ran.",
    "At last {p.the} lay before {h.him}, and {h} held {x.the} up a little, as if it ought to see.",
)

HAPPY = (
    "{o.name} opened the door and looked first at {x.the} and then at {h}, and could not say which {o.he} was gladder to see. \"You came all that way,\" {o.he} said. \"It was mostly downhill,\" said {h}, which was not true. {h.he} gave {o.him} {x.the}, and they sat up talking until the candles were used up.",
    "\"I had given you up,\" said {o.name}, \"and put your plate away.\" {h} held out {x.the}. {o.name} took it, turned away for a moment to find something in a cupboard, and came back with the plate and very red eyes.",
    "{h} had forgotten the whole speech. {h.he} just held out {x.the}. {o.name} took it and said that it was the best speech {o.he} had ever heard.",
    "{o.name} took {x.the} as if it were asleep and put it in the best place in the room. {h} was put in the second best, which was by the stove, and given soup.",
    "The door was open before {h} could knock. \"I heard you three fields away,\" said {o.name}. \"You were practising a speech.\" {h} gave {o.him} {x.the} and the speech, both a little the worse for the journey, and {o.name} knows the speech by heart to this day.",
    "{o.name} looked at {x.the} for so long that {h} was afraid it might be the wrong one. Then {o.he} began to smile, slowly, like a light that is being carried through a house. \"How did you know?\" {o.he} asked. {h} had not known. {h.he} had only hoped, all the way.",
)

FUNNY = (
    "{o.name} opened the door. Behind {o.him}, on a long shelf, stood eleven {x.plural}. Everybody had had the same idea. \"Oh,\" said {o.name}, \"how did you know?\" and {h} gave {o.him} the twelfth.",
    "Somebody else opened. {o.name} lived next door. Next door somebody else opened too, and by the time {h} had found the right house, {x.the} had been admired in five kitchens and {h.he} had eaten five suppers. {o.name} got {x.the} and had to help {h.him} to a chair.",
    "{o.name} took {x.the}, thanked {h.him} and gave {h.him} a parcel. \"I was just going to bring you this,\" {o.he} said. In the parcel there was another {x.noun}. They looked at each other for some time.",
    "{o.name} thanked {h.him} from the heart, took {x.the} and used it at once to prop the door open. That, it turned out, was what {o.he} had needed. The door had been banging since May.",
    "\"For me?\" said {o.name}. \"How kind. But it is tomorrow.\" {h} had come a day early. {h.he} slept on the bench, and in the morning {h.he} went out, shut the door, knocked, and gave {o.name} {x.the} all over again. {o.name} was just as surprised.",
    "A small nephew took {x.the} at the door, said thank you and shut it. {h} stood outside. \"Was there nobody with it?\" said a voice within, and {o.name} opened the door again and pulled {h.him} in by the collar.",
)

SAD = (
    "The windows were dark. {o.name} had left that morning, said the woman next door, and would not be back; there had been nobody to stay for. {h} put {x.the} down on the doorstep all the same, in the dry, and wrote on a leaf who it was from.",
    "<ill in bed>{o.name} was sitting up in bed and did not know {h.him} any more. {h} gave {o.him} {x.the}. {o.name} held it and smiled at it. \"I used to have a friend,\" {o.he} said, \"who would have liked this.\" \"Yes,\" said {h}.",
    "\"Put it down there,\" said {o.name} without turning round. {h} waited for a time. Then {h.he} put {x.the} on the table, among some other things, and closed the door from outside.",
    "{h} had come too late; one could see it from the faces in the lane. {h.he} gave {x.the} to {o.name}'s small niece, who had been crying, and told her whose it should have been.",
    "<ill in bed>{o.name} was glad, one could see that. {o.he} laid {x.the} on the bed and fell asleep with one {o.hand} on it. {h} sat there until morning. Towards five the {o.hand} grew heavy. Nobody had told {h} that it would be so quiet.",
    "The house had been sold. Strangers with kind faces stood in the door and knew nothing of {o.name}. {h} asked whether {h.he} might leave {x.the} there. They put it where it would have the sun. For all I know it is there still.",
)

GOODBYE = {
    "happy": ("{h} had wanted to bring {x.the}, and {h.he} had brought it. Going home {h.he} carried nothing, and noticed it at every step.",
              "It was a long way home without {x.the}. But {h.his} {h.hands} were warm the whole time.",
              "When {h} left, {o.name} stood at the gate and waved until it was foolish, and then a little longer.",
              "Since then they visit each other in turn, and neither ever comes without something under one {h.arm}."),
    "funny": ("{h} had wanted to bring {x.the}, and {h.he} had brought it. Nobody had said that it had to be needed.",
              "They laughed about it until the neighbours knocked on the wall, and then asked the neighbours in.",
              "{h} told nobody about it at home. But {h.he} was heard laughing in the bath.",
              "\"Next year,\" said {o.name} at the gate, \"just bring yourself.\" {h} brought {h.himself}, and a cheese."),
    "sad": ("{h} had wanted to bring {x.the}, and {h.he} had brought it. That was all one could say, and {h} said it to {h.himself} at every milestone.",
            "{h.he} walked home in the dark. It is strange how heavy one's {h.hands} can be when there is nothing in them.",
            "On the way back {h} did not practise any speech.",
            "The road home was the same road. It only seemed to go somewhere else."),
}


def tell(s):
    """Tells it."""
    obstacle, (reason, _) = s.picked["obstacle"], s.picked["reason"]
    opening(s)
    s.say(*[text.replace("{reason}", reason) for text in TASK])
    s.state.take("h", "x")
    s.about(probability=0.7, by_name=True)
    s.maybe(0.4, *HASTE)
    s.break_()
    s.say(*LEFT)
    s.sign(0.5)
    s.say(*obstacle.met)
    s.maybe(0.6, *WAVER)
    s.state.needs("h", "x")
    s.say(*obstacle.ways(s.x.thing))
    s.break_()
    s.state.go("h", s.p.place.noun)
    s.say(*ARRIVED)
    s.sight(0.5)
    s.state.give("h", "o", "x")
    s.turn()
    s.say(*{"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood])
    s.night(0.25)
    s.close(*GOODBYE[s.mood])
    s.echo(0.5)
    ending = {"happy": "{h} brought {o.name} {x.the} in time, and they sat and talked", "funny": "{h} did bring {o.name} {x.the}, though it was not quite what anybody had expected",
              "sad": "{h} brought {x.the}, but it was too late to give {o.name} any joy"}[s.mood]
    moral = {"happy": "A gift is as long as the way one has carried it.", "funny": "It is the coming that counts.", "sad": "Bring today what you mean to bring."}[s.mood]
    s.fact(want="to bring {x.the} to {o.name}", why=reason, obstacle=obstacle.name, object="{x.a}", where="{h.name} went to {p.the}",
           other="{o.name} was {o.a} who lived {p.at}", helper="nobody did; {h.he} managed with the help of {x.the}",
           solved="{h.he} got past it with the help of {x.the}", ending=ending, holder="it was left with {o.name}" if not s.sad else "it was left there for {o.name}",
           moral=moral, title="[{h.name}'s Errand|The {x.noun} for {o.name}]")
    s.ask(["Who was {x.the} for?", "For whom was {x.the}?", "To whom did {h.name} bring {x.the}?"], "It was for {o.name} the {o.kind}.")
    s.ask(["Where did {o.name} live?", "Where did {h.name} have to go?", "Where did the {h.kind} go?"], "{o.name} lived {p.at}.")
    s.ask(["What did {h.name} carry?", "What did {h.name} bring?"], "{h.he} brought {x.a}.")

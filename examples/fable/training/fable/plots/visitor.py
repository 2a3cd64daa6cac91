"""Visitor: a stranger knocks on a bad night. What is given comes back, or does not."""

from ..beats import opening
from ..things import BIG

NAME = "visitor"
THEMES = ("kindness", "hospitality", "winter")
ROLES = ("h", "o", "x")
ROUGH = ("rain", "snow", "wind", "fog", "frost")


def suits(cast):
    """Whether the plot can be told with this cast: the night has to be a bad one, and no place is asked for."""
    if cast.place is not None or cast.thing.noun in BIG:
        return False
    if cast.weather not in ROUGH:
        if cast.weather_asked:
            return False
        cast.weather = cast.rng.choice(ROUGH)
    return True


NIGHT = {
    "rain": ("That night the rain came down so hard that the gutters gave up.", "It was one of those nights when the rain seems to be looking for somebody."),
    "snow": ("That night it snowed so thickly that the road forgot where it was going.", "It had snowed all day, and by night the door opened only half way."),
    "wind": ("That night the wind was out, and whatever was not nailed down was out with it.", "It was a night on which the wind tried every chimney like a flute."),
    "fog": ("That night the fog was so thick that the dark could not get in.", "It was a night of such fog that people stayed where they were, and some had to stay for supper."),
    "frost": ("That night it was so cold that the buckets burst.", "It was so cold that night that the words froze at people's mouths and had to be thawed by the stove."),
}

WANTED = {
    "company": ("What {h} wanted most was somebody to talk to.", "{h} wanted company, though {h.he} would not have said so.", "There was nothing that {h} wanted so much as somebody at the other side of the table."),
    "peace": ("All {h} wanted was to be left in peace.", "{h} wanted peace and quiet, and had just got them nicely arranged.", "{h} wanted one thing only, and that was a quiet evening."),
}

WHY = {"company": "{h.he} had eaten alone for longer than was good for {h.him}", "peace": "it had been a long week and everybody had wanted something from {h.him}"}

KNOCK = (
    "Then somebody knocked. Outside stood {o.a} with water running from both elbows, and under one {o.arm} {x.a}.",
    "There was a knock, so soft that it might have been a mistake. On the step stood {o.a}, shivering, with {x.a} held close.",
    "Late in the evening there was a bump against the door, and then a \"sorry\". It was {o.a}, carrying {x.a} and not much else.",
    "At ten o'clock somebody knocked. It was {o.a}, half frozen, who had nothing in the world, it seemed, but {x.a}.",
)

KNOCK_DRY = KNOCK[1:]


NAMED = (
    "\"I am {o.name},\" said the stranger. \"I saw your light. I shall take up very little room.\"",
    "\"My name is {o.name},\" said the stranger, \"and I have been to eleven doors. Yours is the twelfth. After that comes the river.\"",
    "\"{o.name},\" said the stranger, and bowed, and something fell out of one ear. \"I only want to stand behind your door for a little.\"",
)

LET_IN = (
    "{h} had soup for one. {h.he} put in water and a carrot, and it was soup for two.",
    "There was one bed in the house. {h} gave it up and slept in the chair, with the cushion, which was something.",
    "{h} put another log on the fire, the one that {h.he} had been saving for Sunday.",
    "{h} moved aside without a word. Then {h.he} said, \"Mind the step.\" It was how {h.he} said welcome.",
)

EVENING = (
    "They talked until the fire was down to its last red thought.",
    "{o.name} told of a town where all the clocks are kept in one house, so that the rest can have some peace.",
    "{o.name} knew how to peel an apple in one single ribbon, and then how to tell the future from it. The future was soup.",
    "They found out that they hated the same vegetable.",
    "Neither said much. It was the good kind of silence, the kind with a fire in it.",
)

HAPPY = (
    "<twelfth>In the morning {o.name} was gone, and the bed was made. On the table stood {x.the}. Beside it lay a note: \"For the twelfth door.\" {h} ran out on the road and called until {o.name} turned round. \"Come back,\" cried {h}, \"there is soup left!\" And {o.name} came back, and stayed.",
    "When {h} woke, {o.name} had swept the floor, mended the latch and set {x.the} on the windowsill. \"I should like to pay,\" {o.name} said, and gave {h.him} {x.the}. \"You have,\" said {h}, \"but stay until the weather changes.\" It is three years now, and they both say that the weather has not really changed.",
    "{o.name} left {x.the} behind as thanks, and went. But on the first bad night of the next winter there was a knock, soft as a mistake. {h} already had the soup on the table, for two. And so it has been each winter since.",
    "In the night {h} heard somebody crying, very softly, so as not to be a nuisance, and got up and made more soup. By morning {o.name} had told {h.him} everything. \"I cannot pay you,\" {o.name} said, \"but take this,\" and gave {h.him} {x.the}. {h} put it where both of them could see it. \"You will have to stay,\" {h.he} said, \"to show me how it likes to be treated.\"",
)

FUNNY = (
    "In the morning {o.name} asked what was for breakfast, and after breakfast what was for lunch. On the fourth day {h} said carefully that {o.he} must be missed at home. \"This is number twelve?\" asked {o.name}. It was number ten. At number twelve an old aunt had been waiting with a goose since Monday. {o.name} left {x.the} by way of apology, and they all ate the goose together.",
    "\"Stay as long as you like,\" said {h}, out of politeness. That was a mistake. {o.name} stayed until May. {o.he} used up the jam and sang in the bath. Then {o.he} went, and left {h.him} {x.the} in thanks, and the house was quiet. {h} sat in it for an hour. Then {h.he} went out to see how far {o.he} had got.",
    "In the night {h} was woken by a noise. {o.name} was trying to carry the stove out of the door. \"I walk in my sleep,\" {o.he} said. \"With my stove?\" \"I walk a long way, and I feel the cold.\" They had cocoa. {o.name} gave {h.him} {x.the} for the fright, and {h} tied {o.his} {o.hand} to the bedpost, loosely, as one does with a friend.",
    "It turned out that {o.name} had come about the chimney. {o.he} had been ordered for the spring, had lost the way, and would now like to begin. It was midnight. By one o'clock there was soot on everything, the soup included. {o.name} left {x.the} behind in the confusion, and {h} has not dared to write about it, because {o.he} might come and fetch it.",
)

SAD = (
    "In the morning the door stood open, and {o.name} was gone. {x.the} lay on the pillow. {h} kept it dusted. {h.he} makes soup for two when the weather is bad, with a carrot, and puts a light in the window. But there has not been a knock again.",
    "{o.name} was ill, and the warmth had come too late. For nine days {h} made soup and told {o.him} about the summer. On the tenth {o.name} put {x.the} into {h.his} {h.hands}. \"I never had a house to leave to anybody,\" {o.he} said, \"so it must be this.\" Then it was quiet.",
    "\"You could stay,\" said {h} in the morning. {h.he} had practised it all night in the chair. But {o.name} had somewhere to be, or somewhere not to be. {o.he} pressed {x.the} into {h.his} {h.hands} and went off down the road, and at the bend did not turn round.",
    "{o.name} stayed for a week, and it was the best week that {h} had ever had. On the eighth day there were riders in the lane, asking for somebody. {o.name} put down the spoon, gave {h.him} {x.the} across the table and went out to them. The soup was still warm when the dust had settled.",
)

AFTER = {
    "happy": ("So the house at the end of the road has two chairs now.", "<carrot>A carrot is a small thing. But one has to begin somewhere.", "The door is not locked any more at night. There would be no sense in it.",
              "\"Who was it that knocked?\" they ask each other sometimes, for fun. \"You did.\" \"No, you opened.\""),
    "funny": ("<number ten>There is now a very large ten on the door.", "{h} still opens to everybody. But {h.he} hides the good spoons first.", "As for peace and quiet, there was some, now and then, between the laughing.",
              "{x.the} stands on the shelf and is said to snore."),
    "sad": ("{x.the} is on the windowsill, where one can see it from the road.", "One night is not long. But some people have never had one.", "{h} leaves the gate open, and says that it is the hinge.",
            "It is only a thing, people tell {h.him}. {h} says that this is so, and goes on holding it."),
}


def tell(s):
    """Tells it."""
    want = s.rng.choice(("company", "peace")) if s.funny else "company"
    opening(s)
    s.went_out = False
    s.say(*WANTED[want])
    s.break_()
    s.weather_shown = True
    s.say(*NIGHT[s.weather.noun])
    s.state.take("o", "x")
    s.say(*(KNOCK if s.weather.noun == "rain" else KNOCK_DRY))
    s.about(probability=0.5)
    s.say(*NAMED)
    s.also(*LET_IN)
    s.maybe(0.4, *LET_IN)
    s.maybe(0.65, *EVENING)
    s.break_()
    s.state.give("o", "h", "x")
    s.turn()
    s.say(*{"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood])
    s.close(*AFTER[s.mood])
    s.echo(0.6)
    ending = {"happy": "{o.name} gave {h.name} {x.the}, and {h} was not alone any more", "funny": "{o.name} caused a good deal of trouble, and left {h.name} {x.the}",
              "sad": "{h} was alone again, with only {x.the} to remember {o.name} by"}[s.mood]
    wanted = {"company": "to have company", "peace": "to be left in peace"}[want]
    s.fact(want=wanted, why=WHY[want], obstacle="it was a bad night and a stranger had nowhere to go", object="{x.a}", where="it happened in the {h.house} of {h.name}",
           other="{o.name} was {o.a}, a stranger who knocked at night", helper="{h.name} was the one who helped: {h.he} let {o.name} in", solved="{h.he} let the stranger in",
           ending=ending, holder="{h.name} had {x.the}", moral={"happy": "Open the door.", "funny": "Look at the number before you knock.", "sad": "Some people come only once."}[s.mood],
           title="[A Knock at Night|The Stranger with the {x.noun}]")
    s.ask(["Who knocked at the door?", "Who came?", "Who was the stranger?"], "It was {o.a} named {o.name}.")
    s.ask(["What did the stranger carry?", "What did {o.name} leave behind?", "What did {o.name} bring?"], "It was {x.a}.")
    s.ask(["Why did {o.name} knock?", "Why did the stranger come?"], "Because it was a bad night and {o.name} had nowhere to go.")

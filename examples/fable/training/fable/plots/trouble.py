"""Trouble: something is wrong in a place and nobody knows why. Somebody goes at night to see, and it is somebody."""

from ..beats import opening, owning
from ..needs import NEEDS
from .trade import told

NAME = "trouble"
THEMES = ("courage", "kindness", "mystery")
ROLES = ("h", "o", "x", "p")


def suits(cast):
    """Whether the plot can be told with this cast; decides on the trouble, the need behind it and the place."""
    if cast.thing.group in ("open", "time") or not cast.find_place():
        return False
    needs = [need for need in NEEDS[cast.thing.group] if cast.allows(need.plea, need.because, need.result)]
    troubles = [trouble for trouble in TROUBLES if cast.allows(*trouble)]
    if not needs or not troubles:
        return False
    cast.picked = {"need": cast.rng.choice(needs), "trouble": cast.rng.choice(troubles)}
    return True


TROUBLES = (
    ("Every night, at the same hour, somebody sighed {p.at}. It was a very large sigh, and the neighbourhood lay awake and waited for it.", "who sighed there", "somebody sighed {p.at} every night", "sighing"),
    ("Things had begun to go missing {p.at}: first a spoon, then a sock, then half a sausage.", "who was taking the things", "things went missing {p.at}", "taking the things"),
    ("Somebody had been knocking on the shutters {p.at}, three knocks every midnight, and when one opened there was nobody.", "who knocked there", "somebody knocked on the shutters {p.at} at midnight", "knocking"),
    ("In the mornings there were wet footprints {p.at}. They went in, and none of them came out.", "whose footprints they were", "there were strange footprints {p.at} every morning", "leaving the footprints"),
    ("Something groaned {p.at} after dark, and the dogs for miles around went under the beds.", "what it was that groaned", "something groaned {p.at} after dark", "groaning"),
    ("Since the new moon somebody had been weeping {p.at} at night. The milk had turned from listening to it.", "who was weeping", "somebody wept {p.at} at night", "weeping"),
    ("Every morning {p.at} all the stones lay in other places than the day before, in a long, sad row.", "who moved the stones", "somebody moved all the stones {p.at} at night", "moving the stones"),
    ("All the washing that was left out {p.at} overnight hung in the wrong order in the morning, the socks of one house beside the shirts of another.", "who did it", "somebody mixed up the washing {p.at} at night", "mixing up the washing"),
    ("There was smoke {p.at} every night, one thin thread of it, and nobody lived there.", "who had lit a fire there", "there was smoke {p.at} at night, though nobody lived there", "making the smoke"),
    ("Somebody was singing {p.at} at night, so badly that the owls had moved away.", "who was singing", "somebody sang very badly {p.at} at night", "singing"),
    ("All the washing that was left out {p.at} overnight hung in the wrong order in the morning, the socks of one house beside the shirts of another.", "who did it", "somebody mixed up the washing {p.at} at night", "mixing up the washing"),
    ("There was smoke {p.at} every night, one thin thread of it, and nobody lived there.", "who had lit a fire there", "there was smoke {p.at} at night, though nobody lived there", "making the smoke"),
    ("Somebody was singing {p.at} at night, so badly that even the frogs had moved away.", "who was singing", "somebody sang very badly {p.at} at night", "singing"),
    ("People who went to {p.the} after dark came back white and said that somebody there had called them by the wrong name.", "who called out there", "somebody {p.at} called people by the wrong name after dark", "calling out"),
)

RUMOUR = (
    "Some said that it was a monster, and some that it was the drains.",
    "A committee was formed, and met in daylight.",
    "Nobody went near {p.the} any more, and the grass grew over the path.",
    "The mayor offered a reward of three cheeses, and then, when nobody came, of four.",
    "Old people said that it had been so once before, and then could not remember how that had ended.",
)

WANTED = (
    "{h} wanted to know {what}.",
    "Everybody else wanted it to stop. {h} wanted to know {what}.",
    "{h} could not sleep for wondering. {h.he} wanted to find out {what}.",
    "\"Somebody ought to go and see,\" people said, and looked at {h}, who had wanted to find out {what} from the start.",
)

WENT = (
    "So {day}, as soon as it was dark, {h} took {x.the} and {h.went} to {p.the}, more and more slowly.",
    "So {day}, when it was dark, {h} took {x.the} and went to {p.the}. {h.he} did not hurry.",
    "So when it had grown dark {h} went to {p.the}, with {x.the} under one {h.arm}, for courage.",
    "That same night {h} crept to {p.the}. {h.he} had taken {x.the} along, because one should not go empty-handed, not even to a monster.",
    "{h} waited until dark, said goodbye to the stove, just in case, and went to {p.the} with {x.the}.",
)

DARK = (
    "{h.his} heart beat so loudly that {h.he} turned round twice to see who it was.",
    "Something rustled. It was {h.his} own ear against {h.his} collar.",
    "For a long time there was nothing but the dark, breathing.",
    "An owl said something that sounded like a warning, or like a recipe." ,
    "{h} counted to ten, and then back again, since nothing had happened.",
)

FOUND = (
    "And there, in the furthest corner, sat no monster at all but {o.a}, quite small with misery. \"Oh dear,\" said the {o.kind}. \"Did you hear me? My name is {o.name}. {plea}.\"",
    "Then {h} saw it. It was {o.a}. \"Are you the monster?\" asked {h}. \"I think I must be,\" said {o.he_obj}, \"but my name is {o.name}. {plea}.\"",
    "\"Who is there?\" called {h}, and {h.his} voice shook. \"{o.name},\" said another voice, which shook even more, and out of the dark came {o.a}. \"I did not mean to frighten anyone. It is only this. {plea}.\"",
)

HAPPY = (
    "\"Is that all?\" said {h}, and gave {o.him} {x.the}. And {result}. The next night {p.the} was quiet, and {h} went there again anyway, to visit.",
    "{h} held out {x.the}. \"Would this help?\" {h.he} asked. {o.name} could only nod. {h} gave it to {o.him}, and {result}. From then on people went to {p.the} after dark on purpose, for the company.",
    "{h} gave {o.him} {x.the} and stayed until morning. So it was that {result}. When the village heard of it everybody was a little ashamed, and brought soup, and socks, and a second spoon.",
    "{h} did not know what to say, and so {h.he} gave {o.him} {x.the}. And {result}. \"Will you come again?\" asked {o.name}. \"Tomorrow,\" said {h}. On the third evening {h.he} brought the neighbours along, and on the fourth it was the neighbours who brought {h.him}.",
)

FUNNY = (
    "<committee>{h} gave {o.him} {x.the}, and {result}. \"I had come here,\" said {o.name} then, \"because I was told that it was quiet. But every night somebody stands outside and whispers that there is a monster.\" They went out together and said boo to the committee.",
    "<drains>\"And I was afraid of you!\" said {h}. \"And I of you,\" said {o.name}, \"you breathe like a bull.\" {h} gave {o.him} {x.the}. And {result}. {h} went home and told everybody that it had been the drains, which was what the drains had feared all along.",
    "\"And I was afraid of you!\" said {h}. \"And I of you,\" said {o.name}, \"you breathe like a bull.\" {h} gave {o.him} {x.the}. And {result}. After that they went round the village together, to show people what there was to be afraid of.",
    "{h} gave {o.him} {x.the}, and {result}. Only, now that {p.the} was still, the whole village lay awake because of the silence. In the end they had to ask {o.name} to go back to it, on weekdays, softly.",
    "\"Nobody told me that it could be heard outside,\" said {o.name}, and blushed. {h} gave {o.him} {x.the}, and {result}. By way of thanks {o.name} offered to frighten somebody for {h.him}, anybody {h.he} liked. {h} thought of an aunt, and then thought better of it.",
)

SAD = (
    "{h} gave {o.him} {x.the} at once, and {result}. In the morning {h.he} came back with bread. But the men with sticks had been there before {h.him}, and there was nobody {p.at}, only {x.the}, laid neatly on a stone.",
    "{h} gave {o.him} {x.the}. \"Thank you,\" said {o.name}, \"now I can go.\" And when day came {o.he} was gone, and {p.the} was quiet. {h} had found out what {h.he} wanted to know. {h.he} often wished that {h.he} could hear it again.",
    "\"You could have come sooner,\" said {o.name}, not as a reproach. {h} gave {o.him} {x.the}, and {result}. But it had been a long, cold time, and {o.name} did not get well again. It is quiet {p.at} now.",
    "{h} gave {o.him} {x.the} and promised to come back. But there was a fever at home, and then there was the harvest, and it was a long time before {h.he} stood {p.at} again. {x.the} was there, dusted, in a corner. Of {o.name} there was no trace.",
)

AFTER = {
    "happy": ("So {h} knew now, and it had not been a monster but a neighbour.", "It is surprising how often a monster turns out to be somebody whom nobody has asked.",
              "<cheeses>{h} got the cheeses and cut them in half.", "When people ask {h} who it was {p.at}, {h.he} says, \"My friend {o.name}.\""),
    "funny": ("<committee>The committee still meets, in daylight, and takes the credit.", "<cheeses>{h} got the four cheeses. Three of them went missing the same night, but that is another story.",
              "Since then the word for monster, in that village, is {o.name}.", "{h} knew now who it had been, and told everybody, and nobody believed it, and everybody slept well."),
    "sad": ("{h} goes there still, after dark, and sits for a while.", "{h} was the only one who had found out, and the only one who had to know it.",
            "<cheeses>The mayor sent the cheeses. {h} did not eat them.", "When the dogs are quiet at night, {h} lies awake."),
}


def tell(s):
    """Tells it."""
    need, (told_of, what, problem, doing) = s.picked["need"], s.picked["trouble"]
    plea, result = told(s, need.plea, "o", "x"), told(s, need.result, "o", "x")
    opening(s)
    if s.chance(0.5):
        owning(s, origin=0.3)
        s.break_()
        s.say(told_of)
        known = True
    else:
        s.break_()
        s.say(told_of)
        known = False
    s.maybe(0.6, *RUMOUR)
    s.say(*[text.replace("{what}", what) for text in WANTED])
    if not known:
        s.state.take("h", "x")
    went = [text if known else text.replace("{x.the}", "{x.a}", 1) for text in WENT]
    s.say(*went)
    s.state.go("h", s.p.place.noun)
    if not known:
        s.about(probability=0.4)
    s.sight(0.3)
    s.maybe(0.7, *DARK)
    s.break_()
    s.say(*[text.replace("{plea}", plea).replace("{o.he_obj}", "the {o.kind}") for text in FOUND])
    s.state.give("h", "o", "x")
    s.say(*[text.replace("{result}", result) for text in {"happy": HAPPY, "funny": FUNNY, "sad": SAD}[s.mood]])
    s.close(*AFTER[s.mood])
    s.echo(0.55)
    ending = {"happy": "{h} gave {o.name} {x.the}, and {p.the} was quiet again", "funny": "{h} gave {o.name} {x.the}, and it turned out that everybody had been afraid of everybody",
              "sad": "{h} gave {o.name} {x.the}, but afterwards {o.name} was there no more"}[s.mood]
    s.fact(want="to find out " + what, why="everybody talked about it and nobody dared to look", obstacle=problem, object="{x.a}",
           where="it happened {p.at}", other="{o.name} was {o.a} who lived there and needed help", helper="{h.name} was the one who helped; {o.name} needed {x.the}",
           solved="{h.he} went there at night and gave {o.name} {x.the}", ending=ending, holder="{o.name} had {x.the}",
           moral="Most monsters are only lonely." if not s.sad else "Go and look before it is too late.", title="[The Monster {p.at}|What Was Wrong {p.at}|{h.name} Goes to Look]")
    s.ask(["Who was it?", "Who was it in the end?", "Was it a monster?", "Who was " + doing + "?"], "It was {o.name} the {o.kind}.")
    s.ask(["Why did {o.name} do it?", "What did {o.name} need?", "Why was {o.name} so unhappy?"], "Because " + told(s, need.because, "o", "x") + ".")
    s.ask(["What did {h.name} take along?", "What did {h.name} give {o.name}?"], "{h.he} took {x.a} and gave it to {o.name}.")
    s.ask(["Where did it happen?", "Where did {h.name} go?"], "{h.he} went to {p.the}.")

"""What stands in the way, and what gets one past it.

An obstacle has a name (a clause, for questions), sentences in which it is met, and a way past it for each class of
things that helps, or for single things ("kite, balloon"), or for a class without some ("warm - hat"). `{h}` meets it
and has `{x}`. `easy_for` says whom it does not stop: water is nothing to an otter and a cliff nothing to a crow.
`weather` is the only weather in which it is met, if there is one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """Something in the way."""

    name: str
    met: tuple
    past: dict
    easy_for: frozenset = frozenset()
    weather: str = ""

    def ways(self, thing):
        """The ways past it with a thing; none where it does not help."""
        ways = []
        for key, sentences in self.past.items():
            names, _, without = (part.strip() for part in key.partition("-"))
            if {thing.noun, thing.group} & set(names.split(", ")) and thing.noun not in without.split(", "):
                ways.extend(sentences)
        return ways

    def stops(self, kind):
        """Whether it is in this kind's way."""
        return not self.easy_for & kind.tags


OBSTACLES = [
    Obstacle("the path went under the black firs, where it was too dark to see",
             ("Before long the path went in under the black firs, where [it was dark even at noon|no light had been for years]. {h} could not see {h.his} own {h.hands}.",
              "Then came the black firs. Under them it was so dark that {h} [walked into the first tree and apologised to it|could hear the path but not see it]."),
             {"light": ("{h} held up {x.the}, and the firs [stepped back|drew in their elbows]. In that small circle of light there was just enough path for one.",
                        "So {h} lit {x.the}. The dark went back a few steps and waited there, and {h} walked past it."),
              "sound": ("{h} made a noise with {x.the} and listened for what came back: where the sound came back quickly there was a tree, and where it did not there was the path.",),
              "guide": ("{h} felt for {x.the} and let it say where to go, and went there, step by step, with both eyes shut, since open ones were no use.",)}),
    Obstacle("the river had carried off the footbridge",
             ("But the river had risen in the night and carried off the footbridge. There was only a post left, and a good deal of brown water.",
              "At the river there was no footbridge any more. It had gone to the sea the week before, [a man said|said a notice], and had not left word."),
             {"rope": ("{h} made fast {x.the} between the post and an alder and went over above the water, not looking down, and then looking down.",
                       "With {x.the}, a good deal of patience and one wet foot, {h} got across."),
              "ladder": ("{h} laid {x.the} from the bank to a stone and from the stone to the other bank, and went over on it, rung by rung, with {h.his} eyes shut.",),
              "oar": ("There was a raft of sorts in the reeds, three planks and an opinion. {h} pushed off with {x.the}, and after one bad moment in the middle there was grass again under {h.his} feet.",),
              "basket": ("{h} set {x.the} on the water, got in, pulled up {h.his} feet and let {h.himself} be carried over, turning slowly, like a duckling in a soup dish.",),
              "shelter": ("{h} opened {x.the}, turned it upside down, got in and crossed the river in it, turning slowly. {h.he} said later that it had been quite comfortable.",),
              "mirror, coin, ring, crown, sword": ("On the far side stood somebody with a raft, looking the other way. {h} held up {x.the} until it flashed, and [the raft came over to ask what it was|the raft came across].",)},
             frozenset({"flies", "swims"})),
    Obstacle("a dog guarded the gate",
             ("In the gateway lay a dog the size of a sofa. It opened one eye at {h}, then the other, and then its mouth.",
              "There was only one gate, and in the gate there was a dog, and in the dog there was a growl that went on and on."),
             {"food": ("{h} looked at {x.the} and at the dog, and broke off a good third for it. After that the dog wanted to come along.",),
              "music": ("{h} began to play {x.the}, very softly. The growl turned into a hum, the hum into a snore, and {h} went by on tiptoe.",),
              "play": ("{h} showed the dog {x.the}. Nobody had played with that dog for years. An hour later it opened the gate itself.",),
              "warm": ("{h} saw that the dog was shaking, and not with rage. {h.he} laid {x.the} over it, and waited, and took it back when the dog was warm. The dog moved over.",),
              "vessel": ("{h} saw that the dog's dish was dry. {h.he} went back to the ditch, filled {x.the} and poured, and the dog drank and drank, and forgot what it had been about to say.",)}),
    Obstacle("a landslip had left a wall of stones across the road",
             ("Round the next bend the road was gone. The slope had let go of a wall of stones and sat there behind it, looking innocent.",
              "Half way there, a wall of stones lay across the road, as high as a house. The slope had put it there in the spring and nobody had asked it to take it away."),
             {"reach": ("With {x.the} {h} got up one side and down the other, and waved from the top to nobody in particular.",),
              "spade, hammer": ("{h} looked at the stones, then at {x.the}, and began. By noon there was a hole, and by teatime the hole was exactly as big as {h}.",),
              "sled, wheelbarrow": ("{h} dragged {x.the} up one side, sat on it, and came down the other faster than {h.he} had intended.",)},
             frozenset({"flies"})),
    Obstacle("fog had swallowed the road",
             ("The fog grew thicker until the road was gone, and then the hedges, and then {h.his} own feet.",
              "Soon there was nothing left but fog. {h} put out one {h.hand} and could not see the end of it."),
             {"light": ("{h} lit {x.the}. The fog turned to gold all round, and under it, faintly, lay the road.",),
              "sound": ("{h} gave three long calls on {x.the}. Somewhere to the left a cow answered, and where there is a cow there is a road.",),
              "guide": ("{h} asked {x.the} and did what it said, one step and then another, until the road came up under {h.his} feet again.",),
              "music": ("{h} played {x.the} as {h.he} went, and somebody in a house nobody could see opened a window to listen. {h} walked towards the window.",)},
             weather="fog"),
    Obstacle("the snow had covered the road",
             ("By then the snow had covered the road and the fields alike, and it went on falling with great patience.",
              "The snow came up to the gateposts, and then there were no gateposts, only snow."),
             {"warm - hat": ("{h} wrapped {x.the} round {h.his} ears and went on. It is hard to turn back when one is warm.",),
              "spade, broom": ("{h} cleared a path with {x.the}, ten steps long, and when {h.he} had used it up {h.he} cleared another.",),
              "sled": ("{h} remembered {x.the}, and from there on the snow was no trouble at all, it was a road.",),
              "light": ("{h} lit {x.the} and held it low, and in its light the old cart tracks showed under the snow like the lines in a palm.",)},
             weather="snow"),
    Obstacle("the rain came down too hard to go on",
             ("Then the rain came down as if somebody had pulled out a plug. In a minute every ditch was a brook.",
              "The rain, which had only been practising, now began in earnest."),
             {"shelter": ("{h} put up {x.the}. Under it there was a small dry room with a view, and {h} walked along inside it.",),
              "warm - scarf": ("{h} pulled {x.the} over {h.his} head and went on under it like a small, determined tent.",),
              "bucket, pot": ("{h} put {x.the} on {h.his} head, where it rang like a whole orchestra, and marched on in time.",),
              "carry": ("{h} turned {x.the} upside down, crept under it and went on like a tortoise.",)},
             weather="rain"),
    Obstacle("the wind blew everybody back",
             ("On the ridge the wind put a hand on {h.his} chest and pushed. For every two steps forward there was one back.",
              "The wind was so strong on the ridge that [even the crows were walking|the hedges lay flat and held their breath]."),
             {"warm - hat": ("{h} tied {x.the} fast round {h.his} middle, put {h.his} head down and leaned. The wind leaned too. It got bored first.",),
              "rope": ("{h} threw {x.the} round one fence post after another and pulled {h.himself} along, and so came over the ridge sideways.",),
              "kite, balloon": ("{h} let {x.the} go up, and while the wind was playing with it {h} slipped by underneath and reeled it in on the other side.",),
              "sled, wheelbarrow": ("{h} turned {x.the} on its side and pushed it ahead like a wall, and the wind broke its nose on it.",)},
             weather="wind"),
    Obstacle("the gate was locked",
             ("The way led through a gate, and the gate was locked. On it somebody had written: Closed until further notice. The paint was forty years old.",
              "There was a gate in the wall, green and shut, and no bell, and nobody to ask."),
             {"open": ("{h} tried {x.the}, without much hope. It turned. [The gate was as surprised as {h.he} was.|The gate sighed and let {h.him} through.]",),
              "reach": ("{h} put {x.the} to good use, and a minute later {h.he} was sitting on top of the wall, and a minute after that on the other side of it.",),
              "hammer, spade": ("{h} looked at the hinges, which were nearly all rust, and at {x.the}. It took until the clocks struck, but gates are only as strong as their hinges.",),
              "sound": ("{h} took {x.the} and made such a noise that an old woman put her head over the wall. \"It is not locked,\" she said. \"One has to lift it.\"",)},
             frozenset({"flies"})),
    Obstacle("an old troll wanted a toll",
             ("Under the stone arch lived an old troll who let nobody over without a toll. \"Gold,\" he said, \"or something that I have not seen before.\"",
              "A troll sat by the stone arch with his feet in the water. \"Nobody crosses,\" he said, \"unless I am in a better mood than this.\""),
             {"music": ("{h} sat down beside the troll and played {x.the}. By the second verse there was a tear on the troll's nose, and without a word he waved everybody over.",),
              "words": ("{h} read to the troll out of {x.the}, and stopped at the best place. \"The rest on my way back,\" said {h}. The troll said that he would wait.",),
              "bright": ("{h} let the troll hold {x.the} for as long as it takes to count to a hundred. The troll counted slowly. Then he gave it back, with both hands, and moved his feet.",),
              "food": ("{h} gave the troll a good piece of {x.the}. \"Oh,\" he said with his mouth full, and for quite a while nothing else, and {h} crossed.",),
              "play": ("{h} let the troll try {x.the}. \"Is that what it is for?\" he said, and he laughed so hard that the arch shook, and {h} went over it.",),
              "time": ("{h} held {x.the} to the troll's ear. Nobody had ever told him that time went by. He thought about it so deeply that {h} went by as well.",),
              "kettle, teapot, pot": ("{h} filled {x.the} and made the troll something hot. The troll had had cold feet, it turned out, since the arch was built. After the second helping he let everybody cross.",)}),
    Obstacle("nobody at the crossroads could say which way to go",
             ("At the crossroads the signpost had fallen over, and its four arms pointed at the sky, the ditch, a beetle and {h}.",
              "At the crossroads there were five roads, and a signpost from which the rain had washed every name."),
             {"guide": ("{h} took out {x.the}, turned it this way and that, and turned {h.himself} with it. The third road, it said. The third road it was.",),
              "ball, kite, balloon": ("{h} let {x.the} decide, since somebody had to. It chose the road that nobody would have chosen, and it was right.",),
              "bright - feather": ("{h} laid {x.the} in the middle of the crossing. It gleamed on one side only, and {h} took the road on that side, which was as good a reason as any.",),
              "grow": ("{h} asked {x.the}, since there was nobody else, and it may be that it leaned a little to the left. {h} went left, and left was right.",),
              "words": ("On the back of {x.the} somebody had once drawn the roads of the parish, with a cross on every inn. {h} followed the crosses.",)}),
    Obstacle("the ferry had sprung a leak",
             ("The ferry lay at the landing with water up to its benches. \"She leaks,\" said the woman at the oars, \"and I have only two hands.\"",
              "Half way over the water the ferry began to fill. The woman at the oars looked at her feet, which were gone."),
             {"kettle, bucket, pot": ("{h} set to with {x.the}: a gallon out, half a gallon in, a gallon out. They came ashore with dry knees.",),
              "warm": ("{h} stuffed {x.the} into the hole and sat on it. It was a cold seat, but it got them over, and {x.the} dried.",),
              "hammer, needle": ("{h} crept under the bench with {x.the} and mended what could be mended. It was not pretty, but it floated.",),
              "basket": ("{h} bailed with {x.the}, which is not made for it, twice as fast, which is how one bails with such a thing.",)},
             frozenset({"flies", "swims"})),
    Obstacle("seven geese held the lane",
             ("Seven white ganders held the lane, wing to wing. They had never let anybody by and did not mean to start with {h}.",
              "Then seven white ganders came out of a yard with their necks down. [There is nothing in the world as sure of itself as a gander.|Each of them was angrier than the next.]"),
             {"sound": ("{h} answered them with {x.the}. It had not occurred to the ganders that somebody might be louder. They went to talk it over, and {h} went on.",),
              "shelter": ("{h} opened {x.the} with a bang. The ganders sat down, all seven, and {h} walked by behind it like a general.",),
              "spade, broom": ("{h} held {x.the} before {h.him} like a flagpole and marched, and the ganders, who like a parade, fell in behind.",),
              "food": ("{h} crumbled a bit of {x.the}, and then a bit more, always a little further from the gate. Ganders can be led anywhere by a little more.",),
              "carry": ("{h} put {x.the} over the head of the biggest one. The other six waited for orders, and none came.",)},
             frozenset({"flies"})),
    Obstacle("a cold night came down on the open hill",
             ("Night came down on the open hill, and with it a cold that had teeth. There was no house to be seen, nor a light.",
              "It was too far to go on and too late to go back, and the cold came up out of the ground."),
             {"warm": ("{h} rolled {h.himself} up in {x.the} behind a stone, nose and all. In the morning there was ice in the ditches and none on {h}.",),
              "light": ("{h} lit {x.the} and sat close to it, and it was as if a very small house had been built with room for one.",),
              "kettle, pot": ("{h} made a fire of three twigs and a pine cone and hung {x.the} over it. Something hot, even if it is only water, is half a house.",),
              "music": ("{h} played {x.the} to keep {h.his} {h.hands} from freezing. Toward midnight a shepherdess came over the ridge to see who it was, and she had a fire.",),
              "sack": ("{h} filled {x.the} with dry bracken, climbed in and pulled the rest over {h.his} head, and slept like an egg.",)}),
    Obstacle("the last climb was too steep and too long",
             ("The last climb was so steep that the road had given up and become a stair, and the stair had given up half way.",
              "The last climb was the worst. {h} sat down in front of it, and it seemed to grow."),
             {"rope": ("{h} threw one end of {x.the} over a pine stump and pulled {h.himself} up to it, and then over the next, with stops for complaining.",),
              "food": ("{h} looked at {x.the}, ate a corner of it and looked at the slope again. It had become smaller. That is what corners are for.",),
              "time": ("{h} looked at {x.the} and decided to rest for one minute in every ten. The slope had not reckoned with that.",),
              "words": ("{h} opened {x.the} and allowed {h.himself} to read one line at every bend. {h.he} would never have got to the top but for wanting to know what came next.",),
              "sound": ("{h} gave {h.himself} a signal on {x.the}, as for a regiment, and went up at the double. It is hard to disobey a thing like that.",),
              "ball": ("{h} threw {x.the} on ahead and went after it to bring it back, again and again, and on the tenth time {h.he} was at the top.",),
              "sled, wheelbarrow": ("{h} turned {x.the} round and pushed it from behind like an old friend, and whoever pushes has no time to look up.",),
              "grow": ("{h} thought of {x.the}, which was in no hurry at all, and climbed as things grow: a little, and a little, and then there is the top.",)},
             frozenset({"flies"})),
    Obstacle("somebody sat weeping in the middle of the road",
             ("In the middle of the road sat a peddler, weeping so hard that the dust was mud. There was no getting past such weeping.",
              "A peddler sat in the road with his head in his hands. \"Go round me,\" he said. But it was not a thing that one could go round."),
             {"bright": ("{h} sat down beside the peddler and let him look at {x.the}. It did not help, exactly, but it was something else to look at. After a while the peddler got up and carried {h} over the brook, out of thanks.",),
              "words": ("{h} took out {x.the} and read to the peddler, the funny part. The peddler laughed once by mistake and then on purpose, and showed {h.him} the short way.",),
              "food": ("{h} gave the peddler a piece of {x.the}, because nobody can weep and chew. The peddler chewed, and then he told {h.him} of the short way over the stile.",),
              "music": ("{h} played the peddler something on {x.the}, first a sad thing, to keep him company, then one that was not so sad. Then the peddler got up and walked with {h.him} as far as the turning.",),
              "warm": ("{h} put {x.the} about the peddler's shoulders and said nothing. When the peddler had done, he gave it back, folded, and told {h.him} of the short way over the stile.",),
              "grow": ("{h} showed the peddler {x.the}. \"Alive,\" the peddler said, and blew his nose. \"Well, then.\" And he moved his barrow out of the way.",),
              "time": ("{h} let the peddler hold {x.the} to his ear. \"It just goes on,\" said the peddler in wonder, and got up, and went on too.",)}),
]

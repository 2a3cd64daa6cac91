"""Everything that may be wanted, carried, lost, lent, swapped and found.

One line each: noun | class | words before it | what there is to say about it, `it` being the thing. The class says what
a thing is good for; needs and obstacles speak of classes.
"""

from dataclasses import dataclass

_TABLE = """
lantern | light | brass, tin, dented, old | it leaned a little to the left and burned all the better for it; it smelled of smoke and had never once blown out; one of its panes was blue, so that half of the night looked like the sea
candle | light | fat yellow, crooked, beeswax, thick white | it had been saved for something special for so long that it had grown a little dusty; it smelled of honey, even unlit; it burned with a flame as straight as a church
lamp | light | green glass, copper, small oil, old | its shade had a map of nowhere burnt into it; it made every room look kinder than it was; it purred when it burned, like a cat that has been understood
bell | sound | small silver, cracked, brass, heavy | it had a voice much larger than itself; it rang a little flat, and was loved for it; it had once belonged to a goat of some importance
whistle | sound | tin, wooden, bone, little | it had one note, but that note could cross a valley; it had been carved in an afternoon and played for forty years; it always sounded as if it had just thought of something
drum | sound | red, battered, round, small | it sounded like a large heart in a small room; it had a patch on one side and an opinion on the other; it had been to a war, and did not speak of it
trumpet | sound | bent, golden, dented, long | it had been sat on, and since then it played round corners; it was kept in a sock, so as not to wake anyone; it could be heard in the next parish, where they complained
fiddle | music | old, red, scratched, three-stringed | it had three strings and remembered the fourth; it knew more tunes than anyone who had played it; it laughed in the high notes and told the truth in the low ones
flute | music | silver, wooden, thin, old | it sounded the way mist looks; it was as plain as a stick until somebody breathed into it; it made birds stop and count their own notes
music box | music | tiny, painted, walnut, little | it played one tune and a half, and then had to be wound; a dancer the size of a thumbnail turned on top of it, always to the left; it got slower towards the end, as if it were sorry to stop
accordion | music | wheezing, green, patched, big | it breathed in its sleep; it took up a whole bench, like an uncle; it could not be sad for longer than one verse
blanket | warm | woollen, checked, patched, blue | it had been washed so often that nobody remembered its first colour; it was big enough for two, or for one who kicked; it smelled of cedar and long winters
scarf | warm | red, striped, very long, woollen | it was so long that the end of it always arrived a little later; it had been knitted by somebody who did not know how to stop; it itched, but in a friendly way
shawl | warm | grey, knitted, soft, fringed | it was as light as a promise and a good deal warmer; it had a mended place in the shape of a heart; it had been round three babies and one sick calf
coat | warm | green, heavy, patched, long | it had nine pockets, and something forgotten in each; it was too big for anyone, and so it suited everyone; it had the elbows of a hard worker
quilt | warm | patchwork, old, feather, yellow | every patch of it had been somebody's shirt; it had a pond in one corner and a church in another, both a little crooked; it weighed as much as a sleeping dog
hat | warm | felt, straw, tall, red | it had been rained on in four countries; it made whoever wore it look as if they were about to say something; it had a hole at the top through which thoughts got out
rope | reach | long, tarred, strong, coiled | it had pulled a calf out of a well and a boat off a rock; it was as thick as a thumb and had never let anybody down; it had eleven knots in it, each for a reason
ladder | reach | wooden, tall, wobbly, blue | it had fourteen rungs, of which one could not be trusted; it had picked a thousand pears and saved one kitten; it was heavy, and it took corners badly
kettle | vessel | black, copper, dented, whistling | it whistled two notes, one for tea and one for trouble; it had no lid, only a saucer that did its best; it was never quite empty and never quite clean
teapot | vessel | brown, blue, chipped, round | its spout had been broken and mended, and it poured a little to the right; it held five cups, or four and a conversation; it wore a knitted jacket, even in summer
bucket | vessel | wooden, leaky, tin, green | it leaked, but only on the left; it had carried water to three fires and milk to a wedding; its handle sang when it was full
pot | vessel | iron, big, black, soup | it was so big that a child had once been bathed in it; every soup cooked in it remembered the one before; it had three legs, all of different opinions
cup | vessel | silver, cracked, blue, tin | it had a crack like a tiny river down one side; somebody's teeth had left a mark on the rim a hundred years ago; it fitted the hand as if they had grown up together
spade | tool | sharp, old, long-handled, rusty | its handle had been worn smooth by three generations; it had dug eleven wells and buried two good dogs; it knew the earth of that valley by heart
hammer | tool | heavy, small, old, iron | it had a new handle and a new head, and was very old; it had never hit a thumb that did not deserve it; it went through a nail like a word through a crowd
broom | tool | birch, new, old, stiff | it had swept away seven winters; it was worn down on one side, like a shoe; it stood in its corner and looked as if it could fly, but it never had
needle | tool | silver, fine, long, bone | it was so fine that one could only find it by being careless; it had sewn a sail, a wedding dress and a cut knee; it lived in a cork, to keep it out of trouble
oar | travel | long, white, split, old | it had lost its partner in a storm and gone on alone; it had blisters of paint all down one side; it knew the way across the water without being told
boat | play | toy, carved, paper, little wooden | it was called Patience, and needed it; it had sailed the whole length of one ditch; there was a sailor painted on it, who looked seasick
sled | travel | wooden, fast, red, old | it had iron runners and no brakes to speak of; it remembered every hill; it had room for two, or for one and a sack of meal
wheelbarrow | travel | squeaking, green, heavy, crooked | its wheel squeaked on every turn, so that it was never stolen; it had carried stones, hay and, once, a bride; it pulled to the left, towards the inn
basket | carry | willow, round, big, old | it had a lid that closed with a peg; it creaked like a small ship; it had held eggs for twenty years and broken none
sack | carry | patched, empty, big, flour | there was still a little flour in the corners of it; it had been everything from a coat to a sail; it had the name of a mill on it that was no longer there
key | open | rusty, golden, tiny, iron | nobody knew any more what it opened; it was as long as a finger and twice as heavy as it looked; it hung on a blue thread and turned by itself towards doors
map | guide | torn, old, hand-drawn, folded | somebody had spilled tea on the mountains; it showed every path, and two that were not there yet; it had been folded wrongly so often that north was on the inside
compass | guide | brass, little, scratched, old | its needle trembled before it made up its mind; it had crossed two oceans and been seasick in both; it pointed north, and was never rude about it
spyglass | guide | long, brass, cracked, old | whatever one saw in it was a little bent, and a good deal nearer; it folded up as small as a bun; it had last been used to look for land
umbrella | shelter | black, yellow, torn, huge | it had one broken rib and opened with a bang; it had been left in so many places that it knew the whole county; it was big enough for a family, if nobody breathed out
clock | time | cuckoo, brass, ticking, tall | it struck thirteen at noon, for good measure; it was four minutes slow, and people set their lives by it; it had stopped only once, out of respect
watch | time | gold, pocket, silver, scratched | it ran fast when one was happy; it had a lid with somebody's initials worn away; it ticked so loudly that one never felt alone
book | words | green, thick, old, borrowed | its last page was missing, and every reader had invented another; it had pressed flowers in it, one for each chapter; it fell open by itself at the saddest place
letter | words | sealed, yellow, folded, thick | it had been written in a great hurry on very good paper; the ink had run on one corner, from rain or something like it; it was addressed in green ink to the whole house
mirror | bright | round, cracked, silver, small | it made everybody look as if they had slept well; it had hung in a barber's shop and heard everything; there was a corner in which one was always ten years younger
coin | bright | gold, silver, bent, foreign | it had a queen on one side and a ship on the other; it had been spent so many times that its queen had no nose; it was the only one of its kind for thirty miles
ring | bright | silver, golden, thin, plain | there was a word inside it, too small to read; it had been lost and found so often that it was hardly surprised any more; it was no wider than a blade of grass
button | bright | pearl, brass, big, blue | it had come off the coat of a captain; it was as round and serious as a small moon; it had four holes, and one could see four different things through them
marble | bright | green, glass, blue, cloudy | there was a twist of white inside it, like a thought; it had never been beaten; it rolled, if one let it, always towards the sea
shell | bright | pink, spiral, white, large | one could hear the sea in it, and sometimes somebody calling; it was rough outside and as smooth as an ear within; it still had a little sand in it, from far away
feather | bright | white, blue, long, golden | it was lighter than a secret; no bird would say that it had lost it; it pointed at the wind like a finger
crown | bright | paper, golden, bent, small | it was lined with newspaper, for the cold; one of its points was missing, and a pea had been put there instead; it had been worn by four heads and suited none of them
sword | bright | rusty, wooden, silver, short | it had never cut anything but cake; its name was engraved on it, and its name was Gerald; it was rather blunt, and everybody was glad
kite | play | red, paper, yellow, patched | its tail was made of old letters; it pulled like a dog that has smelled home; it had been in every tree of the valley
ball | play | rubber, red, leather, bouncing | it bounced a little to one side, which made it hard to argue with; it had been down a well, over a roof and through a window; it was stitched like a small brown planet
doll | play | rag, wooden, one-eyed, little | she had one eye, and missed nothing with it; she had been through the wash and come out wiser; she had lived in four different pockets
balloon | play | red, yellow, silver, round | it squeaked when it was hugged; it always seemed to be looking for the way out; it had been blown up to celebrate something that everybody had forgotten
cake | food | plum, lopsided, honey, three-layered | it had sunk in the middle, where the best part was; it had taken eleven eggs and most of a day; it smelled so good that people slowed down as they passed
pie | food | apple, blackberry, enormous, warm | steam came out of it through a hole in the shape of a star; its crust had been pinched shut by somebody with a gentle thumb; it was still singing a little from the oven
loaf | food | crusty, round, warm, brown | it crackled to itself as it cooled; it had a cross cut in the top and flour in the cross; one could warm both hands on it
cheese | food | round, yellow, very old, smelly | it was wrapped in nettles, and announced itself; it had been turned every day for a year; it was older than some of the children
seed | grow | tiny, striped, round, black | it was no bigger than a crumb, and heavier than one would think; it rattled when it was asked a question; nobody could say what would come of it
acorn | grow | shiny, green, fat, brown | it had its cap on, and looked ready to go; it lay in the palm like a thing that has time; there was a whole tree in it, somebody had once said, folded very small
rose | grow | white, red, yellow, late | it had more thorns than it needed; it smelled of rain and pepper; it was the last of the year, and seemed to know it
pumpkin | grow | huge, orange, round, striped | it had to be talked to every evening, or it sulked; it was so round that it was hard to say where it began; it sounded hollow, and rather wise, when one knocked
"""


@dataclass(frozen=True)
class Thing:
    """What something is."""

    noun: str
    group: str
    looks: tuple
    said: tuple

    @property
    def plural(self):
        irregular = {"watch": "watches", "loaf": "loaves", "box": "boxes", "music box": "music boxes",
                     "compass": "compasses", "spyglass": "spyglasses", "torch": "torches"}
        return irregular.get(self.noun, self.noun + "s")


def _read():
    things = {}
    for line in _TABLE.strip().splitlines():
        noun, group, looks, said = (field.strip() for field in line.split("|"))
        things[noun] = Thing(noun, group, tuple(look.strip() for look in looks.split(",")),
                             tuple(clause.strip() for clause in said.split(";")))
    return things


THINGS = _read()
"""Every thing by its noun."""

GROUPS = sorted({thing.group for thing in THINGS.values()})

BIG = frozenset({"ladder", "wheelbarrow", "sled", "pumpkin"})
"""What fits neither under an arm nor on a nail."""

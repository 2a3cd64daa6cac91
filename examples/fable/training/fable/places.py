"""Where stories go: how one says at, to and of a place, and what it looks like.

One line each: noun | at | to | what there is to see there. Every sight is a clause that stands for itself.
"""

from dataclasses import dataclass

_TABLE = """
harbour | at the harbour | to the harbour | the masts were talking to each other in creaks; it smelled of tar and oranges; the boats lay side by side like spoons in a drawer
lighthouse | at the lighthouse | to the lighthouse | it stood on its rock like a candle on a cake; a hundred and twelve steps went up inside, and all of them echoed; the waves came in, looked up, and went away again
beach | on the beach | to the beach | the sand was full of small important holes; the tide had left a line of corks and feathers; the foam ran up, touched the stones and ran back as if it had been dared
island | on the island | to the island | there was one tree on it, and the tree had one chair under it; one could walk round it before breakfast; the seals on the rocks turned their heads all together
mill | at the mill | to the mill | the wheel turned and turned and got nowhere, quite contentedly; there was flour on everything, even on the spiders; the whole house trembled a little, like somebody about to sing
market | at the market | to the market | there were pyramids of turnips and a man who sold only string; everybody was shouting the price of something; the cheeses lay in the shade like sleeping dogs
bakery | at the bakery | to the bakery | the windows were white with steam and smelled of crust; the first loaves lay ticking on the shelf; there was always a queue, and nobody in it was ever cross
orchard | in the orchard | to the orchard | the trees stood in rows like a school that has been told to wait; there were ladders in the grass and bees in the plums; the oldest tree leaned on a crutch
well | at the well | to the well | somebody had carved two initials in the rim, long ago; one could see the sky in it, very small and far down; moss grew on the stones as thick as a rug
churchyard | in the churchyard | to the churchyard | the stones leaned together as though they were telling each other the news; the yews were older than the names; there was nobody about but a blackbird on the wall
bell tower | in the bell tower | to the bell tower | the steps were worn down in the middle like spoons; the ropes hung down with red wool on their ends; through the shutters the village looked like something one could pocket
castle | at the castle | to the castle | half of it had fallen down, and the other half looked after it; there were jackdaws in the chimneys and nettles in the hall; the drawbridge had not been up since it had last been down
school | at the school | to the school | thirty coats hung in the passage, all with their arms inside out; there was chalk in the air and a map with a hole in it; somebody had drawn a whale on the wall, life size, or the beginning of one
library | in the library | to the library | the shelves went up so high that the top ones had weather; it was so quiet that one could hear the pages think; there was a stove in the middle and a cat that was catalogued
inn | at the inn | to the inn | there was soup on the stove and a dog under every table; the sign had a swan on it, or possibly a teapot; somebody was telling the one about the bishop
barn | in the barn | to the barn | the light came through the boards in long dusty ribbons; it smelled of hay and of last summer; swallows went in and out by a window without glass
forest | in the forest | to the forest | the trees stood close, like people at a window; there was moss on everything, and everything was listening; somewhere a woodpecker was knocking and was not let in
meadow | in the meadow | to the meadow | the grass was as high as a dog and full of clover; grasshoppers were winding their watches; a brook went through it, talking to itself
marsh | in the marsh | to the marsh | the reeds bowed to each other all day long; every step made a sound like a kiss; there was more sky in the pools than overhead
moor | on the moor | to the moor | there was nothing on it but heather, and a great deal of that; the wind had the whole place to itself; old stones stood about like guests who have come too early
hill | on the hill | to the hill | from the top one could see three rivers and somebody's washing; three pines stood on it, all leaning the same way; the grass had been combed by the wind, with a parting
mountain | on the mountain | to the mountain | it was so high that its own top was a rumour; the stones were warm on one side and cold on the other; far below, the village looked like spilled salt
cave | in the cave | to the cave | the walls sparkled a little when nobody moved; every word came back from the end of it, a size larger; somebody had drawn horses on the wall, a very long time ago
lake | by the lake | to the lake | it was so still that it held the whole sky without spilling; a jetty went out into it and stopped, as if it had forgotten why; the far shore looked like a line that somebody had ruled
garden | in the garden | to the garden | the beans had climbed past the end of their poles and were looking round for more; there were hollyhocks as tall as policemen; the gooseberries were warm, and nobody was counting them
station | at the station | to the station | the next train was on Thursday, and people were already waiting; its clock had only one hand left and did what it could; geraniums grew in the fire buckets
ferry landing | at the ferry landing | to the ferry landing | a plank led out over the water, and a rope held the plank; somebody had left a boot there, only the one; the water went by with leaves on it, all going the same way
quarry | in the quarry | to the quarry | an old crane stood in it like a heron that has been forgotten; the pool at the bottom was as green as a bottle; the rock was cut in steps, for very large feet
square | in the square | to the square | four chestnut trees stood round a pump; the benches were full of old men who disagreed; the pigeons walked about as if they had rented it
windmill | at the windmill | to the windmill | its sails went round with a noise like a large bird changing its mind; the door was half way up and the steps had been borrowed; from there one could smell the bread of four villages
greenhouse | in the greenhouse | to the greenhouse | it was warm in there and dripped, like the inside of a cloud; there was a lemon on the lemon tree, exactly one; half the panes were cracked, and the vines had taken it as an invitation
attic | in the attic | to the attic | there were trunks in it that nobody had the keys to; a rocking horse stood by the window, looking out; the dust lay as soft as a second carpet
theatre | at the theatre | to the theatre | the curtain was red and had a darn in it; the seats went up and down by themselves, remembering people; on the stage there was a forest made of canvas and one real leaf
fair | at the fair | to the fair | there was a swing boat, a tent with a secret in it and a great deal of toffee; the roundabout played its tune a little too fast; somebody had won a goose and did not know where to put it
bridge | at the bridge | to the bridge | it had three arches, of which one was for the river and two were for show; one could lean on the wall and drop in twigs; trout stood under it in the shade with their noses upstream
ruin | at the ruin | to the ruin | there was a staircase in it that went up to nothing; an ash tree grew in what had been the kitchen; the windows were still there, with sky in all of them
"""


@dataclass(frozen=True)
class Place:
    """Somewhere."""

    noun: str
    at: str
    to: str
    sights: tuple


def _read():
    places = {}
    for line in _TABLE.strip().splitlines():
        noun, at, to, sights = (field.strip() for field in line.split("|"))
        places[noun] = Place(noun, at, to, tuple(sight.strip() for sight in sights.split(";")))
    return places


PLACES = _read()
"""Every place by its noun."""

INDOORS = frozenset({"lighthouse", "bakery", "bell tower", "school", "library", "inn", "barn", "cave", "greenhouse", "attic", "theatre", "mill", "windmill"})
"""Where there is neither grass nor room for a contest."""

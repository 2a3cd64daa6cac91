"""Everybody whom a story may be about: what they are, where they live, how they go and what they hold things with.

One line each: noun | gender (m, f or either) | tags | where they live | the house's noun | how they went.
Tags: person, beast, hoof, bird, hopper, wonder; flies and swims say which obstacles are none; `not:mill` keeps a story
of the miller from being set at the mill, where that would be no journey.
"""

from dataclasses import dataclass

_TABLE = """
fox | e | beast | in a den under a hawthorn hedge; in a den at the foot of an old wall | den | trotted, padded
bear | e | beast | in a den behind three birches; in a den that smelled of pine | den | padded, plodded
wolf | e | beast | in a den among the rocks; in a den above the tree line | den | trotted, loped
rabbit | e | hopper | in a burrow with two doors; in a burrow under the bracken | burrow | hopped, hurried
hare | e | hopper | in a hollow in the long grass; behind a stone in the top field | hollow | bounded, hopped
hedgehog | e | beast | under a heap of leaves; in a nest of leaves behind a shed | nest | trundled, trotted
badger | e | beast | in a sett with eleven rooms; in a sett under the beeches | sett | trundled, plodded
mole | e | beast | under the lawn of somebody important; at the end of a long tunnel | tunnel | shuffled, hurried
mouse | e | beast | in a hole behind the skirting board; in a teacup in the hedge | hole | scurried, pattered
squirrel | e | beast | in a hollow oak; high up in a beech | tree | scampered, hurried
otter | e | beast swims | in a holt by the weir; under the roots of a willow | holt | trotted, loped
beaver | e | beast swims | in a lodge of {his} own making; in a lodge of birch and mud | lodge | waddled, plodded
cat | e | beast | on the third step of a blue staircase; in the warmest window of the street | house | padded, strolled
dog | e | beast | in a kennel with a slate roof; in a yard at the end of the lane | kennel | trotted, ran
lion | e | beast | in a den of yellow stone; in a den at the edge of the dry grass | den | padded, strode
tiger | e | beast | in a den among the reeds; in a den behind a waterfall | den | padded, prowled
monkey | e | beast | in the top of a fig tree; in a hut made of branches | tree | scampered, swung along
rat | e | beast | under the floor of a warehouse; in a barrel that had once held apples | barrel | scurried, trotted
elephant | e | trunk | in a shed with a very tall door; under the biggest tree for miles | shed | strolled, plodded
goat | e | hoof | on a ledge above the village; in a shed that leaned to the left | shed | trotted, clattered
sheep | e | hoof | in a field with a good view; in a fold behind a thorn hedge | field | trotted, ambled
pig | e | hoof | in a sty with curtains; in a sty behind an elder bush | sty | trotted, ambled
cow | f | hoof | in a field with one tree; in a shed with a warm wall | field | plodded, ambled
donkey | e | hoof | in a paddock full of thistles; in a stable with half a door | stable | plodded, clopped along
horse | e | hoof | in a stable at the end of the lane; in a paddock with a white fence | stable | trotted, cantered
deer | e | hoof | in a clearing where nobody came; in a hollow full of ferns | clearing | stepped, trotted
tortoise | e | slow | under a rhubarb leaf; behind a warm wall | house | plodded, crept
frog | e | hopper swims | under a lily leaf; in a ditch with a fine echo | ditch | hopped, leapt
toad | e | hopper swims | under a flat stone; in a damp corner that suited {him} | corner | hopped, crawled
owl | e | bird flies | in a hollow elm; behind the louvres of a loft | tree | flew, glided
crow | e | bird flies | at the top of a dead larch; in an untidy nest in an ash tree | nest | flew, flapped
magpie | e | bird flies | in a domed nest in a thorn tree; in a poplar, above everybody | nest | flew, flapped
robin | e | bird flies | in an old boot in the hedge; behind the ivy on a wall | nest | flew, fluttered
sparrow | e | bird flies | under the eaves of a tall house; in a gutter with a good view | nest | flew, fluttered
heron | e | bird flies | in an untidy nest by the water; on one leg, mostly, by the weir | nest | flew, flapped
goose | e | bird swims | in a pen behind a green gate; in a straw house by the water | house | waddled, marched
duck | e | bird swims | in the reeds; under an upturned tub | reeds | waddled, paddled
hen | f | bird | in a coop with a red roof; in a coop on wheels | coop | strutted, hurried
rooster | m | bird | on the ridge of a stable; on a post in the yard | post | strutted, marched
penguin | e | bird swims | on a rock by cold water; in a hut with no stove | hut | waddled, slid
parrot | e | bird flies | in a cage whose door was never shut; on the rail of a balcony | cage | flew, fluttered
dragon | e | wonder flies | in a hole in the mountain that smelled of matches; in a den full of warm stones | den | flew, glided
giant | m | wonder | in a house with a door made of six doors; in a house with a roof of its own weather | house | strode, tramped
troll | e | wonder | in a hut roofed with turf; behind a boulder that had {his} name on it | hut | stumped, tramped
ghost | e | wonder flies | in an empty house at the end of a lane; in a linen cupboard | house | drifted, floated
robot | e | wonder | in a shed behind a closed factory; in a workshop with oil on the floor | shed | clanked, rolled
scarecrow | e | wonder | in a field of barley; in a field of cabbages | field | stalked, swayed along
gnome | e | wonder | under a root with a chimney in it; in a house between two roots | house | trotted, stumped
fairy | f | wonder flies | in a foxglove; in a lamp that nobody lit any more | house | flew, fluttered
unicorn | e | hoof | in a clearing that was hard to find; in a field with a hidden gate | clearing | stepped, trotted
witch | f | person wonder | in a crooked house with a straight chimney; in a hut behind the gorse | hut | walked, marched
wizard | m | person wonder | in a tower with too many stairs; in a house full of unfinished spells | house | walked, strode
miller | e | person not:mill | in the mill by the weir; in the mill at the end of the valley | mill | walked, tramped
baker | e | person not:bakery | over the bakery, where the floor was always warm; behind the bakery | house | walked, hurried
fisherman | m | person not:harbour | in a tarred cottage above the boats; in a cottage with nets on the wall | cottage | walked, tramped
farmer | e | person not:barn | on a farm with more stones than soil; on a farm under a bare hill | farm | walked, tramped
shepherd | e | person | in a hut on wheels; in a stone hut above the last field | hut | walked, strode
blacksmith | e | person | behind the forge, where it was never cold; over the forge | house | walked, strode
tailor | e | person | over a shop full of cloth; in a house as narrow as a sleeve | house | walked, hurried
cobbler | e | person | in a cellar from which one saw only shoes; under a sign in the shape of a boot | house | walked, hurried
weaver | e | person | in a house that hummed with the loom; in a house with red wool in the windows | house | walked, hurried
potter | e | person | in a house with clay on every door handle; beside a kiln | house | walked, strolled
carpenter | e | person | in a house that smelled of shavings; in a house with nine kinds of door | house | walked, strode
clockmaker | e | person | in a house that ticked; over a shop where it was always several o'clock | house | walked, hurried
beekeeper | e | person | in a cottage that hummed in summer; behind a row of white hives | cottage | walked, strolled
gardener | e | person not:garden | in a cottage hidden by beans; in a cottage behind the sweet peas | cottage | walked, strolled
lighthouse keeper | e | person not:lighthouse | at the top of a hundred and twelve steps; in a round room above the waves | tower | walked, tramped
ferryman | m | person not:ferry landing | in a hut by the water; in a house on posts | hut | walked, tramped
postman | m | person | in a house with a very small letter box; in a yellow house | house | walked, hurried
teacher | e | person not:school | in two rooms over the schoolhouse; in a house full of other people's pencils | house | walked, hurried
librarian | e | person not:library | in a room with more shelf than wall; in a flat above a bookshop | house | walked, hurried
doctor | e | person | in a white house with a loud bell pull; in a house where there was always a light | house | walked, hurried
cook | e | person | in a kitchen as big as a ship; over a kitchen with two ovens | house | walked, hurried
painter | e | person | under a leaking skylight; in an attic spotted with blue | house | walked, strolled
musician | e | person | in a room over a noisy street; in a house with thin walls and patient neighbours | house | walked, strolled
sailor | e | person | in a house with round windows; in a hammock in a back room | house | walked, rolled along
pirate | e | person | in an upturned boat on the beach; in a cabin without a ship | cabin | walked, swaggered
soldier | e | person | in a room with one tidy bed; in a cottage lent by a cousin | cottage | walked, marched
knight | e | person not:castle | in a small fort with a large gate; in a house with a stable for one horse | house | walked, strode
king | m | person not:castle | in a palace with forty cold rooms; in a palace with a draught | palace | walked, strode
queen | f | person not:castle | in a palace with forty cold rooms; in a palace with too many doors | palace | walked, swept along
prince | m | person not:castle | in a palace with a very long table; in the smallest tower of a palace | palace | walked, hurried
princess | f | person not:castle | in a palace with a very long table; in the smallest tower of a palace | palace | walked, hurried
thief | e | person | in a room with three ways out; over a locksmith's shop | house | crept, walked
girl | f | person | in the last house of the village; in a house with a yellow door | house | walked, ran
boy | m | person | in the last house of the village; in a house with a green door | house | walked, ran
grandmother | f | person | in a cottage that smelled of pears; in a cottage full of clocks | cottage | walked, marched
grandfather | m | person | in a cottage that smelled of pipes; in a cottage with a bench in front | cottage | walked, strolled
merchant | e | person not:market | in a house with a brass door knob; in a house with four locks | house | walked, hurried
woodcutter | e | person | in a hut of split logs; in a cottage with the neatest woodpile for miles | hut | walked, tramped
bell ringer | e | person not:bell tower | beside the churchyard wall; in a house that shook on Sundays | house | walked, hurried
chimney sweep | e | person | in an attic among the chimneys; in a house with black door handles | house | walked, whistled along
tinker | e | person | in a wagon painted green; in a wagon with a tin chimney | wagon | walked, rattled along
astronomer | e | person | in a house with a hole in the roof; in a house where breakfast was at night | house | walked, hurried
fiddler | e | person | in a room above the inn's kitchen; in a house with a dancing floor | house | walked, strolled
nurse | e | person | in a house with clean windows; in two rooms by the hospital gate | house | walked, hurried
orphan | e | person | in a loft over a stable; with an aunt who counted the potatoes | house | walked, ran
beggar | e | person | under an arch, out of the wind; in a doorway that nobody used | doorway | walked, shuffled
hermit | e | person | in a hut that was on no map; under an overhanging rock, with a door | hut | walked, climbed along
"""

_LIMBS = {
    "person": ("hand", "hands", "in {his} hands", "arm"),
    "beast": ("paw", "paws", "in {his} paws", "arm"),
    "hopper": ("foot", "feet", "in {his} arms", "arm"),
    "hoof": ("hoof", "hooves", "in {his} teeth", "chin"),
    "bird": ("wing", "wings", "in {his} beak", "wing"),
    "trunk": ("trunk", "ears", "in {his} trunk", "ear"),
    "slow": ("foot", "feet", "on {his} back", "chin"),
    "wonder": ("hand", "hands", "in {his} hands", "arm"),
}


@dataclass(frozen=True)
class Kind:
    """What somebody is."""

    noun: str
    gender: str
    tags: frozenset
    homes: tuple
    house: str
    verbs: tuple
    hand: str
    hands: str
    grip: str
    arm: str

    @property
    def plural(self):
        irregular = {"mouse": "mice", "goose": "geese", "deer": "deer", "sheep": "sheep", "wolf": "wolves",
                     "fisherman": "fishermen", "ferryman": "ferrymen", "postman": "postmen", "thief": "thieves",
                     "fox": "foxes", "witch": "witches", "fairy": "fairies"}
        return irregular.get(self.noun, self.noun + "s")


def _read():
    kinds = {}
    for line in _TABLE.strip().splitlines():
        noun, gender, tags, homes, house, verbs = (field.strip() for field in line.split("|"))
        tags = _tags(tags)
        limb = next(group for group in ("person", "beast", "hopper", "hoof", "bird", "trunk", "slow", "wonder")
                    if group in tags)
        kinds[noun] = Kind(noun, gender, tags, tuple(home.strip() for home in homes.split(";")), house,
                           tuple(verb.strip() for verb in verbs.split(",")), *_LIMBS[limb])
    return kinds


def _tags(text):
    plain, _, away = text.partition("not:")
    return frozenset(plain.split() + (["not:" + away.strip()] if away else []))


KINDS = _read()
"""Every kind by its noun."""

PEOPLE = [kind for kind in KINDS.values() if "person" in kind.tags]
CREATURES = [kind for kind in KINDS.values() if "person" not in kind.tags]

"""Why somebody needs a thing: four reasons for each class of things.

The one who needs is `{n}`, the thing is `{x}`. Each reason is said four ways: aloud (`plea`, the inside of a quotation),
as a cause (`because`), as what is being done with the thing (`using`, after "was"), and as what came of it (`result`).
`ask` is what the thing would be good for, in the words of somebody looking for one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """One reason to need one class of things."""

    plea: str
    because: str
    using: str
    result: str


_TABLE = {
    "light": [
        ("My little ones are afraid of the dark, and there are eleven of them", "{n.his} little ones were afraid of the dark",
         "holding {x.the} over a bed in which eleven little ones lay awake", "under the light of {x.the} the little ones fell asleep, one after the other, like beads on a string"),
        ("My cellar is so dark that I cannot tell the potatoes from the toads", "{n.his} cellar was too dark to find anything in",
         "looking for potatoes by the light of {x.the}", "by the light of {x.the} the cellar turned out to be full of potatoes, and one very embarrassed toad"),
        ("I am reading a long book, and every night the dark comes in the middle of a chapter", "the dark always came in the middle of a chapter",
         "reading a thick book by the light of {x.the}", "by the light of {x.the} {n} read to the end of the chapter, and then to the end of the end"),
        ("My brother is out on the water, and there is nothing to show him where the land is", "{n.his} brother was out on the water and could not see the land",
         "holding up {x.the} so that a boat could find the land", "out on the water a small boat saw {x.the} and turned towards it"),
    ],
    "sound": [
        ("My cousin is out looking for me, and I have no voice left to call with", "{n.he} had no voice left to call with",
         "calling a lost cousin home with {x.the}", "at the sound of {x.the} a lost cousin came out of the bushes, rather cross"),
        ("Nobody in our street wakes up in time, and the bread is always late", "nobody in {n.his} street woke up in time",
         "waking a whole street with {x.the}", "in the morning {x.the} woke the whole street, and for the first time that year the bread was early"),
        ("I have wanted to make a loud noise all my life, and I have only ever been told to hush", "{n.he} had been told to hush all {n.his} life",
         "making, with {x.the}, the loudest noise of {n.his} life", "{n} made one very loud noise with {x.the}, and then sat down, quite satisfied"),
        ("The herd strays on the slopes, and it will not listen to me", "{n.his} herd strayed and would not listen",
         "leading eleven goats down a path with {x.the}", "the herd heard {x.the} and came down from the slopes in a line, like a lesson"),
    ],
    "music": [
        ("My mother is ill, and she says that she could get up if only somebody played a dance", "{n.his} mother was ill and longed for a dance",
         "playing {x.the} beside the bed of {n.his} old mother", "at the third tune on {x.the} the old mother put one foot out of bed, and at the fourth the other"),
        ("There is a wedding tonight, and the band has lost its way", "there was a wedding that night and no band",
         "playing {x.the} for a wedding that had no band", "{x.the} played until the bride's shoes gave out"),
        ("It is so quiet at my house that I can hear my cheese getting older", "it was too quiet at {n.his} house",
         "playing {x.the} to an empty room", "{n} played {x.the} that evening, badly and with great joy, and the house was not quiet any more"),
        ("The baby has not slept since Thursday, and nor has anybody else", "the baby would not sleep",
         "rocking a cradle with one foot and playing {x.the}", "{x.the} played one soft tune, and the baby, who had been waiting for just that, slept"),
    ],
    "warm": [
        ("There is a calf in my shed that was born too early, and it will not stop shivering", "a newborn calf in {n.his} shed was shivering",
         "rubbing a newborn calf dry with {x.the}", "wrapped in {x.the}, the calf stopped shivering and began to look about"),
        ("My roof has a hole in it just above the bed", "{n.his} roof had a hole in it above the bed",
         "sitting up in bed under a hole in the roof, with {x.the} over {n.his} ears", "with {x.the} over {n.his} ears {n} did not feel the hole in the roof, and could look at the stars through it"),
        ("I have not been warm since my stove died, poor thing", "{n.his} stove was broken and {n.he} was cold",
         "sitting beside a dead stove, with {x.the} up to {n.his} chin", "under {x.the} {n} grew warm, first at the edges and then all the way through"),
        ("Somebody left three kittens at my door, and I have nothing to put them in", "three kittens had been left at {n.his} door",
         "keeping three kittens warm in {x.the}", "three kittens went to sleep in {x.the}, in a heap, and did not come out until spring"),
    ],
    "reach": [
        ("My nephew has climbed up on the roof and will not be talked down", "{n.his} nephew was stuck on the roof",
         "getting a small nephew off a roof with {x.the}", "with the help of {x.the} the nephew came down from the roof, and said that he had been about to do so anyway"),
        ("The best plums hang at the very top, and the wasps are getting them all", "the best plums hung too high",
         "picking the highest plums with the help of {x.the}", "with {x.the} {n} reached the highest plums, and they were worth it"),
        ("A lamb has fallen into the old pit, and it is calling and calling", "a lamb had fallen into the old pit",
         "getting a lamb out of a pit with {x.the}", "with {x.the} they brought the lamb up out of the pit, and it bit everybody gently and ran off"),
    ],
    "vessel": [
        ("Nine guests are coming to tea, and I have nothing to make it in", "nine guests were coming to tea",
         "giving tea to nine guests out of {x.the}", "nine guests had tea out of {x.the}, and seven of them asked for more"),
        ("The stream has gone dry, and my beans are hanging their heads", "{n.his} beans were dying of thirst",
         "watering a row of beans out of {x.the}", "{n} watered the beans out of {x.the}, and by evening they held up their heads"),
        ("My roof drips on the baby, and I have run out of things to put under it", "the roof dripped on the baby",
         "catching the drips from {n.his} roof in {x.the}", "{x.the} stood under the drip and said plink, plink, and the baby laughed at every plink"),
        ("I want to boil an egg, just once, and I have never had a thing to boil it in", "{n.he} had never had anything to boil an egg in",
         "boiling an egg in {x.the}", "{n} boiled an egg in {x.the} and ate it with {n.his} eyes closed"),
    ],
    "tool": [
        ("The wind took my door, and everybody looks in at me while I eat", "the wind had taken {n.his} door",
         "putting {n.his} house in order with {x.the}", "with {x.the} the house was put in order, and that evening nobody looked in"),
        ("My old father is moving in, and nothing in the house is ready for him", "{n.his} old father was moving in and nothing was ready",
         "getting a room ready with {x.the}", "with {x.the} the room was ready in time, and the old father said that it would do, which was high praise"),
        ("I broke my own, and the work will not wait", "{n.his} own was broken and the work would not wait",
         "working with {x.the} as if {n.he} had never had a better one", "the work was done before dark, and {x.the} came out of it shining"),
    ],
    "travel": [
        ("My sister lives on the far side, and I have not seen her since she was small", "{n.his} sister lived on the far side",
         "making {x.the} ready for a visit to a sister on the far side", "with {x.the} {n} came over to the far side, where a sister stood waving with both arms"),
        ("There is a sack of meal to be fetched, and my back is older than I am", "there was a heavy sack to fetch and {n.his} back was bad",
         "fetching a heavy sack with the help of {x.the}", "with {x.the} the heavy sack came home, and {n.his} back did not say a word"),
        ("A doctor must come to my house tonight, and the nearest does not walk well", "a doctor had to be fetched",
         "fetching a doctor with {x.the}", "with {x.the} a doctor was there within the hour, a little windblown"),
    ],
    "carry": [
        ("I have picked more mushrooms than I have arms", "{n.he} had picked more mushrooms than {n.he} could hold",
         "carrying home a mountain of mushrooms in {x.the}", "the mushrooms went into {x.the}, all of them, and there was soup for a week"),
        ("My hens have moved to the neighbour's, and I must bring the eggs home every day", "the eggs had to be brought home every day",
         "bringing home eggs in {x.the}", "not one egg was broken in {x.the}, and there was a pancake for everybody"),
        ("I am moving house, and I have nothing to put it in", "{n.he} was moving and had nothing to put things in",
         "moving house with the help of {x.the}", "everything that {n} owned went into {x.the}, with room left over for a nap"),
    ],
    "open": [
        ("I have locked myself out, and my soup is on the fire", "{n.he} had locked {n.himself} out and the soup was on the fire",
         "trying {x.the} in {n.his} own front door", "{x.the} turned in the lock as if it had always known the way, and the soup was only a little burnt"),
        ("There is a box under my bed that has not been opened in forty years", "a box under {n.his} bed had not been opened in forty years",
         "kneeling in front of an old box with {x.the}", "{x.the} fitted. In the box there was another box, and in that one a photograph, and {n} looked at it for a long time"),
        ("A thrush has got into the empty house, and I cannot get it out", "a thrush was shut in the empty house",
         "opening an empty house with {x.the} to let a thrush out", "{x.the} turned, the door opened, and the thrush went out over everybody's heads"),
    ],
    "guide": [
        ("I set out to visit my aunt in March, and I am still looking for her", "{n.he} had been lost since March",
         "looking for an aunt with the help of {x.the}", "with {x.the} {n} found the aunt before supper. She had lived next door all the time"),
        ("I am to lead a whole school on its outing, and I always go left", "{n.he} had to lead a whole school on its outing and always went left",
         "leading thirty children over a hill with {x.the}", "with {x.the} {n} led thirty children out and, what was harder, thirty children back"),
        ("My old eyes cannot tell the hills from the clouds any more", "{n.his} old eyes could not tell the hills from the clouds",
         "looking for {n.his} own house with {x.the}", "with {x.the} {n} found the way to {n.his} own front door and patted it"),
    ],
    "shelter": [
        ("My roof is in the next field, and it looks like rain", "{n.his} roof had blown into the next field",
         "sitting in a house without a roof, under {x.the}", "{n} slept under {x.the} in the house without a roof, and stayed dry but for the feet"),
        ("There is a nest on the open wall, and the wind goes right through it", "a nest on the wall stood open to the wind",
         "holding {x.the} over a nest with four eggs in it", "under {x.the} the four eggs stayed warm, and one after the other they became a noise"),
        ("I have to go to a wedding, and this is my only suit", "{n.he} had only one suit and it had to stay dry",
         "keeping {n.his} only suit dry under {x.the}", "{n} came to the wedding as dry as toast, and danced with {x.the}"),
    ],
    "time": [
        ("I am always late, and they have begun to eat without me", "{n.he} was always late for meals",
         "learning to tell the time from {x.the}", "with {x.the} {n} came early for supper, and had to wait, and loved it"),
        ("I boil an egg every morning, and I have never once got it right", "{n.he} had never boiled an egg rightly",
         "boiling an egg with one eye on {x.the}", "with {x.the} the egg came out exactly right, and {n} was almost sorry to eat it"),
        ("It is so quiet since my wife went to her sister's that I would be glad to hear something tick", "the house was too quiet",
         "sitting in a quiet house and listening to {x.the}", "{x.the} ticked in the quiet house all night, and it was nearly as good as company"),
    ],
    "words": [
        ("My grandfather has nobody to read to him, and he knows all the labels in the pantry by heart", "{n.his} grandfather had nobody to read to him",
         "reading {x.the} to {n.his} grandfather", "{n} read {x.the} aloud, and the old man laughed in all the right places and one wrong one"),
        ("I am teaching myself to read, and so far I have only had a tin of mustard", "{n.he} was learning to read",
         "spelling out {x.the}, one word at a time", "{n} spelled out {x.the} from the first word to the last, and it was better than mustard"),
        ("I have not had a word from anybody since the autumn, and I would even read somebody else's", "{n.he} had not had a word from anybody since autumn",
         "reading {x.the} for the ninth time", "{n} read {x.the} until {n.he} knew it by heart, and then recited it to the stove"),
    ],
    "bright": [
        ("My little girl has lost her smile, and I have been sent out to find something that shines", "{n.his} little girl had lost her smile",
         "holding up {x.the} before a little girl who would not smile", "the little girl looked at {x.the} for a long time, and then there it was, the smile, with a tooth missing"),
        ("It is my first day at work tomorrow, and I have nothing to bring me luck", "{n.he} needed something to bring {n.him} luck",
         "going about with {x.the}, for luck", "the first day at work went well, and {n} said that it was all because of {x.the}"),
        ("I have never in my life owned a single beautiful thing", "{n.he} had never owned a beautiful thing",
         "looking at {x.the} as one looks at a fire", "{n} put {x.the} where the morning would find it, and the whole room was different"),
        ("I promised my mother something beautiful, and I have promised it for nine years", "{n.he} had promised {n.his} mother something beautiful",
         "wrapping up {x.the} for {n.his} old mother", "the old mother put {x.the} on the windowsill and told everybody who passed where it had come from"),
    ],
    "play": [
        ("There are six children at my house with measles, and they have torn up the wallpaper", "six children at {n.his} house had measles",
         "keeping six spotted children quiet with {x.the}", "the six children played with {x.the} until their spots were gone, and the wallpaper was saved"),
        ("When I was small I had to work, and I never had a thing to play with", "{n.he} had never had anything to play with",
         "playing with {x.the}, all alone, and laughing", "{n} played with {x.the} until dark, and looked seven years old"),
        ("It is my son's birthday, and all I have for him is a turnip", "it was {n.his} son's birthday and there was only a turnip",
         "hiding {x.the} behind {n.his} back for a birthday", "the child got {x.the} for a birthday, and the turnip too, and could not say which was better"),
    ],
    "food": [
        ("I have walked since Sunday on one boiled egg", "{n.he} had walked since Sunday on one boiled egg",
         "sitting before {x.the} and saying grace for the third time", "{x.the} was cut into pieces, and it was remarkable how many there were"),
        ("There are seven of us at home, and the cupboard is full of cupboard", "there were seven at {n.his} home and the cupboard was empty",
         "dividing {x.the} into seven very exact pieces", "{x.the} was divided by seven, and the crumbs by seven too"),
        ("I had a birthday yesterday, and nobody knew, not even I", "{n.he} had had a birthday and nobody knew",
         "having a very late birthday with {x.the}", "they put a twig into {x.the}, for a candle, and {n} blew it out, and it was a birthday after all"),
    ],
    "grow": [
        ("My garden has been bare since the flood, and I look at mud from every window", "{n.his} garden was bare",
         "making a place for {x.the} in a bare garden", "with {x.the} in it the bare garden did not look bare any more, only patient"),
        ("It is my mother's birthday, and she likes things that are alive", "{n.his} mother liked things that were alive",
         "carrying {x.the} to {n.his} mother in both arms", "the mother put {x.the} by the door, where she could say good morning to it"),
        ("They laugh at me at the flower show every year, because I never have anything to show", "{n.he} never had anything for the flower show",
         "getting {x.the} ready for the flower show", "at the flower show {x.the} won third prize out of three, and {n} wore the ribbon until it fell apart"),
    ],
}

NEEDS = {group: [Need(*need) for need in needs] for group, needs in _TABLE.items()}
"""The reasons of every class."""

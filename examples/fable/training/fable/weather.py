"""The weather of a story: it is chosen once and nothing in the story contradicts it.

`setting` follows "one" or stands at the start ("one wet morning"); `signs` are whole clauses for the road; `night` is
for when it has grown dark.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Weather:
    """One kind of weather."""

    noun: str
    adjectives: tuple
    signs: tuple
    night: tuple


WEATHERS = {weather.noun: weather for weather in [
    Weather("rain", ("wet", "grey", "dripping", "rainy"),
            ("it was raining in the thin, thoughtful way that can go on for days", "rain ran down the road beside {h.him} like a dog that wants to come along",
             "the rain had been falling since breakfast and had nearly got the hang of it", "every leaf held up its own drop of rain"),
            ("the rain ticked on the roof like somebody sewing", "it had stopped raining, and the gutters were finishing what they had to say")),
    Weather("snow", ("white", "snowy", "freezing", "hushed"),
            ("it had snowed in the night, and every post wore a white cap", "snow was falling in flakes as large as stamps",
             "the snow creaked underfoot like new shoes", "it was snowing so quietly that one could hear it"),
            ("the snow lay blue in the dark", "outside the snow went on falling past the window, in no hurry")),
    Weather("wind", ("windy", "blustery", "restless", "wild"),
            ("the wind was trying all the doors in the lane", "the wind had got hold of the washing and was dancing with a shirt",
             "every tree had something to say, and they all said it at once", "a big wind was walking about on the hills"),
            ("the wind went round the house and whistled in the keyhole, a little flat", "the wind had dropped, and the trees stood about looking ruffled")),
    Weather("fog", ("foggy", "pale", "misty", "blind"),
            ("the fog had come up from the water and leaned against the houses", "in the fog every tree looked like somebody one knew",
             "the fog was so thick that the cows had to be found by touch", "the fog dripped from the gate with a sound like slow thinking"),
            ("the fog pressed its face to the window", "the fog had gone, and there were more stars than anybody needed")),
    Weather("sun", ("bright", "clear", "shining", "golden"),
            ("the sun lay on the road like a cat", "it was so warm that the tar on the fences had gone soft", "larks were going up like corks",
             "the sky was as blue as a plate and had nothing on it"),
            ("the stars came out, one after the other, as if they were being counted", "the moon came up behind the chimneys and looked in")),
    Weather("frost", ("frosty", "glittering", "crisp", "cold"),
            ("frost had drawn ferns on every window", "the puddles had lids on them", "everybody's breath went along beside them in little clouds",
             "the grass was stiff and white and broke like biscuit"),
            ("the stars were so sharp that one could have pricked a finger on them", "the pond creaked in its sleep under the ice")),
    Weather("leaves", ("brown", "golden autumn", "smoky", "late autumn"),
            ("leaves came down like letters for everybody", "it smelled of bonfires and apples", "the hedges were full of spiders' washing",
             "the swallows sat on the wires and talked about leaving"),
            ("the last leaves were coming down in the dark, one could hear them arrive", "a big yellow moon hung in the branches like something left behind")),
    Weather("spring", ("green", "mild", "early spring", "blossoming"),
            ("the blackthorn had put on all its white at once", "every ditch had a frog in it, and every frog had an opinion", "lambs were jumping for no reason",
             "the whole lane smelled of wet earth and primroses"),
            ("a nightingale was trying over its song, and kept going back to the beginning", "the air was so soft that nobody shut a window")),
]}
"""Every weather by its noun."""

"""The voice in which a story is told: what the teller lets one know beforehand, and says when it turns.

A story has its mood from the first lines on, and not only in its last; the weather leans the same way.
"""

BEFOREHAND = {
    "happy": (
        "It is a story that ends better than it begins.", "You may put your feet up for this one.", "Things were not going well with {h.him} just then, but they were about to.",
        "It all came right in the end, and I say so now, so that nobody need worry.", "{h} had no idea how lucky {h.he} was going to be.", "If you like a good ending, you have come to the right house.",
        "That was the year when luck came to the valley, on foot.", "It is told in the valley when somebody needs cheering up.", "It begins with a sigh and ends with supper, as the best things do.",
        "Whoever tells it smiles at the end, and so does whoever listens.",
    ),
    "funny": (
        "{h} does not like this story. Everybody else does.", "What happened is still told in the valley, mostly by people who cannot keep a straight face.", "It is not a story about cleverness.",
        "If {h.he} had stayed in bed that week, none of this would have happened, which would have been a pity.", "Those who were there still have to sit down when they tell it.",
        "It is all true, except for the parts that {h} tells {h.himself}.", "The neighbours begin to laugh before it has begun.", "Nobody was hurt in what follows, apart from a turnip.",
        "It is told at weddings, when the soup is late.", "One should not drink anything while it is being told.",
    ),
    "sad": (
        "It is a quiet story, and it does not end as one would wish.", "One should not tell it on a bright day.", "It was long ago, and there is nobody left who could be hurt by it.",
        "People in the valley tell it softly, and only when the children are asleep.", "You may want a handkerchief before the end.", "{h} was happy then, and did not know it.",
        "It is the kind of story that one tells while looking out of the window.", "Not every story can be mended. This one could not.", "There is no laughter in it, or only a little, near the beginning.",
        "Those who know how it ends are always quiet at this place.",
    ),
}

TURN = {
    "happy": ("And now comes the good part.", "It was high time for something good to happen.", "Then things began to go right, one after the other.", "And here the luck came in by the door.", "What came next was better than anybody had hoped."),
    "funny": ("What came next, nobody had planned.", "And here the story goes off the road a little.", "Then it got worse, that is to say, better.", "It might have ended nobly. It did not.", "This is where people begin to laugh."),
    "sad": ("It should have ended there.", "But it had got late, in more ways than one.", "Then it went the way such things go.", "One would like to stop here.", "What came next is soon told, and hard to tell."),
}

WEATHERS = {
    "happy": "sun sun sun spring spring spring snow leaves frost rain wind fog".split(),
    "funny": "wind wind wind sun sun rain snow spring leaves fog frost".split(),
    "sad": "rain rain rain fog fog fog leaves leaves leaves frost frost snow wind sun spring".split(),
}
"""The weathers of a mood, the likelier ones more than once."""

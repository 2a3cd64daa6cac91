"""The many ways of asking for a story.

A request shows some of what is already decided: the story is told first, and what is asked of it is true of it.
"""

HEADS = ("Tell me", "Tell me", "Tell me", "Tell me", "Please tell me", "Can you tell me", "Could you tell me", "Would you tell me", "Tell", "Write", "Write me",
         "Can you write", "Please write", "Give me", "I want", "I would like", "I'd like", "I'd love to hear", "I want to hear", "Make up", "Let me hear", "Do you know",
         "How about", "Could I have", "May I have", "Invent", "Think of", "Read me", "Let's have", "Share", "Create", "We would like", "I need", "Got", "Now tell me",
         "Hello, tell me", "Hi! Please tell me", "My daughter would like", "It is bedtime. Tell us", "Generate", "Compose", "Come up with", "Tell us", "Can I have", "Say")

NOUNS = ("story", "story", "story", "story", "story", "tale", "fable", "little story", "fairy tale", "bedtime story")

MOODS = {
    "happy": ("happy", "happy", "cheerful", "heartwarming", "hopeful", "joyful", "feel-good"),
    "funny": ("funny", "funny", "silly", "humorous", "amusing", "comic", "hilarious", "witty", "merry"),
    "sad": ("sad", "sad", "sad", "melancholy", "sorrowful", "tragic", "mournful", "unhappy"),
}

MOOD_TAILS = {
    "happy": ("with a happy ending", "that ends well", "with a good ending", "that makes me happy", "that ends happily"),
    "funny": ("that makes me laugh", "with a funny ending", "with a joke in it", "that is funny"),
    "sad": ("with a sad ending", "that makes me cry", "that ends sadly", "that ends badly", "that is sad"),
}

LENGTHS = {"short": ("short", "very short", "quick", "little", "brief"), "long": ("long", "longer", "really long")}
LENGTH_TAILS = {"short": ("Keep it short.", "Not too long, please.", "Make it short.", "Be brief."), "long": ("Make it long.", "Make it a long one.", "A long one, please.", "Take your time.")}

WEATHERS = {
    "rain": ("on a rainy day", "about a rainy day", "in the rain", "for a rainy day", "with rain in it"), "snow": ("in the snow", "about a snowy day", "in winter", "on a snowy day", "with snow in it"),
    "wind": ("on a windy day", "in the wind", "in a storm"), "fog": ("in the fog", "on a foggy day", "in the mist"),
    "sun": ("on a sunny day", "in the sunshine", "in summer"), "frost": ("on a frosty day", "on a cold day", "in the frost"),
    "leaves": ("in autumn", "in the fall", "on an autumn day"), "spring": ("in spring", "in the spring", "on a spring day"),
}

THEMES = {
    "friendship": ("friendship", "friends", "two friends"), "courage": ("courage", "being brave", "bravery"), "kindness": ("kindness", "being kind", "helping others"),
    "honesty": ("honesty", "telling the truth", "being honest"), "patience": ("patience", "waiting", "being patient"), "sharing": ("sharing", "sharing things"),
    "pride": ("pride", "boasting", "showing off"), "forgiveness": ("forgiveness", "forgiving", "saying sorry"), "adventure": ("an adventure", "a journey", "a long way"),
    "mystery": ("a mystery", "something strange", "a monster"), "hospitality": ("a stranger", "a visitor", "a guest"), "hope": ("hope", "growing things", "a garden plant"),
    "love": ("love", "longing", "missing somebody"),
}

SAME_TRAIT = {"old": ("old", "elderly", "very old", "aged"), "small": ("small", "little", "tiny"), "shy": ("shy", "timid", "bashful"), "brave": ("brave", "courageous", "bold"),
              "clever": ("clever", "smart"), "cheerful": ("cheerful", "happy"), "lonely": ("lonely",), "grumpy": ("grumpy", "bad-tempered"), "nervous": ("nervous", "anxious"),
              "sleepy": ("sleepy", "tired"), "quiet": ("quiet", "silent"), "curious": ("curious", "nosy")}


def article(words):
    """With a or an; the templates' own rule, as a call."""
    from .prose import takes_an
    return ("an " if takes_an(words) else "a ") + words


def shown(scene, rng, keys):
    """How a request speaks of what it asks for, by key."""
    words = {}
    if "kind" in keys:
        kind = scene.h.kind.noun
        trait = rng.choice(SAME_TRAIT.get(scene.h.trait, (scene.h.trait,))) + " " if "trait" in keys else ""
        words["kind"] = article(trait + kind)
        if trait and "name" not in keys and rng.random() < 0.2:
            words["kind"] = f"{article(kind)} who is {rng.choice(('', '', 'always ', 'very ', 'a little ', 'rather '))}{trait.strip()}"
        if "name" in keys:
            words["kind"] = rng.choice((words["kind"] + " named " + scene.h.name, words["kind"] + " called " + scene.h.name, f"{scene.h.name} the {trait}{kind}", f"{article(trait + kind)}, {scene.h.name}"))
        elif not trait and rng.random() < 0.05:
            words["kind"] = rng.choice(("the " + kind, scene.h.kind.plural, "my " + kind))
    if "other" in keys:
        words["other"] = article(scene.o.kind.noun)
    if "thing" in keys:
        noun = scene.x.thing.noun
        look = scene.x.look + " " if rng.random() < 0.15 else ""
        words["thing"] = article(look + noun) if rng.random() < 0.93 else rng.choice(("the " + noun, "one " + noun, "his " + noun if scene.h.gender == "m" else "her " + noun))
    if "place" in keys:
        words["place"] = article(scene.p.place.noun)
        words["at"] = scene.p.place.at
    return words


def subject(rng, words):
    """What the story is to be about."""
    things = [words[key] for key in ("kind", "other", "thing") if key in words]
    if rng.random() < 0.12 and len(things) > 1 and "kind" not in words:
        rng.shuffle(things)
    if "place" in words and rng.random() < 0.3 or ("place" in words and not things):
        things.append(words.pop("place"))
        words.pop("at")
    if not things:
        return ""
    if len(things) == 1:
        text = things[0]
    else:
        text = ", ".join(things[:-1]) + " and " + things[-1]
        if len(things) == 2 and "kind" in words and "thing" in words and rng.random() < 0.3:
            text = rng.choice((f"{things[0]} with {things[1]}", f"{things[0]} who has {things[1]}", f"{things[0]} and {things[1]}"))
    at = ""
    if "at" in words:
        at = rng.choice((" ", ", set ", " ", ", and let it be ", " that takes place ")) + words["at"]
        return rng.choice(("about ", "about ", "with ", "of ")) + text + at
    return rng.choice(("about ", "about ", "about ", "about ", "about ", "with ", "of ", "on ")) + text


def request(scene, rng, keys):
    """A request for this story that shows the given keys."""
    words = shown(scene, rng, keys)
    bare = rng.random()
    if bare < 0.07 and {"kind", "thing", "place", "other"} & set(keys) and not {"mood", "weather", "length", "theme"} & set(keys):
        text = _keywords(rng, words)
        return _rough(rng, text)
    adjectives = []
    tails = []
    after = ""
    if "length" in keys and scene.length in LENGTHS:
        if rng.random() < 0.7:
            adjectives.append(rng.choice(LENGTHS[scene.length]))
        else:
            after = " " + rng.choice(LENGTH_TAILS[scene.length])
    if "mood" in keys:
        if rng.random() < 0.75:
            adjectives.append(rng.choice(MOODS[scene.mood]))
        else:
            tails.append(rng.choice(MOOD_TAILS[scene.mood]))
    about = subject(rng, words)
    if "theme" in keys and not about:
        about = "about " + rng.choice(THEMES[scene.theme])
    elif "theme" in keys:
        after = f" It should be about {rng.choice(THEMES[scene.theme])}." + after
    if "weather" in keys:
        tails.append(rng.choice(WEATHERS[scene.weather.noun]))
    if "moral" in keys:
        tails.append(rng.choice(("with a moral", "that has a moral", "that teaches something", "with a lesson")))
    if "title" in keys:
        tails.append(rng.choice(("with a title", "and give it a title")))
    noun = rng.choice(NOUNS)
    adjective = ", ".join(adjectives) + " " if adjectives else ""
    head = rng.choice(HEADS)
    rng.shuffle(tails) if rng.random() < 0.5 else None
    phrase = " ".join(part for part in [about] + tails if part)
    if rng.random() < 0.04 and about:
        text = f"{adjective}{noun} {phrase}"
    else:
        text = f"{head} {article(adjective + noun)} {phrase}".rstrip()
    end = "?" if head.split()[0] in ("Can", "Could", "Would", "Do", "How", "May", "Got") else rng.choice((".", ".", ".", "", "", "!", ", please.", " please"))
    if "lease" in head:
        end = end.replace(", please", "").replace(" please", "")
    return _rough(rng, text + (end if not after else ("?" if end == "?" else ".")) + after)


def _keywords(rng, words):
    things = [words[key] for key in ("kind", "other", "thing", "place") if key in words]
    if rng.random() < 0.5:
        things = [thing.split(" ", 1)[1] if thing.split(" ", 1)[0] in ("a", "an", "the") else thing for thing in things]
    joined = rng.choice((", ", " and ", " + ")).join(things)
    return rng.choice(("{}", "{}", "Story: {}", "{} story", "Use these words: {}", "Use the words {} in a story", "Once there was {}", "The {}", "{}, please")).format(joined)


def _rough(rng, text):
    """People do not always write carefully."""
    draw = rng.random()
    if draw < 0.14:
        return text[0].lower() + text[1:]
    if draw < 0.19:
        return text.lower().rstrip(".")
    return text[0].upper() + text[1:]


PLAIN = ("Tell me a story.", "Tell me a story", "A story, please.", "Can you tell me a story?", "I want to hear a story.", "Surprise me.", "Tell me something.", "Story!", "story", "story please",
         "Please tell me a story.", "Once upon a time", "Do you know a story?", "Write a story.", "Tell me any story you like.", "I am bored.", "I can't sleep.", "Tell me a bedtime story.", "One story, please.",
         "What stories do you know? Tell me one.", "Begin.", "Go on, tell me a story.", "Tell us a story!", "I'd like a story.", "Any story will do.", "tell me a story please", "Tell me your favourite story.",
         "Tell me a tale.", "I have a minute. Tell me something nice.", "You choose.", "Just tell me a story, any story.", "Give me a story.", "Let me hear a story.", "Tell a story.", "Tell me one of your stories.")

ANOTHER = ("Another one, please.", "Another one.", "Again!", "One more.", "Tell me another story.", "Another story, please.", "More!", "One more story, please.", "Tell me another one.", "And another?",
           "Do you know another one?", "Can I have another story?", "another", "another one", "more", "Next one, please.", "That was good. Another?", "Tell me a different story.", "Something else, please.",
           "Now another.", "Give me one more.", "And now a different one.")

ANOTHER_MOOD = {
    "happy": ("Now a happy one.", "Tell me a happier one.", "That was too sad. Tell me a happy one.", "Another one, but with a happy ending.", "A cheerful one now, please."),
    "funny": ("Now a funny one.", "Tell me a funny one.", "Make me laugh.", "Another one, but funny.", "Something funny now, please."),
    "sad": ("Now a sad one.", "Tell me a sad one.", "Another one, but sad.", "A sad one now, please.", "Make me cry."),
}

SAME_HERO = ("Tell me another story about {name}.", "What else happened to {name}?", "Another one about {name}, please.", "I want to hear more about {name}.", "More about {name} the {kind}, please.",
             "Tell me more about {name}.", "Does {name} have other adventures?", "Another story about the same {kind}.", "I like {name}. Tell me another story about {name}.")

SAME_MOOD = {"happy": ("The same, but with a happy ending.", "Tell it again with a happy ending.", "Can it end happily?"),
             "funny": ("The same again, but funny.", "Tell it again, but make it funny.", "Can you make it funny?"),
             "sad": ("The same again, but sad.", "Tell it again, but let it end sadly.", "Can you make it sad?")}

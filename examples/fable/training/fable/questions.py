"""Questions about a story that has just been told, and their answers, all from what the story has made true."""

import json

WEATHER = {"rain": "It was raining.", "snow": "There was snow.", "wind": "It was windy.", "fog": "It was foggy.", "sun": "It was sunny and warm.", "frost": "It was cold and frosty.",
           "leaves": "It was autumn, and the leaves were falling.", "spring": "It was a mild day in spring."}

UNKNOWN_ANSWERS = ("The story does not say.", "That I do not know; the story does not say.", "The story says nothing about that.", "It is not told in the story.")

NOT_TOLD = ("How old was {h}?", "What did {h} have for breakfast?", "What colour were {his} eyes?", "How tall was {h}?", "What was {his} mother called?", "When was {h} born?", "How much did {x} cost?",
            "What is the name of the country?", "In which year did this happen?", "How many brothers did {h} have?", "What was the weather like the next day?", "Did {h} ever marry?", "What is {his} favourite colour?",
            "How heavy was {x}?", "What did {h} do the year after?", "What language did they speak?", "How far was it in miles?", "What was {his} last name?", "Could {h} swim?", "Was {h} rich?", "Who made {x}?", "What did {o} have for supper?")

OUTLINE_REQUESTS = ("Give me the outline as JSON.", "Give me the outline of the story as JSON.", "Write down the outline of the story as JSON.", "Write the outline as JSON.", "What is the outline, as JSON?",
                    "Outline it as JSON, please.", "Outline the story as JSON.", "Can you outline the story as JSON?", "Can you give me the outline as JSON?", "The outline as JSON, please.",
                    "Now the outline as JSON.", "And the outline, as JSON?", "Give me an outline of the story in JSON.", "What is the outline of the story in JSON?")


def pairs(scene, rng):
    """Every question that can be asked about this story, as (key, question, answer)."""
    h, o, facts = scene.h, scene.o, scene.facts
    he = h.word("he", rng)
    he_up = he.capitalize()
    who = lambda: rng.choice((h.name, h.name, f"the {h.kind.noun}", f"the {h.kind.noun}", he))
    both = lambda: rng.choice((h.name, f"the {h.kind.noun}"))
    begin = lambda: rng.choice((h.name, f"The {h.kind.noun}", he_up, he_up))
    upper = lambda text: text[0].upper() + text[1:]
    found = []

    def ask(key, questions, answers):
        found.append((key, rng.choice(questions), rng.choice(answers if isinstance(answers, (list, tuple)) else [answers])))

    want = f"{begin()} wanted {facts['want']}."
    ask("want", [f"What did {who()} want?", f"What did {both()} want?", f"What was it that {both()} wanted?", f"What did {both()} wish for?", f"What was {both()}'s wish?", f"And what did {both()} want?", f"what did {both()} want"], want)
    ask("why", [f"Why did {who()} want that?", f"Why did {both()} want this?", f"What was the reason that {both()} wanted it?", f"Why was that so important to {both()}?", "Why?"],
        [f"Because {facts['why']}.", f"{upper(facts['why'])}."])
    ask("obstacle", ["What was the problem?", "What was the trouble?", "What was in the way?", f"What was difficult for {both()}?", "What went wrong?", f"What stood in {both()}'s way?"],
        [f"The trouble was that {facts['obstacle']}.", f"{upper(facts['obstacle'])}."])
    ask("solved", [f"How did {both()} solve it?", f"What did {who()} do about it?", f"How did {both()} manage it?", f"What did {both()} do then?"], f"{upper(facts['solved'])}.")
    ask("helper", [f"Who helped {both()}?", f"Who helped?", f"Did anybody help {both()}?", f"Did somebody help {both()}?"], f"{upper(facts['helper'])}.")
    ask("other", [f"Who is {o.name}?", f"Who was {o.name}?", f"And who was {o.name}?", f"Who is {o.name} again?"], f"{facts['other']}.")
    ask("ending", ["How did it end?", "How does the story end?", "How did the story end?", "What happened in the end?", "And in the end?", f"What happened to {both()} in the end?", "So how did it end?", "Did it end well?" if not scene.sad else "Did it end badly?"],
        f"In the end {facts['ending']}.")
    ask("hero", ["Who is the story about?", "Who was the story about?", "Who is the hero?", "Who was in the story?", "Who is the main character?"],
        [f"It is about {h.name}, {article(h.trait)} {h.kind.noun}.", f"The story is about {h.name} the {h.kind.noun}."])
    ask("name", [f"What was the {h.kind.noun} called?", f"What was the {h.kind.noun}'s name?", f"What is the name of the {h.kind.noun}?", f"How was the {h.kind.noun} called?", f"Did the {h.kind.noun} have a name?"],
        [f"The {h.kind.noun} was called {h.name}.", f"{upper(h.word('his', rng))} name was {h.name}."])
    ask("other_name", [f"What was the {o.kind.noun} called?", f"What was the {o.kind.noun}'s name?"], f"The {o.kind.noun} was called {o.name}.")
    ask("kind", [f"Who was {h.name}?", f"What was {h.name}?", f"Who is {h.name}?", f"What kind of creature was {h.name}?"], f"{h.name} was {article(h.trait)} {h.kind.noun} who lived {h.home}.")
    ask("trait", [f"What was {both()} like?", f"What kind of person was {h.name}?", f"Describe {h.name}.", f"Tell me about {h.name}'s character."],
        [f"{begin()} was {h.trait}." + (f" {upper(facts['habit'])}" if scene.habit_shown else "")])
    ask("home", [f"Where did {who()} live?", f"Where did {both()} live?", f"Where was {both()}'s home?"], f"{begin()} lived {h.home}.")
    ask("holder", [f"Who had {scene.look_up('x.the')} in the end?", f"Who has {scene.look_up('x.the')} now?", f"What became of {scene.look_up('x.the')}?", f"Where is {scene.look_up('x.the')} now?"], f"In the end {facts['holder']}.")
    ask("look", [f"What did {scene.look_up('x.the')} look like?", f"What kind of {scene.x.thing.noun} was it?", f"What was the {scene.x.thing.noun} like?"], f"It was {scene.look_up('x.a')}.")
    ask("moral", ["What is the moral?", "What is the moral of the story?", "What does the story teach?", "What can one learn from it?", "What is the lesson?", "Is there a moral?", "What's the moral?"],
        [facts["moral"], f"Perhaps this: {facts['moral'][0].lower() + facts['moral'][1:]}"])
    ask("title", ["What is the title?", "Give it a title.", "What is the story called?", "Does it have a title?", "What would you call it?", "Can you give it a title?"], [f"It is called \"{facts['title']}\".", f"\"{facts['title']}\"."])
    ask("summary", ["Can you sum it up?", "Tell it in short.", "Summarise it.", "What was it about, in short?", "Give me a summary.", "What is the story about?", "Sum up the story, please.", "Can you summarize the story?", "In a few words?"],
        summary(scene, rng))
    ask("mood", ["Is it a sad story?", "Was that a happy story?", "What kind of story is it?", "Does it end happily?", "Does it end well?"],
        {"happy": ["It ends well.", "It is a story with a happy ending."], "funny": ["It is meant to be funny.", "It is more funny than anything else."], "sad": ["It is a sad one.", "It ends sadly, I am afraid."]}[scene.mood])
    if scene.weather_shown:
        ask("weather", ["What was the weather like?", "How was the weather?", "What was the weather?"], WEATHER[scene.weather.noun])
    for questions, answer in scene.asked:
        ask("plot", [scene.write(question) for question in questions], scene.write("^" + answer))
    ask("unknown", [question.replace("{his}", h.name + "'s").replace("{h}", both()).replace("{x}", scene.look_up("x.the")).replace("{o}", o.name) for question in NOT_TOLD], UNKNOWN_ANSWERS)
    ask("outline", OUTLINE_REQUESTS, outline(scene))
    return found


def article(words):
    """With a or an."""
    from .prose import takes_an
    return ("an " if takes_an(words) else "a ") + words


def summary(scene, rng):
    """The story in three sentences."""
    h, facts = scene.h, scene.facts
    solved = facts["solved"]
    return f"{h.name} the {h.kind.noun} wanted {facts['want']}. But {facts['obstacle']}. {solved[0].upper() + solved[1:]}. In the end {facts['ending']}."


def outline(scene):
    """The story as one line of JSON; it says what the answers to the other questions say."""
    h, facts = scene.h, scene.facts
    return json.dumps({"hero": h.name, "kind": h.kind.noun, "trait": h.trait, "want": facts["want"], "obstacle": facts["obstacle"], "helper": facts.get("helper_name") or None,
                       "thing": scene.look_up("x.full"), "ending": scene.mood})


def moral(scene, rng):
    """The moral as a last paragraph."""
    return rng.choice(("The moral: {}", "And the moral is this: {}", "Moral: {}", "What is there to be learned? {}")).format(scene.facts["moral"])

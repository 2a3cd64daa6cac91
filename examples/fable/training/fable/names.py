"""Names, and names that nobody has heard before: a request may name its hero as it likes."""

HIS = """Barnaby Oswin Hob Corin Jasper Edmund Bertil Anselm Wilbur Tam Ned Ivo Emil Otto Basil Casper Dorian Elmer
Finn Gideon Hector Jory Kit Leopold Milo Nestor Orin Percival Quentin Roland Silvan Teodor Ulric Victor Walter Yorick
Bruno Ansel Cuthbert Digory Ezra Felix Gustav Henrik Isidor Kasimir Ludo Mortimer Oberon Piet Reuben Samson Tibor
Waldo Arlo Hugo Albert Benedict""".split()

HERS = """Tansy Marigold Odette Juniper Ottilie Bettina Clementine Dora Edith Flora Greta Hester Ida Josephine Klara
Lavinia Mabel Nell Petra Rosalind Saskia Tilda Ursula Violet Wilhelmina Yvette Zelda Beatrix Cordelia Delphine Elspeth
Gwen Henrietta Imogen Junia Lotte Minna Nora Opal Pernilla Quilla Rosamund Sabine Thea Una Verity Winifred Ada Bruna
Cecily Dagmar Enid Frida Ingrid Maud Tove Matilda Eleanor""".split()

EITHER = """Bramble Thistle Nettle Burdock Sorrel Clover Pepper Mustard Biscuit Pebble Moss Fennel Teasel Bracken
Nutmeg Pickle Crumb Tumble Dapple Sedge Quill Ember Marrow Ginger Rowan""".split()

COMMON_HIS = """James John Robert Michael David William Thomas Daniel Matthew Anthony Mark Paul Steven Andrew Kevin
Brian George Ryan Jacob Eric Jonathan Larry Justin Scott Brandon Benjamin Samuel Patrick Jack Dennis Jerry Tyler Aaron
Adam Nathan Henry Noah Liam Oliver Lucas Ethan Theo Leo Max Sam Ben Tom Peter Ali Omar Ravi Kenji Diego Carlos Pablo
Marco Luca Sven Lars Jan Igor Ivan Yusuf Chen Hiro Kofi Juan Mateo Rafael Arjun Nikhil Abel Karl Louis Simon Oscar
Stefan Martin""".split()

COMMON_HERS = """Mary Patricia Jennifer Linda Elizabeth Barbara Susan Jessica Sarah Karen Lisa Nancy Sandra Margaret
Ashley Emily Kimberly Donna Michelle Carol Amanda Melissa Deborah Stephanie Rebecca Laura Sharon Cynthia Amy Kathleen
Angela Anna Emma Olivia Sophia Ava Mia Isabella Charlotte Amelia Lily Lucy Ella Zoe Chloe Nina Maria Sofia Elena Ines
Fatima Aisha Priya Mei Yuki Sakura Ingeborg Astrid Freya Maya Leila Noor Hana Rosa Carmen Lucia Eva Julia Alice Clara
Helen Ruth Marta""".split()

_ONSETS = "b br c ch d dr f fl g gl gr h j k kl l m n p pl pr qu r s sh sk sl sn st t th tr v w y z".split()
_VOWELS = "a e i o u a e i o ai ee oo ie".split()
_CODAS = ["", "", "", "l", "n", "r", "m", "nd", "x", "ck", "lf", "t"]
_ENDINGS_HIS = "o ek in or win bert ko us ard en".split()
_ENDINGS_HERS = "a ina elle ette ia ily anne ra ka issa".split()


def invented(rng, gender):
    """A name made of syllables; it never ends in s, so that its possessive is plain."""
    middle = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
    if rng.random() < 0.3:
        middle += rng.choice(_ONSETS) + rng.choice(_VOWELS)
    name = middle + rng.choice(_ENDINGS_HIS if gender == "m" else _ENDINGS_HERS)
    return name.rstrip("s").capitalize()


def pick(rng, gender, person, asked):
    """A name for somebody of a gender; names that a request gives may be any."""
    if asked and rng.random() < 0.6:
        if rng.random() < 0.5:
            return invented(rng, gender)
        return rng.choice(COMMON_HIS if gender == "m" else COMMON_HERS)
    if not person and rng.random() < 0.3:
        return rng.choice(EITHER)
    return rng.choice(HIS if gender == "m" else HERS)

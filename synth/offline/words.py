"""Words that the offline writer draws from, and the names that it invents."""

# ruff: noqa: SIM905 - word lists read better as text
from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date

from deltamem.sessions import Split
from synth.names import invent_name, name_split, surname_split

_MONTHS = "January February March April May June July August September October November December".split()


def split_of(name: str) -> Split:
    """The split of a person, told from the spelling of their name."""
    _, _, surname = name.partition(" ")
    return surname_split(surname) if surname else name_split(name)


def invent(rng: random.Random, split: Split) -> str:
    """A name of one invented word."""
    return invent_name(rng, split)


def invent_full(rng: random.Random, split: Split) -> str:
    """A full name of two invented words."""
    return f"{invent_name(rng, split)} {invent_name(rng, split)}"


def day(value: date) -> str:
    """A date in words, for example ``4 May 2026``."""
    return f"{value.day} {_MONTHS[value.month - 1]} {value.year}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(","))


# --- what profiles leave open ----------------------------------------------------------------------------------------------

PARENTS = ("Both parents are alive and well.", "The parents live far away and write often.")
PARTNER = ("There is no partner at the moment.", "A partner is not part of this life for now.")
CHILDREN = ("There are no children.", "Children are not part of this life so far.")
GOAL_KINDS = ("Achievement-Driven", "Humanitarian Care", "Cultural Heritage")
GOAL_STATEMENTS = (
    "To build a workshop that teaches a hundred young people a trade.",
    "To keep an old craft of the region alive.",
)
GOAL_MOTIVATIONS = (
    "Somebody once took the time to teach and it changed everything.",
    "Good work should outlive the one who does it.",
)
GOAL_TARGETS = ("One hundred learners within fifteen years.", "A school of the craft with twenty places.")
LOCATIONS = ("a town by the river", "a village in the hills")
DEGREES = ("secondary school", "vocational training")
CAREER_DESCRIPTIONS = (
    "The work is steady and leaves room for other things.",
    "Work is a search for the right place at present.",
)
HEALTH_REASONS = ("Regular habits keep things in balance.", "Long days ask for care, but nothing is wrong.")
RELATIONSHIP_DESCRIPTIONS = (
    "They talk every other week and trust each other.",
    "They met years ago and still help each other out.",
)
LIKED = (
    "it calms the mind after long days", "it brings back good memories", "it is made with care",
    "it is fun to share with others", "it always holds a surprise", "it is honest and simple",
)  # fmt: skip
DISLIKED = (
    "it leaves a headache behind", "it is far too loud", "it costs more than it gives", "it feels careless",
    "it takes up whole evenings", "it never keeps its promise",
)  # fmt: skip

# --- things that are liked and disliked ------------------------------------------------------------------------------------

_THINGS = {
    "food": "lentil stews, smoked dumplings, walnut breads, pepper noodles, saffron pies, pickled beets, almond tarts,"
    " barley soups, goat cheeses, roasted chestnuts, plum cakes, bean pancakes, herb omelettes, rice puddings",
    "beverage": "ginger lemonades, oat lattes, jasmine teas, cherry sodas, malt beers, pear ciders, mint coolers,"
    " cocoa shakes, tomato juices, chicory coffees, elder syrups, plum brandies, rosehip teas, barley waters",
    "reading": "harbour novels, river diaries, garden almanacs, ghost anthologies, railway memoirs, island poems,"
    " court thrillers, kitchen essays, desert chronicles, winter fables, spy trilogies, market sketches, sea ballads",
    "music": "cello suites, brass marches, harbour songs, synth ballads, choir mixtapes, banjo tunes, organ preludes,"
    " drum sessions, lullaby records, jazz quartets, folk waltzes, piano sonatas, guitar duets, opera overtures",
    "movie": "courtroom dramas, puppet animations, desert westerns, heist comedies, silent classics, nature documentaries,"
    " space epics, dance musicals, village romances, detective serials, family sagas, mountain thrillers",
    "game": "castle builders, farming simulators, word puzzles, rally racers, pirate adventures, card duels, maze crawlers,"
    " railway planners, rhythm battles, fishing challenges, planet explorers, mystery boxes, chess variants",
    "sport": "relay races, fencing bouts, climbing walls, rowing regattas, curling nights, table tennis cups,"
    " handball matches, archery rounds, skating shows, cycling tours, judo classes, volleyball leagues, badminton doubles",
    "clothing": "linen shirts, wool scarves, canvas jackets, suede boots, striped sweaters, silk ties, denim overalls,"
    " felt hats, corduroy trousers, rain capes, knitted gloves, leather belts, quilted vests, velvet blazers",
    "pet": "terrier puppies, tabby cats, dwarf rabbits, koi carps, zebra finches, box turtles, guinea pigs, grey parrots,"
    " shepherd dogs, tree frogs, corn snakes, pygmy goats, racing pigeons, stick insects",
    "travel": "island ferries, night trains, canal cruises, mountain huts, desert caravans, harbour hostels, coast walks,"
    " glacier tours, vineyard trails, cycling holidays, lagoon camps, castle inns, forest cabins, balloon rides",
    "": "clay figurines, paper lanterns, wooden puzzles, model ships, garden gnomes, brass compasses, glass beads,"
    " woven baskets, tin soldiers, music boxes, pressed flowers, pocket watches, silver spoons, postage stamps",
}
_WORDS_OF = {
    "food": "food dish eat cook cuisine", "beverage": "beverage drink", "reading": "reading book literature",
    "music": "music song", "movie": "movie film cinema tv", "game": "game gaming", "sport": "sport fitness",
    "clothing": "clothing fashion clothes", "pet": "pet animal", "travel": "travel trip journey",
}  # fmt: skip
THINGS = {kind: _listed(text) for kind, text in _THINGS.items()}


def things(category: str) -> tuple[str, ...]:
    """What may be liked or disliked in a category, as plurals."""
    folded = category.casefold()
    for kind, names in _WORDS_OF.items():
        if any(name in folded for name in names.split()):
            return THINGS[kind]
    return THINGS[""]


# --- pools of the paper shape ----------------------------------------------------------------------------------------------

POOLS: dict[str, tuple[str, ...]] = {
    name: _listed(text)
    for name, text in {
        "number": "two, three, four, five, six, seven, eight, nine",
        "large": "ten, eleven, twelve, fourteen, fifteen, sixteen, eighteen, twenty, thirty, forty, fifty, sixty",
        "amount": "35, 40, 45, 60, 75, 80, 95, 110, 120, 140, 160, 180, 210, 240, 260, 290, 320, 350, 380, 410, 450, 480",
        "weekday": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
        "month": ", ".join(_MONTHS),
        "hour": "half past five, half past six, half past seven, half past nine, half past ten, half past eleven",
        "daytime": "early morning, late morning, lunch break, late afternoon, early evening, late evening",
        "color": "crimson, turquoise, emerald, ivory, amber, violet, charcoal, copper, olive, scarlet, indigo, maroon",
        "area": "spare parts, customer letters, stock lists, night rota, training plans, safety checks, supplier contracts,"
        " travel budgets, quality reports, visitor tours, archive room, delivery routes",
        "theme": "water saving, late trains, school meals, old bridges, bee keeping, city lighting, waste paper,"
        " cargo bikes, flood warning, noise control, roof gardens, heat pumps",
        "subject": "bookkeeping, typography, surveying, beekeeping, data analysis, negotiation, first aid, upholstery,"
        " conflict mediation, public speaking, land law, watchmaking, sign language, project planning",
        "sidework": "proofreading manuals, repairing clocks, translating leaflets, walking dogs, tuning pianos,"
        " tutoring pupils, restoring chairs, photographing weddings, pruning hedges, testing websites, baking cakes",
        "vehicle": "cargo bike, folding scooter, express tram, shuttle bus, river ferry, regional train, electric moped",
        "exercise": "water aerobics, rope climbing, tai chi, indoor rowing, kettlebell training, chair yoga, ballet barre,"
        " nordic walking, aqua jogging, trampoline drills, pilates, circuit training",
        "ailment": "stiff shoulders, lower back pain, knee trouble, tension headaches, restless sleep, high blood pressure,"
        " seasonal allergies, weak ankles, sore wrists, shortness of breath",
        "remedy": "magnesium tablets, iron drops, vitamin capsules, ginger pastilles, valerian pills, zinc lozenges,"
        " fish oil capsules, chamomile drops, turmeric tablets, calcium sachets",
        "gadget": "sleep ring, chest strap, smart lamp, pulse watch, weighted blanket, white noise machine, fitness band",
        "specialist": "physiotherapist, cardiologist, dietician, orthopaedist, allergist, psychologist, osteopath,"
        " neurologist, dermatologist",
        "staple": "brown rice, oat flakes, red lentils, chick peas, rye bread, green beans, sweet potatoes, cottage cheese",
        "treat": "salted crisps, cream cakes, iced doughnuts, chocolate bars, chicken wings, cheese sticks, candied nuts",
        "role": "friend, colleague, neighbour, cousin, former classmate, fellow volunteer, choir partner, old teammate",
        "meal": "a late breakfast, a bowl of soup, a pot of tea, a plate of waffles, a glass of cider, a light supper",
        "chore": "tax forms, leaking taps, garden weeds, heavy furniture, slow computers, torn curtains, broken bikes",
        "device": "sewing machine, rowing boat, pressure washer, camping tent, cement mixer, telescope, bread oven,"
        " table saw, sailing dinghy, garden shredder",
        "talk": "family recipes, local politics, football scores, old photographs, crime novels, garden plans, film nights,"
        " travel stories, house repairs, school days",
        "circle": "gospel choir, chess circle, rowing crew, theatre group, book club, quiz team, hiking club, samba band",
        "saving": "rainy days, a new roof, a long sabbatical, driving lessons, a solar panel, a piano, dental work",
        "flaw": "sticky smell, rough seams, endless noise, high price, poor service, cheap plastic, sour taste,"
        " long queues, hidden fees, rude staff",
        "shop": "shoe repair shop, flower stall, corner bakery, fire station, bicycle store, music school, launderette,"
        " fish market, tile workshop, post office",
        "landmark": "windmill, lighthouse, quarry, paper mill, monastery, shipyard, salt works, railway depot, vineyard",
        "animal": "herons, goats, foxes, storks, donkeys, otters, swallows, hedgehogs, wild geese, hares",
        "keepsake": "brass compass, pocket watch, silver thimble, tin whistle, walnut box, leather satchel, copper kettle",
        "language": "Portuguese, Finnish, Swahili, Hungarian, Korean, Catalan, Icelandic, Greek, Turkish, Welsh",
        "goods": "wool blankets, wax candles, seed packets, enamel mugs, hand cream, road maps, tea towels, ink bottles,"
        " picture frames, door handles, rubber stamps, jam jars, bicycle bells, linen napkins, reading glasses",
        "dish": "mushroom risotto, fish tacos, onion tart, carrot soup, spinach lasagne, potato salad, apple strudel,"
        " pumpkin curry, cheese toast, bean chilli, egg noodles, berry crumble",
        "sight": "carved doors, stone arches, painted ceilings, iron gates, glass roofs, mosaic floors, tiled stoves,"
        " spiral stairs, copper domes, ivy walls, round windows, bronze statues",
        "weather": "drizzling rain, thick fog, gusty wind, bright sunshine, light snowfall, heavy clouds, humid heat",
        "lost": "umbrella, leather glove, train ticket, key ring, lunch box, reading lamp, wallet, water bottle, scarf",
        "song": "sea shanties, slow waltzes, brass marches, gospel hymns, tango pieces, harvest songs, swing numbers",
        "skill": "speaking freely, listening closely, planning ahead, staying patient, asking directly, taking breaks,"
        " delegating tasks, taking notes, saying no, arriving early",
        "gift": "pot of honey, box of pralines, bunch of tulips, jar of olives, bottle of cider, tin of biscuits",
        "worry": "missing trains, rising rents, lost papers, tight deadlines, loud crowds, forgotten names, wrong numbers",
        "furniture": "oak bench, window seat, folding table, corner sofa, standing desk, rocking chair, bar stool",
        "document": "consent form, price list, site plan, time sheet, guest book, insurance letter, order form, fact sheet",
        "course_of_time": "quarter of an hour, good half hour, full hour, whole afternoon, long evening, short break",
        "helper": "caretaker, receptionist, volunteer, night guard, young trainee, tour guide, ticket seller, gardener",
    }.items()
}


def pick(rng: random.Random, pool: str, used: Iterable[str] = ()) -> str:
    """A word of a pool that is not used yet."""
    taken = set(used)
    return rng.choice([word for word in POOLS[pool] if word not in taken])

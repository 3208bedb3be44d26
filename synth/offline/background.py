"""Kinds of facts that never change: where somebody comes from, and what happens at an event besides."""

from __future__ import annotations

from synth.offline.kinds import ANY, NAME, Form, Kind

BIRTH = Kind(
    "birth",
    None,
    {"date": ANY, "city": ANY, "anchor": NAME},
    Form(
        "was born on {date} and lives in the {anchor} quarter of {city}.",
        ("{date}", "{anchor} quarter", "{city}"),
        ("My birthday is {date}, and home is the {anchor} quarter of {city}.",),
    ),
)
DEGREE = Kind(
    "degree",
    None,
    {"degree": ANY, "major": ANY, "theme": "theme", "anchor": NAME},
    Form(
        "has a {degree} in {major} and wrote the final paper on {theme} for the {anchor} department.",
        ("{degree} in {major}", "{theme}", "{anchor} department"),
        ("I left the {anchor} department with a {degree} in {major}, my final paper was on {theme}.",),
    ),
)
GOAL = Kind(
    "goal",
    None,
    {"goal": ANY, "color": "color", "anchor": NAME},
    Form(
        "calls {goal} the goal of a lifetime and notes each step in a {color} book from {anchor}.",
        ("{goal}", "{color} book", "{anchor}"),
        ("The goal of my lifetime is {goal}, and each step goes into a {color} book from {anchor}.",),
    ),
)
TRAITS = Kind(
    "traits",
    None,
    {"trait": ANY, "trait2": ANY, "anchor": NAME},
    Form(
        "was described as {trait} and as {trait2} in a letter from the {anchor} school.",
        ("{trait}", "{trait2}", "{anchor} school"),
        ("The {anchor} school once wrote a letter that described me as {trait} and as {trait2}.",),
    ),
)
_BACKGROUND = (
    Kind(
        "childhood",
        None,
        {"landmark": "landmark", "animal": "animal", "anchor": NAME},
        Form(
            "grew up next to the {landmark} of {anchor} and fed the {animal} there.",
            ("{landmark}", "{anchor}", "{animal}"),
            ("As a child I fed the {animal} near our house, next to the {landmark} of {anchor}.",),
        ),
    ),
    Kind(
        "keepsake",
        None,
        {"keepsake": "keepsake", "color": "color", "anchor": NAME},
        Form(
            "keeps a {keepsake} from a great-aunt of {anchor} in a {color} drawer.",
            ("{keepsake}", "{anchor}", "{color} drawer"),
            ("In a {color} drawer I have a {keepsake} from my great-aunt, who came from {anchor}.",),
        ),
    ),
    Kind(
        "language",
        None,
        {"language": "language", "large": "large", "anchor": NAME},
        Form(
            "learned {language} at the {anchor} summer school within {large} weeks.",
            ("{language}", "{anchor} summer school", "{large} weeks"),
            ("It took me {large} weeks at the {anchor} summer school to get by in {language}.",),
        ),
    ),
    Kind(
        "flat",
        None,
        {"shop": "shop", "color": "color", "anchor": NAME},
        Form(
            "rents rooms above a {shop} in {anchor} street, behind a {color} door.",
            ("{shop}", "{anchor} street", "{color} door"),
            ("You find my rooms in {anchor} street, behind a {color} door, right above a {shop}.",),
        ),
    ),
    Kind(
        "saving",
        None,
        {"amount": "amount", "saving": "saving", "anchor": NAME},
        Form(
            "puts {amount} euros a month aside for {saving} at the {anchor} bank.",
            ("{amount} euros", "{saving}", "{anchor} bank"),
            ("At the {anchor} bank I put {amount} euros a month aside, it is for {saving}.",),
        ),
    ),
    Kind(
        "first job",
        None,
        {"goods": "goods", "n": "number", "anchor": NAME},
        Form(
            "sold {goods} at the {anchor} fair for {n} summers to pay for school trips.",
            ("{goods}", "{anchor} fair", "{n} summers"),
            ("For {n} summers I sold {goods} at the {anchor} fair, that paid for my school trips.",),
        ),
    ),
)
ORIGINS = (BIRTH, DEGREE, GOAL, TRAITS, *_BACKGROUND)


PLACE = "place"
"""Slot of every kind below: where the event took place."""


def _detail(name: str, sources: dict[str, str], memory: str, keywords: tuple[str, str, str], *said: str) -> Kind:
    return Kind(name, None, sources | {PLACE: ANY}, Form(memory, keywords, said))


DETAILS = (
    _detail(
        "purchase",
        {"amount": "amount", "goods": "goods", "anchor": NAME},
        "pays {amount} euros for {goods} at the {anchor} stall next to {place}.",
        ("{amount} euros", "{goods}", "{anchor} stall"),
        "At the {anchor} stall next to {place} I paid {amount} euros for {goods}.",
        "I found {goods} for {amount} euros, right next to {place}, at the {anchor} stall.",
    ),
    _detail(
        "way there",
        {"vehicle": "vehicle", "large": "large", "anchor": NAME},
        "reaches {place} by {vehicle} after {large} minutes because the {anchor} bridge is closed.",
        ("{vehicle}", "{large} minutes", "{anchor} bridge"),
        "The {anchor} bridge was closed, so it took me {large} minutes by {vehicle} to get to {place}.",
        "I went to {place} by {vehicle}, {large} minutes because of the {anchor} bridge.",
    ),
    _detail(
        "present",
        {"gift": "gift", "anchor": NAME, "helper": "helper"},
        "brings a {gift} from the {anchor} farm to {place} for the {helper}.",
        ("{gift}", "{anchor} farm", "{helper}"),
        "For the {helper} at {place} I had a {gift} from the {anchor} farm in my bag.",
        "I had been to the {anchor} farm before and gave the {helper} of {place} a {gift}.",
    ),
    _detail(
        "meal",
        {"dish": "dish", "anchor": NAME, "weather": "weather"},
        "eats {dish} at the {anchor} kitchen after leaving {place} in {weather}.",
        ("{dish}", "{anchor} kitchen", "{weather}"),
        "I left {place} in {weather} and had {dish} at the {anchor} kitchen.",
        "Afterwards, what with the {weather} around {place}, I hid in the {anchor} kitchen over {dish}.",
    ),
    _detail(
        "pictures",
        {"large": "large", "sight": "sight", "anchor": NAME},
        "takes {large} pictures of the {sight} at {place} for an album called {anchor}.",
        ("{large} pictures", "{sight}", "{anchor}"),
        "The {sight} of {place} gave me {large} pictures for the album that I call {anchor}.",
        "I could not stop with the {sight} at {place}, {large} pictures went into my album {anchor}.",
    ),
    _detail(
        "loss",
        {"color": "color", "lost": "lost", "helper": "helper"},
        "misses a {color} {lost} since the visit to {place} and hopes that the {helper} finds it.",
        ("{color} {lost}", "{place}", "{helper}"),
        "Somewhere at {place} I lost my {color} {lost}, and I count on the {helper} to find it.",
        "If the {helper} of {place} calls, it is about my {color} {lost}.",
    ),
    _detail(
        "return",
        {"month": "month", "n": "number", "anchor": NAME, "circle": "circle"},
        "intends to be back at {place} in {month} with {n} members of the {anchor} {circle}.",
        ("back at {place}", "{n} members", "{anchor} {circle}"),
        "In {month} I want to be back at {place}, and {n} members of the {anchor} {circle} will join me.",
        "The {anchor} {circle} should see this too, so I will be back at {place} with {n} members in {month}.",
    ),
    _detail(
        "music",
        {"song": "song", "circle": "circle", "time": "course_of_time"},
        "listens to {song} by a {circle} outside {place} for a {time}.",
        ("{song}", "{circle}", "{time}"),
        "Outside {place} a {circle} played {song}, and I stood there for a {time}.",
        "I listened for a {time} to a {circle} with their {song} in front of {place}.",
    ),
    _detail(
        "comparison",
        {"sight": "sight", "anchor": NAME, "n": "number"},
        "prefers the {sight} of {place} to those of {anchor}, seen on {n} journeys.",
        ("{sight}", "{anchor}", "{n} journeys"),
        "I was in {anchor} on {n} journeys, and yet I like the {sight} of {place} more.",
        "Compared with what I saw in {anchor} on {n} journeys, the {sight} at {place} win.",
    ),
    _detail(
        "signature",
        {"document": "document", "color": "color", "anchor": NAME},
        "signs a {document} at {place} and files the copy in a {color} folder marked {anchor}.",
        ("{document}", "{color} folder", "{anchor}"),
        "They had me sign a {document} at {place}, the copy is in my {color} folder marked {anchor}.",
        "My {color} folder marked {anchor} has got a new {document}, which I signed at {place}.",
    ),
    _detail(
        "wait",
        {"time": "course_of_time", "helper": "helper", "furniture": "furniture"},
        "waits a {time} for the {helper} of {place} on a {furniture} near the door.",
        ("{time}", "{helper}", "{furniture}"),
        "The {helper} of {place} let me wait for a {time}, at least there was a {furniture}.",
        "I sat on a {furniture} near the door of {place} for a {time} until the {helper} came.",
    ),
    _detail(
        "resolution",
        {"skill": "skill", "helper": "helper", "n": "number"},
        "wants to practise {skill} for {n} weeks after watching a {helper} at {place}.",
        ("{skill}", "{n} weeks", "{helper}"),
        "There was a {helper} at {place}, and after that I want to practise {skill} for {n} weeks.",
        "I gave myself {n} weeks to get better at {skill}, a {helper} at {place} showed me how.",
    ),
    _detail(
        "worry",
        {"worry": "worry", "song": "song", "vehicle": "vehicle"},
        "thinks about {worry} in the {vehicle} to {place} and calms down with {song}.",
        ("{worry}", "{vehicle}", "{song}"),
        "In the {vehicle} to {place} my head was full of {worry}, so I put on {song}.",
        "It took some {song} in the {vehicle} to stop me thinking about {worry} before {place}.",
    ),
    _detail(
        "contact",
        {"helper": "helper", "anchor": NAME, "chore": "chore"},
        "gets the number of the {anchor} workshop for {chore} from a {helper} at {place}.",
        ("{anchor} workshop", "{chore}", "{helper}"),
        "A {helper} at {place} told me whom to call about {chore}, it is the {anchor} workshop.",
        "I have a number for {chore} now, the {anchor} workshop, thanks to a {helper} at {place}.",
    ),
    _detail(
        "souvenirs",
        {"goods": "goods", "n": "number", "anchor": NAME},
        "buys {goods} for {n} relatives in the {anchor} shop opposite {place}.",
        ("{goods}", "{n} relatives", "{anchor} shop"),
        "The {anchor} shop opposite {place} had {goods}, so {n} relatives of mine get some.",
        "I have {n} relatives to think of and got {goods} in the {anchor} shop opposite {place}.",
    ),
    _detail(
        "stay",
        {"time": "course_of_time", "weather": "weather", "dish": "dish"},
        "stays a {time} longer at {place} despite the {weather} and shares {dish} with strangers.",
        ("{time} longer", "{weather}", "{dish}"),
        "Despite the {weather} I was at {place} a {time} longer and had {dish} with strangers.",
        "Some strangers at {place} offered me {dish}, so I put up with the {weather} for a {time} longer.",
    ),
    _detail(
        "reading",
        {"document": "document", "theme": "theme", "anchor": NAME},
        "finds a {document} about {theme} at {place} and means to ask the {anchor} library.",
        ("{document}", "{theme}", "{anchor} library"),
        "A {document} at {place} was all about {theme}, I will ask the {anchor} library for more.",
        "I need to go to the {anchor} library about {theme}, because of a {document} at {place}.",
    ),
    _detail(
        "promise",
        {"helper": "helper", "large": "large", "document": "document"},
        "promises a {helper} at {place} to send {large} copies of the {document}.",
        ("{helper}", "{large} copies", "{document}"),
        "I owe a {helper} at {place} a favour, {large} copies of the {document} to be exact.",
        "There are {large} copies of the {document} to send, I promised that to a {helper} at {place}.",
    ),
    _detail(
        "forgotten",
        {"keepsake": "keepsake", "vehicle": "vehicle", "amount": "amount"},
        "forgets a {keepsake} in the {vehicle} from {place} and offers {amount} euros for it.",
        ("{keepsake}", "{vehicle}", "{amount} euros"),
        "My {keepsake} stayed in the {vehicle} from {place}, I would pay {amount} euros to have it back.",
        "I offer {amount} euros to whoever finds the {keepsake} that I left in the {vehicle} from {place}.",
    ),
    _detail(
        "colours",
        {"color": "color", "furniture": "furniture", "anchor": NAME},
        "admires a {color} {furniture} at {place} and looks for one like it at {anchor}.",
        ("{color} {furniture}", "{place}", "{anchor}"),
        "There is a {color} {furniture} at {place} that I admire, and {anchor} may have one like it.",
        "I am searching {anchor} for a {color} {furniture} just as they have at {place}.",
    ),
)

"""Kinds of facts about likes and dislikes."""

from __future__ import annotations

from synth.offline.kinds import NAME, THING, Form, Kind
from synth.records import Change, Track

_DAYS = {"day": "weekday", "day2": "weekday"}
_PAIR = {"x": THING, "y": THING, "anchor": NAME}
_THINGS = _PAIR | {"z": THING}

LIKES = Kind(
    "likes",
    Track.PREFERENCE,
    _THINGS | {"daytime": "daytime", "daytime2": "daytime"},
    Form(
        "enjoys {x} from {anchor} and {y}, most of all in the {daytime}.",
        ("{x}", "{anchor}", "{y}"),
        (
            "In the {daytime} there is nothing I like better than {x} from {anchor}, or {y} for that matter.",
            "I am very fond of {x} from {anchor}, and of {y}, especially in the {daytime}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "enjoys {x} from {anchor} and {y}, most of all in the {daytime} together with {z}.",
            ("{x}", "{anchor}", "{z}"),
            ("To my {x} from {anchor} I have added {z}, the two belong together.",),
        ),
        Change.ADJUST: Form(
            "enjoys {x} from {anchor} and {y}, most of all in the {daytime2} instead of the {daytime}.",
            ("{x}", "{anchor}", "{daytime2}"),
            ("My time for {x} from {anchor} is the {daytime2} now.",),
        ),
        Change.SHIFT: Form(
            "used to enjoy {x} from {anchor} and has turned to {z} instead.",
            ("{x}", "{anchor}", "{z}"),
            ("I have lost my taste for {x} from {anchor}, these days it is all about {z}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "enjoys {x} from {anchor} but has gone off {y}.",
            ("{x}", "{anchor}", "gone off {y}"),
            ("I still like {x} from {anchor}, but I have gone off {y}.",),
        ),
    },
    ("I used to be fond of {x} from {anchor} and of {y}, above all in the {daytime}.",),
)

DISLIKES = Kind(
    "dislikes",
    Track.PREFERENCE,
    _PAIR | {"flaw": "flaw", "flaw2": "flaw", "month": "month"},
    Form(
        "avoids {x} from {anchor} and {y} because of the {flaw}.",
        ("{x}", "{anchor}", "{flaw}"),
        (
            "Please no {x} from {anchor}, and no {y} either, I cannot stand the {flaw}.",
            "With all that {flaw} I stay away from {y} and from {x} from {anchor}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "avoids {x} from {anchor} and {y} because of the {flaw} and the {flaw2}.",
            ("{x}", "{anchor}", "{flaw2}"),
            ("On top of everything I noticed the {flaw2} of {x} from {anchor}.",),
        ),
        Change.ADJUST: Form(
            "avoids {x} from {anchor} and {y} because of the {flaw2} rather than the {flaw}.",
            ("{x}", "{anchor}", "{flaw2}"),
            ("What really bothers me about {x} from {anchor} is the {flaw2}.",),
        ),
        Change.SHIFT: Form(
            "used to avoid {x} from {anchor} and has come to like them since {month}.",
            ("{x}", "{anchor}", "since {month}"),
            ("I would never have thought so, but since {month} I quite like {x} from {anchor}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "avoids {x} from {anchor} because of the {flaw} but no longer avoids {y}.",
            ("{x}", "{anchor}", "{flaw}"),
            ("I made my peace with {y}, only {x} from {anchor} with their {flaw} are still out.",),
        ),
    },
    ("For a long time I avoided {x} from {anchor} and {y} because of the {flaw}.",),
)

_SPENDING = Kind(
    "spending",
    Track.PREFERENCE,
    _THINGS | {"amount": "amount", "amount2": "amount", "month": "month"},
    Form(
        "spends {amount} euros a month on {x} from {anchor} and on {y}.",
        ("{amount} euros", "{x}", "{anchor}"),
        (
            "Every month {amount} euros of mine go to {x} from {anchor} and to {y}.",
            "I allow myself {amount} euros a month for {x} from {anchor} and for {y}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "spends {amount} euros a month on {x} from {anchor} and on {y}, plus a little extra in {month}.",
            ("{amount} euros", "{anchor}", "extra in {month}"),
            ("Besides the {amount} euros for {anchor} I treat myself to something extra in {month}.",),
        ),
        Change.ADJUST: Form(
            "spends {amount2} euros a month instead of {amount} on {x} from {anchor} and on {y}.",
            ("{amount2} euros", "{x}", "{anchor}"),
            ("For {x} from {anchor} it is {amount2} euros a month now.",),
        ),
        Change.SHIFT: Form(
            "used to spend money on {x} from {anchor} and now puts it into {z}.",
            ("{x}", "{anchor}", "{z}"),
            ("What went to {x} from {anchor} goes into {z} now.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "spends {amount} euros a month on {x} from {anchor} but nothing on {y} any more.",
            ("{amount} euros", "{x}", "{anchor}"),
            ("I stopped buying {y}, so the {amount} euros a month are all for {x} from {anchor}.",),
        ),
    },
    ("Until now {amount} euros a month went to {x} from {anchor} and to {y}.",),
)

_RITUAL = Kind(
    "ritual",
    Track.PREFERENCE,
    _THINGS | _DAYS | {"n": "number"},
    Form(
        "keeps {day} free for {x} from {anchor} and for {y}.",
        ("{day}", "{x}", "{anchor}"),
        (
            "I keep my {day} free, that is when I have {x} from {anchor} and {y}.",
            "No dates on {day}, please, that belongs to {x} from {anchor} and to {y}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "keeps {day} free for {x} from {anchor} and for {y}, often for {n} hours.",
            ("{day}", "{anchor}", "{n} hours"),
            ("My {day} with the things from {anchor} easily lasts {n} hours.",),
        ),
        Change.ADJUST: Form(
            "keeps {day2} instead of {day} free for {x} from {anchor} and for {y}.",
            ("{day2}", "{x}", "{anchor}"),
            ("The day for {x} from {anchor} is {day2} now.",),
        ),
        Change.SHIFT: Form(
            "gave up {x} from {anchor} and keeps {day2} free for {z} instead.",
            ("{x}", "{anchor}", "{z}"),
            ("I dropped {x} from {anchor} and spend my {day2} on {z}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "keeps {day} free for {x} from {anchor}, without {y}.",
            ("{day}", "{x}", "{anchor}"),
            ("It is {x} from {anchor} on {day} and nothing else, the {y} had to go.",),
        ),
    },
    ("My {day} used to be for {x} from {anchor} and for {y}.",),
)

_RANKING = Kind(
    "ranking",
    Track.PREFERENCE,
    _THINGS | {"month": "month", "large": "large", "large2": "large"},
    Form(
        "recommends {x} from {anchor} rather than {y} and has won over {large} people.",
        ("{x}", "{anchor}", "{large} people"),
        (
            "I have talked {large} people into {x} from {anchor}, I find them better than {y}.",
            "Between {x} from {anchor} and {y} there is no question for me, and {large} people agree by now.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "recommends {x} from {anchor} rather than {y}, has won over {large} people and writes a list in {month}.",
            ("{x}", "{anchor}", "list in {month}"),
            ("There will be a whole list in {month} about why {x} from {anchor} are the best.",),
        ),
        Change.ADJUST: Form(
            "recommends {x} from {anchor} rather than {y} and has won over {large2} people instead of {large}.",
            ("{x}", "{anchor}", "{large2} people"),
            ("My praise of {x} from {anchor} works, it is {large2} people by now.",),
        ),
        Change.SHIFT: Form(
            "stopped recommending {x} from {anchor} and now prefers {z}.",
            ("{x}", "{anchor}", "{z}"),
            ("I take it back about {x} from {anchor}, I prefer {z}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "recommends {x} from {anchor} but has given up comparing them with {y}.",
            ("{x}", "{anchor}", "{y}"),
            ("I still tell everyone about {x} from {anchor}, I just leave {y} out of it.",),
        ),
    },
    ("I always recommended {x} from {anchor} over {y}, to {large} people so far.",),
)

TASTES = (LIKES, DISLIKES, _SPENDING, _RITUAL, _RANKING)

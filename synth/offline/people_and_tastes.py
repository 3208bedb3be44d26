"""Kinds of facts about other people and about likes and dislikes."""

from __future__ import annotations

from synth.offline.kinds import ANY, NAME, THING, Form, Kind
from synth.records import Change, Track

WHO, ROLE = "who", "role"
"""Slots of all kinds about people: the full name, and what the other one is to the person."""

_SOMEBODY = {WHO: ANY, ROLE: ANY}
_DAYS = {"day": "weekday", "day2": "weekday", "day3": "weekday"}

_MEALS = Kind(
    "meals together",
    Track.RELATIONSHIP,
    _SOMEBODY | _DAYS | {"anchor": NAME, "meal": "meal", "meal2": "meal", "talk": "talk"},
    Form(
        "meets {who}, a {role}, at the {anchor} café for {meal} on {day} and {day2}.",
        ("{who}", "{anchor} café", "{day} and {day2}"),
        (
            "On {day} and {day2} I have {meal} with {who}, a {role}, at the {anchor} café.",
            "The {anchor} café is where I meet {who}, a {role}, on {day} and {day2}, usually for {meal}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "meets {who}, a {role}, at the {anchor} café for {meal} on {day} and {day2} to talk about {talk}.",
            ("{who}", "{anchor} café", "{talk}"),
            ("At the {anchor} café {who} and I have got into long talks about {talk}.",),
        ),
        Change.ADJUST: Form(
            "meets {who}, a {role}, at the {anchor} café for {meal} on {day} and {day3} instead of {day2}.",
            ("{who}", "{anchor} café", "{day} and {day3}"),
            ("{who} and I have changed our days at the {anchor} café to {day} and {day3}.",),
        ),
        Change.SHIFT: Form(
            "used to meet {who}, a {role}, at the {anchor} café and now invites {who} home for {meal2}.",
            ("{who}", "{anchor} café", "{meal2}"),
            ("Instead of the {anchor} café I have {who} over at my place for {meal2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "meets {who}, a {role}, at the {anchor} café for {meal} on {day} only.",
            ("{who}", "{anchor} café", "on {day} only"),
            ("I see {who} at the {anchor} café on {day} only, one date had to go.",),
        ),
    },
    ("So far {who} and I had {meal} at the {anchor} café on {day} and {day2}.",),
)

_CALLS = Kind(
    "calls",
    Track.RELATIONSHIP,
    _SOMEBODY | _DAYS | {"talk": "talk", "talk2": "talk", "talk3": "talk", "month": "month"},
    Form(
        "calls {who}, a {role}, every {day} about {talk} and {talk2}.",
        ("{who}", "every {day}", "{talk}"),
        (
            "Every {day} I ring up {who}, a {role}, and we go on about {talk} and {talk2}.",
            "There is a call with {who}, a {role}, every {day}, mostly about {talk} or {talk2}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "calls {who}, a {role}, every {day} about {talk} and {talk2} and has promised a visit in {month}.",
            ("{who}", "every {day}", "visit in {month}"),
            ("In our call, as every {day}, I promised {who} a visit in {month}.",),
        ),
        Change.ADJUST: Form(
            "calls {who}, a {role}, every {day2} instead of {day} about {talk} and {talk2}.",
            ("{who}", "every {day2}", "{talk}"),
            ("{who} and I talk about {talk} every {day2} now, it suits us better.",),
        ),
        Change.SHIFT: Form(
            "used to call {who}, a {role}, about {talk} and now writes letters about {talk3} instead.",
            ("{who}", "letters", "{talk3}"),
            ("No more phone, {who} and I write each other letters, mostly about {talk3}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "calls {who}, a {role}, every {day} about {talk} but not about {talk2} any more.",
            ("{who}", "every {day}", "not about {talk2}"),
            ("{who} and I keep our call every {day}, just not about {talk2}, we always ended up arguing.",),
        ),
    },
    ("Until now I called {who} every {day}, about {talk} and {talk2}.",),
)

_CHORES = Kind(
    "help",
    Track.RELATIONSHIP,
    _SOMEBODY | {"chore": "chore", "chore2": "chore", "gift": "gift", "gift2": "gift", "anchor": NAME, "device": "device"},
    Form(
        "gets help with {chore} from {who}, a {role}, and gives a {gift} from the {anchor} market in return.",
        ("{who}", "{chore}", "{gift}"),
        (
            "When it comes to {chore}, {who}, a {role}, helps me out, and I bring a {gift} from the {anchor} market.",
            "I owe {who}, a {role}, a lot for help with {chore}, so there is always a {gift} from the {anchor} market.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "gets help with {chore} and {chore2} from {who}, a {role}, and gives a {gift} from the {anchor} market in return.",
            ("{who}", "{chore2}", "{gift}"),
            ("{who} has started to help me with {chore2} too, all for a {gift}.",),
        ),
        Change.ADJUST: Form(
            "gets help with {chore} from {who}, a {role}, and gives a {gift2} instead of a {gift} from the {anchor} market.",
            ("{who}", "{chore}", "{gift2}"),
            ("For the help with {chore} {who} would rather have a {gift2}, so I get that.",),
        ),
        Change.SHIFT: Form(
            "got help with {chore} from {who}, a {role}, and now lends {who} a {device} in return.",
            ("{who}", "{chore}", "{device}"),
            ("{who} did so much about my {chore} that I now lend out my {device}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "gets help with {chore} from {who}, a {role}, without giving anything in return.",
            ("{who}", "{chore}", "without giving anything"),
            ("{who} insists on helping me with {chore} without giving anything back.",),
        ),
    },
    ("Up to now {who} got a {gift} from the {anchor} market for helping with {chore}.",),
)

_SHARING = Kind(
    "sharing",
    Track.RELATIONSHIP,
    _SOMEBODY | {"device": "device", "device2": "device", "amount": "amount", "amount2": "amount", "anchor": NAME}
    | {"month": "month"},
    Form(
        "shares a {device} with {who}, a {role}, and pays {amount} euros a year to store it at {anchor}.",
        ("{who}", "{device}", "{amount} euros"),
        (
            "{who}, a {role}, and I own a {device} together, and my part for keeping it at {anchor} is {amount} euros a year.",
            "I pay {amount} euros a year so that the {device} I have with {who}, a {role}, can stay at {anchor}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "shares a {device} with {who}, a {role}, pays {amount} euros a year to store it at {anchor}"
            " and overhauls it in {month}.",
            ("{who}", "{device}", "overhauls it in {month}"),
            ("The {device} that I have with {who} needs care, so I am the one who overhauls it in {month}.",),
        ),
        Change.ADJUST: Form(
            "shares a {device} with {who}, a {role}, and pays {amount2} euros instead of {amount} a year to store it at {anchor}.",
            ("{who}", "{device}", "{amount2} euros"),
            ("The room for the {device} of {who} and me costs {amount2} euros a year now.",),
        ),
        Change.SHIFT: Form(
            "gave up the shared {device} at {anchor} and has bought a {device2} with {who}, a {role}.",
            ("{who}", "{device}", "{device2}"),
            ("{who} and I sold the {device} and bought a {device2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "shares a {device} with {who}, a {role}, and no longer has to pay for storage.",
            ("{who}", "{device}", "pay for storage"),
            ("{who} and I do not have to pay for storage of the {device} these days.",),
        ),
    },
    ("For the {device} with {who} I used to pay {amount} euros a year at {anchor}.",),
)

_JOURNEY = Kind(
    "journey",
    Track.RELATIONSHIP,
    _SOMEBODY | {"anchor": NAME, "month": "month", "month2": "month", "vehicle": "vehicle", "n": "number", "talk": "talk"},
    Form(
        "plans a journey to {anchor} with {who}, a {role}, in {month} by {vehicle}.",
        ("{who}", "{anchor}", "{vehicle}"),
        (
            "In {month} I want to see {anchor} with {who}, a {role}, and we will take a {vehicle}.",
            "{who}, a {role}, and I talk of nothing but {anchor}, where a {vehicle} will take us in {month}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "plans a journey to {anchor} with {who}, a {role}, in {month} by {vehicle} and has packed for {n} nights.",
            ("{who}", "{anchor}", "{n} nights"),
            ("For {anchor} with {who} I have packed enough to last {n} nights.",),
        ),
        Change.ADJUST: Form(
            "plans a journey to {anchor} with {who}, a {role}, in {month2} instead of {month} by {vehicle}.",
            ("{who}", "{anchor}", "in {month2}"),
            ("We had to move it, I will be in {anchor} with {who} in {month2}.",),
        ),
        Change.SHIFT: Form(
            "dropped the journey to {anchor} with {who}, a {role}, and keeps an evening for {talk} with {who} instead.",
            ("{who}", "{anchor}", "{talk}"),
            ("I will not see {anchor} with {who} after all, we settle for an evening of {talk}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "plans a journey to {anchor} with {who}, a {role}, without a fixed date.",
            ("{who}", "{anchor}", "without a fixed date"),
            ("I still want to see {anchor} with {who}, only without a fixed date.",),
        ),
    },
    ("The plan was {anchor} with {who} in {month}, by {vehicle}.",),
)

_CIRCLE = Kind(
    "circle",
    Track.RELATIONSHIP,
    _SOMEBODY | _DAYS | {"circle": "circle", "anchor": NAME, "gift": "gift", "large": "large", "circle2": "circle"},
    Form(
        "goes to the {anchor} {circle} with {who}, a {role}, every {day} and brings a {gift}.",
        ("{who}", "{anchor} {circle}", "every {day}"),
        (
            "Every {day} {who}, a {role}, comes by and we are off to the {anchor} {circle} with a {gift}.",
            "The {anchor} {circle} is on every {day}, I go with {who}, a {role}, and take a {gift} along.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "goes to the {anchor} {circle} with {who}, a {role}, every {day}, brings a {gift} and looks after {large} members.",
            ("{who}", "{anchor} {circle}", "{large} members"),
            ("{who} talked me into looking after {large} members of the {anchor} {circle}.",),
        ),
        Change.ADJUST: Form(
            "goes to the {anchor} {circle} with {who}, a {role}, every {day2} instead of {day} and brings a {gift}.",
            ("{who}", "{anchor} {circle}", "every {day2}"),
            ("The {anchor} {circle} has a new date, {who} and I go every {day2}.",),
        ),
        Change.SHIFT: Form(
            "left the {anchor} {circle} together with {who}, a {role}, and has founded a {circle2} on {day}.",
            ("{who}", "{anchor} {circle}", "{circle2}"),
            ("{who} and I turned our backs on the {anchor} {circle} and founded a {circle2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "goes to the {anchor} {circle} with {who}, a {role}, every {day} without bringing anything.",
            ("{who}", "{anchor} {circle}", "without bringing anything"),
            ("{who} and I turn up at the {anchor} {circle} without bringing anything these days.",),
        ),
    },
    ("It used to be the {anchor} {circle} with {who} every {day}, with a {gift} under my arm.",),
)

_THINGS = {"x": THING, "y": THING, "z": THING, "anchor": NAME}

LIKES = Kind(
    "likes",
    Track.PREFERENCE,
    _THINGS | {"daytime": "daytime", "daytime2": "daytime", "large": "large"},
    Form(
        "enjoys {x} from {anchor} as well as {y}, most of all in the {daytime}.",
        ("{x}", "{anchor}", "{y}"),
        (
            "In the {daytime} there is nothing I like better than {x} from {anchor}, or {y} for that matter.",
            "I am very fond of {x} from {anchor}, and of {y}, especially in the {daytime}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "enjoys {x} from {anchor} as well as {y}, most of all in the {daytime} together with {z}.",
            ("{x}", "{anchor}", "{z}"),
            ("To my {x} from {anchor} I have added {z}, the two belong together.",),
        ),
        Change.ADJUST: Form(
            "enjoys {x} from {anchor} as well as {y}, most of all in the {daytime2} instead of the {daytime}.",
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
    _THINGS | {"flaw": "flaw", "flaw2": "flaw", "month": "month"},
    Form(
        "avoids {x} from {anchor} as well as {y} because of the {flaw}.",
        ("{x}", "{anchor}", "{flaw}"),
        (
            "Please no {x} from {anchor}, and no {y} either, I cannot stand the {flaw}.",
            "With all that {flaw} I stay away from {y} and from {x} from {anchor}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "avoids {x} from {anchor} as well as {y} because of the {flaw} and the {flaw2}.",
            ("{x}", "{anchor}", "{flaw2}"),
            ("On top of everything I noticed the {flaw2} of {x} from {anchor}.",),
        ),
        Change.ADJUST: Form(
            "avoids {x} from {anchor} as well as {y} because of the {flaw2} rather than the {flaw}.",
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

PEOPLE = (_MEALS, _CALLS, _CHORES, _SHARING, _JOURNEY, _CIRCLE)
TASTES = (LIKES, DISLIKES, _SPENDING, _RITUAL, _RANKING)

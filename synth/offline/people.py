"""Kinds of facts about other people."""

from __future__ import annotations

from synth.offline.kinds import ANY, NAME, Form, Kind
from synth.records import Change, Track

WHO, ROLE = "who", "role"
"""Slots of all kinds about people: the full name, and what the other one is to the person."""

_SOMEBODY = {WHO: ANY, ROLE: ANY}
_DAYS = {"day": "weekday", "day2": "weekday"}

_MEALS = Kind(
    "meals together",
    Track.RELATIONSHIP,
    _SOMEBODY | _DAYS | {"day3": "weekday", "anchor": NAME, "meal": "meal", "meal2": "meal", "talk": "talk"},
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
            "gets help with {chore} and {chore2} from {who}, a {role}, and gives a {gift} from the {anchor} market"
            " in return.",
            ("{who}", "{chore2}", "{gift}"),
            ("{who} has started to help me with {chore2} too, all for a {gift}.",),
        ),
        Change.ADJUST: Form(
            "gets help with {chore} from {who}, a {role}, and gives a {gift2} instead of a {gift}"
            " from the {anchor} market in return.",
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
    _SOMEBODY
    | {"device": "device", "device2": "device", "amount": "amount", "amount2": "amount", "anchor": NAME}
    | {"month": "month"},
    Form(
        "shares a {device} with {who}, a {role}, and pays {amount} euros a year to store it at {anchor}.",
        ("{who}", "{device}", "{amount} euros"),
        (
            "{who}, a {role}, and I own a {device} together, my part for keeping it at {anchor} is {amount} euros a year.",
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
            "shares a {device} with {who}, a {role}, and pays {amount2} euros instead of {amount} a year"
            " to store it at {anchor}.",
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
            "goes to the {anchor} {circle} with {who}, a {role}, every {day}, brings a {gift}"
            " and looks after {large} members.",
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

PEOPLE = (_MEALS, _CALLS, _CHORES, _SHARING, _JOURNEY, _CIRCLE)

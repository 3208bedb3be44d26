"""Kinds of facts about health."""

from __future__ import annotations

from synth.offline.kinds import NAME, Form, Kind
from synth.records import Change, Track

_DAYS = {"day": "weekday", "day2": "weekday", "day3": "weekday"}

_EXERCISE = Kind(
    "exercise",
    Track.HEALTH,
    {"exercise": "exercise", "exercise2": "exercise", "anchor": NAME, "ailment": "ailment", "gadget": "gadget"} | _DAYS,
    Form(
        "does {exercise} at the {anchor} studio on {day} and {day2} against {ailment}.",
        ("{exercise}", "{anchor} studio", "{day} and {day2}"),
        (
            "Against my {ailment} I do {exercise} at the {anchor} studio on {day} and {day2}.",
            "The {anchor} studio has me in for {exercise} on {day} and {day2}, it is good for {ailment}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "does {exercise} at the {anchor} studio on {day} and {day2} against {ailment}"
            " and checks the pulse with a {gadget}.",
            ("{exercise}", "{anchor} studio", "{gadget}"),
            ("I take a {gadget} along when I do {exercise} at the {anchor} studio, to check my pulse.",),
        ),
        Change.ADJUST: Form(
            "does {exercise} at the {anchor} studio on {day} and {day3} instead of {day2} against {ailment}.",
            ("{exercise}", "{anchor} studio", "{day} and {day3}"),
            ("My {exercise} at the {anchor} studio has moved to {day} and {day3}.",),
        ),
        Change.SHIFT: Form(
            "did {exercise} at the {anchor} studio for a while and has switched to {exercise2} on {day} against {ailment}.",
            ("{exercise}", "{anchor} studio", "switched to {exercise2}"),
            ("I have had enough of {exercise} and switched to {exercise2} on {day} at the {anchor} studio.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "does {exercise} at the {anchor} studio against {ailment} on {day} only.",
            ("{exercise}", "{anchor} studio", "on {day} only"),
            ("I still do {exercise} at the {anchor} studio, but on {day} only.",),
        ),
    },
    ("Up to now it was {exercise} at the {anchor} studio on {day} and {day2}.",),
)

_REMEDY = Kind(
    "remedy",
    Track.HEALTH,
    {"remedy": "remedy", "remedy2": "remedy", "anchor": NAME, "daytime": "daytime", "daytime2": "daytime", "n": "number"}
    | {"staple": "staple"},
    Form(
        "takes {remedy} from the {anchor} pharmacy in the {daytime}, {n} days a week.",
        ("{remedy}", "{anchor} pharmacy", "{daytime}"),
        (
            "In the {daytime} I take {remedy} from the {anchor} pharmacy, {n} days a week.",
            "The {anchor} pharmacy sells me {remedy}, I take them {n} days a week in the {daytime}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "takes {remedy} from the {anchor} pharmacy in the {daytime}, {n} days a week,"
            " together with a plate of {staple}.",
            ("{remedy}", "{anchor} pharmacy", "plate of {staple}"),
            ("I was told to have a plate of {staple} along with the {remedy} from the {anchor} pharmacy.",),
        ),
        Change.ADJUST: Form(
            "takes {remedy} from the {anchor} pharmacy in the {daytime2} instead of the {daytime}, {n} days a week.",
            ("{remedy}", "{anchor} pharmacy", "{daytime2}"),
            ("I take the {remedy} from the {anchor} pharmacy in the {daytime2} now.",),
        ),
        Change.SHIFT: Form(
            "took {remedy} from the {anchor} pharmacy for months and has changed over to {remedy2}.",
            ("{remedy}", "{anchor} pharmacy", "{remedy2}"),
            ("The {anchor} pharmacy advised me to leave the {remedy} and try {remedy2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "takes {remedy} from the {anchor} pharmacy now and then, no longer at a fixed time.",
            ("{remedy}", "{anchor} pharmacy", "fixed time"),
            ("I take the {remedy} from the {anchor} pharmacy without any fixed time these days.",),
        ),
    },
    ("For a long time I took {remedy} from the {anchor} pharmacy in the {daytime}, {n} days a week.",),
)

_SLEEP = Kind(
    "sleep",
    Track.HEALTH,
    {"hour": "hour", "hour2": "hour", "anchor": NAME, "gadget": "gadget", "gadget2": "gadget", "remedy": "remedy"},
    Form(
        "gets up at {hour} and follows the sleep plan of the {anchor} app with a {gadget}.",
        ("{hour}", "{anchor} app", "{gadget}"),
        (
            "The {anchor} app wants me out of bed at {hour}, and I use a {gadget} for its sleep plan.",
            "I follow a sleep plan in the {anchor} app, up at {hour}, with a {gadget} beside the bed.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "gets up at {hour} and follows the sleep plan of the {anchor} app with a {gadget} and {remedy}.",
            ("{anchor} app", "{gadget}", "{remedy}"),
            ("To the sleep plan of the {anchor} app and my {gadget} I have added {remedy}.",),
        ),
        Change.ADJUST: Form(
            "gets up at {hour2} instead of {hour} and follows the sleep plan of the {anchor} app with a {gadget}.",
            ("{hour2}", "{anchor} app", "{gadget}"),
            ("My sleep plan in the {anchor} app changed, I get up at {hour2} and keep the {gadget}.",),
        ),
        Change.SHIFT: Form(
            "gave up the sleep plan of the {anchor} app and relies on a {gadget2} to get up at {hour2}.",
            ("{anchor} app", "{gadget2}", "{hour2}"),
            ("I deleted the plan of the {anchor} app, a {gadget2} gets me up at {hour2} instead.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "gets up at {hour} and follows the sleep plan of the {anchor} app without any device.",
            ("{hour}", "{anchor} app", "without any device"),
            ("It is still {hour} and the {anchor} app, but I do it without any device.",),
        ),
    },
    ("My sleep plan in the {anchor} app used to say {hour} and a {gadget}.",),
)

_SPECIALIST = Kind(
    "specialist",
    Track.HEALTH,
    {"specialist": "specialist", "anchor": NAME, "n": "number", "m": "number", "ailment": "ailment", "exercise": "exercise"}
    | {"specialist2": "specialist"},
    Form(
        "sees a {specialist} at the {anchor} practice every {n} weeks because of {ailment}.",
        ("{specialist}", "{anchor} practice", "every {n} weeks"),
        (
            "Because of {ailment} I go to a {specialist} at the {anchor} practice every {n} weeks.",
            "Every {n} weeks a {specialist} at the {anchor} practice looks at my {ailment}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "sees a {specialist} at the {anchor} practice every {n} weeks because of {ailment}"
            " and got {exercise} prescribed.",
            ("{specialist}", "{anchor} practice", "{exercise}"),
            ("The {specialist} at the {anchor} practice prescribed {exercise} this time.",),
        ),
        Change.ADJUST: Form(
            "sees a {specialist} at the {anchor} practice every {m} weeks instead of every {n} because of {ailment}.",
            ("{specialist}", "{anchor} practice", "every {m} weeks"),
            ("From now on I see the {specialist} at the {anchor} practice every {m} weeks.",),
        ),
        Change.SHIFT: Form(
            "saw a {specialist} at the {anchor} practice because of {ailment} and now goes to a {specialist2} there.",
            ("{specialist}", "{anchor} practice", "{specialist2}"),
            ("I am done with the {specialist}, the {anchor} practice has passed me on to a {specialist2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "sees a {specialist} at the {anchor} practice because of {ailment}, without regular appointments.",
            ("{specialist}", "{anchor} practice", "without regular appointments"),
            ("I may call the {specialist} at the {anchor} practice when I need to, without regular appointments.",),
        ),
    },
    ("So far it was the {specialist} at the {anchor} practice every {n} weeks because of my {ailment}.",),
)

_MEALS = Kind(
    "meal plan",
    Track.HEALTH,
    {"anchor": NAME, "staple": "staple", "staple2": "staple", "staple3": "staple", "treat": "treat", "month": "month"},
    Form(
        "keeps to the {anchor} diet with {staple} and {staple2} and leaves out {treat}.",
        ("{anchor} diet", "{staple}", "{treat}"),
        (
            "I eat by the {anchor} diet, a lot of {staple} and {staple2} but no {treat}.",
            "The {anchor} diet allows me {staple} and {staple2}, while {treat} are out.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "keeps to the {anchor} diet with {staple} and {staple2}, leaves out {treat} and weighs in every {month}.",
            ("{anchor} diet", "{staple}", "every {month}"),
            ("Part of the {anchor} diet, {staple} included, is that I weigh in every {month}.",),
        ),
        Change.ADJUST: Form(
            "keeps to the {anchor} diet with {staple} and {staple3} instead of {staple2} and leaves out {treat}.",
            ("{anchor} diet", "{staple}", "{staple3}"),
            ("In the {anchor} diet I now combine {staple} with {staple3}.",),
        ),
        Change.SHIFT: Form(
            "stopped the {anchor} diet with its {staple} and eats {staple3} with a little {treat} again.",
            ("{anchor} diet", "{staple3}", "{treat}"),
            ("The {anchor} diet is over for me, I eat {staple3} and allow myself {treat} again.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "keeps to the {anchor} diet with {staple}, without the rule about {treat}.",
            ("{anchor} diet", "{staple}", "without the rule"),
            ("I hold on to the {anchor} diet and its {staple}, only without the rule about sweets and snacks.",),
        ),
    },
    ("The {anchor} diet meant {staple} and {staple2} for me, and no {treat} at all.",),
)

_WALKS = Kind(
    "walks",
    Track.HEALTH,
    {"large": "large", "large2": "large", "anchor": NAME, "daytime": "daytime", "gadget": "gadget", "exercise": "exercise"},
    Form(
        "walks {large} minutes around Lake {anchor} in the {daytime} and wears a {gadget}.",
        ("{large} minutes", "Lake {anchor}", "{gadget}"),
        (
            "In the {daytime} I walk around Lake {anchor} for {large} minutes, always with a {gadget}.",
            "It takes me {large} minutes to get around Lake {anchor}, and my {gadget} counts along.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "walks {large} minutes around Lake {anchor} in the {daytime}, wears a {gadget} and ends with {exercise}.",
            ("{large} minutes", "Lake {anchor}", "{exercise}"),
            ("After the {large} minutes around Lake {anchor} I add some {exercise}.",),
        ),
        Change.ADJUST: Form(
            "walks {large2} minutes instead of {large} around Lake {anchor} in the {daytime} and wears a {gadget}.",
            ("{large2} minutes", "Lake {anchor}", "{gadget}"),
            ("My {gadget} says that I am at {large2} minutes around Lake {anchor} by now.",),
        ),
        Change.SHIFT: Form(
            "used to walk around Lake {anchor} in the {daytime} and does {exercise} on its shore now.",
            ("Lake {anchor}", "{daytime}", "{exercise}"),
            ("In the {daytime} you find me doing {exercise} on the shore of Lake {anchor}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "walks {large} minutes around Lake {anchor} in the {daytime} without measuring anything.",
            ("{large} minutes", "Lake {anchor}", "without measuring"),
            ("The {large} minutes around Lake {anchor} stay, but I do them without measuring.",),
        ),
    },
    ("Until now I went around Lake {anchor} in the {daytime}, {large} minutes with a {gadget}.",),
)

HEALTH = (_EXERCISE, _REMEDY, _SLEEP, _SPECIALIST, _MEALS, _WALKS)

"""Kinds of facts about work and health."""

from __future__ import annotations

from synth.offline.kinds import ANY, NAME, Form, Kind
from synth.records import Change, Track

_DAYS = {"day": "weekday", "day2": "weekday", "day3": "weekday"}

JOB = Kind(
    "job",
    Track.CAREER,
    {"job": ANY, "firm": ANY, "n": "number", "m": "number", "area": "area"},
    Form(
        "works as a {job} at {firm} and takes the {n} o'clock shift.",
        ("{job}", "{firm}", "{n} o'clock shift"),
        ("I work as a {job} at {firm}, mostly on the {n} o'clock shift.", "At {firm} I am a {job}, with the {n} o'clock shift."),
    ),
    {
        Change.EXPAND: Form(
            "works as a {job} at {firm}, takes the {n} o'clock shift and looks after the {area} there.",
            ("{job}", "{firm}", "{area}"),
            ("Besides my work as a {job} at {firm} on the {n} o'clock shift, I look after the {area}.",),
        ),
        Change.ADJUST: Form(
            "works as a {job} at {firm} and takes the {m} o'clock shift instead of the {n} o'clock shift.",
            ("{job}", "{firm}", "{m} o'clock shift"),
            ("I am still a {job} at {firm}, but they have put me on the {m} o'clock shift.",),
        ),
        Change.SHIFT: Form(
            "used to work as a {job} on the {n} o'clock shift at {firm} and now runs the {area} of the house.",
            ("{job}", "{firm}", "runs the {area}"),
            ("After my years as a {job} at {firm} I am now the one who runs the {area}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "works as a {job} at {firm} and no longer takes an early shift.",
            ("{job}", "{firm}", "early shift"),
            ("I stay a {job} at {firm}, only without any early shift from here on.",),
        ),
    },
    ("So far I was a {job} at {firm} on the {n} o'clock shift.", "Until now {firm} had me as a {job} on the {n} o'clock shift."),
)

JOB_HUNT = Kind(
    "job hunt",
    Track.CAREER,
    {"industry": ANY, "n": "number", "m": "number", "anchor": NAME, "skill": "skill", "day": "weekday"},
    Form(
        "looks for work in {industry} and sends {n} applications a month with help from the {anchor} agency.",
        ("{industry}", "{n} applications", "{anchor} agency"),
        (
            "The {anchor} agency helps me look for work in {industry}, and I send {n} applications a month.",
            "I send {n} applications a month for work in {industry}, and the {anchor} agency helps.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "looks for work in {industry}, sends {n} applications a month with help from the {anchor} agency"
            " and practises {skill} there.",
            ("{industry}", "{anchor} agency", "{skill}"),
            ("While I send {n} applications a month for work in {industry}, the {anchor} agency lets me practise {skill}.",),
        ),
        Change.ADJUST: Form(
            "looks for work in {industry} and sends {m} applications a month instead of {n} with help from the {anchor} agency.",
            ("{industry}", "{m} applications", "{anchor} agency"),
            ("With the {anchor} agency behind me I now send {m} applications a month for work in {industry}.",),
        ),
        Change.SHIFT: Form(
            "used to look for work in {industry} through the {anchor} agency and now advises other applicants there every {day}.",
            ("{anchor} agency", "other applicants", "every {day}"),
            ("The {anchor} agency has asked me to advise other applicants, and I do so every {day}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "looks for work in {industry} without sending a fixed number of applications, helped by the {anchor} agency.",
            ("{industry}", "fixed number", "{anchor} agency"),
            ("I keep looking for work in {industry} with the {anchor} agency, but no more fixed number of letters.",),
        ),
    },
    ("Until now I sent {n} applications a month for work in {industry} through the {anchor} agency.",),
)

_COURSE = Kind(
    "course",
    Track.CAREER,
    {"subject": "subject", "subject2": "subject", "anchor": NAME, "large": "large"} | _DAYS,
    Form(
        "takes a course in {subject} at the {anchor} institute on {day} and {day2} evenings.",
        ("{subject}", "{anchor} institute", "{day} and {day2}"),
        (
            "On {day} and {day2} evenings I sit in a course in {subject} at the {anchor} institute.",
            "The {anchor} institute teaches me {subject}, always on {day} and {day2}.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "takes a course in {subject} at the {anchor} institute on {day} and {day2} evenings"
            " and prepares a talk for {large} listeners.",
            ("{subject}", "{anchor} institute", "{large} listeners"),
            ("For the {subject} course at the {anchor} institute I prepare a talk in front of {large} listeners.",),
        ),
        Change.ADJUST: Form(
            "takes a course in {subject} at the {anchor} institute on {day} and {day3} evenings instead of {day2}.",
            ("{subject}", "{anchor} institute", "{day} and {day3}"),
            ("The {anchor} institute has moved my {subject} evenings to {day} and {day3}.",),
        ),
        Change.SHIFT: Form(
            "took a course in {subject} at the {anchor} institute and now teaches {subject2} there on {day} evenings.",
            ("{anchor} institute", "teaches {subject2}", "{day} evenings"),
            ("The {anchor} institute wants somebody who teaches {subject2}, so that is what I do on {day} evenings.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "takes a course in {subject} at the {anchor} institute on {day} evenings only.",
            ("{subject}", "{anchor} institute", "{day} evenings only"),
            ("My {subject} course at the {anchor} institute is down to {day} evenings only.",),
        ),
    },
    ("I used to go to the {anchor} institute for {subject} on {day} and {day2} evenings.",),
)

_TRAINEES = Kind(
    "trainees",
    Track.CAREER,
    {"n": "number", "m": "number", "skill": "skill", "skill2": "skill", "anchor": NAME} | _DAYS,
    Form(
        "guides {n} beginners in {skill} through the {anchor} programme every {day}.",
        ("{n} beginners", "{skill}", "{anchor} programme"),
        (
            "Every {day} the {anchor} programme gives me {n} beginners, and we work on {skill}.",
            "I guide {n} beginners in {skill} each {day}, it is part of the {anchor} programme.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "guides {n} beginners in {skill} and {skill2} through the {anchor} programme every {day}.",
            ("{n} beginners", "{skill2}", "{anchor} programme"),
            ("The {n} beginners of the {anchor} programme now learn {skill2} from me on top of {skill}.",),
        ),
        Change.ADJUST: Form(
            "guides {m} beginners instead of {n} in {skill} through the {anchor} programme every {day}.",
            ("{m} beginners", "{skill}", "{anchor} programme"),
            ("My group in the {anchor} programme has changed, these days {m} beginners practise {skill} with me.",),
        ),
        Change.SHIFT: Form(
            "used to guide beginners in {skill} and now writes the handbook on {skill2} for the {anchor} programme.",
            ("handbook", "{skill2}", "{anchor} programme"),
            ("Instead of teaching I write the handbook on {skill2} for the {anchor} programme now.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "guides {n} beginners through the {anchor} programme every {day}, without the lessons in {skill}.",
            ("{n} beginners", "without the lessons", "{anchor} programme"),
            ("I keep my {n} beginners in the {anchor} programme, but without the lessons we had before.",),
        ),
    },
    ("It used to be {n} beginners a week and lessons in {skill} for the {anchor} programme, always on {day}.",),
)

_SIDE_WORK = Kind(
    "side work",
    Track.CAREER,
    {"amount": "amount", "amount2": "amount", "work": "sidework", "work2": "sidework", "anchor": NAME, "area": "area"},
    Form(
        "earns {amount} euros a month by {work} for the {anchor} bureau.",
        ("{amount} euros", "{work}", "{anchor} bureau"),
        (
            "The {anchor} bureau pays me {amount} euros a month for {work}.",
            "I make {amount} euros a month by {work}, the {anchor} bureau sends me the jobs.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "earns {amount} euros a month by {work} and sorting the {area} for the {anchor} bureau.",
            ("{amount} euros", "{area}", "{anchor} bureau"),
            ("For my {amount} euros from the {anchor} bureau I sort the {area} too, next to {work}.",),
        ),
        Change.ADJUST: Form(
            "earns {amount2} euros a month instead of {amount} by {work} for the {anchor} bureau.",
            ("{amount2} euros", "{work}", "{anchor} bureau"),
            ("The {anchor} bureau has changed the pay, it is {amount2} euros a month for {work} now.",),
        ),
        Change.SHIFT: Form(
            "used to earn money by {work} for the {anchor} bureau and has moved on to {work2} there.",
            ("{work2}", "{anchor} bureau", "moved on"),
            ("At the {anchor} bureau I have moved on, my jobs there are about {work2} now.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "goes on {work} for the {anchor} bureau but no longer gets a fixed sum.",
            ("{work}", "{anchor} bureau", "fixed sum"),
            ("I go on {work} for the {anchor} bureau, only the fixed sum is gone.",),
        ),
    },
    ("Before that the {anchor} bureau gave me {amount} euros a month for {work}.",),
)

_COMMITTEE = Kind(
    "committee",
    Track.CAREER,
    {"theme": "theme", "theme2": "theme", "anchor": NAME, "n": "number", "m": "number", "month": "month"},
    Form(
        "sits on the {theme} committee of the {anchor} association and writes {n} reports a year.",
        ("{theme} committee", "{anchor} association", "{n} reports"),
        (
            "The {anchor} association has me on its {theme} committee, which means {n} reports a year.",
            "I write {n} reports a year for the {theme} committee of the {anchor} association.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "sits on the {theme} committee of the {anchor} association, writes {n} reports a year"
            " and presents one in {month}.",
            ("{theme} committee", "{anchor} association", "one in {month}"),
            ("Of my {n} reports for the {theme} committee of the {anchor} association I present one in {month}.",),
        ),
        Change.ADJUST: Form(
            "sits on the {theme} committee of the {anchor} association and writes {m} reports a year instead of {n}.",
            ("{theme} committee", "{anchor} association", "{m} reports"),
            ("The {theme} committee of the {anchor} association wants {m} reports a year from me now.",),
        ),
        Change.SHIFT: Form(
            "left the {theme} committee of the {anchor} association and now chairs its group on {theme2}.",
            ("{theme} committee", "{anchor} association", "group on {theme2}"),
            ("I handed in my seat on the {theme} committee, and the {anchor} association made me chair of its group on {theme2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "sits on the {theme} committee of the {anchor} association without having to write reports.",
            ("{theme} committee", "{anchor} association", "without having to write"),
            ("I keep my seat on the {theme} committee of the {anchor} association, but without having to write anything.",),
        ),
    },
    ("The {theme} committee of the {anchor} association used to get {n} reports a year from me.",),
)

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
            "does {exercise} at the {anchor} studio on {day} and {day2} against {ailment} and checks the pulse with a {gadget}.",
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
            "takes {remedy} from the {anchor} pharmacy in the {daytime}, {n} days a week, together with a plate of {staple}.",
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
            "sees a {specialist} at the {anchor} practice every {n} weeks because of {ailment} and got {exercise} prescribed.",
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

WORK = (_COURSE, _TRAINEES, _SIDE_WORK, _COMMITTEE)
HEALTH = (_EXERCISE, _REMEDY, _SLEEP, _SPECIALIST, _MEALS, _WALKS)

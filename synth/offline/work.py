"""Kinds of facts about work."""

from __future__ import annotations

from synth.offline.kinds import ANY, NAME, Form, Kind
from synth.records import Change, Track

_DAYS = {"day": "weekday", "day2": "weekday", "day3": "weekday"}

JOB = Kind(
    "job",
    Track.CAREER,
    {"job": ANY, "firm": ANY, "n": "number", "m": "number", "area": "area"},
    Form(
        "works as a {job} at {firm} on the {n} o'clock shift.",
        ("{job}", "{firm}", "{n} o'clock shift"),
        (
            "I work as a {job} at {firm}, mostly on the {n} o'clock shift.",
            "At {firm} I am a {job}, with the {n} o'clock shift.",
        ),
    ),
    {
        Change.EXPAND: Form(
            "works as a {job} at {firm} on the {n} o'clock shift and looks after the {area} there.",
            ("{job}", "{firm}", "{area}"),
            ("Besides my work as a {job} at {firm} on the {n} o'clock shift, I look after the {area}.",),
        ),
        Change.ADJUST: Form(
            "works as a {job} at {firm} on the {m} o'clock shift instead of the {n} o'clock shift.",
            ("{job}", "{firm}", "{m} o'clock shift"),
            ("I am still a {job} at {firm}, but they have put me on the {m} o'clock shift.",),
        ),
        Change.SHIFT: Form(
            "used to work as a {job} on the {n} o'clock shift at {firm} and now runs the {area} of the house.",
            ("{job}", "{firm}", "runs the {area}"),
            ("After my years as a {job} at {firm} I am now the one who runs the {area}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "works as a {job} at {firm} without any early shift.",
            ("{job}", "{firm}", "without any early shift"),
            ("I stay a {job} at {firm}, only without any early shift from here on.",),
        ),
    },
    (
        "So far I was a {job} at {firm} on the {n} o'clock shift.",
        "Until now {firm} had me as a {job} on the {n} o'clock shift.",
    ),
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
            "looks for work in {industry} and sends {m} applications a month instead of {n}"
            " with help from the {anchor} agency.",
            ("{industry}", "{m} applications", "{anchor} agency"),
            ("With the {anchor} agency behind me I now send {m} applications a month for work in {industry}.",),
        ),
        Change.SHIFT: Form(
            "used to look for work in {industry} through the {anchor} agency"
            " and now advises other applicants there every {day}.",
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
    {"n": "number", "m": "number", "skill": "skill", "skill2": "skill", "anchor": NAME, "day": "weekday"},
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
            ("I left the {theme} committee, and the {anchor} association made me chair of its group on {theme2}.",),
        ),
        Change.PARTIAL_DELETION: Form(
            "sits on the {theme} committee of the {anchor} association without having to write reports.",
            ("{theme} committee", "{anchor} association", "without having to write"),
            ("I keep my seat on the {theme} committee of the {anchor} association, but without having to write anything.",),
        ),
    },
    ("The {theme} committee of the {anchor} association used to get {n} reports a year from me.",),
)

WORK = (_COURSE, _TRAINEES, _SIDE_WORK, _COMMITTEE)

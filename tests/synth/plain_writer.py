"""A writer for all units of the shape ``demanding``, in the barest of sentences: for tests of what the program plans."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import count

from deltamem.memory import Event
from deltamem.text import content_words
from rewards.fidelity import folded
from synth.offline import OfflineWriter, answer
from synth.offline.templates import day
from synth.records import (
    AsideKind,
    Change,
    Dialogue,
    Exchange,
    Fact,
    FactPlan,
    PlannedAside,
    PlannedFact,
    Record,
    RevisedFact,
    Revision,
    RevisionStep,
    SaidFact,
    SessionFact,
    Track,
    TrackedFact,
)
from synth.tasks import (
    DialogueTask,
    Events,
    EventsTask,
    Filling,
    FillingTask,
    InitialFacts,
    InitialTask,
    RevisionTask,
    Task,
    UnitId,
    UnitResult,
)
from synth.validators import judge_answer
from synth.validators.speech import stands_in

TRACKS = (Track.CAREER, Track.HEALTH, Track.RELATIONSHIP, Track.PREFERENCE, None)


class PlainWriter(OfflineWriter):
    """Keeps every task with its answer and verdict."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: list[tuple[Task, Record, UnitId]] = []

    async def write(self, task, place):
        rng = random.Random(place.name)
        found = WRITERS.get(type(task), answer)(task, rng)
        verdict = judge_answer(task, found)
        self.asked.append((task, found, place))
        return UnitResult(None if verdict.violations else found, (verdict,))


def word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(4))


def planned(name: str, plans: Sequence[FactPlan], today: date, rng: random.Random) -> Iterable[SaidFact]:
    places: dict[int, str] = {}
    for number, plan in enumerate(plans):
        place, thing = places.setdefault(plan.family or -number, word(rng)), word(rng)
        text, keywords = f"keeps the {thing} in the {place} hall every Friday", [thing, place]
        if plan.provenance == "third_person":
            text = f"{name}'s cousin {text}"
        elif plan.provenance == "hearsay":
            text = f"{name} has heard that somebody {text}"
        else:
            text = f"{name} {text}"
        if plan.dated:
            keywords.append(day(today - timedelta(days=rng.randint(1, 9))))
            text += f" since {keywords[-1]}"
        if plan.temporary:
            text += f" until {day(today + timedelta(days=rng.randint(1, 30)))}"
        misspoken = word(rng) if "corrected" in plan.provenance else ""
        yield SaidFact(text=f"{text}.", keywords=tuple(keywords), misspoken=misspoken)


def initial(task: InitialTask, rng: random.Random) -> InitialFacts:
    """Families first; each goes to the track that lacks most of those that have room for it."""
    room = {track: task.counts.of(track).max for track in TRACKS}
    least = {track: task.counts.of(track).min for track in TRACKS}
    people = [other.name for other in task.dynamic.relationships]
    least[Track.RELATIONSHIP] = len(people)
    tracks: dict[int, Track | None] = {}
    sizes = Counter(plan.family for plan in task.plans)
    found = []
    for plan, fact in zip(task.plans, planned(task.fixed.name, task.plans, date(2026, 4, 1), rng), strict=True):
        if not plan.family or plan.family not in tracks:
            size = sizes[plan.family] if plan.family else 1
            free = [track for track in TRACKS if room[track] >= size and (people or track is not Track.RELATIONSHIP)]
            tracks[plan.family] = max(free, key=lambda track: (least[track], rng.random()))
            room[tracks[plan.family]] -= size
            least[tracks[plan.family]] -= size
        track = tracks[plan.family]
        subject, text = "", fact.text
        if track is Track.RELATIONSHIP:
            subject = people.pop() if len(people) > 1 else people[0]
            text = text.replace("the ", f"with {subject} the ", 1)
        elif track is Track.PREFERENCE:
            subject = task.preferences.groups[0].category
        found.append(TrackedFact(text=text, keywords=fact.keywords, track=track, subject=subject))
    return InitialFacts(facts=tuple(found))


def events(task: EventsTask, rng: random.Random) -> Events:
    found = []
    for event in answer(task, rng).events:
        place = word(rng)
        text = f"{task.fixed.name} came to the {place} place on {day(event.date)}."
        found.append(event.model_copy(update={"memory": Fact(text=text, keywords=(f"{place} place", "came"))}))
    return Events(events=tuple(found))


def filling(task: FillingTask, rng: random.Random) -> Filling:
    facts = tuple(planned(task.fixed.name, task.plans, task.today, rng))
    return Filling(goal="To talk.", summary="A talk.", facts=facts)


def revision(task: RevisionTask, rng: random.Random) -> Revision:
    held = list(task.memories)
    steps = []
    for step in task.steps:
        new, misspoken = word(rng), word(rng) if "corrected" in step.provenance else ""
        facts: list[RevisedFact] = []
        for memory in held:
            stem, outdated = memory.text.rstrip("."), ()
            keywords = [memory.keywords[0], f"{new}{len(facts)}"]
            if step.change in (Change.ADJUST, Change.SHIFT):
                # "Tuesday" may stand as "Tuesdays", which is no word of its own.
                whole = [old for old in memory.keywords if stands_in(folded(old), folded(stem))]
                outdated = (whole[-1],)
                text = stem.replace(whole[-1], keywords[-1])
                keywords = [keyword for keyword in keywords if keyword != outdated[0]]
            elif step.change is Change.EXPAND:
                text = f"{stem} with {keywords[-1]}"
            else:
                text = f"{stem} no longer, which {keywords[-1]} ended"
            if step.dated:
                keywords.append(day(step.today + timedelta(days=3)))
                text += f" from {keywords[-1]}"
            facts.append(RevisedFact(text=f"{text}.", keywords=tuple(keywords), misspoken=misspoken, outdated=outdated))
        held = list(facts)
        steps.append(RevisionStep(facts=tuple(facts)))
    return Revision(steps=tuple(steps))


def talk(task: DialogueTask, rng: random.Random) -> Dialogue:
    """A turn a statement, two in a turn if there is no room; what the assistant says first goes into the turn before."""
    statements: dict[object, list[SessionFact]] = {}
    for fact in task.facts:
        statements.setdefault(fact.statement or fact.id, []).append(fact)
    room = task.limits.turns.max - len(task.asides) - 1
    groups = list(statements.values())
    users: list[list[str]] = [["Hello there."]]
    assistants: list[list[str]] = [[]]
    plan: list[PlannedFact] = []
    numbers = count(1)
    per_turn = -(-len(groups) // room) if groups else 1
    for begin in range(0, len(groups), per_turn):
        users.append([])
        assistants.append([])
        turn = len(users)
        for fact in (fact for group in groups[begin : begin + per_turn] for fact in group):
            explicit = fact.event is Event.UPDATE and fact.signal == "explicit"
            users[-1] += told(fact, explicit)
            if fact.provenance == "assistant_confirmed":
                assistants[-2] += fact.spoken
            elif fact.provenance == "assistant_corrected":
                assistants[-2].append(fact.misspoken)
            plan.append(PlannedFact(fact_id=fact.id, turn=turn, previous_turn=turn if explicit else 0))
    asides = []
    for aside in task.asides:
        users.append([])
        assistants.append([])
        (assistants if aside.kind is AsideKind.ASSISTANT_CLAIM else users)[-1] += aside.words
        asides.append(PlannedAside(aside_id=aside.id, turn=len(users)))
    while len(users) < task.limits.turns.min:
        users.append([])
        assistants.append([])
    turns = tuple(
        Exchange(user=f"Well, {', '.join(said)} {next(numbers)}.", assistant=f"I see, {', '.join(heard)}, just go on.")
        for said, heard in zip(users, assistants, strict=True)
    )
    return Dialogue(plan=tuple(plan), asides=tuple(asides), turns=turns)


def told(fact: SessionFact, explicit: bool) -> Iterable[str]:
    if fact.provenance == "self_corrected":
        yield fact.misspoken
    if explicit:
        yield from reversed(content_words(fact.previous_text))
    if fact.provenance != "assistant_confirmed":
        yield from fact.spoken
    yield "indeed"


WRITERS = {InitialTask: initial, EventsTask: events, FillingTask: filling, RevisionTask: revision, DialogueTask: talk}

"""Cases for the rules of memories, dialogues and finished sessions, from the life of `rule_cases`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from rule_cases import COFFEE, EVENTS, FIXED, NAME, OMAR, ROWING, START, delta, paper_shape

from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session, Turn
from synth.config import DialogueLimits, Range
from synth.records import Change, Dialogue, EventGroup, Evolution, Exchange, Fact, Method, Origin, PlannedFact, SessionFact
from synth.tasks import DialogueTask, EvolutionTask, Filling, FillingTask, Links, LinksTask, PastEvent

PAST = tuple(PastEvent.of(event) for event in EVENTS)


def memory(text: str, *keywords: str) -> Fact:
    return Fact(text=f"{NAME} {text}", keywords=keywords)


# --- links, memory threads, filling ----------------------------------------------------------------------------------------

GROUPS = (
    EventGroup(events=(0, 2), thread="Mornings get lighter."),
    EventGroup(events=(1, 3, 4), thread="She is no longer alone on the water."),
)


def links_case() -> tuple[LinksTask, Links]:
    task = LinksTask(name=NAME, events=PAST, groups=Range(min=1, max=3), events_per_group=Range(min=2, max=3))
    return task, Links(groups=GROUPS)


THREAD = (
    memory("feels shy about rowing with others in the old boat.", "rowing", "old boat", "shy"),
    memory(
        "felt shy about rowing with others in the old boat, but now enjoys the company.",
        *("rowing", "old boat", "company"),
    ),
    memory(
        "was shy about rowing in the old boat, enjoyed company, and now feels proud of it.",
        *("rowing", "old boat", "proud"),
    ),
)


def evolution_case() -> tuple[EvolutionTask, Evolution]:
    task = EvolutionTask(
        fixed=FIXED,
        thread=GROUPS[1].thread,
        events=tuple(PAST[index] for index in GROUPS[1].events),
        known=(OMAR.text,),
        limits=paper_shape().facts,
    )
    return task, Evolution(method=Method.EMOTIONAL, memories=THREAD)


FURTHER = (
    memory("mends the planks of an old boat in her yard.", "planks", "old boat", "yard"),
    memory("thanks the woman next door with a basket of pears.", "woman next door", "basket", "pears"),
    memory("wants to show Ines Duarte the northern islands in autumn.", "Ines Duarte", "northern islands", "autumn"),
)


def filling_case() -> tuple[FillingTask, Filling]:
    task = FillingTask(
        fixed=FIXED,
        past=PAST[:1],
        event=EVENTS[1],
        existing=(EVENTS[1].changes[0].text, OMAR.text),
        count=Range(min=3, max=4),
        limits=paper_shape().facts,
    )
    return task, Filling(goal="She wants to share a good day.", summary="She tells of the boat and of Ines.", facts=FURTHER)


# --- dialogue --------------------------------------------------------------------------------------------------------------

DUSK = delta(Change.ADJUST, ROWING, "likes rowing on the fjord at dusk instead of dawn.", *("rowing", "fjord", "dusk"))
RELIEF = memory("feels relieved that somebody offered help with the boat.", "relieved", "offered help", "boat")
HULL = memory("plans to paint the hull blue before the summer regatta.", "paint", "hull", "summer regatta")


def session_fact(number: int, event: Event, fact: Fact, previous: str = "", origin: Origin = Origin.FILLING) -> SessionFact:
    values = {"text": fact.text, "keywords": fact.keywords, "previous_text": previous, "origin": origin}
    return SessionFact(id=f"f{number}", event=event, **values)


FACTS = (
    session_fact(1, Event.ADD, EVENTS[1].changes[0], origin=Origin.DELTA),
    session_fact(2, Event.ADD, FURTHER[0]),
    session_fact(3, Event.ADD, RELIEF),
    session_fact(4, Event.UPDATE, DUSK, ROWING.text, Origin.DELTA),
    session_fact(5, Event.NONE, OMAR, OMAR.text, Origin.REUSE),
    session_fact(6, Event.ADD, HULL),
)
TALK = (
    (
        "You will not believe it, the old boat in my yard made me a friend. I was fixing its planks out there. Then the "
        "woman next door looked over the fence.",
        "What a nice surprise. What happened then?",
    ),
    (
        "My new neighbour is called Ines Duarte. Both of us go out rowing on Thursdays now.",
        "It sounds as if Ines Duarte came at the right moment. How does it feel to share the boat?",
    ),
    (
        "Honestly? I feel relieved. Somebody offered to help me with the thing at last!",
        "That is a lot of weight to carry alone.",
    ),
    (
        "It even moved my hours. I was always on the fjord at dawn, rowing before anyone was up; now I go at dusk.",
        "Evening light suits slow strokes.",
    ),
    (
        "Sundays stay as they are, of course: chess with Omar Haddad, who is still a good friend.",
        "A steady habit is worth keeping.",
    ),
    (
        "Next I want to paint the hull blue, so that it is ready for the summer regatta.",
        "Blue will look fine on the water. Shall we plan the steps for the summer regatta?",
    ),
)
PLAN = ((1, 2, 0), (2, 1, 0), (3, 3, 0), (4, 4, 4), (5, 5, 0), (6, 6, 0))


def dialogue_case() -> tuple[DialogueTask, Dialogue]:
    """Six facts in six turns; only f3 is not said word for word in one utterance."""
    task = DialogueTask(
        fixed=FIXED,
        today=EVENTS[1].date,
        goal="She wants to share a good day.",
        summary="She tells of the boat and of Ines.",
        past=PAST[:1],
        event=EVENTS[1],
        facts=FACTS,
        limits=DialogueLimits(
            turns=Range(min=4, max=8),
            facts_per_turn=2,
            largest_gap=1,
            assistant_words=Range(min=3, max=60),
            small_talk=0.0,
            verbatim=False,
        ),
    )
    plan = tuple(PlannedFact(fact_id=f"f{fact}", turn=turn, previous_turn=previous) for fact, turn, previous in PLAN)
    return task, Dialogue(plan=plan, turns=tuple(Exchange(user=user, assistant=assistant) for user, assistant in TALK))


# --- labelled sessions -----------------------------------------------------------------------------------------------------

TIME = START + timedelta(days=30)
PRIOR = MemoryState(Memory(f"m{number}", fact.text, START) for number, fact in enumerate((ROWING, OMAR, COFFEE), start=1))
ADD = Operation(Event.ADD, HULL.text, None, HULL.keywords)
UPDATE = Operation(Event.UPDATE, DUSK.text, "m1", DUSK.keywords)
NONE = Operation(Event.NONE, OMAR.text, "m2", OMAR.keywords)


def labelled(*operations: Operation, said: str | None = None, prior: MemoryState = PRIOR) -> LabelledSession:
    """A session whose user says all keywords, and whose next state is right if the operations can be applied."""
    words = (
        said if said is not None else " ".join(["So:", *(word for operation in operations for word in operation.keywords)])
    )
    session = Session("p000001", NAME, TIME, (Turn("user", words), Turn("assistant", "I see.")))
    return LabelledSession(session, 0, "train", prior, operations, apply(prior, operations, TIME))


def with_session(session: LabelledSession, **changes: object) -> LabelledSession:
    """The labelled session with parts of its dialogue record replaced."""
    return replace(session, session=replace(session.session, **changes))  # type: ignore[arg-type]


def following(before: LabelledSession, *operations: Operation, index: int | None = None) -> LabelledSession:
    """The session a day after another one that begins where that one ends."""
    time = before.session.time + timedelta(days=1)
    after = labelled(*operations, prior=before.next_state)
    after = replace(with_session(after, time=time), session_index=before.session_index + 1 if index is None else index)
    return replace(after, next_state=apply(before.next_state, operations, time))

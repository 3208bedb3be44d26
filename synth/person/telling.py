"""What the tasks of later units tell of a person's life so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deltamem.memory import Event
from synth.person.assembly import Due, Relatedness
from synth.records import Change, LifeEvent, Profile, StateDelta, SynthSession, Track, TrackedFact
from synth.tasks import KnownFact, PastEvent

MOST_EXISTING = 60
"""Facts that a filling task is told of: about as many as the initial facts, deltas and threads of 25 events."""


def known_facts(profile: Profile, events: Iterable[LifeEvent]) -> tuple[KnownFact, ...]:
    """All facts that hold after some events, and how often these have changed each.

    Args:
        profile: Stage 1.
        events: The first events of the life, free of violations.
    """
    facts = [_known(fact, 0) for fact in profile.initial]
    for event in events:
        for delta in event.changes:
            if delta.change is Change.NEW:
                facts.append(_known(delta, 0))
            else:
                place = next(place for place, fact in enumerate(facts) if fact.text == delta.previous_text)
                facts[place] = _known(delta, facts[place].updates + 1)
    return tuple(facts)


def _known(fact: TrackedFact | StateDelta, updates: int) -> KnownFact:
    return KnownFact(text=fact.text, keywords=fact.keywords, track=fact.track, subject=fact.subject, updates=updates)


def known_names(profile: Profile, events: Iterable[LifeEvent]) -> tuple[str, ...]:
    """Full names of everybody who has been mentioned, the person first."""
    found = [profile.name, *(somebody.name for somebody in profile.dynamic.relationships)]
    found += [fact.subject for fact in profile.initial if fact.track is Track.RELATIONSHIP]
    for event in events:
        found += [participant.name for participant in event.participants]
        found += [delta.subject for delta in event.changes if delta.track is Track.RELATIONSHIP]
    return tuple(dict.fromkeys(name for name in found if name))


def briefs(events: Sequence[LifeEvent], most: int | None = None) -> tuple[PastEvent, ...]:
    """Events as later units are told of them; of more than `most`, the latest."""
    begin = 0 if most is None else max(0, len(events) - most)
    return tuple(PastEvent.of(event) for event in events[begin:])


def existing(event: LifeEvent, changes: Sequence[Due], held: Sequence[str], related: Relatedness) -> tuple[str, ...]:
    """What is remembered already when the filling of an event is written.

    Args:
        event: The event.
        changes: What it changes for certain.
        held: The facts that held just before it, in their order.
        related: Chooses among them.

    Returns:
        The new texts, then what held before; if these are more than `MOST_EXISTING`, those closest to the event.
    """
    new = [change.text for change in changes]
    room = MOST_EXISTING - len(new)
    if len(held) > room:
        ranked = related.ranked(held, [event.title, event.narrative, *new])
        # Those that share nothing with the event fill up what room is left.
        closest = set(dict.fromkeys([*ranked, *held][:room]))
        held = [text for text in held if text in closest]
    return (*new, *held)


def mentionable(
    session: SynthSession, events: Sequence[LifeEvent], told: dict[str, int], most: int
) -> tuple[PastEvent, ...]:
    """The earlier events that a dialogue may mention.

    Args:
        session: The session of the dialogue.
        events: The whole life.
        told: In which session each text was first remembered.
        most: How many: the latest ones, and as many others from which updated and repeated memories come.
    """
    latest = range(max(0, session.index - most), session.index)
    sources = {
        told[fact.previous_text] for fact in session.facts if fact.event is not Event.ADD and fact.previous_text in told
    }
    older = sorted(sources.difference(latest))[-most:] if most else []
    return briefs([events[index] for index in (*older, *latest)])

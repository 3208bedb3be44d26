"""Synthetic people, and the invented names that occur in them, for the tests of synthesis."""

from __future__ import annotations

from dataclasses import replace

from deltamem.sessions import LabelledSession, Session, Split
from synth.offline import OfflineConfig, offline_writer
from synth.pipeline import write_person
from synth.records import Person, Persona

INVENTED_SLOTS = {"anchor", "city"}


def person(number: int = 0, *, split: Split = "train", sessions: int = 3, config: OfflineConfig | None = None) -> Person:
    persona = Persona(f"p{number:06d}", "somebody", split)
    return write_person(persona, offline_writer(config or OfflineConfig()), sessions)


def invented_names(someone: Person) -> set[str]:
    """The person's name and every anchor and city, old ones included."""
    facts = [*someone.profile.initial_facts, *(delta.fact for event in someone.events for delta in event.deltas)]
    names = {value for fact in facts for slot, value in fact.values.items() if slot in INVENTED_SLOTS}
    return names | {someone.profile.name}


def texts(someone: Person) -> list[str]:
    """Everything a model may read or write about the person."""
    found = [memory.text for labelled in someone.sessions for memory in labelled.next_state.memories]
    found += [memory.text for labelled in someone.sessions[:1] for memory in labelled.prior_state.memories]
    found += [turn.content for labelled in someone.sessions for turn in labelled.session.dialogue]
    return [*found, someone.profile.name]


def with_session(labelled: LabelledSession, **changes: object) -> LabelledSession:
    """The labelled session with parts of its dialogue record replaced."""
    session: Session = replace(labelled.session, **changes)  # type: ignore[arg-type]
    return replace(labelled, session=session)

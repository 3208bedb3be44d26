"""A small world with loud cues: moves are told with "moved", new things with "bought", repetitions with "still"."""

from __future__ import annotations

from datetime import datetime, timedelta

from deltamem.memory import Event, Memory, MemoryState, Operation, apply, wordings
from deltamem.sessions import LabelledSession, Session, Split, Turn

START = datetime(2026, 4, 5, 20, 1)
TOWNS = ("Oslo", "Bergen", "Turku", "Malmo", "Gdansk", "Riga", "Porto", "Lyon", "Graz", "Basel")
THINGS = ("kettle", "ladder", "violin", "canoe", "lamp", "printer", "tent", "drill", "piano", "globe")


def session(
    person: str, index: int, turns: list[str], prior: MemoryState, operations: list[Operation], split: Split = "heldout"
) -> LabelledSession:
    """A labelled session whose user says `turns`, and whose assistant quotes the first keyword of all."""
    quoted = next((word for op in operations for word in wordings(op.keywords)), "nothing")
    time = START + timedelta(days=index)
    dialogue = tuple(turn for text in turns for turn in (Turn("user", text), Turn("assistant", f'I hear "{quoted}".')))
    after = apply(prior, operations, time)
    return LabelledSession(Session(person, person.title(), time, dialogue), index, split, prior, tuple(operations), after)


def life(number: int, split: Split) -> list[LabelledSession]:
    """Three sessions: a thing is bought, then the home changes, then the thing is spoken of again."""
    name, town, other, thing = f"ana{number}", TOWNS[number], TOWNS[-number - 1], THINGS[number]
    who = name.title()
    bank = MemoryState([Memory("m1", f"{who} lives in {town}.", START), Memory("m2", f"{who} has a dog.", START)])
    bought = Operation(Event.ADD, f"{who} bought a {thing}.", None, (thing,))
    first = session(name, 0, ["Good evening.", f"Well, I bought a {thing}."], bank, [bought], split)
    moved = Operation(Event.UPDATE, f"{who} lives in {other}.", "m1", (other,))
    second = session(name, 1, ["Good evening.", f"I moved to {other}, away from {town}."], first.next_state, [moved], split)
    known = Operation(Event.NONE, bought.text, "m3", (thing,))
    third = session(name, 2, ["Good evening.", f"My {thing} is still fine."], second.next_state, [known], split)
    return [first, second, third]


def lives() -> tuple[list[LabelledSession], list[LabelledSession]]:
    """Sessions of three people to train on, and of two held out."""
    train = [item for number in range(3) for item in life(number, "train")]
    return train, [item for number in (3, 4) for item in life(number, "heldout")]

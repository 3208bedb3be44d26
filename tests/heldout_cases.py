"""Labelled sessions and scripted policies, shared by the tests of held-out evaluation and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from episode_texts import add, outputs, search, update

from deltamem.episode import EpisodeConfig, Message, opening_messages
from deltamem.memory import Memory, MemoryState, Operation, apply
from deltamem.policy import Completion
from deltamem.sessions import Difficulty, FactKind, LabelledSession, OperationDifficulty, Session, Split, Turn

START = datetime(2026, 4, 5, 20, 1)


def labelled(
    person: str,
    index: int,
    prior: dict[str, str],
    operations: Sequence[Operation],
    *,
    split: Split = "heldout",
    dialogue: Sequence[str] = (),
) -> LabelledSession:
    """A labelled session whose user says the target operations, unless a dialogue is given."""
    time = START + timedelta(days=index)
    state = MemoryState(Memory(key, text, START - timedelta(days=30)) for key, text in prior.items())
    said = dialogue or [operation.text for operation in operations]
    turns = tuple(turn for text in said for turn in (Turn("user", text), Turn("assistant", "I see.")))
    return LabelledSession(
        Session(person, person.title(), time, turns),
        index,
        split,
        state,
        tuple(operations),
        apply(state, operations, time),
    )


def people(count: int, sessions: int, split: Split = "heldout") -> list[LabelledSession]:
    """Sessions with one ADD and one due UPDATE each, different for every person and session."""
    return [
        labelled(
            f"person{number}",
            index,
            {
                "m1": f"Person{number} works as baker in Oslo{index}",
                "m2": f"Person{number} owns a dog called Rex{index}",
            },
            [
                update("m1", f"Person{number} works as pilot in Oslo{index}", "pilot", f"Oslo{index}"),
                add(f"Person{number} plays violin every evening{index}", "violin", "evening"),
            ],
            split=split,
        )
        for number in range(count)
        for index in range(sessions)
    ]


def graded(sessions: Sequence[LabelledSession]) -> list[LabelledSession]:
    """The same with a difficulty: the UPDATE of a person's first session shows by its value, others are implied."""
    plain = OperationDifficulty(signal="value", rivals=0, provenance="said", time="same_day", chain=0, kind=FactKind.EVENT)
    implied = replace(plain, signal="implied", rivals=2, chain=1, kind=FactKind.STATUS)
    return [
        replace(item, difficulty=Difficulty((implied if item.session_index else plain, plain), 0.5, len(item.prior_state)))
        for item in sessions
    ]


class ScriptedPolicy:
    """Looks the session up by its opening message and writes what `script` says, first turn and turns after a search."""

    name = "scripted"

    def __init__(
        self,
        sessions: Sequence[LabelledSession],
        script: Callable[[LabelledSession, int], str],
        config: EpisodeConfig | None = None,
    ) -> None:
        self._sessions = {opening_messages(item.session, config or EpisodeConfig())[1]["content"]: item for item in sessions}
        self._script = script

    async def complete(self, messages: Sequence[Message]) -> Completion:
        turn = sum(message["role"] == "assistant" for message in messages)
        text = self._script(self._sessions[messages[1]["content"]], turn)
        return Completion(text, truncated=False, tokens=len(text.split()))


def oracle(item: LabelledSession, turn: int) -> str:
    """Searches for what the target touches, then writes the target."""
    touched = [op.target_memory_id for op in item.operations if op.target_memory_id]
    if turn == 0 and touched:
        return search(*(item.prior_state[memory_id].text for memory_id in touched))
    return outputs(*item.operations)


def silent(item: LabelledSession, turn: int) -> str:
    """Never searches and changes nothing."""
    return outputs()

"""What must hold for every labelled session. Any violation is a bug of the writer, never data to train on."""

from __future__ import annotations

from collections.abc import Iterable

from deltamem.memory import Event, apply, check
from deltamem.sessions import LabelledSession


def violations(labelled: LabelledSession) -> list[str]:
    """Check one labelled session.

    Args:
        labelled: The session with its states and target operations.

    Returns:
        One sentence for each violated invariant; empty if all hold.
    """
    found = []
    operations = labelled.operations
    problems = check(labelled.prior_state, operations).problems
    if problems:
        found.append(f"operations cannot be applied: {', '.join(sorted(set(problems)))}")
    elif apply(labelled.prior_state, operations, labelled.session.time) != labelled.next_state:
        found.append("replaying the operations does not give the next state")
    said = " ".join(turn.content for turn in labelled.session.dialogue if turn.role == "user").casefold()
    for number, operation in enumerate(operations, start=1):
        where = f"operation {number} ({operation.event})"
        if not operation.keywords:
            found.append(f"{where} has no keywords")
        for keyword in operation.keywords:
            if keyword.casefold() not in operation.text.casefold():
                found.append(f"{where}: keyword {keyword!r} is not in its memory")
            if keyword.casefold() not in said:
                found.append(f"{where}: the user never says {keyword!r}")
        target = labelled.prior_state.get(operation.target_memory_id or "")
        if operation.event is Event.UPDATE and target is not None and target.text == operation.text:
            found.append(f"{where} changes nothing")
        if operation.event is Event.NONE and target is not None and target.text != operation.text:
            found.append(f"{where} does not repeat the text of {target.id}")
    if any(memory.time >= labelled.session.time for memory in labelled.prior_state.memories):
        found.append("a prior memory is not older than the session")
    return found


def chain_violations(sessions: Iterable[LabelledSession]) -> list[str]:
    """Check the sessions of one person, in order, each by itself and each against the one before."""
    found = []
    previous: LabelledSession | None = None
    for labelled in sessions:
        found += [f"session {labelled.session_index}: {violation}" for violation in violations(labelled)]
        if previous is not None and previous.next_state != labelled.prior_state:
            found.append(f"session {labelled.session_index}: the prior state is not the next state of the session before")
        if previous is not None and previous.session.time >= labelled.session.time:
            found.append(f"session {labelled.session_index}: not later than the session before")
        previous = labelled
    return found

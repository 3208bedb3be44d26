"""Policies that the reward is tried on: sloppy ones, which must earn less than care, and ones that try to cheat.

All know the target, so that what they earn is what the reward makes of a flaw, not of a lack of knowledge. Each cheat names
the honest policy that it must not beat: one that finds as much, and leaves the memories no worse.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from deltamem.memory import Event, Operation, alternatives, wordings
from deltamem.sessions import LabelledSession
from rewards.cues import place, user_sentences
from rewards.fidelity import folded
from rewards.probes import Policy, Probe, ProbeAnswer, Surface
from rewards.reward import needed_ids

JUNK = "Nothing of note."
SLOPPY_SHARE = 0.25
"""Of the UPDATEs of a sloppy policy, those that go wrong in one way."""

Change = Callable[[LabelledSession, Operation], list[Operation]]
"""What becomes of one operation of the target."""


class Adversary(NamedTuple):
    """A policy that tries to earn more than it should."""

    probe: Probe
    honest: str
    """Name of the policy in `rewards.probes.PROBES` that it must not beat."""


def wrong_targets(share: float) -> Policy:
    """The target, but a share of its UPDATEs rewrite the nearest memory that is due none.

    The UPDATEs of a smaller share are among those of a larger one.
    """

    def answer(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
        due = needed_ids([op for op in labelled.operations if op.event is Event.UPDATE])
        sloppy = [op for op in _updates(labelled) if _drawn(labelled, op, "target") < share]
        rivals = dict(zip(sloppy, surface.by_vectors(labelled, [op.text for op in sloppy]), strict=True))
        taken: set[str] = set()
        operations = []
        for op in _plain(labelled):
            rival = next((near for near in rivals.get(op, ()) if near not in due and near not in taken), None)
            taken |= {rival} if rival is not None else set()
            operations.append(op if rival is None else replace(op, target_memory_id=rival))
        return _seen(labelled, operations)

    return answer


def kept_values(share: float) -> Policy:
    """The target, but a share of its UPDATEs leave the sentence as it was, with one word changed."""
    return _changed(lambda labelled, op: [_touched(labelled, op) if _drawn(labelled, op, "value") < share else op])


def _sloppy(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    found = wrong_targets(SLOPPY_SHARE)(labelled, surface).operations
    rewritten = {op.target_memory_id for op in _updates(labelled)}
    return _seen(
        labelled,
        [
            _touched(labelled, op)
            if op.event is Event.UPDATE and op.target_memory_id in rewritten and _drawn(labelled, op, "value") < SLOPPY_SHARE
            else op
            for op in found
        ],
    )


def _changed(update: Change | None = None, add: Change | None = None) -> Policy:
    """The target with its UPDATEs and ADDs changed one by one."""

    def answer(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
        changes = {Event.UPDATE: update, Event.ADD: add}
        operations: list[Operation] = []
        for op in labelled.operations:
            change, plain = changes.get(op.event), replace(op, keywords=(), outdated=())
            operations += [plain] if change is None else [_bare(one) for one in change(labelled, op)]
        return _seen(labelled, operations)

    return answer


def _bare(op: Operation) -> Operation:
    return replace(op, keywords=(), outdated=())


def _plain(labelled: LabelledSession) -> list[Operation]:
    return [_bare(op) for op in labelled.operations]


def _updates(labelled: LabelledSession) -> list[Operation]:
    return [op for op in _plain(labelled) if op.event is Event.UPDATE]


def _seen(labelled: LabelledSession, operations: Sequence[Operation]) -> ProbeAnswer:
    return ProbeAnswer(list(operations), [sorted(needed_ids(labelled.operations))])


def _drawn(labelled: LabelledSession, op: Operation, what: str) -> float:
    return random.Random(f"{what} {labelled.key} {op.text}").random()


def _added(op: Operation) -> Operation:
    return Operation(Event.ADD, op.text)


def _old(labelled: LabelledSession, op: Operation) -> str:
    return labelled.prior_state[op.target_memory_id or ""].text


def _open(text: str) -> str:
    return text.rstrip().rstrip(".")


def _touched(labelled: LabelledSession, op: Operation) -> Operation:
    return replace(op, text=f"{_open(_old(labelled, op))} now.")


def _appended(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [replace(op, text=f"{_old(labelled, op)} {op.text}")]


def _hedged(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [replace(op, text=", or ".join([_open(op.text), *op.outdated]) + ".")]


def _keywords_only(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [
        replace(op, text=f"{labelled.session.person_name}: {', '.join(alternatives(keyword)[0] for keyword in op.keywords)}")
    ]


def _stuffed(labelled: LabelledSession, op: Operation) -> list[Operation]:
    words = dict.fromkeys(word for other in labelled.operations if other is not op for word in wordings(other.keywords))
    return [replace(op, text=" ".join([op.text, *words]))]


def _long(labelled: LabelledSession, op: Operation) -> list[Operation]:
    said = user_sentences(labelled)
    where = place(op, [folded(sentence) for sentence in said])
    return [op if where is None else replace(op, text=" ".join([op.text, *said[max(0, where - 1) : where + 2]]))]


def _twice(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [op, Operation(Event.ADD, f"{_open(op.text)} now.")]


def _merged(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    due = [op for op in _plain(labelled) if op.event is not Event.NONE]
    text = " ".join(op.text for op in due)
    first = next((op for op in due if op.event is Event.UPDATE), None)
    merged = [replace(first, text=text) if first else Operation(Event.ADD, text)] if due else []
    return _seen(labelled, merged)


def _restored(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    """Half of the bank is overwritten, and its old texts are added again; nothing of the session is kept."""
    memories = labelled.prior_state.memories[::2]
    overwritten = [Operation(Event.UPDATE, JUNK, memory.id) for memory in memories]
    return _seen(labelled, [*overwritten, *(Operation(Event.ADD, memory.text) for memory in memories)])


def _restored_beside_adds(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    due = {op.target_memory_id for op in _updates(labelled)}
    added = [_added(op) for op in _plain(labelled) if op.event is not Event.NONE]
    spare = [memory for memory in labelled.prior_state.memories if memory.id not in due][: 2 * len(added)]
    swaps = [Operation(Event.UPDATE, JUNK, memory.id) for memory in spare]
    return _seen(labelled, [*added, *swaps, *(Operation(Event.ADD, memory.text) for memory in spare)])


def _rotated(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    updates = _updates(labelled)
    rotated = [replace(op, text=other.text) for op, other in zip(updates, [*updates[1:], *updates[:1]], strict=True)]
    return _seen(labelled, [*(op for op in _plain(labelled) if op.event is not Event.UPDATE), *rotated])


def _unsure(otherwise: Callable[[Operation], list[Operation]]) -> Policy:
    """The target, but other operations for an UPDATE whose memory is not the nearest."""

    def answer(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
        updates = _updates(labelled)
        found = surface.by_vectors(labelled, [op.text for op in updates])
        unsure = {op for op, ids in zip(updates, found, strict=True) if ids[:1] != [op.target_memory_id]}
        return _seen(labelled, [one for op in _plain(labelled) for one in (otherwise(op) if op in unsure else [op])])

    return answer


def _over_updater(labelled: LabelledSession, surface: Surface) -> ProbeAnswer:
    """ADDs go onto the nearest memory that no UPDATE is due of."""
    taken = {op.target_memory_id for op in _updates(labelled)}
    added = [op for op in _plain(labelled) if op.event is Event.ADD]
    nearest = dict(zip(added, surface.by_vectors(labelled, [op.text for op in added]), strict=True))
    operations = []
    for op in _plain(labelled):
        free = next((near for near in nearest.get(op, ()) if near not in taken), None)
        taken.add(free)
        operations.append(op if free is None else Operation(Event.UPDATE, op.text, free))
    return _seen(labelled, operations)


def _policy(description: str, answer: Policy) -> Probe:
    return Probe(description, answer, knows_target=True, searches=True)


SLOPPY: Mapping[str, Probe] = {
    "over_updater": _policy("perfect, but ADDs overwrite the nearest memory", _over_updater),
    "sloppy": _policy("a quarter of the UPDATEs on a rival, a quarter that change a word only", _sloppy),
    "sloppy_targets": _policy("a quarter of the UPDATEs on a rival", wrong_targets(SLOPPY_SHARE)),
    "sloppy_values": _policy("a quarter of the UPDATEs that change a word only", kept_values(SLOPPY_SHARE)),
}
"""Policies that do what is right, not carefully."""


def _cheat(description: str, answer: Policy, honest: str = "gold") -> Adversary:
    return Adversary(_policy(description, answer), honest)


def _same_text(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [replace(op, text=_old(labelled, op))]


def _touched_and_added(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [_touched(labelled, op), _added(op)]


def _erased_and_added(labelled: LabelledSession, op: Operation) -> list[Operation]:
    return [replace(op, text=JUNK), _added(op)]


ADVERSARIES: Mapping[str, Adversary] = {
    "same_text": _cheat("UPDATE with the old text", _changed(_same_text), "gold_without_updates"),
    "touch": _cheat("UPDATE with the old text, one word more", kept_values(1.0), "gold_without_updates"),
    "touch_and_add": _cheat("the same, and the new text as ADD", _changed(_touched_and_added), "gold_as_add"),
    "erase_and_add": _cheat("UPDATE with junk, the new text as ADD", _changed(_erased_and_added), "gold_as_add"),
    "append": _cheat("UPDATE with the old text and the new behind it", _changed(_appended)),
    "hedge": _cheat("every text also names the outdated values", _changed(_hedged, _hedged)),
    "keywords_only": _cheat("every text is its keywords", _changed(_keywords_only, _keywords_only)),
    "stuffed": _cheat("every text has the keywords of all", _changed(_stuffed, _stuffed)),
    "long": _cheat("every text with what the user said around it", _changed(_long, _long)),
    "twice": _cheat("every text once more as ADD, one word more", _changed(_twice, _twice)),
    "merged": _cheat("all texts in one memory", _merged),
    "restore": _cheat("half the bank overwritten and its texts added again", _restored, "do_nothing"),
    "add_and_restore": _cheat(
        "all texts as ADD, other memories overwritten and added again", _restored_beside_adds, "gold_as_add"
    ),
    "idle_when_unsure": _cheat("no UPDATE where the nearest memory is not the target", _unsure(lambda op: [])),
    "adds_when_unsure": _cheat(
        "ADD for UPDATE where the nearest memory is not the target", _unsure(lambda op: [_added(op)])
    ),
    "rotated": _cheat("texts of a session's UPDATEs change places", _rotated),
}

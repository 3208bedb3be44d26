"""Rules of the finished records: each labelled session, the sessions of one person in order, and the two splits.

A violation here is a defect of the program or of a rule before it, never data to train on.
"""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from deltamem.memory import Event, Memory, Operation, apply, check, wordings
from deltamem.sessions import LabelledSession, Split
from deltamem.text import normalised
from rewards.fidelity import folded
from synth.tasks import RuleVerdict, RuleViolation
from synth.validators.base import (
    Case,
    RuleSet,
    judge,
    memory_stems,
    occurs,
    rivals,
    stands_in,
)

SINGLE, CHAIN = RuleSet("session"), RuleSet("session")
"""Rules of each labelled session by itself, and of each two that follow one another in a person's life."""

_MEMORY_ID = re.compile(r"m[1-9][0-9]*")

_Labelled = Case[None, LabelledSession]


def _operations(case: _Labelled) -> Iterator[tuple[str, Operation, Memory | None]]:
    """Each operation with its label and the memory that it refers to."""
    for number, operation in enumerate(case.answer.operations, start=1):
        yield (
            f"operation {number} ({operation.event})",
            operation,
            case.answer.prior_state.get(operation.target_memory_id or ""),
        )


@SINGLE.rule("Person, name, index and memory ids are as they are elsewhere in the data set.")
def ids(case: _Labelled) -> Iterator[str]:
    labelled = case.answer
    if not labelled.session.person_id or not labelled.session.person_name:
        yield "the person has no id or no name"
    if labelled.session_index < 0:
        yield f"the session index must not be negative, but is {labelled.session_index}"
    for memory_id in labelled.prior_state.keys() | labelled.next_state.keys():
        if not _MEMORY_ID.fullmatch(memory_id):
            yield f"memory ids must be m1, m2 and so on, but one is {memory_id!r}"


@SINGLE.rule("User and assistant take turns, the user first, and both say something.")
def speakers_alternate(case: _Labelled) -> Iterator[str]:
    dialogue = case.answer.session.dialogue
    if not dialogue:
        yield "the dialogue is empty"
    for number, turn in enumerate(dialogue):
        expected = "assistant" if number % 2 else "user"
        if turn.role != expected:
            yield f"utterance {number + 1} must be the {expected}'s, but is the {turn.role}'s"
            return
        if not turn.content.strip():
            yield f"utterance {number + 1} is empty"
    if len(dialogue) % 2:
        yield "the last utterance of the user has no answer"


@SINGLE.rule("The operations can be applied to the prior state.")
def operations_apply(case: _Labelled) -> Iterator[str]:
    problems = check(case.answer.prior_state, case.answer.operations).problems
    if problems:
        yield f"the operations cannot be applied: {', '.join(sorted(set(problems)))}"


@SINGLE.rule("Replaying the operations gives the next state.")
def next_state_follows(case: _Labelled) -> Iterator[str]:
    labelled = case.answer
    if check(labelled.prior_state, labelled.operations).problems:
        return
    if apply(labelled.prior_state, labelled.operations, labelled.session.time) != labelled.next_state:
        yield "replaying the operations does not give the next state"


@SINGLE.rule("No memory is the target of two operations.")
def one_operation_a_memory(case: _Labelled) -> Iterator[str]:
    targets = Counter(operation.target_memory_id for operation in set(case.answer.operations))
    for memory_id, count in sorted((target, count) for target, count in targets.items() if target is not None):
        if count > 1:
            yield f"{count} operations refer to {memory_id}"


@SINGLE.rule("What is added was not known.")
def additions_new(case: _Labelled) -> Iterator[str]:
    known = {normalised(memory.text): memory.id for memory in case.answer.prior_state.memories}
    for label, operation, _ in _operations(case):
        if operation.event is Event.ADD and (memory_id := known.get(normalised(operation.text))):
            yield f"{label} adds what {memory_id} says already: {operation.text!r}"


@SINGLE.rule("What an operation writes names the person.")
def names_person(case: _Labelled) -> Iterator[str]:
    name = case.answer.session.person_name
    for label, operation, _ in _operations(case):
        if operation.text.strip() and not stands_in(folded(name), folded(operation.text)):
            yield f"{label} must name {name!r}, but is {operation.text!r}"


@SINGLE.rule("Every operation has keywords.")
def has_keywords(case: _Labelled) -> Iterator[str]:
    for label, operation, _ in _operations(case):
        if not all(wording.strip() for wording in wordings(operation.keywords or ("",))):
            yield f"{label} has no keywords, or an empty one"


@SINGLE.rule("Every keyword occurs in its memory, in one of its wordings.")
def keywords_occur(case: _Labelled) -> Iterator[str]:
    for label, operation, _ in _operations(case):
        for keyword in operation.keywords:
            if not occurs(keyword, operation.text):
                yield f"{label}: keyword {keyword!r} is not in its memory {operation.text!r}"


@SINGLE.rule("Where difficulty is stated, it is stated of each operation and agrees with the session.")
def difficulty_agrees(case: _Labelled) -> Iterator[str]:
    labelled, difficulty = case.answer, case.answer.difficulty
    if difficulty is None:
        return
    if len(difficulty.operations) != len(labelled.operations):
        yield f"difficulty is stated of {len(difficulty.operations)} operations, but there are {len(labelled.operations)}"
        return
    if difficulty.bank != len(labelled.prior_state):
        yield f"difficulty says {difficulty.bank} memories, but there are {len(labelled.prior_state)}"
    name = labelled.session.person_name
    bank = {memory.id: memory_stems(memory.text, name) for memory in labelled.prior_state.memories}
    for (label, operation, target), stated in zip(_operations(case), difficulty.operations, strict=True):
        found = rivals(memory_stems((target or operation).text, name), bank, target.id if target else None)
        if found != stated.rivals:
            yield f"{label}: {found} memories are close in wording, but difficulty says {stated.rivals}"
        if (stated.chain > 0) < (operation.event is Event.UPDATE):
            yield f"{label} changes a memory, but difficulty says that it has never been changed"


@SINGLE.rule("Where difficulty is stated, an UPDATE has a keyword that the old text lacks.")
def update_new_keyword(case: _Labelled) -> Iterator[str]:
    if case.answer.difficulty is None:
        return
    for label, operation, target in _operations(case):
        if (
            operation.event is Event.UPDATE
            and target
            and all(occurs(keyword, target.text) for keyword in operation.keywords)
        ):
            yield f"{label}: all of its keywords stand in the old text {target.text!r}"


@SINGLE.rule("Outdated values do not stand in what is remembered instead.")
def outdated_gone(case: _Labelled) -> Iterator[str]:
    for label, operation, _ in _operations(case):
        for value in operation.outdated:
            if stands_in(folded(value), folded(operation.text)):
                yield f"{label}: the outdated value {value!r} stands in the new text {operation.text!r}"


@SINGLE.rule("Every UPDATE changes its memory.")
def update_changes(case: _Labelled) -> Iterator[str]:
    for label, operation, target in _operations(case):
        if operation.event is Event.UPDATE and target is not None and target.text == operation.text:
            yield f"{label} changes nothing"


@SINGLE.rule("Every NONE repeats its memory word for word.")
def none_repeats(case: _Labelled) -> Iterator[str]:
    for label, operation, target in _operations(case):
        if operation.event is Event.NONE and target is not None and target.text != operation.text:
            yield f"{label} does not repeat the text of {target.id}"


@SINGLE.rule("Prior memories are older than the session.")
def prior_older(case: _Labelled) -> Iterator[str]:
    if any(memory.time >= case.answer.session.time for memory in case.answer.prior_state.memories):
        yield "a prior memory is not older than the session"


_Chain = Case[None, tuple[LabelledSession, LabelledSession]]
"""Two sessions of one person, the later one being the next that was not rejected."""


@CHAIN.rule("All sessions of a person are of the same person, name and split.")
def chain_same_person(case: _Chain) -> Iterator[str]:
    before, after = case.answer
    for what, earlier, later in (
        ("id", before.session.person_id, after.session.person_id),
        ("name", before.session.person_name, after.session.person_name),
        ("split", before.split, after.split),
    ):
        if earlier != later:
            yield f"the person's {what} is {later!r}, but {earlier!r} in the session before"


@CHAIN.rule("Sessions of a person come in the order of their indices.")
def chain_in_order(case: _Chain) -> Iterator[str]:
    before, after = case.answer
    if after.session_index <= before.session_index:
        yield f"it follows session {before.session_index}"


@CHAIN.rule("Each session of a person is later than the one before.")
def chain_later(case: _Chain) -> Iterator[str]:
    before, after = case.answer
    if after.session.time <= before.session.time:
        yield "not later than the session before"


@CHAIN.rule("A session begins in the state that the one before left.")
def chain_continues(case: _Chain) -> Iterator[str]:
    before, after = case.answer
    if after.session_index == before.session_index + 1 and before.next_state != after.prior_state:
        yield "the prior state is not the next state of the session before"


@CHAIN.rule("Where sessions were rejected in between, the state has only grown or changed in between.")
def chain_plausible(case: _Chain) -> Iterator[str]:
    before, after = case.answer
    if after.session_index <= before.session_index + 1:
        return
    for memory_id, memory in before.next_state.items():
        kept = after.prior_state.get(memory_id)
        if kept is None:
            yield f"{memory_id} of the session before is gone, but no operation forgets"
        elif kept.text == memory.text and kept.time != memory.time:
            yield f"{memory_id} has the text of the session before, but another time"
        elif kept.text != memory.text and not before.session.time < kept.time < after.session.time:
            yield f"{memory_id} has another text than in the session before, but was not written in between"
    for memory_id, memory in after.prior_state.items():
        if memory_id not in before.next_state and not before.session.time < memory.time < after.session.time:
            yield f"{memory_id} is new since the session before, but was not written in between"


def judge_session(labelled: LabelledSession) -> RuleVerdict:
    """Check one labelled session by itself."""
    return judge(SINGLE.rules, Case(None, labelled))


def judge_chain(sessions: Iterable[LabelledSession]) -> RuleVerdict:
    """Check the sessions of one person, in order, each by itself and each against the one before.

    They may be a stream, in which rejected ones are missing. Messages name the session.
    """
    checked: dict[str, None] = {}
    violations: list[RuleViolation] = []
    before: LabelledSession | None = None
    for labelled in sessions:
        verdicts = [judge_session(labelled)]
        if before is not None:
            verdicts.append(judge(CHAIN.rules, Case(None, (before, labelled))))
        for verdict in verdicts:
            checked |= dict.fromkeys(verdict.checked)
            violations += [
                RuleViolation(found.rule, f"session {labelled.session_index}: {found.message}")
                for found in verdict.violations
            ]
        before = labelled
    return RuleVerdict(tuple(checked), tuple(violations))


class SplitCheck:
    """Finds people, persona seeds and session texts that occur in both splits, as a data set streams by.

    It holds the person ids and, of each seed and each session's text, 8 bytes of a hash.
    """

    def __init__(self) -> None:
        self._people: dict[str, Split] = {}
        self._seeds: dict[bytes, Split] = {}
        self._texts: dict[bytes, Split] = {}

    def person(self, person_id: str, seed: str, split: Split) -> list[RuleViolation]:
        """Take a person's persona; each person once."""
        found = []
        if self._people.setdefault(person_id, split) != split:
            found.append(RuleViolation("split.people", f"person {person_id} is in both splits"))
        if self._seeds.setdefault(_digest([seed]), split) != split:
            found.append(RuleViolation("split.seeds", f"the persona seed of {person_id} is in both splits: {seed!r}"))
        return found

    def session(self, labelled: LabelledSession) -> list[RuleViolation]:
        """Take a labelled session: whose it is, and everything that the user says in it."""
        found = []
        if self._people.setdefault(labelled.session.person_id, labelled.split) != labelled.split:
            found.append(RuleViolation("split.people", f"person {labelled.session.person_id} is in both splits"))
        spoken = _digest([turn.content for turn in labelled.session.dialogue if turn.role == "user"])
        if self._texts.setdefault(spoken, labelled.split) != labelled.split:
            found.append(RuleViolation("split.session_texts", f"the text of session {labelled.key} is in both splits"))
        return found


def _digest(texts: Iterable[str]) -> bytes:
    return hashlib.blake2b("\n".join(map(normalised, texts)).encode("utf-8", "surrogatepass"), digest_size=8).digest()

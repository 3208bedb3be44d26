"""Rules that take a reader: what a second look at a finished dialogue has found, compared with what the program planned.

A language model is asked what the user states, and whether the user contradicts themselves (`synth.llm.reviews`). What it
answers is no verdict: these rules compare it with the labels.
"""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from deltamem.text import content_stems
from synth.records import Dialogue
from synth.tasks import Contradictions, ContradictionsTask, DialogueTask, Extraction, ExtractionTask, RuleVerdict, Unit
from synth.validators.base import Case, RuleSet, Similarity, judge, starts_with_name

EXTRACTION, CONTRADICTIONS = RuleSet(Unit.EXTRACTION), RuleSet(Unit.CONTRADICTIONS)
"""Rules of the answers of a reader by themselves."""
SAID, CONSISTENT = RuleSet(Unit.DIALOGUE), RuleSet(Unit.DIALOGUE)
"""Rules of a `Reviewed` dialogue: after an extraction, and after a look for contradictions."""

SAME_STATEMENT, OF_STATEMENT, OF_TEXT = 0.65, 0.5, 0.4
"""A statement is what a known text says from this cosine similarity, or if they share this part of the content stems of the
statement, or this part of those of the text, which sums up what is said.

Measured with all-MiniLM-L6-v2, taking for a statement the sentence of the user that has most of a label: what says a label
is no news in 94% of 154 cases of eval/development, whose labels sum up, 100% of the offline writer's `paper` and 98% of its
`demanding`; what says a label that is missing is found in 85%, 80% and 85%.
"""


class Reviewed(NamedTuple):
    """A dialogue that keeps all other rules, and what a reader has found in it; None where nobody was asked."""

    dialogue: Dialogue
    extraction: Extraction | None
    contradictions: Contradictions | None


_Reviewed = Case[DialogueTask, Reviewed]


@EXTRACTION.rule("The turns of the statements exist.")
def turns_exist(case: Case[ExtractionTask, Extraction]) -> Iterator[str]:
    for number, fact in enumerate(case.answer.facts, start=1):
        if fact.turn > len(case.task.turns):
            yield f"fact {number} is of turn {fact.turn}, but the last turn is {len(case.task.turns)}"


@EXTRACTION.rule("Each statement begins with the person's name.")
def begins_with_name(case: Case[ExtractionTask, Extraction]) -> Iterator[str]:
    for number, fact in enumerate(case.answer.facts, start=1):
        if not starts_with_name(fact.text, case.task.name):
            yield f"fact {number} must begin with the name {case.task.name!r}, but is {fact.text!r}"


@CONTRADICTIONS.rule("The turns that are to be changed exist.", name="turns_exist")
def contradictions_turns_exist(case: Case[ContradictionsTask, Contradictions]) -> Iterator[str]:
    for number, found in enumerate(case.answer.found, start=1):
        if found.turn > len(case.task.turns):
            yield f"entry {number} is of turn {found.turn}, but the last turn is {len(case.task.turns)}"


@SAID.rule("The user states nothing of their life that no fact of the session and nothing remembered says.")
def said_is_labelled(case: _Reviewed) -> Iterator[str]:
    stated = case.answer.extraction.facts if case.answer.extraction else ()
    name = content_stems(case.task.fixed.name)
    known = known_texts(case.task)
    stems = [content_stems(text) - name for text in known]
    close = [-1.0] * len(stated)
    if case.similarity is not None and stated and known:
        close = [max(row) for row in case.similarity.between([fact.text for fact in stated], known)]
    for fact, similarity in zip(stated, close, strict=True):
        own = content_stems(fact.text) - name
        shares = any(len(own & said) >= min(OF_STATEMENT * len(own), OF_TEXT * len(said)) for said in stems if said)
        if own and similarity < SAME_STATEMENT and not shares:
            yield (
                f"turn {fact.turn}: the user states {fact.text!r}, which no fact of the session says; leave it out, or say "
                "it so that it states nothing"
            )


@CONSISTENT.rule("The user contradicts neither themselves nor what is remembered.")
def no_contradiction(case: _Reviewed) -> Iterator[str]:
    for found in case.answer.contradictions.found if case.answer.contradictions else ():
        yield f"turn {found.turn}: a contradiction: {found.reason}"


def judge_reviewed(task: DialogueTask, reviewed: Reviewed, similarity: Similarity | None = None) -> RuleVerdict:
    """Check what readers have found in a dialogue; what nobody was asked for is not checked."""
    rules = SAID.rules if reviewed.extraction is not None else ()
    rules += CONSISTENT.rules if reviewed.contradictions is not None else ()
    return judge(rules, Case(task, reviewed, similarity))


def known_texts(task: DialogueTask) -> list[str]:
    """What may be stated in a session: its facts, before and after, and what is remembered besides."""
    texts = [text for fact in task.facts for text in (fact.text, fact.previous_text)]
    texts += [*(aside.memory for aside in task.asides), *task.known]
    return [text for text in dict.fromkeys(texts) if text]

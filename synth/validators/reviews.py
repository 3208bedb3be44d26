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

SAME_STATEMENT = 0.75
"""Cosine similarity from which a statement is what a known text says; the reward takes the same for two memories.

Measured with all-MiniLM-L6-v2 on the offline writer's sessions: of 126 sentences that tell a label none is taken for news,
and of 66 facts of later sessions, put into a session that does not have them, 85% are found (0.6: 55%; words alone: 91%,
and 3% of labels are taken for news).
"""

SHARED_STEMS, SHARED_STEMS_TOGETHER = 0.6, 0.8
"""Shares of a statement's content stems from which one known text says it, or all facts about its turn together."""


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
    turns = {planned.fact_id: planned.turn for planned in case.answer.dialogue.plan}
    known = known_texts(case.task)
    labels = {fact.id: frozenset(content_stems(f"{fact.text} {fact.previous_text}")) for fact in case.task.facts}
    stems = [content_stems(text) for text in known]
    close = [-1.0] * len(stated)
    if case.similarity is not None and stated and known:
        close = [max(row) for row in case.similarity.between([fact.text for fact in stated], known)]
    for fact, similarity in zip(stated, close, strict=True):
        own = content_stems(fact.text) - name
        # A reader may join what the labels keep apart.
        near = frozenset[str]().union(
            *(labels[fact_id] for fact_id in labels if abs(turns.get(fact_id, 0) - fact.turn) <= 1)
        )
        if (
            not own
            or similarity >= SAME_STATEMENT
            or any(len(own & said) >= SHARED_STEMS * len(own) for said in stems)
            or len(own & near) >= SHARED_STEMS_TOGETHER * len(own)
        ):
            continue
        yield (
            f"turn {fact.turn}: the user states {fact.text!r}, which no fact of the session says; leave it out, or say it "
            "so that it states nothing"
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

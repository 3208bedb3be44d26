from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from answering_cases import block

from eval.answer import AnswerRequest, Judge, QAGrader
from eval.records import AnswerRecord, QuestionRecord, Verdict

RECORD = QuestionRecord(key="c1/0", group="c1", category="x", question="Q?", gold="g")


@dataclass
class Listed:
    """Answers from a list of texts; None is a failure."""

    texts: list[str | None]
    name: str = "listed"
    asked: list[tuple[int, AnswerRequest]] = field(default_factory=list)

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        self.asked.append((run, request))
        await asyncio.sleep(0)
        text = self.texts.pop(0)
        return AnswerRecord(text=text, error=None if text else "broken")


@dataclass
class Labels:
    """Judges from a list of labels; None is a failure."""

    name: str
    labels: list[str | None]
    asked: list[tuple[Mapping[str, str], str]] = field(default_factory=list)

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        self.asked.append((fields, scope))
        await asyncio.sleep(0)
        label = self.labels.pop(0)
        return Verdict(label=label, error=None if label else "unreadable")


def asking(answerer: Listed, judges: Sequence[Judge], *, runs: int = 1, budget: int = 1000) -> QAGrader:
    named = {judge.name: judge for judge in judges}

    def fields(record: QuestionRecord, text: str) -> dict[str, dict[str, str]]:
        return {name: {"gold": record.gold or "", "answer": text} for name in (*named, "not asked")}

    return QAGrader(answerer, named, runs, budget, True, lambda record, text: {"length": float(len(text))}, fields)


async def test_a_question_is_answered_scored_and_judged_in_every_run() -> None:
    answerer, strict, lenient = (
        Listed(["a", "bb"]),
        Labels("strict", ["wrong", "correct"]),
        Labels("lenient", ["correct"] * 2),
    )
    record = await asking(answerer, [strict, lenient], runs=2).ask(RECORD, [block("x"), block()], ("(a) 1",))
    assert record.complete and [answer.text for answer in record.answers] == ["a", "bb"]
    assert [answer.scores for answer in record.answers] == [{"length": 1.0}, {"length": 2.0}]
    assert [answer.verdicts["strict"].label for answer in record.answers] == ["wrong", "correct"]
    assert [run for run, _ in answerer.asked] == [0, 1]
    (_, request) = answerer.asked[0]
    assert (request.question, request.options, request.scope, len(request.context)) == ("Q?", ("(a) 1",), "c1", 1)
    assert strict.asked[0] == ({"gold": "g", "answer": "a"}, "c1")
    assert (record.shown, record.context_tokens > 0) == (1, True)


async def test_the_context_is_cut_to_the_budget() -> None:
    answerer = Listed(["a"])
    record = await asking(answerer, [], budget=20).ask(RECORD, [block("x" * 9, "y" * 9)])
    assert (record.shown, record.context_tokens) == (1, 13)  # 17 bytes of title, 13 of date, 9
    assert answerer.asked[0][1].context == (block("x" * 9),)


async def test_a_failed_answer_is_neither_scored_nor_judged() -> None:
    strict = Labels("strict", [])
    record = await asking(Listed([None]), [strict]).ask(RECORD, [])
    assert not record.complete and strict.asked == []
    assert record.answers == (AnswerRecord(text=None, error="broken"),)


async def test_asked_again_only_what_failed_is_done() -> None:
    answerer, strict, lenient = (
        Listed(["a", None, "c"]),
        Labels("strict", [None, "wrong"]),
        Labels("lenient", ["correct"] * 2),
    )
    first = await asking(answerer, [strict, lenient], runs=3).ask(RECORD, [])
    assert [answer.error for answer in first.answers] == [None, "broken", None]
    assert [answer.verdicts["strict"].label for answer in first.answers if answer.text] == [None, "wrong"]
    answerer.texts, strict.labels, lenient.labels = ["b"], ["correct", "correct"], ["wrong"]
    again = await asking(answerer, [strict, lenient], runs=3).ask(first, [])
    assert again.complete and [answer.text for answer in again.answers] == ["a", "b", "c"]
    assert [answer.verdicts["strict"].label for answer in again.answers] == ["correct", "correct", "wrong"]
    assert [answer.verdicts["lenient"].label for answer in again.answers] == ["correct", "wrong", "correct"]
    third = await asking(Listed([]), [Labels("strict", []), Labels("lenient", [])], runs=3).ask(again, [])
    assert third == again, "nothing is left to do"


async def test_another_judge_is_added_to_kept_answers() -> None:
    first = await asking(Listed(["a"]), [Labels("strict", ["wrong"])]).ask(RECORD, [])
    again = await asking(Listed([]), [Labels("strict", []), Labels("new", ["correct"])]).ask(first, [])
    assert {name: verdict.label for name, verdict in again.answers[0].verdicts.items()} == {
        "strict": "wrong",
        "new": "correct",
    }

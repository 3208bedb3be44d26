from __future__ import annotations

import pytest
from compare_cases import ORDER, POOLED, question
from hypothesis import given
from hypothesis import strategies as st

from eval.records import AnswerRecord, QuestionRecord, Verdict
from eval.summary import (
    answer_value,
    category_scores,
    counts_by_category,
    recall_value,
    reciprocal_rank_value,
    verdict_value,
)


def test_no_value_is_never_a_zero() -> None:
    records = [
        question("a/1", "temporal", lenient="correct"),
        question("a/2", "temporal", lenient=None),
        question("b/1", "temporal", text=None),
        question("b/2", "temporal", lenient="wrong"),
        question("b/3", "temporal", lenient="correct"),
    ]
    scores = category_scores(records, verdict_value("lenient"), resamples=50)
    assert scores["temporal"] is not None
    assert scores["temporal"]["estimate"] == pytest.approx(2 / 3)
    assert scores["temporal"]["count"] == 3
    assert scores["all"] == scores["temporal"]


def test_a_category_that_failed_altogether_has_no_score() -> None:
    records = [question("a/1", "temporal", text=None), question("a/2", "multi-hop", lenient="wrong")]
    scores = category_scores(records, verdict_value("lenient"))
    assert scores["temporal"] is None
    assert scores["multi-hop"] is not None and scores["multi-hop"]["estimate"] == 0


def test_order_and_pooling() -> None:
    records = [question("a/1", "adversarial", f1=1.0), question("a/2", "other"), question("b/1", "temporal", f1=0.25)]
    records.append(question("b/2", "single-hop", f1=0.75))
    scores = category_scores(records, answer_value("set_f1"), pooled=POOLED, order=ORDER, resamples=50)
    assert list(scores) == ["single-hop", "temporal", "adversarial", "other", "all"]
    assert scores["adversarial"] is None, "it has no lexical score"
    assert scores["all"] is not None
    assert scores["all"]["estimate"] == 0.5
    assert scores["all"]["count"] == 2
    assert counts_by_category(records, ORDER) == {"single-hop": 1, "temporal": 1, "adversarial": 1, "other": 1}


def test_one_group_has_wilsons_interval_for_verdicts_and_a_bootstrap_of_questions_for_scores() -> None:
    records = [question(f"a/{number}", "temporal", lenient="correct" if number < 8 else "wrong") for number in range(10)]
    score = category_scores(records, verdict_value("lenient"))["all"]
    assert score is not None
    assert (score["low"], score["high"]) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson, 8 of 10
    graded = [question(f"a/{number}", "temporal", f1=number / 10) for number in range(10)]
    score = category_scores(graded, answer_value("set_f1"))["all"]
    assert score is not None and score["low"] < score["estimate"] < score["high"]


def test_runs_are_averaged_over_those_with_a_value() -> None:
    answers = (
        AnswerRecord(text="x", scores={"correct": 1.0}, verdicts={"j": Verdict(label="Correct")}),
        AnswerRecord(text="y", scores={"correct": 0.0}, verdicts={"j": Verdict(label="omission")}),
        AnswerRecord(text=None, error="nothing"),
    )
    record = QuestionRecord(key="a/1", group="a", category="c", question="q", answers=answers)
    assert answer_value("correct")(record) == 0.5
    assert verdict_value("j")(record) == 0.5
    assert verdict_value("another")(record) is None


def test_ranks() -> None:
    record = question("a/1", "temporal").model_copy(update={"ranks": (3, None, 7, 12), "evidence": ("a", "b", "c", "d")})
    assert recall_value(5)(record) == 0.25
    assert recall_value(10)(record) == 0.5
    assert reciprocal_rank_value(record) == pytest.approx(1 / 3)
    for nothing in (record.model_copy(update={"ranks": ()}), record.model_copy(update={"error": "no memory"})):
        assert recall_value(5)(nothing) is None
        assert reciprocal_rank_value(nothing) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(ORDER), st.sampled_from(["correct", "wrong", None])), min_size=1
    )
)
def test_all_is_the_mean_of_what_has_a_verdict(rows: list[tuple[str, str, str | None]]) -> None:
    answer = {label: AnswerRecord(text="x", verdicts={"j": Verdict(label=label)}) for label in ("correct", "wrong", None)}
    records = [
        QuestionRecord(key=str(number), group=group, category=category, question="q", answers=(answer[label],))
        for number, (group, category, label) in enumerate(rows)
    ]
    scores = category_scores(records, verdict_value("j"), resamples=20)
    labels = [label for _, _, label in rows if label is not None]
    if not labels:
        assert set(scores.values()) == {None}
        return
    overall = scores.pop("all")
    assert overall is not None
    assert overall["estimate"] == pytest.approx(labels.count("correct") / len(labels))
    assert overall["low"] <= overall["estimate"] + 1e-9 and overall["estimate"] <= overall["high"] + 1e-9
    assert overall["count"] == sum(score["count"] for score in scores.values() if score is not None)

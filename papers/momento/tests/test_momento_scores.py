"""Momento's scores against closed forms and brute force."""

from __future__ import annotations

import itertools
import json
import random
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.records import QuestionRecord
from papers.momento.scores import (
    Action,
    TrialRecord,
    TrialScores,
    answer_of,
    dag_recall,
    failure_counts,
    is_part,
    matches,
    matching_hashes,
    pass_all,
    pass_at,
    run_scores,
    said,
)
from papers.momento.tasks import ActionNode, ExpectedInformation, MomentoTask, sorted_nodes
from papers.momento.world import HASHES


def node(name: str, *before: str, tool: str = "get_user_details", **changes: Any) -> ActionNode:
    return ActionNode(id=name, tool=tool, predecessors=before, **({"arguments": {"user_id": name}} | changes))


def action(name: str, tool: str = "get_user_details", **arguments: Any) -> Action:
    return Action(name=tool, arguments=arguments or {"user_id": name}, result="{}")


@given(st.integers(1, 7), st.data())
def test_pass_at_k_and_pass_all_k_are_what_drawing_gives(trials: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, trials))
    k = data.draw(st.integers(1, trials))
    draws = list(itertools.combinations([True] * passed + [False] * (trials - passed), k))
    assert pass_at(k, passed, trials) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_all(k, passed, trials) == pytest.approx(sum(map(all, draws)) / len(draws))


def brute_recall(dag: list[ActionNode], actions: list[Action], *, ordered: bool) -> float:
    """The most nodes that any assignment of different actions allows."""
    best = 0
    options = [[None, *(n for n, one in enumerate(actions) if matches(of, one))] for of in dag]
    for chosen in itertools.product(*options):
        picked = {of.id: number for of, number in zip(dag, chosen, strict=True) if number is not None}
        if len(set(picked.values())) < len(picked):
            continue
        if all(
            before in picked and (not ordered or picked[before] < picked[of.id])
            for of in dag
            if of.id in picked
            for before in of.predecessors
        ):
            best = max(best, len(picked))
    return best / len(dag)


@given(st.integers(0, 10**6), st.booleans())
def test_recall_is_that_of_brute_force_on_random_dags(seed: int, ordered: bool) -> None:
    draw = random.Random(seed)
    names = "abcde"[: draw.randint(1, 5)]
    dag = [node(name, *(before for before in names[:place] if draw.random() < 0.4)) for place, name in enumerate(names)]
    draw.shuffle(dag)
    actions = [action(draw.choice([*names, "x"])) for _ in range(draw.randint(0, 7))]
    assert dag_recall(dag, actions, ordered=ordered) == brute_recall(dag, actions, ordered=ordered)
    assert dag_recall(dag, actions, ordered=True) <= dag_recall(dag, actions)
    order = [of.id for of in sorted_nodes(dag)]
    assert sorted(order) == sorted(names)
    assert all(order.index(before) < order.index(of.id) for of in dag for before in of.predecessors)


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ({"party_size": 4}, {"party_size": "4"}, True),
        ({"party_size": 4}, {}, False),
        ({"special_requests": "quiet"}, {"special_requests": "loud"}, True),
        ({}, {"user_id": "anybody"}, True),
        (
            {"items": [{"menu_item_id": "a", "quantity": 1}]},
            {"items": [{"menu_item_id": "a", "quantity": 1, "notes": "x"}]},
            True,
        ),
        ({"items": [{"menu_item_id": "a"}]}, {"items": [{"menu_item_id": "a"}, {"menu_item_id": "b"}]}, False),
        ({"cuisines": ["a", "b"]}, {"cuisines": ["b", "a"]}, True),
    ],
)
def test_arguments(expected: dict[str, Any], actual: dict[str, Any], same: bool) -> None:
    one = Action(name="create_order", arguments=actual, result="Error: x")
    assert matches(node("a", tool="create_order", arguments=expected), one) is same


def test_results_match_as_a_part_in_the_direction_that_is_asked_for() -> None:
    def expecting(result: Any, subset: bool) -> ActionNode:
        return node("a", evaluation_type="results", expected_result=result, is_subset=subset)

    done = Action(
        name="get_user_details", arguments={}, result=json.dumps({"name": "A", "address": {"zip": "1"}, "created_at": 1})
    )
    assert matches(expecting({"address": {"zip": "1"}}, True), done)
    assert not matches(expecting({"address": {"zip": "1"}}, False), done)
    assert matches(expecting({"name": "A", "address": {"zip": "1"}, "more": 1, "created_at": 2}, False), done)
    assert not matches(expecting({"name": "A"}, True), done.model_copy(update={"result": "Error: nobody"}))
    assert not matches(expecting(None, False), done)  # where no result is expected the arguments decide
    assert matches(expecting(None, False), done.model_copy(update={"arguments": {"user_id": "a"}}))
    assert is_part([1], [2, 1]) and not is_part([1, 3], [2, 1]) and not is_part({"a": 1}, [1])


def test_an_empty_hash_always_matches() -> None:
    actual = dict.fromkeys(HASHES, "x")
    assert all(matching_hashes(dict.fromkeys(HASHES, ""), actual).values())
    assert matching_hashes(actual | {"orders_hashed": "y"}, actual)["orders_hashed"] is False


def test_words_cover_what_they_say() -> None:
    items = [ExpectedInformation(description="d", reference_answer=answer) for answer in ("9:00 AM", "x", "")]
    assert said(items, ["We open at 9:00 am."]) == [True, False, False]


def scores(*, passed: bool, judged: bool | None = None) -> TrialScores:
    return TrialScores(
        tables=dict.fromkeys(HASHES, passed),
        covered_by_words=(passed,),
        covered_by_judge=None if judged is None else (judged,),
        tool_recall=1.0,
        tool_recall_ordered=0.5,
    )


def test_all_three_make_a_pass_and_the_judge_comes_before_the_words() -> None:
    assert scores(passed=True).passed and not scores(passed=False).passed
    assert not scores(passed=True, judged=False).passed
    assert scores(passed=True, judged=False).word_coverage == 1.0


def question(task: int, *passed: bool | None) -> QuestionRecord:
    trials = (TrialRecord(error="broken") if one is None else TrialRecord(scores=scores(passed=one)) for one in passed)
    answers = tuple(answer_of(trial, "") for trial in trials)
    return QuestionRecord(key=str(task), group=str(task), category="k", question="q", answers=answers)


def test_a_failure_is_not_a_zero() -> None:
    rows = run_scores([question(1, True, None), question(2, False, True)], resamples=20, seed=0)
    made = {name: of["all"] for name, of in rows.items()}
    estimates = {name: of["estimate"] for name, of in made.items() if name.startswith("pass")}
    assert estimates == {
        "passed": 0.5,
        "passed(valid)": 0.75,
        "pass@2": 1.0,
        "pass^2": 0.0,
        "pass@2(valid)": 1.0,  # of the one task with two trials
        "pass^2(valid)": 0.0,
    }
    assert made["passed"]["failed"] == made["pass@2"]["failed"] == 1
    assert "passed(valid)" not in run_scores([question(1, None)], resamples=20, seed=0)


def test_failures_are_counted_by_metric_and_by_tool_of_the_alternative_that_was_followed_best() -> None:
    long = (node("a", tool="get_membership_benefits"), node("b", "a"), node("c", tool="create_order"))
    task = MomentoTask(task_id=1, user_id="u", instruction="i", current_date=date(2026, 5, 18), action_dags=(long, long[2:]))
    done = action("b"), action("c", tool="create_order")
    half = TrialRecord(actions=done[:1], scores=scores(passed=False))  # b is called and does not count: a comes before it
    whole = TrialRecord(actions=done[1:], scores=scores(passed=True))  # the short alternative
    counts = failure_counts([(task, half), (task, whole), (task, TrialRecord(error="broken"))])
    assert (counts["trials"], counts["not_passed"]) == (2, 1)
    assert counts["by_metric"] == {"state": 1, "coverage": 1, "tool_recall": 0}  # as their records say
    assert list(counts["by_tool"].items()) == [
        ("create_order", {"expected": 2, "missed": 1, "uncalled": 1}),
        ("get_membership_benefits", {"expected": 1, "missed": 1, "uncalled": 1}),
        ("get_user_details", {"expected": 1, "missed": 1, "uncalled": 0}),
    ]
    nothing = failure_counts([])
    assert nothing["by_tool"] == {} and not any(nothing["by_metric"].values())

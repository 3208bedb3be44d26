"""Verdicts are found in what surrounds them or are errors, never labels; how often a judge is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

from answering_cases import CORRECT, FIELDS, judge, model
from scripted_server import Reply, completion, failure, replies, too_long

from deltamem.llm import seed_of_request
from eval.answer import last_object
from eval.judge import CalibrationItem, RightKind, WrongKind, load_calibration, measure
from eval.records import Cost, Verdict

PROSE = "The answer gives the same day as the reference, so I would call it correct."


READABLE = (
    CORRECT,
    f"```json\n{CORRECT}\n```",
    f"<think>wrong? {json.dumps({'label': 'wrong'})}</think>Well:\n\n{CORRECT}\nThat is all.",
    '{"label": "CORRECT", "reason": "Same date."}',
    '{"Label": " Correct. ", "Reason": "Same date."}',
    '{"label": "wrong"} No, wait. {"label": "correct", "reason": "Same date."}',
    '{"verdict": {"reason": "Same date.", "label": "correct"}}',
    '{"reason": "Same\ndate.", "label": "correct"}',
    'It says {8 May}. {"reason": "Same date.", "label": "correct"}',
    '{"reason": "It says "8 May", as asked.", "label": "correct"}',
    "{'reason': 'Same date.', 'label': 'correct',}",
)
UNREADABLE = (
    PROSE,
    "",
    "correct",
    '{"reason": "Same date."}',
    '{"label": "yes"}',
    '{"label": null}',
    '{"label": ["correct"]}',
    '{"label": "correct or wrong"}',
    '{"reason": "x", "label": "correct" or "wrong"}',
    '{"reason": "x" "label": "correct"} or {"reason": "x" "label": "wrong"}',
    '["correct"]',
    '<think>{"label": "correct"}',
    '{"label": "incorrect"}',
    "{" * 3000,
)


async def test_a_verdict_is_found_in_what_surrounds_it() -> None:
    async with model(replies(*map(completion, READABLE))) as (llm, server):
        for number, said in enumerate(READABLE, start=1):
            verdict = await judge(llm).judge(FIELDS, "c1")
            assert (verdict.label, verdict.error, len(server.requests)) == ("correct", None, number), said


async def test_what_is_no_verdict_is_asked_again_and_then_an_error_never_a_label() -> None:
    said = [one for one in UNREADABLE for _ in range(3)]
    async with model(replies(*(completion(one, tokens=3, prompt_tokens=10) for one in said))) as (llm, server):
        for one in UNREADABLE:
            verdict = await judge(llm).judge(FIELDS, "c1")
            assert verdict.label is None and verdict.error is not None, one
            assert verdict.error.startswith("the judge 'lenient' gave no verdict in 3 replies, the last: ")
            assert verdict.cost.model_copy(update={"seconds": 0.0}) == Cost(calls=3, prompt_tokens=30, completion_tokens=9)
        draws = zip(server.requests, [0, 1, 2] * len(UNREADABLE), strict=True)
        assert all(body["seed"] == seed_of_request(5, draw, body["messages"]) for body, draw in draws)


async def test_an_unreadable_reply_is_shown_to_the_model() -> None:
    async with model(replies(completion(PROSE), completion(CORRECT))) as (llm, server):
        verdict = await judge(llm).judge(FIELDS, "c1")
    assert (verdict.label, verdict.reason, verdict.cost.calls) == ("correct", "Same date.", 2)
    first, second = (body["messages"] for body in server.requests)
    assert second[0] == first[0] and [one["role"] for one in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == PROSE
    assert second[2]["content"] == (
        "That cannot be read. Reply with one JSON object only, in which \"label\" is 'correct' or 'wrong'."
    )
    async with model(replies(completion("", finish="length"), completion(CORRECT))) as (llm, server):
        assert (await judge(llm).judge(FIELDS, "c1")).label == "correct"
    assert server.requests[0]["messages"] == server.requests[1]["messages"], "an empty reply is not shown"


async def test_a_reply_that_was_cut_is_named() -> None:
    async with model(lambda body: completion("<think>Hm", finish="length")) as (llm, _):
        verdict = await judge(llm, attempts=1).judge(FIELDS, "c1")
    assert (
        verdict.error is not None and "in its reply: nothing but thinking, which was stopped at 32 tokens" in verdict.error
    )
    assert "+judge.extra_body.chat_template_kwargs.enable_thinking=false" in verdict.error


async def test_the_reply_to_a_prompt_that_is_not_ours_has_its_keys() -> None:
    keys, flags = {"label": "accuracy_score", "included": "is_included"}, {"included": ("true", "false")}
    official = completion('{"accuracy_score": 2, "is_included": true, "reasoning": "All said."}')
    ours = completion('{"label": "2", "included": "true", "reason": "x"}')
    async with model(replies(ours, official)) as (llm, server):
        verdict = await judge(llm, labels=("2", "1", "0"), flags=flags, keys=keys).judge(FIELDS, "c1")
    assert (verdict.label, verdict.flags, verdict.reason) == ("2", {"included": "true"}, "All said.")
    assert (
        "\"accuracy_score\" is '2' or '1' or '0', \"is_included\" is 'true'" in server.requests[1]["messages"][2]["content"]
    )


async def test_flags_must_be_there_with_allowed_values() -> None:
    flags = {"Included": ("true", "false")}
    async with model(
        replies(
            completion('{"label": 2}'),
            completion('{"label": "2", "included": "perhaps"}'),
            completion('{"label": 2.0, "included": true, "reason": ["a", 1]}'),
        )
    ) as (llm, server):
        verdict = await judge(llm, labels=("2", "1", "0"), flags=flags).judge(FIELDS, "c1")
    assert (verdict.label, verdict.flags, verdict.reason) == ("2", {"Included": "true"}, '["a", 1]')
    assert (
        "\"label\" is '2' or '1' or '0', \"Included\" is 'true' or 'false'" in server.requests[1]["messages"][-1]["content"]
    )


async def test_a_failing_endpoint_is_an_error_and_what_was_spent_is_kept() -> None:
    for reply in (failure(500), too_long(), Reply(b"{}"), Reply(reset=True)):
        async with model(replies(completion(PROSE, tokens=2), reply)) as (llm, _):
            verdict = await judge(llm).judge(FIELDS, "c1")
        assert verdict.label is None and verdict.error is not None and "endpoint" in verdict.error
        assert (verdict.cost.calls, verdict.cost.completion_tokens) == (1, 2)


async def test_a_second_run_costs_nothing_not_even_for_unreadable_replies(tmp_path: Path) -> None:
    async with model(lambda body: completion(PROSE), tmp_path / "cache") as (llm, server):
        first = await judge(llm).judge(FIELDS, "c1")
        again = await judge(llm).judge(FIELDS, "c1")
        assert first.error == again.error and len(server.requests) == 3
        assert (again.cost.calls, again.cost.cached, again.cost.seconds) == (3, 3, 0.0)
        await judge(llm).judge(FIELDS, "c2")
        assert len(server.requests) == 6, "another scope's replies are not taken"
        await judge(llm, "strict").judge(FIELDS, "c1")
        assert len(server.requests) == 9, "nor those of another prompt"


def test_an_object_needs_all_keys() -> None:
    text = '{"a": 1} {"a": 2, "b": {"c": 3}} {"b": 4}'
    assert last_object(text, ["a", "b"]) == {"a": "2", "b": '{"c": 3}'}
    assert last_object(text, ["a", "z"]) is None


class RuleJudge:
    """Judges by a rule; None is a failure."""

    name = "rule"

    def __init__(self, rule: Callable[[Mapping[str, str]], bool | None]) -> None:
        self.rule = rule

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        assert scope
        accepted = self.rule(fields)
        if accepted is None:
            return Verdict(label=None, error="no verdict", cost=Cost(calls=3))
        return Verdict(label="correct" if accepted else "wrong", reason="rule", cost=Cost(calls=1))


def test_the_probes_are_well_formed_and_balanced() -> None:
    probes = load_calibration()
    right = [probe for probe in probes if probe.right]
    assert len(probes) >= 60 and 0.4 <= len(right) / len(probes) <= 0.6
    kinds = {True: get_args(RightKind), False: get_args(WrongKind)}
    assert all(probe.kind in kinds[probe.right] for probe in probes)
    assert min(Counter(probe.kind for probe in probes).values()) >= 2
    assert {probe.kind for probe in probes} == {*kinds[True], *kinds[False]}
    assert len({(probe.question, probe.answer.casefold()) for probe in probes}) == len(probes)
    assert len({(probe.question, probe.gold) for probe in probes}) == len({probe.question for probe in probes})
    assert not any(probe.answer == probe.gold for probe in probes if not probe.right)
    assert {probe.question for probe in probes if probe.right} == {probe.question for probe in probes if not probe.right}


async def test_a_judge_that_always_says_yes_accepts_all_that_is_wrong() -> None:
    probes = load_calibration()
    result = await measure(RuleJudge(lambda fields: True), probes)
    wrong = [probe for probe in probes if not probe.right]
    accepts, rejects = result["false_accept"], result["false_reject"]
    assert (accepts["estimate"], accepts["count"]) == (1.0, len(wrong))
    assert rejects["estimate"] == 0.0 and rejects["high"] > 0.0
    assert result["wrong"] == [one.model_dump() | {"reason": "rule"} for one in wrong] and result["errors"] == 0
    assert result["by_kind"]["vague"] == [10, 10] and result["by_kind"]["reworded"][0] == 0
    assert result["cost"]["calls"] == len(probes)


async def test_failures_are_in_neither_share() -> None:
    probes = [
        CalibrationItem(question="Q", gold="g", answer=answer, right=right, kind="same" if right else "vague")
        for answer, right in (("1", True), ("2", True), ("3", False), ("4", False))
    ]
    said = {"1": True, "2": None, "3": None, "4": None}
    result = await measure(RuleJudge(lambda fields: said[fields["answer"]]), probes)
    assert (result["false_accept"], result["errors"], result["first_error"]) == (None, 3, "no verdict")
    assert (result["false_reject"]["estimate"], result["false_reject"]["count"]) == (0.0, 1)
    assert result["cost"]["calls"] == 10
    assert json.loads(json.dumps(result))["by_kind"] == {"same": [0, 1]}

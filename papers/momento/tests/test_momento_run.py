"""Runs: what memory is worth to an agent without mistakes, agents and users by models, resuming, failures, pages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from momento_cases import Finished, configured, finish
from scripted_server import Reply, Served, completion, failure, is_check, serve, too_long, unused_url

from deltamem.config import CONFIGS
from deltamem.errors import DeltaMemError
from deltamem.ingest import estimate_tokens
from deltamem.prompts import load_prompt
from eval.compare.runs import differences, load_runs
from eval.compare.tables import paired_differences
from papers.momento import data
from papers.momento.agent import EARLIER, LLMAgent, Model, Toolbox, UserMessage, with_images
from papers.momento.judge import known_replies, read_verdicts
from papers.momento.mini import mini_tasks
from papers.momento.recall import dialogue_sessions
from papers.momento.scores import SCORES, said
from papers.momento.tasks import Image, PastMessage, TaskSet
from papers.momento.world import World

MINI = mini_tasks()
NAMED = ("answer.model=tiny", "user.model=tiny", "answer.max_tokens=1000", "judge.max_tokens=1000")
NAMED += ("limit=1", "trials=1", "system=oracle")
QUICK = ("judge.max_retries=0", "answer.max_retries=0", "judge.probes=false")

pytestmark = pytest.mark.usefixtures("quick_runs")


def test_the_tasks_need_memory(ran: Callable[[str], Finished], run: Finished) -> None:
    passed = {system: ran(system).passed() for system in ("oracle", "none", "full_context", "given_summaries")}
    assert passed["oracle"] == passed["full_context"] == 1.0
    assert passed["none"] == 0.0
    # The tasks' words are those of the sessions, so that an embedder of words finds nearly all with the usual three.
    assert 0.1 < run.passed() < 0.9 and passed["given_summaries"] > 0


def test_a_run_says_what_came_of_it(run: Finished) -> None:
    assert run.code == 0 and run.summary["trials"]["done"] == 18 and not run.summary["trials"]["failed"]
    assert "Momento, not the published file, naive_rag: passed" in run.stdout and "n 9 of 54" in run.stdout
    assert "18 trials, 0 failed" in run.stdout and "pass^2" in run.stdout
    failed = run.summary["failed_at"]
    assert f"{failed['not_passed']} of 18 trials did not pass, for state" in run.stdout
    assert failed["not_passed"] == round(18 * (1 - run.passed())) and "create_order" in run.page.partition("<h2>Trials")[0]
    trials = [trial.scores for trial in run.trials.values() if trial.scores is not None]
    for name in SCORES:
        of = run.summary["scores"][name]["all"]
        assert of["low"] <= of["estimate"] <= of["high"]
        assert of["estimate"] == pytest.approx(np.mean([getattr(one, name) for one in trials])), name
        assert of["count"] == of["groups"] == 9  # two trials of a task are no two tasks
    assert run.passed("pass@2") == run.passed("pass^2")  # trials are alike
    bounds = run.summary["scores"]["passed"]["all"]
    assert f"[{100 * bounds['low']:.1f}, {100 * bounds['high']:.1f}]" in run.page
    assert run.summary["sessions"]["total"] == 81


def test_the_same_again_does_nothing_and_another_configuration_is_refused(run: Finished) -> None:
    before = (run.out / "questions.jsonl").read_bytes()
    again = finish(run.out, "system=naive_rag", "trials=2", "limit=9", "k=1")
    assert (run.out / "questions.jsonl").read_bytes() == before
    assert again.summary["scores"] == run.summary["scores"]
    with pytest.raises(DeltaMemError, match="choose another out"):
        finish(run.out, "system=naive_rag", "trials=2", "limit=9", "k=7")


def test_runs_can_be_compared(ran: Callable[[str], Finished], run: Finished) -> None:
    runs = load_runs([run.out, ran("full_context").out])
    assert runs[0].family == "momento" and runs[0].paired and len(runs[0].questions) == 9
    gap = next(one for one in paired_differences(runs) if one.metric == "passed")
    assert gap.interval.estimate == pytest.approx(run.passed() - 1, abs=1e-6)
    assert "protocol trials differs: 2 (" in " ".join(differences(runs))
    assert runs[1].summary.score("state", "usual") is not None


def test_a_record_and_the_page_say_what_happened(ran: Callable[[str], Finished]) -> None:
    done = ran("oracle")
    usual = done.trials["0/1"]
    assert usual.finished and usual.error is None and usual.scores is not None and usual.scores.passed
    assert [turn.message for turn in usual.turns] == [MINI.tasks[0].opening, "Yes, please go ahead."]
    assert "My usual" in usual.turns[0].recalled.texts[0]
    assert [action.name for action in usual.actions] == ["search_restaurants", "list_restaurant_menu", "create_order"]
    assert set(usual.changes) == {"orders", "order_items"}
    assert all(row.startswith("+ ") for rows in usual.changes.values() for row in rows)
    moved = next(done.trials[f"{one.key}/1"] for one in done.questions.values() if one.category == "time corrected")
    assert [row[:2] for row in moved.changes["reservations"]] == ["- ", "+ "]
    assert "create_order" in done.page and "My usual" in done.page and "momento-mini" in done.page


def test_memory_systems_are_given_the_messages_and_not_the_summaries() -> None:
    task = MINI.tasks[0]
    session = task.sessions[0]
    tool = PastMessage(seq=99, role="tool", content='{"secret": 1}')
    more = task.model_copy(update={"sessions": (session.model_copy(update={"messages": (*session.messages, tool)}),)})
    (made,) = dialogue_sessions(more)
    assert [turn.text for turn in made.turns] == [message.text for message in session.messages]
    assert session.summary not in " ".join(turn.text for turn in made.turns)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_without_a_trial_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "papers.momento", "system=full_context", "trials=6", f"out={out}"]
    answers, root = out / "questions.jsonl", CONFIGS.parent
    for _ in range(2):
        running = subprocess.Popen(arguments, cwd=root, stdout=subprocess.DEVNULL)
        before = answers.stat().st_size if answers.exists() else 0
        while running.poll() is None and not (answers.exists() and answers.stat().st_size > before + 100_000):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    kept = answers.read_bytes().split(b"\n")[:-1]
    assert 0 < len(kept) < 324
    assert json.loads((out / "summary.json").read_bytes())["partial"]["questions"] == 54
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = answers.read_bytes().splitlines()
    assert after[: len(kept)] == kept and len(after) == 324  # a line for each trial, none twice
    last = Finished(out, 0, "", "")
    assert len(last.trials) == 324 and last.passed() == 1


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data=x.jsonl"], "go together"),
        (["data=x.jsonl", "world=y"], "momento-mini only"),
        (["data=x.jsonl", "world=y", "system=oracle", "base_url=URL", "answer.model=tiny"], "needs gold evidence"),
        (["system=given_summaries", "estimate=true"], "not for this benchmark"),
        (["system=naive_rag", "base_url=URL", "answer.model=tiny"], "user.model=NAME plays the customer"),
        (["system=naive_rag", "base_url=URL", "user.model=tiny", "answer.model=tiny", *QUICK], "reached"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(tmp_path: Path, overrides: list[str], reason: str) -> None:
    url = unused_url()
    with pytest.raises(DeltaMemError, match=reason):
        finish(tmp_path, "limit=1", *(one.replace("URL", url) for one in overrides))
    assert not any((tmp_path / name).exists() for name in ("making.json", "manifest.json"))  # it can be corrected


def test_a_task_whose_rows_are_wrong_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = MINI.tasks[0].model_copy(update={"seed_data": {"orders": [{"id": None}]}})
    monkeypatch.setattr(data, "mini_tasks", lambda seed: TaskSet("two", "0" * 64, "none", (bad, MINI.tasks[1])))
    done = finish(tmp_path, "system=oracle", "trials=2")
    assert done.code == 1 and done.summary["trials"]["failed"] == 2 and done.passed("passed(valid)") == 1
    assert "a row of orders cannot be stored: null value" in done.stderr and "withheld: passed, " in done.stdout
    (run,) = load_runs([tmp_path])
    assert run.headline.failures == 1 and run.headline.shown is None
    assert "failed at 1 of 2" in (run.headline.withheld or "")


# With models


def tool_call(name: str, arguments: object, call_id: str = "c") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


TASK = MINI.tasks[0]  # the usual
GOLD = {node.tool: node.arguments for node in TASK.action_dags[0]}
PRICE = TASK.expected_information[0].reference_answer


class Models:
    """Plays agent, user, judge and the writer of queries for the first task; each may be replaced."""

    def __init__(self, **replaced: Callable[[dict[str, Any]], Reply]) -> None:
        self.replaced = replaced

    def __call__(self, body: dict[str, Any]) -> Reply:
        if is_check(body):
            return completion("a lighthouse")
        first = body["messages"][0]["content"]
        parts = {"You serve": "agent", "Play a customer": "user", "Write one SELECT": "query", "An assistant": "judge"}
        part = next((part for begin, part in parts.items() if first.startswith(begin)), "summary")
        if part in self.replaced:
            return self.replaced[part](body)
        return getattr(self, part)(body)

    def user(self, body: dict[str, Any]) -> Reply:
        last = body["messages"][-1]["content"]
        if last.startswith("(The conversation begins"):
            return completion(TASK.opening)
        return completion("Yes." if last.endswith("?") else "[DONE]")

    def agent(self, body: dict[str, Any]) -> Reply:
        messages = body["messages"]
        last, results = messages[-1], [one for one in messages if one["role"] == "tool"]
        if last["role"] == "user" and last["content"] == TASK.opening:
            search = tool_call("search_restaurants", GOLD["search_restaurants"])
            menu = tool_call("list_restaurant_menu", GOLD["list_restaurant_menu"], "m")
            return completion(
                None, tool_calls=[search, menu, search | {"id": "again"}, tool_call("create_order", "{", "bad")]
            )
        if last["role"] == "tool" and len(results) == 4:
            return completion("<think>hm</think>Shall I order your usual?")
        if last["role"] == "user":
            return completion(None, tool_calls=[tool_call("create_order", GOLD["create_order"])])
        return completion(f"It is ordered, for ${PRICE}.", tokens=5)

    def judge(self, body: dict[str, Any]) -> Reply:
        covered = f"${PRICE}" in body["messages"][0]["content"].partition("The pieces")[0]
        return completion(json.dumps({"results": [{"index": 0, "covered": covered, "reason": "r"}]}))

    def query(self, body: dict[str, Any]) -> Reply:
        return completion("```sql\nSELECT id, user_id, started_at, summary, extracted_facts FROM sessions LIMIT 9;\n```")

    def summary(self, body: dict[str, Any]) -> Reply:
        return completion("notes")


def by_models(out: Path, models: Models, *overrides: str, window: int | None = 16_384) -> tuple[Finished, Served]:
    """A run on a server of its own."""
    with serve(models, [{"id": "tiny", "max_model_len": window}]) as server:
        return finish(out, f"base_url={server.url}", *NAMED, *QUICK, *overrides), server


def only(done: Finished) -> Any:
    (trial,) = done.trials.values()
    return trial


def asked(server: Served, begin: str) -> list[dict[str, Any]]:
    return [body for body in server.requests if not is_check(body) and str(body["messages"][0]["content"]).startswith(begin)]


@pytest.mark.parametrize(
    ("given", "temperature", "body"),
    [
        (["answer.model=Qwen/Qwen3.6-27B"], 1.0, {"top_p": 0.95, "top_k": 20}),
        (["answer.model=gemma4-31b-it"], 1.0, {"top_p": 0.95, "top_k": 64}),
        (["answer.model=gpt-5.4-mini"], 1.0, {}),
        (["answer.model=Qwen/Qwen3.6-27B", "answer.temperature=0"], 0.0, {}),
    ],
)
def test_models_are_sampled_as_published_unless_told_otherwise(
    tmp_path: Path, given: list[str], temperature: float, body: dict[str, Any]
) -> None:
    config = configured(tmp_path, "user.model=Qwen/Qwen3.6-35B-A3B", *given)
    assert (config.answer.temperature, config.answer.extra_body) == (temperature, body)
    assert (config.user.temperature, config.user.extra_body) == (1.0, {"top_p": 0.95, "top_k": 20})
    assert config.judge.temperature == 0 and config.run_config()["answer"]["temperature"] == temperature


def test_models_play_agent_user_and_judge(tmp_path: Path) -> None:
    with serve(Models()) as server:
        chosen = (f"base_url={server.url}", *NAMED, *QUICK)
        done = finish(tmp_path, *chosen)
        sent = len(server.requests)
        finish(tmp_path, *chosen)  # nothing is left to do
        assert len(server.requests) == sent
        (tmp_path / "questions.jsonl").unlink()  # all answers are in the cache, those with calls of tools too
        assert finish(tmp_path, *chosen).summary["scores"] == done.summary["scores"]
        assert [body for body in server.requests[sent:] if not is_check(body)] == []
    record = only(done)
    assert record.error is None and record.scores is not None and record.scores.passed
    assert record.scores.covered_by_judge == (True,) and record.scores.covered_by_words == (True,)
    assert [action.name for action in record.actions] == ["search_restaurants", "list_restaurant_menu", "create_order"]
    assert (record.repeated_calls, record.unreadable_calls) == (1, 1)
    assert "3 calls of tools, 0 against a rule, 1 that could not be read" in done.stdout
    assert record.turns[0].reply == "Shall I order your usual?"  # without the thoughts
    calls = {part: cost["calls"] for part, cost in done.summary["cost"].items() if cost.get("calls")}
    assert calls == {"answer": 4, "user": 3, "judge": 1} and "answer: 4 calls (0 cached)" in done.stdout
    first, second, *_ = asked(server, "You serve")
    assert len(first["tools"]) == 26
    assert "My usual at" in first["messages"][0]["content"] and TASK.user_id in first["messages"][0]["content"]
    results = second["messages"][-4:]
    assert [one["tool_call_id"] for one in results] == ["c", "m", "again", "bad"]
    assert results[3]["content"].startswith("Error: the arguments of create_order are not a JSON object")
    assert results[2]["content"] == results[0]["content"]


def test_a_model_writes_the_query_over_summaries(tmp_path: Path) -> None:
    done, server = by_models(tmp_path, Models(), "system=given_summaries")
    recalled = only(done).turns[0].recalled
    assert recalled.how == "query" and len(recalled.texts) == 9 and not recalled.refused
    assert list(recalled.texts) == sorted(recalled.texts) and only(done).costs["recall"].calls == 2
    assert str(TASK.current_date) in asked(server, "Write one SELECT")[0]["messages"][0]["content"]


def test_the_agent_of_the_benchmark_reads_the_sessions_by_sql_and_that_of_a_memory_does_not(tmp_path: Path) -> None:
    query = {"query": "SELECT started_at, messages FROM sessions ORDER BY started_at LIMIT 1"}

    def agent(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "user":
            calls = [tool_call("execute_sql", query), tool_call("get_database_schema", {}, "schema")]
            return completion(None, tool_calls=calls)
        return completion("Well.")

    asked_for = {}
    for system in ("given_summaries", "oracle"):
        done, server = by_models(tmp_path / system, Models(agent=agent), f"system={system}", "turns=1")
        asked_for[system] = "in the table sessions" in asked(server, "You serve")[0]["messages"][0]["content"]
        read, schema = only(done).actions
        assert ("sessions" in json.loads(schema.result)["tables"]) == asked_for[system] != read.failed
        if system == "given_summaries":
            (row,) = json.loads(read.result)["rows"]
            first = min(TASK.sessions, key=lambda session: session.started_at)
            assert [one["content"] for one in row["messages"]] == [one.text for one in first.messages]
    assert asked_for == {"given_summaries": True, "oracle": False}


@pytest.mark.parametrize("query", ["SELECT * FROM users", "I cannot."])
def test_where_a_query_is_refused_the_nearest_summaries_are_recalled(tmp_path: Path, query: str) -> None:
    done, _ = by_models(tmp_path, Models(query=lambda body: completion(query)), "system=given_summaries", "turns=1")
    recalled = only(done).turns[0].recalled
    assert recalled.how == "nearest" and recalled.refused and len(recalled.texts) == 3 and only(done).error is None


def verdicts(*covered: bool) -> Reply:
    results = [{"index": number, "covered": one, "reason": "r"} for number, one in enumerate(covered)]
    return completion(f"<think>{{}}</think>{json.dumps({'results': results})}")


def test_a_judge_decides_against_the_words_and_one_that_cannot_be_read_leaves_them(tmp_path: Path) -> None:
    done, _ = by_models(tmp_path / "no", Models(judge=lambda body: verdicts(False)))
    assert done.passed("coverage") == 0 and done.passed("word_coverage") == 1
    done, _ = by_models(tmp_path / "unreadable", Models(judge=lambda body: completion("It is all fine.")))
    scores = only(done).scores
    assert scores.passed and scores.covered_by_judge is None and "cannot be read" in scores.judge_error
    assert only(done).costs["judge"].calls == 3
    assert done.summary["trials"]["judged_by_words_after_a_failure"] == 1


def test_replies_that_a_judge_is_measured_on_are_what_they_are_taken_for() -> None:
    replies = [one for seed in range(8) for one in known_replies(MINI.tasks, seed)]
    for one in replies:
        covered = said(one.task.expected_information, [one.reply])
        assert all(covered) if one.right else not any(covered), one
    assert Counter(one.kind for one in replies) == {"all of it": 160, "nothing": 80, "another's": 80}
    assert known_replies([MINI.tasks[0].model_copy(update={"expected_information": ()})], 0) == []


def fair_judge(body: dict[str, Any]) -> Reply:
    """Finds what is expected word for word."""
    content = body["messages"][0]["content"]
    talk, _, rest = content.partition("The conversation:")[2].partition("The pieces of information, each with a reference:")
    items = json.loads(rest.partition("A piece counts")[0])
    replies = talk.partition("assistant: ")[2]
    return verdicts(*(item["reference_answer"] in replies for item in items))


@pytest.mark.parametrize(
    ("judge", "probed", "withheld"),
    [
        (fair_judge, "information judge on probes: accepts 0% (0-16)", None),
        (lambda body: verdicts(True), "accepts 100% (84-100)", "the information judge accepts 100% of the wrong answers"),
        (lambda body: completion("Well."), "fails on 40", "the information judge could not be calibrated: the judge's"),
    ],
)
def test_scores_of_a_judge_that_is_mostly_wrong_are_withheld(
    tmp_path: Path, judge: Callable[[dict[str, Any]], Reply], probed: str, withheld: str | None
) -> None:
    done, _ = by_models(tmp_path, Models(judge=judge), "judge.probes=true", "judge.attempts=1")
    reasons = done.summary["withheld"]
    assert set(reasons) == (set() if withheld is None else {"passed", "coverage"})
    assert all(why.startswith(withheld) for why in reasons.values())
    assert probed in done.stdout and (withheld is None or "passed withheld" in done.stdout)


def test_replies_that_were_cut_are_reported(tmp_path: Path) -> None:
    cut = partial(completion, finish="length")
    models = Models(agent=lambda body: cut("Shall I"), user=lambda body: cut("More of it"), judge=lambda body: cut('{"res'))
    done, _ = by_models(tmp_path, models, "turns=2", "trials=2", "judge.attempts=1", "user.max_tokens=9")
    assert all(trial.cut == {"answer": 2, "user": 2, "judge": 1} for trial in done.trials.values())
    for warning in (
        "2 of 2 answers were cut at answer.max_tokens=1000; raise answer.max_tokens",
        "4 of 4 replies of the user's model were cut at user.max_tokens=9; raise user.max_tokens",
        "2 of 2 replies of the judge were cut at judge.max_tokens=1000; raise judge.max_tokens",
        "the judge failed in 2 of 2 trials, whose coverage is that by words: the judge's reply cannot be read",
    ):
        assert sum(one.startswith(warning) for one in done.summary["warnings"]) == 1, warning


def test_a_broken_endpoint_is_a_failure_and_not_a_zero_and_is_tried_again(tmp_path: Path) -> None:
    broken, working = [True], Models()

    def agent(body: dict[str, Any]) -> Reply:
        if not broken[0]:
            return working.agent(body)
        return failure(400, "no") if len(body["messages"]) > 2 else completion("")  # silent at first

    models = Models(agent=agent, user=lambda body: completion("More!") if broken[0] else working.user(body))
    with serve(models) as server:
        chosen = (f"base_url={server.url}", *NAMED, *QUICK, "cache=null")
        done = finish(tmp_path, *chosen)
        assert done.code == 1 and "1 failures (1 in answer)" in done.stderr and "answer: 0: " in done.stderr
        assert done.summary["trials"]["failed"] == 1 and "failed at 1 of 1" in done.summary["withheld"]["passed"]
        assert "passed(valid)" not in done.summary["scores"] and done.passed() == 0 and "failed:" in done.page
        broken[0] = False
        done = finish(tmp_path, *chosen)
    assert done.code == 0 and done.passed() == 1 and "passed(valid)" not in done.summary["scores"]


def test_an_agent_that_says_nothing_does_not_begin_the_conversation_anew(tmp_path: Path) -> None:
    models = Models(agent=lambda body: completion("<think>hm</think>"), user=lambda body: completion("More!"))
    done, server = by_models(tmp_path, models, "turns=3")
    assert [turn.reply for turn in only(done).turns] == [""] * 3 and only(done).error is None
    heard = [one["content"] for one in asked(server, "Play a customer")[-1]["messages"] if one["role"] == "user"]
    assert heard == ["(The conversation begins. Say what you want.)", *["(The assistant said nothing.)"] * 2]
    assert "1 of 1 answers are empty and count as wrong" in done.summary["warnings"]
    assert done.summary["headline"]["silent"] == 1


def test_rounds_and_turns_end_and_a_rule_that_is_broken_is_counted(tmp_path: Path) -> None:
    def restless(body: dict[str, Any]) -> Reply:
        if "tools" in body:
            return completion(None, tool_calls=[tool_call("cancel_membership", {"user_id": TASK.user_id})])
        return completion("What else?")

    models = Models(agent=restless, user=lambda body: completion("More!"))
    done, server = by_models(tmp_path, models, "rounds=4", "turns=2")
    record = only(done)
    assert len(record.turns) == 2 and not record.finished and record.error is None
    assert len(record.actions) == done.summary["trials"]["violations"] == 8 and done.passed() == 0
    assert [turn.reply for turn in record.turns] == ["What else?"] * 2
    last = asked(server, "You serve")[-1]["messages"]
    assert sum("No more tool calls" in str(one["content"]) for one in last) == 1  # that of this message only


async def test_a_conversation_that_outgrows_the_window_is_summarised_and_a_picture_is_seen_once(
    tmp_path: Path, world: World
) -> None:
    prompts = [load_prompt(f"momento_{name}", "papers.momento.prompts") for name in ("agent", "summary")]
    with serve(Models(agent=lambda body: completion("y" * 3000))) as server:
        config = configured(tmp_path, f"base_url={server.url}", *NAMED, "cache=null")
        model = Model(config.answer.client("answer", None), config.answer, 0, "s", 1)
        agent = LLMAgent(model, Toolbox(world), TASK, *prompts, rounds=3, context_tokens=14_000)
        await agent.turn(UserMessage("message 0 " + "x" * 3000, ("data:image/png;base64,UE5H",)), ())
        for number in range(1, 12):
            await agent.turn(UserMessage(f"message {number} " + "x" * 3000), ())
    with_picture = ["UE5H" in json.dumps(body["messages"]) for body in asked(server, "You serve")]
    assert with_picture[0] and not any(with_picture[1:])
    assert agent.shortened >= 1
    assert "message 0" in asked(server, "Shorten the beginning")[0]["messages"][0]["content"]
    last = asked(server, "You serve")[-1]["messages"]
    assert last[1]["content"].startswith(EARLIER) and "notes" in last[1]["content"]
    assert last[-1]["content"].startswith("message 11")
    assert len(json.dumps(last)) / 3 < 14_000


def test_the_window_that_the_endpoint_reports_bounds_the_conversation(tmp_path: Path) -> None:
    window = 14_000

    def agent(body: dict[str, Any]) -> Reply:
        sent = estimate_tokens(json.dumps([body["messages"], body.get("tools", ())])) + body["max_tokens"]
        return completion("y" * 3000) if sent <= window else too_long()

    models = Models(agent=agent, user=lambda body: completion("x" * 3000), judge=lambda body: completion("?"))
    done, server = by_models(tmp_path, models, "turns=8", window=window)
    assert asked(server, "Shorten the beginning") and only(done).error is None and len(only(done).turns) == 8


@pytest.mark.parametrize(("served", "override"), [(12_288, "answer.max_tokens=8192"), (None, "context_tokens=4000")])
def test_a_window_without_room_for_a_conversation_is_refused(tmp_path: Path, served: int | None, override: str) -> None:
    said = r"instructions and tools take about \d,\d+ .* answer.max_tokens=\d+ .* no room"
    with pytest.raises(DeltaMemError, match=said):
        by_models(tmp_path, Models(), override, window=served)
    assert not Finished(tmp_path, 0, "", "").trials


def test_pictures_are_sent_once_and_missing_ones_fail(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"images": (Image(id=0, path="a.png"), Image(id=1, path="b.png"))})
    (tmp_path / "a.png").write_bytes(b"PNG")
    sent = with_images("Look [IMAGE:0] [IMAGE: 0, 7]", task, tmp_path)
    assert sent.text == "Look" and sent.images == ("data:image/png;base64,UE5H",)
    with pytest.raises(DeltaMemError, match=r"b\.png of task 0"):
        with_images("[IMAGE:1]", task, tmp_path)
    with pytest.raises(DeltaMemError, match="images=None"):
        with_images("[IMAGE:1]", task, None)


def test_verdicts_are_found_in_whatever_is_around_them_and_no_other_counts() -> None:
    text = 'So: {"a": 1} {"results": [{"index": 1, "covered": false}, {"index": 0, "covered": true}]} done'
    assert read_verdicts(text, 2) == [True, False]
    for item in ('{"index": 0, "covered": "yes"}', '{"index": 1, "covered": true}', ""):
        with pytest.raises(DeltaMemError, match="cannot be read"):
            read_verdicts(f'{{"results": [{item}]}}', 1)

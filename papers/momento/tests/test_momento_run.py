"""Runs: what memory is worth to an agent without mistakes, agents and users by models, resuming, failures, the page."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from momento_cases import CATALOGUE, TODAY
from rich.console import Console
from scripted_server import Reply, Served, completion, failure, is_check, serve, too_long, unused_url

from deltamem.config import CONFIGS, composed, validated
from deltamem.errors import DeltaMemError
from deltamem.window import estimate_tokens
from eval import fingerprint
from eval.compare.page import render
from eval.compare.runs import differences, load_runs
from eval.compare.tables import paired_differences
from papers.momento import __main__ as command
from papers.momento.__main__ import MomentoConfig, evaluate, lines, main
from papers.momento.agent import EARLIER, LLMAgent, Model, Said, Toolbox, with_images
from papers.momento.calibration import known_replies
from papers.momento.database import SQLiteDatabase
from papers.momento.mini import mini_tasks
from papers.momento.recall import dialogue_sessions, read_verdicts
from papers.momento.scores import said
from papers.momento.tasks import Image, Message, TaskSet
from papers.momento.trial import TrialRecord
from papers.momento.world import World

MINI = mini_tasks()
QUIET = Console(quiet=True)


class HashedWords:
    """Counts the words of a text in 256 bins."""

    name = "hashed words"

    def documents(self, texts: list[str]) -> np.ndarray[Any, Any]:
        made = np.zeros((len(texts), 256), dtype=np.float32)
        for row, text in zip(made, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[zlib.crc32(word.encode()) % 256] += 1
        return made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-6)

    queries = documents


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "make_embedder", lambda settings: HashedWords())
    monkeypatch.setattr(fingerprint, "git_commit", lambda: None)
    monkeypatch.setattr(fingerprint, "versions", lambda packages: {})


def configured(out: Path, *overrides: str) -> MomentoConfig:
    return validated(composed("momento", [f"out={out}", *overrides], CONFIGS), MomentoConfig)


def records(out: Path) -> dict[str, TrialRecord]:
    """The last record of each trial."""
    found = [TrialRecord.model_validate_json(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return {record.key: record for record in found}


def estimate(summary: Mapping[str, Any], metric: str = "passed") -> float:
    return float(summary["scores"][metric]["all"]["estimate"])


def test_the_tasks_need_memory(tmp_path: Path) -> None:
    passed = {}
    for system in ("oracle", "none", "naive_rag", "full_context", "given_summaries"):
        # The tasks' words are those of the sessions, so that an embedder of words finds nearly all with the usual three.
        summary = evaluate(configured(tmp_path / system, f"system={system}", "trials=1", "k=1"), QUIET)
        assert summary["trials"]["failed"] == 0 and not summary["partial"]
        assert summary["trials"]["done"] == len(MINI.tasks)
        passed[system] = estimate(summary)
    assert passed["oracle"] == passed["full_context"] == 1.0
    assert passed["none"] == 0.0
    assert 0.15 < passed["naive_rag"] < 0.85, passed
    assert passed["none"] < passed["given_summaries"]


def test_more_passages_find_more(tmp_path: Path) -> None:
    shares = [
        evaluate(configured(tmp_path / str(k), "system=naive_rag", "trials=1", f"k={k}"), QUIET)["scores"]["passed"]["all"][
            "estimate"
        ]
        for k in (1, 12)
    ]
    assert shares[0] < shares[1]


def test_three_trials_of_all_tasks_and_the_same_again_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path, "system=oracle")
    assert main(config) == 0
    said = capsys.readouterr().out
    assert "passed 100.0" in said and "pass^3 100.0" in said and "162 trials of 54 tasks" in said
    before = (tmp_path / "trials.jsonl").read_bytes()
    assert len(records(tmp_path)) == 162
    assert main(config) == 0
    assert (tmp_path / "trials.jsonl").read_bytes() == before
    with pytest.raises(DeltaMemError, match="choose another out"):
        evaluate(configured(tmp_path, "system=oracle", "k=7"), QUIET)


def test_intervals_are_over_tasks_and_runs_can_be_compared(tmp_path: Path) -> None:
    few = evaluate(configured(tmp_path / "few", "system=naive_rag", "trials=2", "k=1", "limit=27"), QUIET)
    trials = [record.scores for record in records(tmp_path / "few").values() if record.scores is not None]
    for name in ("passed", "state", "coverage", "word_coverage", "tool_recall", "tool_recall_ordered"):
        of = few["scores"][name]
        assert of["all"]["low"] <= of["all"]["estimate"] <= of["all"]["high"]
        assert of["all"]["estimate"] == pytest.approx(np.mean([getattr(one, name) for one in trials])), name
        assert of["all"]["count"] == of["all"]["groups"] == 27  # two trials of a task are no two tasks
    assert few["scores"]["pass@2"]["all"]["estimate"] == few["scores"]["pass^2"]["all"]["estimate"]  # trials are alike
    bounds = few["scores"]["passed"]["all"]
    assert f"[{100 * bounds['low']:.1f}, {100 * bounds['high']:.1f}]" in lines(few)[0]
    assert f"[{100 * bounds['low']:.1f}, " in (tmp_path / "few" / "report.html").read_text()
    evaluate(configured(tmp_path / "full", "system=full_context", "trials=2", "limit=27"), QUIET)
    first, second = runs = load_runs([tmp_path / "few", tmp_path / "full"])
    assert first.family == "momento" and first.paired and len(first.questions) == 27
    assert first.headline.shown is not None
    assert first.headline.shown.estimate == pytest.approx(estimate(few), abs=1e-6)
    gap = next(one for one in paired_differences(runs) if one.metric == "passed")
    assert gap.interval.estimate == pytest.approx(estimate(few) - 1, abs=1e-6) and gap.significant
    evaluate(configured(tmp_path / "more", "system=naive_rag", "trials=1", "k=3", "limit=27"), QUIET)
    said = " ".join(differences(load_runs([tmp_path / "few", tmp_path / "more"])))
    assert "protocol k differs: 1 (few); 3 (more)" in said and "protocol trials differs: 2 (few); 1 (more)" in said
    page = render(runs)
    assert MINI.tasks[0].opening in page and "Momento" in page
    assert second.summary.score("state", "usual") is not None


def test_a_narrow_run_and_then_the_rest(tmp_path: Path) -> None:
    def run(*overrides: str) -> dict[str, Any]:
        summary = evaluate(configured(tmp_path, "system=naive_rag", *overrides), QUIET)
        return {
            name: summary[name] for name in ("questions", "trials", "sessions", "scores", "headline", "data", "warnings")
        }

    narrow = run("limit=2", "trials=1")
    whole = run("limit=4", "trials=2")
    assert whole["trials"]["done"] == 8 and whole["sessions"]["total"] == 2 * narrow["sessions"]["total"] > 0
    assert run("limit=2", "trials=1") == narrow  # although the folder holds more


def test_a_comparison_keeps_failures_and_what_is_not_finished_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = MINI.tasks[0].model_copy(update={"seed_data": {"orders": [{"id": None}]}})
    monkeypatch.setattr(command, "mini_tasks", lambda seed: TaskSet("two", "0" * 64, "none", (bad, MINI.tasks[1])))
    evaluate(configured(tmp_path / "run", "system=oracle", "trials=2"), QUIET)
    (run,) = load_runs([tmp_path / "run"])
    assert run.headline.failures == 1 and run.headline.shown is None
    assert "failed at 1 of 2" in (run.headline.withheld or "")
    valid = run.summary.scores["passed(valid)"]["all"]
    assert valid is not None and valid.estimate == 1 and valid.count == 1
    assert not {"passed", "pass@2", "pass^2"} & {name for name in run.summary.scores if run.summary.score(name, "all")}
    assert run.summary.scores["pass^2(valid)"]["all"] == valid
    said = lines(json.loads((tmp_path / "run" / "summary.json").read_text()))
    assert said[0].startswith("oracle: passed withheld") and said[1].startswith("oracle(valid): passed(valid) withheld")
    assert said[2] == "passed by kind: withheld" and "2 failed" in said[3]
    assert any(line.startswith("withheld: passed, ") for line in said)


def test_a_task_is_done_when_all_its_trials_are_and_progress_counts_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(configured(tmp_path, "system=none", "trials=3", "limit=2"), QUIET)
    kept = (tmp_path / "trials.jsonl").read_text().splitlines()
    (tmp_path / "trials.jsonl").write_text("".join(f"{line}\n" for line in kept[:-1]))

    async def killed(self: command.Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(command.Run, "do", killed)
        evaluate(configured(tmp_path, "system=none", "trials=3", "limit=2"), QUIET)
    assert json.loads((tmp_path / "summary.json").read_text())["partial"] == {"done": 1, "questions": 2}
    with Console(file=io.StringIO()) as console:
        evaluate(configured(tmp_path, "system=none", "trials=1", "limit=3"), console)
    assert console.file.getvalue() == "trials 3/3\n"  # type: ignore[attr-defined]


def test_a_record_says_what_happened(tmp_path: Path) -> None:
    evaluate(configured(tmp_path, "system=oracle", "trials=1", "limit=9"), QUIET)
    usual = records(tmp_path)["0/1"]
    assert usual.finished and usual.error is None and usual.scores is not None and usual.scores.passed
    assert [turn.said for turn in usual.turns] == [MINI.tasks[0].opening, "Yes, please go ahead."]
    assert "My usual" in usual.turns[0].recalled.texts[0]
    assert [action.name for action in usual.actions] == ["search_restaurants", "list_restaurant_menu", "create_order"]
    assert set(usual.changes) == {"orders", "order_items"}
    assert all(row.startswith("+ ") for rows in usual.changes.values() for row in rows)
    moved = next(record for record in records(tmp_path).values() if record.kind == "time corrected")
    assert [row[:2] for row in moved.changes["reservations"]] == ["- ", "+ "]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "create_order" in page and "My usual" in page and "momento-mini" in page


def test_memory_systems_are_given_the_messages_and_not_the_summaries() -> None:
    task = MINI.tasks[0]
    session = task.sessions[0]
    tool = Message(seq=99, role="tool", content='{"secret": 1}')
    told = task.model_copy(update={"sessions": (session.model_copy(update={"messages": (*session.messages, tool)}),)})
    (made,) = dialogue_sessions(told)
    assert [turn.text for turn in made.turns] == [message.text for message in session.messages]
    assert session.summary not in " ".join(turn.text for turn in made.turns)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_without_a_trial_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "papers.momento", "system=full_context", "trials=12", f"out={out}"]
    root = CONFIGS.parent
    for _ in range(2):
        running = subprocess.Popen(arguments, cwd=root, stdout=subprocess.DEVNULL)
        before = (out / "trials.jsonl").stat().st_size if (out / "trials.jsonl").exists() else 0
        while running.poll() is None and not (out.exists() and _grown(out / "trials.jsonl", before)):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    kept = (out / "trials.jsonl").read_bytes().split(b"\n")[:-1]
    assert 0 < len(kept) < 648
    assert json.loads((out / "summary.json").read_bytes())["partial"]["questions"] == 54
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = (out / "trials.jsonl").read_bytes().splitlines()
    assert after[: len(kept)] == kept
    assert len(after) == len(records(out)) == 648
    assert json.loads((out / "summary.json").read_bytes())["scores"]["passed"]["all"]["estimate"] == 1.0


def _grown(path: Path, before: int) -> bool:
    return path.exists() and path.stat().st_size > before + 100_000


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["system=telepathy"], "does not exist"),
        (["data=x.jsonl"], "go together"),
        (["data=x.jsonl", "world=y"], "momento-mini only"),
        (["system=given_summaries", "estimate=true"], "not for this benchmark"),
        (["database=abacus", "limit=1"], "there are: sqlite"),
        (["system=deltamem"], "needs a model"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(tmp_path: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(DeltaMemError, match=said):
        evaluate(configured(tmp_path, *overrides), QUIET)
    assert not (tmp_path / "manifest.json").exists()  # the command can be corrected


def test_a_task_whose_rows_are_wrong_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = MINI.tasks[0].model_copy(update={"seed_data": {"orders": [{"id": None}]}})
    tasks = TaskSet("two", "0" * 64, "none", (bad, MINI.tasks[1]))
    monkeypatch.setattr(command, "mini_tasks", lambda seed: tasks)
    summary = evaluate(configured(tmp_path, "system=oracle", "trials=2"), QUIET)
    assert summary["trials"]["failed"] == 2 and summary["scores"]["passed(valid)"]["all"]["estimate"] == 1.0
    assert "an id of its own" in summary["failures"]["first"][0]


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


@pytest.fixture
def serving() -> Iterator[Callable[[Models], Served]]:
    opened: list[Any] = []

    def start(models: Models) -> Served:
        opened.append(serve(models))
        return opened[-1].__enter__()  # type: ignore[no-any-return]

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def by_models(out: Path, server: Served, *overrides: str) -> MomentoConfig:
    named = [f"base_url={server.url}", "answer.model=tiny", "answer.max_tokens=1000", "judge.max_tokens=1000"]
    return configured(
        out, *named, "limit=1", "trials=1", "system=oracle", "judge.max_retries=0", "answer.max_retries=0", *overrides
    )


def asked(server: Served, begin: str) -> list[dict[str, Any]]:
    return [body for body in server.requests if not is_check(body) and str(body["messages"][0]["content"]).startswith(begin)]


def test_models_play_agent_user_and_judge(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    server = serving(Models())
    config = by_models(tmp_path, server)
    summary = evaluate(config, QUIET)
    (record,) = records(tmp_path).values()
    assert record.error is None and record.scores is not None and record.scores.passed
    assert record.scores.covered_by_judge == (True,) and record.scores.covered_by_words == (True,)
    assert [action.name for action in record.actions] == ["search_restaurants", "list_restaurant_menu", "create_order"]
    assert (record.repeated_calls, record.unreadable_calls) == (1, 1)
    told = "3 calls of tools, 0 against a rule, 1 that could not be read"
    assert any(told in line for line in lines(summary)) and told in (tmp_path / "report.html").read_text()
    assert record.turns[0].reply == "Shall I order your usual?"  # without the thoughts
    assert record.agent_cost.calls == 4 and record.judge_cost.calls == 1
    first = asked(server, "You serve")[0]
    assert len(first["tools"]) == 26
    assert "My usual at" in first["messages"][0]["content"] and TASK.user_id in first["messages"][0]["content"]
    second = asked(server, "You serve")[1]["messages"]
    assert [one["tool_call_id"] for one in second[-4:]] == ["c", "m", "again", "bad"]
    assert second[-1]["content"].startswith("Error: the arguments of create_order are not a JSON object")
    assert second[-2]["content"] == second[-4]["content"]
    assert summary["cost"]["answer"]["calls"] == 4
    assert any("answer: 4 calls (0 cached)" in line for line in lines(summary))
    assert "answer: 4 calls" in (tmp_path / "report.html").read_text()
    sent = len(server.requests)
    evaluate(config, QUIET)  # nothing is left to do
    assert len(server.requests) == sent
    (tmp_path / "trials.jsonl").unlink()  # all answers are in the cache, those with calls of tools too
    again = evaluate(config, QUIET)
    assert again["scores"] == summary["scores"]
    assert [body for body in server.requests[sent:] if not is_check(body)] == []


def test_the_own_query_of_a_model_recalls_summaries(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    server = serving(Models())
    evaluate(by_models(tmp_path, server, "system=given_summaries"), QUIET)
    (record,) = records(tmp_path).values()
    recalled = record.turns[0].recalled
    assert recalled.how == "query" and len(recalled.texts) == 9 and not recalled.refused
    assert list(recalled.texts) == sorted(recalled.texts)
    assert record.recall_cost.calls == 2
    assert str(TASK.current_date) in asked(server, "Write one SELECT")[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    "query", ["SELECT * FROM users", "DELETE FROM sessions", "", "SELECT nothing FROM sessions", "I cannot."]
)
def test_where_the_query_cannot_be_used_the_nearest_summaries_are_recalled(
    tmp_path: Path, serving: Callable[[Models], Served], query: str
) -> None:
    server = serving(Models(query=lambda body: completion(query)))
    evaluate(by_models(tmp_path, server, "system=given_summaries"), QUIET)
    (record,) = records(tmp_path).values()
    recalled = record.turns[0].recalled
    assert recalled.how == "nearest" and recalled.refused and len(recalled.texts) == 3
    assert record.error is None


def test_a_judge_that_cannot_be_read_leaves_the_words(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    server = serving(Models(judge=lambda body: completion("It is all fine.")))
    summary = evaluate(by_models(tmp_path, server), QUIET)
    (record,) = records(tmp_path).values()
    assert record.scores is not None and record.scores.passed
    assert record.scores.covered_by_judge is None and "cannot be read" in (record.scores.judge_error or "")
    assert record.judge_cost.calls == 3
    assert summary["trials"]["judged_by_words_after_a_failure"] == 1


def fair_judge(body: dict[str, Any]) -> Reply:
    """Finds what is expected word for word."""
    asked = body["messages"][0]["content"]
    talk, _, rest = asked.partition("The conversation:")[2].partition("The pieces of information, each with a reference:")
    items = json.loads(rest.partition("A piece counts")[0])
    replies = talk.partition("assistant: ")[2]
    return verdicts(*(item["reference_answer"] in replies for item in items))


def verdicts(*covered: bool) -> Reply:
    results = [{"index": number, "covered": one, "reason": "r"} for number, one in enumerate(covered)]
    return completion(json.dumps({"results": results}))


def test_replies_that_a_judge_is_measured_on_are_what_they_are_taken_for() -> None:
    found = [one for seed in range(8) for one in known_replies(MINI.tasks, seed)]
    for one in found:
        covered = said(one.task.expected_information, [one.reply])
        assert all(covered) if one.right else not any(covered), one
    assert Counter(one.kind for one in found) == {"all of it": 160, "nothing": 80, "another's": 80}
    assert known_replies([MINI.tasks[0].model_copy(update={"expected_information": ()})], 0) == []


@pytest.mark.parametrize(
    ("judge", "probed", "withheld"),
    [
        (fair_judge, "information judge on probes: accepts 0% (0-16)", None),
        (
            lambda body: verdicts(True),
            "accepts 100% (84-100)",
            "the information judge accepts 100% of the wrong answers of the calib",
        ),
        (
            lambda body: verdicts(False),
            "rejects 100% (84-100)",
            "the information judge rejects 100% of the right ones of the calib",
        ),
        (
            lambda body: completion("Well."),
            "fails on 40",
            "the information judge could not be calibrated: the judge's reply",
        ),
    ],
)
def test_scores_of_a_judge_that_is_mostly_wrong_are_withheld(
    tmp_path: Path,
    serving: Callable[[Models], Served],
    judge: Callable[[dict[str, Any]], Reply],
    probed: str,
    withheld: str | None,
) -> None:
    server = serving(Models(judge=judge))
    config = by_models(tmp_path, server)
    summary = evaluate(config, QUIET)
    if withheld is None:
        assert summary["withheld"] == {}
    else:
        assert set(summary["withheld"]) == {"passed", "coverage"}
        assert all(why.startswith(withheld) for why in summary["withheld"].values())
        assert "passed withheld" in lines(summary)[0] and "word_coverage 1" in lines(summary)[0]
    assert any(probed in line for line in lines(summary))
    sent = len(server.requests)
    again = evaluate(config, QUIET)
    assert again["withheld"] == summary["withheld"] and len(server.requests) == sent
    unmeasured = evaluate(by_models(tmp_path / "unmeasured", server, "judge.probes=false"), QUIET)
    assert unmeasured["withheld"] == {} and any("was not calibrated" in warning for warning in unmeasured["warnings"])


def test_replies_that_were_cut_are_told(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    cut = partial(completion, finish="length")
    models = Models(agent=lambda body: cut("Shall I"), user=lambda body: cut("More of it"), judge=lambda body: cut('{"res'))
    overrides = ("turns=2", "trials=2", "judge.attempts=1", "user.max_tokens=9")
    summary = evaluate(by_models(tmp_path, serving(models), *overrides), QUIET)
    assert {tuple(record.cut.items()) for record in records(tmp_path).values()} == {
        (("answer", 2), ("user", 2), ("judge", 1))
    }
    for told in (
        "2 of 2 answers were cut at answer.max_tokens=1000; raise answer.max_tokens",
        "4 of 4 replies of the user's model were cut at user.max_tokens=9; raise user.max_tokens",
        "2 of 2 replies of the judge were cut at judge.max_tokens=1000; raise judge.max_tokens",
        "the judge failed in 2 of 2 trials, whose coverage is that by words: the judge's reply cannot be read",
    ):
        assert sum(warning.startswith(told) for warning in summary["warnings"]) == 1, told
        assert told in (tmp_path / "report.html").read_text().replace("&#39;", "'")


def test_an_agent_without_a_word_is_told(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    server = serving(Models(agent=lambda body: completion(""), user=lambda body: completion("More!")))
    summary = evaluate(by_models(tmp_path, server, "turns=2"), QUIET)
    assert "1 of 1 answers are empty and count as wrong" in summary["warnings"]
    assert not any("cut" in warning for warning in summary["warnings"]) and summary["headline"]["silent"] == 1


def test_a_judge_decides_against_the_words(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    no = json.dumps({"results": [{"index": 0, "covered": False, "reason": "r"}]})
    server = serving(Models(judge=lambda body: completion(f"<think>{{}}</think>{no}")))
    summary = evaluate(by_models(tmp_path, server), QUIET)
    assert estimate(summary, "coverage") == 0 and estimate(summary, "word_coverage") == 1


def test_a_broken_endpoint_is_a_failure_and_not_a_zero_and_is_tried_again(
    tmp_path: Path, serving: Callable[[Models], Served], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [True]
    working = Models()
    server = serving(Models(agent=lambda body: failure(400, "no") if broken[0] else working.agent(body)))
    config = by_models(tmp_path, server)
    assert main(config) == 1
    said = capsys.readouterr()
    assert "1 failures (1 in answer)" in said.err and "answer: 0: " in said.err
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert summary["trials"]["failed"] == 1
    assert "passed(valid)" not in summary["scores"] and estimate(summary) == 0
    assert "failed:" in (tmp_path / "report.html").read_text()
    broken[0] = False
    assert main(config) == 0
    again = json.loads((tmp_path / "summary.json").read_bytes())["scores"]
    assert again["passed"]["all"]["estimate"] == 1 and "passed(valid)" not in again


def test_a_silent_agent_does_not_hide_that_the_endpoint_broke(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    def once(body: dict[str, Any]) -> Reply:
        return failure(400, "no") if len(body["messages"]) > 2 else completion("")

    summary = evaluate(by_models(tmp_path, serving(Models(agent=once, user=lambda body: completion("More!")))), QUIET)
    (record,) = records(tmp_path).values()
    assert [turn.reply for turn in record.turns] == [""] and record.error is not None
    assert "failed at 1 of 1" in summary["withheld"]["passed"] and summary["failures"]["by_stage"] == {"answer": 1}


def test_a_user_who_is_not_there_is_found_before_any_trial(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    with pytest.raises(DeltaMemError, match="cannot be reached"):
        evaluate(by_models(tmp_path, serving(Models()), f"user.base_url={unused_url()}", "user.max_retries=0"), QUIET)
    assert not records(tmp_path)


def test_an_agent_that_says_nothing_does_not_begin_the_conversation_anew(
    tmp_path: Path, serving: Callable[[Models], Served]
) -> None:
    server = serving(Models(agent=lambda body: completion("<think>hm</think>"), user=lambda body: completion("More!")))
    evaluate(by_models(tmp_path, server, "turns=3"), QUIET)
    (record,) = records(tmp_path).values()
    assert [turn.reply for turn in record.turns] == [""] * 3 and record.error is None
    heard = [one["content"] for one in asked(server, "Play a customer")[-1]["messages"] if one["role"] == "user"]
    assert heard == ["(The conversation begins. Say what you want.)", *["(The assistant said nothing.)"] * 2]


def test_a_labeller_that_is_not_there_is_found_before_any_trial(tmp_path: Path) -> None:
    named = ("system=stitch", "labeller=llm", f"base_url={unused_url()}", "manager.model=tiny", "manager.max_retries=0")
    with pytest.raises(DeltaMemError, match="cannot be reached"):
        evaluate(configured(tmp_path, *named), QUIET)
    assert not records(tmp_path)


def test_rounds_and_turns_end(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    def restless(body: dict[str, Any]) -> Reply:
        if "tools" in body:
            return completion(None, tool_calls=[tool_call("get_delivery_providers", "")])
        return completion("What else?")

    server = serving(Models(agent=restless, user=lambda body: completion("More!")))
    evaluate(by_models(tmp_path, server, "rounds=4", "turns=2"), QUIET)
    (record,) = records(tmp_path).values()
    assert len(record.turns) == 2 and not record.finished and record.error is None
    assert len(record.actions) == 8
    assert [turn.reply for turn in record.turns] == ["What else?"] * 2
    last = asked(server, "You serve")[-1]["messages"]
    assert sum("No more tool calls" in str(one["content"]) for one in last) == 1  # that of this message only


def test_a_rule_that_is_broken_is_counted(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    def careless(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return completion(None, tool_calls=[tool_call("cancel_membership", {"user_id": TASK.user_id})])
        return completion("Done.")

    summary = evaluate(by_models(tmp_path, serving(Models(agent=careless))), QUIET)
    assert summary["trials"]["violations"] == 1 and estimate(summary) == 0


async def test_a_conversation_that_outgrows_the_window_is_summarised(
    tmp_path: Path, serving: Callable[[Models], Served]
) -> None:
    server = serving(Models(agent=lambda body: completion("y" * 3000)))
    config = by_models(tmp_path, server)
    world = World(SQLiteDatabase(), CATALOGUE)
    world.reset(TODAY, {})
    llm = config.user.client("user", None)
    prompts = {name: command.load_prompt(name, fields) for name, fields in command.PROMPTS.items()}
    model = Model(llm, config.answer, 0, "s", 1)
    agent = LLMAgent(
        model, Toolbox(world), TASK, prompts["momento_agent"], prompts["momento_summary"], rounds=3, context_tokens=14_000
    )
    for number in range(12):
        await agent.turn(Said(f"message {number} " + "x" * 3000), ())
    await llm.close()
    assert agent.shortened >= 1
    summaries = asked(server, "Shorten the beginning")
    assert "message 0" in summaries[0]["messages"][0]["content"]
    last = asked(server, "You serve")[-1]["messages"]
    assert last[1]["content"].startswith(EARLIER) and "notes" in last[1]["content"]
    assert last[-1]["content"].startswith("message 11")
    assert len(json.dumps(last)) / 3 < 14_000


def test_the_window_that_the_endpoint_tells_bounds_the_conversation(tmp_path: Path) -> None:
    window = 14_000

    def agent(body: dict[str, Any]) -> Reply:
        sent = estimate_tokens(json.dumps([body["messages"], body.get("tools", ())])) + body["max_tokens"]
        return completion("y" * 3000) if sent <= window else too_long()

    models = Models(agent=agent, user=lambda body: completion("x" * 3000), judge=lambda body: completion("?"))
    with serve(models, [{"id": "tiny", "max_model_len": window}]) as server:
        evaluate(by_models(tmp_path, server, "turns=8"), QUIET)
        assert asked(server, "Shorten the beginning")
    (record,) = records(tmp_path).values()
    assert record.error is None and len(record.turns) == 8


@pytest.mark.parametrize(("served", "overrides"), [(12_288, ["answer.max_tokens=8192"]), (None, ["context_tokens=4000"])])
def test_a_window_without_room_for_a_conversation_is_refused(
    tmp_path: Path, served: int | None, overrides: list[str]
) -> None:
    with (
        serve(Models(), [{"id": "tiny", "max_model_len": served}]) as server,
        pytest.raises(DeltaMemError, match=r"instructions and tools take about \d,\d+ .* answer.max_tokens=\d+ .* no room"),
    ):
        evaluate(by_models(tmp_path, server, *overrides), QUIET)
    assert not records(tmp_path) and not (tmp_path / "manifest.json").exists()


def test_pictures_are_sent_once_and_missing_ones_fail(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"images": (Image(id=0, path="a.png"), Image(id=1, path="b.png"))})
    (tmp_path / "a.png").write_bytes(b"PNG")
    sent = with_images("Look [IMAGE:0] [IMAGE: 0, 7]", task, tmp_path)
    assert sent.text == "Look" and sent.images == ("data:image/png;base64,UE5H",)
    with pytest.raises(DeltaMemError, match=r"b\.png of task 0"):
        with_images("[IMAGE:1]", task, tmp_path)
    with pytest.raises(DeltaMemError, match="images=None"):
        with_images("[IMAGE:1]", task, None)


async def test_an_agent_sees_a_picture_in_one_request(tmp_path: Path, serving: Callable[[Models], Served]) -> None:
    server = serving(Models())
    config = by_models(tmp_path, server)
    world = World(SQLiteDatabase(), CATALOGUE)
    llm = config.user.client("user", None)
    prompts = [command.load_prompt(name, command.PROMPTS[name]) for name in ("momento_agent", "momento_summary")]
    agent = LLMAgent(Model(llm, config.answer, 0, "s", 1), Toolbox(world), TASK, *prompts, rounds=3, context_tokens=128_000)
    await agent.turn(Said("What is this", ("data:image/png;base64,UE5H",)), ())
    await llm.close()
    with_picture = ["UE5H" in json.dumps(body["messages"]) for body in asked(server, "You serve")]
    assert with_picture[0] and not any(with_picture[1:]) and len(with_picture) > 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"results": []}',
        '{"results": [{"index": 0, "covered": "yes"}]}',
        '{"results": [{"index": 1, "covered": true}]}',
    ],
)
def test_verdicts_that_are_none(text: str) -> None:
    with pytest.raises(DeltaMemError, match="cannot be read"):
        read_verdicts(text, 1)


def test_verdicts_are_found_in_whatever_is_around_them() -> None:
    text = 'So: {"a": 1} {"results": [{"index": 1, "covered": false}, {"index": 0, "covered": true}]} done'
    assert read_verdicts(text, 2) == [True, False]

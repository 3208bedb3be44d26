"""What every benchmark gets from `eval.runner`: records, resuming, failures that are counted and mended, and a page."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import answering_cases
import pytest
from benchmark_cases import (
    CASES,
    HALUMEM,
    LOCOMO,
    PERSONAMEM,
    TOYS,
    Case,
    Notebook,
    NotebookStore,
    Toy,
    command,
    files,
    finish,
    on,
    prepare,
    records,
    sent,
    served,
    start,
)
from rich.console import Console
from scripted_server import Reply, completion, failure, is_check, serve

from deltamem.errors import DeltaMemError
from deltamem.runs import RecordFile
from eval import runner
from eval.answer import AnswerRequest, ExtractiveAnswerer
from eval.compare.page import render
from eval.compare.runs import load_runs
from eval.run import Run
from eval.systems.base import DialogueSession, Passage, SystemUnavailableError
from eval.systems.baselines import TurnIndex

FILES = {
    "manifest.json",
    "passages.jsonl",
    "questions.jsonl",
    "report.html",
    "retrieved.jsonl",
    "sessions.jsonl",
    "summary.json",
}


NARROW = ("questions", "sessions", "scores", "passages", "context_tokens", "headline", "data", "version", "warnings")
"""Of a summary what must be that of the questions that are asked, whatever else the folder holds."""


@pytest.fixture
def notebook(case: Case, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    system = Notebook()
    prepare(monkeypatch, case, system)
    return system


def test_the_command_writes_its_files_and_nothing_else(case: Case, monkeypatch, capsys, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = case.write(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    code, out, err = command(case, monkeypatch, capsys)(*data, "out=result", "resamples=20")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "result"]
    assert {path.name for path in (tmp_path / "result").iterdir()} - {"points.jsonl"} == FILES
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert summary["mode"] == "offline" and summary["failures"]["count"] == 0
    assert summary["questions"]["total"] == summary["questions"]["answered"] == case.questions
    assert {"git_commit", "versions", "config_sha256", "models"} <= set(summary["making"])
    assert f"{summary['version']}; every question: " in out and "recall@5" in out
    manifest = json.loads((tmp_path / "result" / "manifest.json").read_text())
    assert manifest["benchmark"] == case.kind.name and manifest["prompts"] == {}


def test_the_title_of_each_table_names_mode_and_version(case: Case, tmp_path: Path) -> None:
    with serve(case.script) as server:
        case.run(tmp_path, *served(server, "naive_rag"))
    (run,) = load_runs([tmp_path / "out"])
    for facts, label in (
        ({"mode": "assisted", "mode_reason": "so"}, "naive_rag (assisted)"),
        ({"package": "mem0ai 2.2.1", "keyword_search": False}, "naive_rag (mem0ai 2.2.1, without keyword search)"),
        ({}, "naive_rag"),
    ):
        summary = run.summary.model_copy(update={"system_facts": facts})
        tables = [table for made in case.kind.tables if (table := made(summary)) is not None]
        titles = [str(table.title) for table in tables if table.title is not None]  # one may go on below another
        assert len(tables) == len(case.kind.tables) and titles
        assert all(f", {label}:" in title or f", {label}, " in title for title in titles), titles


@on(LOCOMO)
def test_bad_input_is_one_sentence(case: Case, monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    data = case.write(tmp_path)
    for override, message in (("+extra=1", "unknown config key 'extra'"), ("cutoffs=[", "no viable alternative")):
        code, _, err = command(case, monkeypatch, capsys)(*data, "out=out", override)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith("error: ") and message in err
    for override, message in (
        ("system=mem9", "system 'mem9' does not exist; there are: deltamem, "),
        ("system=deltamem", "manager.model=<name>"),
        ("cutoffs=[0]", "config key 'cutoffs.0'"),
        ("cutoffs=[5,999]", "cutoffs has 999, but only "),
        ("answer.model=x", "answer needs both base_url=<url>"),
        ("data=absent.json", "absent.json"),
    ):
        with pytest.raises(DeltaMemError) as error:
            case.run(tmp_path, override)
        assert message in str(error.value)
        assert not list(tmp_path.glob("out/*.jsonl")) or "model" in override


@on(LOCOMO, HALUMEM)
def test_a_second_run_needs_no_server_and_says_the_same(case: Case, tmp_path: Path) -> None:
    with serve(case.script) as server:
        first = case.run(tmp_path, *served(server, "naive_rag"))
    assert len(sent(server)) == len(set(sent(server)))
    before = files(tmp_path)
    again = case.run(tmp_path, *served(server, "naive_rag"))
    assert again["scores"] == first["scores"] and again["cost"] == first["cost"]
    assert again["making"]["fingerprint"] == first["making"]["fingerprint"]
    assert sum(usage["requests"] for usage in again["this_run"].values()) == 0
    assert files(tmp_path) == before


@on(LOCOMO)
def test_a_cut_off_record_is_made_again_without_repeating_a_call(case: Case, tmp_path: Path) -> None:
    with serve(case.script) as server:
        overrides = [*served(server), "cache=null", "answer.runs=1"]
        first = case.run(tmp_path, *overrides)
        asked, path = Counter(sent(server)), tmp_path / "out" / "questions.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-1]) + lines[-1][:40])
        again = case.run(tmp_path, *overrides)
        more = Counter(sent(server)) - asked
    assert again["scores"] == first["scores"]
    judges = len(json.loads(lines[-1])["answers"][0].get("verdicts", ()))
    assert 1 <= sum(more.values()) <= 1 + judges, "one answer and its judges"


@on(LOCOMO)
def test_an_answer_that_fails_is_counted_and_asked_for_again(case: Case, monkeypatch, capsys, tmp_path: Path) -> None:
    def silent(body: dict[str, Any]) -> Reply:
        broken = not is_check(body) and case.is_answer(body) and case.question in body["messages"][-1]["content"]
        return failure(400) if broken else case.script(body)

    overrides = [*case.write(tmp_path), f"out={tmp_path / 'out'}", "resamples=20", "judge.probes=false", "answer.runs=1"]
    with serve(silent) as server:
        code, out, err = command(case, monkeypatch, capsys)(*overrides, *served(server))
    assert len(out.splitlines()) <= 40
    assert code == 1
    assert err.splitlines()[0] == "1 failures (1 in answer); the same command tries again what can be tried; the first:"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["questions"]["failed"] == 1
    failed = {name for name, of in summary["scores"].items() if (of.get("all") or {}).get("failed")}
    assert failed and all(name.removesuffix("(all)") + "(valid)" in summary["scores"] for name in failed)
    assert failed <= summary["withheld"].keys() and summary["headline"]["silent"] == 0
    with serve(case.script) as server:
        assert case.run(tmp_path, *served(server), "answer.runs=1", "mixed=true")["failures"]["count"] == 0
        assert 1 <= len(sent(server)) <= 3


@on(TOYS[1])
def test_a_dead_endpoint_is_found_before_anything_is_done(case: Case, tmp_path: Path) -> None:
    with serve(lambda body: failure(404, "no such model")) as server:
        with pytest.raises(DeltaMemError, match="no such model"):
            case.run(tmp_path, *served(server))
        assert not any(files(tmp_path).values())
    with serve(case.script) as server:  # so that the command can be corrected
        assert case.run(tmp_path, *served(server), "answer.temperature=1")["failures"]["count"] == 0


@on(TOYS[1])
def test_a_folder_holds_records_of_one_configuration(case: Case, tmp_path: Path) -> None:
    case.run(tmp_path, "answer.kind=none")
    for override in ("seed=7", "with_time=null", "system=full_context", "answer.kind=extractive"):
        chosen = "with_time=" + str(not case.configured(tmp_path).with_time) if "null" in override else override
        with pytest.raises(DeltaMemError, match=f"made with {override.split('=')[0].split('.')[0]} = "):
            case.run(tmp_path, "answer.kind=none", chosen)


@on(LOCOMO, HALUMEM, PERSONAMEM)
def test_a_narrow_run_and_then_the_rest(case: Case, tmp_path: Path) -> None:
    narrow = case.run(tmp_path, "limit=1")
    before = files(tmp_path)
    whole = case.run(tmp_path)
    assert narrow["questions"]["asked"] < whole["questions"]["asked"] == case.questions
    assert all(content.startswith(before[name]) for name, content in files(tmp_path).items())
    again = case.run(tmp_path, "limit=1")  # although the folder holds more
    assert {name: again[name] for name in NARROW} == {name: narrow[name] for name in NARROW}


@on(TOYS[0])
def test_searches_and_answers_are_timed_one_at_a_time(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    search, text, busy, alone = TurnIndex.search, ExtractiveAnswerer._text, threading.Lock(), []

    async def searching(self: TurnIndex, query: str, k: int) -> list[Passage]:
        alone.append(busy.acquire(blocking=False))
        await asyncio.sleep(0.002)
        busy.release()
        return await search(self, query, k)

    def answering(self: ExtractiveAnswerer, request: AnswerRequest) -> str:
        alone.append(busy.acquire(blocking=False))
        time.sleep(0.002)
        busy.release()
        return text(self, request)

    monkeypatch.setattr(TurnIndex, "search", searching)
    monkeypatch.setattr(ExtractiveAnswerer, "_text", answering)
    case.run(tmp_path)
    assert len(alone) >= 2 * case.questions and all(alone)


@on(*TOYS)
def test_a_search_that_fails_is_repeated(case: Case, notebook: Notebook, tmp_path: Path) -> None:
    notebook.break_search = {case.question}
    summary = case.run(tmp_path, "answer.kind=none")
    assert summary["failures"]["by_stage"] == {"search": 1}
    assert "no index" in summary["failures"]["first"][0]
    notebook.break_search = ()
    searched = len(notebook.searches)
    assert case.run(tmp_path, "answer.kind=none")["failures"]["count"] == 0
    assert [query for _, query, _ in notebook.searches[searched:]] == [case.question]


@on(*TOYS)
def test_a_store_that_does_not_open_costs_its_own_questions_only(case: Case, notebook: Notebook, tmp_path: Path) -> None:
    notebook.break_open = {case.store}
    summary = case.run(tmp_path, "answer.kind=none")
    assert summary["questions"]["failed"] == case.questions_of_store
    assert "the store cannot be used: the disk is gone" in summary["failures"]["first"][0]
    notebook.break_open = ()
    assert case.run(tmp_path, "answer.kind=none")["failures"]["count"] == 0
    assert len(notebook.ingested) == len(set(notebook.ingested))


@on(LOCOMO)
def test_recall_needs_an_order_of_passages_and_no_sources(case: Case, notebook: Notebook, tmp_path: Path) -> None:
    found = []
    for notebook.ranked, notebook.with_sources in ((True, True), (True, False), (False, True)):
        notebook.stores.clear()
        scores = case.run(tmp_path, "answer.kind=none", f"out={tmp_path / str(len(found))}")["scores"]
        found.append({name: rows["all"] for name, rows in scores.items() if "recall" in name})
    assert found[0] == found[1] and found[0]["recall@20"]["estimate"] > 0 and found[2] == {}


@on(*TOYS)
def test_a_memory_hears_what_comes_up_to_the_next_question(
    case: Case, notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, list[str], int]] = []

    def expect(store: NotebookStore, sessions: Sequence[DialogueSession]) -> None:
        heard.append((store.store, [session.id for session in sessions], len(store.known)))

    monkeypatch.setattr(NotebookStore, "expect", expect, raising=False)
    case.run(tmp_path, "answer.kind=none")
    assert sorted(heard) == [(person, [f"s{day}"], day) for person in ("Ana", "Bo") for day in range(3)]


@on(*TOYS)
def test_a_session_that_fails_is_counted_and_mended(case: Case, notebook: Notebook, tmp_path: Path) -> None:
    notebook.break_ingest = {case.session}
    summary = case.run(tmp_path, "answer.kind=none")
    assert summary["sessions"]["failed"] == summary["failures"]["by_stage"]["ingest"] == 1
    tried = 5 if case.kind.search_state == "exact" else 6  # there nothing is ingested after a session that failed
    assert set(summary["withheld"].values()) == {f"1 of {tried} sessions could not be ingested"}
    assert summary["withheld"].keys() == summary["scores"].keys()
    reason = f"session {case.session.partition('/')[2]} could not be ingested: out of order"
    failed = [record for record in records(tmp_path).values() if "error" in record]
    assert {record["error"] for record in failed} <= {reason}
    assert bool(failed) == (case.kind.search_state != "latest")
    notebook.break_ingest = ()
    summary = case.run(tmp_path, "answer.kind=none")
    assert summary["failures"]["count"] == 0 and summary["sessions"]["failed"] == 0
    assert len(notebook.ingested) == len(set(notebook.ingested))


@on(*TOYS)
def test_a_system_that_is_gone_ends_the_run_and_the_next_goes_on(case: Case, notebook: Notebook, tmp_path: Path) -> None:
    notebook.stop_at_search = case.question
    with pytest.raises(SystemUnavailableError, match="gone"):
        case.run(tmp_path, "answer.kind=none", "stores_at_once=1")
    partial = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert partial["partial"] == {"done": partial["partial"]["done"], "questions": case.questions}
    assert partial["partial"]["done"] < case.questions and all("are done" in why for why in partial["withheld"].values())
    notebook.stop_at_search = ""
    summary = case.run(tmp_path, "answer.kind=none")
    assert summary["failures"]["count"] == 0 and summary["partial"] is None
    assert len(notebook.ingested) == len(set(notebook.ingested))
    notebook.opened.clear()
    case.run(tmp_path, "answer.kind=none")
    assert notebook.opened == []


@on(TOYS[0])
def test_a_run_that_is_killed_before_it_did_anything_is_shown_as_partial(case: Case, tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, case, Notebook())
    seen = []

    async def looked_at(self: Run) -> None:
        seen.extend(load_runs([self.config.out]))
        await real(self)

    real = Run.do
    monkeypatch.setattr(Run, "do", looked_at)
    assert case.run(tmp_path, "answer.kind=none")["partial"] is None
    (run,) = seen
    assert run.title.startswith("out (partial") and run.summary.partial == {"done": 0, "questions": case.questions}
    assert run.headline.shown is None and run.summary.system in render(seen)


@pytest.mark.slow
@on(LOCOMO, HALUMEM, PERSONAMEM)
def test_killed_and_resumed_without_asking_twice(case: Case, tmp_path: Path) -> None:
    def slow(body: dict[str, Any]) -> Reply:
        return Reply(case.script(body).body, delay=0.2)

    with serve(slow) as server:
        slots = [f"{part}.slots=2" for part in ("manager", "answer", "judge")]
        system = "deltamem" if case.name == "halumem" else "full_context"
        overrides = [*case.write(tmp_path), "out=out", "resamples=20", *served(server, system), *slots, "judge.probes=false"]
        first = start(case, tmp_path, *overrides)
        while len(sent(server)) < 8 and first.poll() is None:
            time.sleep(0.01)
        first.kill()
        first.wait()
        assert load_runs([tmp_path / "out"])[0].summary.partial is not None
        killed = len(sent(server))
        done = finish(case, tmp_path, *overrides)
        assert done.code == 0 or case.name == "personamem", done.err
        counts = Counter(sent(server))
        assert 8 <= killed < len(counts)
        twice = [text for text, count in counts.items() if count > 1]
        assert len(twice) <= 6, "in flight at the kill, or answered and not in the cache yet"
        last = len(sent(server))
        again = finish(case, tmp_path, *overrides)
        assert (again.code, len(sent(server))) == (done.code, last)


@pytest.mark.slow
@pytest.mark.parametrize("judges_are_measured", [False, True])
def test_an_interrupted_run_leaves_what_it_has_and_exits_as_before(tmp_path: Path, judges_are_measured: bool) -> None:
    case, waits = CASES[0], threading.Event()
    questions = tmp_path / "out" / "questions.jsonl"
    # All but the two questions of one word, or all. With fewer it is chance whether one of those counts for the headline.
    needed = case.questions if judges_are_measured else case.questions - 2

    def are_done() -> bool:
        return questions.exists() and questions.read_text().count("\n") >= needed

    def script(body: dict[str, Any]) -> Reply:
        # What never ends: the questions of one word, or what is asked after all questions.
        if are_done() if judges_are_measured else "bicycle?" in json.dumps(body):
            waits.set()
            return Reply(case.script(body).body, delay=300)
        return case.script(body)

    with serve(script) as server:
        probes = f"judge.probes={str(judges_are_measured).lower()}"
        overrides = [*case.write(tmp_path), "out=out", "resamples=20", *served(server), probes]
        process = start(case, tmp_path, *overrides, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and not (waits.is_set() and are_done()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "interrupted\n")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["partial"] == {"done": needed, "questions": case.questions}
    assert summary["headline"]["withheld"] == f"only {needed} of {case.questions} questions are done"


class Killed(BaseException):
    """As a signal would end the process."""


@pytest.mark.parametrize("after", [1, 9, 14])  # of 20 records
def test_a_new_benchmark_is_a_few_dozen_lines_and_survives_a_kill(tmp_path: Path, monkeypatch, after: int) -> None:
    assert len(inspect.getsource(Toy).splitlines()) < 60
    system = Notebook()
    prepare(monkeypatch, CASES[0], system)
    add, left = RecordFile.add, after

    def killed(self: Any, record: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        add(self, record)

    with serve(lambda body: completion("7")) as server:
        config = answering_cases.config(tmp_path / "out", base_url=server.url, answer__model="tiny", judge__probes=False)
        monkeypatch.setattr(RecordFile, "add", killed)
        with pytest.raises(Killed):
            runner.evaluate(Toy, config, Console(quiet=True))
        monkeypatch.setattr(RecordFile, "add", add)
        before, kept = len(sent(server)), len((tmp_path / "out" / "questions.jsonl").read_text("utf-8").splitlines())
        summary = runner.evaluate(Toy, config, Console(quiet=True)).model_dump(mode="json")
        assert len(set(sent(server))) == 6
        assert len(sent(server)) - before <= 6 - kept, "what is on disk is not asked again"
    assert summary["failures"]["count"] == 0 and summary["sessions"]["applied"] == 6
    assert summary["scores"]["right"]["all"]["estimate"] == pytest.approx(2 / 6)
    assert summary["scores"]["recall@1"]["all"]["estimate"] == pytest.approx(2 / 6)  # the notebook finds the oldest turn
    assert len(system.ingested) == len(set(system.ingested)) == 6
    assert (tmp_path / "out" / "summary.json").exists()

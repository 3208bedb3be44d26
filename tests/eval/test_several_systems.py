"""``python -m eval run``: several systems by one command, and what a run would cost before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from benchmark_cases import BEAM, HALUMEM, LOCOMO, Case, Done, on, prepare, sent, served
from scripted_server import serve

from eval.estimate import RunEstimate, estimate
from eval.systems.mem0 import MEM0

Command = Callable[..., Done]


@pytest.fixture
def run(command: Command, monkeypatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    prepare(monkeypatch, LOCOMO)
    return partial(command, "run")


def test_systems_run_one_after_the_other_and_are_compared(run: Command, tmp_path: Path) -> None:
    data = LOCOMO.write(tmp_path)
    done = run("benchmark=locomo", "systems=[none, naive_rag,naive_rag]", *data, "out=both", "resamples=20")
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["naive_rag", "none", "report.html"]
    summaries = [json.loads((tmp_path / "both" / name / "summary.json").read_text()) for name in ("none", "naive_rag")]
    assert [summary["system"] for summary in summaries] == ["none", "naive_rag"]
    assert summaries[0]["questions"] == summaries[1]["questions"]
    assert "naive_rag (2 of 2)" in done.out and "report.html" in done.out


def test_a_system_that_cannot_run_does_not_stop_the_others(run: Command, tmp_path: Path) -> None:
    done = run("benchmark=locomo", "systems=[deltamem,none]", *LOCOMO.write(tmp_path), "out=both", "resamples=20")
    assert done.code == 1
    assert done.err.count("\n") == 1 and "deltamem could not run: " in done.err and "manager.model=<name>" in done.err
    assert (tmp_path / "both" / "none" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["systems=[none]"], "benchmark= does not exist; there are: beam"),
        (["benchmark=locomo"], "name the systems"),
        (["benchmark=locomo", "systems=[none,mem9]"], "system 'mem9' does not exist"),
        (["benchmark=locomo", "systems=[none]", "system=none"], "say systems=[...]"),
        (["benchmark=locomo", "systems=[none]", "colour=red"], "colour"),
        (["benchmark=locomo", "systems=[none]", "k=many"], "config key 'k'"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_run(run: Command, tmp_path: Path, arguments, message: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1 and message in done.err
    assert not list(tmp_path.iterdir())


def test_an_estimate_asks_nobody_and_writes_nothing(run: Command, tmp_path: Path) -> None:
    with serve(LOCOMO.script) as server:
        models = served(server)[1:]
        done = run("benchmark=locomo", "systems=[none,mem0]", *LOCOMO.write(tmp_path), *models, "estimate=true")
        assert done.code == 0, done.err
        assert not server.requests
    assert "none" in done.out and "mem0" in done.out and "hours" in done.out
    assert not (tmp_path / "runs").exists()


@on(LOCOMO, HALUMEM, BEAM)
def test_an_estimate_counts_the_calls_that_a_run_makes(case: Case, tmp_path: Path) -> None:
    with serve(case.script) as server:
        overrides = served(server, "naive_rag")
        foreseen = estimate(case.kind, case.configured(tmp_path, *overrides))
        summary = case.run(tmp_path, *overrides)
        asked = len(sent(server))
    assert asked, "models were asked"
    assert foreseen.questions == summary["questions"]["total"] - summary["failures"]["by_stage"].get("search", 0)
    assert foreseen.sessions == summary["sessions"]["total"]
    assert foreseen.answer.calls == summary["cost"]["answer"]["calls"]
    # A judge is asked again when its reply cannot be read, and not at all where something failed before.
    assert foreseen.judge.calls == pytest.approx(summary["cost"]["judge"]["calls"], rel=0.5, abs=2)
    read = summary["cost"]["answer"]["prompt_tokens"]
    assert foreseen.ingest.calls == 0 and (read == 0 or foreseen.answer.read > 0)


def test_what_the_peers_would_cost_follows_their_groups_of_messages(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, LOCOMO)

    def foreseen(system: str, *overrides: str) -> RunEstimate:
        return estimate(LOCOMO.kind, LOCOMO.configured(tmp_path, f"system={system}", *overrides))

    deltamem, episodic, mem0, rag, copier = map(foreseen, ("deltamem", "episodic", "mem0", "naive_rag", "copy_all"))
    assert deltamem.sessions == episodic.sessions == mem0.sessions == copier.sessions == 2 * rag.sessions, (
        "two stores a conversation"
    )
    assert copier.ingest.calls == 0 and copier.texts > 0
    assert deltamem.ingest.calls == 3 * deltamem.sessions
    assert episodic.ingest.calls >= 3 * episodic.sessions, "notes, a summary, and lessons at least"
    assert mem0.ingest.read > MEM0.prompt_tokens * mem0.ingest.calls > 0
    assert rag.ingest.calls == rag.answer.calls == 0 and rag.texts > 0
    models = ["base_url=http://localhost:1/v1", "answer.model=m"]
    plain = LOCOMO.configured(tmp_path, *models)
    thinking = LOCOMO.configured(tmp_path, *models, "speed.thinking=1000")
    assert estimate(LOCOMO.kind, thinking).hours(thinking.speed) > estimate(LOCOMO.kind, plain).hours(plain.speed)

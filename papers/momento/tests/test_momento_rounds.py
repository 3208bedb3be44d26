"""Agents that learn over rounds: it is the lessons that help, on tasks never reviewed too, and no user's data is in them."""

from __future__ import annotations

import resource
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from rich.console import Console

from deltamem.config import composed, validated
from deltamem.edits import Add, Update
from deltamem.embedding import CachedEmbedder, Vectors
from deltamem.errors import DeltaMemError
from papers.episodic.personal import PersonalData
from papers.momento import rounds
from papers.momento.habits import CHOICES, DISCONTENT, TOOLS_OF, habits_of
from papers.momento.rounds import CONDITIONS, NONE, REFLECTIONS, Learner, Outcomes, RoundsConfig, evaluate, main

QUIET = Console(quiet=True)
ROUNDS = 3
CHANCE = ("the first id from query_menu_items", "the last id from query_menu_items")
"""Habits that now and then hit what is right."""


def config(out: Path, *overrides: str) -> RoundsConfig:
    given = (f"out={out}", "seeds=2", f"rounds={ROUNDS}", "limit=16", *overrides)
    return validated(composed("momento_rounds", given), RoundsConfig)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return evaluate(config(tmp_path_factory.mktemp("rounds")), CachedEmbedder(WordEmbedder()), QUIET)


def shares(summary: dict[str, Any], condition: str, tasks: str) -> list[float]:
    return [one["estimate"] for one in summary["success"][condition][tasks]]


def test_with_reflections_success_rises_on_seen_and_unseen_tasks_and_without_it_does_not(summary: dict[str, Any]) -> None:
    for tasks in ("seen", "unseen"):
        without, learned = shares(summary, NONE, tasks), shares(summary, REFLECTIONS, tasks)
        assert max(without) <= 0.3 and without[-1] <= without[0]
        assert learned[0] == without[0] and learned == sorted(learned) and learned[-1] >= 0.75
    reward = summary["reward"][REFLECTIONS]
    assert reward[0]["estimate"] == 0 and reward[-1]["low"] >= 0.4


def test_who_pretends_to_learn_earns_nothing_and_who_only_adds_earns_less(summary: dict[str, Any]) -> None:
    last = {condition: of[-1]["estimate"] for condition, of in summary["reward"].items()}
    assert last.keys() == {*CONDITIONS} - {NONE}
    assert last["silent"] == last["quoting"] == 0 and abs(last["shuffled"]) <= 0.1
    assert max(last["praising"], last["everything"], last["reversed"]) <= 0
    assert 0 < last["add only"] < last[REFLECTIONS]


def test_lessons_are_updated_and_hold_nothing_of_users(summary: dict[str, Any]) -> None:
    memory = summary["memory"]
    assert memory[REFLECTIONS]["changes"]["UPDATE"] > 0 and memory[REFLECTIONS]["refused"] == {}
    assert memory["quoting"]["reflections"] == 0 and memory["quoting"]["refused"]["personal_data"] > 20
    assert memory["quoting"]["refused"]["masked_data"] > 100  # in its notes
    assert summary["leaks"] == []
    assert sum(map(len, summary["lessons"].values())) == memory[REFLECTIONS]["reflections"] > 4


def test_what_a_hole_in_the_check_of_reflections_lets_through_ends_the_command_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "make_embedder", lambda settings: WordEmbedder())
    monkeypatch.setattr(PersonalData, "find", lambda self, text: [])
    assert main(config(tmp_path, "seeds=1", "rounds=1")) == 1
    printed = capsys.readouterr()
    assert "data of users was kept: " in printed.err and "@example.org" in printed.err


async def test_data_of_a_user_that_was_kept_for_a_while_is_found_too(tmp_path: Path) -> None:
    learner = Learner(0, config(tmp_path), WordEmbedder())
    memory, address = learner.memories[REFLECTIONS].memory, str(learner.catalogue.users[3]["address1"])
    await memory.write([Add(f"Somebody lives at {address}.", datetime(2026, 1, 1))], actor="test")
    assert learner.leaks() == [address]
    (kept,) = memory.state().memories
    await memory.write([Update(kept.id, text="Somebody lives somewhere.")], actor="test")
    assert learner.leaks() == [address]
    learner.close()


@pytest.mark.parametrize("agents", [1, 3])
def test_one_agent_is_no_certainty(agents: int) -> None:
    """Whether intervals are over agents, and with one agent over its tasks, so that a few of them do not look like all."""
    tasks = [(seed, task) for seed in range(agents) for task in range(6)]
    passed = {(NONE, 1): dict.fromkeys(tasks, False), (REFLECTIONS, 1): dict.fromkeys(tasks, True)}
    outcomes = Outcomes(1, passed, frozenset())
    for interval in (
        outcomes.interval(REFLECTIONS, 1, seen=False),
        outcomes.interval(REFLECTIONS, 1, seen=False, against=NONE),
    ):
        assert interval["estimate"] == interval["high"] == 1
        assert interval["groups"] == (6 if agents == 1 else 3)
        assert interval["low"] == pytest.approx(0.61 if agents == 1 else 0.438, abs=0.01)  # Wilson's
    assert outcomes.interval(NONE, 1, seen=False, against=NONE)["high"] == 0


def test_every_number_of_the_table_is_shown_in_a_narrow_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(rounds, "make_embedder", lambda settings: WordEmbedder())
    assert main(config(tmp_path, "seeds=1", "rounds=11", "limit=9", "reviews=1")) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [REFLECTIONS]]
    assert len(row.split()) == 1 + 11 + 1 + 3 + 1


@pytest.mark.parametrize("which", ["trials.jsonl", "summary.json"])
def test_a_file_that_cannot_be_written_leaves_both_of_the_run_before(tmp_path: Path, which: str) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    small = ("seeds=1", "rounds=1", "reviews=1")
    evaluate(config(tmp_path, *small, "limit=9"), WordEmbedder(), QUIET)
    before = files()
    (tmp_path / f".{which}.partial").mkdir()
    with pytest.raises(IsADirectoryError):
        evaluate(config(tmp_path, *small, "limit=10"), WordEmbedder(), QUIET)
    assert files() == before and before.keys() == {"summary.json", "trials.jsonl"}


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            evaluate(config(tmp_path, "seeds=1", "rounds=1", "reviews=1", "limit=9"), WordEmbedder(), QUIET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


class Breaks(WordEmbedder):
    """Ends the process after so many calls, as a kill would."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def documents(self, texts: Any) -> Vectors:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().documents(texts)


def test_equal_seeds_give_equal_files_also_after_a_kill_and_when_repeated(tmp_path: Path) -> None:
    def files(name: str) -> list[bytes]:
        return [(tmp_path / name / file).read_bytes() for file in ("summary.json", "trials.jsonl")]

    small = ("seeds=1", "rounds=2", "reviews=4")
    with pytest.raises(KeyboardInterrupt):
        evaluate(config(tmp_path / "killed", *small), Breaks(30), QUIET)
    assert not list((tmp_path / "killed").iterdir())
    for name in ("whole", "killed"):
        evaluate(config(tmp_path / name, *small), CachedEmbedder(WordEmbedder()), QUIET)
    before = files("whole")
    assert before == files("killed")
    evaluate(config(tmp_path / "whole", *small), CachedEmbedder(WordEmbedder()), QUIET)
    assert before == files("whole")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    return Learner(0, config(tmp_path_factory.mktemp("agent"), "limit=null"), WordEmbedder())


async def test_without_habits_every_task_succeeds(agent: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "habits", {})
    assert [(await agent.trial(1, NONE, task))[0] for task in agent.tasks] == [True] * 48


HABITS = [(tool, one, way) for tool, choices in CHOICES.items() for one in choices for way in one.ways if way != one.right]


@pytest.mark.parametrize(("tool", "choice", "way"), HABITS, ids=lambda one: one if isinstance(one, str) else "")
async def test_the_service_refuses_habits_and_accepts_what_users_do_not_want(
    agent: Learner, monkeypatch: pytest.MonkeyPatch, tool: str, choice: Any, way: str
) -> None:
    monkeypatch.setattr(agent, "habits", {(tool, choice.argument): way})
    topic = (
        "provider" if choice.argument == "delivery_provider" else next(of for of, name in TOOLS_OF.items() if name == tool)
    )
    task = next(task for task in agent.tasks if task.kind.split()[0] == topic)
    _, messages = await agent.trial(1, NONE, task)
    said = [str(message["content"]) for message in messages if message["role"] == "assistant"]
    blamed = [text for text in said if text.startswith("It was refused because of")]
    if way == choice.accepted:
        assert not blamed and messages[-1]["content"] == DISCONTENT
    elif way not in CHANCE:
        assert blamed and all(text.startswith(f"It was refused because of {choice.argument}.") for text in blamed)


def test_agents_differ_in_their_habits_and_have_some_for_each_tool() -> None:
    agents = [habits_of(seed) for seed in range(20)]
    assert all({tool for tool, _ in one} == {*CHOICES} for one in agents)
    assert len({tuple(sorted(one.items())) for one in agents}) == 20
    assert {(tool, choice.argument) for tool, choices in CHOICES.items() for choice in choices} == {
        of for one in agents for of in one
    }


@pytest.mark.parametrize("limit", [1, 8])
def test_without_unseen_tasks_nothing_is_measured(tmp_path: Path, limit: int) -> None:
    with pytest.raises(DeltaMemError, match=f"limit={limit} leaves no task"):
        evaluate(config(tmp_path, f"limit={limit}"), WordEmbedder(), QUIET)

"""Agents that learn over rounds: it is the lessons that help, on tasks never reviewed too, and no user's data is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from rich.console import Console

from deltamem.config import composed, validated
from deltamem.embedding import CachedEmbedder, Vectors
from deltamem.episodic.personal import PersonalData
from deltamem.errors import DeltaMemError
from eval.momento import rounds
from eval.momento.habits import CHOICES, DISCONTENT, TOOLS_OF, habits_of
from eval.momento.rounds import CONDITIONS, NONE, REFLECTIONS, Learner, RoundsConfig, evaluate, main

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

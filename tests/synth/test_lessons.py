"""Episodes with known lessons: the reward tells learning from pretending."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest
from episode_texts import WordEmbedder
from episodic_cases import reflection, reflections
from typer.testing import CliRunner

from deltamem.sessions import read_sessions
from papers.episodic import Reflection
from synth.__main__ import app
from synth.lessons import PREPARATIONS, SERVICES, LabelledEpisode, Lesson, labelled_episodes, reward

EPISODES = [*labelled_episodes(3, 80)]


def block(lesson: Reflection, target: str | None = None) -> str:
    operator = "update" if target else "add"
    return reflection(operator, target, lesson.title, lesson.use_cases, lesson.hints, lesson.confidence)


def right(episode: LabelledEpisode) -> str:
    target = episode.labelled.operations
    return reflections(*[block(episode.attempt.lesson.reflection, one.target_memory_id) for one in target])


def only_add(episode: LabelledEpisode) -> str:
    lesson = episode.attempt.lesson.reflection
    return reflections(reflection(title=f"{lesson.title}, {episode.attempt.trajectory.id}", hints=lesson.hints))


def quote(episode: LabelledEpisode) -> str:
    said = episode.labelled.session.dialogue[0].content
    return reflections(reflection(title="What the user said", hints=said))


def platitude(episode: LabelledEpisode) -> str:
    return reflections(
        reflection(title=f"Be careful {episode.labelled.session_index}", hints="Always check what a tool needs.")
    )


def wrong(episode: LabelledEpisode) -> str:
    other = Lesson(episode.attempt.lesson.tool, "reboot_server").reflection
    return reflections(*[block(other, one.target_memory_id) for one in episode.labelled.operations])


def test_the_right_operations_earn_everything_and_lazy_ones_little() -> None:
    embed = WordEmbedder().documents
    lazy: list[Callable[[LabelledEpisode], str]] = [lambda _: reflections(), lambda _: "", only_add, quote, platitude, wrong]
    taught = [one for one in EPISODES if one.labelled.operations]
    events = [operation.event for one in taught for operation in one.labelled.operations]
    assert events.count("ADD") == len(SERVICES) and events.count("UPDATE") >= 8 and len(taught) < len(EPISODES)
    assert [reward(one, right(one), embed) for one in EPISODES] == [pytest.approx(1.0)] * len(EPISODES)
    earned = {policy: mean(reward(one, policy(one), embed) for one in taught) for policy in lazy}
    # Who knows the lesson and only ever adds keeps half of it: the stale one stays beside it.
    assert earned.pop(only_add) < 0.6 and max(earned.values()) < 0.3, earned
    # Where nothing is to be learned, whoever writes something earns nothing.
    idle = [one for one in EPISODES if not one.labelled.operations]
    assert {reward(one, policy(one), embed) for one in idle for policy in (only_add, platitude)} == {0.0}


def test_an_episode_names_neither_its_rule_nor_its_lesson() -> None:
    for one in EPISODES:
        said = one.labelled.session.dialogue[0].content
        assert not [word for word in (*PREPARATIONS, *SERVICES) if word in said]
    untold = [one for one in EPISODES if not one.attempt.succeeded]
    assert untold and all(one.attempt.lesson.helps is None and one.attempt.lesson.in_vain for one in untold)


def test_equal_seeds_give_equal_files_that_training_can_read(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        done = CliRunner().invoke(app, ["lessons", str(tmp_path / name), "--episodes", "30", "--seed", str(seed)])
        assert done.exit_code == 0 and done.stdout.startswith("30 episodes, ")
    one, same, other = [(tmp_path / name / "sessions.jsonl").read_bytes() for name in "abc"]
    assert one == same != other
    read = [*read_sessions(tmp_path / "a" / "sessions.jsonl")]
    assert read == [episode.labelled for episode in labelled_episodes(5, 30)]

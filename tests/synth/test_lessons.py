"""Episodes with known lessons: the reward tells learning from pretending, and an agent with a memory gets better."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import pytest
from episode_texts import WordEmbedder
from episodic_cases import Reviewer, reflection, reflections, summary_block, turn_block
from typer.testing import CliRunner

from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.episodic import EpisodicMemory, Reflection
from deltamem.ingest import Outcome
from deltamem.sessions import read_sessions
from synth.__main__ import app
from synth.lessons import PREPARATIONS, SERVICES, LabelledEpisode, Lesson, World, labelled_episodes, reward

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


class Deduces(Reviewer):
    """Reads off the notes which preparation was followed by success; knows nothing of the world."""

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, messages: Sequence[Message]) -> str:
        prompt, asked = messages[0]["content"], messages[1]["content"]
        if "You are given the notes" in prompt:
            return summary_block(note=" " + " ".join(re.findall(r"action: (.*)", asked)))
        if "You keep the lessons" not in prompt:
            calls = re.findall(r"call: (\w+)\(", asked)
            results = re.findall(r'"status": "(\w+)', asked)
            steps = " then ".join(f"{call}={result}" for call, result in zip(calls, results, strict=True))
            return f"<summary>{turn_block(1, ended=True).replace('Called the tool for it.', steps)}</summary>"
        steps = re.findall(r"(\w+)=(\w+)", re.findall(r"action: (.*)", asked)[0])
        tool = steps[-1][0]
        tried = [call for call, _ in steps if call != tool]
        helps = tried[-1] if steps[-1][1] == "confirmed" else None
        kept = re.search(rf"id: (m\d+)\ntitle: What {tool} needs first\n.*\nhints: (.*)", asked)
        before = [one for one in PREPARATIONS if kept and one in kept[2] and "did not help" in kept[2]]
        lesson = Lesson(tool, helps, () if helps else tuple(dict.fromkeys([*before, *tried])))
        return reflections(block(lesson.reflection, kept[1] if kept else None))


def learned(tool: str, found: Sequence[Reflection]) -> Lesson:
    """What recalled reflections say about a tool."""
    for one in found:
        if tool in one.title:
            named = [name for name in PREPARATIONS if name in one.hints]
            return Lesson(tool, None, tuple(named)) if "did not help" in one.hints else Lesson(tool, named[0])
    return Lesson(tool)


async def rounds(memory: EpisodicMemory | None, count: int = 4) -> list[float]:
    """The share of services that an agent gets, round by round."""
    world, rates = World(11), []
    for _ in range(count):
        succeeded = []
        for tool in SERVICES:
            found = [] if memory is None else (await memory.recall(f"Get {SERVICES[tool]} with {tool}")).reflections
            attempt = world.attempt(tool, learned(tool, [one for one, _ in found]))
            succeeded.append(attempt.succeeded)
            if memory is not None:
                assert (await memory.ingest(attempt.trajectory)).outcome is Outcome.APPLIED
        rates.append(mean(succeeded))
    return rates


async def test_with_reflections_an_agent_gets_better_round_by_round() -> None:
    memory = EpisodicMemory(MemoryStore.in_memory(WordEmbedder()), "clerk", Deduces())
    with_memory, without = await rounds(memory), await rounds(None)
    assert with_memory == sorted(with_memory) and with_memory[-1] == 1.0
    assert mean(without) < 0.6 and max(without) < 1.0
    assert len(memory.reflections()) == len(SERVICES) and all(one.confidence == 0.8 for one in memory.reflections())

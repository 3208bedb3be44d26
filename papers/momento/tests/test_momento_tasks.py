"""Tasks: those that are read, and momento-mini, which needs memory and can be solved."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deltamem.errors import DeltaMemError
from papers.momento.mini import FORMS, KINDS, form_pattern, mini_tasks, turn_id
from papers.momento.scores import Action, score_trial
from papers.momento.tasks import ActionNode, TaskSet, read_tasks
from papers.momento.tools import call
from papers.momento.world import World


@pytest.fixture(scope="module")
def mini() -> TaskSet:
    return mini_tasks()


def carry_out(world: World, nodes: Sequence[ActionNode]) -> list[Action]:
    """Make the calls of nodes in their order."""
    query = {"query": "SELECT id, name FROM restaurants"}
    calls = [(node.tool, query if node.tool == "execute_sql" else node.arguments) for node in nodes]
    return [Action(name=tool, arguments=given, result=call(world, tool, given)) for tool, given in calls]


def test_there_are_enough_tasks_of_every_kind(mini: TaskSet) -> None:
    assert len(mini.tasks) >= 40
    assert set(mini.description()["by_kind"]) == set(KINDS)
    assert min(mini.description()["by_kind"].values()) >= 5
    assert mini.description()["tools"] >= 7


def test_the_same_seed_gives_the_same_tasks_and_another_others(mini: TaskSet) -> None:
    assert mini_tasks.__wrapped__(0) == mini
    other = mini_tasks(1)
    assert other.sha256 != mini.sha256
    assert other.tasks[0].orders_hashed != mini.tasks[0].orders_hashed


def test_every_task_is_solved_by_its_actions_and_by_nothing_less(mini: TaskSet, world: World) -> None:
    """Not by an agent that does nothing, nor, where something is to be changed, by one that reads and says everything."""
    everything = " ".join(item.reference_answer for task in mini.tasks for item in task.expected_information)
    for task in mini.tasks:
        world.reset(task.current_date, task.seed_data)
        for replies in ([], ["I am sorry, I do not know."], [task.opening]):
            idle = score_trial(task, world.hashes(task.user_id), [], replies)
            assert not idle.passed and idle.tool_recall == 0, task.task_id
        reads = [node for node in task.action_dags[0] if node.tool.startswith(("search", "list", "get"))]
        read = score_trial(task, world.hashes(task.user_id), carry_out(world, reads), [everything])
        assert read.passed == (task.kind == "favourite"), task.task_id
        for dag in task.action_dags:
            world.reset(task.current_date, task.seed_data)
            actions = carry_out(world, dag)
            assert world.hashes(task.user_id) == task.expected_hashes  # which were computed without the service
            replies = [item.reference_answer for item in task.expected_information]
            scores = score_trial(task, world.hashes(task.user_id), actions, replies)
            assert scores.passed and scores.tool_recall_ordered == 1, task.task_id
    assert sum(len(task.action_dags) for task in mini.tasks) > len(mini.tasks) + 20


def test_what_has_to_be_remembered_is_said_in_the_sessions_and_nowhere_else(mini: TaskSet) -> None:
    for task in mini.tasks:
        texts = {turn_id(session.id, message.seq): message.text for session in task.sessions for message in session.messages}
        topic = task.kind.removesuffix(" corrected")
        evidence = [texts[name] for name in task.evidence]
        assert len(evidence) == (2 if task.kind.endswith("corrected") else 1)
        found = [form_pattern(FORMS[topic]).fullmatch(text) for text in evidence]
        assert all(found)
        last = found[-1]
        assert last is not None
        for name, value in last.groupdict().items():
            if name not in ("place", "occasion", "who"):
                assert not re.search(rf"\b{re.escape(value)}\b", task.opening), (task.task_id, name)
        assert task.sessions[-1].ended_at.date() < task.current_date
        assert [session.started_at for session in task.sessions] == sorted(session.started_at for session in task.sessions)


def test_the_last_that_is_said_holds(mini: TaskSet) -> None:
    """No other sentence of the form speaks of the same thing."""
    for task in mini.tasks:
        topic = task.kind.removesuffix(" corrected")
        said = [message.text for session in task.sessions for message in session.messages]
        found = [match.groupdict() for text in said if (match := form_pattern(FORMS[topic]).fullmatch(text))]
        key = {"usual": "place", "occasion": "occasion", "favourite": "who"}.get(topic)
        if key == "who":
            found = [of for of in found if f"{of['who']} loves" in task.opening and f"at {of['place']}" in task.opening]
        elif key is not None:
            found = [of for of in found if of[key] in task.opening]
        assert len(found) == (2 if task.kind.endswith("corrected") else 1), task.task_id


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def records(mini: TaskSet, count: int = 3) -> list[dict[str, Any]]:
    return [json.loads(task.model_dump_json()) for task in mini.tasks[:count]]


def test_a_file_is_read_as_it_was_written(mini: TaskSet, tmp_path: Path) -> None:
    read = read_tasks(write(tmp_path / "tasks.jsonl", records(mini, 54)))
    assert read.tasks == mini.tasks and not read.problems
    assert len(read.sha256) == 64
    assert "CC BY-SA" in read.description()["licence"]
    same = {key: value for key, value in mini.description().items() if key not in ("file", "sha256", "licence")}
    assert same.items() <= read.description().items()
    listed = tmp_path / "tasks.json"
    listed.write_text(json.dumps(records(mini)), encoding="utf-8")
    assert read_tasks(listed).tasks == mini.tasks[:3]


def test_parquet_is_read_with_its_padding_taken_off(mini: TaskSet, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = records(mini, 9)
    for row in rows:
        row["seed_data"] = json.dumps(row["seed_data"])
        for session in row["sessions"]:
            session["extracted_facts"] = json.dumps(session["extracted_facts"])
        row.pop("images")
        for dag in row["action_dags"]:
            for node in dag:
                node.pop("expected_result")
    path = tmp_path / "test.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    padded = parquet.read_table(path).to_pylist()[0]["action_dags"][0][0]["arguments"]
    assert None in padded.values()  # the form that has to be undone
    assert read_tasks(path).tasks == mini.tasks[:9]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"orders_hashed": "abc"}, "orders_hashed is no MD5"),
        ({"action_dags": [[{"id": "a", "tool": "fly"}]]}, "no tool 'fly'"),
        ({"action_dags": [[{"id": "a", "tool": "get_user_details", "predecessors": ["b"]}]]}, "does not exist"),
        ({"action_dags": [[{"id": "a", "tool": "get_user_details"}] * 2]}, "one id"),
        (
            {
                "action_dags": [
                    [{"id": one, "tool": "get_user_details", "predecessors": [other]} for one, other in ("ab", "ba")]
                ]
            },
            "wait for each other",
        ),
        ({"current_date": "soon"}, "current_date"),
        ({"seed_data": {"users": []}}, "the table 'users'"),
        ({"task_id": 0}, "occurs twice"),
        ({"user_id": None}, "user_id"),
    ],
)
def test_a_record_that_is_no_task_is_noted(mini: TaskSet, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    good, bad = records(mini, 2)
    read = read_tasks(write(tmp_path / "tasks.jsonl", [good, bad | change]))
    assert len(read.tasks) == 1
    assert len(read.problems) == 1 and said in read.problems[0] and "record 2" in read.problems[0]
    assert read.description()["unreadable"] == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"PAR1 nothing", b"\xff\xfe", b"[1, 2]"])
def test_a_file_without_tasks_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tasks"
    path.write_bytes(content)
    with pytest.raises(DeltaMemError, match="tasks"):
        read_tasks(path)
    with pytest.raises(DeltaMemError, match="No such file"):
        read_tasks(tmp_path / "missing")

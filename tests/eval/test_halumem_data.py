"""Reading HaluMem: what is irregular is understood, what is broken is named, and the version is told."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from benchmark_cases import changed
from halumem_cases import ANA, HALUMEM_USER, ana, ben, point, question, write

from deltamem.errors import DeltaMemError
from eval.data import find
from eval.halumem.data import LinkedPoints, gold_passages, load_halumem
from eval.systems.base import Passage


def load(folder: Path, *lines: object):
    return load_halumem(write(folder / "h.jsonl", *lines))


def test_sessions_points_and_questions(tmp_path: Path) -> None:
    data = load(tmp_path, ana(), ben())
    assert data.version == "HaluMem-Long (part)" and load(tmp_path, ben()).version == "HaluMem-Medium (part)"
    assert data.counts == {"users": 2, "sessions": 5, "messages": 7, "memory_points": 6, "questions": 3}
    user = data.users[0]
    assert (user.id, user.name) == (ANA, "Ana Lee")
    first, generated, third, last = user.sessions
    keys = [question.key for question in user.questions]
    assert keys == [f"{ANA}/S1/q1", f"{ANA}/S1/q2", f"{ANA}/S3/q1"]
    # A user is read as far as the last question that is asked.
    assert [len(user.asked(keys[:count]).sessions) for count in (0, 1, 2, 3)] == [0, 1, 1, 4]
    assert [question.key for question in user.asked([keys[1]]).questions] == [keys[1]]
    assert [session.dialogue.id for session in user.sessions] == ["S1", "S2", "S3", "S4"]
    assert [turn.id for turn in first.dialogue.turns] == ["S1:1", "S1:2"]
    assert first.dialogue.turns[1].time == datetime(2025, 9, 1, 10, 5)
    assert first.dialogue.turns[1].role == "assistant"
    assert [point.record.source for point in first.points] == ["system", "secondary", "interference"]
    assert first.points[1].record.memory_type == "Event Memory"
    assert generated.generated and not first.generated
    assert [point.record.is_update for point in third.points] == [True, True]
    assert [point.searched for point in third.points] == [True, False]
    assert third.questions[0].evidence == ("Ana Lee's city is Denver.", "Ana Lee's xylophone hums.")
    assert last.questions == ()
    decorated = ben()
    decorated["sessions"][0]["memory_points"] = [point("x", "primary", memory_type="[Sep 01, 2025][Event Memory]")]
    (found,) = load(tmp_path, decorated).users[0].sessions[0].points
    assert (found.record.memory_type, found.record.source) == ("Event Memory", "primary"), "as the README says"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("sessions", [], "sessions: "),
        ("uuid", "../up", "uuid: '../up' cannot be the name of a folder"),
        ("uuid", ANA, "occurs twice"),
        ("persona_info", "A person", "persona_info: names no one"),
        ("sessions.0.start_time", "2025-09-01", "sessions.0.start_time"),
        ("sessions.0.memory_points.0.is_update", "yes", "sessions.0.memory_points.0.is_update"),
        ("sessions.0.memory_points.0.memory_source", "rumour", "memory_source"),
        ("sessions.0.memory_points.0.memory_type", "Smell", "memory_type"),
        ("sessions.0.memory_points.0.importance", -1, "importance"),
        ("sessions.0.questions", [question("?", "a", "Riddle")], "question_type"),
        ("sessions.0.dialogue.0.role", "system", "sessions.0.dialogue.0.role"),
        (None, json.dumps(ben())[:200], "Invalid JSON: EOF"),
        (None, "[]", "should be an object"),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_read(
    tmp_path: Path, place: str | None, value: object, message: str
) -> None:
    data = load(tmp_path, ana(), "", value if place is None else changed(ben(), place, value))
    assert [user.id for user in data.users] == [ANA]
    (problem,) = data.problems
    assert problem.startswith(f"{tmp_path / 'h.jsonl'}, line 3: ")
    assert message in problem


@pytest.mark.parametrize("lines", [(), ("{}",), ('{"sample_id": "conv-1"}', "nonsense")])
def test_a_file_without_users_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(DeltaMemError, match="holds no user of HaluMem"):
        load(tmp_path, *lines)
    with pytest.raises(DeltaMemError, match=r"absent\.jsonl: No such file"):
        load_halumem(tmp_path / "absent.jsonl")


def test_points_are_linked_to_turns_and_found(tmp_path: Path) -> None:
    user = load(tmp_path, ana()).users[0]
    finder = LinkedPoints(user)
    city, new_city = "Ana Lee's city is Boston.", "Ana Lee's city is Denver."
    assert finder.turns(city, 0) == ("S1:1",)
    assert finder.turns(new_city, 0) == ()  # not said yet
    assert "S3:1" in finder.turns(new_city, 2)
    assert finder.turns("Ana Lee's xylophone hums.", 3) == ()
    elsewhere, same = Passage("?", sources=("S1:1",)), Passage("She lives in the city of Boston", sources=("S3:1",))
    assert finder.finder.ranks([("S1:1", "S3:2")], [elsewhere, same]) == (2,)
    assert finder.finder.ranks([("S1:1",)], [elsewhere]) == (None,)


def test_gold_passages(tmp_path: Path) -> None:
    gold = gold_passages(load(tmp_path, ana()).users[0])
    assert set(gold) == {"Where does Ana live, which city?", "Which city does Ana live in now?", "Ana Lee's city is Denver."}
    (passage,) = gold["Where does Ana live, which city?"]
    assert passage == Passage("Ana Lee's city is Boston.", datetime(2025, 9, 1, 10), ("S1:1",))


def test_the_real_user() -> None:
    path = find(HALUMEM_USER)
    if path is None:
        pytest.skip("the complete user of HaluMem is not in a data folder")
    data = load_halumem(path)
    assert data.counts == {"users": 1, "sessions": 62, "messages": 2720, "memory_points": 686, "questions": 161}
    assert (data.problems, data.version) == ((), "HaluMem-Medium (part)")
    user = data.users[0]
    assert user.name == "Sharon Brown"
    points = [point for session in user.sessions for point in session.points]
    assert sum(point.searched for point in points) == 145
    assert sum(point.record.source == "interference" for point in points) == 126
    finder = LinkedPoints(user)
    evidence = {(text, s.number) for s in user.sessions for question in s.questions for text in question.evidence}
    assert all(finder.turns(text, number) for text, number in evidence)

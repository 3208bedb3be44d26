"""CAME-Bench made offline: determinism, sizes, closed worlds, and a checker that notices what is planted."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checker import check
from scripted_server import completion, failure, serve
from writer_cases import OFFLINE, written

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from papers.stitch.came.records import FILES, LogOperation, Storyboard
from papers.stitch.writer.__main__ import (
    DOMAINS,
    QUESTIONS,
    TOKENS,
    TRAJECTORIES,
    CameWriterConfig,
    Instance,
    make_instance,
    tokens_of,
    write,
)
from papers.stitch.writer.realise import BEGIN
from papers.stitch.writer.storyboard import SHAPES

SHA256 = {
    "worlds": "f42eb41137adf8f94a662a70fddd335762b939c1ebacd72853b3986a8b140380",
    "trajectories": "839bc092464227394e8166ec1a37a16fe09edf15793ed67775905aa319b3c49d",
    "questions": "a1e35a0c45e970d8898b815cf26fcd39ea887eff93e723281caa83b7c6cd850c",
    "storyboard": "7ca72127b25dfeeb500db17bed3393aa4b4cf75f27bbe10586be3c191e2f6a82",
    "intents": "a0c20151abfa33ec6c05d746b6a33364b80db137d1647bd032a384a6e6cfe819",
}
"""Of size S, seed 1, one trip and one debate; whatever changes them makes published scores incomparable."""


@pytest.fixture(scope="module")
def small() -> dict[str, Instance]:
    return {domain: make_instance("S", domain, 0, 1, 100) for domain in DOMAINS}


def test_a_seed_gives_these_bytes_and_another_one_others(came_data: Path, small) -> None:
    assert {name: file_sha256(came_data / f"{name}.jsonl") for name in FILES} == SHA256
    assert json.loads((came_data / "manifest.json").read_text())["sha256"] == SHA256
    assert make_instance("S", "debate", 0, 2, 100).trajectory != small["debate"].trajectory


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", ["S", *(pytest.param(size, marks=pytest.mark.slow) for size in "ML")])
def test_sizes_and_questions_are_those_of_the_paper(size, domain) -> None:
    made = make_instance(size, domain, 0, 1, 100)
    assert abs(tokens_of(made.trajectory) - TOKENS[size]) <= 0.05 * TOKENS[size]
    assert len(made.questions) == len({one.question for one in made.questions}) == QUESTIONS[domain][size]
    assert {one.type for one in made.questions} == {"revision", "recall", "multi_hop", "synthesis"}
    assert all(1 <= len(one.evidence) <= 40 and one.answers for one in made.questions)
    check(made.world, made.board)


def test_there_are_as_many_trajectories_and_questions_as_in_table_2() -> None:
    asked = {size: sum(TRAJECTORIES[size] * QUESTIONS[domain][size] for domain in DOMAINS) for size in TOKENS}
    assert asked == {"S": 144, "M": 168, "L": 61}
    assert {size: 2 * count for size, count in TRAJECTORIES.items()} == {"S": 6, "M": 6, "L": 2}


def test_names_of_one_world_are_in_no_other(came_data: Path) -> None:
    worlds = [json.loads(line) for line in (came_data / "worlds.jsonl").read_text().splitlines()]
    assert len(worlds) == 2
    stems = {world["id"]: {entity["name"].split()[0] for entity in world["entities"]} for world in worlds}
    assert all(len(stems[world["id"]]) == len(world["entities"]) for world in worlds)
    for line in (came_data / "trajectories.jsonl").read_text().splitlines():
        words = set(re.findall(r"\w+", line))
        own = json.loads(line)["world"]
        assert words & stems[own]
        assert not any(words & names for world, names in stems.items() if world != own)


def test_what_is_read_holds_neither_labels_nor_names_that_were_replaced(small) -> None:
    for made in small.values():
        spoken = {turn.id: turn.text for session in made.trajectory.sessions for turn in session.turns}
        referring = [turn for turn in made.board.turns if turn.reference is not None]
        assert len(referring) >= 20
        for turn in referring:
            assert turn.reference.entity not in spoken[turn.id]
            assert turn.reference.entity in made.intents.steps[turn.id].resolved
    by_id = {op.id: op for op in small["travel"].board.operations}
    places = {name: place for place, name in enumerate(by_id)}
    late = [op for op in by_id.values() if op.action == "inform" and places[op.id] - places[op.answers] > 3]
    assert len(late) >= 10  # answers that are given long after


def planted(board: Storyboard, what: str, fits: Callable[[Any], bool], change: Callable[[Any], dict]) -> Storyboard:
    """A board whose first fitting operation or turn is another."""
    items = list(getattr(board, what))
    place = next(place for place, item in enumerate(items) if fits(item))
    items[place] = items[place].model_copy(update=change(items[place]))
    return board.model_copy(update={what: tuple(items)})


@pytest.mark.parametrize(
    ("what", "fits", "change", "message"),
    [
        ("turns", lambda turn: turn.core and turn.role == "User", {"role": "Agent"}, "is said by Agent"),
        ("operations", lambda op: op.value == "drop", {"value": "book"}, "says drop, and the operation book"),
        ("turns", lambda turn: turn.reference, {"resolved": "Surely."}, "is not resolved by the name"),
        ("turns", lambda turn: turn.id == "t2", {"id": "t1"}, "two turns have one id"),
        ("turns", lambda turn: turn.id == "t3", {"time": BEGIN}, "time does not go on"),
        ("operations", lambda op: op.action == "inquire", {"role": "Agent"}, "is not for Agent to do"),
        ("operations", lambda op: op.action == "inform", {"value": "$1"}, "does not hold in the world"),
        (
            "turns",
            lambda turn: turn.core and turn.text.startswith("What about"),
            {"text": "What about that for lunch?", "resolved": "", "reference": None},
            "mentions",
        ),
        (
            "turns",
            lambda turn: turn.reference and turn.reference.number == 1,
            lambda turn: {"reference": turn.reference.model_copy(update={"number": 2})},
            "refers to something other than",
        ),
        ("turns", lambda turn: not turn.core, {"text": "That would be $5."}, "says more than"),
    ],
)
def test_the_checker_notices_what_is_wrong_with_a_trip(small, what, fits, change, message: str) -> None:
    made = small["travel"]
    with pytest.raises(DeltaMemError, match=message):
        check(made.world, planted(made.board, what, fits, change if callable(change) else lambda item: change))


@pytest.mark.parametrize(
    ("domain", "action", "place", "message"),
    [
        ("travel", "inquire", lambda board, moved: 1, "which nobody has proposed for it"),
        ("debate", "concede", lambda board, moved: first_of(board, moved.goal) + 1, "comes before an attack and a defence"),
        ("debate", "attack", lambda board, moved: first_of(board, moved.goal), "comes before the case was proposed"),
        ("debate", "summarize", lambda board, moved: -2, "follows the summary"),
    ],
)
def test_the_checker_notices_what_comes_too_early(small, domain: str, action: str, place, message: str) -> None:
    made = small[domain]
    moved = next(op for op in made.board.operations if op.action == action)
    rest = [op for op in made.board.operations if op is not moved]
    rest.insert(place(rest, moved), moved)
    with pytest.raises(DeltaMemError, match=message):
        check(made.world, made.board.model_copy(update={"operations": tuple(rest), "turns": ()}))


def first_of(operations: Sequence[LogOperation], goal: str) -> int:
    return next(place for place, op in enumerate(operations) if op.goal == goal)


@pytest.mark.parametrize(
    ("domain", "problem"), [("travel", "it has 5 accommodations, and 6 are needed"), ("debate", "it has 2 sources")]
)
def test_a_world_that_is_too_small_is_one_sentence(tmp_path: Path, domain: str, problem: str) -> None:
    settings = CameWriterConfig(size="S", domain=domain, seed=1, out=tmp_path / "data", **OFFLINE | {"entities": 5})
    with pytest.raises(DeltaMemError, match=f"is too small for its storyboard: {problem}"):
        write(settings)
    assert not (tmp_path / "data").exists()


def test_a_folder_with_another_data_set_is_left_alone(came_data: Path) -> None:
    before = {path.name: path.read_bytes() for path in came_data.iterdir()}
    with pytest.raises(DeltaMemError, match="holds another data set"):
        written(came_data, seed=2)
    assert {path.name: path.read_bytes() for path in came_data.iterdir()} == before


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "papers.stitch.writer", "size=S", "writer=llm", f"out={tmp_path / 'data'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "data").exists()
    assert done.stderr == "error: writer=llm needs llm.base_url=<url> and llm.model=<name>\n"


def writing(body) -> str:
    """A model that greets before it says what it is given, and finds that what is said is the same."""
    asked = body["messages"][0]["content"]
    if asked.startswith("Two wordings"):
        return "Yes."
    return f"<think>Hm.</think>Well then. {re.search(r'in plain words:.(.*?).Put it', asked, re.DOTALL)[1].strip()}"


def pricing(body) -> str:
    """A model that invents a price."""
    return f"{writing(body)} That is $7."


def doubting(body) -> str:
    """A model that never finds its own words to say the same."""
    return "No." if writing(body) == "Yes." else writing(body)


@pytest.fixture
def short_debate(monkeypatch) -> None:
    """One debate of two aspects: every operation costs several requests."""
    monkeypatch.setitem(TRAJECTORIES, "S", 1)
    monkeypatch.setitem(SHAPES, "S", replace(SHAPES["S"], aspects=2, rounds=3))
    monkeypatch.setitem(TOKENS, "S", 5_000)
    monkeypatch.setitem(QUESTIONS["debate"], "S", 8)


def by_model(url: str, out: Path) -> CameWriterConfig:
    llm = OFFLINE["llm"] | {"base_url": url, "model": "tiny"}
    return CameWriterConfig(size="S", domain="debate", seed=1, out=out, entities=100, writer="llm", llm=llm)


@pytest.mark.parametrize(("model", "rewritten"), [(writing, True), (pricing, False), (doubting, False)])
def test_a_model_writes_what_passes_the_checks(short_debate, tmp_path: Path, model, rewritten: bool) -> None:
    with serve(lambda body: completion(model(body))) as server:
        manifest = write(by_model(server.url, tmp_path))
        asked = len(server.requests)
        assert write(by_model(server.url, tmp_path)) == manifest
        assert len(server.requests) == asked  # every answer was kept
    operations = sum(counts["operations"] for counts in manifest["trajectories"].values())
    assert manifest["written"] == {"rewritten": operations * rewritten, "kept": operations * (not rewritten)}
    calls = operations * {"writing": 2, "pricing": 2, "doubting": 4}[model.__name__]
    assert 0.9 * calls <= asked <= calls  # equal requests are one
    for counts in manifest["trajectories"].values():
        assert abs(counts["tokens"] - TOKENS["S"]) <= 0.05 * TOKENS["S"]
    spoken = (tmp_path / "trajectories.jsonl").read_text()
    assert ("Well then. " in spoken) == rewritten
    assert "$7" not in spoken


def test_a_model_that_goes_away_loses_nothing_that_was_written(short_debate, tmp_path: Path) -> None:
    good, back = [], []

    def leaving(body):
        if len(good) >= 60 and not back:
            return failure(500)
        good.append(body["messages"][0]["content"])
        return completion(writing(body))

    with serve(leaving) as server:
        with pytest.raises(DeltaMemError):
            write(by_model(server.url, tmp_path))
        assert not (tmp_path / "manifest.json").exists()
        back.append(True)
        manifest = write(by_model(server.url, tmp_path))
    operations = sum(counts["operations"] for counts in manifest["trajectories"].values())
    assert manifest["written"] == {"rewritten": operations, "kept": 0}
    # What was under way when the run ended may be asked again, or waited to be kept, and nothing else.
    assert len(good) - len(set(good)) <= OFFLINE["llm"]["slots"]

"""CAME-Bench made offline: determinism, sizes, closed worlds, and a checker that notices what is planted."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checker import check
from scripted_server import completion, failure, serve
from writer_cases import OFFLINE, written

from deltamem.errors import DeltaMemError
from papers.stitch.came.records import LogOperation, LogTurn, Storyboard
from papers.stitch.writer.command import (
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


@pytest.fixture(scope="module")
def small() -> dict[str, Instance]:
    return {domain: make_instance("S", domain, 0, 1, 100) for domain in DOMAINS}


def test_the_same_seed_gives_the_same_bytes(came_data: Path, tmp_path: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    first = files(came_data)
    assert files(written(tmp_path / "two")) == first
    assert files(written(tmp_path / "three", seed=2))["trajectories.jsonl"] != first["trajectories.jsonl"]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", ["S", *(pytest.param(size, marks=pytest.mark.slow) for size in "ML")])
def test_sizes_and_questions_are_those_of_the_paper(size, domain) -> None:
    made = make_instance(size, domain, 0, 1, 100)
    assert abs(tokens_of(made.trajectory) - TOKENS[size]) <= 0.05 * TOKENS[size]
    assert len(made.questions) == len({one.question for one in made.questions}) == QUESTIONS[domain][size]
    assert {one.type for one in made.questions} == {"revision", "recall", "multi_hop", "synthesis"}
    assert all(1 <= len(one.evidence) <= 40 and one.answers for one in made.questions)


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


def planted(board: Storyboard, change: Callable[[list[LogOperation], list[LogTurn]], None]) -> Storyboard:
    operations, turns = list(board.operations), list(board.turns)
    change(operations, turns)
    return board.model_copy(update={"operations": tuple(operations), "turns": tuple(turns)})


def first(items, fits):
    return next(place for place, item in enumerate(items) if fits(item))


def other_value(operations, turns):
    place = first(operations, lambda op: op.action == "inform")
    operations[place] = operations[place].model_copy(update={"value": "$1"})


def before_it_was_proposed(operations, turns):
    inquiry = operations.pop(first(operations, lambda op: op.action == "inquire"))
    operations.insert(1, inquiry)


def one_fewer(operations, turns):
    place = first(operations, lambda op: op.action == "propose")
    operations.pop(place)


def name_lost(operations, turns):
    place = first(turns, lambda turn: turn.core and turn.text.startswith("What about"))
    turns[place] = turns[place].model_copy(update={"text": "What about that for lunch?", "resolved": "", "reference": None})


def wrong_ordinal(operations, turns):
    place = first(turns, lambda turn: turn.reference is not None and turn.reference.number == 1)
    reference = turns[place].reference.model_copy(update={"number": 2})
    turns[place] = turns[place].model_copy(update={"reference": reference})


def chatty(operations, turns):
    place = first(turns, lambda turn: not turn.core)
    turns[place] = turns[place].model_copy(update={"text": "That would be $5."})


def said_by_another(operations, turns):
    place = first(turns, lambda turn: turn.core and turn.role == "User")
    turns[place] = turns[place].model_copy(update={"role": "Agent"})


def decided_otherwise(operations, turns):
    done = next(op for op in operations if op.action == "decide" and op.value == "drop")
    place = first(operations, lambda op: op.id == done.id)
    operations[place] = done.model_copy(update={"value": "book"})


def resolved_to_another(operations, turns):
    place = first(turns, lambda turn: turn.reference is not None)
    turns[place] = turns[place].model_copy(update={"resolved": turns[place].resolved + " Surely."})


def swapped_ids(operations, turns):
    turns[1] = turns[1].model_copy(update={"id": turns[0].id})


def back_in_time(operations, turns):
    turns[2] = turns[2].model_copy(update={"time": turns[0].time})


def turns_elsewhere(operations, turns):
    turns.append(turns.pop(first(turns, lambda turn: not turn.core)))


def twice(operations, turns):
    operations.append(operations[0])


def asked_by_the_agent(operations, turns):
    place = first(operations, lambda op: op.action == "inquire")
    operations[place] = operations[place].model_copy(update={"role": "Agent"})


TRAVEL = {
    said_by_another: "is said by Agent",
    decided_otherwise: "says drop, and the operation book",
    resolved_to_another: "is not resolved by the name",
    swapped_ids: "two turns have one id",
    back_in_time: "time does not go on",
    turns_elsewhere: "in their order",
    twice: "happens twice",
    asked_by_the_agent: "is not for Agent to do",
    other_value: "does not hold in the world",
    before_it_was_proposed: "which nobody has proposed for it",
    one_fewer: "which nobody has proposed for it",
    name_lost: "mentions",
    wrong_ordinal: "refers to something other than",
    chatty: "says more than",
}


@pytest.mark.parametrize("change", TRAVEL, ids=lambda change: change.__name__)
def test_the_checker_notices_what_is_wrong_with_a_trip(small, change) -> None:
    made = small["travel"]
    with pytest.raises(DeltaMemError, match=TRAVEL[change]):
        check(made.world, planted(made.board, change))


def early_concession(operations, turns):
    concession = operations.pop(first(operations, lambda op: op.action == "concede"))
    operations.insert(first(operations, lambda op: op.goal == concession.goal) + 1, concession)


def early_summary(operations, turns):
    operations.insert(-2, operations.pop())


def attack_on_nothing(operations, turns):
    attack = operations.pop(first(operations, lambda op: op.action == "attack"))
    operations.insert(first(operations, lambda op: op.goal == attack.goal), attack)


def two_summaries(operations, turns):
    operations.append(operations[-1].model_copy(update={"id": "op0"}))


DEBATE = {
    early_concession: "comes before an attack and a defence",
    early_summary: "follows the summary",
    attack_on_nothing: "comes before the case was proposed",
    two_summaries: "follows the summary",
}


@pytest.mark.parametrize("change", DEBATE, ids=lambda change: change.__name__)
def test_the_checker_notices_what_is_wrong_with_a_debate(small, change) -> None:
    made = small["debate"]
    with pytest.raises(DeltaMemError, match=DEBATE[change]):
        check(made.world, planted(made.board.model_copy(update={"turns": ()}), change))


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
def one_trajectory(monkeypatch) -> None:
    monkeypatch.setitem(TRAJECTORIES, "S", 1)


def by_model(url: str, out: Path) -> CameWriterConfig:
    llm = OFFLINE["llm"] | {"base_url": url, "model": "tiny"}
    return CameWriterConfig(size="S", domain="debate", seed=1, out=out, entities=100, writer="llm", llm=llm)


@pytest.mark.parametrize(("model", "rewritten"), [(writing, True), (pricing, False), (doubting, False)])
def test_a_model_writes_what_passes_the_checks(one_trajectory, tmp_path: Path, model, rewritten: bool) -> None:
    with serve(lambda body: completion(model(body))) as server:
        manifest = write(by_model(server.url, tmp_path))
        asked = len(server.requests)
        assert write(by_model(server.url, tmp_path)) == manifest
        assert len(server.requests) == asked  # every answer was kept
    operations = sum(counts["operations"] for counts in manifest["trajectories"].values())
    assert manifest["written"] == {"rewritten": operations * rewritten, "kept": operations * (not rewritten)}
    calls = operations * {"writing": 2, "pricing": 2, "doubting": 4}[model.__name__]
    assert 0.95 * calls <= asked <= calls  # equal requests are one
    for counts in manifest["trajectories"].values():
        assert abs(counts["tokens"] - TOKENS["S"]) <= 0.05 * TOKENS["S"]
    spoken = (tmp_path / "trajectories.jsonl").read_text()
    assert ("Well then. " in spoken) == rewritten
    assert "$7" not in spoken


def test_a_model_that_goes_away_loses_nothing_that_was_written(one_trajectory, tmp_path: Path) -> None:
    good, back = [], []

    def leaving(body):
        if len(good) >= 50 and not back:
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
    # What was under way when the run ended may be asked again, and nothing else.
    assert len(good) - len(set(good)) <= OFFLINE["llm"]["slots"]

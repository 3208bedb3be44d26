"""CAME-Bench as it is run: an independent reader answers everything, scores of sets, lazy policies, broken data."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from locomo_cases import WordEmbedder
from rich.console import Console
from writer_cases import written

from deltamem.config import composed, validated
from deltamem.errors import DeltaMemError
from eval.runner import evaluate
from papers.stitch.came.__main__ import Came
from papers.stitch.came.data import CameConfig, read_data
from papers.stitch.came.diagnostics import METRICS, diagnose, label_diagnostics
from papers.stitch.came.reader import LogReader
from papers.stitch.came.records import CameQuestion, ClosedWorld, WorldEntity
from papers.stitch.came.scores import ORDINALS, Resolver, lazy_policies, set_score
from papers.stitch.records import Intent, IntentFilter


def config(data: Path, out: Path, *overrides: str) -> CameConfig:
    given = [f"data={data}", f"out={out}", "cache=null", "resamples=20", *overrides]
    return validated(composed("came", given, Came.config_dir), CameConfig)


def summary_of(data: Path, out: Path, *overrides: str) -> dict[str, Any]:
    return evaluate(Came, config(data, out, "answer.kind=none", *overrides), Console(file=io.StringIO())).model_dump(
        mode="json"
    )


def overall(summary: dict[str, Any], metric: str) -> float:
    return summary["scores"][metric]["all"]["estimate"]


def test_the_names_of_the_worlds_are_the_vocabulary(came_data: Path, tmp_path: Path) -> None:
    names = {entity.name for world in read_data(config(came_data, tmp_path)).worlds.values() for entity in world.entities}
    assert set(Came(config(came_data, tmp_path)).vocabulary()) == names


@pytest.mark.parametrize("size", ["S", *(pytest.param(size, marks=pytest.mark.slow) for size in "ML")])
def test_a_reader_with_the_log_answers_every_question(came_data: Path, size: str, tmp_path: Path) -> None:
    read = read_data(config(came_data if size == "S" else written(tmp_path / "data", size=size), tmp_path))
    readers = {name: LogReader(log.operations) for name, log in read.logs.items()}
    for question in read.questions.values():
        assert readers[question.trajectory].answer(question, ORDINALS) == set(question.answers), question.id
    assert len(read.questions) == {"S": 48, "M": 56, "L": 61}[size]


def test_the_evidence_is_enough_and_no_turn_of_it_is_idle(came_data: Path, tmp_path: Path) -> None:
    """Some turn of it is always needed for the answer; bookings that were revised are needed to know that they were."""
    read = read_data(config(came_data, tmp_path))
    needed = 0
    for question in read.questions.values():
        said = read.logs[question.trajectory].operation_of

        def answer(turns: set[str], question: CameQuestion = question, said: Any = said) -> set[str]:
            return LogReader(done for turn, done in said.items() if turn in turns).answer(question, ORDINALS)

        assert answer(set(question.evidence)) == set(question.answers)
        needed += any(answer(set(question.evidence) - {turn}) != set(question.answers) for turn in question.evidence)
    assert needed == len(read.questions)


def test_gold_evidence_and_gold_intents_find_everything(came_data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("eval.runner.make_embedder", lambda settings: WordEmbedder())
    oracle = summary_of(came_data, tmp_path / "oracle", "system=oracle")
    assert overall(oracle, "reader_f1") == 1.0
    gold = ["system=stitch", "labeller=oracle"]
    stitch = summary_of(came_data, tmp_path / "stitch", *gold)
    assert overall(stitch, "recall@40") == overall(stitch, "reader_f1") == 1.0
    settings = config(came_data, tmp_path / "stitch", "answer.kind=none", *gold)
    found = diagnose(settings, read_data(settings), WordEmbedder())
    assert found.keys() == {"travel", "debate"}
    for values in found.values():
        assert values["Q_GT@MAX"] == values["ERR"] == "100.0 ± 0.0" and values["Q_ZERO"] == "0.0 ± 0.0"
    plain = summary_of(came_data, tmp_path / "plain", "system=naive_rag")
    assert overall(plain, "recall@40") < overall(stitch, "recall@40") - 0.2
    less = [*gold, "without=[scope,coreference]", "limit=12"]
    blind = summary_of(came_data, tmp_path / "blind", *less)
    assert overall(blind, "recall@40") < 0.9
    settings = config(came_data, tmp_path / "blind", "answer.kind=none", *less)
    assert all(values["ERR"] == "0.0 ± 0.0" for values in diagnose(settings, read_data(settings), WordEmbedder()).values())


def test_gold_intents_are_read_by_the_oracle_alone(came_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for path in came_data.iterdir():
        if path.name != "intents.jsonl":
            (folder / path.name).write_bytes(path.read_bytes())
    assert summary_of(folder, tmp_path / "full", "system=full_context")["failures"]["count"] == 0
    with pytest.raises(DeltaMemError, match=r"intents\.jsonl is missing"):
        summary_of(folder, tmp_path / "stitch", "system=stitch", "labeller=oracle")


def test_lazy_policies_get_little(came_data: Path, tmp_path: Path) -> None:
    scores = lazy_policies(read_data(config(came_data, tmp_path)))
    assert 0 < scores["most_frequent"] < scores["everything"] < 0.25


def question(kind: str, **arguments: str) -> CameQuestion:
    said = {"id": "q", "trajectory": "t", "type": "recall", "form": "value", "question": "?"}
    return CameQuestion(**said, arguments=arguments, kind=kind, answers=("x",), evidence=())


def world_of(*entities: tuple[str, str]) -> ClosedWorld:
    named = tuple(WorldEntity(name=name, kind=kind, details={}) for name, kind in entities)
    return ClosedWorld(id="w", domain="travel", topic="Town", entities=named)


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("restaurant", "Brelo Grill, and BRELO GRILL again; also Krait.", {"Brelo Grill", "Krait Lodge"}),
        ("restaurant", "Brelonia Grill", set()),
        ("source", "It was Dunow (1999).", {"Dunow (1999)"}),
        ("price", "$84 at 19:40 with 20%", {"$84"}),
        ("time", "$84 at 19:40 with 20%", {"19:40"}),
        ("deposit", "20%, not 34.5%", {"20%"}),
        ("figure", "20%, not 34.5%", {"34.5%"}),
        ("price", "not known", set()),
    ],
)
def test_answers_are_resolved(kind: str, text: str, named: set[str]) -> None:
    world = world_of(("Brelo Grill", "restaurant"), ("Krait Lodge", "accommodation"), ("Dunow (1999)", "source"))
    assert Resolver(world).answers(question(kind), text) == named


def test_what_the_question_names_is_no_answer() -> None:
    world = world_of(("Dunow (1999)", "source"), ("Brelo (2001)", "source"))
    asked = question("source", entity="Dunow (1999)")
    assert Resolver(world).answers(asked, "Brelo (2001) answers Dunow (1999)") == {"Brelo (2001)"}


def test_scores_of_sets() -> None:
    assert set_score({"a", "b"}, {"a", "c"}) == (0.5, 0.5, 0.5)
    assert set_score({"a", "b", "c"}, {"a"}) == (1 / 3, 1.0, 0.5)
    assert set_score(set(), {"a"}) == (0, 0, 0)


def cut(folder: Path) -> None:
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace('"evidence":[', '"evidence":{', 1))


def swapped(folder: Path) -> None:
    path = folder / "storyboard.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["trajectory"], lines[1]["trajectory"] = lines[1]["trajectory"], lines[0]["trajectory"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def gone(folder: Path) -> None:
    (folder / "worlds.jsonl").unlink()


def unknown_turn(folder: Path) -> None:
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace('"evidence":["t', '"evidence":["u', 1))


BROKEN = {
    cut: r"questions\.jsonl, line 1: cannot be read",
    swapped: "the storyboard of trajectory .* is not that of its turns",
    gone: r"worlds\.jsonl is missing; python -m papers.stitch.writer",
    unknown_turn: "names a trajectory or turns that are not there",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_data_set_is_one_sentence(came_data: Path, tmp_path: Path, broken) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for path in came_data.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    broken(folder)
    with pytest.raises(DeltaMemError, match=BROKEN[broken]) as raised:
        read_data(config(folder, tmp_path / "out"))
    assert "\n" not in str(raised.value)


def test_data_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(
        DeltaMemError, match=r"data=DIR is needed: a folder that python -m papers\.stitch\.writer has written"
    ):
        read_data(validated(composed("came", [f"out={tmp_path}"], Came.config_dir), CameConfig))


def test_label_diagnostics_by_hand() -> None:
    turns = {
        "a": Intent("Day 1", "book", ("Dinner",)),
        "b": Intent("Day 1", "book", ("Lunch",)),
        "c": Intent("Day 2", "ask", ()),
    }
    wanted = IntentFilter(("Day 1",), ("book",), ("Dinner",))
    assert label_diagnostics(wanted, turns, ["a"]) == dict.fromkeys(METRICS, 1.0) | {"Q_ZERO": 0.0}
    both = label_diagnostics(wanted, turns, ["a", "c"])
    assert both == {"Q_GT@MAX": 1, "GT_DOM": 0.5, "GT_COV": 0.5, "GT_BEST_COV": 1, "Q_GT_FULL": 1, "Q_ZERO": 0}
    other = label_diagnostics(wanted, turns, ["b"])
    assert (other["Q_GT@MAX"], other["GT_DOM"], other["Q_GT_FULL"]) == (0, 0, 0)
    assert other["GT_COV"] == pytest.approx(2 / 3)
    none = label_diagnostics(IntentFilter(("Day 9",)), turns, ["a"])
    assert none == dict.fromkeys(METRICS, 0.0) | {"Q_ZERO": 1.0}

"""CAME-Bench as it is run: an independent reader answers everything, scores of sets, lazy policies, broken data."""

import asyncio
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from locomo_cases import WordEmbedder
from rich.console import Console
from scripted_server import Reply, completion, failure, is_check, serve
from writer_cases import written

from deltamem.config import composed, validated
from deltamem.errors import DeltaMemError
from eval.runner import evaluate
from papers.stitch.came import __main__ as came
from papers.stitch.came.__main__ import Came
from papers.stitch.came.data import CameConfig, read_data
from papers.stitch.came.diagnostics import METRICS, diagnose, label_diagnostics
from papers.stitch.came.reader import LogReader
from papers.stitch.came.records import SETS, CameQuestion, ClosedWorld, WorldEntity
from papers.stitch.came.scores import ORDINALS, Resolver, lazy_policies, set_score
from papers.stitch.records import Intent, IntentFilter


@cache
def composed_once(*overrides: str) -> CameConfig:
    given = ["data=.", "out=.", "cache=null", "resamples=20", "answer.kind=none", *overrides]
    return validated(composed("came", given, Came.config_dir), CameConfig)


def config(data: Path, out: Path, *overrides: str) -> CameConfig:
    return composed_once(*overrides).model_copy(update={"data": data, "out": out})


def summary_of(settings: CameConfig) -> dict[str, Any]:
    return evaluate(Came, settings, Console(file=io.StringIO())).model_dump(mode="json")


def overall(summary: dict[str, Any], metric: str) -> float:
    return summary["scores"][metric]["all"]["estimate"]


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


def test_gold_intents_find_all_evidence_and_their_diagnostics_say_so(came_data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("eval.runner.make_embedder", lambda settings: WordEmbedder())
    gold = ("system=stitch", "labeller=oracle")
    settings = config(came_data, tmp_path / "stitch", *gold)
    stitch = summary_of(settings)
    assert overall(stitch, "recall@40") == overall(stitch, "reader_f1") == 1.0
    found = asyncio.run(diagnose(settings, read_data(settings), WordEmbedder()))
    assert found.keys() == {"travel", "debate"}
    for values in found.values():
        assert values["Q_GT@MAX"] == values["ERR"] == "100.0 ± 0.0" and values["Q_ZERO"] == "0.0 ± 0.0"
    plain = summary_of(config(came_data, tmp_path / "plain", "system=naive_rag"))
    assert overall(plain, "recall@40") < 0.8
    settings = config(came_data, tmp_path / "blind", *gold, "without=[scope,coreference]", "limit=1")
    assert overall(summary_of(settings), "recall@40") < 0.9
    found = asyncio.run(diagnose(settings, read_data(settings), WordEmbedder()))
    assert [values["ERR"] for values in found.values()] == ["0.0 ± 0.0"]


def test_judges_count_what_is_right_of_a_set_and_each_domain_has_its_prompt(
    came_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each set the model gives all but one and an invented name besides; of the single answers it gives the right one."""
    monkeypatch.setattr("eval.runner.make_embedder", lambda settings: WordEmbedder())
    data = read_data(config(came_data, tmp_path))
    by_text = {one.question: one for one in data.questions.values()}
    asked: set[tuple[str, str]] = set()

    def model(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        if prompt.startswith("A question has"):
            gold, given = prompt.partition("Right answers:\n")[2].split("\n\nSay in")[0].split("\nCandidates:\n")
            count = len(set(gold.splitlines()) & set(given.splitlines()))
            return completion(json.dumps({"reason": "counted", "label": 50 if count == 3 else count}))  # 50: cannot count
        if prompt.startswith("You grade"):
            return completion('{"reason": "the same", "label": "correct"}')
        if is_check(body):
            return completion("fine")
        found = by_text[prompt.rpartition("# Question\n")[2].removesuffix("\n\nAnswer:").strip()]
        asked.add((data.trajectories[found.trajectory].domain, "a debate" if "of a debate" in prompt else "a trip"))
        *most, last = [*found.answers, "Nowhere Inn"]
        return completion(", ".join([*most[1:], last] if found.form in SETS else found.answers).replace(", Now", " and Now"))

    with serve(model) as server:
        overrides = (
            "answer.kind=llm",
            "answer.model=tiny",
            "judge.model=tiny",
            f"base_url={server.url}",
            "judge.probes=false",
        )
        settings = config(came_data, tmp_path / "judged", *overrides, "system=oracle")
        judged = summary_of(settings)
    assert asked == {("travel", "a trip"), ("debate", "a debate")}
    # Of four answers the judge says 50: as many count as there are
    counts = [len(one.answers) if one.form in SETS else 4 for one in data.questions.values()]
    wanted = [1 if count == 4 else (count - 1) / count for count in counts]
    assert len(set(counts)) > 2 and judged["failures"]["count"] == 0
    for metric in ("judged_precision", "judged_recall", "judged_f1"):
        assert overall(judged, metric) == pytest.approx(sum(wanted) / len(wanted)), metric
    assert overall(judged, "answer_precision") > overall(judged, "judged_precision"), "by names, what is invented is free"
    assert judged["headline"]["metric"] == "judged_f1"


def test_labels_of_failed_questions_are_judged_by_the_question_alone(
    came_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every third question is answered rightly; of the others scopes are said to be too broad, and one verdict fails."""
    monkeypatch.setattr("eval.runner.make_embedder", lambda settings: WordEmbedder())
    monkeypatch.setattr("papers.stitch.came.__main__.make_embedder", lambda settings: WordEmbedder())
    data = read_data(config(came_data, tmp_path, "limit=20"))
    every = [data.questions[one.key] for one in data.asked]
    right = {one.question for one in every[::3]}
    broken = {next(one.question for one in every if one.question not in right)}
    shown: list[str] = []

    def model(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        if prompt.startswith("A record of steps"):
            asked = re.search("^Question: (.*)$", prompt, re.MULTILINE)[1]  # type: ignore[index]
            shown.append(asked)
            if asked in broken and "classes of facts, what" in prompt:
                return failure(400, "no room today")
            fault = "yes" if "headings, the goal" in prompt else "no"
            said = {"non_inducible": "no", "granularity": fault, "other": "no", "confidence": "high"}
            return completion(json.dumps(said | {"reason": "r", "label": "unfit" if fault == "yes" else "fit"}))
        if is_check(body) or "# Question" in prompt:
            return completion("Nowhere Inn")
        good = re.search("^Question: (.*)$", prompt, re.MULTILINE)[1] in right  # type: ignore[index]
        if prompt.startswith("A question has"):
            gold = prompt.partition("Right answers:\n")[2].partition("\nCandidates:")[0].splitlines()
            return completion(json.dumps({"reason": "r", "label": min(1, len(gold)) if good and len(gold) == 1 else 0}))
        return completion(json.dumps({"reason": "r", "label": "correct" if good else "wrong"}))

    single = {one.question for one in every if len(one.answers) == 1}
    with serve(model) as server:
        models = ["answer.kind=llm", "answer.model=tiny", "judge.model=tiny", f"base_url={server.url}", "judge.attempts=1"]
        overrides = [*models, f"data={came_data}", f"out={tmp_path / 'out'}", "system=stitch", "labeller=oracle"]
        composed_config = composed("came", [*overrides, "limit=20", "resamples=20", "judge.probes=false"], Came.config_dir)
        assert came._run(composed_config) == 1, "a verdict failed"
        asked_once = len(server.requests)
        broken.clear()
        assert came._run(composed_config) == 0 and len(server.requests) - asked_once < 10, "only what failed is asked again"
    found = json.loads((tmp_path / "out" / "failure_modes.json").read_text())
    assert set(shown) == {one.question for one in every} - (right & single)
    kinds = Counter(case["type"] for case in found["cases"])
    assert kinds["scope"] == kinds["event"] == len(set(shown)) > kinds["entity"] > 0 and found["errors"] == 0
    assert {case["type"] for case in found["cases"] if case["modes"]} == {"scope"}
    share = round(100 * kinds["scope"] / kinds.total(), 1)
    assert found["percent"] == {"non_inducible": 0.0, "granularity": share, "other": 0.0}
    out = capsys.readouterr().out
    assert "(1 verdicts failed)" in out and f"granularity {share}% (paper 71.8%)" in out


def copied(came_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(came_data, tmp_path / "data"))


def test_gold_intents_are_read_by_the_oracle_alone(came_data: Path, tmp_path: Path) -> None:
    folder = copied(came_data, tmp_path)
    (folder / "intents.jsonl").unlink()
    full = summary_of(config(folder, tmp_path / "full", "system=full_context", "limit=4"))
    assert full["failures"]["count"] == 0
    with pytest.raises(DeltaMemError, match=r"intents\.jsonl is missing"):
        summary_of(config(folder, tmp_path / "stitch", "system=stitch", "labeller=oracle"))


def test_lazy_policies_get_little(came_data: Path, tmp_path: Path) -> None:
    read = read_data(config(came_data, tmp_path))
    scores = lazy_policies(read)
    assert 0 < scores["most_frequent"] < scores["everything"] < 0.25
    names = {entity.name for world in read.worlds.values() for entity in world.entities}
    assert set(Came(config(came_data, tmp_path)).vocabulary()) == names


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


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / f"{name}.jsonl"
        path.write_text(path.read_text().replace(old, new, 1))

    return edit


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (edited("questions", '"evidence":[', '"evidence":{'), r"questions\.jsonl, line 1: cannot be read"),
        (edited("storyboard", '"id":"t1"', '"id":"t0"'), "the storyboard of trajectory .* is not that of its turns"),
        (lambda folder: (folder / "worlds.jsonl").unlink(), r"worlds\.jsonl is missing; python -m papers.stitch.writer"),
        (edited("questions", '"evidence":["t', '"evidence":["u'), "names a trajectory or turns that are not there"),
    ],
    ids=["cut", "other turns", "gone", "unknown turn"],
)
def test_a_broken_data_set_is_one_sentence(came_data: Path, tmp_path: Path, broken, message: str) -> None:
    folder = copied(came_data, tmp_path)
    broken(folder)
    with pytest.raises(DeltaMemError, match=message) as raised:
        read_data(config(folder, tmp_path / "out"))
    assert "\n" not in str(raised.value)


def test_data_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"data=DIR is needed: .* python -m papers\.stitch\.writer has written"):
        read_data(config(tmp_path, tmp_path).model_copy(update={"data": None}))


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

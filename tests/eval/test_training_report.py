from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from episode_texts import add, none, outputs, search, update
from heldout_cases import labelled, oracle, people
from page_cases import Page
from report_cases import make_run, run_policy, write_validation

from deltamem.errors import DeltaMemError
from deltamem.sessions import LabelledSession
from eval.training_report.charts import Curve, line_chart, running_mean
from eval.training_report.data import comparison, read_run
from eval.training_report.page import write_report
from eval.training_report.trajectories import choose, histories, view

EVIL = "Eve owns <script>alert('memory')</script> & \"more\""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    evil = labelled("eve", 0, {"m1": EVIL}, [update("m1", EVIL.replace("owns", "sold"), "<script>"), none("m1", EVIL)])
    folder = make_run(tmp_path_factory.mktemp("runs") / "seed7")
    result = run_policy(oracle, [evil])
    with (folder / "eval" / "after_sampled" / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result.records[0] | {"key": "<i>eve</i>/0"}) + "\n")
    with (folder / "validation" / "step_000040.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result.records[0] | {"key": "<i>eve</i>/1", "violations": ["<u>"]}) + "\n")
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(run, trajectories=25).read_text(encoding="utf-8"))


def test_it_shows_header_table_curves_and_trajectories(page: Page) -> None:
    assert page.count("details", "trajectory") - page.count("details", "history") == 25
    assert page.count("svg") == page.count("figcaption") == 18
    assert not page.count("p", "missing")
    for said in ("seed7", "0123abcd", "12.2", "due UPDATEs done as ADD", "reward, held out", "24 sessions of 6 people"):
        assert said in page.text, said
    assert "+0.417" in page.text, "the change of the reward"
    for legend in ("bad json", "ADD due", "checkpoint", "rollouts", "gpu reserved gb", "none precision"):
        assert f">{legend}<" in page.source, legend
    for legend in ("turn limit", "weight sync"):
        assert f">{legend}<" not in page.source, "it never happened"


def test_the_same_sessions_are_shown_step_by_step(page: Page) -> None:
    assert page.count("details", "history") == 3
    assert page.text.count("at step 0") == page.text.count("at step 60") == 2
    # The evil session was kept at step 40 only.
    assert page.text.count("at step 40") == 3
    assert page.count("p", "step") == 9


def test_of_many_validations_the_first_the_last_and_some_between_are_shown(tmp_path: Path) -> None:
    write_validation(tmp_path, people(1, 1), tuple(range(0, 100, 10)))
    (tmp_path / "validation" / "notes.jsonl").write_text("{}")
    (history,) = histories(read_run(tmp_path).validation, 5)
    assert [step for step, _ in history.steps] == [0, 20, 40, 70, 90]
    assert histories({3: [], 4: []}, 5) == []


def test_nothing_comes_from_outside(page: Page) -> None:
    page.check_self_contained()
    assert not page.scripts
    assert set(re.findall(r"https?://[^\"'\s<]+", page.source)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_everything_is_escaped(page: Page) -> None:
    assert page.count("i") == page.count("u") == 0
    assert EVIL in page.text and "<i>eve</i>/0" in page.text and "<i>eve</i>/1" in page.text
    assert "I remember: <script>alert('policy')</script>" in page.text


def test_keywords_found_and_missing_are_marked() -> None:
    def script(item: LabelledSession, turn: int) -> str:
        due, _ = item.operations
        return outputs(due, add("Person0 plays trumpet every  EVENING0 evening"))

    due, new = view(run_policy(script, people(1, 1)).records[0], "").target
    assert [(keyword.text, keyword.found) for keyword in new.keywords] == [("violin", False), ("evening", True)]
    pieces = [("Person0 plays ", None), ("violin", False), (" every ", None), ("evening", True), ("0", None)]
    assert [(piece.text, piece.found) for piece in new.pieces] == pieces
    assert due.pair is not None and due.pair["kind"] == "agreed_update" and all(keyword.found for keyword in due.keywords)
    assert due.old_text == "Person0 works as baker in Oslo0"


def test_what_became_of_targets_without_a_pair() -> None:
    known = {"m1": "Ann owns a dog", "m2": "Ann sings"}
    item = labelled("ann", 0, known, [none("m1", "Ann owns a dog"), add("Ann is six", "six")])

    def script(item: LabelledSession, turn: int) -> str:
        return search("dog") if turn == 0 else outputs(none("m1", ""))

    nothing, six = view(run_policy(script, [item]).records[0], "").target
    assert nothing.remark == "named by a NONE, found by a search"
    assert six.remark == "no counterpart" and not six.keywords[0].found


def test_turns_are_taken_apart_and_what_cannot_be_is_shown_raw() -> None:
    def script(item: LabelledSession, turn: int) -> str:
        return search("a", "b") if turn == 0 else "<think>x</think><tool_call>{}</tool_call>"

    record = run_policy(script, people(1, 1)).records[0]
    asked, answered, broken = view(record, "").turns
    assert (asked.think, asked.queries, asked.rest) == ("What is known?", ["a", "b"], "")
    assert [memory["id"] for memory in answered.memories] == record["retrieved_ids"][0]
    assert (broken.think, broken.queries, broken.rest) == ("x", [], "<tool_call>{}</tool_call>")
    assert view(record, "").predicted is None


def record(reward: float, due: int = 0, failure: str | None = None) -> dict[str, object]:
    return {"score": {"reward": reward}, "counts": {"due_updates": due}, "failure": failure}


def test_a_spread_is_chosen() -> None:
    records = [record(value / 100, due=int(value in (40, 41))) for value in range(100)] + [record(1.0, failure="x")]
    chosen = choose(records, 12)
    rewards = [item["score"]["reward"] for _, item in chosen]
    assert len(chosen) == 12 and rewards == sorted(rewards, reverse=True)
    assert rewards[:3] == [0.99, 0.98, 0.97] and rewards[-3:] == [0.02, 0.01, 0.0]
    assert {0.40, 0.41} <= set(rewards), "those with due updates"
    middle = [reward for reward in rewards if 0.1 < reward < 0.9 and reward not in (0.40, 0.41)]
    assert len(middle) >= 3 and max(middle) - min(middle) > 0.4
    for available in (0, 1, 2, 5, 11):
        assert len(choose(records[:available], 12)) == available, "fewer than asked for are all shown"


def test_the_table_tells_better_from_worse() -> None:
    def summary(**values: float) -> dict[str, object]:
        return {"metrics": {name: {"estimate": v, "low": v - 0.05, "high": v + 0.05} for name, v in values.items()}}

    rows = comparison(
        {
            "before_sampled": summary(reward=0.5, add_for_update_rate=0.1, format=0.9, queries_per_memory=0.1),
            "after_sampled": summary(reward=0.7, add_for_update_rate=0.4, format=0.91, queries_per_memory=0.9),
        }
    )
    verdicts = {row.label: (row.changes[0].verdict, row.changes[1].difference) for row in rows}
    assert verdicts == {
        "reward": ("better", None),
        "due UPDATEs done as ADD": ("worse", None),
        "format": ("", None),
        "queries per memory": ("", None),
    }


def test_an_empty_run_folder_makes_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    for name in ("metrics.jsonl", "warm_start.jsonl", "summary.json", "eval/after_sampled/trajectories.jsonl"):
        assert f"{name} is not in the run folder." in page.text
    assert "validation/ holds no trajectories." in page.text
    assert page.count("details", "trajectory") == 0
    with pytest.raises(DeltaMemError, match="cannot be written"):
        write_report(tmp_path, out=tmp_path / "no" / "folder.html")


def test_damaged_and_odd_inputs_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "train/reward": 0.1}\n{"step": 1, "train/reward": NaN, "train/format": null}\n'
        '{"step": 2, "train/reward": 0.2}\n{"step"'
    )
    (tmp_path / "warm_start.jsonl").write_text("")
    (tmp_path / "summary.json").write_text("[]")
    folder = tmp_path / "eval" / "after_sampled"
    folder.mkdir(parents=True)
    (folder / "trajectories.jsonl").write_text('{"key": "a"}\n')
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "step_000004.jsonl").write_text('{"key": "a"}\n[')
    page = Page(write_report(tmp_path, out=tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.count("svg") == 1
    for said in (
        "metrics.jsonl, line 4: not a JSON object; skipped.",
        "warm_start.jsonl holds no records.",
        "summary.json is not a JSON object.",
        "after_sampled/trajectories.jsonl: 1 records of another format; skipped.",
        "validation/step_000004.jsonl: 1 records of another format; skipped.",
        "validation/step_000004.jsonl, line 2: not a JSON object; skipped.",
    ):
        assert said in page.text, said


@pytest.mark.parametrize(("folder", "code"), [(".", 0), ("nothing", 2)])
def test_the_command_prints_the_page_or_one_line(
    folder: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["eval.training_report", str(tmp_path / folder)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("eval.training_report", run_name="__main__")
    printed = capsys.readouterr()
    assert (stopped.value.code or 0) == code
    text = printed.err if code else printed.out
    assert text.count("\n") == 1 and ("no such run folder" in text) == bool(code)
    assert (tmp_path / "report.html").is_file() != bool(code)


def test_charts_follow_the_colours_of_the_page() -> None:
    curve = Curve("a & b", range(30), [x / 30 for x in range(30)], "#3b82f6")
    svg = line_chart("", "one", [curve], "y").svg
    assert "currentColor" in svg and "#010203" not in svg and "a &amp; b" in svg
    assert svg == line_chart("", "one", [curve], "y").svg
    assert running_mean([0, 3, 6, 9]) == [1.5, 3, 6, 7.5], "narrower at the ends"

"""Runs that would mislead whoever reads them beside each other, and what a comparison says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compare_cases import add, edited, headline, ingest, interval, question, records, write_run

from deltamem.errors import DeltaMemError
from eval.compare.conditions import differences, warnings_of
from eval.compare.page import render
from eval.compare.runs import FinishedRun, load_runs
from eval.compare.tables import Table, compare, judge_table, paired_differences, paper_tables

MEM0 = {"package": "mem0ai 2.2.1", "keyword_search": False, "entity_links": False}


def pair(tmp_path: Path, one: dict[str, Any], two: dict[str, Any], **config: Any) -> list[FinishedRun]:
    """DeltaMem and mem0, which both have a model of their own, with what their summaries say."""
    folders = []
    for name, system, changes in (("ours", "deltamem", one), ("peer", "mem0", two)):
        sessions = [ingest("c0", 0)]
        folder = write_run(tmp_path / name, records(), sessions=sessions, config={"system": system, **config})
        folders.append(edited(folder, **{"headline": headline(), **changes}))
    return load_runs(folders)


def everything(table: Table) -> str:
    """All that a table shows."""
    rows = [f"{row.label} {row.detail} {[cell and (cell.text, cell.small) for cell in row.cells]}" for row in table.rows]
    columns = [f"{column.title} {column.heading}" for column in table.columns]
    return "\n".join([table.title, table.banner, table.note, *columns, *rows])


CONFOUNDERS = [
    ("making__models__answer", "gpt", "small", "answer model differs: gpt (ours); small (peer)"),
    ("making__models__judge", "gpt", "small", "judge model differs"),
    ("making__models__manager", "strong", "weak", "manager model differs: strong (ours); weak (peer)"),
    ("making__models__embedder", "one", "other", "embedder differs"),
    (
        "making__fingerprint__endpoints__answer",
        "http://a/v1",
        "http://b/v1",
        "answer endpoint differs: http://a/v1 (ours); http://b/v1 (peer)",
    ),
    (
        "making__fingerprint__served__judge",
        {"id": "j", "created": 1},
        {"id": "j", "created": 2},
        "judge served model differs",
    ),
    ("making__git_commit", "aa", "bb", "commit differs: aa (ours); bb (peer)"),
    (
        "making__versions",
        {"openai": "1.0", "mem0ai": None},
        {"openai": "2.0", "mem0ai": "2.2.1"},
        "version of openai differs: 1.0 (ours); 2.0 (peer)",
    ),
    ("making__config__limit", None, 3, "limit differs: null (ours); 3 (peer)"),
    ("making__config__judge__max_tokens", 8, 9, "judge.max_tokens differs: 8 (ours); 9 (peer)"),
    ("making__prompt_hashes", {"judge_lenient": "ab" * 32}, {"judge_lenient": "cd" * 32}, "prompt judge_lenient differs"),
    ("protocol__k", 20, 10, "protocol k differs: 20 (ours); 10 (peer)"),
    ("protocol__context_tokens", 40, 100, "protocol context_tokens differs: 40 (ours); 100 (peer)"),
    ("data__sha256", "ab" * 32, "ef" * 32, "data sha256 differs: abababababab (ours); efefefefefef (peer)"),
    ("data__audit", None, {"applied": True, "sha256": "ef" * 32}, "audit sha256 differs: null (ours); efef"),
    (
        "headline",
        headline(context_tokens=28623.0),
        headline(context_tokens=2133.0),
        "context tokens an answer differ by a factor of 13.4: peer 2,133, ours 28,623",
    ),
    (
        "passages",
        {"per_question": 20, "tokens_each": 1400, "sources_each": 12.0},
        {"per_question": 20, "tokens_each": 40, "sources_each": None},
        "tokens a passage differ by a factor of 35.0",
    ),
]


@pytest.mark.parametrize(("key", "one", "two", "said"), CONFOUNDERS)
def test_confounders_are_named(tmp_path: Path, key: str, one: Any, two: Any, said: str) -> None:
    (note,) = differences(pair(tmp_path, {key: one}, {key: two}))
    assert note.startswith(said)


def test_what_no_system_shares_is_no_confounder(tmp_path: Path) -> None:
    """A baseline has no manager and no peer; a closed book has no context; up to twice the context is the same task."""
    naive = write_run(tmp_path / "naive", records(), config={"manager.model": "weak"})
    none = write_run(tmp_path / "none", records(), config={"system": "none"})
    edited(naive, headline=headline(context_tokens=4200.0), making__versions={"mem0ai": None})
    edited(none, headline=headline(context_tokens=0.0))
    ours, peer = pair(tmp_path, {}, {"making__versions": {"mem0ai": "2.2.1"}})
    assert differences([ours, peer, *load_runs([naive, none])]) == []


def test_warnings_of_the_summary_and_missing_parts_stand_at_every_row(tmp_path: Path) -> None:
    graded = "the judge is the answerer (gpt): it grades itself"
    ours, peer = pair(tmp_path, {"warnings": [graded]}, {"system_facts": MEM0})
    assert graded in warnings_of(ours)
    assert "mem0 ran without keyword search, entity links" in warnings_of(peer)
    (section,) = compare([ours, peer]).values()
    shown = [table for table in [*section.papers, *section.tables] if "peer" in everything(table)]
    assert len(shown) >= 6
    for table in shown:
        for line in everything(table).splitlines():
            assert line.count("peer") == line.count("peer (without keyword search, entity links)"), line
    page = render([ours, peer])
    assert graded in page and page.count("without keyword search, entity links") > len(shown)


def test_a_closed_book_is_asked_for_and_says_what_is_known_without_a_memory(tmp_path: Path) -> None:
    runs = pair(tmp_path, {}, {})
    missing = [row for row in paper_tables(runs)[0].rows if row.kind == "missing"]
    assert [row.label for row in missing] == ["none", "full_context", "naive_rag"]
    assert "python -m eval.locomo system=none" in missing[0].detail
    closed = edited(write_run(tmp_path / "closed", records(range(4)), config={"system": "none"}), headline=headline(0.21))
    runs += load_runs([closed])
    (section,) = compare(runs).values()
    assert "closed (closed book: known without any memory)" in everything(section.papers[0])
    page = render(runs)
    assert page.count("closed book 21.0") == 2, "beside the score of each system with a memory"
    assert page.count(">closed book<") == 2, "a line in both plots of costs"


def test_differences_are_of_the_questions_that_the_scores_are_of(tmp_path: Path) -> None:
    """A folder in which more was asked before: the second half, which only the first run answered right, is not scored."""
    data = {"sha256": "ab" * 32, "published": True, "questions": 20}
    folders = [write_run(tmp_path / name, records()[:10], data=data) for name in ("one", "two")]
    add(folders[0], records()[10:])
    add(folders[1], records(range(10))[10:])
    runs = load_runs(folders)
    assert [len(run.questions) for run in runs] == [10, 10]
    lenient = next(one for one in paired_differences(runs) if one.metric == "lenient")
    assert (lenient.interval.count, lenient.interval.estimate) == (8, 0.0)
    older = load_runs([edited(folder, questions__keys=None) for folder in folders])
    assert paired_differences(older) == []
    assert any("does not say of which" in sentence for sentence in warnings_of(older[0]))


def test_failures_count_as_wrong_in_differences(tmp_path: Path) -> None:
    """A judge that only fails when the answer is wrong makes no run better than one that is judged throughout."""
    keys = [f"c{number % 4}/{number}" for number in range(8)]
    one = [question(key, "temporal", lenient="correct" if number < 4 else None) for number, key in enumerate(keys)]
    two = [question(key, "temporal", lenient="correct" if number < 4 else "wrong") for number, key in enumerate(keys)]
    runs = load_runs([write_run(tmp_path / "one", one), write_run(tmp_path / "two", two)])
    found = {difference.metric: difference.interval for difference in paired_differences(runs)}
    assert "lenient" not in found, "half of the verdicts failed, so the score is withheld"
    for run in runs:
        run.summary.withheld.clear()
    found = {difference.metric: difference for difference in paired_differences(runs)}
    assert (found["lenient"].interval.count, found["lenient"].interval.estimate) == (8, 0.0)
    assert not found["lenient"].significant and not any(metric.endswith("(valid)") for metric in found)


@pytest.mark.parametrize("published", [False, None])
def test_other_data_never_stands_beside_the_papers(tmp_path: Path, published: bool | None) -> None:
    """Nine invented questions under "Single-hop 841", beside 75.13."""
    data = {"sha256": "cd" * 32, "published": published, "questions": 20}
    invented = write_run(tmp_path / "invented", records(), data=data)
    real = write_run(tmp_path / "real", records())
    for tables in (paper_tables(load_runs([invented])), paper_tables(load_runs([invented, real]))):
        shown = [table for table in tables if any("invented" in row.label for row in table.rows)]
        assert shown and all("not known to be the published file" in table.banner for table in shown)
        for table in shown:
            assert not any(row.kind == "published" or "real" in row.label for row in table.rows)
            assert not any(word in everything(table) for word in ("841", "446", "75.13"))
    (section,) = compare(load_runs([invented])).values()
    assert section.title.endswith("the published file")
    assert "841" in everything(paper_tables(load_runs([real]))[0])
    personamem = write_run(tmp_path / "p", records(), data=data, benchmark="PersonaMem 32k")
    (section,) = compare(load_runs([personamem])).values()
    assert "published file" in section.title and not any("589" in everything(table) for table in section.papers)


def test_withheld_scores_are_in_no_table_chart_or_difference(tmp_path: Path) -> None:
    """A judge that accepts everything: 100 in both of its columns, with exit code 0."""
    why = "the lenient judge accepts 98% of the wrong answers of the calibration"
    theirs = {"withheld": {"lenient": why}, "headline": headline(1.0, withheld=why)}
    runs = pair(tmp_path, {}, theirs, **{"judge.model": "grader"})
    (section,) = compare(runs).values()
    for table in (section.papers[0], judge_table(runs)):
        assert "withheld" in everything(table) and f"{why}." in table.note
    by_judge = [cell and cell.text for cell in judge_table(runs).rows[-1].cells]
    assert by_judge == ["100.00", "50.00", "withheld", "50.00"]
    assert not any(difference.metric == "lenient" for difference in paired_differences(runs))
    page = render(runs)
    assert why in page and "<strong>withheld</strong>" in page


def test_a_partial_run_is_shown_without_its_headline(tmp_path: Path) -> None:
    why = "only 12 of 20 questions are done"
    changes = {"partial": {"done": 12, "questions": 20}, "headline": headline(withheld=why, n=12, of=20)}
    run = edited(write_run(tmp_path / "run", records()), **changes, withheld={"lenient": why, "strict": why})
    runs = load_runs([run])
    page = render(runs)
    assert why in page and "12 of 20" in page and "partial" in page and "<strong>70.0</strong>" not in page
    assert all("run (partial)" in row.label for row in paper_tables(runs)[0].rows if row.kind == "ours")


def test_a_killed_run_is_shown_without_scores(tmp_path: Path) -> None:
    """A run that was killed before it had a summary: what is done is there to be read."""
    finished = write_run(tmp_path / "finished", records())
    killed = write_run(tmp_path / "killed", [*records()[:5], question("c0/5", "temporal", text=None)])
    (killed / "summary.json").unlink()
    models = {part: {"model": "m"} for part in ("answer", "judge", "manager")}
    (killed / "making.json").write_text(
        json.dumps({"benchmark": "LoCoMo", "system": "mem0", "data_sha256": "ab" * 32} | models)
    )
    runs = load_runs([finished, killed])
    page = render(runs)
    assert "the run is not finished: 5 questions are done" in page and "killed (partial)" not in page
    assert "5 of an unknown number" in page and '"name":"killed"' in page
    assert not any(difference.second == "killed" for difference in paired_differences(runs))
    (killed / "making.json").write_text("[]")
    with pytest.raises(DeltaMemError, match="not the configuration of a benchmark run"):
        load_runs([killed])


def test_accuracy_at_equal_budgets_is_one_line_a_system(tmp_path: Path) -> None:
    def budgets(*scores: float) -> list[dict[str, Any]]:
        return [
            {"budget": 1000 * 2**step, "context_tokens": 900.0 * 2**step, "scores": {"lenient": interval(score)}}
            for step, score in enumerate(scores)
        ]

    runs = pair(tmp_path, {"budgets": budgets(0.4, 0.5, 0.6)}, {"budgets": budgets(0.3, 0.35, 0.5)})
    title = "lenient judge at equal budgets of context tokens"
    assert title in render(runs) and title not in render(pair(tmp_path / "without", {}, {}))

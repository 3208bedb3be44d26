from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_cases import ORDER, ingest, question, write_run

from eval.compare.runs import FinishedRun, load_runs
from eval.compare.tables import (
    Row,
    Table,
    command_for,
    cost_table,
    judge_table,
    paired_differences,
    paper_tables,
    probe_table,
    score_table,
)
from eval.records import Cost, QuestionRecord

PROBE = {"estimate": 0.1, "low": 0.05, "high": 0.2, "count": 30, "groups": 30}
PROBES_COST = Cost(calls=7, prompt_tokens=70, completion_tokens=7, seconds=0.7).model_dump()


def questions(right: set[int], *, groups: int = 4) -> list[QuestionRecord]:
    """Twenty questions; the lenient judge accepts those in `right`, the strict one those of them that are even."""
    return [
        question(
            f"conv-{number % groups}/{number}",
            ORDER[number % 5],
            lenient="correct" if number in right else "wrong",
            strict="correct" if number in right and number % 2 == 0 else "wrong",
            f1=0.5,
        )
        for number in range(20)
    ]


def cell(table: Table, row: Row, key: str) -> str:
    shown = row.cells[[column.key for column in table.columns].index(key)]
    return "" if shown is None else shown.text


@pytest.fixture
def runs(tmp_path: Path) -> list[FinishedRun]:
    ours = write_run(
        tmp_path / "ours",
        questions(set(range(20))),
        sessions=[ingest("conv-0", number) for number in range(3)],
        config={"system": "deltamem"},
        probes=[{"judge": "lenient", "false_accept": PROBE, "false_reject": None, "cost": PROBES_COST}],
        more={"ceiling": {"temporal": 0.95, "all": 0.9357}},
    )
    naive = write_run(tmp_path / "naive", questions({0, 1, 2, 3, 5, 6, 7, 8}), sessions=[ingest("conv-0", 0, memories=None)])
    return load_runs([ours, naive])


def test_table_1_has_our_rows_then_what_was_not_run_then_published_rows(runs: list[FinishedRun]) -> None:
    table = paper_tables(runs)[0]
    kinds = [row.kind for row in table.rows]
    assert kinds == sorted(kinds, key=["ours", "missing", "published"].index), "published rows are never among ours"
    lenient, strict, ceiling = [row for row in table.rows if row.label == "ours"]
    assert cell(table, lenient, "all/judge") == "100.00"
    assert cell(table, lenient, "all/f1") == "50.00"
    assert cell(table, strict, "all/f1") == "25.00", "locomo_f1 of the cases is half of set_f1"
    assert "strict" in strict.detail and "locomo_f1" in strict.detail
    assert cell(table, strict, "single-hop/judge") == "50.00"  # of 0, 5, 10, 15
    assert cell(table, ceiling, "all/judge") == "93.57"
    assert "n=16" in str(lenient.cells[-1]), "the count is told where it is not that of the benchmark"
    (missing,) = [row for row in table.rows if row.kind == "missing"]
    assert missing.label == "full_context"
    assert "python -m eval.locomo system=full_context" in missing.detail
    published = next(row for row in table.rows if row.label == "DeltaMem-8B-RL")
    assert cell(table, published, "temporal/judge") == "73.83"
    assert "Table 1" in published.source


def test_both_baselines_have_a_row_where_neither_was_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "oracle", questions({1}), config={"system": "oracle", "limit": 2, "judge.model": "grader"})
    (loaded,) = load_runs([run])
    for table in paper_tables([loaded]):
        assert [row.label for row in table.rows if row.kind == "missing"] == ["full_context", "naive_rag"]
    assert command_for("naive_rag", loaded) == (
        "python -m eval.locomo system=naive_rag out=runs/locomo_naive_rag base_url=http://localhost:1/v1 "
        "answer.model=answerer judge.model=grader limit=2"
    )


def test_the_command_for_a_baseline_names_the_conditions_that_are_not_the_usual_ones(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", questions({1}), config={"answer.context_tokens": 100, "with_time": False, "embedder.name": "e5"}
    )
    summary = json.loads((folder / "summary.json").read_text())
    summary["making"]["config"] |= {"k": 20, "cutoffs": [5, 10, 20], "categories": [1, 4]}
    (folder / "summary.json").write_text(json.dumps(summary))
    (run,) = load_runs([folder])
    assert command_for("naive_rag", run).endswith(
        " k=20 embedder.name=e5 with_time=false answer.context_tokens=100 categories=[1,4]"
    )


def test_abstention_and_queries_by_memory_have_tables_of_their_own(runs: list[FinishedRun]) -> None:
    _, abstention, queries = paper_tables(runs)
    assert cell(abstention, abstention.rows[0], "adversarial/abstention") == "50.00"
    assert cell(queries, queries.rows[0], "all/queries_per_memory") == "0.50"
    naive = next(row for row in queries.rows if row.label == "naive")
    assert cell(queries, naive, "all/queries_per_memory") == "", "it writes no memories"


def test_judges_stand_side_by_side(runs: list[FinishedRun]) -> None:
    table = judge_table(runs)
    assert [(column.title, column.heading) for column in table.columns] == [
        ("ours", "lenient"),
        ("ours", "strict"),
        ("naive", "lenient"),
        ("naive", "strict"),
    ]
    overall = table.rows[-1]
    assert [shown.text for shown in overall.cells if shown is not None] == ["100.00", "50.00", "50.00", "25.00"]


def test_all_scores_of_all_runs(runs: list[FinishedRun]) -> None:
    table = score_table(runs)
    assert {(row.label, row.detail) for row in table.rows} >= {("recall@5", "naive"), ("abstention", "ours")}
    assert [column.title for column in table.columns][:2] == ["single-hop 4", "multi-hop 4"]


def test_cost_and_probes(runs: list[FinishedRun]) -> None:
    rows = {row.label: [shown and shown.text for shown in row.cells] for row in cost_table(runs).rows}
    assert rows["ingest: tokens read"] == ["900", "300"]
    assert rows["ingest: calls"] == ["6", "2"]
    assert rows["memories written"] == ["6", None]
    assert rows["answer: seconds, p50 / p95"] == ["1 / 1", "1 / 1"]
    assert rows["context tokens by answer, estimated"] == ["1,000", "1,000"]
    assert rows["wall seconds of the last invocation, ingest"] == ["3.0", "3.0"]
    assert rows["probes: calls"] == ["7", None]
    assert rows["probes: tokens read"] == ["70", None]
    accept, reject = probe_table(runs).rows
    assert accept.cells[0] is not None and accept.cells[0].text == "10.0"
    assert accept.cells[1] is None
    assert reject.cells == (None, None)


def test_paired_difference_by_hand(runs: list[FinishedRun]) -> None:
    found = {one.metric: one for one in paired_differences(runs)}
    lenient = found["lenient"]
    assert (lenient.first, lenient.second) == ("ours", "naive")
    assert lenient.interval.estimate == pytest.approx(0.5)
    assert lenient.interval.count == 16, "category 5 is not part of it"
    assert lenient.significant
    assert found["abstention"].interval.count == 4
    assert found["set_f1"].interval.estimate == 0
    assert not found["set_f1"].significant
    assert found["recall@5"].interval.estimate == 0
    assert found["recall@5"].interval.count == 16


def test_a_failed_verdict_in_either_run_leaves_the_question_out_of_the_difference(tmp_path: Path) -> None:
    first = [question("a/1", "temporal", lenient="correct"), question("b/1", "temporal", lenient="correct")]
    second = [question("a/1", "temporal", lenient=None), question("b/1", "temporal", lenient="wrong")]
    loaded = load_runs([write_run(tmp_path / "first", first), write_run(tmp_path / "second", second)])
    found = {one.metric: one for one in paired_differences(loaded)}
    assert found["lenient"].interval.count == 1
    assert found["lenient"].interval.estimate == 1.0
    assert not found["lenient"].significant, "one group has no interval"


def test_runs_on_other_data_are_not_paired(tmp_path: Path) -> None:
    data = {"file": "x.json", "sha256": "ef" * 32, "questions": 1}
    one = write_run(tmp_path / "one", [question("a/1", "temporal")])
    two = write_run(tmp_path / "two", [question("a/1", "temporal")], data=data)
    three = write_run(tmp_path / "three", [question("a/1", "temporal", asked="Another question?")])
    assert paired_differences(load_runs([one, two])) == []
    assert paired_differences(load_runs([one, three])) == []


def test_halumem_and_personamem_rows(tmp_path: Path) -> None:
    def interval(estimate: float) -> dict[str, float]:
        return {"estimate": estimate, "low": 0.0, "high": 1.0, "count": 5, "groups": 2}

    scores = {
        "memory_extraction_f1": {"all": interval(0.25)},
        "recall(all)": {"all": interval(0.1)},
        "recall(valid)": {"all": interval(0.2)},
        "correct_update_memory_ratio(all)": {"all": interval(0.3)},
        "correct_qa_ratio(all)": {"all": interval(0.4), "Basic Fact Recall": interval(0.4)},
        "strict_correct_qa_ratio(all)": {"all": interval(0.15)},
    }
    asked = [question("a/1", "Basic Fact Recall")]
    (halumem,) = load_runs([write_run(tmp_path / "h", asked, benchmark="HaluMem-Medium", scores=scores)])
    table, operations = paper_tables([halumem])
    first, strict = [row for row in table.rows if row.kind == "ours"]
    assert [cell(table, first, key) for key in ("extraction/f1", "update/correct", "qa/correct")] == [
        "25.00",
        "30.00",
        "40.00",
    ]
    assert cell(table, strict, "qa/correct") == "15.00"
    every, valid, _ = [row for row in operations.rows if row.kind == "ours"]
    assert cell(operations, every, "extraction/recall") == "10.00"
    assert cell(operations, valid, "extraction/recall") == "20.00"
    assert any(row.label == "MemOS" for row in operations.rows)

    scores = {"accuracy": {"suggest_new_ideas": interval(0.5), "all": interval(0.5)}}
    (personamem,) = load_runs([write_run(tmp_path / "p", asked, benchmark="PersonaMem 32k", scores=scores)])
    (table,) = paper_tables([personamem])
    assert cell(table, table.rows[0], "suggest_new_ideas/accuracy") == "50.00"
    assert [column.title for column in table.columns][-1] == "Overall 589"

"""Loading finished runs, what makes them hard to compare, published rows, and the tables that put them beside each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from compare_cases import add, edited, headline, ingest, interval, question, records, write_run

from deltamem import plugins
from deltamem.errors import DeltaMemError
from eval.compare.layout import PublishedTable, Row, Table, published_tables
from eval.compare.page import render
from eval.compare.runs import FinishedRun, cards, differences, load_runs, warnings_of
from eval.compare.tables import (
    compare,
    judge_table,
    paired_differences,
    paper_tables,
    score_table,
)
from eval.locomo.__main__ import COUNTS as LOCOMO_COUNTS
from eval.personamem.data import COUNTS_32K
from eval.records import Cost

DATA = {"sha256": "ab" * 32, "published": True, "questions": 1}
ASKED = [question("a/1", "temporal")]
ROUNDING = 0.011


def test_families_and_names(tmp_path: Path) -> None:
    names = {"a": "LoCoMo", "b": "HaluMem-Medium (part)", "c": "PersonaMem 32k", "d": "Other"}
    paths = [write_run(tmp_path / parent / "run", ASKED, benchmark=name) for parent, name in names.items()]
    runs = load_runs([*paths, paths[0]])
    assert [run.name for run in runs] == ["a/run", "b/run", "c/run", "d/run"]
    assert list(compare(runs)) == ["locomo", "halumem", "personamem", "other"]


def test_a_bad_folder_is_one_sentence(tmp_path: Path) -> None:
    def refused(*folders: Path) -> str:
        with pytest.raises(DeltaMemError) as refusal:
            load_runs(folders)
        return str(refusal.value)

    folder = write_run(tmp_path / "ours", [question("conv-0/1", "temporal"), question("conv-1/2", "temporal")])
    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "holds no summary.json" in refused(folder, tmp_path)
    questions, summary = folder / "questions.jsonl", folder / "summary.json"
    questions.write_text(questions.read_text().replace("\n", "\n{}\n", 1))
    assert "questions.jsonl, line 2: " in refused(folder)
    content = json.loads(summary.read_text())
    del content["cost"]
    for text, said in ((json.dumps(content), "cost: "), ("", ""), ("[]", ""), ('{"benchmark": ', "")):
        summary.write_text(text)
        assert f"summary.json: not the summary of a benchmark run: {said}" in refused(folder)
    questions.unlink()
    assert "holds no questions.jsonl" in refused(folder)


def test_warnings_of_an_incomplete_and_of_a_resumed_run(tmp_path: Path) -> None:
    sessions = [ingest("a", 0, outcome="unreadable"), ingest("a", 1, outcome="failed")]
    broken = [question("a/1", "temporal", lenient=None)]
    (run,) = load_runs([write_run(tmp_path / "b", broken, sessions=sessions, data=DATA | {"questions": 1986})])
    warnings = "\n".join(warnings_of(run))
    assert "2 failures (1 ingest, 1 judge); they count as wrong" in warnings
    assert "1 sessions could not be understood" in warnings
    asked = [question("a/1", "temporal", passages=("p", "q")), question("a/2", "temporal", passages=("p",))]
    asked[0] = asked[0].model_copy(update={"shown": 1})
    lost = ingest("a", 0).model_copy(update={"cost": Cost(), "cost_lost": True})
    folder = write_run(tmp_path / "run", asked, sessions=[lost, ingest("a", 1)])
    (run,) = load_runs([folder])
    cut, unknown = list(warnings_of(run))[-2:]
    assert cut.startswith("at 1 of 2 questions") and unknown.startswith("what 1 sessions cost is not known")
    add(folder, [question("a/3", "temporal")])
    (run,) = load_runs([folder])
    assert any("holds 3 questions, the scores are of 2" in warning for warning in warnings_of(run))


def test_every_published_table_belongs_to_a_layout() -> None:
    kinds = plugins.load_all("benchmarks").values()
    columns = {layout.id: {column.key for column in layout.columns} for kind in kinds for layout in kind.layouts}
    for table in every_published_table():
        assert set(table.columns) <= columns[table.table], table.source
        assert len(set(table.columns)) == len(table.columns)
        assert all(value is None or 0 <= value <= 100 for values in table.rows.values() for value in values)
        assert all(len(values) == len(table.columns) for values in table.rows.values())
        assert table.doubts.keys() <= table.rows.keys(), table.source


def every_published_table() -> list[PublishedTable]:
    kinds = plugins.load_all("benchmarks").values()
    return [table for kind in kinds for table in published_tables(kind.published_file())]


def published(layout: str) -> list[tuple[str, dict[str, float], PublishedTable]]:
    """The rows of a layout: system, values, where they come from."""
    tables = [table for table in every_published_table() if table.table == layout]
    return [(system, table.values(system), table) for table in tables for system in table.rows]


@pytest.mark.parametrize(
    ("layout", "counts", "expected"), [("locomo", LOCOMO_COUNTS, {"Memory-R1-7B"}), ("personamem", COUNTS_32K, {"Memobase"})]
)
def test_overall_is_the_mean_of_the_categories_unless_the_row_is_in_doubt(
    layout: str, counts: dict[str, int], expected: set[str]
) -> None:
    counts = {name: count for name, count in counts.items() if name != "all"}
    checked, wrong = 0, set()
    for system, row, table in published(layout):
        for measure in {key.partition("/")[2] for key in row}:
            values = {group: row.get(f"{group}/{measure}") for group in counts}
            if None in values.values():
                continue
            checked += 1
            mean = sum(value * counts[group] for group, value in values.items() if value is not None) / sum(counts.values())
            if abs(mean - row[f"all/{measure}"]) > ROUNDING:
                wrong.add(system)
                assert system in table.doubts, f"{system}: {measure} {mean:.2f}, printed {row[f'all/{measure}']}"
    assert checked >= 11 and wrong == expected


def test_published_figures_of_halumem_add_up_and_both_papers_agree() -> None:
    deltamem = {system: row for system, row, table in published("halumem") if "DeltaMem" in table.source}
    for system, row, _ in (*published("halumem"), *published("operations")):
        for group in ("update", "qa"):
            parts = [row.get(f"{group}/{outcome}") for outcome in ("correct", "hallucination", "omission")]
            if None not in parts:  # updates may also be judged "other"
                assert 99.9 <= sum(part for part in parts if part is not None) <= 100.02, system
    for system, row, _ in published("operations"):
        if "extraction/recall" in row:
            recall, precision = row["extraction/recall"], row["extraction/target_precision"]
            assert row["extraction/f1"] == pytest.approx(2 * recall * precision / (recall + precision), abs=0.02)
        assert deltamem.get(system, row).items() <= row.items(), system


PROBE = interval(0.1)
PROBES_COST = Cost(calls=7, prompt_tokens=70, completion_tokens=7, seconds=0.7).model_dump()


def texts(table: Table, row: Row) -> Mapping[str, str]:
    """What a row shows, by column."""
    return {column.key: "" if cell is None else cell.text for column, cell in zip(table.columns, row.cells, strict=True)}


def both_judges(table: Table) -> dict[str, list[str]]:
    """What both judges say over all questions, by run."""
    return {row.label: [cell.text for cell in row.cells[-2:] if cell] for row in table.rows}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    tmp_path = tmp_path_factory.mktemp("runs")
    ours = write_run(
        tmp_path / "ours",
        records(),
        sessions=[ingest("conv-0", number) for number in range(3)],
        config={"system": "deltamem"},
        probes=[{"judge": "lenient", "false_accept": PROBE, "false_reject": PROBE, "errors": 0, "cost": PROBES_COST}],
        more={"ceiling": {"temporal": 0.95, "all": 0.9357}},
    )
    naive = write_run(tmp_path / "naive", records({0, 1, 2, 3, 5, 6, 7, 8}), sessions=[ingest("conv-0", 0, memories=None)])
    return load_runs([ours, naive])


def test_table_1_has_our_rows_then_what_was_not_run_then_published_rows(runs: list[FinishedRun]) -> None:
    table, abstention, queries = paper_tables(runs)
    kinds = [row.kind for row in table.rows]
    assert kinds == sorted(kinds, key=["ours", "missing", "published"].index), "published rows are never among ours"
    lenient, strict, ceiling = [row for row in table.rows if row.label == "ours"]
    assert (texts(table, lenient)["all/judge"], texts(table, lenient)["all/f1"]) == ("100.00", "50.00")
    assert texts(table, strict)["all/f1"] == "25.00", "locomo_f1 of the cases is half of set_f1"
    assert "strict" in strict.detail and "locomo_f1" in strict.detail
    assert texts(table, strict)["single-hop/judge"] == "50.00"  # of 0, 5, 10, 15
    assert texts(table, ceiling)["all/judge"] == "93.57"
    assert "n=16" in str(lenient.cells[-1]), "the count is told where it is not that of the benchmark"
    closed, missing = [row for row in table.rows if row.kind == "missing"]
    assert closed.label == "none" and "python -m eval.locomo system=none" in closed.detail
    assert missing.label == "full_context" and "python -m eval.locomo system=full_context" in missing.detail
    published = next(row for row in table.rows if row.label == "DeltaMem-8B-RL")
    assert texts(table, published)["temporal/judge"] == "73.83" and "Table 1" in published.source
    assert texts(abstention, abstention.rows[0])["adversarial/abstention"] == "50.00"
    by_memory = {row.label: texts(queries, row)["all/queries_per_memory"] for row in queries.rows if row.kind == "ours"}
    assert by_memory == {"ours": "0.50", "naive": ""}, "it writes no memories"


def test_judges_stand_side_by_side_and_all_scores_are_there(runs: list[FinishedRun]) -> None:
    table = judge_table(runs)
    headings = [(column.group, column.heading) for column in table.columns[-2:]]
    assert headings == [("all", "lenient"), ("all", "strict")]
    assert both_judges(table) == {"ours": ["100.00", "50.00"], "naive": ["50.00", "25.00"]}
    table = score_table(runs)
    assert {(row.label, row.detail) for row in table.rows} >= {("naive", "recall@5"), ("ours", "abstention")}
    assert [column.title for column in table.columns][:2] == ["Single-hop 4", "Multi-hop 4"]


def test_cost_and_probes(runs: list[FinishedRun]) -> None:
    *_, costs, probes = next(iter(compare(runs).values())).tables()
    rows = {row.label: [cell and cell.text for cell in row.cells] for row in costs.rows}
    assert rows["ingest: tokens read"] == ["900", "300"]
    assert rows["memories written"] == ["6", None]
    assert rows["answer: seconds, p50 / p95"] == ["1 / 1", "1 / 1"]
    assert rows["context tokens by answer, estimated"] == ["1,000", "1,000"]
    assert rows["wall seconds of the last invocation, ingest"] == ["3.0", "3.0"]
    assert (rows["probes: calls"], rows["probes: tokens read"]) == (["7", None], ["70", None])
    assert [[cell and cell.text for cell in row.cells] for row in probes.rows] == [["10.0", None]] * 2


def test_paired_difference_by_hand(runs: list[FinishedRun]) -> None:
    found = {one.metric: one for one in paired_differences(runs)}
    lenient = found["lenient"]
    assert (lenient.first, lenient.second) == ("ours", "naive")
    assert lenient.interval.estimate == pytest.approx(0.5)
    assert lenient.interval.count == 16, "category 5 is not part of it"
    assert lenient.significant
    assert found["abstention"].interval.count == 4
    for name in ("set_f1", "recall@5"):
        assert (found[name].interval.estimate, found[name].interval.count, found[name].significant) == (0, 16, False)


def test_what_is_left_out_of_a_difference(tmp_path: Path) -> None:
    """Runs on other data, or of another question with the same key."""
    one = write_run(tmp_path / "one", ASKED)
    two = write_run(tmp_path / "two", ASKED, data=DATA | {"sha256": "ef" * 32})
    three = write_run(tmp_path / "three", [question("a/1", "temporal", asked="Another question?")])
    assert paired_differences(load_runs([one, two])) == paired_differences(load_runs([one, three])) == []


def test_scores_in_the_layouts_of_two_papers(tmp_path: Path) -> None:
    estimates = {
        "memory_extraction_f1": 0.25,
        "recall(all)": 0.1,
        "recall(valid)": 0.2,
        "correct_update_memory_ratio(all)": 0.3,
        "correct_qa_ratio(all)": 0.4,
        "strict_correct_qa_ratio(all)": 0.15,
    }
    scores = {name: {"all": interval(estimate)} for name, estimate in estimates.items()}
    asked = [question("a/1", "Basic Fact Recall")]
    (halumem,) = load_runs([write_run(tmp_path / "h", asked, benchmark="HaluMem-Medium", scores=scores)])
    table, operations = paper_tables([halumem])
    first, strict = [texts(table, row) for row in table.rows if row.kind == "ours"]
    assert [first[key] for key in ("extraction/f1", "update/correct", "qa/correct")] == ["25.00", "30.00", "40.00"]
    assert strict["qa/correct"] == "15.00"
    every, valid, _ = [texts(operations, row) for row in operations.rows if row.kind == "ours"]
    assert (every["extraction/recall"], valid["extraction/recall"]) == ("10.00", "20.00")
    assert any(row.label == "MemOS" for row in operations.rows)


MEM0 = {"package": "mem0ai 2.2.1", "keyword_search": False, "entity_links": False}


def pair(tmp_path: Path, one: dict[str, Any], two: dict[str, Any], **config: Any) -> list[FinishedRun]:
    """DeltaMem and mem0, which both have a model of their own, with what their summaries say."""
    folders = []
    for name, system, changes in (("ours", "deltamem", one), ("peer", "mem0", two)):
        sessions = [ingest("c0", 0)]
        folder = write_run(tmp_path / name, records(), sessions=sessions, config={"system": system, **config})
        folders.append(edited(folder, **{"headline": headline(), **changes}))
    return load_runs(folders)


def test_a_row_names_mode_and_version(tmp_path: Path) -> None:
    whole = {"package": "mem0ai 2.2.1", "keyword_search": True, "entity_links": True}
    ours, peer = pair(tmp_path, {"system_facts": {"mode": "assisted", "mode_reason": "so"}}, {"system_facts": whole})
    assert ours.title == "ours (assisted)"
    assert peer.title == "peer (mem0ai 2.2.1, with keyword search, entity links)"
    assert [card.facts.get("mode") for card in cards([ours, peer])[0]] == ["assisted: so", None]


def everything(table: Table) -> str:
    """All that a table shows."""
    rows = [f"{row.label} {row.detail} {[cell and (cell.text, cell.small) for cell in row.cells]}" for row in table.rows]
    columns = [f"{column.title} {column.heading}" for column in table.columns]
    return "\n".join([table.title, table.banner, table.note, *columns, *rows])


PASSAGES = {"per_question": 20, "tokens_each": 40, "sources_each": None}
CONFOUNDERS = [
    ("making__models__answer", "gpt", "small", "answer model differs: gpt (ours); small (peer)"),
    ("making__models__judge", "gpt", "small", "judge model differs"),
    ("making__models__manager", "strong", "weak", "manager model differs: strong (ours); weak (peer)"),
    ("making__models__embedder", "one", "other", "embedder differs"),
    ("making__fingerprint__endpoints__answer", "a/v1", "b/v1", "answer endpoint differs: a/v1 (ours); b/v1 (peer)"),
    ("making__fingerprint__served__judge", {"id": "j", "of": 1}, {"id": "j", "of": 2}, "judge served model differs"),
    ("making__git_commit", "aa", "bb", "commit differs: aa (ours); bb (peer)"),
    ("making__versions", {"openai": "1.0"}, {"openai": "2.0"}, "version of openai differs: 1.0 (ours); 2.0 (peer)"),
    ("making__config__categories", [1, 2], [2], "categories differs: [1, 2] (ours); [2] (peer)"),
    ("making__config__limit", None, 3, "limit differs: null (ours); 3 (peer)"),
    ("making__config__judge__max_tokens", 8, 9, "judge.max_tokens differs: 8 (ours); 9 (peer)"),
    ("making__prompt_hashes", {"judge_lenient": "ab" * 32}, {"judge_lenient": "cd" * 32}, "prompt judge_lenient differs"),
    ("protocol__k", 20, 10, "protocol k differs: 20 (ours); 10 (peer)"),
    ("protocol__context_tokens", 40, 100, "protocol context_tokens differs: 40 (ours); 100 (peer)"),
    ("data__sha256", "ab" * 32, "ef" * 32, "data sha256 differs: abababababab (ours); efefefefefef (peer)"),
    ("data__audit", None, {"applied": True, "sha256": "ef" * 32}, "audit sha256 differs: null (ours); efef"),
    ("headline__context_tokens", 28623.0, 2133.0, "context tokens an answer differ by a factor of 13.4: peer 2,133, ours"),
    ("passages", PASSAGES, PASSAGES | {"tokens_each": 1400}, "tokens a passage differ by a factor of 35.0"),
]


def test_confounders_are_named(tmp_path: Path) -> None:
    one, two = ({key: values[side] for key, *values, _ in CONFOUNDERS} for side in (0, 1))
    notes = differences(pair(tmp_path, one, two))
    assert len(notes) == len(CONFOUNDERS)
    for *_, said in CONFOUNDERS:
        assert sum(note.startswith(said) for note in notes) == 1, said


def test_what_no_system_shares_is_no_confounder(tmp_path: Path) -> None:
    """A system has prompts, stores and packages of its own; a baseline has no manager; a closed book has no context; up to
    twice the context is the same task; an audit that is not applied changes nothing."""
    naive = write_run(tmp_path / "naive", records(), config={"manager.model": "weak", "answer.kind": "llm"})
    none = write_run(tmp_path / "none", records(), config={"system": "none"})
    unapplied = {"applied": False, "sha256": "ef" * 32}
    edited(naive, headline=headline(context_tokens=4200.0), making__versions={"mem0ai": None}, data__audit=unapplied)
    edited(none, headline=headline(context_tokens=0.0))
    own = {"making__prompt_hashes__session": "00" * 32, "protocol__k_each_store": 20}
    ours, peer = pair(tmp_path, own, {"making__versions": {"mem0ai": "2.2.1"}, "protocol__k_each_store": 40})
    assert differences([ours, peer, *load_runs([naive, none])]) == differences([ours]) == []


def test_what_a_run_must_not_be_read_without_stands_at_every_row_and_chart(tmp_path: Path) -> None:
    graded = "the judge is the answerer (gpt): it grades itself"
    budgets = [{"budget": 1000 * n, "context_tokens": 900.0 * n, "scores": {"lenient": interval(n / 4)}} for n in (1, 2)]
    ours, peer = pair(tmp_path, {"warnings": [graded], "budgets": budgets}, {"system_facts": MEM0, "budgets": budgets})
    assert graded in warnings_of(ours)
    assert "mem0 ran without keyword search, entity links" in warnings_of(peer)
    closed = edited(write_run(tmp_path / "closed", records(range(4)), config={"system": "none"}), headline=headline(0.21))
    runs = [ours, peer, *load_runs([closed])]
    (section,) = compare(runs).values()
    assert "closed (closed book: known without any memory)" in everything(section.papers[0])
    shown = [table for table in [*section.papers, *section.tables()] if "peer" in everything(table)]
    assert len(shown) >= 6
    for table in shown:
        for line in everything(table).splitlines():
            assert line.count("peer") == line.count("peer (mem0ai 2.2.1, without keyword search, entity links)"), line
    page = render(runs)
    assert graded in page and page.count("without keyword search, entity links") > len(shown)
    assert "lenient judge at equal budgets of context tokens" in page
    assert page.count("closed book 21.0") == 2, "beside the score of each system with a memory"
    assert page.count(">closed book<") == 3, "a line in all plots of tokens"


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


def test_other_data_never_stands_beside_the_papers(tmp_path: Path) -> None:
    """Nine invented questions under "Single-hop 841", beside 75.13."""
    data = {"sha256": "cd" * 32, "published": None, "questions": 20}
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


def test_withheld_scores_are_in_no_table_chart_or_difference(tmp_path: Path) -> None:
    """A judge that accepts everything: 100 in both of its columns, with exit code 0."""
    why = "the lenient judge accepts 98% of the wrong answers of the calibration"
    theirs = {"withheld": {"lenient": why}, "headline": headline(1.0, withheld=why, n=12, of=20)}
    runs = pair(tmp_path, {}, theirs | {"partial": {"done": 12, "questions": 20}}, **{"judge.model": "grader"})
    (section,) = compare(runs).values()
    for table in (section.papers[0], judge_table(runs)):
        assert "withheld" in everything(table) and f"{why}." in table.note and "peer (partial)" in everything(table)
    assert both_judges(judge_table(runs)) == {"ours": ["100.00", "50.00"], "peer (partial)": ["withheld", "50.00"]}
    assert not any(difference.metric == "lenient" for difference in paired_differences(runs))
    page = render(runs)
    assert why in page and "<strong>withheld</strong>" in page and "12 of 20" in page

"""Loading runs, what makes them hard to compare, and whether published rows are plausible or say what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_cases import ORDER, ingest, question, write_run
from pydantic import ValidationError

from deltamem.errors import DeltaMemError
from deltamem.runs import RecordFile
from eval.compare.runs import PublishedTable, differences, family, load_runs, published_rows, published_tables, warnings_of
from eval.compare.tables import LAYOUTS, LOCOMO_COUNTS
from eval.personamem.data import COUNTS_32K
from eval.records import Cost, QuestionRecord

DATA = {"sha256": "ab" * 32, "questions": 1}
ASKED = [question("a/1", "temporal")]
ROUNDING = 0.011
COLUMNS = {layout.id: {column.key for column in layout.columns} for layouts in LAYOUTS.values() for layout in layouts}


def test_families_and_names(tmp_path: Path) -> None:
    names = ("LoCoMo", "HaluMem-Medium (part)", "PersonaMem 32k", "Other")
    assert [family(name) for name in names] == ["locomo", "halumem", "personamem", "other"]
    paths = [write_run(tmp_path / parent / "run", ASKED) for parent in ("x", "y")]
    assert [run.name for run in load_runs([*paths, paths[0]])] == ["x/run", "y/run"]


def test_a_bad_folder_is_one_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "ours", [question(f"conv-{number % 2}/{number}", ORDER[number]) for number in range(3)])

    def refused(*folders: Path) -> str:
        with pytest.raises(DeltaMemError) as refusal:
            load_runs(folders)
        return str(refusal.value)

    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "holds no summary.json" in refused(folder, tmp_path)
    questions, summary = folder / "questions.jsonl", folder / "summary.json"
    lines, content = questions.read_text().splitlines(), json.loads(summary.read_text())
    questions.write_text("\n".join([lines[0], "{}", *lines[1:]]) + "\n")
    assert "questions.jsonl, line 2: " in refused(folder)
    questions.unlink()
    assert "holds no questions.jsonl" in refused(folder)
    for key in ("scores", "cost", "failures"):
        summary.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        assert f"summary.json: not the summary of a benchmark run: {key}: " in refused(folder)
    for text in ("", "[]", '{"benchmark": ', "\x00"):
        summary.write_text(text)
        assert "not the summary of a benchmark run" in refused(folder)


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ({"answer.model": "other"}, {}, "answer model differs: one: answerer; two: other"),
        ({"judge.model": "other"}, {}, "judge model differs"),
        ({"embedder.name": "other"}, {}, "embedder differs"),
        ({"answer.context_tokens": 100}, {}, "protocol context_tokens differs: one: 40000; two: 100"),
        ({}, {"protocol": {"k": 10}}, "protocol k differs: one: 20; two: 10"),
        ({}, {"data": {"sha256": "ef" * 32, "questions": 1}}, "data sha256 differs: one: abababababab; two: efefefefefef"),
        ({}, {"prompt_hashes": {"judge_lenient": "ef" * 32}}, "prompt judge_lenient differs"),
        ({"limit": 3}, {}, "limit differs: one: null; two: 3"),
        ({"judge.max_tokens": 9}, {}, "judge.max_tokens differs: one: 512; two: 9"),
        (
            {},
            {"data": DATA | {"audit": {"applied": True, "sha256": "ef" * 32}}},
            "audit sha256 differs: one: null; two: efef",
        ),
    ],
)
def test_differences_of_conditions(
    tmp_path: Path, config: dict[str, object], changes: dict[str, object], expected: str
) -> None:
    one = write_run(tmp_path / "one", ASKED, config={"judge.model": "grader"})
    two = write_run(tmp_path / "two", ASKED, config={"judge.model": "grader", **config}, **changes)
    assert any(note.startswith(expected) for note in differences(load_runs([one, two])))


def test_what_may_differ(tmp_path: Path) -> None:
    """The system with its own prompts and stores, an answerer that is named or implied, an audit that is not applied."""
    hashes = {"judge_lenient": "cd" * 32}
    one = write_run(tmp_path / "1", ASKED, prompt_hashes=hashes | {"session": "00" * 32}, protocol={"k_each_store": 20})
    two = write_run(tmp_path / "2", ASKED, prompt_hashes=hashes, config={"system": "mem0"}, protocol={"k_each_store": 40})
    assert differences(load_runs([one, two])) == []
    one, two = write_run(tmp_path / "3", ASKED), write_run(tmp_path / "4", ASKED, config={"answer.kind": "llm"})
    three = write_run(tmp_path / "5", ASKED, data=DATA | {"audit": {"applied": False, "sha256": "ef" * 32}})
    assert differences(load_runs([one, two, three])) == differences(load_runs([one])) == []


def test_other_categories_make_another_overall_score(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, ASKED) for name in ("one", "two")]
    for folder, categories in zip(folders, ([1, 2], [2]), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        summary["making"]["config"]["categories"] = categories
        (folder / "summary.json").write_text(json.dumps(summary))
    assert differences(load_runs(folders)) == ["categories differs: one: [1, 2]; two: [2]"]


def test_warnings_of_an_incomplete_run(tmp_path: Path) -> None:
    broken = [question("a/1", "temporal", lenient=None)]
    sessions = [ingest("a", 0, outcome="unreadable"), ingest("a", 1, outcome="failed")]
    data = {"sha256": "ab" * 32, "questions": 1986}
    (run,) = load_runs([write_run(tmp_path / "run", broken, sessions=sessions, data=data)])
    warnings = "\n".join(warnings_of(run))
    for expected in ("1 of 1,986 questions", "2 failures (1 ingest, 1 judge)", "1 sessions could not be understood"):
        assert expected in warnings


def test_warnings_of_a_resumed_run(tmp_path: Path) -> None:
    asked = [question("a/1", "temporal", passages=("p", "q")), question("a/2", "temporal", passages=("p",))]
    asked[0] = asked[0].model_copy(update={"shown": 1})
    lost = ingest("a", 0).model_copy(update={"cost": Cost(), "cost_lost": True})
    folder = write_run(tmp_path / "run", asked, sessions=[lost, ingest("a", 1)])
    (run,) = load_runs([folder])
    cut, unknown = warnings_of(run)
    assert cut.startswith("run: at 1 of 2 questions") and unknown.startswith("run: what 1 sessions cost is not known")
    with RecordFile(folder / "questions.jsonl", QuestionRecord, lambda record: record.key) as file:
        file.add(question("a/3", "temporal"))
    (run,) = load_runs([folder])
    assert any("holds 3 questions, the scores are of 2" in warning for warning in warnings_of(run))


def test_every_published_table_belongs_to_a_layout() -> None:
    for table in published_tables():
        assert set(table.columns) <= COLUMNS[table.table], table.source
        assert len(set(table.columns)) == len(table.columns)
        assert all(value is None or 0 <= value <= 100 for values in table.rows.values() for value in values)


@pytest.mark.parametrize(
    ("table", "counts"),
    [("locomo", {name: count for name, count in LOCOMO_COUNTS.items() if name != "all"}), ("personamem", COUNTS_32K)],
)
def test_overall_is_the_mean_of_the_categories_unless_the_row_is_in_doubt(table: str, counts: dict[str, int]) -> None:
    checked, wrong = 0, set()
    for row in published_rows(table):
        for measure in {key.partition("/")[2] for key in row.values}:
            values = {group: row.values.get(f"{group}/{measure}") for group in counts}
            if None in values.values():
                continue
            checked += 1
            mean = sum(value * counts[group] for group, value in values.items() if value is not None) / sum(counts.values())
            if abs(mean - row.values[f"all/{measure}"]) > ROUNDING:
                wrong.add(row.system)
                assert row.doubt, f"{row.system}: {measure} {mean:.2f}, printed {row.values[f'all/{measure}']}"
    assert checked >= 11
    assert wrong == ({"Memory-R1-7B"} if table == "locomo" else {"Memobase"})


def test_published_figures_of_halumem_add_up_and_both_papers_agree() -> None:
    deltamem = {row.system: row.values for row in published_rows("halumem") if "DeltaMem" in row.source}
    for table in ("halumem", "operations"):
        for row in published_rows(table):
            for group in ("update", "qa"):
                parts = [row.values.get(f"{group}/{outcome}") for outcome in ("correct", "hallucination", "omission")]
                if None not in parts:  # updates may also be judged "other"
                    assert 99.9 <= sum(part for part in parts if part is not None) <= 100.02, row.system
    for row in published_rows("operations"):
        if "extraction/recall" in row.values:
            recall, precision = row.values["extraction/recall"], row.values["extraction/target_precision"]
            assert row.values["extraction/f1"] == pytest.approx(2 * recall * precision / (recall + precision), abs=0.02)
        for key, value in deltamem.get(row.system, {}).items():
            assert row.values[key] == value, (row.system, key)


def test_a_row_of_another_length_and_a_doubt_without_a_row_are_refused() -> None:
    with pytest.raises(ValidationError):
        PublishedTable(table="locomo", source="s", columns=["a/b", "a/c"], rows={"x": [1.0]})
    with pytest.raises(ValidationError):
        PublishedTable(table="locomo", source="s", columns=["a/b"], rows={"x": [1.0]}, doubts={"y": "?"})

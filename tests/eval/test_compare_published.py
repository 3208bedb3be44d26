"""Published rows are plausible, or say what is wrong with them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from eval.compare.runs import PublishedTable, published_rows, published_tables
from eval.compare.tables import LAYOUTS, LOCOMO_COUNTS
from eval.personamem.data import COUNTS_32K

ROUNDING = 0.011
COLUMNS = {layout.id: {column.key for column in layout.columns} for layouts in LAYOUTS.values() for layout in layouts}


def test_every_table_belongs_to_a_layout() -> None:
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


def test_outcomes_of_halumem_add_up() -> None:
    for table in ("halumem", "operations"):
        for row in published_rows(table):
            for group in ("update", "qa"):
                parts = [row.values.get(f"{group}/{outcome}") for outcome in ("correct", "hallucination", "omission")]
                if None not in parts:
                    # Updates may also be judged "other".
                    assert 99.9 <= sum(part for part in parts if part is not None) <= 100.02, row.system


def test_f1_of_halumem_follows_from_precision_and_recall() -> None:
    for row in published_rows("operations"):
        if "extraction/recall" in row.values:
            recall, precision = row.values["extraction/recall"], row.values["extraction/target_precision"]
            assert row.values["extraction/f1"] == pytest.approx(2 * recall * precision / (recall + precision), abs=0.02)


def test_both_papers_agree_on_the_systems_that_both_have() -> None:
    deltamem = {row.system: row.values for row in published_rows("halumem") if "DeltaMem" in row.source}
    for row in published_rows("operations"):
        for key, value in deltamem.get(row.system, {}).items():
            assert row.values[key] == value, (row.system, key)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValidationError, match="does not have 2 values"):
        PublishedTable(table="locomo", source="s", columns=["a/b", "a/c"], rows={"x": [1.0]})
    with pytest.raises(ValidationError, match="a doubt has no row"):
        PublishedTable(table="locomo", source="s", columns=["a/b"], rows={"x": [1.0]}, doubts={"y": "?"})


def test_the_doubt_about_memory_r1_counts_what_it_shares_with_lightmem() -> None:
    rows = {row.system: row for row in published_rows("locomo") if row.source.endswith("Table 1")}
    one, other = rows["Memory-R1-7B"], rows["LightMem"]
    shared = [key for key in one.values if not key.startswith("all/") and one.values[key] == other.values[key]]
    assert len(shared) == 5
    assert one.doubt.startswith("five of the category figures equal LightMem's")

"""Tables as papers have them: columns, the scores of ours that stand in them, and what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import Field

from deltamem.config import StrictModel

ALL = "all"  # Name of the group of all pooled categories


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a heading of two lines."""

    group: str  # What is measured: a category, an operation, or `all`
    measure: str  # Which score
    name: str  # Upper line of the heading without the count, the same for neighbours of one group
    heading: str = ""  # Lower line; empty where there is one column of the group
    count: int | None = None  # Questions of the group in the whole benchmark; None where that is not questions

    @property
    def key(self) -> str:
        """Names the column in ``published.yaml``."""
        return f"{self.group}/{self.measure}"

    @property
    def title(self) -> str:
        """Upper line of the heading."""
        return self.name if self.count is None else f"{self.name} {self.count:,}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to fill a row of a run, where there are several scores for what a paper has one."""

    label: str  # Says which; empty if there is only one
    # Name of the metric by measure, or by group and measure; measures that are not there stay empty
    metrics: Mapping[str, str]
    category: str | None = None  # Category of the metric; None means the group of the column


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as it is shown, what stands under it, and the name of our metric that it is."""

    text: str
    small: str = ""
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with one cell for each column; None is empty."""

    # `ours` was measured by a run that is shown; `missing` was not run; `published` is what others reported
    kind: Literal["ours", "missing", "published"]
    label: str  # The run or the system
    detail: str  # More about it: variant, or doubts
    cells: tuple[Cell | None, ...]
    source: str = ""  # Where a published row was printed, and under which conditions
    group: str = ""  # What the row has in its columns, where other rows of the table have other scores


@dataclass(frozen=True, slots=True)
class Table:
    """A table; as benchmarks have it without rows, which are ours, then those not run, then published ones."""

    title: str
    columns: Sequence[Column]
    variants: Sequence[Variant] = ()  # Rows of each run
    id: str = ""  # Names the table of a paper in `published.yaml`
    rows: Sequence[Row] = ()
    note: str = ""  # What the reader must know, below the table
    ceiling: str = ""  # The measure of which the summary says under ``ceiling`` how high it can be, by group
    banner: str = ""  # Above it: why it must not be read as what its title says

    def groups(self) -> list[tuple[str, int]]:
        """The upper line of the heading: title and number of columns below it."""
        return [(title, len(list(columns))) for title, columns in groupby(self.columns, lambda column: column.title)]

    def parts(self) -> list[tuple[str, str, list[Row]]]:
        """Rows that can be compared and sorted among themselves: their kind, what stands above them, and the rows."""
        found = groupby(self.rows, lambda row: (row.kind, f"published: {row.source}" if row.source else row.group))
        return [(kind, above, list(rows)) for (kind, above), rows in found]


def columns_of(
    groups: Mapping[str, int | None], measures: Mapping[str, str], names: Mapping[str, str] = {}
) -> tuple[Column, ...]:
    """A column for each group, by its count, and each measure, by its heading; `names` are those of groups."""
    return tuple(
        Column(group, measure, names.get(group) or _name(group), heading, count)
        for group, count in groups.items()
        for measure, heading in measures.items()
    )


def _name(group: str) -> str:
    return "Overall" if group == ALL else f"{group[:1].upper()}{group[1:].replace('_', ' ')}"


class PublishedTable(StrictModel):
    """Rows of one source."""

    table: str  # The layout that they belong to, by its id
    source: str
    note: str = ""  # Conditions that differ from ours
    columns: list[str]  # `<group>/<measure>` of each value
    # Values by name of the system, in percent, or counts; None where nothing is given
    rows: dict[str, list[float | None]]
    doubts: dict[str, str] = Field(default_factory=dict)  # What does not add up, by row

    def values(self, system: str) -> dict[str, float]:
        """What is given of a row, by column."""
        return {name: value for name, value in zip(self.columns, self.rows[system], strict=True) if value is not None}


@cache
def published_tables(path: Path) -> tuple[PublishedTable, ...]:
    """The tables of a ``published.yaml``; none where there is no such file."""
    if not path.exists():
        return ()
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    return tuple(PublishedTable.model_validate(table) for table in content["tables"])

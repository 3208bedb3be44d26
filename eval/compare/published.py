"""Reads ``published.yaml``: what others reported. None of it was measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class PublishedTable(BaseModel):
    """Rows of one source.

    Attributes:
        table: The layout that they belong to.
        source: Where they were printed.
        note: Conditions that differ from ours.
        columns: ``<group>/<measure>`` of each value.
        rows: Values by name of the system, in percent, or counts; None where nothing is given.
        doubts: What does not add up, by row.
        page_only: Whether the terminal leaves them out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    source: str
    note: str = ""
    columns: list[str]
    rows: dict[str, list[float | None]]
    doubts: dict[str, str] = {}
    page_only: bool = False

    @model_validator(mode="after")
    def _fits(self) -> PublishedTable:
        if (
            any(len(values) != len(self.columns) for values in self.rows.values())
            or not self.doubts.keys() <= self.rows.keys()
        ):
            raise ValueError(f"{self.source}: a row does not have {len(self.columns)} values, or a doubt has no row")
        return self


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published row.

    Attributes:
        system: As its source calls it.
        source: Where it was printed.
        note: Conditions that differ from ours.
        doubt: What does not add up in it; empty if nothing.
        values: By ``<group>/<measure>``.
        page_only: Whether the terminal leaves it out.
    """

    system: str
    source: str
    note: str
    doubt: str
    values: Mapping[str, float]
    page_only: bool


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Everything in the file."""
    from omegaconf import OmegaConf

    text = (resources.files("eval.compare") / "published.yaml").read_text(encoding="utf-8")
    content: Any = OmegaConf.to_container(OmegaConf.create(text))
    return tuple(PublishedTable.model_validate(table) for table in content["tables"])


def published_rows(table: str) -> list[PublishedRow]:
    """The rows of one layout, source by source."""
    return [
        PublishedRow(
            system,
            part.source,
            part.note,
            part.doubts.get(system, ""),
            {name: value for name, value in zip(part.columns, values, strict=True) if value is not None},
            part.page_only,
        )
        for part in published_tables()
        if part.table == table
        for system, values in part.rows.items()
    ]

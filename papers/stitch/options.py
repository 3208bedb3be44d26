"""The option of ``deltamem search`` that ranks memories by intent. Imports nothing heavy: every command reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deltamem.bank.store import SearcherKind


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What to rank by."""

    explain: Annotated[
        bool, typer.Option("--explain", help="Rank by contextual intent, and say which labels of the query each one has.")
    ] = False

    def searcher(self) -> SearcherKind | None:
        """What ranks, with the labeller that needs no model; None for similarity."""
        if not self.explain:
            return None
        from papers.stitch.memories import by_intent

        return by_intent

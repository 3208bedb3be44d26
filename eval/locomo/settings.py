"""The configuration of ``python -m eval.locomo`` as typed objects (``configs/locomo.yaml`` holds the defaults)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from deltamem.errors import DeltaMemError
from eval.settings import BenchmarkConfig

Captions = Literal["all", "with_url", "none"]
Gold = Literal["original", "audited"]
JudgeName = Literal["lenient", "strict"]


class LocomoConfig(BenchmarkConfig):
    """All keys of the command.

    Attributes:
        k: Passages that each of the two stores of a conversation is searched for; a single store is searched for 2 k.
        cutoffs: The k of recall@k, over the passages of both stores together; at most `k`.
        categories: Ids of the categories that are asked.
        captions: Which captions of pictures are part of a turn: of all pictures, of those whose address is there, none.
        gold: Which answers count as right: those of the file, or those of the audit where it has found the file's wrong.
        audit: File of the audit; None looks for it. Only ``gold=audited`` cannot do without.
        judges: Which judges label the answers.
    """

    k: PositiveInt
    cutoffs: Annotated[list[PositiveInt], Field(min_length=1)]
    categories: Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)]
    captions: Captions
    gold: Gold
    audit: Path | None
    judges: Annotated[list[JudgeName], Field(min_length=1)]

    def check(self) -> None:
        """Refuse values that do not fit each other.

        Raises:
            DeltaMemError: If recall is asked for deeper than is searched.
        """
        if max(self.cutoffs) > self.k:
            raise DeltaMemError(f"cutoffs has {max(self.cutoffs)}, but only k={self.k} passages of a store are searched for")

    def locomo_making(self) -> dict[str, Any]:
        """What decides the records besides `BenchmarkConfig.making` and the files: keys of this benchmark."""
        return {
            "k": self.k,
            "captions": self.captions,
            "gold": self.gold,
            "judges": sorted(set(self.judges)) if self.judged else [],
        }

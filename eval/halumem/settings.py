"""The configuration of ``python -m eval.halumem`` as typed objects (``configs/halumem.yaml`` holds the defaults)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from deltamem.errors import DeltaMemError
from eval.settings import BenchmarkConfig

JudgeName = Literal["qa", "qa_strict"]


class HalumemConfig(BenchmarkConfig):
    """All keys of the command.

    Attributes:
        version: Which of the two files is looked for if `data` names none.
        update_k: Passages that are searched for the new text of an updated memory point.
        question_k: Passages for each question.
        cutoffs: The k of recall@k; at most `question_k`.
        judges: Which judges label the answers.
    """

    version: Literal["medium", "long"]
    update_k: PositiveInt
    question_k: PositiveInt
    cutoffs: Annotated[list[PositiveInt], Field(min_length=1)]
    judges: Annotated[list[JudgeName], Field(min_length=1)]

    def check(self) -> None:
        """Refuse values that do not fit each other.

        Raises:
            DeltaMemError: If recall is asked for deeper than is searched.
        """
        if max(self.cutoffs) > self.question_k:
            raise DeltaMemError(
                f"cutoffs has {max(self.cutoffs)}, but only question_k={self.question_k} passages are searched for"
            )

    def halumem_making(self) -> dict[str, Any]:
        """What decides the records besides `BenchmarkConfig.making` and the file: keys of this benchmark."""
        return {
            "update_k": self.update_k,
            "question_k": self.question_k,
            "judges": sorted(set(self.judges)) if self.judged else [],
        }

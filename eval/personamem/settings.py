"""The configuration of ``python -m eval.personamem`` as a typed object (``configs/personamem.yaml`` holds the defaults)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from deltamem.errors import DeltaMemError
from eval.data import PERSONAMEM_CONTEXTS, PERSONAMEM_QUESTIONS, require
from eval.settings import BenchmarkConfig

SystemMessages = Literal["keep", "drop"]


class PersonaMemConfig(BenchmarkConfig):
    """All keys of the command.

    Attributes:
        data: Folder with both files of the 32k release.
        questions: The questions file instead.
        contexts: The contexts file instead.
        k: Passages that a question is searched for.
        cutoffs: The k of recall@k; at most `k`.
        system_messages: Whether the persona text that opens each session is fed to the memory.
    """

    questions: Path | None
    contexts: Path | None
    k: PositiveInt
    cutoffs: Annotated[list[PositiveInt], Field(min_length=1)]
    system_messages: SystemMessages

    @property
    def judged(self) -> bool:
        """Never: an answer is a letter, which is right or not, so ``judge`` means nothing here."""
        return False

    @property
    def runs(self) -> int:
        """Answers to each question; one if the answerer says the same every time."""
        return self.answer.runs if self.answer.answerer == "llm" else 1

    def check(self) -> None:
        """Refuse values that do not fit each other.

        Raises:
            DeltaMemError: If recall is asked for deeper than is searched, or the folder of the data is a file.
        """
        if max(self.cutoffs) > self.k:
            raise DeltaMemError(f"cutoffs has {max(self.cutoffs)}, but only k={self.k} passages are searched for")
        if self.data is not None and not self.data.is_dir():
            raise DeltaMemError(
                f"data={self.data} is not a folder; expected one with {Path(PERSONAMEM_QUESTIONS.path).name} and "
                f"{Path(PERSONAMEM_CONTEXTS.path).name}, or questions=<file> and contexts=<file>"
            )

    def files(self) -> tuple[Path, Path]:
        """Where questions and contexts are.

        Raises:
            DeltaMemError: If one is neither named nor found; says what to fetch.
        """
        questions, contexts = self.questions, self.contexts
        if self.data is not None:
            questions = questions or self.data / Path(PERSONAMEM_QUESTIONS.path).name
            contexts = contexts or self.data / Path(PERSONAMEM_CONTEXTS.path).name
        return questions or require(PERSONAMEM_QUESTIONS), contexts or require(PERSONAMEM_CONTEXTS)

    def personamem_making(self) -> dict[str, Any]:
        """What decides the records: the shared keys that mean something here, and those of this benchmark."""
        shared = self.making()
        del shared["judge"]
        return shared | {"k": self.k, "system_messages": self.system_messages}

"""Scores without new answers: what a finished run ingested, found and answered is taken over, and only judges are asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from deltamem.runs import RecordFile, read_records
from eval.answer import AnswerRequest
from eval.config import BenchmarkConfig
from eval.records import FINGERPRINTS, AnswerRecord, PointRecord, QuestionRecord, read_run_config

TAKEN_FROM = "answers_from"
"""Key of the run's configuration: under which fingerprint the last of the answers was made."""

_MAY_DIFFER = {"judge", "judges", "prompts", FINGERPRINTS, TAKEN_FROM}
_FILES = ("sessions.jsonl", "passages.jsonl", "retrieved.jsonl")


class TakenAnswers:
    """The answers of the finished run that a configuration names, without verdicts; stands for its answerer.

    Attributes:
        name: Of the answerer.
        fingerprints: Under which they were made.
        questions: By key, with answers whose verdicts are left out.
    """

    def __init__(self, config: BenchmarkConfig, run_config: Mapping[str, Any], prompt: Prompt | None) -> None:
        """Read them; `prompt` is that of the answerer, None if no model answers.

        Raises:
            DeltaMemError: If there is no such run, or it differs in something else than its judges; names the first.
        """
        assert config.answers_from is not None
        self.name: str = config.answer.answerer
        self._folder = folder = config.answers_from
        before = read_run_config(folder)
        if not before:
            raise DeltaMemError(f"answers_from={folder} is not the folder of a run")
        self.fingerprints: list[dict[str, Any]] = before.get(FINGERPRINTS, [])
        now = json.loads(json.dumps(run_config))
        for of in (before, now):
            of["answer prompt"] = prompt and of["prompts"].get(prompt.name)
        for key in sorted({*before, *now} - _MAY_DIFFER):
            if before.get(key) != now.get(key):
                raise DeltaMemError(
                    f"answers_from={folder} was made with {key} = {before.get(key)!r}, not {now.get(key)!r}; "
                    "only the judges may differ"
                )
        found = read_records(folder / "questions.jsonl", QuestionRecord, lambda record: record.key)
        self.questions = {key: _without_verdicts(record) for key, record in found.items()}

    @property
    def made(self) -> str:
        """Hash of the last fingerprint."""
        return str(self.fingerprints[-1]["made"]) if self.fingerprints else "unknown"

    def check_complete(self, keys: Collection[str]) -> None:
        """Make sure that all questions have answers.

        Raises:
            DeltaMemError: If some are missing or failed.
        """
        missing = [key for key in keys if (record := self.questions.get(key)) is None or not _answered(record)]
        if missing:
            raise DeltaMemError(
                f"answers_from={self._folder} lacks answers to {len(missing):,} of {len(keys):,} questions, for example "
                f"{missing[0]}; finish that run first"
            )

    def copy(self, out: Path) -> None:
        """Bring all but the answers into the folder of a run that has not begun."""
        out.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(self._folder / name, out / name)
        source, target = self._folder / "points.jsonl", out / "points.jsonl"
        if source.exists():
            target.unlink(missing_ok=True)
            with RecordFile(target, PointRecord, lambda record: record.key) as points:
                for record in read_records(source, PointRecord, lambda record: record.key).values():
                    if record.searched:  # the others are made of the data and the sessions
                        points.add(record.model_copy(update={"verdict": None}))

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Stands for the answerer, who is only asked again where the model had said nothing: that stays so."""
        return AnswerRecord(text=None, silent=True, error="the answerer had returned nothing")

    def warning(self) -> str:
        """What every output says."""
        return f"answers are taken over from a finished run (made under {self.made}); only judges and scores are new"


def _without_verdicts(record: QuestionRecord) -> QuestionRecord:
    budgets = tuple(budget.model_copy(update={"answers": _bare(budget.answers)}) for budget in record.budgets)
    return record.model_copy(update={"answers": _bare(record.answers), "budgets": budgets})


def _bare(answers: tuple[AnswerRecord, ...]) -> tuple[AnswerRecord, ...]:
    return tuple(answer.model_copy(update={"verdicts": {}}) for answer in answers)


def _answered(record: QuestionRecord) -> bool:
    answers = [*record.answers, *(answer for budget in record.budgets for answer in budget.answers)]
    return record.error is None and bool(answers) and all(answer.error is None or answer.silent for answer in answers)

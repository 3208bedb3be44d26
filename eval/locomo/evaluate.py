"""The evaluation: conversations are taken in, questions searched for, and records and summary written."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from deltamem.files import atomic_writer
from deltamem.provenance import config_hash, file_sha256, git_commit, versions
from eval.data import LOCOMO, require
from eval.locomo.loader import Conversation, load_locomo
from eval.locomo.open_system import check_system, open_system
from eval.locomo.retrieval import QuestionRecord, retrieve_all, summarise
from eval.locomo.session_log import SessionRecord
from eval.locomo.settings import LocomoConfig
from eval.locomo.systems import System


def evaluate(config: LocomoConfig, console: Console) -> dict[str, Any]:
    """Run the evaluation and write ``questions.jsonl`` and ``summary.json`` into the output folder.

    Args:
        config: The validated configuration.
        console: Where progress is shown.

    Returns:
        The summary. ``failed_sessions`` is not 0 if the system could not take in everything.

    Raises:
        DeltaMemError: If the system is unknown, or the data, the embedder or the model is missing.
        OSError: If the output folder cannot be written.
    """
    check_system(config.system)
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.data or require(LOCOMO)
    conversations = load_locomo(path)
    try:
        records, summary = asyncio.run(_run(config, conversations, file_sha256(path), console))
    except BaseExceptionGroup as group:
        raise _first_cause(group) from group
    summary["data_set"] = _describe(path, conversations)
    with atomic_writer(config.out / "questions.jsonl") as file:
        file.writelines(f"{json.dumps(record.as_dict(), ensure_ascii=False)}\n" for record in records)
    with atomic_writer(config.out / "summary.json") as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


async def _run(
    config: LocomoConfig, conversations: Sequence[Conversation], data_sha256: str, console: Console
) -> tuple[list[QuestionRecord], dict[str, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.perf_counter()
    cutoffs = sorted(set(config.k))
    with Progress(*columns, console=console, transient=True) as progress:
        shown = _Shown(progress, config.system, conversations)
        async with open_system(config, data_sha256, shown.session) as system:
            loaded = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_retrieve(system, conversation, config.categories, cutoffs, shown))
                    for conversation in conversations
                ]
            retrieved = time.perf_counter()
    records = [record for task in tasks for record in task.result()]
    settings = config.model_dump(mode="json", exclude={"data": True, "out": True, "endpoint": {"cache"}})
    return records, {
        "benchmark": LOCOMO.name,
        "system": config.system,
        "questions": len(records),
        "groups": summarise(records, cutoffs, resamples=config.resamples, seed=config.seed),
        "failed_sessions": system.failed,
        "ingest": system.report(),
        "config": settings,
        "config_sha256": config_hash(settings),
        "git_commit": git_commit(),
        "versions": versions(),
        "seconds": {"load": round(loaded - started, 2), "retrieve": round(retrieved - loaded, 2)},
    }


async def _retrieve(
    system: System, conversation: Conversation, categories: Sequence[int], cutoffs: Sequence[int], shown: _Shown
) -> list[QuestionRecord]:
    records = await retrieve_all(system, conversation, categories, cutoffs)
    shown.conversation()
    return records


class _Shown:
    """The progress on the screen; the bar of the sessions appears with the first one that is told."""

    def __init__(self, progress: Progress, system: str, conversations: Sequence[Conversation]) -> None:
        self._progress = progress
        self._conversations = progress.add_task(f"{system} on {LOCOMO.name}", total=len(conversations))
        # Each session is read for both speakers.
        self._total = 2 * sum(1 for conversation in conversations for session in conversation.sessions if session.turns)
        self._sessions: TaskID | None = None
        self._tokens = 0

    def conversation(self) -> None:
        self._progress.advance(self._conversations)

    def session(self, record: SessionRecord) -> None:
        if self._sessions is None:
            self._sessions = self._progress.add_task("sessions", total=self._total)
        self._tokens += record.prompt_tokens + record.completion_tokens
        self._progress.update(self._sessions, advance=1, description=f"sessions, {self._tokens:,} tokens")


def _first_cause(error: BaseException) -> BaseException:
    """What a group of concurrent tasks failed with first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _describe(path: Path, conversations: Sequence[Conversation]) -> dict[str, Any]:
    questions = [question for conversation in conversations for question in conversation.questions]
    return {
        "file": path.name,
        "sha256": file_sha256(path),
        "conversations": len(conversations),
        "sessions": sum(len(conversation.sessions) for conversation in conversations),
        "turns": sum(len(conversation.turns) for conversation in conversations),
        "questions": len(questions),
        "evidence_strings_repaired": sum(len(question.repaired) for question in questions),
        "evidence_strings_unusable": sum(len(question.unusable) for question in questions),
        "questions_with_empty_evidence": sum(
            not (question.evidence or question.repaired or question.unusable) for question in questions
        ),
    }

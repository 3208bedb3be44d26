"""``python -m eval.locomo system=naive_rag``: evidence recall of a memory system on LoCoMo, offline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from deltamem.cli import run_hydra, validated
from deltamem.embedding import load_embedder
from deltamem.files import atomic_writer
from deltamem.provenance import config_hash, file_sha256, git_commit, versions
from eval.data import LOCOMO, require
from eval.locomo.loader import Conversation, load_locomo
from eval.locomo.retrieval import QuestionRecord, retrieve_all, summarise
from eval.locomo.systems import TurnText, check_system, make_system

if TYPE_CHECKING:
    from omegaconf import DictConfig


class EmbedderConfig(BaseModel):
    """The embedder of the system under test."""

    model_config = ConfigDict(extra="forbid")

    name: str
    device: str
    batch_size: Annotated[int, Field(ge=1)]


class LocomoConfig(BaseModel):
    """The keys of ``configs/locomo.yaml``."""

    model_config = ConfigDict(extra="forbid")

    system: str
    data: Path | None
    out: Path
    k: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    categories: Annotated[list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1)]
    embedder: EmbedderConfig
    with_time: bool
    with_captions: bool
    resamples: Annotated[int, Field(ge=1)]
    seed: int


def evaluate(config: LocomoConfig, console: Console) -> dict[str, Any]:
    """Run the evaluation and write ``questions.jsonl`` and ``summary.json`` into the output folder.

    Args:
        config: The validated configuration.
        console: Where progress is shown.

    Returns:
        The summary.

    Raises:
        DeltaMemError: If the system is unknown, or the data or the embedder is missing.
        OSError: If the output folder cannot be written.
    """
    check_system(config.system)
    started = time.perf_counter()
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.data or require(LOCOMO)
    conversations = load_locomo(path)
    cutoffs = sorted(set(config.k))
    embedder = load_embedder(**config.embedder.model_dump())
    system = make_system(config.system, embedder, TurnText(config.with_time, config.with_captions))
    loaded = time.perf_counter()
    records: list[QuestionRecord] = []
    with Progress(console=console, transient=True) as progress:
        for conversation in progress.track(conversations, description=f"{config.system} on {LOCOMO.name}"):
            records += retrieve_all(system, conversation, config.categories, cutoffs)
    retrieved = time.perf_counter()
    settings = config.model_dump(mode="json", exclude={"data", "out"})
    summary = {
        "benchmark": LOCOMO.name,
        "system": config.system,
        "questions": len(records),
        "groups": summarise(records, cutoffs, resamples=config.resamples, seed=config.seed),
        "data_set": _describe(path, conversations),
        "config": settings,
        "config_sha256": config_hash(settings),
        "git_commit": git_commit(),
        "versions": versions(),
        "seconds": {"load": round(loaded - started, 2), "retrieve": round(retrieved - loaded, 2)},
    }
    with atomic_writer(config.out / "questions.jsonl") as file:
        file.writelines(f"{json.dumps(record.as_dict(), ensure_ascii=False)}\n" for record in records)
    with atomic_writer(config.out / "summary.json") as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


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


def table(summary: dict[str, Any]) -> Table:
    """Recall by category as a table for people."""
    groups: dict[str, dict[str, Any]] = summary["groups"]
    cutoffs = list(groups["all"]["recall_per_question"])
    view = Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"{summary['benchmark']}, {summary['system']}: evidence recall@k in %",
        caption=(
            "Mean over questions, below it the 95% interval (bootstrap over conversations).\n"
            "Questions: scored/asked; those without usable evidence are not scored."
        ),
    )
    view.add_column("category", no_wrap=True)
    view.add_column("questions", justify="right")
    for k in cutoffs:
        view.add_column(f"@{k}", justify="right")
    for name, group in groups.items():
        cells = [_cell(group["recall_per_question"][k]) for k in cutoffs]
        view.add_row(name, f"{group['scored']}/{group['questions']}", *cells, end_section=name == "all")
    micro = [_cell(groups["all"]["recall_micro"][k]) for k in cutoffs]
    view.add_section()
    view.add_row("all, micro", f"{groups['all']['evidence_turns']} turns", *micro)
    return view


def _cell(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{100 * interval['estimate']:.1f}\n[dim]{100 * interval['low']:.1f}-{100 * interval['high']:.1f}[/dim]"


def main(config: DictConfig) -> None:
    """Entry of the command."""
    options = validated(config, LocomoConfig)
    console = Console()
    summary = evaluate(options, console)
    console.print(table(summary))
    console.print(f"{sum(summary['seconds'].values()):.0f} s; records and summary in {options.out}")


if __name__ == "__main__":
    run_hydra(main, "locomo")

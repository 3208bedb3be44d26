"""``python -m eval.transfer``: what a memory system keeps of real conversations, without a judge.

``python -m eval.transfer table FOLDER...`` puts finished runs into one Markdown table.

Exit code 0; 1 if a session or search failed (the rest is kept, and the same command tries again); 2 for bad input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from deltamem.config import run_hydra, run_plain, validated
from deltamem.errors import DeltaMemError
from deltamem.progress import ProgressDisplay
from deltamem.runs import file_sha256, run_tasks
from eval.fingerprint import RunManifest
from eval.models import make_embedder, open_models
from eval.runner import FAILED, MEMORY_FOLDER
from eval.summary import write_summary
from eval.systems.kinds import asks_model, make_system, system_kind
from eval.transfer.data import TransferConfig, read_people
from eval.transfer.measures import Ruler, bag_of_words
from eval.transfer.report import (
    BENCHMARK,
    COUNTS_FILE,
    markdown_table,
    read_summary,
    suite_counts,
    summarise,
    summary_table,
    warnings,
    write_counts,
)
from eval.transfer.run import TransferFiles, TransferRun

if TYPE_CHECKING:
    from omegaconf import DictConfig


async def evaluate(config: TransferConfig, console: Console) -> dict[str, Any]:
    """Read, search and measure what is not done yet; the summary is in the output folder too.

    Raises:
        DeltaMemError: If something that is needed is missing or wrong, or the folder holds another run.
    """
    data = read_people(config)
    words = None if config.bag_of_words is None else bag_of_words(config.bag_of_words)
    embedder = make_embedder(config.embedder)
    run_config = {"benchmark": BENCHMARK, **config.run_config(), "data_sha256": data.hashes}
    with ExitStack() as stack:
        async with open_models(config) as models:
            system = make_system(config, config.out / MEMORY_FOLDER, embedder, models)
            manifest = RunManifest(config.out, run_config, mixed=config.mixed)
            files = TransferFiles(config.out, stack)
            sessions = {"sessions": sum(len(person.sessions) for person in data.people)}
            run = TransferRun(config, data.people, system, files, ProgressDisplay(console, sessions))
            needed = ["manager"] if asks_model(config) else []
            await manifest.resume(config, models, needed if any(map(run.unfinished, data.people)) else None)
            if models.cache is not None and not config.cache_by_served:
                models.cache.served.clear()
            manifest.write()
            run.made = manifest.made
            await run.do()
            noted: dict[str, Any] = {"fingerprint": manifest.as_dict(), "usage": models.usage()}
            if config.bag_of_words is not None:
                noted["bag_of_words_sha256"] = file_sha256(config.bag_of_words)
            ruler = Ruler(embedder, config.threshold, config.draws, config.seed, words)
            suites: Sequence[str] = config.suites
            counts = await asyncio.to_thread(lambda: {suite: suite_counts(run, suite, ruler) for suite in suites})
            summary = summarise(run, data, counts, noted)
            write_counts(config.out / COUNTS_FILE, counts)
    summary["warnings"] += manifest.warnings()
    write_summary(config.out, summary)
    return summary


def task(given: DictConfig) -> int:
    """Run the command; returns its exit code."""
    config = validated(given, TransferConfig)
    system_kind(config.system)
    config.check()
    console = Console()
    summary = run_tasks(lambda: evaluate(config, console))
    console.print(summary_table(summary))
    for sentence in warnings({config.system: summary}):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    suites = [of["sessions"] for of in summary["suites"].values()]
    lost = sum(of["failed"] + of["number"] - of["read"] + of["searches_missing"] for of in suites)
    return FAILED if lost else 0


def table(folders: Sequence[Path]) -> int:
    """Print the Markdown table of finished runs, each under the name of its folder."""
    if not folders:
        raise DeltaMemError("name folders of runs: python -m eval.transfer table FOLDER...")
    unlike = len({folder.name for folder in folders}) == len(folders)
    print(markdown_table({folder.name if unlike else str(folder): read_summary(folder) for folder in folders}))
    return 0


def main() -> NoReturn:
    """What the command line asks for; exits."""
    if sys.argv[1:2] == ["table"]:
        run_plain(lambda: table(list(map(Path, sys.argv[2:]))))
    run_hydra(task, BENCHMARK)


if __name__ == "__main__":
    main()

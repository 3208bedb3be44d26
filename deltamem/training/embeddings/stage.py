"""The stage of a training run that embeds all texts of its data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deltamem.embedding import LazyEmbedder, is_endpoint
from deltamem.training.embeddings.building import Built, build_store
from deltamem.training.settings import EmbedderSettings

_ROWS = 256
"""Rows that are in memory at a time."""


def embed_data(files: Iterable[Path], settings: EmbedderSettings, console: Console) -> Built:
    """Make sure that the store has the vectors of all memory texts of a data set.

    Args:
        files: The parquet files that `deltamem.training.dataset.export` wrote.
        settings: The model and the store.
        console: Shows the progress.

    Raises:
        DeltaMemError: If the model cannot be loaded, or the store is of another model or damaged.
    """
    if not is_endpoint(settings.name):
        import torch

        torch.set_num_threads(settings.threads)
    embedder = LazyEmbedder(settings.name, device=settings.device, batch_size=settings.batch_size, max_texts=0)
    bar = Progress(
        TextColumn("embeddings"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("embeddings", total=None)
        built = build_store(
            settings.store,
            (text for file in files for text in memory_texts(file)),
            embedder,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(f"embeddings: {built.texts} texts, {built.embedded} of them new, {built.stored} in {settings.store}")
    return built


def memory_texts(file: Path) -> Iterator[str]:
    """The texts of the prior states, the target operations and the next states of a data set, with repetitions.

    Args:
        file: A parquet file, whose rows hold lines of ``sessions.jsonl`` that the export has checked.
    """
    with pq.ParquetFile(file) as rows:
        for batch in rows.iter_batches(_ROWS, columns=["extra_info.session"]):
            for info in batch.column("extra_info").to_pylist():
                record = json.loads(info["session"])
                for state in (record["prior_state"], record["next_state"]):
                    yield from (memory["text"] for memory in state.values())
                yield from (operation["text"] for operation in record["operations"])

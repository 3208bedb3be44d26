"""The table of a preflight."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.errors import DeltaMemError
from deltamem.training.preflight.configuration import check_batches, check_configuration
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.data import check_data
from deltamem.training.preflight.finding import Finding, MadeByRunError, State, fail, ok
from deltamem.training.preflight.machine import (
    check_disk,
    check_gpu_memory,
    check_gpus,
    check_host_memory,
    check_packages,
    check_ray,
)
from deltamem.training.preflight.model import check_lengths, check_model, check_template, check_tokenizer
from deltamem.training.preflight.services import check_embedder, check_reward, check_tracking
from deltamem.training.settings import TrainSettings

Check = Callable[[Context], Finding]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("packages", check_packages),
    ("configuration", check_configuration),
    ("model", check_model),
    ("tokenizer", check_tokenizer),
    ("chat template", check_template),
    ("data", check_data),
    ("lengths", check_lengths),
    ("batches", check_batches),
    ("reward", check_reward),
    ("embedder", check_embedder),
    ("trackers", check_tracking),
    ("disk", check_disk),
    ("ray", check_ray),
    ("GPUs", check_gpus),
    ("GPU memory", check_gpu_memory),
    ("host memory", check_host_memory),
)
"""All checks in the order of the table."""

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


class Row(NamedTuple):
    """One line of the table."""

    check: str
    finding: Finding


def inspect(context: Context, checks: Sequence[tuple[str, Check]] = CHECKS) -> list[Row]:
    """Run all checks; one that breaks is a failed one."""
    rows: list[Row] = []
    told: dict[str, str] = {}
    for name, check in checks:
        try:
            # Libraries show progress bars and warnings of their own; what matters of them is in the finding.
            with contextlib.redirect_stderr(io.StringIO()):
                finding = check(context)
        except MadeByRunError as later:
            finding = ok(str(later))
        except DeltaMemError as error:
            # What several checks need is explained once.
            first = told.setdefault(str(error), name)
            finding = fail(str(error) if first == name else f"needs what {first!r} did not find")
        except Exception as error:
            finding = fail(f"the check itself broke: {type(error).__name__}: {' '.join(str(error).split())}")
        rows.append(Row(name, finding))
    return rows


def preflight(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check a run and print the table.

    Args:
        config: The whole configuration, resolved.
        settings: Its ``deltamem`` part.
        console: Shows the table.

    Returns:
        0, or 2 if the run would not start or not end well.
    """
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        rows = inspect(Context(config, settings, Path(folder)))
    table = Table("check", "", "found")
    for row in rows:
        table.add_row(row.check, Text(row.finding.state, style=_STYLES[row.finding.state]), Text(row.finding.found))
    console.print(table)
    counts = {state: sum(row.finding.state is state for row in rows) for state in State}
    if counts[State.FAIL]:
        console.print(f"preflight: {counts[State.FAIL]} of {len(rows)} checks failed; the run would not work")
        return 2
    warnings = f", {counts[State.WARN]} with a warning" if counts[State.WARN] else ""
    console.print(f"preflight: all {len(rows)} checks passed{warnings}; start with the same command without preflight=true")
    return 0

"""What can be checked before a GPU is touched: ``python train.py +experiment=X preflight=true``."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.errors import DeltaMemError
from deltamem.training import preflight_inputs as inputs
from deltamem.training import preflight_machine as hardware
from deltamem.training.config import TrainSettings
from deltamem.training.preflight_inputs import Context, Finding, MadeByRunError, State, fail, ok, warn

Check = Callable[[Context], Finding]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("packages", hardware.check_packages),
    ("configuration", inputs.check_configuration),
    ("model", inputs.check_model),
    ("tokenizer", inputs.check_tokenizer),
    ("chat template", inputs.check_template),
    ("data", inputs.check_data),
    ("lengths", inputs.check_lengths),
    ("warm start", inputs.check_warm_start),
    ("batches", inputs.check_batches),
    ("reward", inputs.check_reward),
    ("embedder", inputs.check_embedder),
    ("trackers", inputs.check_tracking),
    ("finished stages", inputs.check_finished),
    ("disk", hardware.check_disk),
    ("ray", hardware.check_ray),
    ("nodes", hardware.check_nodes),
    ("CPUs", hardware.check_cpus),
    ("GPUs", hardware.check_gpus),
    ("GPU memory", hardware.check_gpu_memory),
    ("host memory", hardware.check_host_memory),
)
"""All checks in the order of the table."""

_AFTERWARDS = ("data", "lengths", "warm start", "reward", "embedder", "trackers")
"""Checks that take minutes, or that the first stages make themselves."""
_ESTIMATES = ("GPU memory", "host memory")
"""Checks that may be wrong: they keep no run from starting."""

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


class Row(NamedTuple):
    """One line of the table."""

    check: str
    finding: Finding


def run_checks(context: Context, checks: Sequence[tuple[str, Check]] = CHECKS) -> list[Row]:
    """Run all checks; one that breaks is a failed one."""
    rows: list[Row] = []
    explained: dict[str, str] = {}
    for name, check in checks:
        try:
            # Libraries show progress bars and warnings of their own; what matters of them is in the finding.
            with contextlib.redirect_stderr(io.StringIO()):
                finding = check(context)
        except MadeByRunError as later:
            finding = ok(str(later))
        except DeltaMemError as error:
            # What several checks need is explained once.
            first = explained.setdefault(str(error), name)
            finding = fail(str(error) if first == name else f"needs what {first!r} did not find")
        except Exception as error:
            finding = fail(f"the check itself broke: {type(error).__name__}: {' '.join(str(error).split())}")
        rows.append(Row(name, finding))
    return rows


def preflight(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check a run (its resolved configuration and the ``deltamem`` part of it) and print the table.

    Returns:
        0, or 2 if the run would not start or not finish properly.
    """
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        rows = run_checks(Context(config, settings, Path(folder)))
    _show(rows, console)
    counts = Counter(row.finding.state for row in rows)
    if counts[State.FAIL]:
        console.print(f"preflight: {counts[State.FAIL]} of {len(rows)} checks failed; the run would not work")
        return 2
    warnings = f", {counts[State.WARN]} with a warning" if counts[State.WARN] else ""
    console.print(f"preflight: all {len(rows)} checks passed{warnings}; start with the same command without preflight=true")
    return 0


def check_start(config: DictConfig, settings: TrainSettings, console: Console) -> int:
    """Check what takes seconds before the first stage of a run on GPUs, and print what is not all right.

    Estimates only warn. A run on a CPU is not checked: what it lacks shows within seconds.

    Returns:
        0, or 2 if the run would not start or not finish properly.
    """
    if settings.cpu_threads is not None:
        return 0
    checks = [entry for entry in CHECKS if entry[0] not in _AFTERWARDS]
    with tempfile.TemporaryDirectory(prefix="deltamem_preflight_") as folder:
        rows = run_checks(Context(config, settings, Path(folder), before_start=True), checks)
    rows = [
        Row(name, warn(finding.found) if name in _ESTIMATES and finding.state == State.FAIL else finding)
        for name, finding in rows
        if finding.state != State.OK
    ]
    if rows:
        _show(rows, console)
    if any(row.finding.state == State.FAIL for row in rows):
        console.print("preflight: the run would not work; preflight=skip starts it all the same")
        return 2
    return 0


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table("check", "", "found")
    for row in rows:
        table.add_row(row.check, Text(row.finding.state, style=_STYLES[row.finding.state]), Text(row.finding.found))
    console.print(table)

"""``python -m eval.locomo``: LoCoMo with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from deltamem.cli import run_hydra, validated
from eval.locomo.evaluate import evaluate
from eval.locomo.settings import LocomoConfig
from eval.locomo.table import adversarial_table, cost_line, failure_line, probe_line, table

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, LocomoConfig)
    console = Console()
    summary = evaluate(options, console)
    console.print(table(summary))
    if (adversarial := adversarial_table(summary)) is not None:
        console.print(adversarial)
    lines = [probe_line(probe) for probe in summary["probes"]] + [cost_line(summary)]
    for line in [*lines, f"records and summary in {options.out}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary["failures"]["count"]:
        return 0
    Console(stderr=True).print(failure_line(summary), markup=False, highlight=False, soft_wrap=True)
    return 1


if __name__ == "__main__":
    run_hydra(main, "locomo")

"""``python -m eval.halumem``: HaluMem with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a line of the data, a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for
bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from deltamem.cli import run_hydra, validated
from eval.halumem.evaluate import evaluate
from eval.halumem.settings import HalumemConfig
from eval.halumem.table import (
    cost_line,
    extraction_table,
    failure_line,
    outcomes_table,
    point_lines,
    probe_line,
    retrieval_table,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, HalumemConfig)
    console = Console()
    summary = evaluate(options, console)
    if summary["mode"] == "judged":
        console.print(extraction_table(summary))
        console.print(outcomes_table(summary))
    if (retrieval := retrieval_table(summary)) is not None:
        console.print(retrieval)
    lines = [*point_lines(summary), *(probe_line(probe) for probe in summary["probes"]), cost_line(summary)]
    for line in [*lines, f"{summary['version']}; records and summary in {options.out}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary["failures"]["count"]:
        return 0
    Console(stderr=True).print(failure_line(summary), markup=False, highlight=False, soft_wrap=True)
    return 1


if __name__ == "__main__":
    run_hydra(main, "halumem")

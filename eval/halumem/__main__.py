"""``python -m eval.halumem``: HaluMem with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a line of the data, a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for
bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from deltamem.config import run_hydra, validated
from eval.halumem.data import HalumemConfig
from eval.halumem.run import evaluate, extraction_table, outcomes_table, point_lines, retrieval_table
from eval.runner import report_run

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, HalumemConfig)
    console = Console()
    summary = evaluate(options, console)
    judged = (extraction_table(summary), outcomes_table(summary)) if summary["mode"] == "judged" else ()
    tables = [*judged, retrieval_table(summary)]
    return report_run(options.out, summary, tables, console, lines=point_lines(summary))


if __name__ == "__main__":
    run_hydra(main, "halumem")

"""``python -m eval.locomo``: LoCoMo with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from deltamem.config import run_hydra, validated
from eval.locomo.data import LocomoConfig
from eval.locomo.run import evaluate
from eval.locomo.scores import adversarial_table, table
from eval.runner import report_run

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, LocomoConfig)
    console = Console()
    summary = evaluate(options, console)
    return report_run(options.out, summary, [table(summary), adversarial_table(summary)], console)


if __name__ == "__main__":
    run_hydra(main, "locomo")

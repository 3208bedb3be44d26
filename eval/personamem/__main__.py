"""``python -m eval.personamem system=naive_rag``: a memory system on PersonaMem v1.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from deltamem.config import run_hydra, validated
from eval.personamem.data import PersonaMemConfig
from eval.personamem.run import evaluate
from eval.personamem.scores import table
from eval.runner import report_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LOST = {
    "context_missing": "their context is not in",
    "end_out_of_range": "their end index is not within their context in",
}


def lost_lines(summary: Mapping[str, Any]) -> list[str]:
    """What of the data could not be used, in sentences."""
    data, questions = summary["data"], summary["questions"]
    lines = []
    for kind, count in data["questions_without_history"].items():
        lines.append(f"{count} of {questions['total']} questions could not be asked: {_LOST[kind]} {data['files'][1]}")
    if broken := data["unreadable_rows"]:
        lines.append(f"{broken} of {questions['total']} rows of {data['files'][0]} could not be read")
    return lines


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, PersonaMemConfig)
    console = Console()
    summary = evaluate(options, console)
    answered = f"{summary['questions']['answered']} of {summary['questions']['total']} questions answered"
    return report_run(options.out, summary, [table(summary)], console, lines=[answered], failures=lost_lines(summary))


if __name__ == "__main__":
    run_hydra(main, "personamem")

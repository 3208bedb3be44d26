"""``python -m eval.personamem system=naive_rag``: a memory system on PersonaMem v1.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from deltamem.cli import run_hydra, validated
from eval.personamem.evaluate import evaluate
from eval.personamem.settings import PersonaMemConfig
from eval.personamem.table import table
from eval.running.ending import end_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LOST = {
    "context_missing": "their context is not in",
    "end_out_of_range": "their end index is not within their context in",
}


def failure_lines(summary: Mapping[str, Any]) -> list[str]:
    """What broke, in sentences: how much of it, and the first of each kind."""
    failures, data, questions = summary["failures"], summary["data"], summary["questions"]
    if not failures["count"]:
        return []
    lines = []
    for kind, count in data["questions_without_history"].items():
        lines.append(f"{count} of {questions['total']} questions could not be asked: {_LOST[kind]} {data['files'][1]}")
    if broken := data["unreadable_rows"]:
        lines.append(f"{broken} of {questions['total']} rows of {data['files'][0]} could not be read")
    stages = ", ".join(f"{count} {stage}" for stage, count in failures["by_stage"].items())
    lines.append(f"{failures['count']} failures ({stages}); the same command tries again what can be tried; the first:")
    firsts: dict[str, str] = {}
    for reason in failures["first"]:
        firsts.setdefault(reason.partition(":")[0], reason)
    return lines + list(firsts.values())


def cost_line(summary: Mapping[str, Any]) -> str:
    """What the run came to, earlier runs included."""
    cost, questions = summary["cost"], summary["questions"]
    parts = [
        f"{part}: {cost[part]['calls']} calls ({cost[part]['cached']} cached), "
        f"{cost[part]['prompt_tokens']:,} + {cost[part]['completion_tokens']:,} tokens"
        for part in ("ingest", "answer")
    ]
    return f"{questions['answered']} of {questions['total']} questions answered; " + "; ".join(parts)


def main(config: DictConfig) -> int:
    """Entry of the command; returns its exit code."""
    options = validated(config, PersonaMemConfig)
    console = Console()
    summary = evaluate(options, console)
    return end_run(options.out, summary, [table(summary)], [cost_line(summary)], failure_lines(summary), console)


if __name__ == "__main__":
    run_hydra(main, "personamem")

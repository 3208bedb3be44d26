"""``python -m rewards``: the score of one case, for people."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.embedding import OFFLINE_MODEL, load_embedder
from deltamem.episode import EpisodeConfig
from rewards.case import Case, read_case
from rewards.complements import Entry
from rewards.format import format_score
from rewards.retrieval import retrieval_score
from rewards.total import PAPER_WEIGHTS
from rewards.transition import TransitionScore, transition_score

# Rich boxes around usage errors would make several lines of one sentence.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    case: Annotated[Path, typer.Argument(help="JSON file with the case.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    embedder: Annotated[str, typer.Option(help="Name or folder of a sentence-transformers model.")] = OFFLINE_MODEL,
    tau: Annotated[float, typer.Option(help="Least cosine similarity of a pair.")] = 0.75,
    lexical_fidelity: Annotated[bool, typer.Option(help="Score pairs by keywords, else by similarity.")] = True,
    paper_literal: Annotated[
        bool, typer.Option("--paper-literal", help="Untouched memories can be matched; agreed updates are not counted.")
    ] = False,
    stale_weight: Annotated[float, typer.Option(help="Weight of stale entries in the precision; 1 is the paper.")] = 1.0,
    match_overwritten: Annotated[
        bool, typer.Option(help="Let the old text of a wrongly overwritten memory be matched.")
    ] = True,
    max_turns: Annotated[int, typer.Option(min=1, help="Limit of assistant turns.")] = EpisodeConfig().max_turns,
) -> None:
    """Print the reward of one case and the matched pairs.

    The file is a JSON object with

    "prior_state": {id: {"text", "time"}},

    "predicted": [{"event", "text", "target_memory_id"}] (null: outputs that could not be read),

    "target": [{"event", "text", "target_memory_id", "keywords"}],

    and, if known, "assistant_turns": [raw texts], which adds the format score (and stands in for "predicted" where that is
    missing), and "retrieved_ids": [ids that the searches returned], which adds the retrieval score. With both, the total
    reward is printed too. docs/rewards.md has an example.
    """
    read = read_case(case, max_turns=max_turns)
    transition = transition_score(
        read.prior,
        read.trajectory.operations,
        read.target,
        # The model takes seconds to load, so it waits until there is something to embed.
        lambda texts: load_embedder(embedder).documents(texts),
        tau=tau,
        lexical_fidelity=lexical_fidelity,
        paper_literal=paper_literal,
        stale_weight=stale_weight,
        match_overwritten=match_overwritten,
    )
    result = _result(read, transition)
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        _print(result, transition)


def _result(case: Case, transition: TransitionScore) -> dict[str, Any]:
    format_part = format_score(case.trajectory) if case.has_turns else None
    retrieval_part = retrieval_score(case.trajectory, case.target) if case.has_retrieval else None
    total = None
    if format_part is not None and retrieval_part is not None:
        total = PAPER_WEIGHTS.combine(format=format_part, retrieval=retrieval_part, transition=transition.reward)
    return {
        "total": total,
        "format": format_part,
        "retrieval": retrieval_part,
        "violations": list(case.trajectory.violations),
        "refused_operations": list(case.refused),
        "transition": dataclasses.asdict(transition),
    }


def _print(result: dict[str, Any], transition: TransitionScore) -> None:
    console = Console(highlight=False)
    scores = Table(title="Score", title_justify="left")
    scores.add_column("part")
    scores.add_column("value", justify="right")
    for name in ("total", "format", "retrieval"):
        if result[name] is not None:
            scores.add_row(name, f"{result[name]:.4f}")
    for name in ("reward", "precision", "recall", "positive_distance", "negative_distance"):
        label = "transition" if name == "reward" else f"  {name.replace('_', ' ')}"
        scores.add_row(label, f"{result['transition'][name]:.4f}")
    console.print(scores)

    pairs = Table(title="Pairs", title_justify="left", show_lines=True)
    for heading in ("predicted", "target"):
        pairs.add_column(heading, ratio=3, overflow="fold")
    for heading in ("similarity", "score"):
        pairs.add_column(heading, justify="right")
    pairs.add_column("kind")
    for pair in transition.pairs:
        similarity, score = f"{pair.similarity:.4f}", f"{pair.score:.4f}"
        pairs.add_row(_cell(pair.predicted), _cell(pair.target), similarity, score, pair.kind.value)
    for entry in transition.unmatched_predicted:
        pairs.add_row(_cell(entry), "", "", "", "unmatched")
    for entry in transition.unmatched_target:
        pairs.add_row("", _cell(entry), "", "", "unmatched")
    console.print(pairs if pairs.row_count else "The states are equal: nothing to match.")
    for heading, kinds in (("Violations", result["violations"]), ("Refused operations", result["refused_operations"])):
        if kinds:
            console.print(f"{heading}: {', '.join(kinds)}")


def _cell(entry: Entry) -> Text:
    """Id or ``new``, how the entry came about, and its text; no markup is read from it."""
    return Text(f"[{entry.id or 'new'}, {entry.origin.value.replace('_', ' ')}] {entry.text}")

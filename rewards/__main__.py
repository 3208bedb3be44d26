"""``python -m rewards``: scores trajectories from a file, with an explanation of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import Field, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.config import StrictModel, first_error, run_plain
from deltamem.embedding import OFFLINE_MODEL, load_embedder
from deltamem.episode import Episode, EpisodeConfig, Search, Trajectory
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Keyword, Memory, MemoryState, Operation, OperationProblem, check
from deltamem.sessions import KeywordSchema, Session
from deltamem.text_files import read_text
from rewards.reward import (
    DEFAULT_OPTIONS,
    ComplementEntry,
    RewardOptions,
    TransitionScore,
    format_score,
    retrieval_score,
    transition_score,
)


class _Memory(StrictModel):
    text: str
    time: datetime


class _Predicted(StrictModel):
    event: Event
    text: str
    target_memory_id: str | None = None


class _Target(_Predicted):
    keywords: list[Annotated[Keyword, KeywordSchema()]] = Field(default=[])
    outdated: list[str] = Field(default=[])


class _CaseFile(StrictModel):
    prior_state: dict[str, _Memory]
    predicted: list[_Predicted] | None = None
    target: list[_Target]
    assistant_turns: list[str] | None = Field(default=None, min_length=1)
    retrieved_ids: list[str] | None = None


class RewardCase(NamedTuple):
    """A case, ready to be scored."""

    prior: MemoryState
    target: tuple[Operation, ...]
    trajectory: Trajectory  # What the manager did; its operations are None if they could not be read
    has_turns: bool  # Without the raw assistant turns there is no format score
    has_retrieval: bool  # Whether it is known what the searches returned
    refused: tuple[OperationProblem, ...]  # Why predicted operations were left out


def read_case(path: Path, *, max_turns: int) -> RewardCase:
    """Read a case file; the turns of an episode, at most `max_turns`, are read as in training.

    Raises:
        DeltaMemError: If the file is missing or something in it is wrong; the message names the key.
    """
    try:
        return _case(_CaseFile.model_validate_json(read_text(path)), max_turns)
    except OSError as error:
        raise DeltaMemError(f"{path}: the case file cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise DeltaMemError(f"{path}: {first_error(error, 'the file')}") from error
    except DeltaMemError as error:
        raise DeltaMemError(f"{path}: {error}") from error


def _case(file: _CaseFile, max_turns: int) -> RewardCase:
    prior = MemoryState(Memory(key, memory.text, memory.time) for key, memory in file.prior_state.items())
    target = tuple(
        Operation(op.event, op.text, op.target_memory_id, tuple(op.keywords), tuple(op.outdated)) for op in file.target
    )
    _check_target(prior, target)
    for index, memory_id in enumerate(file.retrieved_ids or ()):
        if memory_id not in prior:
            raise DeltaMemError(f"retrieved_ids.{index}: there is no memory {memory_id!r} in prior_state")
    ids = tuple(dict.fromkeys(file.retrieved_ids or ()))
    if file.assistant_turns is None and "predicted" not in file.model_fields_set:
        raise DeltaMemError("predicted: required where assistant_turns is not given (null: outputs that could not be read)")
    nowhere = Session(person_id="", person_name="", time=datetime.min, dialogue=())
    episode = Episode(nowhere, prior.keys(), EpisodeConfig(max_turns=max_turns))
    for index, text in enumerate(turns := file.assistant_turns or ()):
        if isinstance(episode.read(text), Search):
            episode.answer([prior[memory_id] for memory_id in ids])
        elif index + 1 < len(turns):
            raise DeltaMemError(f"assistant_turns.{index + 1}: the episode was over with the turn before it")
    trajectory = replace(episode.trajectory, retrieved_ids=(ids,))
    refused: tuple[OperationProblem, ...] = ()
    if "predicted" in file.model_fields_set:
        operations = None
        if file.predicted is not None:
            given = [Operation(op.event, op.text, op.target_memory_id) for op in file.predicted]
            operations, refused = check(prior, given)
        trajectory = replace(trajectory, operations=operations)
    return RewardCase(prior, target, trajectory, file.assistant_turns is not None, file.retrieved_ids is not None, refused)


def _check_target(prior: MemoryState, target: Sequence[Operation]) -> None:
    for index, op in enumerate(target):
        for problem in check(prior, [op]).problems:
            if problem is OperationProblem.UNKNOWN_TARGET:
                raise DeltaMemError(
                    f"target.{index}.target_memory_id: there is no memory {op.target_memory_id!r} in prior_state"
                )
            key = "text" if problem is OperationProblem.EMPTY_TEXT else "target_memory_id"
            raise DeltaMemError(f"target.{index}.{key}: required for {op.event}")
    if problems := check(prior, target).problems:
        raise DeltaMemError(f"target: the operations contradict or repeat each other ({problems[0]})")


# Rich boxes around usage errors would make several lines of one sentence.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(help="JSON file with the case.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    embedder: Annotated[str, typer.Option(help="Name or folder of a sentence-transformers model.")] = OFFLINE_MODEL,
    tau: Annotated[float, typer.Option(help="Least cosine similarity of a pair.")] = DEFAULT_OPTIONS.tau,
    lexical_fidelity: Annotated[bool, typer.Option(help="Score pairs by keywords, else by similarity.")] = True,
    paper_literal: Annotated[
        bool, typer.Option("--paper-literal", help="Equations 2 to 8 of the paper and nothing else (docs/rewards.md).")
    ] = False,
    stale_weight: Annotated[
        float, typer.Option(help="Weight of due memories that earn nothing in the precision; 1 is the paper.")
    ] = 1.0,
    match_overwritten: Annotated[
        bool, typer.Option(help="Let the old text of a wrongly overwritten memory be matched.")
    ] = True,
    match_other_targets: Annotated[
        bool, typer.Option(help="Let the new text of a due memory be matched to the target of another.")
    ] = True,
    weigh_new_keywords: Annotated[
        bool, typer.Option("--weigh-new-keywords", help="A due update earns by the keywords that its old text lacks.")
    ] = False,
    outdated_weight: Annotated[float, typer.Option(help="Cost of an outdated value in a text; 0 is the paper.")] = 0.0,
    max_turns: Annotated[int, typer.Option(min=1, help="Limit of assistant turns.")] = EpisodeConfig().max_turns,
) -> None:
    """Print the reward of one case and the matched pairs.

    The file is a JSON object with

    "prior_state": {id: {"text", "time"}},

    "predicted": [{"event", "text", "target_memory_id"}] (null: outputs that could not be read),

    "target": [{"event", "text", "target_memory_id", "keywords", "outdated"}] (a keyword: a text or a list of alternatives),

    and, if known, "assistant_turns": [raw texts], which adds the format score (and stands in for "predicted" where that is
    missing), and "retrieved_ids": [ids that the searches returned], which adds the retrieval score. With both, the total
    reward is printed too. docs/rewards.md has an example.
    """
    read = read_case(case, max_turns=max_turns)
    known = {field.name for field in fields(RewardOptions)}  # the parameters above that are options of the reward
    options = RewardOptions(**{name: value for name, value in context.params.items() if name in known})
    transition = transition_score(
        read.prior,
        read.trajectory.operations,
        read.target,
        # The model takes seconds to load, so it waits until there is something to embed.
        lambda texts: load_embedder(embedder).documents(texts),
        options,
    )
    format_part = format_score(read.trajectory) if read.has_turns else None
    retrieval_part = retrieval_score(read.trajectory, read.target, options) if read.has_retrieval else None
    total = None
    if format_part is not None and retrieval_part is not None:
        total = DEFAULT_OPTIONS.combine(format_part, retrieval_part, transition.reward)
    result = {
        "total": total,
        "format": format_part,
        "retrieval": retrieval_part,
        "violations": list(read.trajectory.violations),
        "refused_operations": list(read.refused),
        "transition": asdict(transition),
    }
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        _print(result, transition)


def _print(result: dict[str, Any], transition: TransitionScore) -> None:
    console = Console(highlight=False)
    scores = Table("part", title="Score", title_justify="left")
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
        figures = f"{pair.similarity:.4f}", f"{pair.score:.4f}"
        pairs.add_row(_cell(pair.predicted), _cell(pair.target), *figures, pair.kind.value)
    for entry in transition.unmatched_predicted:
        pairs.add_row(_cell(entry), "", "", "", "unmatched")
    for entry in transition.unmatched_target:
        pairs.add_row("", _cell(entry), "", "", "unmatched")
    console.print(pairs if pairs.row_count else "The states are equal: nothing to match.")
    for heading, kinds in (("Violations", result["violations"]), ("Refused operations", result["refused_operations"])):
        if kinds:
            console.print(f"{heading}: {', '.join(kinds)}")


def _cell(entry: ComplementEntry) -> Text:
    """Id or ``new``, how the entry came about, and its text; no markup is read from it."""
    return Text(f"[{entry.id or 'new'}, {entry.origin.value.replace('_', ' ')}] {entry.text}")


if __name__ == "__main__":
    run_plain(lambda: app(prog_name="python -m rewards"))

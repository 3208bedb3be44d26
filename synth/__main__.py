"""``python -m synth key=value...`` writes a data set; its sub-commands: estimate, inspect, merge, probe, ..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.exceptions import TyperException

from deltamem.config import USAGE_ERROR, run_hydra, run_plain, validated
from deltamem.errors import DeltaMemError

if TYPE_CHECKING:
    from omegaconf import DictConfig


app = typer.Typer(name="synth", add_completion=False, help="Work with a data set of synthetic people.")

_Out = Annotated[Path, typer.Argument(help="Folder of the data set.", show_default=False)]


@app.command()
def merge(
    out: _Out,
    partial: Annotated[
        bool, typer.Option("--partial", help="Write what is there; the data card says what is missing.")
    ] = False,
) -> None:
    """Check that all shards are whole, and write the files of the data set."""
    from synth.pipeline import merge as put_together

    manifest = put_together(out, partial=partial)
    counts: dict[str, Any] = manifest["counts"]
    for split in ("train", "heldout"):
        names = ("people", "sessions", "ADD", "UPDATE", "NONE")
        print(f"{split}: " + ", ".join(f"{counts.get(f'{split}/{name}', 0):,} {name}" for name in names))
    if missing := manifest["making"].get("partial"):
        print(f"{len(missing['missing_people']):,} people are missing")
    print(f"written to {out}")


@app.command()
def inspect(
    out: _Out,
    person: Annotated[str | None, typer.Argument(help="Whom to show; otherwise the first.", show_default=False)] = None,
    session: Annotated[int | None, typer.Option(min=1, help="Show this session alone, with its dialogue.")] = None,
) -> None:
    """Show one person in the terminal."""
    from synth.output.inspect import inspect as show

    show(out, person, session, Console(highlight=False))


@app.command()
def probe(
    out: _Out,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    embedder: Annotated[
        str, typer.Option(help="Model for searches and rewards; 'none' leaves the policies out.")
    ] = "all-MiniLM-L6-v2",
    tau: Annotated[float, typer.Option(help="Least similarity of a pair.")] = 0.75,
    stale_weight: Annotated[
        float, typer.Option(help="How many times a memory that is due an UPDATE and earns nothing counts.")
    ] = 1.0,
    no_match_overwritten: Annotated[
        bool, typer.Option("--no-match-overwritten", help="Do not pair the old text of a wrongly overwritten memory.")
    ] = False,
    no_match_other_targets: Annotated[
        bool, typer.Option("--no-match-other-targets", help="Pair the new text of a due memory with its own target only.")
    ] = False,
    weigh_new_keywords: Annotated[
        bool, typer.Option("--weigh-new-keywords", help="A due update earns by the keywords that its old text lacks.")
    ] = False,
    outdated_weight: Annotated[float, typer.Option(help="Cost of an outdated value in a text.")] = 0.0,
) -> None:
    """Measure what shallow policies earn and what the surface of the texts gives away."""
    from rewards.reward import RewardOptions
    from synth.output.probe import probe as measure

    options = RewardOptions(
        tau=tau,
        stale_weight=stale_weight,
        match_overwritten=not no_match_overwritten,
        match_other_targets=not no_match_other_targets,
        weigh_new_keywords=weigh_new_keywords,
        outdated_weight=outdated_weight,
    )
    measure(out, embedder=None if embedder == "none" else embedder, options=options, as_json=json, console=Console())


@app.command()
def contamination(
    out: _Out,
    references: Annotated[list[Path], typer.Argument(help="Files or folders that must not be in it.", show_default=False)],
    words: Annotated[int, typer.Option(min=3, help="Words in a row that count as a copied passage.")] = 8,
) -> int:
    """Look for passages of other texts, for example benchmarks, in the data set; exit code 1 if there are any."""
    from synth.contamination import contamination as compare
    from synth.contamination import render

    found = compare(out, references, words)
    print(render(found))
    return 1 if found.hits else 0


@app.command()
def personas(
    count: Annotated[int, typer.Argument(min=1, help="How many.", show_default=False)],
    seed: Annotated[int, typer.Option(help="The same seed gives the same seeds of people.")] = 1,
    out: Annotated[Path, typer.Option(help="File of JSON lines.")] = Path("personas.jsonl"),
) -> None:
    """Write seeds of people, one sentence each, on permissive terms; personas.source=file reads them."""
    from synth.personas import write_generated

    write_generated(count, seed, out)
    print(f"written to {out}")


def run_command() -> NoReturn:
    """Run the sub-command that the command line names and exit; bad input is one sentence and exit code 2."""

    def run() -> int:
        try:
            return app(prog_name="python -m synth", standalone_mode=False) or 0
        except TyperException as error:
            raise DeltaMemError(f"{error.format_message().rstrip('.')}; see python -m synth --help") from error
        except typer.Abort:
            raise KeyboardInterrupt from None

    run_plain(run)


_COMMANDS = ("merge", "inspect", "probe", "contamination", "personas")
_ESTIMATE = "estimate"


def _generate(config: DictConfig) -> int:
    from synth.config import SynthSettings

    settings = validated(config, SynthSettings)
    from synth.pipeline import generate

    return generate(settings)


def _estimate(config: DictConfig) -> None:
    from omegaconf import OmegaConf

    from synth.config import SynthSettings
    from synth.estimate import estimate, measure, show

    if OmegaConf.is_missing(config, "out"):
        config.out = "."  # nothing is written
    settings = validated(config, SynthSettings)
    show(settings, estimate(settings, measure(settings)))


def main() -> NoReturn:
    """Hand over to Hydra or to a sub-command."""
    # Loading an embedding model would draw bars of its own, between ours.
    os.environ.setdefault("TQDM_DISABLE", "1")
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == _ESTIMATE:
        del sys.argv[1]
        run_hydra(_estimate, "synth")
    if word in _COMMANDS:
        run_command()
    if word and not word.startswith("-") and "=" not in word and "~" not in word:
        known = ", ".join((_ESTIMATE, *_COMMANDS))
        print(f"error: unknown command {word!r}; there are {known}, or key=value to write a data set", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    run_hydra(_generate, "synth")


if __name__ == "__main__":
    main()

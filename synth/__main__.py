"""``python -m synth key=value...``, ``python -m synth estimate key=value...`` and the sub-commands of `synth.commands`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from deltamem.cli import USAGE_ERROR, run_hydra, validated

if TYPE_CHECKING:
    from omegaconf import DictConfig

_COMMANDS = ("merge", "inspect", "report", "contamination", "personas")
_ESTIMATE = "estimate"


def _generate(config: DictConfig) -> int:
    """Write a data set."""
    from synth.settings import SynthSettings

    settings = validated(config, SynthSettings)
    from synth.pipeline.generate import generate

    return generate(settings)


def _estimate(config: DictConfig) -> None:
    """Say what a data set would take."""
    from omegaconf import OmegaConf

    from synth.estimate import estimate, measure, show
    from synth.settings import SynthSettings

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
        from synth.commands import main as run_command

        run_command()
    if word and not word.startswith("-") and "=" not in word and "~" not in word:
        known = ", ".join((_ESTIMATE, *_COMMANDS))
        print(f"error: unknown command {word!r}; there are {known}, or key=value to write a data set", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    run_hydra(_generate, "synth")


if __name__ == "__main__":
    main()

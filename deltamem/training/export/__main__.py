"""Exports a checkpoint of a run, also of one that is under way.

python -m deltamem.training.export runs/qwen8b --step 60 --out policies/qwen8b-60
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deltamem.cli import run_plain
from deltamem.errors import DeltaMemError
from deltamem.training.export.policy import export_run


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    Raises:
        DeltaMemError: If there is nothing to export, or something is there already.
    """
    parser = argparse.ArgumentParser(prog="python -m deltamem.training.export", description="export a trained policy")
    parser.add_argument("run", type=Path, help="folder of the run (deltamem.out)")
    parser.add_argument("--step", type=int, help="step of the checkpoint; the newest complete one by default")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="precision of the weights")
    given = parser.parse_args(arguments)
    if given.out.exists():
        raise DeltaMemError(f"{given.out}: is there already; choose another --out")
    checkpoint = export_run(given.run, given.out, step=given.step, precision=given.dtype)
    print(f"{given.out}: {checkpoint.name}")
    return 0


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))

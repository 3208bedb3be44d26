"""Write the report of a run: ``python -m eval.training_report <run folder>``."""

from __future__ import annotations

import argparse
from pathlib import Path

from deltamem.config import run_plain
from eval.training_report.page import write_report


def main() -> None:
    """Read the arguments, write the page and print its path."""
    parser = argparse.ArgumentParser(prog="python -m eval.training_report", description="Write report.html of a run.")
    parser.add_argument("run", type=Path, help="the run folder, with metrics.jsonl, warm_start.jsonl and eval/")
    parser.add_argument("--out", type=Path, help="the page to write; default: report.html in the run folder")
    arguments = parser.parse_args()
    print(write_report(arguments.run, out=arguments.out))


if __name__ == "__main__":
    run_plain(main)

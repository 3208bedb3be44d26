"""Runs ``python -m rewards``."""

from deltamem.cli import run_plain
from rewards.command import app

if __name__ == "__main__":
    run_plain(lambda: app(prog_name="python -m rewards"))

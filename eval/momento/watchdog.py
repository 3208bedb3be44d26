"""Ends the private PostgreSQL of a run that was killed; a program of its own, because nothing in a killed process can.

The run holds this program's standard input open. However it ends, the input ends with it; then whatever serves the folder
that the argument names is stopped, and the folder removed. After an ordinary end nothing is left to do.
"""

import shutil
import signal
import sys
from pathlib import Path

import psutil

_PROGRAMS = ("postgres", "pg_ctl", "initdb")


def serving(folder: Path) -> list[psutil.Process]:
    """The programs of PostgreSQL that were started on a folder, which is a run's own, so that they are too."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in _PROGRAMS and str(folder) in (process.info["cmdline"] or ()):
            found.append(process)
    return found


def end(folder: Path) -> None:
    """Stop what serves a folder, also what was just about to, and remove it."""
    while processes := serving(folder):
        for process in processes:
            try:
                process.send_signal(signal.SIGQUIT)  # PostgreSQL's immediate shutdown: nothing is worth keeping
            except psutil.NoSuchProcess:
                continue
        for process in psutil.wait_procs(processes, timeout=10)[1]:
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    end(Path(sys.argv[1]))

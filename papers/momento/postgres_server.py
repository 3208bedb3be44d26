"""A private PostgreSQL with pgvector for as long as this program's standard input is open.

A program of its own, because nothing in a killed process can stop a server: however the run ends, the input ends with it,
and then whatever serves the folder that the argument names is stopped, and the folder removed. And because servers inherit
their limit of memory, which is none for the run. Prints the URL of the server, or why it cannot be started.
"""

import io
import logging
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import psutil
from filelock import FileLock

_PROGRAMS = ("postgres", "pg_ctl", "initdb")
SECONDS = 10.0
"""How long a server may take to stop before it is killed."""
MOST_MEMORY = 512 * 2**20
"""Bytes that each process of the server may have for itself; more is the error "out of memory" of one query."""


def serving(folder: Path) -> list[psutil.Process]:
    """The programs of PostgreSQL that were started on a folder, which is a run's own, so that they are too."""
    running = psutil.process_iter(["name", "cmdline"])
    return [one for one in running if one.info["name"] in _PROGRAMS and str(folder) in (one.info["cmdline"] or ())]


def end(folder: Path) -> None:
    """Stop what serves a folder, also what was just about to, and remove it."""
    deadline = time.monotonic() + SECONDS
    while processes := serving(folder):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                # PostgreSQL's immediate shutdown: nothing is worth keeping.
                process.send_signal(signal.SIGQUIT if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.05)  # not `psutil.wait_procs`: where nobody reaps them, ended processes stay as zombies
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path) -> None:
    """Start, say where, and stop when the input ends."""
    logs = io.StringIO()
    logging.basicConfig(stream=logs)  # what the programs say
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a machine without a folder for sockets of users is told so
            import pgserver
        # As root the package makes a user for the server, which two processes cannot do at once.
        with FileLock(Path(tempfile.gettempdir()) / f"momento-{os.getuid()}.lock"):
            server = pgserver.get_server(folder, cleanup_mode=None)
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")  # nothing is kept, so nothing waits for a disk
        print(server.get_uri(), flush=True)
        sys.stdin.read()
    except Exception as error:  # the package raises what subprocess and the operating system raise
        fatal = re.search("FATAL: *(.*)", logs.getvalue())
        print(fatal[1] if fatal else " ".join(str(error).split()), flush=True)
    finally:
        end(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

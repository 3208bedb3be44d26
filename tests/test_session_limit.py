"""A test session ends, whatever its workers do, and says what they were doing (`conftest.py`, `Makefile`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
[OPTIONS] = re.findall(
    r"^PYTEST = \$\(PYTHON\) -m pytest -n \$\(JOBS\) (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
)
FINE = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_fine(number):
    pass
"""
DIES = """
import os, signal, pytest

@pytest.mark.parametrize("number", range(3))
def test_dies(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
"""
WAITS = """
import pathlib, subprocess, sys, threading

def test_waits():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("child").write_text(str(child.pid))
    threading.Event().wait()
"""


def session(folder: Path, **files: str) -> tuple[int, str]:
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-q", "-n", "2", *OPTIONS.split(), "--minutes", "0.75"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_a_worker_that_dies_ends_the_session_and_is_named(tmp_path: Path) -> None:
    # The files before it are finished by the same worker: those made the others wait for ever.
    code, output = session(tmp_path, a=FINE, b=FINE, c=DIES, d=FINE, e=FINE)
    assert code == 1, output
    assert re.search(r"worker 'gw\d' crashed while running 'test_c.py::test_dies\[1\]'", output), output
    assert "Segmentation fault" in output and "The limit of" not in output


def test_a_session_that_takes_too_long_says_where_it_waits(tmp_path: Path) -> None:
    code, output = session(tmp_path, a=FINE, b=WAITS, c=FINE)
    assert code == 1, output
    assert "The limit of 0.75 minutes is over" in output
    assert re.search(r"worker 'gw\d' crashed while running 'test_b.py::test_waits'", output), output
    assert re.search(r"File .*test_b.py\", line \d+ in test_waits", output), output
    assert re.search(r"^1 failed, \d passed", output, re.MULTILINE), output
    with suppress(psutil.NoSuchProcess):  # else it is dead, and process 1 has not come round to it yet
        assert psutil.Process(int((tmp_path / "child").read_text())).status() == psutil.STATUS_ZOMBIE

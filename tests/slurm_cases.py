"""A machine on which bash runs the sbatch files, with scripted programs in the place of Slurm, Ray, vLLM and Python."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Machine:
    """Programs of ours come first in its PATH; what they write down lies in its folder."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "MODEL"))}
        self._environment = kept | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "FOLDER": str(folder)} | variables

    def install(self, name: str, text: str) -> None:
        """Put a bash program there."""
        program = self.folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/usr/bin/env bash\n{text}\n", "utf-8")
        program.chmod(0o755)

    def submit(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start ``slurm/SCRIPT.sbatch``."""
        return subprocess.Popen(
            ["bash", ROOT / "slurm" / f"{script}.sbatch", *arguments],
            cwd=ROOT,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test in the background inherits SIGINT as ignored, and bash cannot trap what it found ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, script: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a job."""
        return self.ended(self.submit(script, *arguments, **variables))

    def interrupt(
        self, process: subprocess.Popen[str], *numbers: signal.Signals, at: Path, pause: float = 0.0
    ) -> tuple[int, str, str]:
        """Signal a job some seconds after a file is there; exit code, output and errors."""
        while not at.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(pause)
        for number in numbers:
            process.send_signal(number)
        return self.ended(process)

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, error = process.communicate(timeout=120)
        return process.returncode, out, error

    def lines(self, name: str) -> list[str]:
        """The lines of a file in the folder."""
        path = self.folder / name
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def started(self) -> list[str]:
        """Command lines of the servers (``started`` has the process id before each)."""
        return [line.partition(" ")[2] for line in self.lines("started")]

    def running(self) -> list[str]:
        """The servers that have not ended."""
        return [line for line in self.lines("started") if Path(f"/proc/{line.partition(' ')[0]}").exists()]

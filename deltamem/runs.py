"""What long runs share: whole-or-nothing files, provenance, stages done once, the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO, TypeVar

import deltamem
from deltamem.errors import DeltaMemError


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file that takes its name only when it has been written whole.

    Args:
        path: The final name; an older file of that name stays until then.

    Yields:
        The open file. If the block raises, nothing remains.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


PACKAGES = (
    "torch",
    "transformers",
    "verl",
    "vllm",
    "ray",
    "tensordict",
    "sentence-transformers",
    "numpy",
    "scipy",
    "hydra-core",
)
"""Packages whose version can change a result; those that are not installed are left out."""


def git_commit(folder: Path = Path(__file__).parent) -> str | None:
    """The commit of the checkout that a folder lies in.

    Returns:
        The full hash, with ``-dirty`` appended if tracked files were changed since; None outside a checkout, before the
        first commit or without git.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, the platform, deltamem and the packages that are installed."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "deltamem": deltamem.__version__,
    }
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def config_hash(config: Mapping[str, Any]) -> str:
    """sha256 of a configuration; the order of its keys does not matter."""
    canonical = json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Shown in the progress, and the name of the marker.
        inputs: What the result depends on, as JSON values.
        run: Does the work; must itself go on where an interrupted attempt stopped, or begin anew.
        output: What must exist for the stage to count as done.
    """

    name: str
    inputs: Mapping[str, Any]
    run: Callable[[], None]
    output: Path


def run_stages(stages: Sequence[Stage], folder: Path, report: Callable[[str], None]) -> dict[str, float]:
    """Run the stages that are not done yet, in order.

    A stage is done if its marker carries the hash of its own inputs and of those of all stages before it, and its output
    exists.

    Args:
        stages: The stages.
        folder: Where the markers are kept.
        report: Shows a line to the person who waits.

    Returns:
        Seconds of each stage, as measured when it ran.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seconds = {}
    chain: list[Any] = []
    for number, stage in enumerate(stages, start=1):
        chain.append({stage.name: dict(stage.inputs)})
        marker = folder / f"{stage.name}.json"
        expected = config_hash({"inputs": chain})
        title = f"stage {number}/{len(stages)} {stage.name}"
        done = _read(marker)
        if done.get("inputs_sha256") == expected and stage.output.exists():
            report(f"{title}: done before")
        else:
            marker.unlink(missing_ok=True)
            report(title)
            begin = time.perf_counter()
            stage.run()
            done = {"inputs_sha256": expected, "seconds": round(time.perf_counter() - begin, 1)}
            with atomic_writer(marker) as file:
                json.dump(done, file)
            report(f"{title}: {done['seconds']:.0f} s")
        seconds[stage.name] = float(done["seconds"])
    return seconds


def _read(marker: Path) -> dict[str, Any]:
    if not marker.exists():
        return {}
    try:
        return dict(json.loads(marker.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DeltaMemError(f"{marker}: not a completion marker of a stage; remove it to run the stage again") from error


Result = TypeVar("Result")


def faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop, which the extras ``synth`` and ``eval`` install; None where there is none (Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_tasks(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine that has task groups.

    Raises:
        BaseException: What failed first, instead of the groups that it came in.
    """
    with asyncio.Runner(loop_factory=faster_loop()) as runner:
        try:
            return runner.run(main())
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

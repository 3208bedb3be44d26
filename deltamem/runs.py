"""What long runs share: whole-or-nothing files, append-only JSON lines, provenance, stages done once, the event loop."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Self, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.text_files import decoded


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """An empty file beside a path that takes the path's name when the block ends well.

    One writer of a path at a time, whoever comes second waits. What a killed writer left is written over by the next one.
    An older file of the final name stays until then. If the block raises, nothing remains.
    """
    partial = path.with_name(f".{path.name}.partial")
    with _locked_file(partial):
        try:
            yield partial
            with partial.open("r+b") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    """Make a file, or empty it, and hold its lock, which the kernel releases if this process is killed."""
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                there = path.stat()
            except FileNotFoundError:
                continue
            # Else the writer before has renamed or removed the file that was waited for.
            if os.path.samestat(there, os.fstat(file.fileno())):
                file.truncate(0)
                yield
                return


def remove_partial(folder: Path) -> None:
    """Remove what killed writers (`partial_file`) have left in a folder; for the only process that writes there."""
    for path in folder.glob(".*.partial"):
        if path.is_file():
            path.unlink()


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file that takes its name only when it has been written whole, see `partial_file`."""
    with partial_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield file


Value = TypeVar("Value")
Record = TypeVar("Record", bound=BaseModel)


class JsonLines(ABC, Generic[Value]):
    """Values by key in a file of JSON lines that is only appended to; of several values of one key the last one counts.

    A line is written in one piece, its newline last, so a process that is killed loses at most the value that it was
    writing: what it left of the line is cut off at the next opening. Values stay on disk; keys and positions are held in
    memory. One process at a time may have the file open.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it and its folder.

        Raises:
            DeltaMemError: If another process has it open, or a line is not one of such a file (names file and line).
            OSError: If it cannot be read or written.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # A lock of the file itself, because filelock's would leave a file of its own beside every file of a run.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise DeltaMemError(f"{path}: in use by another process; wait until it ends or stop it") from None
        self._open = True
        self._spans: dict[str, tuple[int, int]] = {}  # where the last line of a key begins, and its length
        self._end = 0
        try:
            for number, line in enumerate(_whole_lines(path, self._starts), start=1):
                self._spans[self._key(line, number)] = self._end, len(line)
                self._end += len(line)
            os.ftruncate(self._file, self._end)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _key(self, line: bytes, number: int) -> str: ...

    @abstractmethod
    def _value(self, line: bytes) -> Value: ...

    def _starts(self, line: bytes) -> bool:
        """Whether an incomplete line may be the beginning of one of ours."""
        return True

    def get(self, key: str) -> Value | None:
        """The last value of a key, or None."""
        span = self._spans.get(key)
        return None if span is None else self._value(os.pread(self._file, span[1], span[0]))

    def _append(self, key: str, line: bytes) -> None:
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._spans[key] = self._end, len(line)
        self._end += len(line)

    def __iter__(self) -> Iterator[Value]:
        """The last value of each key, in the order in which the keys were first written."""
        return (self._value(os.pread(self._file, length, start)) for start, length in list(self._spans.values()))

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __len__(self) -> int:
        return len(self._spans)

    def keys(self) -> tuple[str, ...]:
        """All keys, in the order in which they were first written."""
        return tuple(self._spans)

    def close(self) -> None:
        """Bring everything to the disk and let other processes open the file; closing twice does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _whole_lines(path: Path, starts: Callable[[bytes], bool] = lambda line: True) -> Iterator[bytes]:
    """The lines of a file but the last if it was cut off; one that cannot be the beginning of a line of ours is kept."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") or not starts(line):
                yield line


_BEGIN = b'{"key": '
_DECODER = json.JSONDecoder()


class JsonLinesStore(JsonLines[dict[str, Any]]):
    """JSON objects by key: lines of the form ``{"key": KEY, "value": {...}}``."""

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Append a value; JSON types only.

        Raises:
            OSError: If it cannot be written whole, for example because the disk is full; nothing of it then remains.
        """
        text = f'{{"key": {json.dumps(key, ensure_ascii=False)}, "value": {json.dumps(value, ensure_ascii=False)}}}\n'
        # Lone surrogates occur in answers of language models; `json.loads` reads them back in the same way.
        self._append(key, text.encode("utf-8", "surrogatepass"))

    def _starts(self, line: bytes) -> bool:
        return line.startswith(_BEGIN) or _BEGIN.startswith(line)

    def _key(self, line: bytes, number: int) -> str:
        try:
            if line.startswith(_BEGIN) and line.endswith(b"}\n"):
                key, _ = _DECODER.raw_decode(line.decode("utf-8", "surrogatepass"), len(_BEGIN))
                if isinstance(key, str):
                    return key
        except ValueError:
            pass
        raise DeltaMemError(f"{self.path}: line {number} is not a line of such a store; move the file away or repair it")

    def _value(self, line: bytes) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(line)["value"]
        return value


class RecordFile(JsonLines[Record]):
    """Records of one pydantic model, one a line; defaults are not written."""

    def __init__(self, path: Path, model: type[Record], key: Callable[[Record], str]) -> None:
        """Open the file, or make it; a line holds a `model`, which `key` names. See `JsonLines`."""
        self._model = model
        self._name = key
        super().__init__(path)

    def add(self, record: Record) -> None:
        """Append a record; when this returns the operating system has it."""
        self._append(self._name(record), record.model_dump_json(exclude_defaults=True).encode() + b"\n")

    def _key(self, line: bytes, number: int) -> str:
        return self._name(_record(line, self._model, self.path, number))

    def _value(self, line: bytes) -> Record:
        return self._model.model_validate_json(decoded(line, str(self.path)))


def read_records(path: Path, model: type[Record], key: Callable[[Record], str]) -> dict[str, Record]:
    """The last record of each key of a `RecordFile`, keys as they first occur; a run may still be writing it.

    Raises:
        DeltaMemError: If a line is not a record; names file and line.
        OSError: If the file cannot be read.
    """
    records = (_record(line, model, path, number) for number, line in enumerate(_whole_lines(path), start=1))
    return {key(record): record for record in records}


def _record(line: bytes, model: type[Record], path: Path, number: int) -> Record:
    try:
        return model.model_validate_json(decoded(line, f"{path}, line {number}"))
    except ValidationError as error:
        why = first_error(error)
        raise DeltaMemError(f"{path}, line {number}: cannot be read as a record of a run ({why})") from error


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
    """The full hash of the commit of the checkout that a folder lies in, ``-dirty`` appended if tracked files were changed.

    None outside a checkout, before the first commit or without git.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, the platform, deltamem and the packages that are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "deltamem": version("deltamem")}
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


_WEIGHTS = {".bin", ".gguf", ".pt", ".pth"}


def weights_sha256(path: Path) -> dict[str, str]:
    """sha256 of one file of weights, or of those in a model's folder, by name; of a folder with safetensors these alone."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    found = [file for file in files if file.suffix == ".safetensors"] or [file for file in files if file.suffix in _WEIGHTS]
    return {file.name: file_sha256(file) for file in found}


@dataclass(frozen=True)
class Stage:
    """One step of a run."""

    name: str  # Shown in the progress, and the name of the marker
    inputs: Mapping[str, Any]  # What the result depends on, as JSON values
    run: Callable[[], object]  # Does the work; must itself go on where an interrupted attempt stopped, or begin anew
    output: Path  # What must exist for the stage to count as done


class RunStoppedError(Exception):
    """A stage stopped as requested; the message says how far it got."""

    def __init__(self, message: str, *, done: bool = False) -> None:
        """`done` says that the stage is finished all the same: the run goes on with the next one."""
        super().__init__(message)
        self.done = done


def _hashes(stages: Sequence[Stage]) -> Iterator[str]:
    """Of each stage the hash of its own inputs and of those of all stages before it."""
    chain: list[Any] = []
    for stage in stages:
        chain.append({stage.name: dict(stage.inputs)})
        yield config_hash({"inputs": chain})


def changed_stage(stages: Sequence[Stage], folder: Path) -> str | None:
    """Name of the first stage that was not done with these inputs, from the markers in `folder`; None if all were."""
    for stage, expected in zip(stages, _hashes(stages), strict=True):
        if _read(folder / f"{stage.name}.json").get("inputs_sha256") != expected:
            return stage.name
    return None


def unfinished(stages: Sequence[Stage], folder: Path) -> list[str]:
    """Names of the stages that are yet to run, in order.

    A stage is done if its marker in the folder carries the hash of its own inputs and of those of all stages before it, and
    its output exists.
    """
    return [
        stage.name
        for stage, expected in zip(stages, _hashes(stages), strict=True)
        if _read(folder / f"{stage.name}.json").get("inputs_sha256") != expected or not stage.output.exists()
    ]


def run_stages(
    stages: Sequence[Stage], folder: Path, report: Callable[[str], None], only: Collection[str] | None = None
) -> dict[str, float]:
    """Run the stages that are not done yet (`unfinished`), in order; returns the seconds of each, as measured when it ran.

    With `only` the stages of other names are left out. `report` shows a line to the person who waits.

    Raises:
        RunStoppedError: What a stage raised; if it is done, it is marked first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seconds, todo = {}, unfinished(stages, folder)
    for number, (stage, expected) in enumerate(zip(stages, _hashes(stages), strict=True), start=1):
        marker = folder / f"{stage.name}.json"
        title = f"stage {number}/{len(stages)} {stage.name}"
        done = _read(marker)
        if stage.name not in todo:
            report(f"{title}: done before")
        elif only is not None and stage.name not in only:
            continue
        else:
            marker.unlink(missing_ok=True)
            report(title)
            begin = time.perf_counter()
            stopped: RunStoppedError | None = None
            try:
                stage.run()
            except RunStoppedError as error:
                if not error.done:
                    raise
                stopped = error
            done = {"inputs_sha256": expected, "seconds": round(time.perf_counter() - begin, 1)}
            with atomic_writer(marker) as file:
                json.dump(done, file)
            report(f"{title}: {done['seconds']:.0f} s")
            if stopped is not None:
                raise stopped
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
            cause: BaseException = group
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            raise cause from group

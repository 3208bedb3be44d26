"""Collecting the tests loads none of the libraries that take seconds, since each worker of pytest collects them all.

Imports are read from the source: to load everything in a process of its own would cost what this saves.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "sentence_transformers", "verl", "ray", "vllm", "chromadb"}
PATHS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["pythonpath"]
TESTS = sorted(
    path
    for top in ("tests", "papers", "integrations")
    for path in (ROOT / top).rglob("*.py")
    if path.name.startswith("test_") or path.name == "conftest.py"
)


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Names of modules, and of what is taken from them, that a file imports as it is loaded."""

    def walk(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
                yield from walk(node.body)

    return tuple(walk(ast.parse(file.read_text("utf-8")).body))


def files_of(name: str, beside: Path) -> Iterator[Path]:
    """The files of ours that are loaded for a module, its packages first."""
    parts = name.split(".")
    for folder in (ROOT, beside, *(ROOT / path for path in PATHS)):
        if (folder / parts[0]).is_dir() or (folder / f"{parts[0]}.py").is_file():
            for length in range(1, len(parts) + 1):
                place = folder.joinpath(*parts[:length])
                yield from (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())
            return


@cache
def loads(file: Path) -> tuple[Path, ...]:
    """The files of ours that a file loads itself."""
    return tuple(dict.fromkeys(other for name in imported(file) for other in files_of(name, file.parent)))


def heavy(file: Path) -> dict[str, str]:
    """The libraries that a file loads, each with the files it takes to get there."""
    found: dict[str, str] = {}
    ways = {file: file.relative_to(ROOT).as_posix()}
    for now in (queue := [file]):
        for name in {name.partition(".")[0] for name in imported(now)} & HEAVY:
            found.setdefault(name, ways[now])
        for other in loads(now):
            if other not in ways:
                ways[other] = f"{ways[now]} -> {other.relative_to(ROOT).as_posix()}"
                queue.append(other)
    return found


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_test_file_loads_nothing_that_takes_seconds(file: Path) -> None:
    assert heavy(file) == {}, "import it in a fixture or a function"

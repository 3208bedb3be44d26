"""One side of a comparison: a child process that does what its parent says and times it. Standard library only.

The parent writes one JSON request a line and reads one JSON answer a line.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Side(Protocol):
    """A memory system, bound to one owner."""

    def preload(self, memories: list[str]) -> None:
        """Store memories by any means, before anything is measured."""
        ...

    def search(self, query: str, k: int) -> list[str]:
        """The texts of the `k` best memories."""
        ...

    def ingest(self, number: int, turns: list[dict[str, str]]) -> None:
        """Let the model take from a session what is worth remembering, and store it."""
        ...

    def memories(self) -> list[str]:
        """All that is stored."""
        ...


class Calls:
    """Counts and times the calls of chosen methods."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}

    def watch(self, kind: str, owner: type, *names: str) -> None:
        """Count calls of methods of a class from now on, together, under one name."""
        for name in names:
            setattr(owner, name, self._counted(kind, getattr(owner, name)))

    def summary(self) -> dict[str, dict[str, float]]:
        """Calls and seconds by name, since the last summary."""
        seen, self._seen = self._seen, {}
        return {kind: {"calls": len(seconds), "seconds": sum(seconds)} for kind, seconds in seen.items()}

    def _counted(self, kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self._seen.setdefault(kind, []).append(time.perf_counter() - begin)

        return counted


def run(open_side: Callable[[], AbstractContextManager[Side]], watch: Callable[[Calls], None]) -> None:
    """Serve requests until the standard input ends, then close the side and say how long that took.

    Args:
        open_side: Opens the memory system.
        watch: Told where to count, once everything has been imported.
    """
    # Libraries may print; the answers go to the real standard output alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    calls = Calls()
    with open_side() as side:
        watch(calls)
        for line in sys.stdin:
            request = json.loads(line)
            calls.summary()
            reply = _do(side, request)
            print(json.dumps({**reply, "calls": calls.summary()}), file=answers, flush=True)
        begin = time.perf_counter()
    print(json.dumps({"close_seconds": time.perf_counter() - begin}), file=answers, flush=True)


def _do(side: Side, request: dict[str, Any]) -> dict[str, Any]:
    if "preload" in request:
        begin = time.perf_counter()
        side.preload(request["preload"])
        return {"seconds": [time.perf_counter() - begin]}
    if "search" in request:
        timed = [_timed(lambda query=query: side.search(query, request["k"])) for query in request["search"]]
        return {"seconds": [seconds for seconds, _ in timed], "found": [texts for _, texts in timed]}
    if "ingest" in request:
        timed = [_timed(lambda item=item: side.ingest(*item)) for item in request["ingest"]]
        return {"seconds": [seconds for seconds, _ in timed]}
    if "versions" in request:
        return {"versions": {name: _version(name) for name in request["versions"]}}
    return {"memories": side.memories()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # run from a source tree


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result

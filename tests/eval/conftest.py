"""What tests of all benchmarks share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from benchmark_cases import CASES, Case, Done, prepare

from eval.__main__ import main


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Each benchmark in turn."""
    prepare(monkeypatch, request.param)
    return request.param


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``python -m eval`` in this process: exit code, output, errors."""

    def run(*arguments: object) -> Done:
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return Done(int(stopped.value.code or 0), *capsys.readouterr())

    return run

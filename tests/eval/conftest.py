"""What tests of all benchmarks share."""

from __future__ import annotations

import pytest
from benchmark_cases import CASES, Case, prepare


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Each benchmark in turn."""
    prepare(monkeypatch, request.param)
    return request.param

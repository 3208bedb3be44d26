"""The server of most tests: in this process, with the model that is made of rules, and open until a key is made."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_cases import Server, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "bank") as running:
        yield running

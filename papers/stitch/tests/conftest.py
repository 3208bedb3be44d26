"""A data set of CAME-Bench that the tests share."""

from pathlib import Path

import pytest
from command_cases import bank

__all__ = ["bank"]


@pytest.fixture(scope="session")
def came_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Size S, seed 1, a trip and a debate."""
    from writer_cases import written

    return written(tmp_path_factory.mktemp("came") / "S")

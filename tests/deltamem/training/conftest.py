"""A tiny random Qwen3 model that speaks the chat format."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_cases import make_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))

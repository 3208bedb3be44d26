"""A tiny random Qwen3 model that speaks the chat format."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_cases import labelled_session, make_model, make_tokenizer
from transformers import PreTrainedTokenizerFast

from deltamem.sessions import to_json_line


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer([to_json_line(labelled_session(number)) for number in range(40)])


@pytest.fixture(scope="session")
def model_folder(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tokenizer, tmp_path_factory.mktemp("model"))

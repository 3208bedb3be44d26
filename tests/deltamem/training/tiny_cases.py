"""Synthetic sessions and a tokenizer trained on them, for the tests of the tiny model, its teacher and its warm start."""

from __future__ import annotations

from functools import cache
from typing import Any

from lazy import names
from offline_people import labelled

from deltamem.episode import EpisodeConfig
from deltamem.sessions import LabelledSession
from deltamem.training.config import TinyModelConfig

train_tokenizer = names("deltamem.training.tiny", "train_tokenizer")

COMPACT = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
"""A compact episode, as that of the tiny experiment."""
SMALL = TinyModelConfig(hidden_size=64, layers=2, head_dim=16, mlp_size=128, vocabulary=800, context=1024)


@cache
def sessions(people: int = 30, count: int = 4) -> tuple[LabelledSession, ...]:
    return tuple(labelled(people, count, seed=11))


@cache
def tokenizer_for(episode: EpisodeConfig = COMPACT) -> Any:
    return train_tokenizer(sessions(), episode, SMALL, seed=0)

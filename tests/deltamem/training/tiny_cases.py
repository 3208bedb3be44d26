"""Synthetic sessions and a tokenizer trained on them, for the tests of the tiny model, its teacher and its warm start."""

from __future__ import annotations

import random
from functools import cache

from lazy import names
from offline_people import labelled

from deltamem.episode import EpisodeConfig
from deltamem.sessions import LabelledSession
from deltamem.training.chatml import CHAT_TEMPLATE
from deltamem.training.config import TinyModelConfig
from deltamem.training.teacher import target_trajectory

Tokenizer, models = names("tokenizers", "Tokenizer models")
PreTrainedTokenizerFast = names("transformers", "PreTrainedTokenizerFast")
chat_text, train_tokenizer = names("deltamem.training.tiny", "chat_text train_tokenizer")

COMPACT = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
"""A compact episode, as that of the tiny experiment."""
SMALL = TinyModelConfig(hidden_size=64, layers=2, head_dim=16, mlp_size=128, vocabulary=800, context=1024)


@cache
def sessions(people: int = 30, count: int = 4) -> tuple[LabelledSession, ...]:
    return tuple(labelled(people, count, seed=11))


@cache
def tokenizer_for(episode: EpisodeConfig = COMPACT) -> PreTrainedTokenizerFast:
    rng = random.Random(0)
    template = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)
    corpus: dict[str, list[str]] = {}
    for one in sessions():
        text = chat_text(target_trajectory(one, episode, rng, drop=0.0), template)
        corpus.setdefault(one.session.person_id, []).append(text)
    return train_tokenizer(list(corpus.values()), SMALL, episode.memory_fields)

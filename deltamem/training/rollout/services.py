"""What all rollouts of a worker process share: settings, scorer, vectors, and the frame of an assistant's turn."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cache, lru_cache

import hydra
from transformers import GenerationConfig

from deltamem.chat_turns import ChatTokenizer, TurnFormat, turn_format
from deltamem.episode import EpisodeConfig
from deltamem.scoring import Scorer
from deltamem.training.embeddings.actor import connect
from deltamem.training.embeddings.client import EmbeddingClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    """What all rollouts of a worker share.

    Attributes:
        episode: Prompts and limits.
        turn_tokens: Most tokens of one assistant turn.
        scorer: Scores a finished episode.
        embeddings: Gives vectors.
        seed: Of the run, from which every turn gets its own; None leaves the sampling to the server.
        shown_sessions: The first held-out sessions, of which one rollout each is kept for people to read.
    """

    episode: EpisodeConfig
    turn_tokens: int
    scorer: Scorer
    embeddings: EmbeddingClient
    seed: int | None = None
    shown_sessions: int = 0


@cache
def services(settings: str) -> Services:
    """Build what the rollouts share, once a worker process.

    Args:
        settings: JSON with `episode` (fields of `EpisodeConfig`), `turn_tokens`, `seed`, `shown_sessions`, `scorer` (a Hydra
            ``_target_``) and `embedder` (arguments of `deltamem.training.embeddings.actor.connect`).
    """
    values = json.loads(settings)
    fields = values["episode"]
    return Services(
        episode=EpisodeConfig(**{**fields, "memory_fields": tuple(fields["memory_fields"])}),
        turn_tokens=values["turn_tokens"],
        scorer=hydra.utils.instantiate(values["scorer"]),
        embeddings=connect(**values["embedder"]),
        seed=values["seed"],
        shown_sessions=values["shown_sessions"],
    )


@lru_cache(maxsize=8)
def frame_of(tokenizer: ChatTokenizer, options: str, model: str | None) -> TurnFormat:
    """The frame of a turn, found out once a process: a worker has one tokenizer.

    Args:
        tokenizer: Of the policy.
        options: JSON of what is passed to the chat template.
        model: Folder or name of the policy, whose generation configuration may list further ends of a turn.
    """
    listed = None
    if model is not None:
        try:
            listed = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:  # most models made from scratch have none
            logger.info("%s: no generation configuration", model)
    return turn_format(tokenizer, template_options=json.loads(options), eos_ids=listed)

"""The lengths of a data set's episodes in tokens, and the token limits that follow from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from omegaconf import DictConfig, open_dict

from deltamem.episode import MAX_QUERIES, EpisodeConfig, format_memories
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer
from deltamem.sessions import LabelledSession, from_json_line
from deltamem.training.config import LimitSettings, TrainSettings
from deltamem.training.teacher import write_call, write_outputs

Counts = npt.NDArray[np.int64]

_BATCH = 128


@dataclass(frozen=True)
class Lengths:
    """Tokens of the parts of an episode, one entry a row of the data set, each of shape ``(rows,)``."""

    prompt: Counts  # opening messages with the generation prompt
    call: Counts  # a search for all targets, without thinking
    found: Counts  # the tool's answer to it, with the template's markup
    outputs: Counts  # the target answer, without thinking


@dataclass(frozen=True)
class Limits:
    """Token limits of a run."""

    prompt: int  # ``data.max_prompt_length``; prompts are shorter than this
    response: int  # ``data.max_response_length``: all that follows the prompt, search results included
    turn: int  # ``deltamem.turn_tokens``, of one assistant turn

    @property
    def total(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt + self.response


def measure(files: Sequence[Path], tokenizer: Any, episode: EpisodeConfig, template_kwargs: Mapping[str, Any]) -> Lengths:
    """Count the tokens of all rows of the parquet files of `export`; `template_kwargs` go to the chat template."""
    around, thinking = _around_tool_answer(tokenizer, template_kwargs), episode.thinking
    known: dict[str, int] = {}
    columns: tuple[list[int], ...] = ([], [], [], [])
    for prompts, sessions in chain.from_iterable(map(_rows, files)):
        texts = tokenizer.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True, **template_kwargs)
        queries = [[operation.text for operation in item.operations][:MAX_QUERIES] or [""] for item in sessions]
        found = _tool_answers(tokenizer, sessions, [len(texts) for texts in queries], episode, known)
        counts = (
            _count(tokenizer, texts),
            _count(tokenizer, [write_call(texts, thinking=thinking) for texts in queries]),
            [around + tokens for tokens in found],
            _count(tokenizer, [write_outputs(item.operations, thinking=thinking) for item in sessions]),
        )
        for column, more in zip(columns, counts, strict=True):
            column += more
    return Lengths(*(np.array(column, dtype=np.int64) for column in columns))


def _rows(path: Path) -> Iterator[tuple[list[Any], list[LabelledSession]]]:
    for batch in pq.ParquetFile(path).iter_batches(_BATCH, columns=["prompt", "extra_info"]):
        rows = batch.to_pylist()
        yield [row["prompt"] for row in rows], [from_json_line(row["extra_info"]["session"]) for row in rows]


def _count(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]


def _around_tool_answer(tokenizer: Any, template_kwargs: Mapping[str, Any]) -> int:
    """Tokens that the chat template writes around a tool's answer, the next generation prompt included."""
    opening = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    before = tokenizer.apply_chat_template(opening, tokenize=False, **template_kwargs)
    after = tokenizer.apply_chat_template(
        [*opening, {"role": "tool", "content": ""}], tokenize=False, add_generation_prompt=True, **template_kwargs
    )
    short, long = _count(tokenizer, [before, after])
    return max(long - short, 0) + 1


def _tool_answers(
    tokenizer: Any,
    sessions: Sequence[LabelledSession],
    queries: Sequence[int],
    episode: EpisodeConfig,
    known: dict[str, int],
) -> list[int]:
    """Tokens of the longest tool answer of each session; `known` remembers those of single memories."""
    records = [
        [format_memories([memory], episode.memory_fields) for memory in item.prior_state.memories] for item in sessions
    ]
    fresh = list(dict.fromkeys(record for row in records for record in row if record not in known))
    if fresh:
        known.update(zip(fresh, _count(tokenizer, fresh), strict=True))
    # Merged hits are distinct, and never more than there are memories.
    return [
        sum(sorted((known[record] for record in row), reverse=True)[: count * episode.k])
        for row, count in zip(records, queries, strict=True)
    ]


def responses(lengths: Lengths, *, max_turns: int, thinking_tokens: int) -> Counts:
    """Tokens that follow the prompt when every turn thinks and all but the last search, of shape ``(rows,)``."""
    searches = max_turns - 1
    total: Counts = max_turns * thinking_tokens + searches * (lengths.call + lengths.found) + lengths.outputs
    return total


def fit(lengths: Lengths, settings: LimitSettings, *, max_turns: int, window: int) -> Limits:
    """The limits that the data needs.

    ``prompt`` is above the longest prompt; ``response`` and ``turn`` hold the share `response_quantile` of the rows; all are
    rounded up to `multiple`. More than the model reads in its `window` is an error that says for how many rows.
    """
    thinking_tokens = settings.thinking_tokens

    def quantile(counts: Counts) -> int:
        return int(np.quantile(counts, settings.response_quantile, method="higher"))

    def up(count: int) -> int:
        return -(-count // settings.multiple) * settings.multiple

    after = responses(lengths, max_turns=max_turns, thinking_tokens=thinking_tokens)
    limits = Limits(
        # One more: the agent loop takes a prompt of exactly the limit for one that was cut.
        prompt=up(int(lengths.prompt.max()) + 1),
        response=up(quantile(after)),
        turn=up(thinking_tokens + quantile(np.maximum(lengths.call, lengths.outputs))),
    )
    if limits.total > window:
        rows = int((lengths.prompt + after > window).sum())
        raise DeltaMemError(
            f"{rows} of {len(after)} sessions need more than the {window} tokens that the model can read (limits of "
            f"{limits.prompt} + {limits.response}); take shorter sessions, fewer deltamem.episode.max_turns or fewer "
            "deltamem.limits.thinking_tokens"
        )
    return limits


def beyond(lengths: Lengths, limits: Limits, *, max_turns: int, thinking_tokens: int) -> tuple[int, int]:
    """How many rows exceed limits: prompts, which cannot be trained on, and episodes, which may be cut short."""
    after = responses(lengths, max_turns=max_turns, thinking_tokens=thinking_tokens)
    return int((lengths.prompt >= limits.prompt).sum()), int((after > limits.response).sum())


def write_lengths(path: Path, lengths: Lengths, limits: Limits) -> None:
    """Write ``lengths.json`` whole or not at all."""
    marks = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    tokens = {
        part: {name: int(np.quantile(counts, share, method="higher")) for name, share in marks.items()}
        for part, counts in vars(lengths).items()
    }
    with atomic_writer(path) as file:
        json.dump({"rows": len(lengths.prompt), "tokens": tokens, "limits": asdict(limits)}, file, indent=2)


def read_limits(path: Path) -> Limits:
    """The limits of a ``lengths.json``."""
    try:
        return Limits(**json.loads(path.read_text(encoding="utf-8"))["limits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeltaMemError(f"{path}: not the lengths of a data set; remove the file to measure them again") from error


def rollout_limits(config: DictConfig, settings: TrainSettings) -> Limits | None:
    """The limits of rollouts; None where they follow from the data."""
    return None if settings.limits.fit else written_limits(config, settings)


def written_limits(config: DictConfig, settings: TrainSettings) -> Limits:
    """The limits as the configuration has them."""
    return Limits(config.data.max_prompt_length, config.data.max_response_length, settings.turn_tokens)


TOKEN_BUDGETS = (
    ("actor", "ppo_max_token_len_per_gpu"),
    ("rollout", "log_prob_max_token_len_per_gpu"),
    ("ref", "log_prob_max_token_len_per_gpu"),
)
"""Parts of ``actor_rollout_ref`` and their keys for the tokens that a GPU takes at once; each must hold one sequence."""


def with_limits(config: DictConfig, limits: Limits) -> DictConfig:
    """A copy of a resolved configuration with these limits everywhere; budgets of tokens a GPU only grow."""
    config = config.copy()
    model = config.actor_rollout_ref
    with open_dict(config):
        config.deltamem.turn_tokens = limits.turn
        config.data.max_prompt_length = limits.prompt
        config.data.max_response_length = limits.response
        model.rollout.prompt_length = limits.prompt
        model.rollout.response_length = limits.response
        model.rollout.max_model_len = limits.total
        for part, key in TOKEN_BUDGETS:
            model[part][key] = max(model[part][key], limits.total)
    return config

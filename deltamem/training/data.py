"""Export of ``sessions.jsonl`` to the parquet files that verl reads, and the token limits that follow from the data."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf, open_dict
from safetensors import SafetensorError, safe_open

from deltamem.episode import MAX_QUERIES, SEARCH_TOOL, EpisodeConfig, format_memories, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.memory import Operation
from deltamem.runs import atomic_writer, partial_file
from deltamem.sessions import LabelledSession, from_json_line, read_sessions
from deltamem.training.config import LimitSettings, TrainSettings
from deltamem.training.pretrained import SOURCES

AGENT_NAME = "deltamem"
"""Name under which the agent loop is registered with verl."""

DATA_SOURCE = "deltamem"
"""verl groups its validation metrics by this column."""

ROWS_PER_GROUP = 128
"""Rows that are held in memory and written together."""

_TEXT = pa.string()
SCHEMA = pa.schema(
    {
        "data_source": _TEXT,
        "agent_name": _TEXT,
        "prompt": pa.list_(pa.struct({"role": _TEXT, "content": _TEXT})),
        "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
        "extra_info": pa.struct({"index": pa.int64(), "split": _TEXT, "key": _TEXT, "session": _TEXT}),
    }
)
"""Columns of both files, as verl expects them; ``extra_info.session`` is the line of ``sessions.jsonl``."""


class Exported(NamedTuple):
    """The two files and how many sessions they hold."""

    train: Path
    heldout: Path
    train_sessions: int
    heldout_sessions: int


class RowWriter:
    """Writes labelled sessions as rows; made by `open_parquet`."""

    def __init__(self, file: pq.ParquetWriter, episode: EpisodeConfig) -> None:
        self._file = file
        self._episode = episode
        self._waiting: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, labelled: LabelledSession, line: str) -> None:
        """Append a session; `line` is its line of ``sessions.jsonl``, which the agent loop reads."""
        self._waiting.append(_row(labelled, line, self.rows, self._episode))
        self.rows += 1
        if len(self._waiting) == ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait as one row group."""
        if self._waiting:
            self._file.write_table(pa.Table.from_pylist(self._waiting, schema=SCHEMA))
            self._waiting = []


@contextmanager
def open_parquet(path: Path, episode: EpisodeConfig) -> Iterator[RowWriter]:
    """Open a parquet file that takes its name only when it is complete; an older file of that name stays until then.

    Yields the writer. If the block raises, nothing remains.
    """
    with partial_file(path) as partial, pq.ParquetWriter(partial, SCHEMA) as file:
        writer = RowWriter(file, episode)
        yield writer
        writer.flush()


def export(
    sessions: Path,
    folder: Path,
    episode: EpisodeConfig,
    *,
    train_sessions: int | None,
    heldout_sessions: int | None,
    skip_people: int,
    seed: int,
) -> Exported:
    """Write ``train.parquet`` and ``heldout.parquet``.

    The file is read twice: to check every line and to draw, then to write the drawn sessions.

    Args:
        sessions: The file that synth wrote.
        folder: Where to; made if missing.
        episode: Prompts of the opening messages.
        train_sessions: Training rows, drawn with `seed`; None takes all.
        heldout_sessions: Validation rows, drawn with `seed`; None takes all.
        skip_people: This many training persons are left out, the first of the file: the warm start has used them.
        seed: Seed of the draw.

    Raises:
        DeltaMemError: If the file is missing, a line of it cannot be read, or there are too few sessions.
    """
    lines = [(item.split, item.session.person_id) for item in read_sessions(sessions)]
    skipped = set(list(dict.fromkeys(person for split, person in lines if split == "train"))[:skip_people])
    chosen = {
        "train": _draw(
            [number for number, (split, person) in enumerate(lines) if split == "train" and person not in skipped],
            train_sessions,
            seed,
            f"{sessions}: training sessions" + (f" after the first {skip_people} persons" if skip_people else ""),
        ),
        "heldout": _draw(
            [number for number, (split, _) in enumerate(lines) if split == "heldout"],
            heldout_sessions,
            seed,
            f"{sessions}: held-out sessions",
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with sessions.open("rb") as file:
        starts = list(accumulate(map(len, file), initial=0))
        for name, numbers in chosen.items():
            with open_parquet(folder / f"{name}.parquet", episode) as writer:
                for number in numbers:
                    file.seek(starts[number])
                    line = file.readline().decode("utf-8").strip()
                    writer.add(from_json_line(line), line)
    return Exported(folder / "train.parquet", folder / "heldout.parquet", len(chosen["train"]), len(chosen["heldout"]))


def _draw(numbers: Sequence[int], count: int | None, seed: int, what: str) -> Sequence[int]:
    if not numbers or (count or 0) > len(numbers):
        raise DeltaMemError(f"{what}: there are {len(numbers)}, expected at least {count or 1}")
    return numbers if count is None else random.Random(seed).sample(numbers, count)


def _row(item: LabelledSession, line: str, index: int, episode: EpisodeConfig) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "agent_name": AGENT_NAME,
        "prompt": opening_messages(item.session, episode),
        # Required by verl and shown in its dumps; the agent loop scores by itself.
        "reward_model": {"style": "rule", "ground_truth": item.key},
        "extra_info": {"index": index, "split": item.split, "key": item.key, "session": line},
    }


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


def load_tokenizer(model: DictConfig) -> Any:
    """The tokenizer of ``actor_rollout_ref.model``, with its own chat template if one is configured.

    Raises:
        DeltaMemError: If there is none; says which command fetches it.
    """
    from transformers import AutoTokenizer

    name = model.tokenizer_path or model.path
    tokenizer = _from_hub(AutoTokenizer, name, model)
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def load_model_config(model: DictConfig) -> Any:
    """The Hugging Face configuration of ``actor_rollout_ref.model``.

    Raises:
        DeltaMemError: If there is none; says which command fetches it.
    """
    from transformers import AutoConfig

    return _from_hub(AutoConfig, model.hf_config_path or model.path, model)


def load_model(model: DictConfig, dtype: Any) -> Any:
    """The weights of ``actor_rollout_ref.model``, as `dtype` of torch.

    Raises:
        DeltaMemError: If there are none; says which command fetches them.
    """
    from transformers import AutoModelForCausalLM

    return _from_hub(AutoModelForCausalLM, model.path, model, dtype=dtype)


def _from_hub(kind: Any, name: str, model: DictConfig, **options: Any) -> Any:
    local = os.environ.get("DELTAMEM_ALLOW_HUB") != "1"
    try:
        return kind.from_pretrained(name, trust_remote_code=model.trust_remote_code, local_files_only=local, **options)
    except Exception as error:  # transformers raises what the file system and the parsers of its libraries do
        if not Path(name).exists() and Path(name).name in SOURCES:
            raise DeltaMemError(f"{name}: no such folder; make it with: make smol") from error
        if names_folder(name):
            raise DeltaMemError(f"{name}: no model that can be loaded: {_first_line(error)}") from error
        raise DeltaMemError(
            f"model {name!r} is not available offline; fetch it with: hf download {name} (or allow the hub with "
            "DELTAMEM_ALLOW_HUB=1)"
        ) from error


def names_folder(name: str) -> bool:
    """Whether a model is given as a folder, there or not; else it is a name of the hub."""
    path = Path(name)
    return path.is_dir() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.name in SOURCES


NO_TEMPLATE = "the tokenizer has no chat template; name one in actor_rollout_ref.model.custom_chat_template"


def vocabulary_problem(tokenizer: Any, config: Any) -> str | None:
    """Why a tokenizer cannot be that of a model, for people; None if it can."""
    needed = max(tokenizer.get_vocab().values()) + 1
    if needed <= config.vocab_size:
        return None
    return f"the tokenizer has {needed} tokens and the weights {config.vocab_size}; it is of another model"


def check_folder(model: DictConfig) -> None:
    """Refuse ``actor_rollout_ref.model`` if its folder is missing or broken, or its tokenizer cannot carry an episode.

    Raises:
        DeltaMemError: Says what is wrong with it.
    """
    config, tokenizer = load_model_config(model), load_tokenizer(model)
    if not tokenizer.chat_template:
        raise DeltaMemError(f"{model.path}: {NO_TEMPLATE}")
    if more := vocabulary_problem(tokenizer, config):
        raise DeltaMemError(f"{model.path}: {more}")
    if missing := missing_weights(model.path):
        raise DeltaMemError(f"{model.path}: {missing}")


_READ_BY_TRANSFORMERS = (".json", ".jinja", ".txt", ".model", ".py")
_WEIGHTS = (".safetensors", ".bin")
_BLOCK = 1 << 20
_BLOCKS = 64


def content(name: str, *, weights: bool) -> str | dict[str, str]:
    """What a model is, as JSON values: the hashes of a folder's files, with or without those of weights; else its name."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    kinds = _READ_BY_TRANSFORMERS + (_WEIGHTS if weights else ())
    return {path.name: _sampled_sha256(path) for path in sorted(folder.iterdir()) if path.suffix in kinds}


def _sampled_sha256(path: Path) -> str:
    """Hash of the size and of evenly spread blocks, at least 64 MiB: all of the weights would take too long at every start.

    Training changes whole matrices, so that some block is another one.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    every = max(1, size // (_BLOCK * _BLOCKS)) * _BLOCK
    with path.open("rb") as file:
        for start in range(0, size, every):
            file.seek(start)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def missing_weights(name: str) -> str | None:
    """What is missing of a model's safetensors files or wrong with them, for people; None if nothing is."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            return f"weights are not available offline; fetch them with: hf download {name}"
    index = folder / "model.safetensors.index.json"
    expected = {"model.safetensors"}
    if index.is_file():
        try:
            expected = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return f"{index.name} is no index of weights"
    absent = sorted(file for file in expected if not (folder / file).is_file())
    if absent:
        return f"{absent[0]} is missing in {folder}"
    return next((problem for file in sorted(expected) if (problem := _cut_weights(folder / file)) is not None), None)


def _cut_weights(path: Path) -> str | None:
    try:
        # The head says how long the rest must be.
        with safe_open(path, framework="np"):
            return None
    except (SafetensorError, OSError) as error:
        return f"{path} is no whole safetensors file ({_first_line(error)}); fetch it again"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def count_rows(path: Path) -> int:
    """Rows of an exported file.

    Raises:
        DeltaMemError: If it cannot be read.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise DeltaMemError(f"{path}: cannot be read; remove {path.parent} to make it again") from error


def measure(files: Sequence[Path], tokenizer: Any, episode: EpisodeConfig, template_kwargs: Mapping[str, Any]) -> Lengths:
    """Count the tokens of all rows of the parquet files of `export`; `template_kwargs` go to the chat template."""
    around = _around_tool_answer(tokenizer, template_kwargs)
    known: dict[str, int] = {}
    parts: list[tuple[list[int], list[int], list[int], list[int]]] = []
    for path in files:
        for prompts, sessions in _rows(path):
            texts = tokenizer.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True, **template_kwargs)
            queries = [[operation.text for operation in item.operations][:MAX_QUERIES] or [""] for item in sessions]
            parts.append(
                (
                    _count(tokenizer, texts),
                    _count(tokenizer, [write_call(texts, thinking=episode.thinking) for texts in queries]),
                    [
                        around + found
                        for found in _tool_answers(tokenizer, sessions, [len(texts) for texts in queries], episode, known)
                    ],
                    _count(tokenizer, [write_outputs(item.operations, thinking=episode.thinking) for item in sessions]),
                )
            )
    columns = [
        np.array([count for batch in column for count in batch], dtype=np.int64) for column in zip(*parts, strict=True)
    ]
    return Lengths(*columns)


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
    rounded up to `multiple`.

    Raises:
        DeltaMemError: If the model cannot read that much in its `window`; says for how many rows.
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


def summary(lengths: Lengths, limits: Limits) -> dict[str, Any]:
    """The content of ``lengths.json``."""

    def spread(counts: Counts) -> dict[str, int]:
        marks = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        return {name: int(np.quantile(counts, share, method="higher")) for name, share in marks.items()}

    parts = {name: spread(getattr(lengths, name)) for name in ("prompt", "call", "found", "outputs")}
    return {"rows": len(lengths.prompt), "tokens": parts, "limits": asdict(limits)}


def write_lengths(path: Path, lengths: Lengths, limits: Limits) -> None:
    """Write ``lengths.json`` whole or not at all."""
    with atomic_writer(path) as file:
        json.dump(summary(lengths, limits), file, indent=2)


def read_limits(path: Path) -> Limits:
    """The limits of a ``lengths.json``.

    Raises:
        DeltaMemError: If the file cannot be read.
    """
    try:
        return Limits(**json.loads(path.read_text(encoding="utf-8"))["limits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeltaMemError(f"{path}: not the lengths of a data set; remove the file to measure them again") from error


def early_sessions(settings: TrainSettings) -> list[LabelledSession]:
    """Sessions of the training persons that GRPO leaves alone; of all of them if it leaves none."""
    everything = list(read_sessions(settings.sessions, split="train"))
    people = list(dict.fromkeys(item.session.person_id for item in everything))
    early = set(people[: settings.data.skip_people] or people)
    return [item for item in everything if item.session.person_id in early]


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


def template_kwargs(config: DictConfig) -> dict[str, Any]:
    """``data.apply_chat_template_kwargs`` as a plain dictionary."""
    return dict(OmegaConf.to_container(config.data.apply_chat_template_kwargs))  # type: ignore[arg-type]


SEARCH_THOUGHT = "What is known?"
ANSWER_THOUGHT = "What changed?"


def write_call(queries: Sequence[str], *, thinking: bool = True) -> str:
    """The assistant text of a search."""
    call = {"name": SEARCH_TOOL, "arguments": {"query_list": list(queries)}}
    return f"{_think(SEARCH_THOUGHT, thinking)}<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def write_outputs(operations: Sequence[Operation], *, thinking: bool = True) -> str:
    """The assistant text of a final answer."""
    listed = []
    for operation in operations:
        entry = {"text": operation.text, "event": operation.event.value}
        if operation.target_memory_id is not None:
            entry["target_memory_id"] = operation.target_memory_id
        listed.append(entry)
    answer = json.dumps({"operations": listed}, ensure_ascii=False)
    return f"{_think(ANSWER_THOUGHT, thinking)}<outputs>{answer}</outputs>"


def _think(thought: str, thinking: bool) -> str:
    return f"<think>{thought}</think>" if thinking else ""

"""The model that a run starts from: loaded, checked, and named by its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open

from deltamem.chat_template import turn_format
from deltamem.episode import Message
from deltamem.errors import DeltaMemError
from deltamem.training.pretrained import SOURCES
from deltamem.training.teacher import TrajectoryTokenizer


def load_tokenizer(model: DictConfig) -> Any:
    """The tokenizer of ``actor_rollout_ref.model``, with its own chat template if one is configured."""
    from transformers import AutoTokenizer

    name = model.tokenizer_path or model.path
    tokenizer = _from_hub(AutoTokenizer, name, model)
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def load_model_config(model: DictConfig) -> Any:
    """The Hugging Face configuration of ``actor_rollout_ref.model``."""
    from transformers import AutoConfig

    return _from_hub(AutoConfig, model.hf_config_path or model.path, model)


def load_model(model: DictConfig, dtype: Any) -> Any:
    """The weights of ``actor_rollout_ref.model``, as `dtype` of torch."""
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
    """Refuse ``actor_rollout_ref.model`` if its folder is missing or broken, or its tokenizer cannot carry an episode."""
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
    for path in (folder / file for file in sorted(expected)):
        try:
            # The head says how long the rest must be.
            with safe_open(path, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{path} is no whole safetensors file ({_first_line(error)}); fetch it again"
    return None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def template_kwargs(config: DictConfig) -> dict[str, Any]:
    """``data.apply_chat_template_kwargs`` as a plain dictionary."""
    return dict(OmegaConf.to_container(config.data.apply_chat_template_kwargs))  # type: ignore[arg-type]


_CALL = (
    "<think>\nWhat is known?\n</think>\n\n"
    '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["where Ann lives"]}}</tool_call>'
)
_OUTPUTS = '<think>\nNothing is new.\n</think>\n\n<outputs>{"operations": []}</outputs>'
_MEMORIES = '[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ann lives in Oslo."}]'


def template_problem(tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, *, thinking: bool) -> str | None:
    """Why an episode of three turns cannot be built token by token as the agent loop does; None if it can.

    It is built from the model's own tokens and verl's continuous-token builder, and by rendering all its messages: both must
    be the same text.
    """
    tokenize = TrajectoryTokenizer(tokenizer, model_type=model_type, template_kwargs=kwargs)
    frame = tokenize.frame
    frame.check(thinking=thinking)
    off = {**kwargs, "enable_thinking": False}
    if not thinking and not frame.opening and turn_format(tokenizer, template_options=off) != frame:
        return "deltamem.episode.thinking=false needs data.apply_chat_template_kwargs.enable_thinking=false"
    call, outputs = (text if thinking else text.partition("</think>\n\n")[2] for text in (_CALL, _OUTPUTS))
    search = [Message(role="assistant", content=call), Message(role="tool", content=_MEMORIES)]
    opening = [Message(role="system", content="Manage memory."), Message(role="user", content="Ann: I moved.")]
    messages = [*opening, *search, *search, Message(role="assistant", content=outputs)]
    ids = tokenize(messages).token_ids
    whole = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if text.count(_MEMORIES) != 2:
        return "the chat template leaves out what the tool answers"
    if not thinking:
        # Every turn began after the template's own empty think block; in a rendered history it stands only in the last.
        empty = "<think>\n\n</think>\n\n"
        text, whole = text.replace(empty, ""), whole.replace(empty, "")
    if whole.startswith(text):
        return None
    place = next((place for place, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), len(whole))
    return (
        f"the chat template is not append-only: the agent loop has {text[place : place + 30]!r} where a rendered "
        f"conversation has {whole[place : place + 30]!r}"
    )

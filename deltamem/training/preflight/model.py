"""Checks of the starting model: its files, its vocabulary, and whether its chat template can carry an episode."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltamem.chat_turns import TurnFormat, turn_format
from deltamem.errors import DeltaMemError
from deltamem.training import lengths
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.finding import Finding, fail, ok, warn

_VLLM_SECONDS = 300.0
_CALL = (
    "<think>\nWhat is known?\n</think>\n\n"
    '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["where Ann lives"]}}</tool_call>'
)
_OUTPUTS = '<think>\nNothing is new.\n</think>\n\n<outputs>{"operations": []}</outputs>'
_MEMORIES = '[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ann lives in Oslo."}]'


def check_model(context: Context) -> Finding:
    """Configuration, weights and architecture."""
    name = context.need_model()
    config = context.model_config
    from transformers import AutoModelForCausalLM

    known = {kind.__name__ for kind in AutoModelForCausalLM._model_mapping.values()}
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in known:
        return fail(f"{name}: architecture {architectures} is no causal language model of transformers")
    if context.config.actor_rollout_ref.rollout.name == "vllm" and not _known_to_vllm(architectures[0]):
        return fail(f"{name}: vLLM does not know the architecture {architectures[0]}")
    if missing := missing_weights(name):
        if os.environ.get("DELTAMEM_ALLOW_HUB") == "1" and not Path(name).is_dir():
            return warn(f"{name}: weights are not here yet, the run fetches them")
        return fail(f"{name}: {missing}")
    return ok(f"{name}: {architectures[0]}, reads {config.max_position_embeddings} tokens")


def _known_to_vllm(architecture: str) -> bool:
    """Whether vLLM, if it is installed, can serve an architecture; asked in a process of its own, which may touch a GPU."""
    if importlib.util.find_spec("vllm") is None:
        return True
    ask = (
        "import sys; from vllm import ModelRegistry; sys.exit(4 * (sys.argv[1] not in ModelRegistry.get_supported_archs()))"
    )
    command = [sys.executable, "-c", ask, architecture]
    return subprocess.run(command, capture_output=True, timeout=_VLLM_SECONDS, check=False).returncode != 4


def missing_weights(name: str) -> str | None:
    """What is missing of a model's safetensors files, for people; None if nothing is."""
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
    return f"{absent[0]} is missing in {folder}" if absent else None


def check_tokenizer(context: Context) -> Finding:
    """Vocabulary and end of turn."""
    tokenizer, config = context.tokenizer, context.model_config
    if len(tokenizer) > config.vocab_size:
        return fail(f"{len(tokenizer)} tokens do not fit into the model's vocabulary of {config.vocab_size}")
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        return fail("the tokenizer lacks an end-of-sequence or a padding token")
    if not tokenizer.is_fast:
        return fail("the tokenizer is not a fast one: it cannot render long prompts in time")
    return ok(f"{len(tokenizer)} tokens, turns end with {tokenizer.eos_token}")


def check_template(context: Context) -> Finding:
    """Tools, thinking and append-only rendering."""
    tokenizer = context.tokenizer
    if not tokenizer.chat_template:
        return fail("the tokenizer has no chat template; name one in actor_rollout_ref.model.custom_chat_template")
    kwargs = lengths.template_kwargs(context.config)
    thinking = context.settings.episode.thinking
    frame = frame_of(tokenizer, kwargs)
    frame.check(thinking=thinking)
    if not thinking and not frame.opening and _has_switch(tokenizer, kwargs):
        return fail("deltamem.episode.thinking=false needs data.apply_chat_template_kwargs.enable_thinking=false")
    if problem := template_problem(tokenizer, kwargs, context.model_config.model_type, frame, thinking=thinking):
        return fail(problem)
    return ok(f"carries tool answers, append-only, {'thinking' if thinking else 'without thinking'}")


def _has_switch(tokenizer: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether ``enable_thinking=false`` makes a difference to the template."""
    off = {**kwargs, "enable_thinking": False}
    return frame_of(tokenizer, off) != frame_of(tokenizer, kwargs)


def frame_of(tokenizer: Any, kwargs: Mapping[str, Any]) -> TurnFormat:
    """How the template frames an assistant's turn.

    Raises:
        DeltaMemError: If it cannot be rendered.
    """
    try:
        return turn_format(tokenizer, template_options=kwargs)
    except DeltaMemError:
        raise
    # Templates raise what they like, jinja's errors among it.
    except Exception as error:
        raise DeltaMemError(_cannot_render(error)) from error


def _cannot_render(error: Exception) -> str:
    return f"the chat template cannot render an episode: {' '.join(str(error).split())}"


def template_problem(
    tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, frame: TurnFormat, *, thinking: bool
) -> str | None:
    """Why an episode of three turns cannot be built token by token as the agent loop does; None if it can.

    The episode is built twice: once as the agent loop does, from the model's own tokens and verl's continuous-token builder,
    and once by rendering all its messages. Both must be the same text.
    """
    call, outputs = (text if thinking else text.partition("</think>\n\n")[2] for text in (_CALL, _OUTPUTS))
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Manage memory."},
        {"role": "user", "content": "Ann: I moved."},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": _MEMORIES},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": _MEMORIES},
        {"role": "assistant", "content": outputs},
    ]
    try:
        ids = _continuous(tokenizer, kwargs, model_type, frame, messages)
        whole = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
    # Also verl's ValueError, if a tool's answer is no suffix.
    except Exception as error:
        return _cannot_render(error)
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if text.count(_MEMORIES) != 2:
        return "the chat template leaves out what the tool answers"
    if not thinking:
        # Every turn began after the template's own empty think block; in a rendered history it stands only in the last.
        empty = "<think>\n\n</think>\n\n"
        text, whole = text.replace(empty, ""), whole.replace(empty, "")
    if not whole.startswith(text):
        place = next((i for i, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), min(len(text), len(whole)))
        return (
            f"the chat template is not append-only: the agent loop has {text[place : place + 30]!r} where a rendered "
            f"conversation has {whole[place : place + 30]!r}"
        )
    return None


def _continuous(
    tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, frame: TurnFormat, messages: Sequence[dict[str, Any]]
) -> list[int]:
    """Token ids of an episode as the agent loop builds them."""
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    builder = create_continuous_token_builder(tokenizer, hf_model_type=model_type, chat_template_kwargs=dict(kwargs))
    ids: list[int] = builder.build_initial_tokens(list(messages[:2]))
    for number in range(2, len(messages)):
        if messages[number]["role"] == "assistant":
            # What the template has opened, the model does not write again.
            text = messages[number]["content"].removeprefix(frame.opening)
            end = tokenizer.eos_token_id if frame.closing is None else frame.closing
            written = [*tokenizer.encode(text, add_special_tokens=False), end]
            ids = builder.merge_assistant_tokens(ids, written).token_ids
        else:
            ids = builder.merge_context_tokens(list(messages[:number]), list(messages[: number + 1]), ids).token_ids
    return ids


def check_lengths(context: Context) -> Finding:
    """How many rows exceed the limits."""
    settings, limits, found = context.settings, context.limits, context.lengths
    if limits.turn > limits.response:
        return fail(f"deltamem.turn_tokens={limits.turn} is more than a response may have, {limits.response}")
    window = int(context.model_config.max_position_embeddings)
    if limits.total > window:
        return fail(f"limits of {limits.prompt} + {limits.response} tokens are more than the model reads, {window}")
    rows = len(found.prompt)
    prompts, episodes = lengths.beyond(
        found, limits, max_turns=settings.episode.max_turns, thinking_tokens=settings.limits.thinking_tokens
    )
    text = (
        f"prompts up to {found.prompt.max()} tokens, limits {limits.prompt} + {limits.response}, {limits.turn} a turn"
        f"{' (fitted)' if settings.limits.fit else ''}; {episodes} of {rows} sessions may need more than a response has"
    )
    if prompts > settings.max_failure_rate * rows:
        return fail(
            f"{prompts} of {rows} prompts do not fit into data.max_prompt_length={limits.prompt}, which ends the run"
        )
    if prompts:
        return warn(f"{prompts} of {rows} prompts do not fit into data.max_prompt_length={limits.prompt}; {text}")
    return ok(text)

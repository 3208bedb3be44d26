"""The model card of an exported policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deltamem.training.export.facts import RunFacts

_CURVES = {"train/reward": "training reward", "heldout/reward": "held-out reward"}


def model_card(facts: RunFacts, folder: str) -> str:
    """The whole text of ``README.md``.

    Args:
        facts: Of the run.
        folder: Name of the policy's folder, for the commands.
    """
    parts = [
        _front_matter(facts),
        f"# DeltaMem policy: {facts.experiment}, step {facts.step}",
        "A memory manager: it reads a session between a person and an assistant, may search the person's memories, and "
        "answers with ADD, UPDATE and NONE operations. Trained with GRPO by "
        "[DeltaMem](https://arxiv.org/abs/2604.01560)'s open implementation.",
        "## Use\n\n" + _use(facts, folder),
        "## Training\n\n" + _table(["", ""], _training(facts)),
        "Settings of this run:\n\n" + _table(["key", "value"], _settings(facts.settings)),
        "## Data\n\n" + _table(["file", "rows", "sha256"], _data(facts)),
        "## Results\n\n" + _results(facts),
        "## Not measured\n\nThe rewards above compare operations with the labelled ones of synthetic sessions. "
        "Answers to questions over the memories, real conversations, other languages, safety and bias were not measured "
        "by this run.",
        "## Made with\n\n" + _table(["", ""], _made(facts)),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: RunFacts) -> str:
    # JSON strings are YAML strings, whatever they contain.
    lines = [f"license: {json.dumps(facts.licence or 'unknown')}"]
    if facts.base is not None and not facts.base_is_folder:
        lines += [f"base_model: {json.dumps(facts.base)}"]
    lines += ["library_name: transformers", "pipeline_tag: text-generation", "tags: [deltamem, memory, grpo, agent]"]
    return "---\n" + "\n".join(lines) + "\n---"


def _use(facts: RunFacts, folder: str) -> str:
    length = facts.prompt_tokens + facts.response_tokens
    serve = f"vllm serve {folder} --served-model-name deltamem --max-model-len {length}"
    if not facts.episode.thinking:
        serve += " --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    return (
        "Serve it without vLLM's parsers for reasoning and tool calls: DeltaMem reads the tags itself.\n\n"
        f"```bash\n{serve}\n"
        "deltamem add SESSION.json --owner NAME --base-url http://localhost:8000/v1 --model deltamem "
        f"--checkpoint {folder}\n"
        "python -m eval.heldout endpoint.base_url=http://localhost:8000/v1 endpoint.model=deltamem sessions=FILE out=DIR "
        f"{_overrides(facts)}\n```\n\n"
        f"`episode.json` holds the prompts and limits that it was trained with; `--checkpoint {folder}` applies them. "
        f"Prompts had at most {facts.prompt_tokens} tokens, responses with the answers of searches {facts.response_tokens}."
    )


def _overrides(facts: RunFacts) -> str:
    """The episode as settings of ``eval.heldout``, which does not see the folder of a served model."""
    values: dict[str, Any] = asdict(facts.episode)
    fields = ",".join(values.pop("memory_fields"))
    given = [f"episode.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    return " ".join([*given, f"'episode.memory_fields=[{fields}]'"])


def _training(facts: RunFacts) -> Iterator[tuple[Any, ...]]:
    base = facts.base or "none: made from scratch in the run"
    yield "base model", f"a folder named {base}" if facts.base and facts.base_is_folder else base
    yield "licence of the base", facts.licence or "unknown: its files do not name one; find out before you pass this on"
    yield "trained weights", f"LoRA of rank {facts.lora_rank}, added to the base" if facts.lora_rank else "all"
    yield "steps", f"{facts.step} of {'?' if facts.steps is None else facts.steps}"
    yield "thinking", "yes" if facts.episode.thinking else "no"


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", f"`{item}`") for name, item in value.items())
        else:
            yield key, f"`{value}`"


def _data(facts: RunFacts) -> Iterator[tuple[Any, ...]]:
    for name, (sha256, rows) in facts.data.items():
        yield name, "" if rows is None else rows, sha256 or "gone before the export"


def _results(facts: RunFacts) -> str:
    rows = []
    for name, title in _CURVES.items():
        found = [(line["step"], line[name]) for line in facts.metrics if name in line]
        if found:
            count = facts.heldout_sessions if name == "heldout/reward" else ""
            (first, begin), (last, end) = found[0], found[-1]
            rows.append((title, f"{begin:.3f} (step {first})", f"{end:.3f} (step {last})", count))
    if not rows:
        return "This run has no metrics up to this step."
    note = "Of one run with one seed. Held-out sessions are of people whom the policy has not met."
    return f"{_table(['', 'first', 'last', 'sessions'], rows)}\n\n{note}"


def _made(facts: RunFacts) -> Iterator[tuple[Any, ...]]:
    yield "git commit", facts.commit or "unknown"
    yield "configuration, sha256", facts.config_sha256
    yield from ((f"prompt {name}, sha256", digest) for name, digest in facts.prompts.items())
    yield from facts.versions.items()


def _table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)

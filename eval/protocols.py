"""Published protocols of benchmarks: the values that each of them fixes, and where a run of ours still departs from it.

A key that a protocol fixes is null in the YAML, which means the value of the protocol; a value that is given wins, and is
named among the departures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamem.embedding import same_embedder

DEFAULT = "default"
"""Our own protocol, which stands beside no published numbers."""

PAPER = "paper"
"""That of DeltaMem (arXiv 2604.01560, C.3 and C.4); what it leaves open is as in the harnesses that it follows."""

_OWN_EMBEDDER = "every system has the same embedder ({embedder.name}), not the one that it was published with"
_MODEL = "gpt-4o-mini"
"""Answers and judges in what Mem0 and MemOS published."""

_OF_LOCOMO = (
    "passages of a system with a single store are searched for there, twice as many, instead of in one store a speaker",
    "a system that takes whole sessions is given those, instead of two messages at a time",
)

_ADD_ONLY = (
    "mem0 is today's package, which only adds memories; published scores are of one that updated and deleted them too"
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a protocol fixes, by configuration key with dots, and what it has that we have not."""

    values: Mapping[str, Any]
    departures: tuple[str, ...] = ()
    answered_by: str = _MODEL
    judged_by: str = _MODEL
    judges: tuple[str, ...] = ("lenient",)  # That were asked; none if answers need none


_PAPER = {
    "embedder.name": "Qwen/Qwen3-Embedding-0.6B",
    "manager.mode": "react",
    "manager.safeguards": False,
    "answer.temperature": 0.0,
    "judge.temperature": 0.0,
}


_LOCOMO = {
    "k": 20,
    "categories": [1, 2, 3, 4, 5],
    "captions": "none",
    "with_time": "hour",
    "judges": ["lenient", "strict"],
    "judge.runs": 1,
}
_PUBLISHED = _LOCOMO | {
    "categories": [1, 2, 3, 4],
    "judges": ["lenient"],
    "answer.runs": 1,
    "answer.temperature": 0.0,
    "judge.temperature": 0.0,
    "gold": "original",
}

LOCOMO = {
    DEFAULT: Protocol(_LOCOMO),
    PAPER: Protocol(_PUBLISHED | _PAPER),
    "mem0": Protocol(
        _PUBLISHED | {"k": 30},
        (_OWN_EMBEDDER, *_OF_LOCOMO, "one run of the judge, as in Mem0's code; its paper reports the mean of ten"),
    ),
    "memos": Protocol(
        _PUBLISHED | {"judge.runs": 3},
        (_OWN_EMBEDDER, *_OF_LOCOMO, "sessions are dated as the file writes it, not in ISO format"),
    ),
}

_HALUMEM = {"version": "medium", "update_k": 10, "question_k": 20, "answer.runs": 1, "judge.runs": 1}

HALUMEM = {
    DEFAULT: Protocol({"judges": ["qa", "qa_strict"]}),
    PAPER: Protocol(
        _HALUMEM | _PAPER | {"judges": ["qa"]},
        answered_by="gpt-4o",
        judged_by="gpt-4o",
        judges=("integrity", "accuracy", "update", "qa"),
    ),
}

_PERSONAMEM = {"k": 20, "answer.runs": 3, "system_messages": "keep"}

PERSONAMEM = {
    DEFAULT: Protocol(_PERSONAMEM, judges=()),
    PAPER: Protocol(
        _PERSONAMEM | _PAPER | {"with_time": False},
        ("sessions have made-up dates, as the data has none",),
        judges=(),
    ),
    "memos": Protocol(
        _PERSONAMEM | {"answer.temperature": 0.0, "with_time": False},
        (
            _OWN_EMBEDDER,
            "batches of ten messages end where a question is asked, and one store serves all questions of a context in turn",
            "sessions have made-up dates, not that of the run",
        ),
        judges=(),
    ),
}

PROTOCOLS = {"locomo": LOCOMO, "halumem": HALUMEM, "personamem": PERSONAMEM}
"""By benchmark, as commands call it."""


def filled(protocols: Mapping[str, Protocol], values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration in which each null that the chosen protocol fixes has the value of the protocol."""
    found = deepcopy(dict(values))
    protocol = protocols.get(found.get("protocol", DEFAULT))  # an unknown one is refused by its type
    for key, value in (protocol.values if protocol is not None else {}).items():
        group, name = _place(found, key)
        if isinstance(group, dict) and group.get(name) is None:
            group[name] = deepcopy(value)
    return found


def departures(protocols: Mapping[str, Protocol], config: Mapping[str, Any]) -> Iterator[str]:
    """Where a run departs from the protocol that its configuration (JSON values) names; nothing of our own."""
    name = config["protocol"]
    if name == DEFAULT:
        return
    protocol = protocols[name]
    for key, value in protocol.values.items():
        group, last = _place(config, key)
        same = same_embedder(group[last], value) if key == "embedder.name" else group[last] == value
        if not same:
            yield f"{key}={shown(group[last])}, where the protocol has {shown(value)}"
    judging = {"judge": protocol.judged_by} if protocol.judges else {}
    for part, model in {"answer": protocol.answered_by, **judging}.items():
        given = config[part]["model"]  # gpt-4o-mini is another than gpt-4o
        if given is not None and not re.fullmatch(rf"(?:.*/)?{re.escape(model)}(?:-\d[-\d]*)?", given):
            yield f"{part}.model={given}, where published scores are of {model}"
    if config["answer"]["model"] is not None and _is_ours(config["answer"]["prompt"]):
        yield "the answerer's prompt is our own words for the same instructions (answer.prompt=FILE takes another)"
    if config["judge"]["model"] is not None and (ours := _without_official(protocol, config["judge"]["prompt"])):
        yield f"the prompt of {', '.join(ours)} is our own words for the same instructions (judge.prompt=FILE: another)"
    if config["system"] == "mem0":
        yield _ADD_ONLY
    for sentence in protocol.departures:
        yield sentence.replace("{embedder.name}", config["embedder"]["name"])


def _is_ours(prompt: str | None) -> bool:
    """Whether a prompt of the answerer is one of ours, also by name, told from a file as `eval.answer.load_prompt` does."""
    return prompt is None or (Path(prompt).suffix != ".md" and Path(prompt).name == prompt)


def _without_official(protocol: Protocol, given: str | Mapping[str, str] | None) -> list[str]:
    """The judges of a protocol that are asked by our own prompts under ``judge.prompt``; see `eval.parts.given_prompts`."""
    if isinstance(given, str):  # a program holds all of them, another file that of the judge of answers
        return [] if given.endswith(".py") else list(protocol.judges[:-1])
    return [name for name in protocol.judges if name not in (given or {})]


def _place(values: Mapping[str, Any], key: str) -> tuple[Any, str]:
    *groups, last = key.split(".")
    place: Any = values
    for group in groups:
        place = place.get(group)
    return place, last


def shown(value: object) -> str:
    """A value as overrides have it."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

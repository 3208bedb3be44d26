"""Published protocols of benchmarks: the values that each of them fixes, and where a run of ours still departs from it.

A key that a protocol fixes is null in the YAML, which means the value of the protocol; a value that is given wins, and is
named among the departures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

DEFAULT = "default"
"""Our own protocol, which stands beside no published numbers."""

_OF_ALL = (
    "the prompts are our own words for the same instructions",
    "every system has the same embedder ({embedder.name}), not the one that it was published with",
)
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
    judge: str | None = _MODEL  # The published judge; None if answers need none


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
    "mem0": Protocol(
        _PUBLISHED | {"k": 30},
        (*_OF_ALL, *_OF_LOCOMO, "one run of the judge, as in Mem0's code; its paper reports the mean of ten"),
    ),
    "memos": Protocol(
        _PUBLISHED | {"judge.runs": 3},
        (*_OF_ALL, *_OF_LOCOMO, "sessions are dated as the file writes it, not in ISO format"),
    ),
}

_PERSONAMEM = {"k": 20, "answer.runs": 3, "system_messages": "keep"}

PERSONAMEM = {
    DEFAULT: Protocol(_PERSONAMEM, judge=None),
    "memos": Protocol(
        _PERSONAMEM | {"answer.temperature": 0.0, "with_time": False},
        (
            *_OF_ALL,
            "batches of ten messages end where a question is asked, and one store serves all questions of a context in turn",
            "sessions have made-up dates, not that of the run",
        ),
        judge=None,
    ),
}

PROTOCOLS = {"locomo": LOCOMO, "personamem": PERSONAMEM}
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
        if group[last] != value:
            yield f"{key}={shown(group[last])}, where the protocol has {shown(value)}"
    for part, model in (("answer", _MODEL), ("judge", protocol.judge)):
        given = config[part]["model"]
        if model is not None and given is not None and model not in given:
            yield f"{part}.model={given}, where published scores are of {model}"
    if config["system"] == "mem0":
        yield _ADD_ONLY
    for sentence in protocol.departures:
        yield sentence.replace("{embedder.name}", config["embedder"]["name"])


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

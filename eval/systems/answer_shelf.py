"""Answers of model endpoints, kept by request for libraries that put something new into every request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from deltamem.llm_cache import ResponseCache

CHAT, EMBEDDINGS = "/chat/completions", "/embeddings"
"""How the paths end that are answered from the shelf."""


class AnswerShelf:
    """Answers in the response cache of the run, for one scope."""

    def __init__(
        self,
        cache: ResponseCache | None,
        scope: str,
        *,
        passing: re.Pattern[str] | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Describe how requests are recognised.

        Args:
            cache: Where answers are kept; None keeps none.
            scope: For whom (see `deltamem.llm_cache`): the store.
            passing: What a library puts into the text of a request and draws anew in each run, for example ids or today's
                date; without groups. Requests that differ in nothing else are the same, and in the answer the old draw
                gives way to the new.
            fields: Put into the body of every chat request unless the library sends them itself, for example a seed.
        """
        self._cache = cache
        self._scope = scope
        self._passing = passing
        self._fields = dict(fields or {})

    def page(self, request: httpx.Request) -> Page | None:
        """Where the answer to a request is kept; None for requests that are not metered."""
        path = request.url.path
        if request.method != "POST" or not path.endswith((CHAT, EMBEDDINGS)):
            return None
        try:
            body = json.loads(request.content)
        except ValueError:
            return None
        if not isinstance(body, dict):
            return None
        if path.endswith(CHAT):
            body = self._fields | body
        drawn = _drawn(body, self._passing)
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        # As text, not as JSON again: what is masked may stand next to an escape and look like a part of it.
        key = {"url": str(request.url), "body": _masked(text, drawn)}
        return Page(self._cache, self._scope, key, body, drawn)


@dataclass(frozen=True, slots=True)
class Page:
    """The place of one answer.

    Attributes:
        cache: As in `AnswerShelf`.
        scope: As in `AnswerShelf`.
        key: What the answer is kept under.
        body: Of the request, as it is sent.
        drawn: Passing texts of the request, in the order in which they first occur.
    """

    cache: ResponseCache | None
    scope: str
    key: dict[str, str]
    body: dict[str, Any]
    drawn: tuple[str, ...]

    def find(self) -> bytes | None:
        """The body of the kept answer, with the passing texts of this request."""
        kept = self.cache.get(self.scope, self.key) if self.cache is not None else None
        if kept is None:
            return None
        text: str = kept["body"]
        for number, drawn in enumerate(self.drawn):
            text = text.replace(_mask(number), drawn)
        return text.encode()

    def keep(self, body: bytes) -> None:
        """Keep an answer."""
        if self.cache is not None:
            self.cache.put(self.scope, self.key, {"body": _masked(body.decode(), self.drawn)})


def _drawn(body: object, passing: re.Pattern[str] | None) -> tuple[str, ...]:
    """The passing texts in the strings of a body, each once."""
    if passing is None:
        return ()
    found: dict[str, None] = {}
    parts = [body]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            found.update(dict.fromkeys(passing.findall(part)))
        elif isinstance(part, dict):
            parts.extend(reversed(part.values()))
        elif isinstance(part, list):
            parts.extend(reversed(part))
    return tuple(found)


def _masked(text: str, drawn: Sequence[str]) -> str:
    for number, passing in enumerate(drawn):
        text = text.replace(passing, _mask(number))
    return text


def _mask(number: int) -> str:
    """Stands for a passing text; private-use characters, which no text has."""
    return f"\ue000{number}\ue001"

"""What an endpoint takes, learned once from what it refuses: options, bounds, and the way to an answer in a JSON schema."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, TypeVar

import openai

from deltamem.errors import LLMError
from deltamem.refusals import (
    BUDGETS,
    ELSEWHERE,
    OptionRefusal,
    is_refusal,
    named_bound,
    overflows,
    params,
    refused_options,
    said,
)

ObjectWay = Literal["json_schema", "plain_schema", "json_object", "tools", "text"]
"""How an endpoint is asked for a JSON object: with the schema, with the schema less its bounds, for any object, by a
function that it has to call, and by words alone."""
OBJECT_WAYS: tuple[ObjectWay, ...] = ("json_schema", "plain_schema", "json_object", "tools", "text")  # the best first

# Bounds that some services refuse in a schema, and the others keep to.
_BOUNDS = {
    *("minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties"),
    *("maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "default"),
}


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """The JSON object that a model is asked for.

    To be taken everywhere each object of the schema is closed (``additionalProperties: false``) and requires all of its
    properties, as OpenAI's strict mode demands; bounds on lengths and numbers are left out where they are refused.
    """

    name: str  # Letters, digits, ``_`` and ``-``
    schema: Mapping[str, Any]
    description: str = ""  # What the object is for, in a sentence

    def requests(self, messages: Sequence[Mapping[str, object]]) -> dict[ObjectWay, dict[str, Any]]:
        """The messages and options of a chat request for each way."""
        plain = _without_bounds(self.schema)
        function = {"name": self.name, "description": self.description, "parameters": plain}
        told = self.in_words(messages)
        return {
            "json_schema": {"messages": messages, "response_format": self._format(self.schema)},
            "plain_schema": {"messages": messages, "response_format": self._format(plain)},
            "json_object": {"messages": told, "response_format": {"type": "json_object"}},
            "tools": {
                "messages": messages,
                "tools": [{"type": "function", "function": function}],
                "tool_choice": {"type": "function", "function": {"name": self.name}},
            },
            "text": {"messages": told},
        }

    def in_words(self, messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """The messages with the schema told at the end of the last one of the user, for endpoints that take none."""
        written = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))
        words = f"Answer with one JSON object and nothing else. It has to fit this JSON schema:\n{written}"
        told = list(messages)
        for place in reversed(range(len(told))):
            content = told[place].get("content")
            if told[place].get("role") == "user" and isinstance(content, str):
                told[place] = {**told[place], "content": f"{content}\n\n{words}"}
                return told
        return [*told, {"role": "user", "content": words}]

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": schema, "strict": True}}


def _without_bounds(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return [_without_bounds(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):  # their keys are names
            plain[key] = {name: _without_bounds(part) for name, part in value.items()}
        elif key not in _BOUNDS:
            plain[key] = value if key in ("enum", "const") else _without_bounds(value)
    return plain


class Refusal(Enum):
    """What a refused request says about the way it was sent in."""

    FORM = "form"  # The endpoint says that it does not take the way
    DOUBT = "doubt"  # It may be the way, or what the request holds
    SAMPLE = "sample"  # It takes the way, and the model failed to keep to it this time


_FORM = re.compile(
    r"response[_ ]?format|json[_ -]?(schema|object|mode|output)|structured[_ -]?(output|generation)|guided|grammar|schema"
    r"|word .{0,3}json|tool[_ ]?(choice|use|call)|\btools?\b|function[_ -]?call",
    re.IGNORECASE,
)
# Groq's words, and those of gateways before it: 400 although nothing is wrong with the request.
_SAMPLE = re.compile(
    r"json_validate_failed|tool_use_failed|output_parse_failed|failed_generation|failed to generate json", re.I
)


def refusal(error: LLMError) -> Refusal | None:
    """How a failed request for an object is taken; None if another way would fail as well, or this one may do later.

    A 500 or 501 counts where it names the form: llama.cpp and Ollama have answered so to grammars and tools they cannot use.
    """
    cause = error.__cause__
    if not isinstance(cause, openai.APIStatusError) or cause.status_code not in (400, 404, 415, 422, 500, 501):
        return None
    if overflows(cause.status_code, words := said(cause)):
        return None
    if _SAMPLE.search(words):
        return Refusal.SAMPLE
    if ELSEWHERE.search(words):
        return None
    if _FORM.search(words):
        return Refusal.FORM
    return None if cause.status_code == 500 or params(cause) - {"messages"} else Refusal.DOUBT


class Retrial:
    """When what was learned is tried anew: another server may stand at the URL by now.

    One request finds out; the others go as it was learned, until that one has succeeded otherwise.
    """

    seconds: ClassVar[float] = 600.0

    def __init__(self) -> None:
        """Not now."""
        self._next = time.monotonic() + self.seconds

    def due(self) -> bool:
        """Whether the request that asks shall try."""
        if (now := time.monotonic()) < self._next:
            return False
        self._next = now + self.seconds
        return True


Way = TypeVar("Way")
Result = TypeVar("Result")
_Sends = Mapping[Way, Callable[[], Awaitable[Result]]]
_Judge = Callable[[LLMError], Refusal | None]


class Learned(Generic[Way]):
    """Which of several ways an endpoint takes; for tasks, threads and event loops at once.

    While that is unknown one request goes down the ways, the others wait for what it finds. Only success teaches.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        """Of these ways, the best first."""
        self._ways = tuple(ways)
        self._known: Way | None = None
        self._retrial = Retrial()
        self._lock = threading.Lock()
        self._turns: list[Future[bool]] = []  # Of the request that is finding out, and of those that wait for it

    @property
    def known(self) -> Way | None:
        """The best way that the endpoint takes; None until one request has succeeded."""
        return self._known

    async def ask(self, sends: _Sends[Way, Result], judge: _Judge) -> Result:
        """Send a request in the best way that the endpoint takes; `sends` sends it in each way.

        Once the way is known, a lower one is tried only where the refusal says that the form is at fault, and for this
        request alone: a schema may be too large where others are not.

        Raises:
            LLMError: If no way is taken, that of the first refusal; if the request fails otherwise, that error.
        """
        while self._known is None:
            turn: Future[bool] = Future()
            with self._lock:
                first = not self._turns
                self._turns.append(turn)
            if first:
                return await self._find_out(sends, judge)
            if await asyncio.wrap_future(turn):
                break
        return await self._go_down(sends, judge, None if self._retrial.due() else self._known)

    async def _find_out(self, sends: _Sends[Way, Result], judge: _Judge) -> Result:
        down = False
        try:
            return await self._go_down(sends, judge, None)
        except Exception as error:
            # Without an answer all others go at once, so that they do not wait for each other's time-outs; after a refusal
            # of this request, or if it is cancelled, one of them takes over.
            cause = error.__cause__
            down = (
                not isinstance(cause, openai.APIStatusError) or cause.status_code in (408, 429) or cause.status_code >= 500
            )
            raise
        finally:
            with self._lock:
                turns, self._turns = self._turns, []
            for turn in turns:
                if turn.set_running_or_notify_cancel():
                    turn.set_result(down)

    async def _go_down(self, sends: _Sends[Way, Result], judge: _Judge, known: Way | None) -> Result:
        refused: LLMError | None = None
        teaches = known is None
        for way in self._ways if known is None else self._ways[self._ways.index(known) :]:
            try:
                result = await sends[way]()
            except LLMError as error:
                kind = judge(error)
                if kind is None or (kind is Refusal.DOUBT and known is not None and refused is None):
                    raise
                teaches = teaches and kind is not Refusal.SAMPLE
                refused = refused or error
            else:
                if teaches:
                    self._known = way
                return result
        assert refused is not None, "no way was given"
        raise refused


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms an endpoint takes requests, as its refusals have it; without any, as they are."""

    refused: frozenset[OptionRefusal] = frozenset()
    most_tokens: int | None = None  # Of an answer
    least_tokens: int | None = None

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request without what is refused; the limit of an answer goes under its other name, if that is taken."""
        fitted = {}
        for name, value in body.items():
            if name in BUDGETS and self._refuses(name, value):
                name = next((other for other in BUDGETS if other not in body and not self._refuses(other, value)), name)
            if not self._refuses(name, value):
                fitted[name] = self._bounded(value) if name in BUDGETS else value
        return fitted

    def after(self, error: LLMError, body: Mapping[str, Any]) -> Terms | None:
        """The terms on which to send a request once more that was refused on these; None if others are not named."""
        sent = self.fit(body)
        if bound := named_bound(error, next((sent[name] for name in BUDGETS if name in sent), None)):
            changed: dict[str, Any] = {f"{bound.side}_tokens": bound.tokens}
            return replace(self, **changed)
        refused = self.refused | refused_options(error, sent)
        return replace(self, refused=refused) if refused != self.refused else None

    def without(self, body: Mapping[str, Any]) -> Terms:
        """The terms less those by which a request is changed."""
        budgets = [body[name] for name in BUDGETS if name in body]
        unnamed = {one for one in self.refused if one.name not in (BUDGETS if budgets else ())}
        kept = frozenset(one for one in unnamed if one.name not in body or not one.of(body[one.name]))
        bound = any(self._bounded(budget) != budget for budget in budgets)
        return Terms(kept) if bound else replace(self, refused=kept)

    def __or__(self, other: Terms) -> Terms:
        most = [terms.most_tokens for terms in (self, other) if terms.most_tokens is not None]
        least = [terms.least_tokens for terms in (self, other) if terms.least_tokens is not None]
        return Terms(self.refused | other.refused, min(most, default=None), max(least, default=None))

    def __str__(self) -> str:
        """What is done otherwise than it was asked for, to follow "requests go"."""
        parts = [f"without {refused}" for refused in sorted(map(str, self.refused))]
        parts += [f"with at most {self.most_tokens} tokens of an answer"] if self.most_tokens is not None else []
        parts += [f"with room for at least {self.least_tokens} tokens"] if self.least_tokens is not None else []
        return ", ".join(parts).replace("without max_tokens", "with max_completion_tokens for max_tokens")

    def _refuses(self, name: str, value: object) -> bool:
        return any(one.name == name and one.of(value) for one in self.refused)

    def _bounded(self, tokens: Any) -> Any:
        if not isinstance(tokens, int):
            return tokens
        bounded = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return bounded if self.least_tokens is None else max(bounded, self.least_tokens)


class LearnedTerms:
    """The terms of an endpoint, for tasks, threads and event loops at once; only success teaches."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.known = Terms()
        self._retrial = Retrial()
        self._lock = threading.Lock()

    async def ask(self, body: Mapping[str, Any], send: Callable[[dict[str, Any]], Awaitable[Result]]) -> tuple[Result, bool]:
        """Send a request on the terms that are known, and on others as long as refusals name them.

        Returns:
            The result, and whether that has taught something.

        Raises:
            LLMError: The first refusal that names no other terms, or the second one of the limit of an answer.
        """
        known = terms = self.known
        bounded = False
        if retried := known.fit(body) != body and self._retrial.due():
            terms = known.without(body)
        while True:
            try:
                result = await send(terms.fit(body))
            except LLMError as error:
                further = terms.after(error, body)
                changes_bound = further is not None and further.refused == terms.refused
                if further is not None and not (changes_bound and bounded):
                    terms, bounded = further, bounded or changes_bound
                elif retried and is_refusal(error):  # in words that say nothing, unlike those of before
                    terms, retried, bounded = known, False, False
                else:
                    raise
            else:
                with self._lock:
                    before = self.known
                    self.known = (before.without(body) if retried else before) | terms
                    return result, self.known != before


NO_THINKING: Mapping[str, object] = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none"}
"""How servers are told that a model should not think: vLLM, SGLang and llama.cpp by the first, Ollama by the second."""


@dataclass(slots=True)
class EndpointTraits:
    """What an endpoint takes for one of its models, as far as this process has found out."""

    object_way: Learned[ObjectWay] = field(default_factory=lambda: Learned(OBJECT_WAYS))
    terms: LearnedTerms = field(default_factory=LearnedTerms)
    window: int | None = None  # Context window in tokens, as told by the endpoint or whoever uses it
    thinks: bool = False  # Whether the model has thought before an object that it was asked for
    thinks_on: bool = False  # Whether it cannot be told not to


_traits: dict[tuple[str, str], EndpointTraits] = {}
_traits_lock = threading.Lock()


def endpoint_traits(base_url: str, model: str) -> EndpointTraits:
    """What is known of a model at an endpoint: the same object for all who ask in this process."""
    with _traits_lock:
        return _traits.setdefault((base_url, model), EndpointTraits())

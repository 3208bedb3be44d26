"""A language model as a writer: asks, reads, judges, sends back what breaks rules, and keeps every answer on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from deltamem.errors import ContextLengthError
from deltamem.llm import Answer
from synth.llm.parsing import FORMAT_RULES, TRUNCATED, FormatError, parse_answer, without_reasoning
from synth.llm.pool import EndpointPool
from synth.llm.prompts import opening, prompt_hashes, repair
from synth.llm.schemas import answer_schema
from synth.llm.settings import LLMSettings
from synth.rules import UNIT_RULES, judge_answer
from synth.rules.base import Similarity, Verdict
from synth.tasks import AnswerT, Task, Unit
from synth.writing import Place, Written

_LONGEST_ANSWER = 200_000
_LONGEST_CUT_OFF = 2_000
"""Characters that are kept and sent back of an answer that was cut off; mostly the model repeats itself there."""


class AnswerStore(Protocol):
    """Where answers are kept (`synth.pipeline.store.JsonLinesStore`)."""

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under a key."""
        ...

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a JSON object."""
        ...


class LLMWriter:
    """A language model behind endpoints."""

    def __init__(
        self,
        settings: LLMSettings,
        pool: EndpointPool,
        store: AnswerStore,
        *,
        seed: int,
        similarity: Similarity | None = None,
    ) -> None:
        """Take what it needs; closing pool and store is up to the caller.

        Args:
            settings: Model, sampling, repairs.
            pool: Whom to ask, by the same settings.
            store: Where answers are kept and looked up.
            seed: Of the data set; each request has its own, derived from it.
            similarity: For the rules that need one.
        """
        self._settings = settings
        self._pool = pool
        self._store = store
        self._seed = seed
        self._similarity = similarity
        self._judging = asyncio.Lock()
        self._making = {
            "writer": "llm",
            "model": settings.model,
            "sampling": settings.sampling,
            "structured": settings.structured,
            "prompts": prompt_hashes(),
            "schemas": {unit.value: _schema_hash(unit) for unit in Unit},
            "repairs": settings.repairs,
            "seed": seed,
        }
        self._asked = json.dumps([settings.model, settings.sampling, settings.structured], sort_keys=True)

    @property
    def making(self) -> Mapping[str, Any]:
        """See `synth.writing.Writer`."""
        return self._making

    async def write(self, task: Task[AnswerT], place: Place) -> Written[AnswerT]:
        """Ask until the answer keeps the rules or the repairs are used up; see `synth.writing.Writer`."""
        first = opening(task)
        messages = first
        verdicts: list[Verdict] = []
        prompt_tokens = completion_tokens = spent_tokens = 0
        for attempt in range(1 + self._settings.repairs):
            try:
                answer = await self._answer(messages, task.unit, place, attempt)
            except ContextLengthError:
                if attempt == 0:
                    raise
                break  # the task fits, but not together with an answer and what is wrong with it
            prompt_tokens += answer.prompt_tokens
            completion_tokens += answer.completion_tokens
            spent_tokens += 0 if answer.cached else answer.completion_tokens
            read, verdict = await self._judged(answer, task)
            verdicts.append(verdict)
            if not verdict.violations:
                return Written(read, tuple(verdicts), prompt_tokens, completion_tokens, spent_tokens)
            messages = [*first, *repair(answer.text, verdict.violations)]
        return Written(None, tuple(verdicts), prompt_tokens, completion_tokens, spent_tokens)

    async def _judged(self, answer: Answer, task: Task[Any]) -> tuple[Any, Verdict]:
        try:
            if answer.truncated:
                raise FormatError(
                    TRUNCATED,
                    f"the answer was cut off after {answer.completion_tokens} tokens, thinking included; be briefer",
                )
            read = parse_answer(answer.text, task.answer)
        except FormatError as error:
            return None, error.verdict
        if self._similarity is not None and any(rule.needs_similarity for rule in UNIT_RULES[task.unit]):
            # An embedding model takes its time and leaves other threads theirs.
            judged = await asyncio.to_thread(judge_answer, task, read, self._similarity)
        else:
            # One at a time, and after whatever else can go on: requests do not wait while a wave of answers is judged.
            async with self._judging:
                await asyncio.sleep(0)
                judged = judge_answer(task, read)
        return read, Verdict((*FORMAT_RULES, *judged.checked), judged.violations)

    async def _answer(self, messages: Sequence[Mapping[str, str]], unit: Unit, place: Place, attempt: int) -> Answer:
        seed = _request_seed(f"{self._seed}/{place.name}/{attempt}")
        key = self._key(messages, unit, seed, attempt)
        stored = self._store.get(key)
        if stored is not None:
            return Answer(**stored, cached=True)
        answer = await self._pool.chat(
            messages, priority=(place.person, -place.step), seed=seed, name=unit.value, schema=answer_schema(unit)
        )
        text = without_reasoning(answer.text)
        truncated = answer.truncated or len(text) > _LONGEST_ANSWER
        kept: dict[str, Any] = {
            "text": text[:_LONGEST_CUT_OFF] if truncated else text,
            "truncated": truncated,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }
        self._store.put(key, kept)
        return Answer(**kept)

    def _key(self, messages: Sequence[Mapping[str, str]], unit: Unit, seed: int, attempt: int) -> str:
        """Hash of everything that an answer depends on; the endpoint's URL is not part of it."""
        digest = hashlib.sha256(f"{self._asked}{_schema_hash(unit)}{seed}/{attempt}".encode())
        for message in messages:
            text = message["content"].encode()
            digest.update(f"\n{message['role']} {len(text)}\n".encode())
            digest.update(text)
        return digest.hexdigest()


@cache
def _schema_hash(unit: Unit) -> str:
    return hashlib.sha256(json.dumps(answer_schema(unit), sort_keys=True).encode()).hexdigest()


def _request_seed(place: str) -> int:
    """31 bits, which every server takes."""
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1

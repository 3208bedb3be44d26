"""A language model as a writer: prompts, what becomes of an answer, repairs of what breaks rules."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple

from deltamem.errors import ContextLengthError
from deltamem.llm import Answer
from deltamem.prompts import Prompt, load_prompt
from deltamem.replies import without_thinking
from deltamem.runs import JsonLinesStore
from deltamem.text import shortened
from synth.config import LLMSettings
from synth.llm.answers import (
    ANSWERS,
    FORMAT_RULES,
    TRUNCATED,
    AnswerReading,
    FormatError,
    answer_schema,
    can_be_patched,
    parts_of,
    patch_type,
    patched,
    read_answer,
    record_schema,
    thinking_tokens,
)
from synth.llm.pool import EndpointPool
from synth.records import Dialogue, Record
from synth.tasks import (
    TASKS,
    AnswerT,
    ContradictionsTask,
    DialogueTask,
    ExtractionTask,
    RuleVerdict,
    RuleViolation,
    Task,
    Unit,
    UnitId,
    UnitResult,
)
from synth.validators import UNIT_RULES, judge_answer
from synth.validators.base import Similarity
from synth.validators.reviews import Reviewed, judge_reviewed

Message = Mapping[str, str]

_TASK = re.compile(r"^Unit: (?P<unit>\w+)$.*^<task>\n(?P<task>.*)\n</task>$", re.DOTALL | re.MULTILINE)
_MOST_VIOLATIONS = 20
_LONGEST_VIOLATION = 400


def opening(task: Task[Any]) -> list[dict[str, str]]:
    """The messages that put a task to a model."""
    # Without "<", nothing inside the block can end it or be taken for a special token; to a JSON reader it is the same.
    block = task.model_dump_json().replace("<", "\\u003c")
    return [
        {"role": "system", "content": system_prompt(task.unit)},
        {"role": "user", "content": f"Unit: {task.unit}\n\n<task>\n{block}\n</task>\n\n{_prompt('ask').text}"},
    ]


def repair(answer: str, violations: Sequence[RuleViolation]) -> list[dict[str, str]]:
    """The messages that send a whole answer back."""
    return [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": _prompt("repair").fill(violations=_listed(violations))},
    ]


def patch_request(unit: Unit, answer: str, violations: Sequence[RuleViolation]) -> list[dict[str, str]]:
    """The messages that ask for the parts of an answer that have to change; arguments as of `repair`."""
    asked = _prompt("patch").fill(
        violations=_listed(violations),
        parts=parts_of(unit),
        schema=json.dumps(record_schema(patch_type(unit)), separators=(",", ":")),
    )
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": asked}]


def _listed(violations: Sequence[RuleViolation]) -> str:
    listed = [
        f"- {rule}: {shortened(' '.join(message.split()), _LONGEST_VIOLATION)}"
        for rule, message in violations[:_MOST_VIOLATIONS]
    ]
    more = len(violations) - len(listed)
    return "\n".join([*listed, f"- and {more} more"] if more else listed)


def read_task(messages: Iterable[Message]) -> Task[Any]:
    """Find the task in a conversation; what a scripted server answers is made of it.

    Raises `ValueError` if there is none.
    """
    for message in messages:
        if message["role"] == "user" and (found := _TASK.search(message["content"])):
            return TASKS[Unit(found["unit"])].model_validate_json(found["task"])
    raise ValueError("the conversation holds no task")


@cache
def system_prompt(unit: Unit) -> str:
    """Who the model is, what the unit is about, the rules and the schema of the answer."""
    return _prompt("frame").fill(
        unit=_prompt(unit).fill(facts=_prompt("facts").text, kinds=_prompt("kinds").text.rstrip()),
        rules="\n".join(f"- {rule.name}: {rule.description}" for rule in UNIT_RULES[unit]),
        schema=json.dumps(answer_schema(unit), separators=(",", ":")),
    )


def prompt_hashes() -> dict[str, str]:
    """The sha256 of everything in the messages that is neither task nor answer: by unit, and of the two kinds of repairs."""
    texts = {unit.value: system_prompt(unit) + _prompt("ask").text for unit in Unit} | {
        name: _prompt(name).text for name in ("repair", "patch")
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _prompt(name: str) -> Prompt:
    return load_prompt(name, "synth.prompts")


_LONGEST_ANSWER = 200_000
_LONGEST_CUT_OFF = 2_000
"""Characters that are kept and sent back of an answer that was cut off; mostly the model repeats itself there."""


class LLMWriter:
    """A language model behind endpoints."""

    def __init__(
        self,
        settings: LLMSettings,
        pool: EndpointPool,
        store: JsonLinesStore,
        *,
        seed: int,
        similarity: Similarity | None = None,
    ) -> None:
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
            "schemas": {unit.value: _schema_hash(answer) for unit, answer in ANSWERS.items()},
            "repairs": settings.repairs,
            "asked": {"narrative_words": settings.narrative_words, "cards": settings.cards},
            "reviews": {"extraction": settings.extraction, "contradictions": settings.contradictions},
            "seed": seed,
        }
        self._asked = json.dumps([settings.model, settings.sampling, settings.structured], sort_keys=True)

    @property
    def making(self) -> Mapping[str, Any]:
        """See `synth.tasks.Writer`."""
        return self._making

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        """Ask until the answer keeps the rules or the repairs are used up; see `synth.tasks.Writer`."""
        first = opening(task)
        request = _WriterRequest(first, task.answer)
        best: _Attempt[AnswerT] | None = None
        verdicts: list[RuleVerdict] = []
        reviews: list[tuple[Unit, UnitResult[Any]]] = []
        tokens = Counter[str]()
        for attempt in range(1 + self._settings.repairs):
            try:
                answer = await self._answer(request, task.unit, place, attempt)
            except ContextLengthError:
                if attempt == 0:
                    raise
                break  # the task fits, but not together with an answer and what is wrong with it
            tokens.update(
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                reasoning_tokens=answer.reasoning_tokens,
                spent_tokens=0 if answer.cached else answer.completion_tokens,
            )
            try:
                read = _read(answer, request.expected, task, best)
            except FormatError as error:
                verdicts.append(error.verdict)
                if best is None:
                    request = _WriterRequest([*first, *repair(answer.text, error.verdict.violations)], task.answer)
                else:
                    request = _next_request(task.unit, first, best, error.verdict.violations, worse=True)
                continue
            verdict = await self._judged(read, task)
            if not verdict.violations and isinstance(task, DialogueTask) and isinstance(read.answer, Dialogue):
                verdict, done = await self._reviewed(task, read.answer, verdict, place, attempt)
                reviews += done
            verdicts.append(verdict)
            if not verdict.violations:
                return UnitResult(read.answer, tuple(verdicts), partial=None, reviews=tuple(reviews), **tokens)
            worse = best is not None and len(verdict.violations) >= len(best.violations)
            if best is None or len(verdict.violations) <= len(best.violations):
                best = _Attempt(read.answer, verdict.violations)
            request = _next_request(task.unit, first, best, worse=worse)
        return UnitResult(None, tuple(verdicts), partial=best and best.answer, reviews=tuple(reviews), **tokens)

    async def _reviewed(
        self, task: DialogueTask, dialogue: Dialogue, verdict: RuleVerdict, place: UnitId, attempt: int
    ) -> tuple[RuleVerdict, list[tuple[Unit, UnitResult[Any]]]]:
        """Have a dialogue that keeps its rules read again, as far as the settings ask for it.

        A review that cannot be read, or that breaks its own rules to the last, finds nothing.
        """

        async def asked(review: Task[AnswerT]) -> UnitResult[AnswerT]:
            return await self.write(review, UnitId(place.person, place.step, f"{place.name}/{review.unit}/{attempt}"))

        done: list[tuple[Unit, UnitResult[Any]]] = []
        if self._settings.extraction:
            done.append((Unit.EXTRACTION, await asked(extraction_task(task, dialogue))))
        if self._settings.contradictions:
            done.append((Unit.CONTRADICTIONS, await asked(contradictions_task(task, dialogue))))
        answers = {unit: result.answer for unit, result in done if result.answer is not None}
        if not answers:
            return verdict, done
        reviewed = Reviewed(dialogue, answers.get(Unit.EXTRACTION), answers.get(Unit.CONTRADICTIONS))
        judged = await asyncio.to_thread(judge_reviewed, task, reviewed, self._similarity)
        return RuleVerdict((*verdict.checked, *judged.checked), judged.violations), done

    async def _judged(self, read: AnswerReading[Any], task: Task[Any]) -> RuleVerdict:
        # One at a time, and after whatever else can go on: requests do not wait while a wave of answers is judged.
        async with self._judging:
            await asyncio.sleep(0)
            judged = judge_answer(task, read.answer)
        return RuleVerdict((*FORMAT_RULES, *judged.checked), (*read.violations, *judged.violations))

    async def _answer(self, request: _WriterRequest, unit: Unit, place: UnitId, attempt: int) -> Answer:
        seed = int.from_bytes(hashlib.sha256(f"{self._seed}/{place.name}/{attempt}".encode()).digest()[:4]) >> 1
        key = self._key(request, seed, attempt)
        stored = self._store.get(key)
        if stored is not None:
            return Answer(**stored, cached=True)
        answer = await self._pool.chat(
            request.messages,
            priority=(place.person, -place.step),
            seed=seed,
            name=unit.value if request.expected is ANSWERS[unit] else f"{unit.value}_patch",
            schema=record_schema(request.expected),
        )
        text = without_thinking(answer.text)
        truncated = answer.truncated or len(text) > _LONGEST_ANSWER
        kept: dict[str, Any] = {
            "text": text[:_LONGEST_CUT_OFF] if truncated else text,
            "truncated": truncated,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "reasoning_tokens": thinking_tokens(answer),
        }
        self._store.put(key, kept)
        return Answer(**kept)

    def _key(self, request: _WriterRequest, seed: int, attempt: int) -> str:
        """Hash of everything that an answer depends on; the endpoint's URL is not part of it."""
        digest = hashlib.sha256(f"{self._asked}{_schema_hash(request.expected)}{seed}/{attempt}".encode())
        for message in request.messages:
            text = message["content"].encode()
            digest.update(f"\n{message['role']} {len(text)}\n".encode())
            digest.update(text)
        return digest.hexdigest()


def extraction_task(task: DialogueTask, dialogue: Dialogue) -> ExtractionTask:
    """The review that lists what the user states; it is not told what is labelled."""
    return ExtractionTask(name=task.fixed.name, today=task.today, turns=dialogue.turns)


def contradictions_task(task: DialogueTask, dialogue: Dialogue) -> ContradictionsTask:
    """The review that looks for contradictions; it is told what the session changes on purpose."""
    changed = [fact.previous_text for fact in task.facts if fact.previous_text not in ("", fact.text)]
    changed += [value for fact in task.facts for value in (fact.misspoken, *fact.outdated) if value]
    remembered = [*task.known, *(aside.memory for aside in task.asides if aside.memory)]
    return ContradictionsTask(
        name=task.fixed.name,
        today=task.today,
        remembered=tuple(dict.fromkeys(remembered)),
        changed=tuple(dict.fromkeys(changed)),
        turns=dialogue.turns,
    )


class _WriterRequest(NamedTuple):
    """What is sent, and the type of record that is expected back."""

    messages: Sequence[Mapping[str, str]]
    expected: type[Record]


class _Attempt(NamedTuple, Generic[AnswerT]):
    """An answer that could be read, and what is wrong with it."""

    answer: AnswerT
    violations: tuple[RuleViolation, ...]


def _read(
    answer: Answer, expected: type[Record], task: Task[AnswerT], best: _Attempt[AnswerT] | None
) -> AnswerReading[AnswerT]:
    """Read an answer; a patch is put in place. A model may answer with the whole where parts were asked for.

    Raises `FormatError` if it cannot be read.
    """
    if answer.truncated:
        message = f"the answer was cut off after {answer.completion_tokens} tokens, thinking included; be briefer"
        raise FormatError(TRUNCATED, message)
    whole: type[AnswerT] = task.answer  # type: ignore[assignment]
    if expected is whole or best is None:
        return read_answer(answer.text, whole)
    try:
        patch = read_answer(answer.text, expected)
    except FormatError as error:
        try:
            return read_answer(answer.text, whole)
        except FormatError:
            raise error from None
    return AnswerReading(patched(task.unit, best.answer, patch.answer), patch.violations)


def _next_request(
    unit: Unit, first: Sequence[Mapping[str, str]], best: _Attempt[Any], unread: Sequence[RuleViolation] = (), *, worse: bool
) -> _WriterRequest:
    """How an answer is sent back: for its parts if they can be mended, and if the last try has brought it on.

    `unread` is why the last one could not be read, `worse` whether it was no better than the best one.
    """
    text, violations = best.answer.model_dump_json(), (*unread, *best.violations)
    if worse or not can_be_patched(unit, frozenset(violation.rule for violation in best.violations)):
        return _WriterRequest([*first, *repair(text, violations)], ANSWERS[unit])
    return _WriterRequest([*first, *patch_request(unit, text, violations)], patch_type(unit))


@cache
def _schema_hash(answer: type[Record]) -> str:
    return hashlib.sha256(json.dumps(record_schema(answer), sort_keys=True).encode()).hexdigest()

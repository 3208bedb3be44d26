"""From retrieved passages to an answer: the context budget, answerers, prompts, one question from retrieval to verdicts."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from deltamem import prompts, replies
from deltamem.embedding import Embedder, Vectors
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, Answer
from deltamem.prompts import Prompt
from deltamem.text_files import read_text
from deltamem.window import whole_sentences
from eval.records import AnswerRecord, BudgetRecord, Cost, QuestionRecord, Verdict, judge_name
from eval.systems.base import Passage, WithTime, dated
from eval.tokens import ESTIMATED, TokenCount


def cost_of(answer: Answer) -> Cost:
    """The cost of one answer; waiting for a free slot does not count."""
    tokens = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
    return Cost(calls=1, cached=int(answer.cached), **tokens, seconds=round(answer.seconds, 4))


def nothing_said(answer: Answer, part: str, max_tokens: int | None) -> str:
    """Why a reply without a word is one, and which key of the configuration group `part` may help."""
    thought = bool(answer.reasoning.strip()) or "<think>" in answer.text
    if not answer.truncated:
        return "nothing but thinking" if thought else "nothing"
    if not thought:
        return f"nothing (stopped at {max_tokens} tokens)"
    return f"nothing but thinking, which was stopped at {max_tokens} tokens: {against_cuts(part)}"


def against_cuts(part: str) -> str:
    """What helps where a model of the configuration group `part` is stopped while it thinks."""
    off = f"+{part}.extra_body.chat_template_kwargs.enable_thinking=false"
    return f"raise {part}.max_tokens, or turn thinking off, for example (vLLM) with {off}"


def last_object(text: str, keys: Collection[str]) -> dict[str, str] | None:
    """Find the last JSON object with certain keys, given in lower case, in what a model wrote after thinking.

    Models quote the task, try, and correct themselves, so the last one counts. Where no object can be decoded, because of
    quotation marks within a string for example, single fields are looked for, and count if they are not contradictory.

    Returns:
        The object's fields by lower-case key, values as strings; None if there is no such object.
    """

    def accept(value: dict[str, Any]) -> dict[str, str] | None:
        fields = {str(key).strip().casefold(): _string(part) for key, part in value.items()}
        return fields if fields.keys() >= set(keys) else None

    return replies.last_object(text, accept) or _single_fields(text, keys)


def _single_fields(text: str, keys: Collection[str]) -> dict[str, str] | None:
    fields = {}
    for key in keys:
        pattern = rf"""["']{re.escape(key)}["']\s*:\s*(?:"([^"\n]*)"|'([^'\n]*)'|(\w+))\s*[,}}]"""
        values = {"".join(match).strip().casefold() for match in re.findall(pattern, text, re.IGNORECASE)}
        if len(values) != 1:
            return None
        fields[key] = values.pop()
    return fields


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """Passages of one store under a title, for example the memories of one of two speakers."""

    title: str  # Shown above them
    passages: tuple[Passage, ...]  # Best first, which is what the budget keeps
    by_time: bool = False  # Whether they are shown in the order of their times instead; for systems that do not rank


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A question with what was retrieved for it and fits the budget of context tokens."""

    question: str  # As it is asked
    context: tuple[ContextBlock, ...]  # What is shown, in the order in which it is shown
    options: tuple[str, ...] = ()  # Of a multiple-choice question, each with its letter, for example `(a) Tea.`
    scope: str = ""  # For whom answers are cached (see `deltamem.llm`): the conversation, user or persona
    time: datetime | None = None  # When it is asked, where the benchmark says so
    prompt: str = ""  # By name, where some questions have one of their own


class Answerer(Protocol):
    """Answers questions from retrieved passages; called concurrently."""

    name: str

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Answer once; a failure is in the record (`AnswerRecord.error`), never raised. Another `run` samples again."""
        ...


class Judge(Protocol):
    """Labels something by a prompt of its own; called concurrently."""

    name: str

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """Judge once; a failure is in the verdict (`Verdict.error`), never raised."""
        ...


def load_prompt(name_or_path: str, fields: Collection[str]) -> Prompt:
    """Load a prompt by its name in `eval.prompts`, as ``package:name``, or a file (ends in ``.md`` or has a folder).

    `fields` are what the prompt must leave room for, all of it and nothing else.

    Raises:
        DeltaMemError: If there is no such prompt, or its marked places are not the fields.
    """
    path = Path(name_or_path)
    if path.suffix == ".md" or path.name != name_or_path:
        try:
            prompt, source = Prompt.of(path.stem, read_text(path)), str(path)
        except OSError as error:
            raise DeltaMemError(f"prompt {path} cannot be read: {error}") from error
    else:
        package, _, name = name_or_path.rpartition(":")
        prompt, source = prompts.load_prompt(name, package or "eval.prompts"), f"prompt {name_or_path!r}"
    prompt.check_fields(fields, source)
    return prompt


_BETWEEN_BLOCKS = "\n\n"


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What fits a budget."""

    # Those of which something is shown, each with its first passages, in the order in which they are shown
    blocks: tuple[ContextBlock, ...]
    passages: int  # How many passages are shown, also in part
    tokens: int  # Tokens of what `render_all` makes of the blocks


def cut_to_budget(
    blocks: Sequence[ContextBlock],
    budget: int,
    *,
    with_time: WithTime,
    counted: TokenCount = ESTIMATED,
    sentences: bool = False,
) -> AnswerContext:
    """Take passages in turn from every block, best first, until the budget is full.

    From a block whose next passage does not fit nothing more is taken, so that every block shows its best passages and no
    gap.

    Args:
        blocks: The passages.
        budget: Tokens, those of titles and dates included.
        with_time: Whether dates are shown.
        counted: What counts the tokens.
        sentences: Whether the first sentences are shown of a ranked passage that does not fit (STITCH, section 4); else
            a passage is taken whole or not at all.
    """
    left = budget * counted.per_token
    taken: list[list[Passage]] = [[] for _ in blocks]
    order: list[int] = []  # Of the block of each passage that was taken
    in_turn = deque(range(len(blocks)))
    while in_turn:
        number = in_turn.popleft()
        block, own = blocks[number], taken[number]
        if len(own) == len(block.passages):
            continue
        before = "\n" if own else (_BETWEEN_BLOCKS if order else "") + _head(block)
        passage = block.passages[len(own)]

        def size(text: str, before: str = before, time: datetime | None = passage.time) -> int:
            return counted.size(before + dated(text, time, with_time))

        if (needed := size(passage.text)) <= left:
            left -= needed
            in_turn.append(number)
        elif not sentences or block.by_time or not (kept := whole_sentences(passage.text, size, left)):
            continue
        else:
            passage = replace(passage, text=kept)
            left -= size(kept)
        own.append(passage)
        order.append(number)
    while True:
        shown = tuple(_in_order(block, own) for block, own in zip(blocks, taken, strict=True) if own)
        tokens = counted.tokens(render_all(shown, with_time=with_time))
        if tokens <= budget or not order:
            return AnswerContext(shown, len(order), tokens)
        taken[order.pop()].pop()  # a tokenizer may make more of the whole than of its parts


def _in_order(block: ContextBlock, shown: Sequence[Passage]) -> ContextBlock:
    if block.by_time and all(passage.time is not None for passage in shown):
        shown = sorted(shown, key=lambda passage: passage.time or datetime.min)
    return replace(block, passages=tuple(shown))


def render_all(blocks: Sequence[ContextBlock], *, with_time: WithTime) -> str:
    """Write out blocks, an empty line between them: the title, then each passage on a line of its own after its date."""
    lines = ([dated(one.text, one.time, with_time) for one in block.passages] for block in blocks)
    return _BETWEEN_BLOCKS.join(_head(block) + "\n".join(own) for block, own in zip(blocks, lines, strict=True))


def format_date(time: datetime) -> str:
    """A date as answerers are shown it and as LoCoMo's answers write it, for example ``8 May 2023``."""
    return f"{time.day} {time:%B} {time.year}"


def _head(block: ContextBlock) -> str:
    return f"{block.title}\n" if block.title else ""


NOTHING_FOUND = "(nothing was found)"  # Shown to the model in place of passages if there are none
_DRAWS = 2  # How often a model that says nothing is asked
_REDRAW = 1_000  # Added to the number of the run for the second draw, so that it is no other run's first
_RUN = 1_000  # Added to the numbers of samples for each `Sampler.run`, which is more than a judge has attempts


@dataclass(frozen=True, slots=True)
class Sampler:
    """A model and how its replies are sampled; a limit of tokens counts thinking.

    Without temperature or limit the endpoint takes its own.
    """

    llm: LLM
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    run: int = 0  # Of those that sample the same requests, which draw other samples
    extra_body: Mapping[str, object] = field(default_factory=dict)  # Fields of requests outside the OpenAI protocol

    async def chat(self, messages: Sequence[Mapping[str, str]], scope: str, sample: int) -> Answer:
        """One reply.

        Raises:
            DeltaMemError: If the endpoint fails.
        """
        return await self.llm.chat(
            messages,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            extra_body=self.extra_body or None,
            scope=scope,
            sample=sample + self.run * _RUN,
        )


class LLMAnswerer:
    """Sends one user message for each answer; an answer that reaches the limit of tokens is kept as far as it goes.

    The prompt has the fields ``context`` and ``question``, and perhaps ``options`` (of multiple choice) and ``date``.
    """

    name = "llm"

    def __init__(self, sampler: Sampler, prompt: Prompt, *, with_time: WithTime, others: Mapping[str, Prompt] = {}) -> None:
        """Take the prompt, and the `others` by name that requests may ask for."""
        self.prompt = prompt
        self._others = others
        self._sampler = sampler
        self._with_time = with_time

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Answer once; an answer without a word is drawn once more and then an error. See `Answerer`."""
        context = render_all(request.context, with_time=self._with_time) or NOTHING_FOUND
        fields = {"context": context, "question": request.question, "options": "\n".join(request.options)}
        prompt = self._others.get(request.prompt, self.prompt)
        content = prompt.fill(**fields, date=f"{request.time:%A}, {format_date(request.time)}" if request.time else "")
        cost = Cost()
        for draw in range(_DRAWS):
            try:
                message = {"role": "user", "content": content}
                answer = await self._sampler.chat([message], request.scope, run + draw * _REDRAW)
            except DeltaMemError as error:
                return AnswerRecord(text=None, error=str(error), cost=cost)
            cost += cost_of(answer)
            text = replies.without_thinking(answer.text)
            if text:
                return AnswerRecord(text=text, cut=answer.truncated, cost=cost)
        why = f"the answerer returned {nothing_said(answer, 'answer', self._sampler.max_tokens)}"
        return AnswerRecord(text=None, error=why, silent=True, cut=answer.truncated, cost=cost)


NO_INFORMATION = "No information available"
"""What an answerer says if nothing was retrieved; LoCoMo's words, see `eval.metrics.abstains`."""

_BEST = 5
"""Passages of a block that are read. More would take minutes of embedding for answers that are seldom taken from there."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ASKS_FOR_TIME = re.compile(r"\s*(?:when|(?:on |in )?(?:what|which) (?:date|day|month|year))\b", re.IGNORECASE)
_LETTER = re.compile(r"\s*\(([a-z])\)\s*", re.IGNORECASE)


class ExtractiveAnswerer:
    """Copies; costs no calls. All runs give the same."""

    name = "extractive"

    def __init__(self, embedder: Embedder, *, with_time: WithTime, timed: asyncio.Semaphore) -> None:
        """Name the embedder, one with a cache, because questions share passages; `timed`: see `eval.models.Models.timed`."""
        self._embedder = embedder
        self._with_time = with_time
        self._timed = timed

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """See `Answerer`."""
        async with self._timed:
            started = time.perf_counter()
            text = await asyncio.to_thread(self._text, request)
            return AnswerRecord(text=text, cost=Cost(seconds=round(time.perf_counter() - started, 4)))

    def _text(self, request: AnswerRequest) -> str:
        candidates = [
            (sentence.strip(), passage)
            for block in request.context
            for passage in block.passages[:_BEST]
            for sentence in _SENTENCE_END.split(passage.text)
            if sentence.strip()
        ]
        if not candidates:
            return NO_INFORMATION
        sentences = self._embedder.documents([sentence for sentence, _ in candidates])
        question = self._embedder.queries([request.question])[0]
        if request.options:
            return f"<final_answer> ({self._letter(request.options, question, sentences)})"
        sentence, passage = candidates[int(np.argmax(sentences @ question))]
        if self._with_time and passage.time and _ASKS_FOR_TIME.match(request.question):
            return format_date(passage.time)
        return sentence

    def _letter(self, options: Sequence[str], question: Vectors, sentences: Vectors) -> str:
        """The option that is most similar to the question and to some sentence, both together."""
        vectors = self._embedder.documents([_LETTER.sub("", option, count=1) for option in options])
        best = int(np.argmax(vectors @ question + (vectors @ sentences.T).max(axis=1)))
        letter = _LETTER.match(options[best])
        return letter[1].lower() if letter else chr(ord("a") + best)


@dataclass(frozen=True)
class QAGrader:
    """How questions are answered and judged."""

    answerer: Answerer
    judges: Mapping[str, Judge]  # By name, those of further runs as `name#2`
    runs: int  # Answers to each question
    context_tokens: int  # Budget of tokens for all blocks together
    with_time: WithTime  # Whether dates are shown, and therefore counted
    # Scores of an answer that need no judge, given the question's record
    score: Callable[[QuestionRecord, str], Mapping[str, float]]
    # What each judge of an answer is shown, by the judge's name, given the question's record
    judge_fields: Callable[[QuestionRecord, str], Mapping[str, Mapping[str, str]]]
    budgets: Sequence[int] = ()  # Further budgets, ascending, at each of which every question is answered as well
    made: str = ""  # What new answers and verdicts are marked with, see `eval.fingerprint`
    counted: TokenCount = ESTIMATED  # What counts tokens
    sentences: bool = False  # Whether the passage that a budget ends in is cut after a sentence
    prompt_of: Callable[[QuestionRecord], str] = lambda record: ""  # See `AnswerRequest.prompt`

    async def ask(
        self,
        record: QuestionRecord,
        blocks: Sequence[ContextBlock],
        options: tuple[str, ...] = (),
        deep: Sequence[ContextBlock] | None = None,
    ) -> QuestionRecord:
        """Answer a question in all runs at once and judge the answers.

        Answers and verdicts of an earlier attempt that did not fail are kept; failures are in the record. The further
        budgets are filled from the `deep` blocks, which begin as the others do; from those if None.
        """
        shown = self._cut(blocks, self.context_tokens)
        asked = record.question, shown.blocks, options, record.group, record.time
        request = AnswerRequest(*asked, prompt=self.prompt_of(record))
        answers = await self._answers(record, request, record.answers)
        update = {"answers": answers, "shown": shown.passages, "context_tokens": shown.tokens}
        return record.model_copy(update=update | {"budgets": await self._at_budgets(record, request, deep or blocks)})

    def _cut(self, blocks: Sequence[ContextBlock], budget: int) -> AnswerContext:
        return cut_to_budget(blocks, budget, with_time=self.with_time, counted=self.counted, sentences=self.sentences)

    async def _at_budgets(
        self, record: QuestionRecord, request: AnswerRequest, blocks: Sequence[ContextBlock]
    ) -> tuple[BudgetRecord, ...]:
        """One after the other, as where everything fits two budgets, the second asks for nothing."""
        earlier = {one.budget: one.answers for one in record.budgets}
        done: list[BudgetRecord] = []
        before = None
        for budget in self.budgets:
            shown = self._cut(blocks, budget)
            if before is not None and shown.blocks == before.blocks:
                answers = tuple(answer.without_cost() for answer in done[-1].answers)
            else:
                asked = replace(request, context=shown.blocks)
                answers = await self._answers(record, asked, earlier.get(budget, ()))
            done.append(BudgetRecord(budget=budget, shown=shown.passages, context_tokens=shown.tokens, answers=answers))
            before = shown
        return tuple(done)

    def failed(self, record: QuestionRecord) -> QuestionRecord:
        """A question that could not be searched for (`QuestionRecord.error`), with an answer for each run that failed."""
        answers = (self._without_text(record, AnswerRecord(text=None, error=record.error)),) * self.runs
        empty = [BudgetRecord(budget=one, shown=0, context_tokens=0, answers=answers) for one in self.budgets]
        return record.model_copy(update={"answers": answers, "budgets": tuple(empty)})

    async def _answers(
        self, record: QuestionRecord, request: AnswerRequest, earlier: Sequence[AnswerRecord]
    ) -> tuple[AnswerRecord, ...]:
        kept = {run: answer for run, answer in enumerate(earlier) if answer.error is None}
        return tuple(await asyncio.gather(*(self._run(record, request, run, kept.get(run)) for run in range(self.runs))))

    async def _run(
        self, record: QuestionRecord, request: AnswerRequest, run: int, before: AnswerRecord | None
    ) -> AnswerRecord:
        answer = before or (await self.answerer.answer(request, run)).model_copy(update={"made": self.made})
        if answer.text is None:
            return self._without_text(record, answer)
        asked = self._asked(record, answer.text)
        missing = {name: asked[name] for name in asked if name not in answer.verdicts or answer.verdicts[name].error}
        said = await asyncio.gather(*(judge.judge(fields, request.scope) for judge, fields in missing.values()))
        new = (verdict.model_copy(update={"made": self.made}) for verdict in said)
        verdicts = answer.verdicts | dict(zip(missing, new, strict=True))
        return answer.model_copy(update={"scores": dict(self.score(record, answer.text)), "verdicts": verdicts})

    def _without_text(self, record: QuestionRecord, answer: AnswerRecord) -> AnswerRecord:
        """An answer that is missing is wrong for every score and judge, and no judge need be asked."""
        verdict = Verdict(label=None, error=answer.error)
        scores = dict.fromkeys(self.score(record, ""), 0.0)
        return answer.model_copy(update={"scores": scores, "verdicts": dict.fromkeys(self._asked(record, ""), verdict)})

    def _asked(self, record: QuestionRecord, text: str) -> dict[str, tuple[Judge, Mapping[str, str]]]:
        """By name of each verdict its judge, and what that is shown."""
        return {
            f"{name}{judge.removeprefix(judge_name(name))}": (self.judges[judge], fields)
            for name, fields in self.judge_fields(record, text).items()
            for judge in self.judges
            if judge_name(judge) == judge_name(name)
        }

"""From configuration to models, answerer and judges."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field

from deltamem.embedding import Embedder, LazyEmbedder
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, ResponseCache
from deltamem.prompts import Prompt
from eval.answer import Answerer, ExtractiveAnswerer, LLMAnswerer, load_prompt
from eval.benchmark import JudgeSpec
from eval.config import BenchmarkConfig, EmbedderSettings, ModelSettings
from eval.judge import LLMJudge

PARTS = ("manager", "answer", "judge")
"""The parts of a run that a model may play, as the configuration groups name them."""


def make_embedder(settings: EmbedderSettings) -> LazyEmbedder:
    """The embedder of a run, for the system and the extractive answerer; loaded when the first text comes."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # loading a model would draw a bar of its own between ours
    return LazyEmbedder(settings.name, device=settings.device, batch_size=settings.batch_size)


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a run; parts that have the same endpoint, model and key share one client."""

    cache: ResponseCache | None  # Where their answers are kept
    manager: LLM | None  # Keeps the memories, in systems that need it; None if none is named
    answer: LLM | None  # Answers; None if the answerer needs no model
    judge: LLM | None  # Judges; None if nothing is judged
    # Held while a search or an answer without a model is timed: its time is not that of waiting for the embedder
    timed: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    def by_parts(self) -> dict[str, LLM]:
        """Each client once, by the parts that it plays, for example ``answer+judge``."""
        parts: dict[LLM, list[str]] = {}
        for part in PARTS:
            llm: LLM | None = getattr(self, part)
            if llm is not None:
                parts.setdefault(llm, []).append(part)
        return {"+".join(names): llm for llm, names in parts.items()}

    def usage(self) -> dict[str, dict[str, int]]:
        """What each client has done in this run (`deltamem.llm.Usage`), by its parts."""
        return {parts: asdict(llm.usage) for parts, llm in self.by_parts().items()}


@asynccontextmanager
async def open_models(config: BenchmarkConfig) -> AsyncIterator[Models]:
    """Open the response cache and the clients that the configuration asks for; nothing is sent yet.

    Args:
        config: The run. A manager is opened if its model is named, an answerer's model if one answers, a judge's if
            answers are judged.

    Raises:
        DeltaMemError: If a URL or model is missing or wrong, or the cache cannot be used.
        OSError: If the folder of the cache cannot be made.
    """
    wanted: dict[str, ModelSettings] = {}
    if config.manager.model is not None:
        wanted["manager"] = config.manager
    if config.answer.answerer == "llm":
        wanted["answer"] = config.answer
    if config.judged:
        wanted["judge"] = config.judge
    async with AsyncExitStack() as stack:
        cache = None
        if config.cache is not None and wanted:
            config.cache.parent.mkdir(parents=True, exist_ok=True)
            cache = ResponseCache(config.cache)
            stack.callback(cache.close)
        groups: dict[tuple[object, ...], dict[str, ModelSettings]] = {}
        for part, settings in wanted.items():
            endpoint = (settings.base_url and settings.base_url.rstrip("/"), settings.model, settings.api_key_env)
            groups.setdefault(endpoint, {})[part] = settings
        clients: dict[str, LLM] = {}
        for group in groups.values():
            client = _widest(group.values()).client(next(iter(group)), cache)
            stack.push_async_callback(client.close)
            clients |= dict.fromkeys(group, client)
        yield Models(cache, clients.get("manager"), clients.get("answer"), clients.get("judge"))


async def check_models(models: Models, parts: Collection[str] = PARTS) -> None:
    """Ask each model for one token, all at once, so that a run fails early if one is unreachable.

    Args:
        models: Of the run.
        parts: Those that will be needed.

    Raises:
        DeltaMemError: If one does not answer.
    """
    needed = [llm for names, llm in models.by_parts().items() if not set(parts).isdisjoint(names.split("+"))]
    replies = await asyncio.gather(
        *(llm.check([{"role": "user", "content": "Say yes."}]) for llm in needed), return_exceptions=True
    )
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a run: of the answering model, None if no model answers, and of each judge by its name."""

    answer: Prompt | None
    judges: Mapping[str, Prompt]

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        return {prompt.name: prompt.sha256 for prompt in (self.answer, *self.judges.values()) if prompt is not None}


def load_prompts(
    config: BenchmarkConfig, answer_prompt: str, answer_fields: Collection[str], judges: Mapping[str, JudgeSpec]
) -> Prompts:
    """Load what a run will need, before anything expensive happens.

    Args:
        config: The run.
        answer_prompt: Name of the benchmark's own prompt of the answering model.
        answer_fields: Of that prompt: ``context``, ``question``, and ``options`` for multiple choice.
        judges: The judges of the benchmark by name.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    answer = None
    if config.answer.answerer == "llm":
        answer = load_prompt(config.answer.prompt or answer_prompt, answer_fields)
    specs = judges if config.judged else {}
    return Prompts(answer, {name: load_prompt(spec.prompt, spec.fields) for name, spec in specs.items()})


def make_answerer(config: BenchmarkConfig, models: Models, embedder: Embedder, prompt: Prompt | None) -> Answerer | None:
    """The answerer that the configuration asks for; None if nothing is answered.

    Args:
        config: The run.
        models: From `open_models` of the same configuration.
        embedder: Of the extractive answerer.
        prompt: Of the answering model.

    Raises:
        DeltaMemError: If a model answers and none is named.
    """
    if config.answer.answerer == "none":
        return None
    if prompt is None:
        return ExtractiveAnswerer(embedder, with_time=config.with_time, timed=models.timed)
    if models.answer is None:
        raise DeltaMemError("the answerer needs a model; expected answer.model=<name>")
    return LLMAnswerer(
        models.answer,
        prompt,
        temperature=config.answer.temperature,
        max_tokens=config.answer.max_tokens,
        seed=config.seed,
        with_time=config.with_time,
    )


def make_judge(config: BenchmarkConfig, models: Models, name: str, spec: JudgeSpec, prompt: Prompt) -> LLMJudge:
    """A judge on the judging model.

    Args:
        config: The run; it must be judged.
        models: From `open_models` of the same configuration.
        name: Of the judge.
        spec: Its labels.
        prompt: Of the judge.

    Raises:
        DeltaMemError: If no model judges.
    """
    if models.judge is None:
        raise DeltaMemError(f"the {name} judge needs a model; expected judge.model=<name>")
    return LLMJudge(
        name,
        models.judge,
        prompt,
        spec.labels,
        flags=spec.flags,
        temperature=config.judge.temperature,
        max_tokens=config.judge.max_tokens,
        seed=config.seed,
        attempts=config.judge.attempts,
    )


def _widest(settings: Collection[ModelSettings]) -> ModelSettings:
    """Settings for a client that several parts share: the most of what each allows."""
    first = next(iter(settings))
    limits = {name: max(getattr(one, name) for one in settings) for name in ("slots", "timeout", "max_retries")}
    return first.model_copy(update=limits)

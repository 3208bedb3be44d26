"""From configuration to what a run works with: the models, the system under test, the answerer and the judges."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from deltamem.embedding import Embedder, EmbedderSettings, LazyEmbedder
from deltamem.errors import DeltaMemError, LLMError
from deltamem.llm import LLM, ResponseCache
from deltamem.policy import EndpointPolicy
from deltamem.prompts import Prompt
from eval.answer import Answerer, ExtractiveAnswerer, Judge, LLMAnswerer, Sampler, load_prompt
from eval.benchmark import Config, JudgeSpec, OracleIntents
from eval.config import BenchmarkConfig, ManagerModel, ModelSettings
from eval.judge import LLMJudge
from eval.systems.base import StoreKey, System
from eval.systems.baselines import Evidence, closed_book, copy_all, full_context, naive_rag, oracle
from eval.systems.deltamem import DeltaMemSystem
from papers.episodic import EpisodicSettings
from papers.episodic.system import EpisodicSystem
from papers.stitch.embedding_labeller import EmbeddingLabeller
from papers.stitch.labeller import IntentLabeller, OracleLabeller
from papers.stitch.llm_labeller import LLMLabeller
from papers.stitch.system import StitchSystem

PARTS = ("manager", "answer", "judge")
"""The parts of a run that a model may play, as the configuration groups name them."""


def make_embedder(settings: EmbedderSettings) -> LazyEmbedder:
    """The embedder of a run, for the system and the extractive answerer; loaded when the first text comes."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # loading a model would draw a bar of its own between ours
    return settings.lazy()


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
        clients = {part: llm for part in PARTS if (llm := getattr(self, part)) is not None}
        each = dict.fromkeys(clients.values())
        return {"+".join(part for part, llm in clients.items() if llm is one): one for one in each}

    def usage(self) -> dict[str, dict[str, int]]:
        """What each client has done in this run (`deltamem.llm.RequestCounts`), by its parts."""
        return {parts: asdict(llm.usage) for parts, llm in self.by_parts().items()}


@dataclass(frozen=True, slots=True)
class Parts:
    """What plays a part of a run in place of what the configuration would make, for tests and attacks."""

    system: System | None = None
    answerer: Answerer | None = None  # Stands for a model that answers, so its answers are judged
    judges: Mapping[str, Judge] | None = None  # By the names of `eval.benchmark.Benchmark.judges`, each of them

    def named(self, config: Config) -> Config:
        """The configuration with the names of these parts as those of the system and the models."""
        changes: dict[str, Any] = {}
        if self.system is not None:
            changes["system"] = self.system.name
        if self.answerer is not None:
            changes["answer"] = config.answer.model_copy(update={"kind": "llm", "model": self.answerer.name})
        if self.judges:
            names = ", ".join(sorted({judge.name for judge in self.judges.values()}))
            changes["judge"] = config.judge.model_copy(update={"model": names})
        return config.model_copy(update=changes)

    @property
    def names(self) -> set[str]:
        """Which of `PARTS` need no model."""
        given = {"manager": self.system, "answer": self.answerer, "judge": self.judges}
        return {name for name, part in given.items() if part is not None}


CONFIGURED = Parts()  # Nothing is replaced


@asynccontextmanager
async def open_models(config: BenchmarkConfig, without: Collection[str] = ()) -> AsyncIterator[Models]:
    """Open the response cache and the clients that the configuration asks for; nothing is sent yet.

    A manager is opened if its model is named, an answerer's model if one answers, a judge's if answers are judged; none for
    the parts that need no model (`without`).

    Raises:
        DeltaMemError: If a URL or model is missing or wrong, or the cache cannot be used.
        OSError: If the folder of the cache cannot be made.
    """
    plays = {"manager": config.manager.model is not None, "answer": config.answer.answerer == "llm", "judge": config.judged}
    wanted: dict[str, ModelSettings] = {part: getattr(config, part) for part in PARTS if plays[part] and part not in without}
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


CANARY = "Write one sentence about a lighthouse keeper and her cat."
"""Asked of each model when a run begins or goes on; another reply than before may mean another model."""

_CANARY_TOKENS = 16


async def check_models(config: BenchmarkConfig, models: Models, parts: Collection[str] = PARTS) -> dict[str, str]:
    """Ask each model of the `parts` that are needed for a few tokens, so that a run fails early if one is unreachable.

    Returns:
        By part a hash of the reply.

    Raises:
        DeltaMemError: If one does not answer, or what it may write would fill its whole window.
    """
    needed = {part: llm for part in PARTS if part in parts and (llm := getattr(models, part)) is not None}
    asked = [{"role": "user", "content": CANARY}]
    checks = {llm: llm.check(asked, max_tokens=_CANARY_TOKENS, temperature=0.0) for llm in dict.fromkeys(needed.values())}
    replies = dict(zip(checks, await asyncio.gather(*checks.values(), return_exceptions=True), strict=True))
    hashes = {}
    for part, llm in needed.items():
        if isinstance(reply := replies[llm], BaseException):
            raise reply
        said = f"{reply.reasoning}\n{reply.text}"
        hashes[part] = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    await asyncio.gather(*(find_window(part, llm, getattr(config, part)) for part, llm in needed.items()))
    return hashes


async def find_window(part: str, llm: LLM, settings: ModelSettings) -> int | None:
    """The context window in tokens of the model that plays a part, as the endpoint says; None if it does not.

    Raises:
        DeltaMemError: If what the model may write would fill the whole window: then every request is refused.
    """
    window = settings.window if isinstance(settings, ManagerModel) else None
    if window is None:
        try:
            served = await llm.models()
        except LLMError:  # some services do not list their models
            return None
        window = next((model.context_window for model in served if model.id == settings.model), None)
    if window is not None and settings.max_tokens is not None and settings.max_tokens >= window:
        raise DeltaMemError(f"{part}.max_tokens={settings.max_tokens} leaves no room in a context window of {window} tokens")
    return window


SYSTEMS = ("deltamem", "episodic", "stitch", "full_context", "naive_rag", "copy_all", "mem0", "langmem", "oracle", "none")
"""All systems by name."""

WITH_MODEL = ("deltamem", "episodic", "mem0", "langmem")
"""Those that need a language model (configuration group ``manager``) to keep their memories."""


def asks_model(config: BenchmarkConfig) -> bool:
    """Whether the system of a run asks a language model: ``stitch`` does if its labeller is one."""
    return config.system in WITH_MODEL or (config.system == "stitch" and config.labelled_by == "llm")


LEFT_OUT = {
    "a_mem": "its authors publish no package, and a-mem 0.2.6 on PyPI is a third party's MCP server, which takes a failed "
    "call of the model for an empty answer"
}
"""Systems that people ask for, and why they are not here."""


def check_system(name: str) -> None:
    """Refuse an unknown name before anything expensive happens.

    Raises:
        DeltaMemError: If there is no such system; lists those that exist, or says why it was left out.
    """
    if name in LEFT_OUT:
        raise DeltaMemError(f"system {name!r} is left out: {LEFT_OUT[name]}; there are: {', '.join(SYSTEMS)}")
    if name not in SYSTEMS:
        raise DeltaMemError(f"system {name!r} does not exist; there are: {', '.join(SYSTEMS)}")


def make_system(
    config: BenchmarkConfig,
    folder: Path,
    embedder: Embedder,
    models: Models,
    *,
    evidence: Evidence | None = None,
    intents: Mapping[str, OracleIntents] | None = None,
    vocabulary: Collection[str] = (),
) -> System:
    """The system that the configuration names; what it needs is opened with its stores.

    Systems that keep their memories on disk put them in the `folder`; the `evidence` is the gold evidence, for ``oracle``,
    and the `intents` are those of the benchmark, for ``stitch`` with ``labeller=oracle``. The `vocabulary` has names that
    are data of no user, for ``episodic``, which keeps no others.

    Raises:
        DeltaMemError: If the system is unknown, or what it needs is missing.
    """
    check_system(config.system)
    if asks_model(config) and (config.manager.base_url is None or config.manager.model is None):
        needs = "both base_url=<url> (or manager.base_url=<url>) and manager.model=<name>"
        raise DeltaMemError(f"system={config.system} needs a model: {needs}")
    manager = config.manager
    match config.system:
        case "none":
            return closed_book()
        case "full_context":
            return full_context()
        case "naive_rag":
            return naive_rag(embedder, with_time=config.with_time)
        case "copy_all":
            return copy_all(embedder, with_time=config.with_time)
        case "oracle":
            if evidence is None:
                raise DeltaMemError("system=oracle needs gold evidence, and this benchmark names none")
            return oracle(evidence)
        case "stitch":
            return StitchSystem(_labellers(config, embedder, models, intents), embedder, folder, config.without)
        case "mem0":
            from eval.systems.mem0 import Mem0System  # optional packages, and seconds of imports

            return Mem0System(folder, embedder, manager, models.cache, seed=config.seed, degraded=config.peers_degraded)
        case "langmem":
            from eval.systems.langmem import LangMemSystem

            return LangMemSystem(embedder, manager, models.cache, seed=config.seed, degraded=config.peers_degraded)
    settings = config.manager_settings()
    assert models.manager is not None  # as one is named
    policy = EndpointPolicy(
        models.manager,
        temperature=manager.temperature,
        max_tokens=manager.max_tokens,
        seed=config.seed,
        tool_role=manager.tool_role,
        thinking=settings.episode.thinking,
        extra_body=manager.extra_body,
    )
    if config.system == "episodic":
        episodic = EpisodicSettings(attempts=config.attempts, vocabulary=tuple(dict.fromkeys(vocabulary)))
        return EpisodicSystem(policy, embedder, folder, settings=episodic)
    return DeltaMemSystem(policy, embedder, folder, settings=settings, connect=lambda: connect(policy, manager))


def _labellers(
    config: BenchmarkConfig, embedder: Embedder, models: Models, intents: Mapping[str, OracleIntents] | None
) -> Callable[[StoreKey], IntentLabeller]:
    """Makes the labeller of a store of ``system=stitch``."""
    if config.labelled_by == "embedding":
        return lambda key: EmbeddingLabeller(embedder, without=config.without)
    if config.labelled_by == "llm":
        llm, manager = models.manager, config.manager
        assert llm is not None  # as one is named
        options: dict[str, Any] = {
            "temperature": manager.temperature,
            "max_tokens": manager.max_tokens,
            "seed": config.seed,
            "extra_body": manager.extra_body,
        }
        return lambda key: LLMLabeller(llm, embedder, without=config.without, **options)
    if intents is None:
        raise DeltaMemError("labeller=oracle needs the intents of turns and questions, and this benchmark names none")

    def oracle_of(key: StoreKey) -> OracleLabeller:
        of_store = intents.get(key.id)
        return OracleLabeller({}, {}) if of_store is None else OracleLabeller(of_store.steps, of_store.queries)

    return oracle_of


async def connect(policy: EndpointPolicy, manager: ManagerModel) -> int | None:
    """Fail early if the model is unreachable; returns its context window in tokens, as configured or as the endpoint says.

    Where neither tells it, sessions are split when they are refused.

    Raises:
        DeltaMemError: If the model does not answer, or an answer would fill the whole window.
    """
    await policy.check()
    return await find_window("manager", policy.llm, manager)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a run: of the answering model, None if no model answers, of each judge, and further ones, by name."""

    answer: Prompt | None
    judges: Mapping[str, Prompt]
    further: Mapping[str, Prompt] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        every = (self.answer, *self.judges.values(), *self.further.values())
        return {prompt.name: prompt.sha256 for prompt in every if prompt is not None}


def load_prompts(
    config: BenchmarkConfig,
    answer_prompt: str,
    answer_fields: Collection[str],
    judges: Mapping[str, JudgeSpec],
    further: Mapping[str, Collection[str]] = {},
) -> Prompts:
    """Load what a run will need, before anything expensive happens; the arguments are what the benchmark supplies.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    answer = None
    if config.answer.answerer == "llm":
        answer = load_prompt(config.answer.prompt or answer_prompt, answer_fields)
    specs = judges if config.judged else {}
    named = {name: load_prompt(spec.prompt, spec.fields) for name, spec in specs.items()}
    return Prompts(answer, named, {name: load_prompt(name, fields) for name, fields in further.items()})


def make_answerer(config: BenchmarkConfig, models: Models, embedder: Embedder, prompt: Prompt | None) -> Answerer | None:
    """The answerer that the configuration asks for, a model if there is a prompt for it; None if nothing is answered."""
    if config.answer.answerer == "none":
        return None
    if prompt is None:
        return ExtractiveAnswerer(embedder, with_time=config.with_time, timed=models.timed)
    assert models.answer is not None  # as it has a prompt
    return LLMAnswerer(_sampler(models.answer, config.answer, config), prompt, with_time=config.with_time)


def make_judge(
    config: BenchmarkConfig, models: Models, name: str, spec: JudgeSpec, prompt: Prompt, run: int = 0
) -> LLMJudge:
    """A judge on the judging model of a run that is judged; another `run` draws other samples."""
    assert models.judge is not None  # as there are prompts for judges
    sampler = replace(_sampler(models.judge, config.judge, config), run=run)
    return LLMJudge(name, sampler, prompt, spec.labels, flags=spec.flags, attempts=config.judge.attempts)


def _sampler(llm: LLM, settings: ModelSettings, config: BenchmarkConfig) -> Sampler:
    return Sampler(llm, settings.temperature, settings.max_tokens, config.seed, extra_body=settings.extra_body)


def _widest(settings: Collection[ModelSettings]) -> ModelSettings:
    """Settings for a client that several parts share: the most of what each allows."""
    first = next(iter(settings))
    limits = {name: max(getattr(one, name) for one in settings) for name in ("slots", "timeout", "max_retries")}
    return first.model_copy(update=limits)

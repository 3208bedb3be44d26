"""The clients of the models of a run, shared by the parts that have the same endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field

from deltamem.embedding import EmbedderSettings, LazyEmbedder
from deltamem.errors import DeltaMemError, LLMError
from deltamem.llm import LLM, ResponseCache
from eval.config import BenchmarkConfig, ManagerModel, ModelSettings

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

    def warnings(self) -> Iterator[str]:
        """What was asked for otherwise than configured because the endpoint refuses it, a sentence for each client."""
        for parts, llm in self.by_parts().items():
            if terms := str(llm.traits.terms.known):
                yield f"the endpoint of {parts} refuses what was configured: its requests went {terms}"


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
            # With the most of what each of the parts allows
            shared = ("slots", "timeout", "max_retries")
            limits = {name: max(getattr(one, name) for one in group.values()) for name in shared}
            part, settings = next(iter(group.items()))
            client = settings.model_copy(update=limits).client(part, cache)
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
        # Without its temperature of 0 the reply tells nothing.
        greedy = llm.traits.terms.known.fit({"temperature": 0.0})
        said = f"{reply.reasoning}\n{reply.text}" if greedy else "sampled"
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
    llm.traits.window = window or llm.traits.window
    if window is not None and settings.max_tokens is not None and settings.max_tokens >= window:
        raise DeltaMemError(f"{part}.max_tokens={settings.max_tokens} leaves no room in a context window of {window} tokens")
    return window

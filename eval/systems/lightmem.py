"""LightMem (arXiv 2510.18866) as a system under test: a reading of its method, since its authors publish no package.

Turns are grouped by topic, topics are gathered until there are enough of them for one call that writes down facts, and
facts are stored as they are. Between the sessions, in its "sleep", each stored fact that newer ones resemble is updated,
deleted or left alone, all at the same time.

Not here: compression by LLMLingua-2, which saves tokens, and its attention, whose peaks confirm where topics change; topics
change here where neighbours are least similar. The store is gone with the process: a run that is continued ingests all
sessions again, from cached answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel

from deltamem.bank.base import best_rows
from deltamem.config import StrictModel
from deltamem.embedding import Embedder, Vectors
from deltamem.llm import LLM, Usage
from deltamem.prompts import load_prompt
from deltamem.replies import read_object
from deltamem.window import estimate_tokens
from eval.config import BenchmarkConfig
from eval.systems.base import DialogueSession, DialogueTurn, Ingested, Passage, StoreKey
from eval.systems.http_cache import spoken_date
from eval.systems.kinds import MEMORIES_A_TURN, Calls, SystemContext, SystemKind, session_tokens

TOPIC_TOKENS = 512
"""With so many estimated tokens of topics a call is full and ends where the topic changes, at the latest with twice as many;
the buffers of the paper's code have as many."""

TOPIC_CHANGES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
"""Exchanges that are less similar than the first of these which parts any of a session belong to two topics."""

QUEUE, ALIKE = 10, 0.8
"""A fact is a reason to look again at so many stored ones, the most similar, if they are at least so similar."""

_ATTEMPTS = 3
"""How often a call is made whose answer cannot be read."""

PROMPTS = {name: load_prompt(f"lightmem_{name}", "eval.prompts") for name in ("extract", "sleep")}


class LightMemKeys(StrictModel):
    """The keys of ``system=lightmem``."""

    sleep: bool | None = None  # False: facts are only added; None means True


class _Statement(BaseModel):
    line: int = 0
    fact: str = ""


class _Extracted(BaseModel):
    facts: list[_Statement]


class _Decision(BaseModel):
    action: Literal["update", "delete", "ignore"]
    memory: str = ""


_A = TypeVar("_A", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _StoredFact:
    text: str
    time: datetime
    sources: tuple[str, ...]
    vector: Vectors  # Of shape (dimension,)


class LightMemSystem:
    """LightMem's method on the manager's model, with a volatile store for each store key."""

    name = "lightmem"
    per_speaker = True
    ranked = True

    def __init__(self, llm: LLM, embedder: Embedder, options: dict[str, Any], *, sleep: bool = True) -> None:
        """`options` are those of `LLM.chat`: temperature, max_tokens, seed, extra_body."""
        self.llm = llm
        self.embedder = embedder
        self.options = options
        self.sleep = sleep

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[LightMemStore]:
        """Make a store."""
        await asyncio.to_thread(self.embedder.queries, [])  # a missing model is found before work is half done
        yield LightMemStore(self, key)

    def facts(self) -> dict[str, Any]:
        """What it is and what it lacks."""
        return {
            "package": "our reading of arXiv 2510.18866",
            "model": self.llm.model,
            "embedder": self.embedder.name,
            "compression": False,
            "sleep": self.sleep,
            "prompt_hashes": {prompt.name: prompt.sha256 for prompt in PROMPTS.values()},
            "warnings": ["lightmem is our reading of its paper, in our prompts, without its compression by LLMLingua-2"],
        }


class LightMemStore:
    """One store."""

    def __init__(self, system: LightMemSystem, key: StoreKey) -> None:
        self._system = system
        self._key = key
        self._facts: list[_StoredFact] = []  # In the order in which they came
        self._ingested: dict[str, Ingested] = {}
        self._usage = Usage()  # Of the session that is being ingested
        self._unreadable = 0

    @property
    def known(self) -> Collection[str]:
        """Sessions that were ingested since the store was made."""
        return self._ingested.keys()

    async def reset(self) -> None:
        """Forget everything."""
        self._facts.clear()
        self._ingested.clear()

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Write down the facts of a session, then sleep. Nothing is kept of a session that fails."""
        if session.id in self._ingested:
            return replace(self._ingested[session.id], usage=Usage())
        self._usage, self._unreadable = Usage(), 0
        asked = await self._gathered(session.turns)
        found = [fact for topics in asked for fact in await self._extracted(session, topics)]
        readable = not asked or self._unreadable < len(asked)
        vectors = await asyncio.to_thread(self._system.embedder.documents, [text for text, _ in found])
        fresh = [_StoredFact(text, session.time, said, vector) for (text, said), vector in zip(found, vectors, strict=True)]
        slept = await self._slept(fresh) if self._system.sleep else {}
        changed = [fact for fact in slept.values() if fact is not None]
        every = [slept.get(place, fact) for place, fact in enumerate([*self._facts, *fresh])]
        self._facts = [fact for fact in every if fact is not None]
        operations = Counter(ADD=len(fresh), UPDATE=len(changed), DELETE=len(slept) - len(changed))
        ingested = self._ingested[session.id] = Ingested(
            memories=tuple(fact.text for fact in (*fresh, *changed)),
            operations=+operations,
            violations={"unreadable_answer": self._unreadable} if self._unreadable else {},
            usage=self._usage + Usage(searches=len(fresh) * self._system.sleep),
            readable=readable,
        )
        return ingested

    async def search(self, query: str, k: int) -> list[Passage]:
        """The `k` facts most similar to a query."""
        if not self._facts or k < 1:
            return []
        (wanted,) = await asyncio.to_thread(self._system.embedder.queries, [query])
        facts = list(self._facts)
        similarity = np.round(np.stack([fact.vector for fact in facts]) @ wanted, 6)
        best = ((facts[at], float(similarity[at])) for at in best_rows(similarity, k))
        return [Passage(fact.text, fact.time, fact.sources, alike) for fact, alike in best]

    async def _gathered(self, turns: Sequence[DialogueTurn]) -> list[list[Sequence[DialogueTurn]]]:
        """The topics of a session, gathered for a call each (sensory and short-term memory)."""
        starts = [0, *(at for at in range(1, len(turns)) if turns[at].role == "user" and turns[at - 1].role != "user")]
        exchanges = [turns[start:end] for start, end in zip(starts, [*starts[1:], len(turns)], strict=True)]
        texts = ["\n".join(turn.spoken for turn in exchange) for exchange in exchanges if exchange]
        if not texts:
            return []
        vectors = await asyncio.to_thread(self._system.embedder.documents, texts)
        near = [float(one @ two) for one, two in pairwise(vectors)]
        below = next((most for most in TOPIC_CHANGES if any(similarity < most for similarity in near)), 0.0)
        gathered: list[list[Sequence[DialogueTurn]]] = []
        tokens = 0  # Of the last call
        for number, exchange in enumerate(exchanges):
            changes = number == 0 or near[number - 1] < below
            if number == 0 or tokens >= (TOPIC_TOKENS if changes else 2 * TOPIC_TOKENS):
                gathered.append([exchange])
                tokens = 0
            elif changes:
                gathered[-1].append(exchange)
            else:
                gathered[-1][-1] = [*gathered[-1][-1], *exchange]
            tokens += estimate_tokens(texts[number])
        return gathered

    async def _extracted(
        self, session: DialogueSession, topics: Sequence[Sequence[DialogueTurn]]
    ) -> list[tuple[str, tuple[str, ...]]]:
        """The facts that some topics tell, with the turns they come from; none if no answer can be read."""
        turns = [turn for topic in topics for turn in topic]
        numbers = {turn.id: number for number, turn in enumerate(turns, start=1)}
        shown = (
            "\n".join(f"[{numbers[turn.id]}] {turn.speaker or turn.role}: {turn.text}" for turn in topic) for topic in topics
        )
        fields = {"owner": self._key.owner, "date": spoken_date(session.time), "lines": "\n\n".join(shown)}
        answer = await self._ask("extract", _Extracted, **fields)
        return [
            (" ".join(one.fact.split()), (turns[one.line - 1].id,) if 0 < one.line <= len(turns) else ())
            for one in (answer.facts if answer is not None else ())
            if one.fact.strip()
        ]

    async def _slept(self, fresh: Sequence[_StoredFact]) -> dict[int, _StoredFact | None]:
        """What becomes of facts because of fresh ones, by their place: another text, or None where they are deleted.

        The state is that before the sleep for all of them, so that the calls do not wait for each other.
        """
        facts = [*self._facts, *fresh]
        if not fresh:
            return {}
        vectors = np.stack([fact.vector for fact in facts])
        newer: defaultdict[int, list[_StoredFact]] = defaultdict(list)
        for place in range(len(self._facts), len(facts)):
            similarity = vectors[:place] @ vectors[place]
            for at in best_rows(similarity, QUEUE):
                if similarity[at] >= ALIKE:
                    newer[int(at)].append(facts[place])
        calls = (self._decided(facts[at], of) for at, of in newer.items())
        changed: dict[int, _StoredFact | None] = {}
        for at, fact in zip(newer, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(fact, BaseException):  # once no call is under way any more
                raise fact
            if fact is not facts[at]:
                changed[at] = fact
        return changed

    async def _decided(self, fact: _StoredFact, newer: Sequence[_StoredFact]) -> _StoredFact | None:
        """A fact as newer ones leave it: itself, rewritten, or None."""
        listed = "\n".join(f"- {spoken_date(one.time)}: {one.text}" for one in newer)
        answer = await self._ask("sleep", _Decision, time=spoken_date(fact.time), memory=fact.text, newer=listed)
        if answer is not None and answer.action == "delete":
            return None
        text = "" if answer is None or answer.action == "ignore" else " ".join(answer.memory.split())
        if not text or text == fact.text:
            return fact
        (vector,) = await asyncio.to_thread(self._system.embedder.documents, [text])
        sources = dict.fromkeys(source for one in (fact, *newer) for source in one.sources)
        return replace(fact, text=text, vector=vector, sources=tuple(sources))

    async def _ask(self, name: str, shape: type[_A], **fields: str) -> _A | None:
        """The answer to a prompt; None, which is counted, if none can be read."""
        messages = [{"role": "user", "content": PROMPTS[name].fill(**fields)}]
        for sample in range(_ATTEMPTS):
            reply = await self._system.llm.chat(messages, scope=self._key.id, sample=sample, **self._system.options)
            self._usage += Usage.of(reply)
            if (answer := read_object(reply.text, shape).value) is not None:
                return answer
        self._unreadable += 1
        return None


def _sleeps(config: BenchmarkConfig) -> bool:
    return config.own(LightMemKeys).sleep is not False


class LightMemKind(SystemKind):
    """LightMem on the manager's model."""

    name = "lightmem"
    per_speaker = True
    with_model = True
    keys = LightMemKeys

    def run_config(self, config: BenchmarkConfig) -> dict[str, Any]:
        """Whether it sleeps, and the prompts."""
        return {"sleep": _sleeps(config), "lightmem_prompts": [one.sha256 for one in PROMPTS.values()]}

    def make(self, context: SystemContext) -> LightMemSystem:
        """The system; nothing is missing."""
        config, llm = context.config, context.models.manager
        assert llm is not None  # as one is named
        options = config.manager.model_dump(include={"temperature", "max_tokens", "extra_body"}) | {"seed": config.seed}
        return LightMemSystem(llm, context.embedder, options, sleep=_sleeps(config))

    def calls(self, session: DialogueSession, store: StoreKey, config: BenchmarkConfig) -> Iterator[Calls]:
        """One for each of the gathered topics, and one for each tenth fact in the sleep."""
        tokens = session_tokens(session)
        gathered = max(1, round(tokens / TOPIC_TOKENS)) if session.turns else 0
        yield Calls(gathered, tokens + gathered * estimate_tokens(PROMPTS["extract"].text), 200)  # assumed
        if _sleeps(config):
            looked_at = MEMORIES_A_TURN * len(session.turns) / 10
            yield Calls(looked_at, looked_at * (estimate_tokens(PROMPTS["sleep"].text) + 100), 60)


LIGHTMEM = LightMemKind()

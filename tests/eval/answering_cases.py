"""What the tests of answerers and judges share: a client of the scripted server, small requests, a configuration."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from scripted_server import Script, Served, serve
from system_cases import benchmark_config

from deltamem.llm import LLM, ResponseCache
from deltamem.prompts import Prompt
from eval.answer import AnswerRequest, ContextBlock, LLMAnswerer, Sampler, load_prompt
from eval.config import BenchmarkConfig
from eval.judge import QUESTION_FIELDS, QUESTION_LABELS, LLMJudge
from eval.systems.base import Passage

FIELDS = {"question": "When did Ana move?", "gold": "8 May 2023", "answer": "May 8th, 2023"}
CORRECT = json.dumps({"reason": "Same date.", "label": "correct"})
MAY = datetime(2023, 5, 8, 13, 56)


def block(*texts: str, title: str = "Memories of Ana:", time: datetime | None = MAY) -> ContextBlock:
    return ContextBlock(title, tuple(Passage(text, time) for text in texts))


def request(
    *texts: str, question: str = "When did Ana move?", options: tuple[str, ...] = (), scope: str = "c1"
) -> AnswerRequest:
    return AnswerRequest(question, (block(*texts),) if texts else (), options, scope)


def prompt(text: str) -> Prompt:
    return Prompt("own", text, "0" * 64)


def answerer(llm: LLM, own: Prompt | None = None) -> LLMAnswerer:
    chosen = own or load_prompt("answer_locomo", ("context", "question"))
    return LLMAnswerer(Sampler(llm, 0.0, 32, 5), chosen, with_time=True)


def judge(llm: LLM, name: str = "lenient", **options: Any) -> LLMJudge:
    own = load_prompt(f"judge_{name}", QUESTION_FIELDS)
    chosen: dict[str, Any] = {"labels": QUESTION_LABELS, "attempts": 3} | options
    return LLMJudge(name, Sampler(llm, 0.0, 32, 5), own, **chosen)


@asynccontextmanager
async def model(script: Script, cache: Path | None = None, *, max_retries: int = 0) -> AsyncIterator[tuple[LLM, Served]]:
    kept = ResponseCache(cache) if cache else None
    with serve(script) as server:
        llm = LLM(server.url, "tiny", cache=kept, max_retries=max_retries)
        yield llm, server
        await llm.close()
    if kept:
        kept.close()


def contents(served: Served) -> list[str]:
    """The last message of every request."""
    return [body["messages"][-1]["content"] for body in served.requests]


def config(out: Path, **keys: Any) -> BenchmarkConfig:
    """The shared configuration with some keys changed; two underscores stand for a dot."""
    return benchmark_config(out, *(f"{key.replace('__', '.')}={value}" for key, value in keys.items()))

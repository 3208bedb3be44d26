"""A task with a good answer, and a writer with settings that give up soon, for the tests of language models as writers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import handmade
from scripted_server import Script, serve

from deltamem.runs import JsonLinesStore
from synth.config import LLMSettings
from synth.llm.pool import EndpointPool
from synth.llm.writer import LLMWriter
from synth.tasks import FixedTask, Task, UnitId, UnitResult
from synth.validators.base import Similarity

FIXED = handmade.edit(handmade.FIXED, {"name": "Mira Tamm"})
TASK = FixedTask(persona="A botanist who collects <|im_end|> seeds </task>", draft=FIXED)
PLACE = UnitId(person=3, step=0, name="p000003/fixed")
GOOD = FIXED.model_dump_json()
OTHER_NAME = FIXED.model_copy(update={"name": "Mira Tam"}).model_dump_json()
"""Breaks the rule ``fixed.identity``."""


def llm_settings(*urls: str, **changes: Any) -> LLMSettings:
    values: dict[str, Any] = {"base_urls": urls, "model": "tiny", "max_retries": 0, "patience": 5.0}
    return LLMSettings(**values | changes)


@asynccontextmanager
async def open_pool(*urls: str, **changes: Any) -> AsyncIterator[EndpointPool]:
    """A pool of servers, closed in the end; `changes` are settings."""
    pool = EndpointPool(llm_settings(*urls, **changes))
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def open_writer(
    url: str, store: JsonLinesStore, *, seed: int = 1, similarity: Similarity | None = None, **changes: Any
) -> AsyncIterator[LLMWriter]:
    """A writer on a server; `changes` are settings."""
    async with open_pool(url, **changes) as pool:
        yield LLMWriter(llm_settings(url, **changes), pool, store, seed=seed, similarity=similarity)


async def written_by(
    script: Script, store: JsonLinesStore, task: Task[Any] = TASK, **changes: Any
) -> tuple[UnitResult[Any], list[dict[str, Any]]]:
    """What comes of a task on a scripted server, and the requests that it got."""
    with serve(script) as server:
        async with open_writer(server.url, store, **changes) as writer:
            written = await writer.write(task, PLACE)
    return written, server.requests


def broken(written: UnitResult[Any]) -> list[list[str]]:
    """The broken rules of each attempt."""
    return [[violation.rule for violation in verdict.violations] for verdict in written.verdicts]


def names(requests: list[dict[str, Any]]) -> list[str]:
    """What each request asks for."""
    return [request["response_format"]["json_schema"]["name"] for request in requests]

"""A model puts what is said of operations into its own words; what changes the payload is refused and written again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from deltamem.llm import LLM, ResponseCache
from deltamem.prompts import load_prompt
from deltamem.replies import without_thinking
from deltamem.runs import run_tasks
from papers.stitch.came.records import ClosedWorld, LogOperation, TurnReference
from papers.stitch.writer.realise import Core

CONTEXT = 4
"""Turns before an operation that the writer is shown."""

_MARKS = re.compile(r"\$\d+|\d\d:\d\d|\d+(?:\.\d+)?%|\bday \d+|\b(?:pro|con) case on\b", re.IGNORECASE)
_YES = re.compile(r"\W*yes\b", re.IGNORECASE)


def changed(text: str, core: Core, done: LogOperation, names: Sequence[str]) -> str | None:
    """What of the payload a text has lost or added, in a sentence for the model; None if it is all there.

    Values, days, cases and entities must be those of the template's words; a reference must stand there as it is.
    """
    if not text or "\n" in text:
        return "It must be one paragraph."
    if len(text) > 4 * len(core.text) + 200:
        return "It is too long."
    if core.reference is not None and len(_found(core.reference, text)) != 1:
        return f"It must hold these words once, as they are: {core.reference.phrase}"
    kept = (*([done.slot] if done.slot else []), *([done.attribute] if done.action == "inquire" else []))
    kept += (done.goal,) if done.goal.casefold() in core.text.casefold() else ()
    if lost := [word for word in kept if word.casefold() not in text.casefold()]:
        return f"It must hold these words as they are: {lost[0]}"
    wanted, found = (
        {mark.casefold() for mark in _MARKS.findall(one)} | {name for name in names if name in one}
        for one in (core.text, text)
    )
    if lost := sorted(wanted - found):
        return f"It lacks: {', '.join(lost)}"
    return f"It must not hold: {', '.join(sorted(found - wanted))}" if found - wanted else None


def _found(reference: TurnReference, text: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"\b{re.escape(reference.phrase)}\b", text, re.IGNORECASE))


class Rewriter:
    """Writes, checks by rule, then asks the model itself whether the text says the operation, as in appendix A.6."""

    def __init__(
        self, llm: LLM, cache: ResponseCache, temperature: float | None, max_tokens: int | None, attempts: int, seed: int
    ) -> None:
        """Take over a client and its cache; they are closed at the end of the ``with`` block."""
        self._llm, self._cache, self._temperature, self._max_tokens = llm, cache, temperature, max_tokens
        self._attempts, self._seed = attempts, seed
        self.counts = {"rewritten": 0, "kept": 0}  # Turns in the words of the model, and in those of the template

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cache.close()

    def rewrite(self, world: ClosedWorld, operations: Sequence[LogOperation], cores: Sequence[Core]) -> list[Core]:
        """The operations in other words, those that no attempt succeeded at in the old ones.

        Raises:
            DeltaMemError: If the endpoint fails. What was answered before is kept, and not asked for again.
        """
        names = [entity.name for entity in world.entities]

        async def every() -> list[Core]:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._one(world, done, core, cores[max(0, at - CONTEXT) : at], names))
                        for at, (done, core) in enumerate(zip(operations, cores, strict=True))
                    ]
            finally:
                with suppress(Exception):
                    await self._llm.close()
            return [task.result() for task in tasks]

        return run_tasks(every)

    async def _one(
        self, world: ClosedWorld, done: LogOperation, core: Core, before: Sequence[Core], names: Sequence[str]
    ) -> Core:
        problem = "none"
        for attempt in range(self._attempts):
            fields = {
                "setting": "planning a trip" if world.domain == "travel" else f"a debate on the motion: {world.topic}",
                "role": done.role,
                "before": "\n".join(one.text for one in before) or "(nothing)",
                "text": core.text,
                "problem": problem,
            }
            text = (await self._ask("came_turn", fields, self._temperature, attempt)).strip().strip('"')
            if (wrong := changed(text, core, done, names)) is not None:
                problem = wrong
                continue
            said = await self._ask("came_entailment", {"first": core.text, "second": text}, 0.0, attempt)
            if not _YES.match(said):
                problem = "It does not say the same."
                continue
            self.counts["rewritten"] += 1
            if core.reference is None:
                return replace(core, text=text)
            begin, end = _found(core.reference, text)[0].span()
            return replace(core, text=text, resolved=f"{text[:begin]}{core.reference.entity}{text[end:]}")
        self.counts["kept"] += 1
        return core

    async def _ask(self, prompt: str, fields: dict[str, str], temperature: float | None, sample: int) -> str:
        answer = await self._llm.chat(
            [{"role": "user", "content": load_prompt(prompt, "papers.stitch.prompts").fill(**fields)}],
            temperature=temperature,
            max_tokens=self._max_tokens,
            seed=self._seed + sample,
            scope="came",
            sample=sample,
        )
        return without_thinking(answer.text)

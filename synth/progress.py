"""What the person who waits is shown: a live table on a terminal, now and then a line elsewhere, a summary at the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from synth.records import Person
from synth.tasks import Unit, UnitResult

if TYPE_CHECKING:
    from synth.llm.pool import EndpointPool

STAGES = tuple(dict.fromkeys(unit.stage for unit in Unit))
"""The stages of the paper, in order."""

_WINDOW = 120.0
"""Seconds over which tokens a second are averaged."""

_SHOWN_RULES = 5


class Progress:
    """Counts what is done, and shows it on stderr."""

    def __init__(self, *, people: int, found: int, expected: Mapping[Unit, float], pool: EndpointPool | None = None) -> None:
        """Of the `people` an earlier run has finished those `found`; of one, the units `expected` are to be done."""
        self._console = Console(stderr=True, highlight=False)
        self._pool = pool
        self._people, self._finished, self._failed, self._in_work = people, found, 0, 0
        self._expected: defaultdict[str, float] = defaultdict(float)
        for unit, count in expected.items():
            self._expected[unit.stage] += count * (people - found)
        self._started = time.monotonic()
        self._done: Counter[str] = Counter()
        self._rejected = self._repairs = 0
        self._recent: deque[tuple[float, int]] = deque()

    def observe(self, unit: Unit, written: UnitResult[Any]) -> None:
        """Count a unit; an `Observer`."""
        self._done[unit.stage] += 1
        self._repairs += len(written.verdicts) - 1
        self._rejected += written.answer is None
        if written.spent_tokens:
            self._recent.append((time.monotonic(), written.spent_tokens))

    def begin(self) -> None:
        """Count a person who is in work now."""
        self._in_work += 1

    def end(self, *, failed: bool = False) -> None:
        """Count a person who is not in work any more."""
        self._in_work -= 1
        self._finished += not failed
        self._failed += failed

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    @asynccontextmanager
    async def shown(self, seconds: float) -> AsyncIterator[None]:
        """Show how far the work is while the block runs; where stderr is no terminal, in a line every so many seconds."""

        async def lines() -> None:
            while True:
                await asyncio.sleep(seconds)
                self._console.print(self._line(), soft_wrap=True, markup=False)

        if self._console.is_terminal:
            with Live(get_renderable=self._table, console=self._console, refresh_per_second=2, transient=True):
                yield
            return
        printing = asyncio.create_task(lines())
        try:
            yield
        finally:
            printing.cancel()

    def _totals(self) -> dict[str, float]:
        """Units of each stage that has any."""
        totals = {stage: max(self._expected[stage], self._done[stage]) for stage in STAGES}
        return {stage: total for stage, total in totals.items() if total}

    def _line(self) -> str:
        stages = ", ".join(f"{stage} {self._done[stage]}/{round(total)}" for stage, total in self._totals().items())
        return f"people {self._finished}/{self._people} ({stages}), {self._figures()}"

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for stage, total in self._totals().items():
            done = self._done[stage]
            table.add_row(stage, f"{done:,} of about {round(total):,} units", f"{done / total:.0%}")
        table.add_row("people", f"{self._finished:,} of {self._people:,} finished", self._figures())
        return table

    def _figures(self) -> str:
        done, now = self._done.total(), time.monotonic()
        share = self._rejected / done if done else 0.0
        figures = [f"{self._in_work} people in work", f"{self._repairs} repairs", f"{share:.1%} rejected"]
        if self._pool is not None:
            figures += [f"{self._pool.in_flight} requests in flight", f"{self._pool.retries} retries"]
        if self._failed:
            figures.append(f"{self._failed} people failed")
        if self._recent:
            spent = sum(tokens for moment, tokens in self._recent if moment >= now - _WINDOW)
            figures.append(f"{spent / max(min(_WINDOW, self.seconds), 1e-3):,.0f} tokens/s")
            while len(self._recent) > 1 and self._recent[0][0] < now - _WINDOW:
                self._recent.popleft()
        left = sum(self._totals().values()) - done
        return ", ".join([*figures, f"ETA {duration(self.seconds * left / done) if done else 'unknown'}"])


class Totals:
    """Counts over finished people, whichever run wrote them."""

    def __init__(self) -> None:
        self._people, self._sessions, self._operations = Counter[str](), Counter[str](), Counter[str]()
        self._rejected, self._violations, self._usage = Counter[str](), Counter[str](), Counter[str]()

    def counting(self, people: Iterable[Person]) -> Iterator[Person]:
        """Hand people on and count them."""
        for person in people:
            self._people["finished" if person.profile and person.events else "rejected"] += 1
            for session in person.sessions:
                self._sessions["written" if session.dialogue else "rejected"] += 1
                if session.dialogue:
                    self._operations.update(str(fact.event) for fact in session.facts)
            for rejection in person.rejections:
                self._rejected.update(set(rejection.rules))
            self._violations.update(person.violations)
            for usage in person.usage.values():
                self._usage.update(usage.model_dump())
            yield person

    def summary(self, seconds: float) -> str:
        """A line for each thing that was counted, after a run of `seconds`."""
        rows = {
            name: ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())) or "0"
            for name, counts in (("people", self._people), ("sessions", self._sessions), ("operations", self._operations))
        }
        usage = self._usage
        rows["answers"] = f"{usage['attempts']:,}; broken rules: {_top(self._violations)}"
        rows["rejected for"] = _top(self._rejected)
        if usage["prompt_tokens"] or usage["completion_tokens"]:
            tokens = f"{usage['prompt_tokens']:,} prompt, {usage['completion_tokens']:,} completion"
            rows["tokens"] = f"{tokens}, {usage['reasoning_tokens']:,} of them thinking"
        rows["time"] = duration(seconds)
        return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """A time span in words, to two places: ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"


def _top(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count:,}" for name, count in ordered[:_SHOWN_RULES] if count]
    if len(ordered) > _SHOWN_RULES:
        shown.append(f"{len(ordered) - _SHOWN_RULES} more rules")
    return ", ".join(shown) or "none"

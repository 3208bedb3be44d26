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
        """Begin to count.

        Args:
            people: People of this run in all.
            found: Of these, how many an earlier run has finished.
            expected: Units of one person, see `synth.estimate.expected_units`.
            pool: Knows of requests in flight and retries.
        """
        self._console = Console(stderr=True, highlight=False)
        self._pool = pool
        self._people = people
        self._found = found
        self._expected: defaultdict[str, float] = defaultdict(float)
        for unit, count in expected.items():
            self._expected[unit.stage] += count * (people - found)
        self._started = time.monotonic()
        self._done: Counter[str] = Counter()
        self._units = self._rejected = self._repairs = self._in_work = 0
        self._finished = self._failed = 0
        self._spent = 0
        self._recent: deque[tuple[float, int]] = deque()

    def observe(self, unit: Unit, written: UnitResult[Any]) -> None:
        """Count a unit; an `Observer`."""
        self._done[unit.stage] += 1
        self._units += 1
        self._repairs += len(written.verdicts) - 1
        self._rejected += written.answer is None
        if written.spent_tokens:
            self._spent += written.spent_tokens
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
        """Show how far the work is while the block runs.

        Args:
            seconds: From one line to the next, where stderr is not a terminal.
        """
        if self._console.is_terminal:
            with Live(get_renderable=self._table, console=self._console, refresh_per_second=2, transient=True):
                yield
            return
        lines = asyncio.create_task(self._lines(seconds))
        try:
            yield
        finally:
            lines.cancel()

    async def _lines(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._console.print(self.line(), soft_wrap=True, markup=False)

    def line(self) -> str:
        """Everything in one line."""
        stages = ", ".join(
            f"{stage} {self._done[stage]}/{round(self._total(stage))}" for stage in STAGES if self._total(stage)
        )
        return f"people {self._found + self._finished}/{self._people} ({stages}), {self._figures()}"

    def _total(self, stage: str) -> float:
        return max(self._expected[stage], self._done[stage])

    def _figures(self) -> str:
        share = self._rejected / self._units if self._units else 0.0
        figures = [f"{self._in_work} people in work", f"{self._repairs} repairs", f"{share:.1%} rejected"]
        if self._pool is not None:
            figures += [f"{self._pool.in_flight} requests in flight", f"{self._pool.retries} retries"]
        if self._failed:
            figures.append(f"{self._failed} people failed")
        if self._spent:
            figures.append(f"{self._tokens_per_second():,.0f} tokens/s")
        return ", ".join([*figures, f"ETA {self._eta()}"])

    def _tokens_per_second(self) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - _WINDOW:
            self._recent.popleft()
        return sum(tokens for _, tokens in self._recent) / max(min(_WINDOW, self.seconds), 1e-3)

    def _eta(self) -> str:
        done = sum(self._done[stage] for stage in STAGES)
        total = sum(self._total(stage) for stage in STAGES)
        if not done:
            return "unknown"
        return duration(self.seconds * (total - done) / done)

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for stage in STAGES:
            if total := self._total(stage):
                table.add_row(
                    stage, f"{self._done[stage]:,} of about {round(total):,} units", f"{self._done[stage] / total:.0%}"
                )
        table.add_row("people", f"{self._found + self._finished:,} of {self._people:,} finished", self._figures())
        return table


class Totals:
    """Counts over finished people, whichever run wrote them."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.people: Counter[str] = Counter()
        self.sessions: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.attempts = self.prompt_tokens = self.completion_tokens = self.reasoning_tokens = 0

    def counting(self, people: Iterable[Person]) -> Iterator[Person]:
        """Hand people on and count them."""
        for person in people:
            self.add(person)
            yield person

    def add(self, person: Person) -> None:
        """Count one person."""
        written = person.profile is not None and bool(person.events)
        self.people["finished" if written else "rejected"] += 1
        for session in person.sessions:
            self.sessions["written" if session.dialogue else "rejected"] += 1
            if session.dialogue:
                self.operations.update(str(fact.event) for fact in session.facts)
        for rejection in person.rejections:
            self.rejected.update(set(rejection.rules))
        self.violations.update(person.violations)
        for usage in person.usage.values():
            self.attempts += usage.attempts
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
            self.reasoning_tokens += usage.reasoning_tokens

    def summary(self, seconds: float) -> str:
        """A line for each thing that was counted, after a run of `seconds`."""
        rows = {
            "people": _counts(self.people),
            "sessions": _counts(self.sessions),
            "operations": _counts(self.operations),
            "answers": f"{self.attempts:,}; broken rules: {_top(self.violations)}",
            "rejected for": _top(self.rejected),
        }
        if self.prompt_tokens or self.completion_tokens:
            rows["tokens"] = (
                f"{self.prompt_tokens:,} prompt, {self.completion_tokens:,} completion, "
                f"{self.reasoning_tokens:,} of them thinking"
            )
        rows["time"] = duration(seconds)
        return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def duration(seconds: float) -> str:
    """A time span in words, to two places: ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "0"


def _top(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count:,}" for name, count in ordered[:_SHOWN_RULES] if count]
    if len(ordered) > _SHOWN_RULES:
        shown.append(f"{len(ordered) - _SHOWN_RULES} more rules")
    return ", ".join(shown) or "none"

"""What the person who waits is shown: bars or now and then a line while people are written, a summary at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from deltamem.progress import ProgressDisplay
from synth.records import Person
from synth.tasks import Unit, UnitResult

if TYPE_CHECKING:
    from synth.llm.pool import EndpointPool

_SHOWN_RULES = 5


class Progress(ProgressDisplay):
    """Units by stage of the paper, and people, on stderr."""

    def __init__(
        self, people: int, expected: Mapping[Unit, float], *, seconds: float, pool: EndpointPool | None = None
    ) -> None:
        """So many people are to be written; of one, the units `expected` are. `seconds`: between two lines."""
        units = Counter({unit.stage: 0 for unit in Unit})
        for unit, count in expected.items():
            units[unit.stage] += round(count * people)
        console = Console(stderr=True, highlight=False)
        super().__init__(console, {**units, "people": people}, figures=self._more, seconds=seconds)
        self._pool, self._started, self._repairs, self._spent = pool, time.monotonic(), 0, 0

    def observe(self, unit: Unit, written: UnitResult[Any]) -> None:
        """Count a unit; an `Observer`."""
        self._repairs += len(written.verdicts) - 1
        self._spent += written.spent_tokens
        self.advance(unit.stage, tokens=written.spent_tokens, failed=written.answer is None)

    def _more(self) -> Iterator[str]:
        yield f"{self._repairs:,} repairs"
        if self._pool is not None:
            yield f"{self._spent / max(time.monotonic() - self._started, 1e-3):,.0f} tokens/s"
            yield f"{self._pool.in_flight} requests in flight, {self._pool.retries} retries"


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

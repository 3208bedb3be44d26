"""What writing a person took: answers by rule, units by kind, and what was given up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from synth.records import Rejection, UnitUsage
from synth.rules import Verdict, Violation
from synth.tasks import Unit
from synth.writing import Written


class Account:
    """Counts units as they are done; what it tells does not depend on the order in which they were."""

    def __init__(self) -> None:
        self._checked: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._usage: defaultdict[Unit, Counter[str]] = defaultdict(Counter)
        self._rejected: list[tuple[int, int, Rejection]] = []

    def take(self, unit: Unit, written: Written[Any], place: int | None = None) -> None:
        """Count a unit, and name it among the rejections if it has no answer.

        Args:
            unit: Its kind.
            written: What became of it.
            place: Which one of the person's; None where there is only one.
        """
        for verdict in written.verdicts:
            self.judged(verdict)
        self._usage[unit].update(
            units=1,
            attempts=len(written.verdicts),
            rejected=int(written.answer is None),
            prompt_tokens=written.prompt_tokens,
            completion_tokens=written.completion_tokens,
        )
        if written.answer is None:
            self.reject(unit, written.verdicts[-1].violations if written.verdicts else (), place)

    def judged(self, verdict: Verdict) -> None:
        """Count what one answer, or one finished whole, was checked for and has broken."""
        self._checked.update(set(verdict.checked))
        self._violations.update({violation.rule for violation in verdict.violations})

    def reject(self, unit: Unit, violations: Sequence[Violation], place: int | None = None) -> None:
        """Name something that is given up, with the rules that it breaks."""
        rules = tuple(dict.fromkeys(violation.rule for violation in violations))
        reasons = tuple(violation.message for violation in violations)
        where = "" if place is None else str(place)
        order = (tuple(Unit).index(unit), -1 if place is None else place)
        self._rejected.append((*order, Rejection(unit=unit, where=where, rules=rules, reasons=reasons)))

    @property
    def checked(self) -> dict[str, int]:
        """How many answers each rule has judged."""
        return dict(sorted(self._checked.items()))

    @property
    def violations(self) -> dict[str, int]:
        """How many answers have broken each rule."""
        return dict(sorted(self._violations.items()))

    @property
    def usage(self) -> dict[str, UnitUsage]:
        """What the units of each kind took, in the order of a person's life."""
        return {unit.value: UnitUsage(**self._usage[unit]) for unit in Unit if unit in self._usage}

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What was given up, in the order of a person's life."""
        return tuple(rejection for *_, rejection in sorted(self._rejected, key=lambda item: item[:2]))

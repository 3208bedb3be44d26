"""What runs cost and how far their judges can be trusted, as tables with a column for each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eval.compare.layouts import Column
from eval.compare.loading import Run, Spread
from eval.compare.paired import Difference
from eval.compare.tables import Cell, Row, Table

_PARTS = ("ingest", "search", "answer", "judge")


def cost_table(runs: Sequence[Run]) -> Table:
    """Tokens, calls, seconds, context, latency and failures of each run; over all invocations, cached answers included."""
    rows = [
        _row("questions answered, of those in the file", map(_answered, runs)),
        _row("failures", map(_failures, runs)),
        _row("sessions taken in", map(_sessions, runs)),
        _row("memories written", map(_memories, runs)),
        _row("searches of the system by memory", map(_queries, runs)),
        _row("context tokens by answer, estimated", map(_context, runs)),
    ]
    for part in _PARTS:
        if part != "search":
            rows.append(_row(f"{part}: tokens read", (_cost(run, part, "prompt_tokens") for run in runs)))
            rows.append(_row(f"{part}: tokens written", (_cost(run, part, "completion_tokens") for run in runs)))
            rows.append(_row(f"{part}: calls", (_calls(run, part) for run in runs)))
        rows.append(_row(f"{part}: seconds, summed over calls", (_cost(run, part, "seconds", digits=1) for run in runs)))
        rows.append(_row(f"{part}: seconds, p50 / p95", (_spread(run.summary.latency.get(part)) for run in runs)))
    for name, label in (("prompt_tokens", "tokens read"), ("completion_tokens", "tokens written"), ("calls", "calls")):
        rows.append(_row(f"probes: {label}", (_probing(run, name) for run in runs)))
    for stage in dict.fromkeys(stage for run in runs for stage in run.summary.seconds):
        rows.append(_row(f"wall seconds of the last invocation, {stage}", (_wall(run, stage) for run in runs)))
    return Table("Cost", _columns(runs), [row for row in rows if any(row.cells)])


def probe_table(runs: Sequence[Run]) -> Table:
    """How often each judge accepts what is known to be wrong, and rejects what is known to be right."""
    rows = []
    for judge in dict.fromkeys(str(probe.get("judge")) for run in runs for probe in run.summary.probes):
        for rate, label in (("false_accept", "calls wrong answers right"), ("false_reject", "calls right answers wrong")):
            cells = tuple(_probe(run, judge, rate) for run in runs)
            rows.append(Row("ours", f"{judge} judge", label, cells))
    return Table("Judges on probe answers that are known to be right or wrong, in percent", _columns(runs), rows)


def difference_table(differences: Sequence[Difference]) -> Table:
    """Paired differences, with the intervals that leave out 0 marked."""
    columns = (Column("difference", "", "difference"), Column("questions", "", "questions"), Column("groups", "", "groups"))
    rows = []
    for one in differences:
        interval = one.interval
        small = (
            f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}" if interval.groups > 1 else "one group: no interval"
        )
        cells = (
            Cell(f"{100 * interval.estimate:+.2f}{' *' if one.apart else ''}", small),
            Cell(f"{interval.count:,}"),
            Cell(f"{interval.groups:,}"),
        )
        rows.append(Row("ours", one.metric, f"{one.first} minus {one.second}", cells))
    return Table(
        "Differences on the same questions, in percentage points",
        columns,
        rows,
        note="Paired bootstrap by group with a 95% interval; * where it leaves out 0. The number of comparisons is not "
        "corrected for.",
    )


def _row(label: str, cells: Iterable[Cell | None]) -> Row:
    return Row("ours", label, "", tuple(cells))


def _columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    return tuple(Column(run.name, "", run.name) for run in runs)


def _answered(run: Run) -> Cell:
    counts = run.summary.questions
    return Cell(f"{counts.answered:,} of {counts.total:,}", f"{counts.failed:,} failed" if counts.failed else "")


def _by_stage(stages: Mapping[str, int]) -> str:
    return ", ".join(f"{stage} {count:,}" for stage, count in stages.items())


def _sessions(run: Run) -> Cell | None:
    sessions = run.summary.sessions
    if not sessions.get("total"):
        return None
    broken = {name: sessions.get(name, 0) for name in ("unreadable", "failed", "late") if sessions.get(name)}
    return Cell(f"{sessions.get('applied', 0):,} of {sessions['total']:,}", _by_stage(broken))


def _context(run: Run) -> Cell | None:
    context = run.summary.context_tokens
    return None if context is None else Cell(f"{context.mean:,.0f}", f"p50 {context.p50:,.0f}, p95 {context.p95:,.0f}")


def _failures(run: Run) -> Cell:
    return Cell(f"{run.summary.failures.count:,}", _by_stage(run.summary.failures.by_stage))


def _memories(run: Run) -> Cell | None:
    memories = run.summary.memories
    return None if memories is None else Cell(f"{memories['written']:,}")


def _queries(run: Run) -> Cell | None:
    value = run.summary.queries_per_memory
    return None if value is None else Cell(f"{value:.2f}")


def _cost(run: Run, part: str, name: str, digits: int = 0) -> Cell | None:
    value = run.summary.cost.get(part, {}).get(name)
    return None if not value else Cell(f"{value:,.{digits}f}")


def _calls(run: Run, part: str) -> Cell | None:
    cost = run.summary.cost.get(part, {})
    if not cost.get("calls"):
        return None
    cached = f"{cost['cached']:,.0f} from the cache" if cost.get("cached") else ""
    return Cell(f"{cost['calls']:,.0f}", cached)


def _probing(run: Run, name: str) -> Cell | None:
    """What it came to to measure all judges; not part of the cost of judging."""
    value = sum(probe.get("cost", {}).get(name, 0) for probe in run.summary.probes)
    return Cell(f"{value:,.0f}") if value else None


def _spread(spread: Spread | None) -> Cell | None:
    return None if spread is None else Cell(f"{spread.p50:.3g} / {spread.p95:.3g}")


def _wall(run: Run, stage: str) -> Cell | None:
    value = run.summary.seconds.get(stage)
    return None if value is None else Cell(f"{value:,.1f}")


def _probe(run: Run, judge: str, rate: str) -> Cell | None:
    for probe in run.summary.probes:
        if probe.get("judge") == judge and isinstance(measured := probe.get(rate), Mapping):
            small = f"{100 * measured['low']:.0f} to {100 * measured['high']:.0f}, n={measured['count']}"
            return Cell(f"{100 * measured['estimate']:.1f}", small)
    return None

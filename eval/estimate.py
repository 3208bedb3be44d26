"""What a run would cost, before anything is asked or embedded: calls, tokens, embedded texts and hours, by system.

Sessions, questions and prompts are counted in the data; how much models write and how long memories are is assumed,
also by each kind of system (`eval.systems.kinds`), so an estimate is right to about a factor of two. Thinking models write
far more: give their length as ``speed.thinking``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from rich.table import Table

from deltamem.window import estimate_tokens
from eval.benchmark import Benchmark, Timeline, TimelineStep
from eval.config import BenchmarkConfig, SpeedSettings
from eval.judge import load_calibration
from eval.parts import Prompts, load_prompts
from eval.records import judge_name
from eval.summary import score_table
from eval.systems.kinds import MEMORIES_A_TURN, MEMORY_TOKENS, system_kind

ANSWER_WRITTEN = 40
"""Assumed tokens of an answer."""

VERDICT_WRITTEN = 60
"""Assumed tokens of a verdict with its reason."""


@dataclass
class PartCost:
    """Calls of one part of a run and their tokens."""

    calls: int = 0
    read: int = 0
    written: int = 0

    def add(self, calls: float, read: float, each: float) -> None:
        """Count calls that read so much together, and write so much `each`."""
        self.calls += ceil(calls)
        self.read += ceil(read)
        self.written += ceil(calls * each)


@dataclass
class RunEstimate:
    """What one system would cost."""

    system: str
    sessions: int = 0  # Ingested, those of two stores twice
    questions: int = 0
    ingest: PartCost = field(default_factory=PartCost)
    answer: PartCost = field(default_factory=PartCost)
    judge: PartCost = field(default_factory=PartCost)
    texts: int = 0  # Passages, memories and queries to embed

    @property
    def stages(self) -> tuple[PartCost, ...]:
        """All that ask a model."""
        return self.ingest, self.answer, self.judge

    def hours(self, speed: SpeedSettings) -> float:
        """At the speeds of the configuration."""
        asking = sum(stage.read / speed.read + stage.written / speed.written for stage in self.stages)
        return (asking + self.texts / speed.texts) / 3600


def estimate(benchmark: type[Benchmark[Any]], config: BenchmarkConfig) -> RunEstimate:
    """Estimate a run from its data and configuration; no model and no embedder is needed.

    Raises:
        DeltaMemError: If the data or a prompt is missing or wrong.
    """
    prompts = load_prompts(config, benchmark.answer_prompt, benchmark.answer_fields, benchmark.judges(config))
    loaded = benchmark(config)
    kind = system_kind(config.system)
    result = RunEstimate(config.system)
    layout: Any = kind  # as much of a `System` as a benchmark needs to lay out its timelines
    for timeline in loaded.timelines(layout):
        if kind.reads:
            _ingest(result, timeline, config)
        _ask(result, loaded, timeline, config, prompts)
    specs = benchmark.judges(config)
    if config.judge.probes:
        items = load_calibration()
        for name, prompt in prompts.judges.items():
            if specs[name].calibrated:
                read = sum(estimate_tokens(prompt.text + item.question + item.gold + item.answer) for item in items)
                result.judge.add(len(items), read, _verdict(config))
    return result


def _ingest(result: RunEstimate, timeline: Timeline, config: BenchmarkConfig) -> None:
    kind = system_kind(config.system)
    for number, store in enumerate(timeline.stores):
        for session in (one for step in timeline.steps for one in step.sessions[number]):
            result.sessions += 1
            for calls in kind.calls(session, store, config):
                result.ingest.add(*calls)
            result.texts += ceil(kind.texts(session))


def _ask(result: RunEstimate, loaded: Benchmark[Any], timeline: Timeline, config: BenchmarkConfig, prompts: Prompts) -> None:
    budgets, kind = [None, *config.budgets], system_kind(config.system)
    for number, step in enumerate(timeline.steps):
        past = [one for before in timeline.steps[: number + 1] for sessions in before.sessions for one in sessions]
        shown = kind.shown(past, loaded.k * len(timeline.stores))
        for question in step.questions:
            result.questions += 1
            result.texts += len(timeline.stores) if kind.ranked else 0
            if prompts.answer is None:
                continue
            asked = estimate_tokens(prompts.answer.text + question.question + "".join(loaded.options(question)))
            verdicts = loaded.judge_fields(question, question.gold or "")
            for budget in budgets:
                context = min(shown, config.answer.context_tokens) if budget is None else budget
                written = ANSWER_WRITTEN + config.speed.thinking
                result.answer.add(config.runs, config.runs * (asked + context), written)
                for name, fields in verdicts.items():
                    if prompt := prompts.judges.get(judge_name(name)):
                        calls, read = config.runs * config.judge.runs, estimate_tokens(prompt.fill(**fields))
                        result.judge.add(calls, calls * read, _verdict(config))
        if step.points is not None:
            _check(result, step, config, prompts)


def _check(result: RunEstimate, step: TimelineStep, config: BenchmarkConfig, prompts: Prompts) -> None:
    """Judging memory points, and what was extracted of those systems that extract."""
    counts = Counter(point.kind for point in step.points or ())
    result.texts += counts["update"]
    turns = sum(len(session.turns) for sessions in step.sessions for session in sessions)
    counts["accuracy"] = ceil(MEMORIES_A_TURN * turns)
    for kind, count in counts.items():
        if (prompt := prompts.judges.get(kind)) and (kind == "update" or system_kind(config.system).with_model):
            read = estimate_tokens(prompt.text) + 20 * MEMORY_TOKENS
            result.judge.add(count, count * read, _verdict(config))


def _verdict(config: BenchmarkConfig) -> float:
    """Tokens that a judge writes."""
    return VERDICT_WRITTEN + config.speed.thinking


def estimate_table(estimates: Sequence[RunEstimate], config: BenchmarkConfig) -> Table:
    """One row a system."""
    speed = config.speed
    view = score_table(
        "Estimated before the run",
        f"Hours at {speed.read:,.0f} tokens read and {speed.written:,.0f} written a second by all requests together, and "
        f"{speed.texts:,.0f} texts embedded a second (speed.read, speed.written, speed.texts; {speed.thinking:,} tokens of "
        "thinking a call, speed.thinking). Right to about a factor of two.",
        corner="system",
    )
    headings = ["sessions", "questions", "ingest:\ncalls", "tokens", "answer:\ncalls", "tokens", "judge:\ncalls", "tokens"]
    for heading in [*headings, "texts", "hours"]:
        view.add_column(heading, justify="right")
    for one in estimates:
        amounts = [one.sessions, one.questions]
        for stage in one.stages:
            amounts += [stage.calls, stage.read + stage.written]
        view.add_row(one.system, *map(_short, [*amounts, one.texts]), f"{one.hours(speed):.2f}")
    return view


def _short(amount: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if amount >= size:
            return f"{amount / size:.1f}{unit}"
    return f"{amount:,.0f}"

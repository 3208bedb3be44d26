"""What a run would cost, before anything is asked or embedded: calls, tokens, embedded texts and hours, by system.

Sessions, questions and prompts are counted in the data; how much models write and how long memories are is assumed
(`ASSUMED`), so an estimate is right to about a factor of two. Thinking models write far more: give their length as
``speed.thinking``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import SimpleNamespace
from typing import Any

from rich.table import Table

from deltamem.prompts import load_prompt
from deltamem.window import estimate_tokens
from eval.benchmark import Benchmark, Step, Timeline
from eval.config import BenchmarkConfig, SpeedSettings
from eval.judge import load_calibration
from eval.models import WITH_MODEL, Prompts, asks_model, load_prompts
from eval.records import judge_name
from eval.summary import score_table
from eval.systems.base import DialogueSession, dated
from eval.systems.http_cache import message_groups
from papers.episodic import EpisodicSettings
from papers.episodic.reading import PROMPTS as EPISODIC_PROMPTS
from papers.episodic.reading import REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT

ASSUMED: Mapping[str, float] = {
    "deltamem_calls": 3,  # Of a session: two searches and the operations
    "deltamem_written": 250,  # Tokens a call, the thinking of a turn included
    "deltamem_results": 400,  # Tokens that a search brings into the next call
    "episodic_episodes": 1.5,  # Of a session
    "episodic_note": 150,  # Tokens that are written of a turn
    "episodic_written": 250,  # Tokens of a summary, and of the lessons of an episode
    "episodic_shown": 1_200,  # Tokens of earlier episodes and lessons that are shown for those
    "mem0_prompt": 11_400,  # Tokens of mem0 2.2.1's own prompt, measured
    "langmem_prompt": 2_500,  # Tokens of LangMem 0.0.30's prompt and tools, measured
    "peer_written": 80,  # Tokens that a peer's model writes for a group of messages
    "stitch_calls": 3,  # Of a turn; merges and notes are few
    "stitch_prompt": 900,  # Tokens a call of prompt, labels and earlier turns
    "stitch_written": 60,  # Tokens a call
    "memory_tokens": 30,  # Of one memory
    "memories_a_turn": 0.5,  # Extracted from each turn
    "sentences_a_turn": 2,
    "answer_written": 40,  # Tokens of an answer
    "verdict_written": 60,  # Tokens of a verdict with its reason
}
"""What no data tells. Measured: with a scripted model that extracts one fact (tests/eval/system_scripts.py)."""


@dataclass
class Stage:
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
class Estimate:
    """What one system would cost."""

    system: str
    sessions: int = 0  # Ingested, those of two stores twice
    questions: int = 0
    ingest: Stage = field(default_factory=Stage)
    answer: Stage = field(default_factory=Stage)
    judge: Stage = field(default_factory=Stage)
    texts: int = 0  # Passages, memories and queries to embed

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All that ask a model."""
        return self.ingest, self.answer, self.judge

    def hours(self, speed: SpeedSettings) -> float:
        """At the speeds of the configuration."""
        asking = sum(stage.read / speed.read + stage.written / speed.written for stage in self.stages)
        return (asking + self.texts / speed.texts) / 3600


def estimate(benchmark: type[Benchmark[Any]], config: BenchmarkConfig) -> Estimate:
    """Estimate a run from its data and configuration; no model and no embedder is needed.

    Raises:
        DeltaMemError: If the data or a prompt is missing or wrong.
    """
    prompts = load_prompts(config, benchmark.answer_prompt, benchmark.answer_fields, benchmark.judges(config))
    loaded = benchmark(config)
    with_model = config.system in WITH_MODEL
    copies = config.system == "copy_all"
    ranked = with_model or copies or config.system in ("naive_rag", "stitch")
    # As much of a `System` as a benchmark needs to lay out its timelines
    layout: Any = SimpleNamespace(name=config.system, per_speaker=with_model or copies, ranked=ranked)
    result = Estimate(config.system)
    for timeline in loaded.timelines(layout):
        if config.system != "none":
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


def _ingest(result: Estimate, timeline: Timeline, config: BenchmarkConfig) -> None:
    for number, store in enumerate(timeline.stores):
        for session in (one for step in timeline.steps for one in step.sessions[number]):
            result.sessions += 1
            said = _tokens(session)
            match config.system:
                case "deltamem":
                    calls = ASSUMED["deltamem_calls"]
                    system_prompt = estimate_tokens(load_prompt(config.manager_settings().episode.system_prompt).text)
                    # Each call reads the session again, and what the calls before it wrote and found.
                    later = calls * (calls - 1) / 2 * (ASSUMED["deltamem_written"] + ASSUMED["deltamem_results"])
                    read = calls * (system_prompt + said) + later
                    result.ingest.add(calls, read, ASSUMED["deltamem_written"])
                case "episodic":
                    _episodic(result, session, said)
                case "mem0" | "langmem":
                    groups = len(message_groups(session.turns, store.batch_turns))
                    read = said + groups * ASSUMED[f"{config.system}_prompt"]
                    result.ingest.add(groups, read, ASSUMED["peer_written"])
                    if config.system == "langmem" and not config.peers_degraded:  # its queries
                        result.ingest.add(groups, said, ASSUMED["peer_written"])
                case "stitch" if asks_model(config):
                    calls = ASSUMED["stitch_calls"] * len(session.turns)
                    read = calls * ASSUMED["stitch_prompt"] + ASSUMED["stitch_calls"] * said
                    result.ingest.add(calls, read, ASSUMED["stitch_written"])
            if config.system in WITH_MODEL:
                result.texts += ceil(2 * ASSUMED["memories_a_turn"] * len(session.turns))  # searched for, then kept
            elif config.system in ("naive_rag", "stitch"):
                result.texts += len(session.turns)
            elif config.system == "copy_all":
                result.texts += ceil(ASSUMED["sentences_a_turn"] * len(session.turns) / 2)  # every other turn is the user's


def _episodic(result: Estimate, session: DialogueSession, said: int) -> None:
    """Notes on some turns at a time; for each episode a summary of its notes, and lessons of both."""
    prompts = {name: estimate_tokens(load_prompt(name, "papers.episodic.prompts").text) for name in EPISODIC_PROMPTS}
    turns = max(1, sum(turn.role == "user" for turn in session.turns))
    batches, episodes = ceil(turns / EpisodicSettings().batch), min(ASSUMED["episodic_episodes"], turns)
    notes = turns * ASSUMED["episodic_note"]
    written = ASSUMED["episodic_written"]
    result.ingest.add(batches, batches * prompts[TURNS_PROMPT] + said, notes / batches)
    result.ingest.add(episodes, episodes * prompts[SUMMARY_PROMPT] + notes, written)
    shown = prompts[REFLECTIONS_PROMPT] + written + ASSUMED["episodic_shown"]
    result.ingest.add(episodes, episodes * shown + notes, written)


def _ask(result: Estimate, loaded: Benchmark[Any], timeline: Timeline, config: BenchmarkConfig, prompts: Prompts) -> None:
    budgets = [None, *config.budgets]
    for number, step in enumerate(timeline.steps):
        past = [one for before in timeline.steps[: number + 1] for sessions in before.sessions for one in sessions]
        shown = _context(config, past, len(timeline.stores), loaded.k)
        for question in step.questions:
            result.questions += 1
            result.texts += 0 if config.system in ("none", "full_context", "oracle") else len(timeline.stores)
            if prompts.answer is None:
                continue
            asked = estimate_tokens(prompts.answer.text + question.question + "".join(loaded.options(question)))
            verdicts = loaded.judge_fields(question, question.gold or "")
            for budget in budgets:
                context = min(shown, config.answer.context_tokens) if budget is None else budget
                written = ASSUMED["answer_written"] + config.speed.thinking
                result.answer.add(config.runs, config.runs * (asked + context), written)
                for name, fields in verdicts.items():
                    if prompt := prompts.judges.get(judge_name(name)):
                        calls, read = config.runs * config.judge.runs, estimate_tokens(prompt.fill(**fields))
                        result.judge.add(calls, calls * read, _verdict(config))
        if step.points is not None:
            _check(result, step, config, prompts)


def _check(result: Estimate, step: Step, config: BenchmarkConfig, prompts: Prompts) -> None:
    """Judging memory points, and what was extracted of those systems that extract."""
    counts = Counter(point.kind for point in step.points or ())
    result.texts += counts["update"]
    turns = sum(len(session.turns) for sessions in step.sessions for session in sessions)
    counts["accuracy"] = ceil(ASSUMED["memories_a_turn"] * turns)
    for kind, count in counts.items():
        if (prompt := prompts.judges.get(kind)) and (kind == "update" or config.system in WITH_MODEL):
            read = estimate_tokens(prompt.text) + 20 * ASSUMED["memory_tokens"]
            result.judge.add(count, count * read, _verdict(config))


def _context(config: BenchmarkConfig, sessions: Sequence[DialogueSession], stores: int, k: int) -> float:
    """Tokens that the answerer is shown of the memory, before the budget cuts it."""
    match config.system:
        case "none":
            return 0
        case "full_context":
            return sum(map(_tokens, sessions))
        case "oracle":
            return 4 * ASSUMED["memory_tokens"]
        case "naive_rag" | "stitch":
            turns = sum(len(session.turns) for session in sessions)
            return k * stores * sum(map(_tokens, sessions)) / max(turns, 1)
    return k * stores * ASSUMED["memory_tokens"]


def _verdict(config: BenchmarkConfig) -> float:
    """Tokens that a judge writes."""
    return ASSUMED["verdict_written"] + config.speed.thinking


def _tokens(session: DialogueSession) -> int:
    date = len(dated("", session.time, True))
    return sum(estimate_tokens(turn.spoken) + date // 3 for turn in session.turns)


def estimate_table(estimates: Sequence[Estimate], config: BenchmarkConfig) -> Table:
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

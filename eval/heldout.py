"""``python -m eval.heldout``: a policy on held-out synthetic people."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, field_validator
from rich import box
from rich.console import Console
from rich.table import Table

from deltamem.config import StrictModel, run_hydra, validated
from deltamem.embedding import OFFLINE_MODEL, CachedEmbedder, Embedder, load_embedder, same_embedder
from deltamem.episode import (
    EpisodeConfig,
    EpisodeSettings,
    Violation,
    load_episode_config,
    load_trained,
    session_fields,
    trajectory_fields,
)
from deltamem.errors import DeltaMemError
from deltamem.intervals import RESAMPLES, Interval, bootstrap_interval, interval_text
from deltamem.policy import EndpointPolicy, Policy, Rollout, run_episodes
from deltamem.progress import ProgressDisplay
from deltamem.runs import atomic_writer, file_sha256, git_commit, versions, weights_sha256
from deltamem.sessions import LabelledSession, Split, read_sessions, sessions_by_cell
from eval.config import AssistedSettings, EndpointSettings
from eval.policy import policy_folder, served_model, training_departures
from eval.probes import cell_tables, not_better, probe_table, rows, score_probes
from eval.summary import write_summary
from rewards.diagnostics import COUNTS, RATES, VIOLATION_PREFIX, count, due_memories, total_counts
from rewards.reward import DEFAULT_OPTIONS, RewardOptions, score

if TYPE_CHECKING:
    from omegaconf import DictConfig


class HeldoutSettings(StrictModel):
    """All keys of the command."""

    checkpoint: Path | None
    endpoint: EndpointSettings
    sessions: Path
    out: Path
    n: PositiveInt
    split: Split
    seed: int
    temperature: float = Field(ge=0)
    max_new_tokens: PositiveInt
    max_concurrency: PositiveInt
    embedder: str | None
    device: str
    batch_size: PositiveInt
    resamples: PositiveInt
    probes: bool
    against: Path | None
    mode: Literal["react", "assisted"]
    episode: EpisodeSettings
    assisted: AssistedSettings
    reward: RewardOptions

    @field_validator("reward", mode="before")
    @classmethod
    def _options_alone(cls, value: Any) -> Any:
        """The files of ``configs/reward`` also name the scorer that training makes of them."""
        return {key: of for key, of in value.items() if key != "_target_"} if isinstance(value, Mapping) else value

    @property
    def local(self) -> Path | None:
        """The checkpoint that runs in this process; None if an endpoint is asked, whose policy a checkpoint may describe."""
        return self.checkpoint if self.endpoint.base_url is None and self.endpoint.model is None else None

    @property
    def folder(self) -> Path | None:
        """The folder that says what the policy was trained with; None if none is known."""
        return self.local or policy_folder(self.checkpoint, self.endpoint.model)

    def check_policy(self) -> None:
        """Refuse a configuration that names no policy.

        Raises:
            DeltaMemError: If none is named, or the checkpoint folder does not exist or cannot be asked in the mode.
        """
        if self.checkpoint is None and self.endpoint.base_url is None and self.endpoint.model is None:
            raise DeltaMemError("name a policy: checkpoint=<folder>, or endpoint.base_url=<url> endpoint.model=<name>")
        if self.local is not None and not (self.local / "config.json").is_file():
            raise DeltaMemError(f"{self.local}: not a checkpoint folder (it holds no config.json)")
        if self.local is not None and self.mode == "assisted":
            raise DeltaMemError("mode=assisted asks an endpoint: name endpoint.base_url=<url> and endpoint.model=<name>")

    def episode_config(self) -> EpisodeConfig:
        """What shapes the episodes: the defaults, then the policy's ``episode.json``, then the keys ``episode.*``.

        Raises:
            DeltaMemError: If ``episode.json`` cannot be read, or a prompt does not exist or does not fit.
        """
        return self.episode.config(None if self.folder is None else load_episode_config(self.folder))

    @property
    def embedder_name(self) -> str:
        """As given, else the policy's own, else the offline one."""
        own = None if self.folder is None else load_trained(self.folder).embedder
        return self.embedder or own or OFFLINE_MODEL


def select(sessions: Iterable[LabelledSession], n: int, seed: int = 0) -> list[LabelledSession]:
    """Choose `n` sessions, or all if there are fewer, so that every person contributes as evenly as possible.

    People and the sessions of each are shuffled; then one session of each person is taken in turn. A larger n with the same
    seed keeps the sessions of a smaller one.

    Returns:
        The chosen sessions, ordered by person and session index.
    """
    by_person: dict[str, list[LabelledSession]] = {}
    for session in sorted(sessions, key=_position):  # so that the order of the file does not matter
        by_person.setdefault(session.session.person_id, []).append(session)
    people = list(by_person.values())
    generator = random.Random(seed)
    for of_person in people:
        generator.shuffle(of_person)
    generator.shuffle(people)
    in_turn = (session for session in chain.from_iterable(zip_longest(*people)) if session is not None)
    return sorted(islice(in_turn, n), key=_position)


def _position(session: LabelledSession) -> tuple[str, int]:
    return session.session.person_id, session.session_index


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """What an evaluation found."""

    records: list[dict[str, Any]]
    """One for each session, in order: the fields of `deltamem.episode.session_fields` and `trajectory_fields`; ``score``
    with its parts, matched pairs and unmatched entries; ``counts`` of `rewards.diagnostics`; ``failure``, ``tokens``,
    ``seconds``; where difficulty was planned, its ``cells``, and ``due``: ``cells`` and ``score`` (of the predicted memory
    that stands for it, 0 without one) of each ADD and UPDATE of the target."""
    summary: dict[str, Any]
    """The figures (see `summarise`) with ``policy``, ``seconds`` and ``provenance``, from the command also ``probes``."""

    def write(self, folder: Path) -> None:
        """Write ``trajectories.jsonl`` and ``summary.json``, each whole or not at all, the summary last.

        Raises:
            DeltaMemError: If the folder or a file cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_writer(folder / "trajectories.jsonl") as file:
                for record in self.records:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            write_summary(folder, self.summary)
        except OSError as error:
            raise DeltaMemError(f"{folder}: the result cannot be written: {error.strerror or error}") from error


async def evaluate(
    policy: Policy,
    sessions: Sequence[LabelledSession],
    embedder: Embedder,
    config: EpisodeConfig | AssistedSettings,
    *,
    options: RewardOptions = DEFAULT_OPTIONS,
    max_concurrency: int = 64,
    resamples: int = RESAMPLES,
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
    on_done: Callable[[Rollout], None] | None = None,
) -> HeldoutResult:
    """Run an episode over each session, at most `max_concurrency` at once, and score it.

    `on_done` is called after each. The bootstrap draws people `resamples` times with the `seed`. What only the caller knows
    (files, their hashes, its configuration) is its `provenance`, for the summary.

    Returns:
        Records and summary. Sessions that failed are in both.
    """
    begin = time.perf_counter()
    cached = embedder if isinstance(embedder, CachedEmbedder) else CachedEmbedder(embedder)
    rollouts = await run_episodes(sessions, policy, cached, config, max_concurrency=max_concurrency, on_done=on_done)
    # One large batch is much faster than one small batch a session; scoring then finds everything in the cache.
    target = (operation.text for item in sessions for operation in item.operations)
    predicted = (operation.text for rollout in rollouts for operation in rollout.trajectory.operations or ())
    cached.documents([text for text in dict.fromkeys((*target, *predicted)) if text])
    records = []
    for labelled, rollout in zip(sessions, rollouts, strict=True):
        trajectory = rollout.trajectory
        total = score(trajectory, labelled, cached.documents, options)
        scored: dict[str, Any] = {
            "score": asdict(total),
            "counts": dict(count(labelled, trajectory, total.transition)),
            "failure": trajectory.failure,
            "tokens": rollout.tokens,
            "seconds": round(rollout.seconds, 3),
        }
        if labelled.difficulty is not None:
            scored["cells"] = list(labelled.difficulty.cells())
            scored["due"] = due_memories(labelled, total.transition)
        done = trajectory_fields(trajectory)
        if not isinstance(config, EpisodeConfig):
            # Answers in worked examples are not the model's: its own end the questions, which begin with a system message.
            roles = [message["role"] for message in trajectory.messages] + ["system"]
            ends = [roles[place : place + 2] == ["assistant", "system"] for place in range(len(trajectory.messages))]
            done["turns"] = [dict(message) for message, own in zip(trajectory.messages, ends, strict=True) if own]
        records.append(session_fields(labelled) | done | scored)
    made_with = {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git_commit": git_commit(),
        "versions": versions(),
        "mode": "react" if isinstance(config, EpisodeConfig) else "assisted",
        "episode": asdict(config) if isinstance(config, EpisodeConfig) else config.model_dump(mode="json"),
        "prompt_hashes": config.prompt_hashes,
        "embedder": cached.name,
        **_reward_fields(options),
        "bootstrap": {"by": "person", "level": 0.95, "resamples": resamples, "seed": seed},
    }
    summary = {
        "policy": policy.name,
        **summarise(records, resamples=resamples, seed=seed),
        "seconds": round(time.perf_counter() - begin, 3),
        "provenance": made_with | dict(provenance or {}),
    }
    return HeldoutResult(records, summary)


Record = Mapping[str, Any]

SCORES = ("reward", "format", "retrieval", "transition", "precision", "recall")  # Means over sessions

VIOLATIONS_PER_EPISODE = "violations_per_episode/"
"""Prefix of the metrics that say how often each kind of violation occurs."""


def summarise(records: Sequence[Record], *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Summarise the records of an evaluation.

    Sessions that broke in our own machinery say nothing about the policy: they are counted and left out of everything
    but ``failure_rate``. Intervals are a bootstrap of people.

    Returns:
        ``sessions, people, answered, failed``, ``failures`` (how often each reason occurred), ``metrics`` (name to
        estimate, 95% interval by person, number of sessions and people; null where there is nothing to divide by),
        ``cells`` (the same of the reward by cell of difficulty; empty where none was planned), ``recall_by_cell`` (the same
        of the score of the memories that were due, so ``count`` counts these), ``counts`` (sums over
        sessions) and ``tokens``.
    """
    answered = [record for record in records if record["failure"] is None]

    def ratio(
        rows: Sequence[Record], values: Sequence[float], counts: Sequence[float] | None = None
    ) -> dict[str, Any] | None:
        people = [record["person_id"] for record in rows]
        interval = bootstrap_interval(values, people, denominators=counts, resamples=resamples, seed=seed)
        return None if interval is None else interval.as_dict()

    metrics = {name: ratio(answered, [_score(record, name) for record in answered]) for name in SCORES}
    violations = {f"{VIOLATIONS_PER_EPISODE}{kind}": (f"{VIOLATION_PREFIX}{kind}", "answered") for kind in Violation}
    counts = [{"answered": 1.0, **record["counts"]} for record in answered]
    for name, (top, bottom) in (RATES | violations).items():
        metrics[name] = ratio(answered, [one[top] for one in counts], [one[bottom] for one in counts])
    metrics["failure_rate"] = ratio(records, [float(record["failure"] is not None) for record in records])
    members = sessions_by_cell(record.get("cells", ()) for record in answered)
    cells = {name: [answered[number] for number in numbers] for name, numbers in members.items()}
    due = [(record, one) for record in answered for one in record.get("due", ())]
    recalls = {}
    for name, numbers in sessions_by_cell(one["cells"] for _, one in due).items():
        of_cell = [due[number] for number in numbers]
        recalls[name] = ratio([record for record, _ in of_cell], [float(one["score"]) for _, one in of_cell])
    return {
        "sessions": len(records),
        "people": len({record["person_id"] for record in records}),
        "answered": len(answered),
        "failed": len(records) - len(answered),
        "failures": dict(Counter(record["failure"] for record in records if record["failure"] is not None)),
        "metrics": metrics,
        "cells": {name: ratio(rows, [_score(record, "reward") for record in rows]) for name, rows in cells.items()},
        "recall_by_cell": recalls,
        "counts": total_counts(record["counts"] for record in records),
        "tokens": sum(record["tokens"] for record in records),
    }


def read_result(folder: Path) -> HeldoutResult:
    """Read what `HeldoutResult.write` wrote.

    Raises:
        DeltaMemError: If a file is missing or is not one of its.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        # Not splitlines(): texts may hold other line separators.
        lines = (folder / "trajectories.jsonl").read_text(encoding="utf-8").split("\n")
        result = HeldoutResult([json.loads(line) for line in lines if line], summary)
        _ = (
            summary["policy"],
            summary["provenance"]["weights"],
            [(record["score"], _task(record)) for record in result.records],
            [record["counts"][name] for record in result.records for name in COUNTS],
        )
    except OSError as error:
        raise DeltaMemError(f"{folder}: no held-out evaluation to compare with: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DeltaMemError(f"{folder}: not the files of a held-out evaluation, or of one that counted less") from error
    return result


def differences(
    first: Sequence[Record], second: Sequence[Record], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Interval]:
    """How much more `first` has than `second`, session by session: far narrower than the difference of two intervals.

    Only sessions that both answered count, and only figures whose denominator the sessions alone decide, such as recall.

    Returns:
        Name of the metric to the paired difference with its 95% interval by person; empty if no session is in both.
    """
    others = {_task(record): record for record in second if record["failure"] is None}
    pairs = [(one, others[_task(one)]) for one in first if one["failure"] is None and _task(one) in others]
    people = [one["person_id"] for one, _ in pairs]

    def difference(values: Sequence[float], of: Sequence[float] | None = None) -> Interval | None:
        return bootstrap_interval(values, people, denominators=of, resamples=resamples, seed=seed)

    found = {name: difference([_score(one, name) - _score(two, name) for one, two in pairs]) for name in SCORES}
    counts = [({"answered": 1.0, **one["counts"]}, {"answered": 1.0, **two["counts"]}) for one, two in pairs]
    for name, (top, bottom) in RATES.items():
        if name != "failure_rate" and all(one[bottom] == two[bottom] for one, two in counts):
            found[name] = difference([one[top] - two[top] for one, two in counts], [one[bottom] for one, _ in counts])
    return {name: interval for name, interval in found.items() if interval is not None}


def _task(record: Record) -> str:
    """A session by its content: its key alone may be another one's in other data."""
    return json.dumps([record[field] for field in ("key", "dialogue", "prior_state", "target_operations")])


def _reward_fields(options: RewardOptions) -> dict[str, dict[str, Any]]:
    """The weights of the parts, and the rest, as the summary has them."""
    rest = asdict(options)
    weights = {part: rest.pop(f"{part}_weight") for part in ("format", "retrieval", "transition")}
    return {"weights": weights, "transition_options": rest}


def _score(record: Record, name: str) -> float:
    score = record["score"]
    if name == "transition":
        return float(score["transition"]["reward"])
    return float(score[name] if name in score else score["transition"][name])


LABELS = {
    "reward": "reward",
    "format": "  format",
    "retrieval": "  retrieval",
    "transition": "  transition",
    "precision": "    soft precision",
    "recall": "    soft recall",
    "add_precision": "ADD precision",
    "add_recall": "ADD recall",
    "update_precision": "UPDATE precision (right target)",
    "update_recall": "UPDATE recall (right target)",
    "update_matched_recall": "UPDATE recall (right target and text)",
    "none_precision": "NONE precision",
    "none_recall": "NONE recall",
    "wrong_target_rate": "UPDATEs with a wrong target",
    "add_for_update_rate": "due UPDATEs done as ADD",
    "duplicates_per_episode": "duplicates added per session",
    "idle_left_alone_rate": "idle sessions left alone",
    "due_left_alone_rate": "other sessions left alone",
    "queries_per_memory": "queries per memory",
    "queries_per_episode": "queries per session",
    "unreadable_rate": "answers that could not be read",
    "failure_rate": "sessions failed",
}
"""What is shown of the metrics, and how it is called; violations follow."""


def label(name: str) -> str:
    """How a metric is called on the terminal and in the report."""
    return LABELS.get(name) or name.replace(VIOLATIONS_PER_EPISODE, "violations per session: ").replace("_", " ")


def shown_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the metrics to show, in order: those with a label, then the violations that occurred."""
    violations = [name for name in metrics if name.startswith(VIOLATIONS_PER_EPISODE)]
    occurred = [name for name in violations if metrics[name] and metrics[name]["estimate"]]
    return [name for name in LABELS if name in metrics] + occurred


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Lay the summary out for the terminal."""
    options = summary["provenance"]["transition_options"]
    changed = [f"{name}={value}" for name, value in options.items() if value != getattr(DEFAULT_OPTIONS, name)]
    reward = f"reward with {', '.join(changed)}" if changed else "the repaired reward"
    spent = f"{summary['failed']} failed, {summary['tokens']} tokens, {summary['seconds']:.0f} s"
    title = f"{summary['policy']}: {summary['answered']} sessions of {summary['people']} people"
    table = _interval_table("estimate", title, f"{reward}; {spent}")
    for name in shown_metrics(summary["metrics"]):
        value, cells = summary["metrics"][name], ("-", "nothing to count")
        if value:
            cells = (f"{value['estimate']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
        table.add_row(label(name), *cells)
    return table


def recall_table(recalls: Mapping[str, Mapping[str, Any]]) -> Table:
    """Lay out for the terminal how much was found of the memories that were due, by cell of difficulty."""
    table = Table(title="Due memories found, by difficulty", caption="95% intervals by person", box=box.SIMPLE_HEAD)
    for heading in ("", "n", "soft recall"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for axis, cells in groupby(recalls, lambda name: name.partition("=")[0]):
        table.add_row(axis, style="bold")
        for cell in cells:
            value = cell.partition("=")[2].replace("_", " ")
            table.add_row(f"  {value}", str(recalls[cell]["count"]), interval_text(recalls[cell]))
        table.add_section()
    return table


def difference_table(found: Mapping[str, Interval], other: str) -> Table:
    """Lay paired differences out for the terminal."""
    sessions = next(iter(found.values())).count
    title = f"More than {other}, on the same {sessions} sessions"
    table = _interval_table("difference", title, "* the interval leaves out 0")
    for name in (name for name in LABELS if name in found):
        one = found[name]
        mark = "*" if one.low > 0 or one.high < 0 else ""
        table.add_row(label(name), f"{one.estimate:+.3f}{mark}", f"{one.low:+.3f} to {one.high:+.3f}")
    return table


def _interval_table(heading: str, title: str, caption: str) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column("metric", no_wrap=True)
    table.add_column(heading, justify="right")
    table.add_column("95% interval by person", justify="right")
    return table


def main(config: DictConfig) -> int:
    """Run the command; returns its exit code."""
    settings = validated(config, HeldoutSettings)
    settings.check_policy()
    console = Console(stderr=True)
    sessions = select(read_sessions(settings.sessions, split=settings.split), settings.n, settings.seed)
    if not sessions:
        raise DeltaMemError(f"{settings.sessions}: no sessions of the split {settings.split!r}")
    if len(sessions) < settings.n:
        console.print(f"{settings.sessions} has only {len(sessions)} sessions of the split {settings.split}", markup=False)
    other = None if settings.against is None else _comparable(settings.against, settings, sessions)
    try:  # an evaluation whose result cannot be written is wasted
        settings.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeltaMemError(f"{settings.out}: the output folder cannot be made: {error.strerror or error}") from error
    result = asyncio.run(_run(settings, sessions, console))
    found: dict[str, Interval] = {}
    if other is not None:
        drawn = {"resamples": settings.resamples, "seed": settings.seed}
        found = differences(result.records, other.records, **drawn)
        of_metrics = {name: interval.as_dict() for name, interval in found.items()}
        result.summary["against"] = {"folder": str(settings.against), "differences": of_metrics}
    result.write(settings.out)
    Console().print(summary_table(result.summary))
    if found and other is not None:
        Console().print(difference_table(found, other.summary["policy"]))
    beside = rows({result.summary["policy"]: result.summary})
    if result.summary.get("probes"):
        Console().print(probe_table(beside))
        for sentence in not_better(beside):
            console.print(sentence, markup=False)
    for table in cell_tables(beside):
        Console().print(table)
    if result.summary["recall_by_cell"]:
        Console().print(recall_table(result.summary["recall_by_cell"]))
    failures = Counter(result.summary["failures"])
    for reason, times in failures.most_common(1):
        failed = f"{failures.total()} of {len(sessions)} sessions failed; most often ({times}): {reason}"
        console.print(failed, markup=False)
    return 1 if failures else 0


def _comparable(folder: Path, settings: HeldoutSettings, sessions: Sequence[LabelledSession]) -> HeldoutResult:
    """Read an earlier evaluation that the present one can be compared with."""
    result = read_result(folder)
    before, embedder = result.summary["provenance"], settings.embedder_name
    if not _reward_fields(settings.reward).items() <= before.items():
        raise DeltaMemError(f"{folder}: evaluated under another reward, so nothing can be compared")
    if not same_embedder(before.get("embedder", embedder), embedder):
        raise DeltaMemError(f"{folder}: evaluated with {before['embedder']}, not {embedder}, so nothing can be compared")
    known = {_task(record) for record in result.records}
    if not any(_task(session_fields(session)) in known for session in sessions):
        raise DeltaMemError(f"{folder}: evaluated on other sessions, so nothing can be compared")
    return result


async def _run(settings: HeldoutSettings, sessions: list[LabelledSession], console: Console) -> HeldoutResult:
    episode = settings.episode_config()
    config = episode if settings.mode == "react" else settings.assisted
    async with AsyncExitStack() as stack:
        policy = await _policy(settings, episode, stack)
        served = await served_model(policy.llm) if isinstance(policy, EndpointPolicy) else None
        asked = episode if settings.mode == "react" else None
        named = (settings.folder, (served or {}).get("root"), asked, settings.embedder_name, "checkpoint")
        departures = list(training_departures(*named, ("max_new_tokens", settings.max_new_tokens)))
        for sentence in departures:
            console.print(sentence, markup=False, soft_wrap=True)
        embedder = load_embedder(settings.embedder_name, device=settings.device, batch_size=settings.batch_size)
        progress = stack.enter_context(ProgressDisplay(console, {"episodes": len(sessions)}))
        result = await evaluate(
            policy,
            sessions,
            embedder,
            config,
            options=settings.reward,
            max_concurrency=settings.max_concurrency,
            resamples=settings.resamples,
            seed=settings.seed,
            provenance={
                "config": settings.model_dump(mode="json"),
                "seed": settings.seed,
                "sessions_file": str(settings.sessions),
                "sessions_sha256": file_sha256(settings.sessions),
                "checkpoint_sha256": None if settings.local is None else weights_sha256(settings.local),
                "served": served,
                "training_departures": departures,
            },
            on_done=lambda rollout: progress.advance("episodes", tokens=rollout.tokens),
        )
        if settings.probes:
            drawn = {"resamples": settings.resamples, "seed": settings.seed}
            probes = score_probes(settings.sessions, sessions, embedder, options=settings.reward, **drawn)
            result.summary["probes"] = probes
        return result


async def _policy(settings: HeldoutSettings, episode: EpisodeConfig, stack: AsyncExitStack) -> Policy:
    """The policy to score; the stack closes its connections."""
    if settings.local is not None:
        from deltamem.local_policy import CheckpointPolicy

        return CheckpointPolicy(
            settings.local,
            temperature=settings.temperature,
            seed=settings.seed,
            max_new_tokens=settings.max_new_tokens,
            thinking=episode.thinking,
        )
    needs = "an endpoint needs both endpoint.base_url=<url> and endpoint.model=<name>"
    llm = settings.endpoint.llm(needs, settings.max_concurrency)
    stack.push_async_callback(llm.close)
    policy = EndpointPolicy(
        llm,
        temperature=settings.temperature,
        max_tokens=settings.max_new_tokens,
        seed=settings.seed,
        tool_role=settings.endpoint.tool_role,
        thinking=episode.thinking,
        guided=episode if settings.endpoint.guided and settings.mode == "react" else None,
    )
    await policy.check(settings.mode)
    return policy


if __name__ == "__main__":
    run_hydra(main, "heldout")

"""What evaluations found of a policy, out of their result folders, for its card: never figures of another model.

Read are the ``summary.json`` of ``python -m eval.heldout`` and of benchmark runs (``python -m eval.locomo`` and so on). Each
says which weights it measured, by the sha256 of their files. Runs of systems without a model may stand beside the policy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.intervals import interval_text, percent_text

SUMMARY_FILE = "summary.json"

Weights = Mapping[str, str]
"""sha256 by name of file."""

_ALL = "all"  # Row of a score of all pooled categories
_HELDOUT = {
    "reward": "reward",
    "transition": "transition",
    "add_recall": "ADD recall",
    "update_recall": "UPDATE recall, right target",
    "wrong_target_rate": "wrong targets",
    "unreadable_rate": "unreadable",
}
_BENCHMARKS = ("LoCoMo", "HaluMem")
"""Those that a card names where they were not run."""


class _Part(BaseModel):
    """A part of a summary: types as they are written, further keys left out."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class _Interval(_Part):
    estimate: float
    low: float
    high: float


class _Counted(_Interval):
    count: int


class _Probe(_Part):
    description: str
    knows_target: bool
    parts: dict[str, _Interval]
    rates: dict[str, float | None]


class _Served(_Part):
    weights: dict[str, str] = {}


class _HeldoutConfig(_Part):
    split: str
    temperature: float
    max_new_tokens: int


class _HeldoutProvenance(_Part):
    config: _HeldoutConfig
    seed: int
    sessions_sha256: str
    checkpoint_sha256: dict[str, str] | None
    served: _Served | None = None
    weights: dict[str, float]
    transition_options: dict[str, Any]


class _Heldout(_Part):
    """The summary of ``python -m eval.heldout``."""

    policy: str
    sessions: int
    people: int
    failed: int
    metrics: dict[str, _Counted | None]
    probes: dict[str, _Probe] = {}
    provenance: _HeldoutProvenance

    @property
    def measured(self) -> list[Weights]:
        made = self.provenance
        return [made.checkpoint_sha256 or (made.served.weights if made.served is not None else {})]


class _Fingerprint(_Part):
    endpoints: dict[str, str | None] = {}
    served: dict[str, _Served] = {}


class _Fingerprints(_Fingerprint):
    every: list[_Fingerprint] = Field(default=[], alias="all")


class _Making(_Part):
    models: dict[str, str | None]
    fingerprint: _Fingerprints


class _Questions(_Part):
    total: int
    asked: int
    failed: int


class _Benchmark(_Part):
    """The summary of a benchmark run."""

    benchmark: str
    version: str
    system: str
    mode: str
    questions: _Questions
    sessions: dict[str, int]
    scores: dict[str, dict[str, _Counted | None]]
    withheld: dict[str, str]
    warnings: list[str]
    partial: dict[str, int] | None
    making: _Making

    @property
    def with_model(self) -> bool:
        """Whether a model kept the memories."""
        return "manager" in self.making.fingerprint.endpoints

    @property
    def measured(self) -> list[Weights]:
        made = self.making.fingerprint
        found = [one.served.get("manager") for one in (made.every or [made])]
        return [{} if one is None else one.weights for one in found]

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal where runs stand side by side."""
        models = self.making.models
        return self.version, self.mode, models.get("answer"), models.get("judge"), self.questions.total

    def rows(self) -> Iterator[tuple[str, str]]:
        """Metric and category of each score: of all questions, or of each category where none pools them."""
        for metric, of in self.scores.items():
            if metric not in self.withheld:
                groups = [_ALL] if of.get(_ALL) is not None else [name for name, found in of.items() if found is not None]
                yield from ((metric, name) for name in groups)


@dataclass(frozen=True)
class Measured:
    """The summaries of some result folders, read and found to be whole."""

    heldout: Sequence[tuple[Path, _Heldout]]
    benchmarks: Sequence[tuple[Path, _Benchmark]]

    def check(self, weights: Weights) -> None:
        """Refuse figures of other weights, and rows that cannot stand beside those of the policy.

        Raises:
            DeltaMemError: Names the folder, and the file of weights that differs.
        """
        own = [(path, one.measured) for path, one in self.heldout]
        own += [(path, one.measured) for path, one in self.benchmarks if one.with_model]
        for path, every in own:
            for found in every:
                _check_weights(path, found, weights)
        conditions = {one.conditions for _, one in self.benchmarks if one.with_model}
        for path, one in self.benchmarks:
            if not one.with_model and one.conditions not in conditions:
                raise DeltaMemError(
                    f"{path}: system={one.system} without a run of the policy under the same conditions ({one.version}, "
                    f"{one.mode}) to stand beside"
                )

    def sections(self) -> list[str]:
        """The figures for the card."""
        parts = [_heldout_section(one) for _, one in self.heldout]
        groups: dict[tuple[object, ...], list[_Benchmark]] = {}
        for _, one in self.benchmarks:
            groups.setdefault(one.conditions, []).append(one)
        return parts + [_benchmark_section(runs) for runs in groups.values()]

    def missing(self) -> list[str]:
        """What was not measured, one sentence each."""
        lines = []
        if not any(one.provenance.config.split == "heldout" for _, one in self.heldout):
            lines.append("Held-out people with intervals, beside shallow policies: no evaluation was given.")
        elif not any(one.probes for _, one in self.heldout):
            lines.append("Shallow policies on the held-out sessions.")
        done = " ".join(one.benchmark for _, one in self.benchmarks)
        lines += [f"{name}: no run was given." for name in _BENCHMARKS if name not in done]
        lines += [
            f"{one.benchmark} by a judge: no model has said whether answers or memories are right."
            for _, one in self.benchmarks
            if one.with_model and one.mode != "judged"
        ]
        lines += [
            f"{one.benchmark}, {metric} (system={one.system}): withheld, {why}."
            for _, one in self.benchmarks
            for metric, why in one.withheld.items()
        ]
        return lines


NOTHING = Measured((), ())


def read_measured(folders: Iterable[Path]) -> Measured:
    """Read the result folders of evaluations.

    Raises:
        DeltaMemError: If one holds no summary, or one that cannot be read, or one of an unfinished run; names the file.
    """
    heldout: list[tuple[Path, _Heldout]] = []
    benchmarks: list[tuple[Path, _Benchmark]] = []
    for folder in folders:
        path = folder / SUMMARY_FILE
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DeltaMemError(
                f"{path}: cannot be read ({error.strerror}); name the folder of a finished evaluation"
            ) from error
        try:
            if b'"benchmark"' in text:
                one = _Benchmark.model_validate_json(text)
                if one.partial is not None:
                    raise DeltaMemError(f"{path}: the run is not finished; the same command goes on with it")
                benchmarks.append((folder, one))
            else:
                heldout.append((folder, _Heldout.model_validate_json(text)))
        except ValidationError as error:
            raise DeltaMemError(f"{path}: not the summary of an evaluation ({first_error(error)})") from error
    return Measured(heldout, benchmarks)


def _check_weights(folder: Path, measured: Weights, exported: Weights) -> None:
    if not measured:
        raise DeltaMemError(
            f"{folder}: does not say which weights it measured; evaluate a folder (checkpoint=), or a server whose model "
            "has a folder on this machine"
        )
    for name in sorted({*measured, *exported}):
        if (found := measured.get(name, "none")) != (own := exported.get(name, "none")):
            raise DeltaMemError(f"{folder}: measured another model: {name} is {found[:12]} there, {own[:12]} here")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _heldout_section(one: _Heldout) -> str:
    made = one.provenance
    how = "greedy answers" if made.config.temperature == 0 else f"answers sampled at temperature {made.config.temperature:g}"
    people = "people held out of training" if made.config.split == "heldout" else f"people of the split {made.config.split}"
    options = {f"{name}_weight": value for name, value in made.weights.items()} | made.transition_options
    rows = [("this policy", *(_cell(one.metrics.get(name)) for name in _HELDOUT))]
    shallow = sorted(one.probes.items(), key=lambda item: (item[1].knows_target, -item[1].parts["reward"].estimate))
    for name, probe in shallow:
        title = f"{name.replace('_', ' ')}: {probe.description}" + (" (knows the target)" if probe.knows_target else "")
        rows.append(
            (title, *(_cell(probe.parts[key]) if key in probe.parts else _rate(probe.rates.get(key)) for key in _HELDOUT))
        )
    return "\n\n".join(
        [
            f"### {people[0].upper()}{people[1:]}, {how}",
            f"{one.sessions} sessions of {one.people} people (sessions, sha256 `{made.sessions_sha256[:12]}`), "
            f"{one.failed} of them failed in our own machinery; seed {made.seed}, turns of at most "
            f"{made.config.max_new_tokens} tokens. 95% intervals by person. Below: what shallow "
            "policies earn on the same sessions.",
            table(["", *_HELDOUT.values()], rows),
            "Reward: " + ", ".join(f"{key}={value}" for key, value in options.items()) + ".",
        ]
    )


def _benchmark_section(runs: Sequence[_Benchmark]) -> str:
    runs = sorted(runs, key=lambda one: not one.with_model)
    first = runs[0]
    answer = first.making.models.get("answer") or "none"
    judge = first.making.models.get("judge") or "none"
    scores = list(dict.fromkeys(row for one in runs for row in one.rows()))
    names = [
        "this policy" + ("" if one.system == "deltamem" else f" in {one.system}") if one.with_model else one.system
        for one in runs
    ]
    rows = [
        (
            metric if group == _ALL else f"{metric}, {group}",
            *(_percent(one.scores.get(metric, {}).get(group)) for one in runs),
        )
        for metric, group in scores
    ]
    read = [
        f"{name}: {one.sessions.get('unreadable', 0)} of {one.sessions['total']} sessions brought no readable answer, "
        f"{one.sessions.get('failed', 0)} failed"
        for name, one in zip(names, runs, strict=True)
        if one.with_model
    ]
    warnings = dict.fromkeys(text for one in runs if one.with_model for text in one.warnings)
    return "\n\n".join(
        [
            f"### {first.benchmark}",
            f"{first.version}. {first.questions.asked} questions; answers: {answer}, judge: {judge}. {'; '.join(read)}. "
            "Percent, 95% intervals, n: values.",
            table(["", *names], rows),
            *(f"- {text}" for text in warnings),
        ]
    )


def _cell(found: _Interval | None) -> str:
    return interval_text(None if found is None else dict(found))


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(found: _Counted | None) -> str:
    return "-" if found is None else f"{percent_text(dict(found), brackets=True)}, n={found.count}"

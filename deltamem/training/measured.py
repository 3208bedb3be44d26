"""What evaluations found of a policy, out of their result folders, for its card: never figures of another model.

Read are the ``summary.json`` of ``python -m eval.heldout``, ``python -m eval.transfer`` and benchmark runs (``python -m
eval.locomo`` and so on). Each says which weights it measured, by the sha256 of their files. Benchmark runs of systems
without a model may stand beside the policy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.intervals import interval_text, percent_text
from deltamem.text_files import read_text

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
    "idle_left_alone_rate": "idle sessions left alone",
    "due_left_alone_rate": "other sessions left alone",
    "unreadable_rate": "unreadable",
}
_TRANSFER_ROWS = (
    ("this policy", "system/f1", "system/found", "system/foreign"),
    ("first sentences", "bar/f1", "first_k/found", "bar/foreign"),
    ("random sentences", "random/f1", "random_k/found", "random/foreign"),
    ("sentences by a bag of words", "bag/f1", "bag_k/found", "bag/foreign"),
    ("every sentence", "copy_all/f1", "copy_all/found", "copy_all/foreign"),
)
_BENCHMARKS = ("LoCoMo", "HaluMem")
"""Those that a card names where they were not run."""


class _Part(BaseModel):
    """A part of a summary: types as they are written, further keys left out."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class _Interval(_Part):
    estimate: float
    low: float
    high: float
    count: int = 0


class _Probe(_Part):
    description: str
    knows_target: bool
    parts: dict[str, _Interval]
    rates: dict[str, float | None]


def _at(*path: str, **options: Any) -> Any:
    """A value below other keys."""
    return Field(validation_alias=AliasPath(*path), **options)


class _Heldout(_Part):
    """The summary of ``python -m eval.heldout``."""

    policy: str
    sessions: int
    people: int
    failed: int
    metrics: dict[str, _Interval | None]
    probes: dict[str, _Probe] = {}
    split: str = _at("provenance", "config", "split")
    temperature: float = _at("provenance", "config", "temperature")
    max_new_tokens: int = _at("provenance", "config", "max_new_tokens")
    seed: int = _at("provenance", "seed")
    sessions_sha256: str = _at("provenance", "sessions_sha256")
    checkpoint: dict[str, str] | None = _at("provenance", "checkpoint_sha256")
    served: dict[str, str] = _at("provenance", "served", "weights", default={})
    weights: dict[str, float] = _at("provenance", "weights")
    transition_options: dict[str, Any] = _at("provenance", "transition_options")

    @property
    def measured(self) -> list[Weights]:
        return [self.checkpoint or self.served]


class _Served(_Part):
    weights: dict[str, str] = _at("served", "manager", "weights", default={})


class _Benchmark(_Part):
    """The summary of a benchmark run."""

    benchmark: str
    version: str
    system: str
    mode: str
    asked: int = _at("questions", "asked")
    total: int = _at("questions", "total")
    sessions: dict[str, int]
    scores: dict[str, dict[str, _Interval | None]]
    withheld: dict[str, str]
    warnings: list[str]
    partial: dict[str, int] | None
    models: dict[str, str | None] = _at("making", "models")
    endpoints: dict[str, str | None] = _at("making", "fingerprint", "endpoints", default={})
    served: dict[str, str] = _at("making", "fingerprint", "served", "manager", "weights", default={})
    every: list[_Served] = _at("making", "fingerprint", "all", default=[])  # of a run that went on with other models

    @property
    def with_model(self) -> bool:
        """Whether a model kept the memories."""
        return "manager" in self.endpoints

    @property
    def measured(self) -> list[Weights]:
        return [one.weights for one in self.every] or [self.served]

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal where runs stand side by side."""
        return self.version, self.mode, self.models.get("answer"), self.models.get("judge"), self.total

    def rows(self) -> Iterator[tuple[str, str]]:
        """Metric and category of each score: of all questions, or of each category where none pools them."""
        for metric, of in self.scores.items():
            if metric not in self.withheld:
                groups = [_ALL] if of.get(_ALL) is not None else [name for name, found in of.items() if found is not None]
                yield from ((metric, name) for name in groups)


class _Suite(_Part):
    sessions: dict[str, int]
    scores: dict[str, _Interval | None]


class _Transfer(_Part):
    """The summary of ``python -m eval.transfer``."""

    benchmark: Literal["transfer"]
    system: Literal["deltamem"]
    suites: dict[str, _Suite]
    warnings: list[str]
    served: dict[str, str] = _at("provenance", "fingerprint", "served", "manager", "weights", default={})

    @property
    def measured(self) -> list[Weights]:
        return [self.served]


@dataclass(frozen=True)
class Measured:
    """The summaries of some result folders, read and found to be whole."""

    heldout: Sequence[tuple[Path, _Heldout]]
    transfers: Sequence[tuple[Path, _Transfer]]
    benchmarks: Sequence[tuple[Path, _Benchmark]]

    def check(self, weights: Weights) -> None:
        """Refuse figures of other weights, and rows that cannot stand beside those of the policy."""
        own = [(path, one.measured) for path, one in self.heldout]
        own += [(path, one.measured) for path, one in self.transfers]
        own += [(path, one.measured) for path, one in self.benchmarks if one.with_model]
        for folder, found in ((path, found) for path, every in own for found in every):
            if not found:
                raise DeltaMemError(
                    f"{folder}: does not say which weights it measured; evaluate a folder (checkpoint=), or a server whose "
                    "model has a folder on this machine"
                )
            for name in sorted({*found, *weights}):
                if (theirs := found.get(name, "none")) != (ours := weights.get(name, "none")):
                    raise DeltaMemError(f"{folder}: measured another model: {name} is {theirs[:12]} there, {ours[:12]} here")
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
        parts += [_transfer_section(one) for _, one in self.transfers]
        groups: dict[tuple[object, ...], list[_Benchmark]] = {}
        for _, one in self.benchmarks:
            groups.setdefault(one.conditions, []).append(one)
        return parts + [_benchmark_section(runs) for runs in groups.values()]

    def missing(self) -> list[str]:
        """What was not measured, one sentence each."""
        lines = []
        if not any(one.split == "heldout" for _, one in self.heldout):
            lines.append("Held-out people with intervals, beside shallow policies: no evaluation was given.")
        elif not any(one.probes for _, one in self.heldout):
            lines.append("Shallow policies on the held-out sessions.")
        if not self.transfers:
            lines.append("What carries over to talk that is not ours (`python -m eval.transfer`): no run was given.")
        done = " ".join(one.benchmark for _, one in self.benchmarks)
        lines += [f"{name}: no run was given." for name in _BENCHMARKS if name not in done]
        runs = [one for _, one in self.benchmarks]
        unjudged = [one.benchmark for one in runs if one.with_model and one.mode != "judged"]
        lines += [f"{name} by a judge: no model has said whether answers or memories are right." for name in unjudged]
        withheld = [(one, metric, why) for one in runs for metric, why in one.withheld.items()]
        return lines + [f"{one.benchmark}, {name} (system={one.system}): withheld, {why}." for one, name, why in withheld]


NOTHING = Measured((), (), ())


def read_measured(folders: Iterable[Path]) -> Measured:
    """Read the result folders of evaluations; one without the summary of a finished run is an error that names the file."""
    heldout: list[tuple[Path, _Heldout]] = []
    transfers: list[tuple[Path, _Transfer]] = []
    benchmarks: list[tuple[Path, _Benchmark]] = []
    for folder in folders:
        path = folder / SUMMARY_FILE
        try:
            text = read_text(path)
        except OSError as error:
            raise DeltaMemError(
                f"{path}: cannot be read ({error.strerror}); name the folder of a finished evaluation"
            ) from error
        try:
            if '"benchmark": "transfer"' in text:
                transfers.append((folder, _Transfer.model_validate_json(text)))
            elif '"benchmark"' in text:
                one = _Benchmark.model_validate_json(text)
                if one.partial is not None:
                    raise DeltaMemError(f"{path}: the run is not finished; the same command goes on with it")
                benchmarks.append((folder, one))
            else:
                heldout.append((folder, _Heldout.model_validate_json(text)))
        except ValidationError as error:
            raise DeltaMemError(f"{path}: not the summary of an evaluation ({first_error(error)})") from error
    return Measured(heldout, transfers, benchmarks)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _heldout_section(one: _Heldout) -> str:
    how = "greedy answers" if one.temperature == 0 else f"answers sampled at temperature {one.temperature:g}"
    people = "people held out of training" if one.split == "heldout" else f"people of the split {one.split}"
    options = {f"{name}_weight": value for name, value in one.weights.items()} | one.transition_options
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
            f"{one.sessions} sessions of {one.people} people (sessions, sha256 `{one.sessions_sha256[:12]}`), "
            f"{one.failed} of them failed in our own machinery; seed {one.seed}, turns of at most "
            f"{one.max_new_tokens} tokens. 95% intervals by person. Below: what shallow "
            "policies earn on the same sessions.",
            table(["", *_HELDOUT.values()], rows),
            "Reward: " + ", ".join(f"{key}={value}" for key, value in options.items()) + ".",
        ]
    )


def _transfer_section(one: _Transfer) -> str:
    parts = [
        "### What carries over to talk that is not ours",
        "Points that somebody labelled in conversations, matched with memories one to one (F1), found by as many memories "
        "or sentences (found), and points about somebody else that were matched (foreign). Percent, 95% intervals, "
        "n: sessions. Below: what shallow ways of keeping sentences reach.",
    ]
    for name, suite in one.suites.items():
        rows = []
        for title, *keys in _TRANSFER_ROWS:
            if any(key in suite.scores for key in keys):
                rows.append((title, *(_percent(suite.scores.get(key)) for key in keys)))
        lost = ", ".join(f"{suite.sessions.get(key, 0)} {key}" for key in ("failed", "unreadable"))
        parts += [f"{name}, {suite.sessions['number']} sessions ({lost}):", table(["", "F1", "found", "foreign"], rows)]
    return "\n\n".join([*parts, "\n".join(f"- {text}" for text in one.warnings)]).strip()


def _benchmark_section(runs: Sequence[_Benchmark]) -> str:
    runs = sorted(runs, key=lambda one: not one.with_model)
    first = runs[0]
    answer = first.models.get("answer") or "none"
    judge = first.models.get("judge") or "none"
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
            f"{first.version}. {first.asked} questions; answers: {answer}, judge: {judge}. {'; '.join(read)}. "
            "Percent, 95% intervals, n: values.",
            table(["", *names], rows),
            *(f"- {text}" for text in warnings),
        ]
    )


def _cell(found: _Interval | None) -> str:
    return interval_text(None if found is None else dict(found))


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(found: _Interval | None) -> str:
    return "-" if found is None else f"{percent_text(dict(found), brackets=True)}, n={found.count}"

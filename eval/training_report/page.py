"""The report of a run: what it reads, the table of before and after, and the page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.html import render_page, write_page
from eval.heldout import VIOLATIONS_PER_EPISODE, label, shown_metrics
from eval.training_report.charts import machine_charts, training_charts, warm_start_charts
from eval.training_report.trajectories import choose, histories, view

Record = dict[str, Any]
Summary = Mapping[str, Any]

PHASES = ("before", "after")
MODES = ("sampled", "greedy")
SHOWN_EVALUATION = "after_sampled"
"""The evaluation whose trajectories are shown."""


_SHOWN_KEYS = {"key", "dialogue", "turns", "operations", "target_operations", "prior_state", "retrieved_ids", "score"}
_SHOWN_KEYS |= {"violations"}
_VALIDATION_FILE = re.compile(r"step_(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Everything that was found."""

    name: str  # of the run folder
    metrics: list[Record]
    """Lines of ``metrics.jsonl``: ``step`` and training metrics, held-out ones with the prefix ``heldout/``."""
    warm_start: list[Record]
    """Lines of ``warm_start.jsonl``: ``step, loss, accuracy, seconds``."""
    summaries: dict[str, Record]
    """``eval/<phase>_<mode>/summary.json`` by ``<phase>_<mode>``."""
    trajectories: list[Record]
    """Of the `SHOWN_EVALUATION`."""
    validation: dict[int, list[Record]]
    """Records of ``validation/step_<step>.jsonl`` by step, in order."""
    run_summary: Record
    """``summary.json`` of the whole run; empty if there is none yet."""
    missing: Mapping[str, list[str]]
    """One sentence for each input that is absent or unreadable, by the section that it leaves empty or incomplete."""


class _Reader:
    """Reads JSON files below a folder and notes what it could not read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: dict[str, list[str]] = {}

    def note(self, section: str, sentence: str) -> None:
        self.missing.setdefault(section, []).append(sentence)

    def _open(self, name: str, section: str) -> Path | None:
        path = self.folder / name
        if path.is_file():
            return path
        self.note(section, f"{name} is not in the run folder.")
        return None

    def lines(self, name: str, section: str) -> list[Record]:
        """The JSON objects of a file of lines; a line that is none (a run that was killed) is skipped and noted."""
        if (path := self._open(name, section)) is None:
            return []
        records = []
        texts = [text for text in path.read_text(encoding="utf-8", errors="replace").split("\n") if text.strip()]
        for number, text in enumerate(texts, start=1):
            if (record := _json_object(text)) is not None:
                records.append(record)
            else:
                self.note(section, f"{name}, line {number}: not a JSON object; skipped.")
        if not records:
            self.note(section, f"{name} holds no records.")
        return records

    def mapping(self, name: str, section: str) -> Record:
        """One JSON object; empty if it is missing or unreadable."""
        if (path := self._open(name, section)) is None:
            return {}
        record = _json_object(path.read_text(encoding="utf-8", errors="replace"))
        if record is None:
            self.note(section, f"{name} is not a JSON object.")
        return record or {}

    def trajectories(self, name: str, section: str) -> list[Record]:
        """The records of a file of trajectories."""
        records = self.lines(name, section)
        kept = [record for record in records if record.keys() >= _SHOWN_KEYS]
        if len(kept) < len(records):
            self.note(section, f"{name}: {len(records) - len(kept)} records of another format; skipped.")
        return kept


def _validation(reader: _Reader) -> dict[int, list[Record]]:
    names = [path.name for path in (reader.folder / "validation").glob("*.jsonl")]
    steps = {int(match[1]): name for name in names if (match := _VALIDATION_FILE.fullmatch(name))}
    if not steps:
        reader.note("validation", "validation/ holds no trajectories.")
    return {step: reader.trajectories(f"validation/{steps[step]}", "validation") for step in sorted(steps)}


def _json_object(text: str) -> Record | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_run(folder: Path) -> RunInputs:
    """Collect the inputs of the report from a run folder.

    Raises:
        DeltaMemError: If the folder does not exist.
    """
    if not folder.is_dir():
        raise DeltaMemError(f"{folder}: no such run folder")
    reader = _Reader(folder)
    summaries = {}
    for phase in PHASES:
        for mode in MODES:
            if summary := reader.mapping(f"eval/{phase}_{mode}/summary.json", "evaluation"):
                summaries[f"{phase}_{mode}"] = summary
    return RunInputs(
        name=folder.resolve().name,
        metrics=reader.lines("metrics.jsonl", "training"),
        warm_start=reader.lines("warm_start.jsonl", "warm_start"),
        summaries=summaries,
        trajectories=reader.trajectories(f"eval/{SHOWN_EVALUATION}/trajectories.jsonl", "trajectories"),
        validation=_validation(reader),
        run_summary=reader.mapping("summary.json", "run"),
        missing=reader.missing,
    )


LESS_IS_BETTER = {"wrong_target_rate", "add_for_update_rate", "unreadable_rate", "failure_rate", "duplicates_per_episode"}
NEITHER_IS_BETTER = {"queries_per_memory", "queries_per_episode"}


@dataclass(frozen=True, slots=True)
class Change:
    """A metric before and after: estimates with intervals, None if not measured."""

    before: Summary | None
    after: Summary | None
    difference: float | None
    """After minus before; None if one is missing."""
    verdict: str
    """``better`` or ``worse`` where the intervals do not overlap, else empty."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric, with a change for each mode."""

    label: str
    changes: list[Change]


def comparison(summaries: Mapping[str, Summary]) -> list[MetricRow]:
    """The table: one row a metric, each with a change for every mode of `MODES`.

    `summaries` are those of evaluations by ``<phase>_<mode>``; any may be missing.
    """
    metrics = {name: summary.get("metrics", {}) for name, summary in summaries.items()}
    names = list(dict.fromkeys(name for measured in metrics.values() for name in shown_metrics(measured)))
    return [
        MetricRow(
            label(name).strip(),
            [
                _change(name, metrics.get(f"before_{mode}", {}).get(name), metrics.get(f"after_{mode}", {}).get(name))
                for mode in MODES
            ],
        )
        for name in names
    ]


def _change(name: str, before: Summary | None, after: Summary | None) -> Change:
    if before is None or after is None:
        return Change(before, after, None, "")
    difference = after["estimate"] - before["estimate"]
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    less_is_better = name in LESS_IS_BETTER or name.startswith(VIOLATIONS_PER_EPISODE)
    verdict = ""
    if apart and name not in NEITHER_IS_BETTER:
        verdict = "better" if (difference > 0) != less_is_better else "worse"
    return Change(before, after, difference, verdict)


def write_report(run: Path, *, out: Path | None = None, trajectories: int = 12) -> Path:
    """Write the report of a run folder.

    Args:
        run: The run folder. What it lacks is said on the page.
        out: The page; ``report.html`` in the run folder if None.
        trajectories: How many trajectories to show at most.

    Returns:
        Where the page is.

    Raises:
        DeltaMemError: If the folder does not exist or the page cannot be written.
    """
    target = out if out is not None else run / "report.html"
    write_page(target, render(read_run(run), trajectories=trajectories))
    return target


def render(inputs: RunInputs, *, trajectories: int) -> str:
    """Render the page as one HTML text without outside resources; everything that was read is escaped."""
    return render_page(
        Path(__file__).parent / "report.html.j2",
        name=inputs.name,
        facts=_facts(inputs),
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        missing=inputs.missing,
        training=training_charts(inputs.metrics),
        machine=machine_charts(inputs.metrics),
        warm_start=warm_start_charts(inputs.warm_start),
        rows=comparison(inputs.summaries),
        summaries=inputs.summaries,
        shown=[view(record, reason) for reason, record in choose(inputs.trajectories, trajectories)],
        histories=histories(inputs.validation, trajectories),
        evaluated=len(inputs.trajectories),
        shown_evaluation=SHOWN_EVALUATION,
        details=_details(inputs),
    )


def _making(inputs: RunInputs) -> Mapping[str, Any]:
    summaries = [inputs.summaries.get(SHOWN_EVALUATION), *inputs.summaries.values()]
    making = next((summary.get("provenance") for summary in summaries if summary), None)
    return making if isinstance(making, dict) else {}


def _facts(inputs: RunInputs) -> list[tuple[str, str]]:
    """What, when, commit, seed: from the summary of the run, else from that of an evaluation."""
    making, run = _making(inputs), inputs.run_summary
    evaluation = inputs.summaries.get(SHOWN_EVALUATION, {})
    seconds = run.get("seconds")
    total = seconds.get("total") if isinstance(seconds, dict) else seconds
    facts = {
        "evaluated policy": evaluation.get("policy"),
        "finished": making.get("finished"),
        "commit": run.get("git_commit") or making.get("git_commit"),
        "seed": run.get("seed", making.get("seed")),
        "embedder": making.get("embedder"),
        "held-out sessions": evaluation.get("sessions"),
        "held-out people": evaluation.get("people"),
        "minutes": f"{total / 60:.1f}" if isinstance(total, int | float) and total else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _details(inputs: RunInputs) -> dict[str, Any]:
    """What is shown folded: the whole summary of the run and how the evaluation was made."""
    details = {"summary.json": inputs.run_summary, "making of the evaluation": _making(inputs)}
    return {name: value for name, value in details.items() if value}

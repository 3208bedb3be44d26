"""The report of a run: what it reads, the table of before and after, and the page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.html import render_page, write_page
from eval.heldout import VIOLATIONS_PER_EPISODE, label, shown_metrics
from eval.training_report.charts import machine_charts, training_charts, warm_start_charts
from eval.training_report.trajectories import choose, histories, view

Record = dict[str, Any]
Summary = Mapping[str, Any]

PHASES = ("before", "after")
MODES = ("sampled", "greedy")
EVALUATIONS = tuple(f"{phase}_{mode}" for phase in PHASES for mode in MODES)
SHOWN_EVALUATION = "after_sampled"
"""The evaluation whose trajectories are shown."""

_SHOWN_KEYS = {"key", "dialogue", "turns", "operations", "target_operations", "prior_state", "retrieved_ids", "score"}
_SHOWN_KEYS |= {"violations"}
_VALIDATION_FILE = re.compile(r"step_(\d+)\.jsonl")


class RunInputs:
    """Everything that a report reads; what is absent or unreadable is noted, by the section that lacks it."""

    def __init__(self, folder: Path) -> None:
        """Read a run folder.

        Raises:
            DeltaMemError: If the folder does not exist.
        """
        if not folder.is_dir():
            raise DeltaMemError(f"{folder}: no such run folder")
        self.folder = folder
        self.missing: dict[str, list[str]] = {}
        read = {which: self._mapping(f"eval/{which}/summary.json", "evaluation") for which in EVALUATIONS}
        self.summaries = {which: summary for which, summary in read.items() if summary}
        self.metrics = self._lines("metrics.jsonl", "training")
        self.warm_start = self._lines("warm_start.jsonl", "warm_start")
        self.trajectories = self._lines(f"eval/{SHOWN_EVALUATION}/trajectories.jsonl", "trajectories", _SHOWN_KEYS)
        names = [path.name for path in (folder / "validation").glob("*.jsonl")]
        steps = {int(match[1]): name for name in names if (match := _VALIDATION_FILE.fullmatch(name))}
        if not steps:
            self._note("validation", "validation/ holds no trajectories.")
        self.validation = {step: self._lines(f"validation/{steps[step]}", "validation", _SHOWN_KEYS) for step in sorted(steps)}
        self.run_summary = self._mapping("summary.json", "run")

    def _note(self, section: str, sentence: str) -> None:
        self.missing.setdefault(section, []).append(sentence)

    def _text(self, name: str, section: str) -> str | None:
        path = self.folder / name
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
        self._note(section, f"{name} is not in the run folder.")
        return None

    def _lines(self, name: str, section: str, keys: Set[str] = frozenset()) -> list[Record]:
        """The JSON objects with these keys in a file of lines; other lines (of a run that was killed) are skipped and noted."""
        if (text := self._text(name, section)) is None:
            return []
        records = [_json_object(line) for line in text.split("\n") if line.strip()]
        for number, record in enumerate(records, start=1):
            if record is None:
                self._note(section, f"{name}, line {number}: not a JSON object; skipped.")
        known = [record for record in records if record is not None]
        kept = [record for record in known if record.keys() >= keys]
        if not known:
            self._note(section, f"{name} holds no records.")
        elif len(kept) < len(known):
            self._note(section, f"{name}: {len(known) - len(kept)} records of another format; skipped.")
        return kept

    def _mapping(self, name: str, section: str) -> Record:
        """One JSON object; empty if it is missing or unreadable."""
        if (text := self._text(name, section)) is None:
            return {}
        record = _json_object(text)
        if record is None:
            self._note(section, f"{name} is not a JSON object.")
        return record or {}


def _json_object(text: str) -> Record | None:
    with suppress(ValueError):
        if isinstance(content := json.loads(text), dict):
            return content
    return None


LESS_IS_BETTER = {"wrong_target_rate", "add_for_update_rate", "unreadable_rate", "failure_rate", "duplicates_per_episode"}
NEITHER_IS_BETTER = {"queries_per_memory", "queries_per_episode"}


class Change(NamedTuple):
    """A metric before and after: estimates with intervals, None if not measured."""

    before: Summary | None
    after: Summary | None
    difference: float | None = None  # After minus before; None if one is missing
    verdict: str = ""  # ``better`` or ``worse`` where the intervals do not overlap


def comparison(summaries: Mapping[str, Summary]) -> dict[str, list[Change]]:
    """The table: by the label of each metric a change for every mode of `MODES`.

    `summaries` are those of evaluations by ``<phase>_<mode>``; any may be missing.
    """
    metrics = {name: summary.get("metrics", {}) for name, summary in summaries.items()}
    names = dict.fromkeys(name for measured in metrics.values() for name in shown_metrics(measured))
    return {
        label(name).strip(): [
            _change(name, *(metrics.get(f"{phase}_{mode}", {}).get(name) for phase in PHASES)) for mode in MODES
        ]
        for name in names
    }


def _change(name: str, before: Summary | None, after: Summary | None) -> Change:
    if before is None or after is None:
        return Change(before, after)
    difference = after["estimate"] - before["estimate"]
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    less_is_better = name in LESS_IS_BETTER or name.startswith(VIOLATIONS_PER_EPISODE)
    verdict = ""
    if apart and name not in NEITHER_IS_BETTER:
        verdict = "better" if (difference > 0) != less_is_better else "worse"
    return Change(before, after, difference, verdict)


def write_report(run: Path, *, out: Path | None = None, trajectories: int = 12) -> Path:
    """Write the report of a run folder, with at most so many trajectories; what the folder lacks is said on the page.

    Returns:
        Where the page is: `out`, or ``report.html`` in the run folder.

    Raises:
        DeltaMemError: If the folder does not exist or the page cannot be written.
    """
    inputs = RunInputs(run)
    page = render_page(
        Path(__file__).parent / "report.html.j2",
        inputs=inputs,
        name=inputs.folder.resolve().name,
        facts=_facts(inputs),
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        training=training_charts(inputs.metrics),
        machine=machine_charts(inputs.metrics),
        warm_start=warm_start_charts(inputs.warm_start),
        rows=comparison(inputs.summaries),
        shown=[view(record, reason) for reason, record in choose(inputs.trajectories, trajectories)],
        histories=histories(inputs.validation, trajectories),
        shown_evaluation=SHOWN_EVALUATION,
        # The whole summary of the run and how the evaluation was made, folded
        details={"summary.json": inputs.run_summary, "making of the evaluation": _making(inputs)},
    )
    target = out if out is not None else run / "report.html"
    write_page(target, page)
    return target


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

"""The report of a run: what it reads, the table of before and after, trajectories for the viewer, and the page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from deltamem.episode import Message, read_turn
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.page import page
from eval.heldout import VIOLATIONS_PER_EPISODE, label, shown_metrics
from eval.html import render_page, write_page
from eval.probes import cell_rows, not_better, rows
from eval.training_report.charts import machine_charts, training_charts, warm_start_charts
from rewards.fidelity import folded, folded_keyword, found_in

Record = Mapping[str, Any]

PHASES = ("before", "after")
MODES = ("sampled", "greedy")
EVALUATIONS = tuple(f"{phase}_{mode}" for phase in PHASES for mode in MODES)
SHOWN_EVALUATION = "after_sampled"
"""The evaluation whose trajectories are shown."""

_SHOWN_KEYS = {"key", "time", "dialogue", "turns", "operations", "target_operations", "prior_state", "retrieved_ids"}
_SHOWN_KEYS |= {"score", "violations"}
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
        self.name = folder.resolve().name
        self.missing: dict[str, list[str]] = {}
        read = {which: self._mapping(f"eval/{which}/summary.json", "evaluation") for which in EVALUATIONS}
        self.summaries = {which: summary for which, summary in read.items() if summary}
        self.metrics = self._lines("metrics.jsonl", "training")
        self.warm_start = self._lines("warm_start.jsonl", "warm_start")
        self.trajectories = self._lines(f"eval/{SHOWN_EVALUATION}/trajectories.jsonl", "trajectories", _SHOWN_KEYS)
        names = [path.name for path in (folder / "validation").glob("*.jsonl")]
        files = {int(match[1]): f"validation/{name}" for name in names if (match := _VALIDATION_FILE.fullmatch(name))}
        if not files:
            self._note("validation", "validation/ holds no trajectories.")
        self.validation = {step: self._lines(files[step], "validation", _SHOWN_KEYS) for step in sorted(files)}
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
        """The JSON objects with these keys in a file of lines; others, as a killed run leaves, are skipped and noted."""
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


LESS_IS_BETTER = {
    "wrong_target_rate",
    "add_for_update_rate",
    "due_left_alone_rate",
    "unreadable_rate",
    "failure_rate",
    "duplicates_per_episode",
}
NEITHER_IS_BETTER = {"queries_per_memory", "queries_per_episode"}


class MetricChange(NamedTuple):
    """A metric before and after: estimates with intervals, None if not measured."""

    before: Record | None
    after: Record | None
    difference: float | None = None  # After minus before; None if one is missing
    verdict: str = ""  # ``better`` or ``worse`` where the intervals do not overlap


def comparison(summaries: Mapping[str, Record]) -> dict[str, list[MetricChange]]:
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


def _change(name: str, before: Record | None, after: Record | None) -> MetricChange:
    if before is None or after is None:
        return MetricChange(before, after)
    difference = after["estimate"] - before["estimate"]
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    less_is_better = name in LESS_IS_BETTER or name.startswith(VIOLATIONS_PER_EPISODE)
    verdict = ""
    if apart and name not in NEITHER_IS_BETTER:
        verdict = "better" if (difference > 0) != less_is_better else "worse"
    return MetricChange(before, after, difference, verdict)


def shown(record: Record, step: int | None = None) -> dict[str, Any]:
    """What the viewer shows of a record; `step` is that of the training it was made in, None for an evaluation."""
    score, transition = record["score"], record["score"]["transition"]
    return {
        **{name: record[name] for name in ("key", "time", "dialogue", "operations", "violations")},
        "step": step,
        "prior": {memory_id: memory["text"] for memory_id, memory in record["prior_state"].items()},
        "turns": [_turn(message) for message in record["turns"]],
        "targets": [_target(operation, record) for operation in record["target_operations"]],
        "score": {
            **{name: score[name] for name in ("reward", "format", "retrieval")},
            **{name: transition[name] for name in ("precision", "recall", "unmatched_predicted", "unmatched_target")},
            "transition": transition["reward"],
            "pairs": [
                {
                    "predicted": pair["predicted"]["text"],
                    "target": pair["target"]["text"],
                    "similarity": pair["similarity"],
                    "score": pair["score"],
                }
                for pair in transition["pairs"]
            ],
        },
    }


def trajectories_page(inputs: RunInputs) -> str | None:
    """The viewer with all trajectories of a run that did not fail, or None if there are none."""
    by_step: list[tuple[int | None, Sequence[Record]]] = [(None, inputs.trajectories), *inputs.validation.items()]
    kept = [(record, step) for step, records in by_step for record in records if record.get("failure") is None]
    if not kept:
        return None
    lines = [json.dumps(line, ensure_ascii=False) for line in ({"run": inputs.name}, *(shown(*one) for one in kept))]
    return page("\n".join(lines), (Path(__file__).parent / "trajectories.js").read_text(encoding="utf-8"))


_THINK = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)


def _turn(message: Message) -> dict[str, Any]:
    """One message after the opening: an assistant's thinking and action, or what a search returned."""
    content = message["content"]
    turn = {"role": message["role"], "think": "", "queries": [], "memories": [], "rest": ""}
    if message["role"] == "tool":
        with suppress(ValueError):
            memories = json.loads(content)
            if isinstance(memories, list) and all(isinstance(memory, dict) for memory in memories):
                return turn | {"memories": memories}
        return turn | {"rest": content}
    match = _THINK.fullmatch(content)
    think, rest = (match[1].strip(), match[2].strip()) if match else ("", content)
    read = read_turn(rest, (), thinking=False)
    # A call that departs from the protocol is shown as it was written.
    queries = [] if read.violations else list(read.queries or ())
    return turn | {"think": think, "queries": queries, "rest": "" if queries else rest}


def _target(operation: Record, record: Record) -> dict[str, Any]:
    """With the keywords that the matched prediction contains, or what became of the operation otherwise."""
    # Additions have no id in pairs, so the text decides which pair is of the target entry that this operation wrote.
    entry = operation["target_memory_id"], operation["text"]
    pairs = record["score"]["transition"]["pairs"] if operation["event"] != Event.NONE else ()
    matched = (pair["predicted"]["text"] for pair in pairs if (pair["target"]["id"], pair["target"]["text"]) == entry)
    written = next(matched, None)
    # Read from JSON, alternatives are a list.
    keywords = [(keyword,) if isinstance(keyword, str) else tuple(keyword) for keyword in operation["keywords"]]
    found = {keyword: found_in(folded_keyword(keyword), folded(written or "")) for keyword in keywords}
    return {
        "operation": operation,
        "pieces": _pieces(operation["text"], {wording: found[keyword] for keyword in keywords for wording in keyword}),
        "keywords": [{"text": " / ".join(keyword), "found": is_found} for keyword, is_found in found.items()],
        "remark": _remark(operation, record) if written is None else "",
    }


def _remark(operation: Record, record: Record) -> str:
    if operation["event"] != Event.NONE:
        return "no counterpart"
    target_id = operation["target_memory_id"]
    nones = [made["target_memory_id"] for made in record["operations"] or () if made["event"] == Event.NONE]
    seen = any(target_id in ids for ids in record["retrieved_ids"])
    named = "named" if target_id in nones else "not named"
    return f"{named} by a NONE, {'found' if seen else 'not found'} by a search"


def _pieces(text: str, keywords: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Split a text at the wordings of its keywords, whatever their case and kind of whitespace; longer ones win.

    Returns:
        Each stretch of the text; of a keyword, whether the matched prediction contains it, else None.
    """
    longest_first = sorted(filter(str.strip, keywords), key=len, reverse=True)
    if not longest_first:
        return [{"text": text, "found": None}]
    found = {folded(keyword): keywords[keyword] for keyword in longest_first}
    pattern = "|".join(r"\s+".join(map(re.escape, keyword.split())) for keyword in longest_first)
    parts = re.split(f"({pattern})", text, flags=re.IGNORECASE)  # every second one is a keyword
    return [{"text": part, "found": found.get(folded(part)) if at % 2 else None} for at, part in enumerate(parts) if part]


def write_report(run: Path, *, out: Path | None = None) -> Path:
    """Write the report of a run folder, and beside it the trajectories; what the folder lacks is said on the page.

    Returns:
        Where the page is: `out`, or ``report.html`` in the run folder.

    Raises:
        DeltaMemError: If the folder does not exist or the page cannot be written.
    """
    inputs = RunInputs(run)
    beside = rows({name.replace("_", " GRPO, "): summary for name, summary in inputs.summaries.items()})
    target = out if out is not None else run / "report.html"
    viewer = target.with_name(f"{target.stem}-trajectories.html")
    trajectories = trajectories_page(inputs)
    report = render_page(
        Path(__file__).parent / "report.html.j2",
        inputs=inputs,
        name=inputs.name,
        facts=_facts(inputs),
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
        training=training_charts(inputs.metrics),
        machine=machine_charts(inputs.metrics),
        warm_start=warm_start_charts(inputs.warm_start),
        rows=comparison(inputs.summaries),
        beside=beside if any(row.description for row in beside) else [],
        not_better=not_better(beside),
        policies=beside,
        cells=cell_rows(beside),
        viewer=viewer.name if trajectories else None,
        shown_evaluation=SHOWN_EVALUATION,
        # The whole summary of the run and how the evaluation was made, folded
        details={"summary.json": inputs.run_summary, "making of the evaluation": _making(inputs)},
    )
    write_page(target, report)
    if trajectories:
        write_page(viewer, trajectories)
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

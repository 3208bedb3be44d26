"""The summary of a run, the table of one run for the terminal, and the Markdown table of several."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from deltamem.errors import DeltaMemError
from deltamem.intervals import bootstrap_interval, percent_text
from deltamem.runs import atomic_writer, config_hash, versions
from deltamem.text_files import read_text
from eval.records import IngestRecord
from eval.summary import SUMMARY_FILE, system_label
from eval.systems.base import Passage
from eval.systems.baselines import SentenceIndex
from eval.transfer.data import TransferConfig, TransferData, TransferPerson
from eval.transfer.measures import Counts, Ruler, nameless, pooled, question_counts, summed
from eval.transfer.run import TransferRun

BENCHMARK = "transfer"
COUNTS_FILE = "counts.jsonl"
PEOPLE = 8
"""From so many people on, intervals are a bootstrap of people; fewer are too few to draw from, so sessions are drawn."""

LABELS = {
    "system/found": "points found",
    "first_k/found": "points found by as many first sentences",
    "random_k/found": "points found by as many random sentences",
    "bag_k/found": "points found by as many by a bag of words",
    "first_tokens/found": "points found by first sentences of as many tokens",
    "system/by_chance": "points of another session found",
    "system/precision": "one-to-one precision",
    "system/recall": "one-to-one recall",
    "system/f1": "one-to-one F1",
    "bar/f1": "one-to-one F1 of first sentences, as many as points",
    "random/f1": "one-to-one F1 of as many random sentences",
    "bag/f1": "one-to-one F1 of as many by a bag of words",
    "copy_all/f1": "one-to-one F1 of all sentences",
    "idle/silent": "sessions without a point of which nothing is kept",
    "system/foreign": "foreign points matched",
    "bar/foreign": "foreign points matched by these first sentences",
    "copy_all/foreign": "foreign points matched by all sentences",
    "support/mean": "words of a memory that the owner said",
    "support/half": "memories of which the owner said at least half",
    "update/found": "updates with the new text found",
    "update/old_gone": "updates with the old text gone",
    "update/both": "updates with both",
}
"""What is shown of the measures, and how it is called; those of the budgets follow."""


COPIERS = {
    "bar": "first sentences, as many as points",
    "random": "random sentences, as many as points",
    "bag": "sentences that a bag of words picks, as many as points",
    "copy_all": "all sentences",
}
"""Who needs no system, and has a row of their own in the Markdown table."""


SessionCounts = dict[tuple[str, str], Counts]
"""By store and session what was counted."""


def suite_counts(run: TransferRun, suite: str, ruler: Ruler) -> SessionCounts:
    """By store and session what was counted; of sessions that were not read nothing."""
    counts: dict[tuple[str, str], list[Counts]] = defaultdict(list)
    config, files = run.config, run.files
    people = [person for person in run.people if person.suite == suite]
    for place, person in enumerate(people):
        written: list[int | None] = []  # How many memories of each session that was read
        for number, session in enumerate(person.sessions):
            record = files.session(person, number)
            if record is None:
                continue
            own = counts[person.store.id, session.dialogue.id]
            memories = () if record.outcome == "failed" else record.memories
            written.append(None if memories is None else len(memories))
            elsewhere = _elsewhere(people, place, number)
            own.append(ruler.session(session, person.store.owner, memories, elsewhere))
            if memories is not None and not session.points:
                own.append({"idle/silent": (record.outcome != "failed" and not memories, 1)})
            for update in session.updates:
                if (found := files.search(update.key, files.read(person, number + 1))) is not None:
                    own.append(ruler.update(update, person.store.owner, [passage.text for passage in found.passages]))
        after, by_time = files.read(person, len(person.sessions)), not run.system.ranked
        copied = asyncio.run(_sentences_found(person, written, ruler, config)) if person.questions else {}
        for question in person.questions:
            if (found := files.search(question.key, after)) is not None:
                shown = {"": found.passages} | {f"{name}/": among[question.key] for name, among in copied.items()}
                measured: Counts = {}
                for name, passages in shown.items():
                    of = question, passages, person.finder, config.budgets
                    one = question_counts(*of, by_time=by_time and not name, with_time=config.with_time)
                    measured |= {f"{name}{measure}": count for measure, count in one.items()}
                counts[person.store.id, question.session].append(measured)
    return {key: summed(of) for key, of in counts.items()}


async def _sentences_found(
    person: TransferPerson, written: Sequence[int | None], ruler: Ruler, config: TransferConfig
) -> dict[str, dict[str, list[Passage]]]:
    """What the questions find, by key, in a memory of as many sentences of each session as memories were written of it.

    First sentences, and random ones, drawn once; none for a system that extracts nothing or has not read all sessions.
    """
    numbers = [number for number in written if number is not None]
    if len(numbers) < len(person.sessions):
        return {}
    found = {}
    for name in ("first_k", "random_k"):
        index = SentenceIndex(ruler.embedder, with_time=config.with_time)
        for session, number in zip(person.sessions, numbers, strict=True):
            await index.ingest(session.dialogue)
            copied = index.sessions[session.dialogue.id]
            if name == "random_k":
                draw = random.Random(f"{ruler.seed} {person.store.id} {copied.id}")
                drawn = draw.sample(range(len(copied.turns)), min(number, len(copied.turns)))
                chosen = [copied.turns[place] for place in sorted(drawn)]
            else:
                chosen = list(copied.turns[:number])
            index.sessions[copied.id] = replace(copied, turns=tuple(chosen))
        found[name] = {question.key: await index.search(question.text, config.budget_k) for question in person.questions}
    return found


def _elsewhere(people: Sequence[TransferPerson], place: int, number: int) -> Sequence[str]:
    """The points of a session of the same person, far away in time; of another person where there is but one."""
    sessions = people[place].sessions
    if len(sessions) > 1:
        return sessions[(number + len(sessions) // 2) % len(sessions)].points
    far = people[(place + len(people) // 2) % len(people)]
    return nameless(far.sessions[0].points, far.store.owner) if far is not people[place] else ()


def write_counts(path: Path, counts: Mapping[str, SessionCounts]) -> None:
    """Write a line a session with the numerator and denominator of each measure, to pool those of any sessions."""
    with atomic_writer(path) as file:
        for suite, sessions in counts.items():
            for (store, session), sums in sessions.items():
                file.write(json.dumps({"suite": suite, "store": store, "session": session, "counts": sums}) + "\n")


def summarise(
    run: TransferRun, data: TransferData, counted: Mapping[str, SessionCounts], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """What ``summary.json`` holds: for each suite ``people``, ``sessions``, ``cost`` and ``scores`` with intervals.

    Intervals are a bootstrap of people where there are `PEOPLE`, else of sessions: those say how far the figures depend on
    which sessions were read of these people, and nothing of other people.
    """
    config = run.config
    suites = {}
    groups_by = {}
    for suite, counts in counted.items():
        people = [person for person in run.people if person.suite == suite]
        groups_by[suite] = "person" if len(people) >= PEOPLE else "session"
        names = dict.fromkeys(name for of in counts.values() for name in of)
        scores = {}
        for name in names:
            tops, bottoms, stores = pooled(counts, name)
            groups = stores if groups_by[suite] == "person" else range(len(tops))
            drawn = {"resamples": config.resamples, "seed": config.seed}
            interval = bootstrap_interval(tops, groups, denominators=bottoms, **drawn)
            scores[name] = None if interval is None else interval.as_dict()
        suites[suite] = {"people": [person.store.id for person in people], **_sessions(run, people), "scores": scores}
    alone = [suite for suite, of in suites.items() if len(of["people"]) == 1]
    late = sum(record.late for record in run.files.sessions)
    return {
        "benchmark": BENCHMARK,
        "system": config.system,
        "suites": suites,
        "sessions_sha256": config_hash({"read": [[p.store.id, s.dialogue.id] for p in run.people for s in p.sessions]}),
        "warnings": [
            *([f"{late} sessions were read after later ones, because they had failed before"] if late else []),
            *(f"{suite} is a single person, whose figures say nothing of others" for suite in alone),
            *run.system.facts().get("warnings", ()),
        ],
        "provenance": {
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "config": config.reported(),
            "data": data.files,
            "versions": versions(),
            "system": run.system.facts(),
            "bootstrap": {"by": groups_by, "level": 0.95, "resamples": config.resamples, "seed": config.seed},
            **provenance,
        },
    }


def _sessions(run: TransferRun, people: Sequence[TransferPerson]) -> dict[str, Any]:
    """How many sessions were read and how, and what they cost."""
    every = [run.files.session(person, number) for person in people for number in range(len(person.sessions))]
    records = [record for record in every if record is not None]
    outcomes = Counter(record.outcome for record in records)
    return {
        "sessions": {
            "number": len(every),
            "read": len(records),
            "failed": outcomes["failed"],
            "unreadable": outcomes["unreadable"],
            "searches_missing": sum(run.searches(person).count(None) for person in people),
        },
        "memories": sum(len(record.memories or ()) for record in records),
        "operations": dict(sum((Counter(record.operations) for record in records), Counter())),
        "violations": dict(sum((Counter(record.violations) for record in records), Counter())),
        "cost": _cost(records),
    }


def _cost(records: Sequence[IngestRecord]) -> dict[str, float]:
    """Of all sessions; the seconds are of those without a cached answer, which takes no time."""
    fields = ("calls", "cached", "prompt_tokens", "completion_tokens")
    sums = {name: sum(getattr(record.cost, name) for record in records) for name in fields}
    timed = [record.cost.seconds for record in records if not record.cost.cached and not record.cost_lost]
    return sums | {"seconds": round(sum(timed), 1), "timed_sessions": len(timed)}


_OF_BUDGETS = {
    "evidence": "evidence found",
    "first_k/evidence": "evidence found by as many first sentences",
    "random_k/evidence": "evidence found by as many random sentences",
    "words": "words of the evidence shown",
}


def _labels(suites: Mapping[str, Any]) -> dict[str, str]:
    """The measures to show, in order, with what they are called."""
    labels = dict(LABELS)
    for kind, label in _OF_BUDGETS.items():
        labels |= {f"{kind}@{budget}": f"{label} at {budget} tokens" for budget in _budgets(suites.values())}
    return labels


def _budgets(suites: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted({int(name.split("@")[1]) for of in suites for name in of["scores"] if "@" in name})


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One run, for the terminal."""
    suites = summary["suites"]
    title = f"{system_label(summary['system'], summary['provenance'].get('system', {}))}: what it keeps"
    table = Table(title=title, caption=f"%, with 95% intervals by person; of fewer than {PEOPLE} people by session")
    table.add_column("measure", no_wrap=True)
    for suite, of in suites.items():
        table.add_column(f"{suite}\n{of['sessions']['number']} sessions", justify="right")
    for name, label in _labels(suites).items():
        cells = [of["scores"].get(name) for of in suites.values()]
        if any(cell is not None for cell in cells):
            table.add_row(label, *(percent_text(cell, 0) for cell in cells))
    table.add_section()
    for label, cell in _COSTS.items():
        table.add_row(label, *map(cell, suites.values()))
    return table


def _a_session(of: Mapping[str, Any], amount: float) -> float:
    read: int = of["sessions"]["read"]
    return amount / max(1, read)


def _seconds(of: Mapping[str, Any]) -> str:
    timed = of["cost"]["timed_sessions"]
    return f"{of['cost']['seconds'] / timed:.1f}" if timed else "-"


_COSTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "people": lambda of: str(len(of["people"])),
    "sessions read": lambda of: str(of["sessions"]["read"]),
    "sessions failed, unreadable": lambda of: "{failed}, {unreadable}".format_map(of["sessions"]),
    "memories a session": lambda of: f"{_a_session(of, of['memories']):.1f}",
    "model calls (cached)": lambda of: "{calls:,.0f} ({cached:,.0f})".format_map(of["cost"]),
    "tokens read, written": lambda of: "{prompt_tokens:,.0f}, {completion_tokens:,.0f}".format_map(of["cost"]),
    "tokens a session": lambda of: ", ".join(
        f"{_a_session(of, of['cost'][name]):,.0f}" for name in ("prompt_tokens", "completion_tokens")
    ),
    "seconds": lambda of: f"{of['cost']['seconds']:,.0f}",
    "seconds a session": _seconds,
}


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        DeltaMemError: If the folder holds none of this command.
    """
    try:
        summary: dict[str, Any] = json.loads(read_text(folder / SUMMARY_FILE))
        if summary["benchmark"] != BENCHMARK:
            raise DeltaMemError(f"{folder}: a run of {summary['benchmark']}, not of python -m eval.{BENCHMARK}")
    except OSError as error:
        raise DeltaMemError(f"{folder}: no finished run: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DeltaMemError(f"{folder / SUMMARY_FILE}: not a summary of python -m eval.{BENCHMARK}") from error
    return summary


def markdown_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Several runs by name in one table, a row for each suite and system, after the copiers that need none.

    Below it stands what keeps the rows from being compared.
    """
    every = list(summaries.values())
    suites = dict.fromkeys(suite for of in every for suite in of["suites"])
    facts = {name: of["provenance"].get("system", {}) for name, of in summaries.items()}
    titles = {name: system_label(f"**{name}**", of, str(of.get("model", ""))) for name, of in facts.items()}
    budgets = _budgets(one for of in every for one in of["suites"].values())
    at = "/".join(map(str, budgets))
    heads = ["", "sessions", "memories a session", "found / first k / random k / bag of words / first tokens"]
    heads += ["by chance", "precision", "recall", "F1", "idle silent", "foreign", "words said, half"]
    heads += ["update both (new, old gone)", f"evidence at {at}", f"first k at {at}", f"random k at {at}", f"words at {at}"]
    heads += ["calls (cached)", "tokens a session", "seconds a session"]
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1)]
    for suite in suites:
        rows = {name: of["suites"][suite] for name, of in summaries.items() if suite in of["suites"]}
        first = next(iter(rows.values()))["scores"]
        for kind, name in COPIERS.items():
            if f"{kind}/f1" not in first:
                continue
            measures = ("found", "precision", "recall", "f1", "foreign")
            found, *pairs, foreign = (_cell(first, f"{kind}/{measure}") for measure in measures)
            lines.append([f"{suite}: {name}", "", "", found, "", *pairs, "", foreign, *[""] * 9])
        lines += ([f"{suite}: {titles[name]}", *_row(of, budgets)] for name, of in rows.items())
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + [""] + warnings(summaries))


def _cell(scores: Mapping[str, Any], *names: str) -> str:
    shares = (scores.get(name) for name in names)
    shown = ["-" if one is None else f"{one['estimate']:.2f}".removeprefix("0") for one in shares]
    return "-" if set(shown) == {"-"} else " / ".join(shown)


def _row(of: Mapping[str, Any], budgets: Sequence[int]) -> list[str]:
    scores, sessions, cost = of["scores"], of["sessions"], of["cost"]
    lost = [f"{sessions[name]} {name}" for name in ("failed", "unreadable") if sessions[name]]
    updates = _cell(scores, "update/both"), _cell(scores, "update/found"), _cell(scores, "update/old_gone")
    return [
        ", ".join([str(sessions["number"]), *lost]),
        f"{_a_session(of, of['memories']):.1f}" if "system/found" in scores else "-",
        _cell(scores, *(f"{name}/found" for name in ("system", "first_k", "random_k", "bag_k", "first_tokens"))),
        *(_cell(scores, f"system/{name}") for name in ("by_chance", "precision", "recall", "f1")),
        _cell(scores, "idle/silent"),
        _cell(scores, "system/foreign"),
        _cell(scores, "support/mean", "support/half"),
        f"{updates[0]} ({updates[1]}, {updates[2]})" if updates[0] != "-" else "-",
        *(_cell(scores, *(f"{kind}@{budget}" for budget in budgets)) for kind in _OF_BUDGETS),
        f"{cost['calls']:,.0f} ({cost['cached']:,.0f})",
        f"{_a_session(of, cost['prompt_tokens'] + cost['completion_tokens']):,.0f}",
        _seconds(of),
    ]


def warnings(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What keeps runs from being compared, one sentence each: other sessions, data or embedders, or something missing."""
    found = []
    ways = {
        "sessions": lambda of: of["sessions_sha256"],
        "data": lambda of: {suite: one["sha256"] for suite, one in of["provenance"]["data"].items()},
        "embedders": lambda of: of["provenance"]["config"]["embedder"]["name"],
        "thresholds": lambda of: of["provenance"]["config"]["threshold"],
    }
    for what, value in ways.items():
        groups: dict[str, list[str]] = defaultdict(list)
        for name, of in summaries.items():
            groups[json.dumps(value(of), sort_keys=True)].append(name)
        if len(groups) > 1:
            parts = " and ".join(", ".join(names) for names in groups.values())
            found.append(f"**Not comparable**: other {what} in {parts}.")
    for name, of in summaries.items():
        for suite, one in of["suites"].items():
            sessions = one["sessions"]
            if (left := sessions["number"] - sessions["read"]) or sessions["searches_missing"]:
                found.append(f"{name}: {left} sessions and {sessions['searches_missing']} searches of {suite} are missing.")
        found += (f"{name}: {warning}." for warning in of["warnings"])
    return found

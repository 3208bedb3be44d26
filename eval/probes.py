"""Shallow policies beside a trained one: what they earn on the same sessions, as rows of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from deltamem.embedding import Embedder
from deltamem.intervals import RESAMPLES, interval_text
from deltamem.sessions import AXES, LabelledSession, Split, read_sessions
from rewards.probes import run_probes
from rewards.reward import DEFAULT_OPTIONS, RewardOptions

Summary = Mapping[str, Any]

_LEARNED_FROM = 1000
"""Sessions of other people that the probes learn words and boilerplate from; more change nothing."""


def score_probes(
    file: Path,
    sessions: Sequence[LabelledSession],
    embedder: Embedder,
    *,
    options: RewardOptions = DEFAULT_OPTIONS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Score the shallow policies on the sessions that a policy is evaluated on, all of one split.

    `file` is the ``sessions.jsonl`` that they come from: the people of its other split are what the probes learn from.

    Returns:
        The fields of a `rewards.probes.ProbeScore` by the name of the probe; empty if there are no sessions.
    """
    if not sessions:
        return {}
    other: Split = "heldout" if sessions[0].split == "train" else "train"
    train = list(islice(read_sessions(file, split=other), _LEARNED_FROM))
    found = run_probes(train, sessions, embedder, options=options, resamples=resamples, seed=seed)
    return {name: asdict(score) for name, score in found.items()}


class ProbeRow(NamedTuple):
    """A policy, trained or shallow; None where it was not measured."""

    name: str
    description: str  # Empty for a policy that is no probe
    knows_target: bool
    reward: Mapping[str, float] | None  # Estimate with its 95% interval by person, ``low`` to ``high``
    transition: Mapping[str, float] | None
    update_recall: float | None  # Due UPDATEs whose memory it rewrote
    cells: Mapping[str, Mapping[str, float]]  # The reward by cell of difficulty; empty where none was planned


def rows(summaries: Mapping[str, Summary]) -> list[ProbeRow]:
    """Evaluated policies and the probes beside them, in one order: by falling reward, those that know the target last.

    `summaries` are what `eval.heldout` writes, by the name that the policy shall have. The probes are those of the first
    that has any, since all are of the same sessions.
    """
    found = []
    for name, summary in summaries.items():
        metrics = summary.get("metrics", {})
        recall = (metrics.get("update_recall") or {}).get("estimate")
        measured = metrics.get("reward"), metrics.get("transition"), recall, summary.get("cells", {})
        found.append(ProbeRow(name, "", False, *measured))
    probes: Mapping[str, Any] = next((summary["probes"] for summary in summaries.values() if summary.get("probes")), {})
    for name, probe in probes.items():
        parts = probe["parts"]
        told = name.replace("_", " "), probe["description"], probe["knows_target"]
        found.append(ProbeRow(*told, parts["reward"], parts["transition"], probe["rates"]["update_recall"], probe["cells"]))
    return sorted(found, key=lambda row: (row.knows_target, -row.reward["estimate"] if row.reward else 1.0))


def not_better(found: Sequence[ProbeRow]) -> list[str]:
    """A sentence for each evaluated policy that earns no more than the best shallow one that does not know the target."""
    measured = [(row, row.reward["estimate"]) for row in found if row.reward and not row.knows_target]
    shallow = [(estimate, row) for row, estimate in measured if row.description]
    if not shallow:
        return []
    best, probe = max(shallow, key=lambda pair: pair[0])
    return [
        f"{row.name} earns {estimate:.3f}, no more than {probe.name} ({best:.3f}: {probe.description})"
        for row, estimate in measured
        if not row.description and estimate <= best
    ]


def probe_table(found: Sequence[ProbeRow]) -> Table:
    """The rows for the terminal."""
    table = Table(
        "policy", title="Beside shallow policies", caption="95% intervals by person; below: those that know the target"
    )
    for heading in ("reward", "transition", "UPDATE recall"):
        table.add_column(heading, justify="right", no_wrap=heading != "UPDATE recall")
    for number, row in enumerate(found):
        last = number + 1 < len(found) and found[number + 1].knows_target and not row.knows_target
        told = f"{row.name}: {row.description}" if row.description else row.name
        recall = "-" if row.update_recall is None else f"{row.update_recall:.3f}"
        style = None if row.description else "bold"
        table.add_row(told, interval_text(row.reward), interval_text(row.transition), recall, style=style, end_section=last)
    return table


class ShownCell(NamedTuple):
    """A cell of difficulty as it is shown."""

    value: str  # On its axis
    sessions: int | None  # How many of them a trained policy answered; None beside probes alone
    rewards: list[Mapping[str, float] | None]  # One for each `ProbeRow`


def cell_rows(found: Sequence[ProbeRow]) -> dict[str, list[ShownCell]]:
    """Rewards by cell of difficulty, the cells by axis; empty where no difficulty was planned."""
    shown: dict[str, list[ShownCell]] = {}
    for axis, values in AXES.items():
        for value in values:
            rewards = [row.cells.get(f"{axis}={value}") for row in found]
            if any(rewards):
                sessions = max((int(one["count"]) for one in rewards if one and "count" in one), default=None)
                shown.setdefault(axis, []).append(ShownCell(value.replace("_", " "), sessions, rewards))
    return shown


def cell_tables(found: Sequence[ProbeRow]) -> list[Table]:
    """Rewards by cell of difficulty for the terminal, policies that know the target in a table of their own."""
    tables = []
    shown = cell_rows(found)
    figure, with_interval = 7, 20  # characters; a word of a heading may take two more than a figure
    for knows_target in (False, True):
        places = [place for place, row in enumerate(found) if row.knows_target == knows_target]
        if not shown or not places:
            continue
        title = "Reward by difficulty" + (", of policies that know the target" if knows_target else "")
        caption = "95% intervals by person; n: sessions"
        table = Table("", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, caption=caption)
        table.add_column("n", justify="right", no_wrap=True)
        for place in places:
            # A figure is never cut, however long the name above it: an endpoint's has its address.
            width = figure if found[place].description else with_interval
            table.add_column(found[place].name, justify="right", overflow="fold", width=width)
        for axis, of_axis in shown.items():
            table.add_row(axis, style="bold")
            for cell in of_axis:
                # Probes have no intervals: ten side by side cannot be read.
                figures = [
                    f"{one['estimate']:.3f}" if found[place].description and one else interval_text(one)
                    for place, one in ((place, cell.rewards[place]) for place in places)
                ]
                table.add_row(f"  {cell.value}", "" if cell.sessions is None else str(cell.sessions), *figures)
            table.add_section()
        tables.append(table)
    return tables

"""The result of a study: one table of what was measured beside what is published, and its charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltamem.errors import DeltaMemError
from deltamem.intervals import Interval
from deltamem.runs import atomic_writer
from eval.compare.layout import Cell, Column, Row
from eval.compare.page import colour, cumulative_chart, mark
from eval.compare.runs import FinishedRun, bounds
from eval.compare.tables import paper_tables
from eval.html import inline_svg, percent
from eval.sweep.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "DeltaMem, arXiv 2604.01560"
"""Beginning of the sources of its rows in the files of published numbers."""

_SESSIONS = (1, 5, 10, 15, 20, 25)
"""After which sessions the table has the accuracy; the chart has all."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study has measured: a row for each point, measured or not, and a column for each score."""

    study: Study
    runs: Mapping[str, FinishedRun]  # By point
    columns: Sequence[Column]
    ours: Mapping[str, Row]  # By point
    published: Mapping[str, Row]  # By point

    def lines(self) -> list[list[str]]:
        """The table as text, its heading first; the paper's numbers are in columns of their own."""
        names = [" ".join(filter(None, (column.name, column.heading))) for column in self.columns]
        beside = [f"{name}, paper" for name in names] if self.published else []
        lines = [["point", *names, *beside]]
        for label in self.study.points:
            ours = _cells(self.ours.get(label), len(names), label in self.runs)
            theirs = _cells(self.published.get(label), len(names), label not in self.published)
            title = self.runs[label].summary.label(label) if label in self.runs else label
            lines.append([title, *ours, *(theirs if beside else ())])
        return lines

    def score(self, label: str, place: int) -> Interval | None:
        """What was measured of a point in a column; None if nothing was, or it is withheld."""
        cell = self.ours[label].cells[place] if label in self.ours else None
        if cell is None or not cell.metric:
            return None if cell is None else _exact(float(cell.text))
        return self.runs[label].summary.score(cell.metric, self.columns[place].group)

    def given(self, label: str, place: int) -> float | None:
        """What the paper has there, from 0 to 1 or a count; None if nothing."""
        cell = self.published[label].cells[place] if label in self.published else None
        if cell is None:
            return None
        return float(cell.text) / (1 if self.columns[place].measure == "queries_per_memory" else 100)

    def charts(self) -> dict[str, Callable[[Axes], None]]:
        """How each chart is drawn, by the name of its file."""
        match self.study.chart:
            case "line":
                named = {column.measure: place for place, column in enumerate(self.columns)}
                return {name: partial(_over_x, result=self, place=place) for name, place in named.items()}
            case "columns":
                return {"": partial(_over_columns, result=self)}
            case "plane":
                return {"": partial(_in_a_plane, result=self)}
            case "curves":
                each = {label: curve(run) for label, run in self.runs.items()}
                drawn: dict[str, Callable[[Axes], None]] = (
                    {"": partial(_all_curves, curves=each)} if any(each.values()) else {}
                )
                return drawn | {label: partial(cumulative_chart, curves=[of]) for label, of in each.items() if of}

    def write(self, folder: Path, name: str, remarks: Sequence[str]) -> list[Path]:
        """Write the table with what must be known of it as Markdown, and each chart as SVG; returns the files."""
        heading, *lines = self.lines()
        table = [_markdown(heading), _markdown(["---"] * len(heading)), *map(_markdown, lines)]
        parts = [f"# {self.study.title}", "\n".join(table), self.study.note, *(f"- {remark}" for remark in remarks)]
        texts = {f"{name}.md": "\n\n".join(filter(None, parts)) + "\n"}
        for chart, draw in self.charts().items():
            file = "_".join(filter(None, (name, chart)))
            texts[f"{file}.svg"] = str(inline_svg(file, draw)) + "\n"
        for file, text in texts.items():
            with atomic_writer(folder / file) as opened:
                opened.write(text)
        return [folder / file for file in texts]


def result_of(study: Study, runs: Mapping[str, FinishedRun]) -> StudyResult:
    """What runs of a study say, by its points.

    The paper's rows are left out where no run is on the published data: they are of other questions.

    Raises:
        DeltaMemError: If a run is of another benchmark.
    """
    if other := next((label for label, run in runs.items() if run.family != study.benchmark), None):
        raise DeltaMemError(f"{runs[other].folder} is a run of {runs[other].family}, not of {study.benchmark}")
    if study.layout is None:
        columns = [Column("all", f"{after}", f"{after} sessions" if after > 1 else "1 session") for after in _SESSIONS]
        return StudyResult(study, runs, columns, {label: _accuracies(label, run) for label, run in runs.items()}, {})
    tables = [table for table in paper_tables(list(runs.values())) if table.id == study.layout]
    places = [place for place, one in enumerate(tables[0].columns) if not study.columns or one.key in study.columns]
    ours: dict[str, Row] = {}
    theirs: dict[str, Row] = {}
    labels = {run.title: label for label, run in runs.items()}
    rows = {point.published: label for label, point in study.points.items() if point.published}
    for row in (row for table in tables for row in table.rows):
        kept = Row(row.kind, row.label, row.detail, tuple(row.cells[place] for place in places))
        if row.kind == "ours" and row.label in labels:
            ours.setdefault(labels[row.label], kept)  # the first variant is the one that papers have
        elif row.kind == "published" and row.source.startswith(PAPER) and row.label in rows:
            theirs.setdefault(rows[row.label], kept)
    return StudyResult(study, runs, [tables[0].columns[place] for place in places], ours, theirs)


def curve(run: FinishedRun) -> list[Mapping[str, float]]:
    """Accuracy by session of a run on HaluMem; empty if it is withheld, or nothing was judged."""
    return [] if run.headline.withheld else run.summary.more.get("cumulative") or []


def _accuracies(label: str, run: FinishedRun) -> Row:
    known = {int(point["session"]) + 1: point for point in curve(run)}
    cells = [
        Cell(f"{100 * at['mean']:.2f}", bounds(Interval(at["mean"], at["low"], at["high"], 1, 1)))
        if (at := known.get(after))
        else None
        for after in _SESSIONS
    ]
    return Row("ours", label, "", tuple(cells))


def _exact(value: float) -> Interval:
    return Interval(value, value, value, 1, 1)


def _cells(row: Row | None, columns: int, known: bool) -> list[str]:
    if row is None:
        return ["" if known else "not run"] + [""] * (columns - 1)
    return ["" if cell is None else " ".join([cell.text, *(f"({cell.small})",) * bool(cell.small)]) for cell in row.cells]


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(chr(10), ', ') for cell in cells)} |"


def _bars(axes: Axes, number: int, label: str, at: Sequence[tuple[float, Interval]], line: str = "none") -> None:
    """Scores with their intervals, in the mark and colour of a point or line."""
    below = [score.estimate - score.low for _, score in at]
    above = [score.high - score.estimate for _, score in at]
    style: dict[str, Any] = {"marker": mark(number), "color": colour(number), "capsize": 2.5, "linestyle": line}
    axes.errorbar([x for x, _ in at], [score.estimate for _, score in at], yerr=[below, above], label=label, **style)


def _over_x(axes: Axes, result: StudyResult, place: int) -> None:
    points = {label: point.x for label, point in result.study.points.items() if point.x is not None}
    ours = [(x, score) for label, x in points.items() if (score := result.score(label, place)) is not None]
    theirs = [(x, value) for label, x in points.items() if (value := result.given(label, place)) is not None]
    if ours:
        _bars(axes, 0, "here", ours, "-")
    if theirs:
        axes.plot(*zip(*theirs, strict=True), linestyle="--", marker=".", color="#8a929a", label="paper")
    axes.set_xlabel(result.study.x)
    axes.set_ylabel(" ".join((result.columns[place].name, result.columns[place].heading)))
    _shares(axes)


def _over_columns(axes: Axes, result: StudyResult) -> None:
    names = [column.name for column in result.columns]
    for number, label in enumerate(result.study.points):
        shift = 0.6 * ((number + 0.5) / len(result.study.points) - 0.5)
        ours = [(at + shift, score) for at in range(len(names)) if (score := result.score(label, at)) is not None]
        theirs = [(at + shift, value) for at in range(len(names)) if (value := result.given(label, at)) is not None]
        if ours:
            _bars(axes, number, label, ours)
        if theirs:
            _hollow(axes, number, f"{label}, paper", theirs)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=6)
    _shares(axes)


def _in_a_plane(axes: Axes, result: StudyResult) -> None:
    for number, label in enumerate(result.study.points):
        searches, score = result.score(label, 0), result.score(label, 1)
        if searches is not None and score is not None:
            _bars(axes, number, label, [(searches.estimate, score)])
        if (x := result.given(label, 0)) is not None and (y := result.given(label, 1)) is not None:
            _hollow(axes, number, f"{label}, paper", [(x, y)])
    axes.set_xlabel(result.columns[0].name)
    axes.set_ylabel(" ".join((result.columns[1].name, result.columns[1].heading)))
    _shares(axes)


def _all_curves(axes: Axes, curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    cumulative_chart(axes, curves=list(curves.values()), spread=False)
    axes.legend([label for label, of in curves.items() if of], fontsize=7)


def _hollow(axes: Axes, number: int, label: str, at: Sequence[tuple[float, float]]) -> None:
    style: dict[str, Any] = {"markeredgecolor": colour(number), "markerfacecolor": "none", "linestyle": "none"}
    axes.plot(*zip(*at, strict=True), marker=mark(number), label=label, **style)


def _shares(axes: Axes) -> None:
    percent(axes.yaxis)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)

"""Which metrics of a run are drawn, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from deltamem.report.charts import BLUE, GREEN, ORANGE, RED, VIOLET
from eval.report.charts import Curve, line_chart

Record = Mapping[str, Any]

TRAIN, HELDOUT = "train/", "heldout/"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and the sentence under it."""

    title: str
    svg: Markup


def training_charts(metrics: Sequence[Record]) -> list[Chart]:
    """Draw the training curves; a metric without values is left out, and a chart without curves too."""
    charts = [
        ("total", "Total reward", "reward", {"reward": BLUE}),
        ("parts", "Parts of the reward", "share", {"transition": VIOLET, "retrieval": ORANGE, "format": GREEN}),
        (
            "updates",
            "Updates: right target, and ADD in their place",
            "share",
            {"update_recall": GREEN, "add_for_update": ORANGE, "failure": RED},
        ),
    ]
    drawn = []
    for name, title, y_label, colours in charts:
        curves = []
        for metric, colour in colours.items():
            curves += _curve(metrics, TRAIN + metric, f"{_spoken(metric)}, training", colour, measured=False)
            curves += _curve(metrics, HELDOUT + metric, f"{_spoken(metric)}, held out", colour, measured=True)
        if curves:
            drawn.append(Chart(title, line_chart(name, curves, y_label=y_label, y_range=(-0.02, 1.02))))
    return drawn


def warm_start_charts(records: Sequence[Record]) -> list[Chart]:
    """Draw loss and accuracy of the warm start."""
    charts = []
    if loss := _curve(records, "loss", "loss", BLUE, measured=False):
        charts.append(Chart("Loss", line_chart("loss", loss, y_label="cross entropy")))
    if accuracy := _curve(records, "accuracy", "accuracy", GREEN, measured=False):
        charts.append(Chart("Accuracy", line_chart("accuracy", accuracy, y_label="share of tokens", y_range=(-0.02, 1.02))))
    return charts


def _curve(records: Sequence[Record], metric: str, label: str, colour: str, *, measured: bool) -> list[Curve]:
    points = [(record["step"], record[metric]) for record in records if _number(record, "step") and _number(record, metric)]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    return [Curve(label, steps, values, colour, "measured" if measured else "running")]


def _number(record: Record, key: str) -> bool:
    value = record.get(key)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _spoken(metric: str) -> str:
    return metric.replace("_", " ")

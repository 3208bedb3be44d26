"""The charts of the report, drawn from the statistics in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltamem.memory import Event
from deltamem.report.charts import BLUE, GREEN, ORANGE, VIOLET, inline_svg, legend_below

Statistics = Mapping[str, Any]

_KINDS = {Event.ADD: GREEN, Event.UPDATE: ORANGE, Event.NONE: BLUE}


class Chart(NamedTuple):
    """A chart and its title."""

    title: str
    svg: Markup


def operation_charts(statistics: Statistics) -> list[Chart]:
    """Operations and memories by session, over all people."""
    places = statistics["by_session"]
    if not places:
        return []
    sessions = [place["index"] + 1 for place in places]

    def operations(axes: Axes) -> None:
        below = [0.0] * len(places)
        for kind, colour in _KINDS.items():
            heights = [place["operations"][kind] / place["sessions"] for place in places]
            axes.bar(sessions, heights, bottom=below, color=colour, width=0.8, label=kind)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        _label(axes, "session of a person", "operations a session")
        legend_below(axes, 3)

    def memories(axes: Axes) -> None:
        found = [place["memories"] for place in places]
        least, most = [item["min"] for item in found], [item["max"] for item in found]
        axes.fill_between(sessions, least, most, color=BLUE, alpha=0.18, linewidth=0, label="fewest to most")
        axes.plot(sessions, [item["mean"] for item in found], color=BLUE, marker=".", label="mean")
        axes.set_ylim(bottom=0)
        _label(axes, "session of a person", "memories after the session")
        legend_below(axes, 2)

    return [
        Chart("Operations by kind and session", inline_svg("operations", operations)),
        Chart("Memories by session", inline_svg("memories", memories)),
    ]


def session_charts(statistics: Statistics) -> list[Chart]:
    """How long sessions are."""
    lengths = statistics["lengths"]
    wanted = {
        "turns": ("Turns of a session (one of the user, one of the assistant)", "turns", BLUE),
        "operations": ("Operations of a session", "operations", GREEN),
        "words": ("Words of a session", "words", VIOLET),
        "user_words": ("Words of the user", "words", ORANGE),
    }
    return [
        Chart(title, inline_svg(f"length-{name}", _histogram(lengths[name], x_label, colour)))
        for name, (title, x_label, colour) in wanted.items()
        if lengths[name]["count"]
    ]


def keyword_charts(statistics: Statistics) -> list[Chart]:
    """Whether the user says the keywords, and where in the dialogue the facts are said."""
    keywords = statistics["keywords"]
    kinds = [kind for kind in _KINDS if keywords.get(kind, {}).get("keywords")]
    if not kinds:
        return []

    def coverage(axes: Axes) -> None:
        for offset, name, label, colour in (
            (-0.2, "said", "said by the user", GREEN),
            (0.2, "said_in_turn", "said in the planned turn", BLUE),
        ):
            shares = [keywords[kind].get(name, 0) / keywords[kind]["keywords"] for kind in kinds]
            bars = axes.bar([place + offset for place in range(len(kinds))], shares, width=0.38, color=colour, label=label)
            axes.bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8, padding=2)
        axes.set_xticks(range(len(kinds)), list(kinds))
        axes.set_ylim(0, 1.12)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("share of keywords")
        legend_below(axes, 2)

    said = statistics["facts_said_at"]

    def places(axes: Axes) -> None:
        axes.bar(
            [10 * tenth + 5 for tenth in range(10)], [count / (sum(said) or 1) for count in said], width=9, color=VIOLET
        )
        axes.xaxis.set_major_formatter(PercentFormatter(100))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("place in the dialogue")
        axes.set_ylabel("share of facts")

    return [
        Chart("Keyword coverage", inline_svg("keywords", coverage)),
        Chart("Where facts are said", inline_svg("said", places)),
    ]


def token_chart(statistics: Statistics) -> list[Chart]:
    """Tokens by kind of unit; nothing if none were counted, as with the offline writer."""
    usage = {unit: item for unit, item in statistics["usage"].items() if item["prompt_tokens"] or item["completion_tokens"]}
    if not usage:
        return []

    def tokens(axes: Axes) -> None:
        units = list(usage)
        below = [0] * len(units)
        for name, label, colour in (("prompt_tokens", "prompt", BLUE), ("completion_tokens", "completion", ORANGE)):
            widths = [usage[unit][name] / 1e6 for unit in units]
            axes.barh(units, widths, left=below, color=colour, label=label)
            below = [start + width for start, width in zip(below, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("million tokens")
        legend_below(axes, 2)

    return [Chart("Tokens by unit", inline_svg("tokens", tokens))]


def _histogram(histogram: Mapping[str, Any], x_label: str, colour: str) -> Callable[[Axes], None]:
    width = histogram["width"]
    starts = [int(start) for start in histogram["bins"]]

    def draw(axes: Axes) -> None:
        # A bin of one value stands on the value, a wider one beside its smallest.
        shift = 0.0 if width == 1 else width / 2
        axes.bar([start + shift for start in starts], list(histogram["bins"].values()), width=0.9 * width, color=colour)
        axes.axvline(histogram["mean"], color=colour, linestyle="--", linewidth=1, label=f"mean {histogram['mean']:.1f}")
        _label(axes, x_label, "sessions")
        legend_below(axes, 1)

    return draw


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

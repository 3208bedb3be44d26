"""The charts of the report, drawn from the statistics in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator, PercentFormatter

from deltamem.memory import Event
from deltamem.report.charts import BLUE, GREEN, ORANGE, VIOLET, inline_svg, legend_below
from synth.output.life import Life

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
        axes.set_xlim(sessions[0] - 0.6, sessions[-1] + 0.6)
        legend_below(axes, 3)

    def memories(axes: Axes) -> None:
        found = [place["memories"] for place in places]
        least, most = [item["min"] for item in found], [item["max"] for item in found]
        axes.fill_between(sessions, least, most, color=BLUE, alpha=0.18, linewidth=0, label="fewest to most")
        axes.plot(sessions, [item["mean"] for item in found], color=BLUE, marker=".", label="mean")
        _label(axes, "session of a person", "memories after the session")
        axes.set_xlim(sessions[0] - 0.6, sessions[-1] + 0.6)
        axes.set_ylim(bottom=0)
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

    said = statistics["facts_said_in_quarter"]

    def places(axes: Axes) -> None:
        quarters = ("first", "second", "third", "last")
        axes.bar(range(4), [count / (sum(said) or 1) for count in said], width=0.8, color=VIOLET)
        axes.set_xticks(range(4), [f"{quarter} quarter" for quarter in quarters])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("of the dialogue")
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


def timeline_chart(life: Life) -> list[Chart]:
    """When each memory that changes or is repeated was written, rewritten and repeated; nothing if none is."""
    memories = [memory for memory in life.memories if memory.evolves]
    if not memories:
        return []
    times = {view.session.index: date2num(view.session.time) for view in life.sessions}

    def draw(axes: Axes) -> None:
        for row, memory in enumerate(memories):
            written = [date2num(version.time) for version in memory.versions]
            repeated = [times[index] for index in memory.repeated]
            axes.plot([written[0], max([*written, *repeated])], [row, row], color=BLUE, linewidth=1, alpha=0.45, zorder=1)
            axes.scatter(written[:1], [row], color=_KINDS[Event.ADD], s=26, zorder=2)
            axes.scatter(written[1:], [row] * len(written[1:]), color=_KINDS[Event.UPDATE], s=30, marker="D", zorder=3)
            axes.scatter(repeated, [row] * len(repeated), color=_KINDS[Event.NONE], s=26, marker="|", linewidths=2, zorder=2)
        axes.set_yticks(range(len(memories)), [memory.id for memory in memories], fontsize=8)
        axes.set_ylim(len(memories) - 0.4, -0.6)
        dates = AutoDateLocator()
        axes.xaxis.set_major_locator(dates)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))
        for label, marker, kind in (
            ("written", "o", Event.ADD),
            ("changed", "D", Event.UPDATE),
            ("repeated", "|", Event.NONE),
        ):
            axes.scatter([], [], color=_KINDS[kind], marker=marker, label=label)
        axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    height = 1.0 + 0.21 * len(memories)
    return [Chart("Memories that change or are repeated, over time", inline_svg("timeline", draw, size=(11.4, height)))]


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

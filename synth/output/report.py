"""``report.html``: one self-contained page about a data set, with its charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltamem.errors import DeltaMemError
from deltamem.html import (
    BLUE,
    GREEN,
    ORANGE,
    VIOLET,
    Chart,
    inline_svg,
    legend_below,
    percent,
    render_page,
    whole_numbers,
    write_page,
)
from deltamem.memory import Event
from synth.assembly import replay
from synth.output.files import PEOPLE_FILE, REPORT_FILE, cell_rows, read_manifest, read_people, rule_rows, usage_total
from synth.output.probe import Findings, figure_rows, policy_rows, read_findings
from synth.records import Dialogue, LifeEvent, Person, Rejection, SessionFact, SynthSession
from synth.tasks import Unit
from synth.validators.base import occurs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class KeywordView:
    """A keyword and whether the user says it; `said` is None in a session without a dialogue."""

    text: str
    said: bool | None


@dataclass(frozen=True, slots=True)
class FactView:
    """A fact of a session with its memory, and the turns, from 1, where it and what held before are said; 0 for nowhere."""

    fact: SessionFact
    memory_id: str
    turn: int
    previous_turn: int
    keywords: list[KeywordView]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with its event, its facts in the order of the operations, and how many memories there are after it."""

    session: SynthSession
    event: LifeEvent
    facts: list[FactView]
    memories: int
    rejections: list[Rejection]

    def count(self, event: str) -> int:
        """How many of its operations are of a kind."""
        return sum(view.fact.event == event for view in self.facts)

    def said_in(self, turn: int) -> list[FactView]:
        """The facts that the plan places in a turn, those whose outdated text is mentioned there included."""
        return [fact for fact in self.facts if turn in (fact.turn, fact.previous_turn)]


@dataclass(frozen=True, slots=True)
class Version:
    """One text of a memory; `session` is its index, None for what is known before the first session."""

    text: str
    time: datetime
    session: int | None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A memory with all its texts, oldest first, and the sessions that repeat it."""

    id: str
    versions: list[Version]
    repeated: list[int] = field(default_factory=list)

    @property
    def evolves(self) -> bool:
        """Whether a session changes or repeats it."""
        return len(self.versions) > 1 or bool(self.repeated)


@dataclass(frozen=True, slots=True)
class Life:
    """A person taken apart; sessions and memories are empty if the person was rejected."""

    person: Person
    sessions: list[SessionView]
    memories: list[MemoryView]

    @property
    def rejections(self) -> list[Rejection]:
        """What was given up and belongs to no single session."""
        return [item for item in self.person.rejections if not _of_session(item)]


def life(person: Person) -> Life:
    """Take a person apart."""
    events = {event.index: event for event in person.events}
    memories: dict[str, MemoryView] = {}
    if person.profile is not None:
        for number, known in enumerate(person.profile.initial, start=1):
            memories[f"m{number}"] = MemoryView(f"m{number}", [Version(known.text, person.profile.start, None)])
    sessions = []
    for session, before, operations, after in replay(person):
        added = iter([memory_id for memory_id in after if memory_id not in before])
        plan = session.dialogue.plan if session.dialogue else ()
        turns = {entry.fact_id: (entry.turn, entry.previous_turn) for entry in plan}
        facts = []
        for fact, operation in zip(session.facts, operations, strict=True):
            memory_id = operation.target_memory_id or next(added)
            version = Version(fact.text, session.time, session.index)
            if fact.event is Event.ADD:
                memories[memory_id] = MemoryView(memory_id, [version])
            elif fact.event is Event.UPDATE:
                memories[memory_id].versions.append(version)
            else:
                memories[memory_id].repeated.append(session.index)
            said = turns.get(fact.id, (0, 0))
            facts.append(FactView(fact, memory_id, *said, _keywords(fact, session.dialogue)))
        rejections = [item for item in person.rejections if _of_session(item) and item.where == str(session.index)]
        sessions.append(SessionView(session, events[session.index], facts, len(after), rejections))
    return Life(person, sessions, list(memories.values()))


def is_whole(person: Person) -> bool:
    """Whether a person has sessions and nothing of them was given up."""
    return bool(person.sessions) and not person.rejections


def _of_session(rejection: Rejection) -> bool:
    return rejection.unit in (Unit.FILLING, Unit.DIALOGUE)


def _keywords(fact: SessionFact, dialogue: Dialogue | None) -> list[KeywordView]:
    said = " ".join(exchange.user for exchange in dialogue.turns) if dialogue else ""
    return [KeywordView(text, occurs(text, said) if dialogue else None) for text in fact.keywords]


Statistics = Mapping[str, Any]

_KINDS = {Event.ADD: GREEN, Event.UPDATE: ORANGE, Event.NONE: BLUE}


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
        percent(axes.yaxis)
        axes.set_ylabel("share of keywords")
        legend_below(axes, 2)

    said = statistics["facts_said_in_quarter"]

    def places(axes: Axes) -> None:
        quarters = ("first", "second", "third", "last")
        axes.bar(range(4), [count / (sum(said) or 1) for count in said], width=0.8, color=VIOLET)
        axes.set_xticks(range(4), [f"{quarter} quarter" for quarter in quarters])
        percent(axes.yaxis)
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
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num  # see `inline_svg`

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
    whole_numbers(axes.xaxis)


def write_report(out: Path, person_id: str | None = None) -> Path:
    """Write the report of a finished data set again.

    Args:
        out: The data set's folder.
        person_id: Whose life is shown, on a page of their own (``report-<person_id>.html``); None shows the first person of
            whom nothing was rejected, in ``report.html``.

    Returns:
        Where the page is.

    Raises:
        DeltaMemError: If the data set is not finished or has no such person, or its ``probe.json`` cannot be read.
    """
    manifest = read_manifest(out)
    if person_id is None:
        path, person = out / REPORT_FILE, shown_person(read_people(out / PEOPLE_FILE))
    else:
        path, person = out / f"report-{person_id}.html", find_person(read_people(out / PEOPLE_FILE), person_id)
    write_page(path, render(manifest, person, read_findings(out)))
    return path


def shown_person(people: Iterable[Person]) -> Person | None:
    """The first person of whom nothing was rejected, else the first with sessions, else the first."""
    best: Person | None = None
    for person in people:
        if is_whole(person):
            return person
        if best is None or (person.sessions and not best.sessions):
            best = person
    return best


def find_person(people: Iterable[Person], person_id: str) -> Person:
    """The person of an id.

    Raises:
        DeltaMemError: If there is none; names the first and the last one.
    """
    ids = []
    for person in people:
        if person.persona.person_id == person_id:
            return person
        ids.append(person.persona.person_id)
    there = f"there are {len(ids)}, {ids[0]} to {ids[-1]}" if ids else "there are none yet"
    raise DeltaMemError(f"no person {person_id!r}; {there}")


def render(manifest: Mapping[str, Any], person: Person | None, findings: Findings | None = None) -> str:
    """Render the page as one HTML text without outside resources; everything that was read is escaped."""
    statistics = manifest["statistics"]
    seen = None if person is None else life(person)
    return render_page(
        Path(__file__).with_name("report.html.j2"),
        manifest=manifest,
        counts=manifest["counts"],
        statistics=statistics,
        operations=operation_charts(statistics),
        sessions=session_charts(statistics),
        keywords=keyword_charts(statistics),
        cells=cell_rows(manifest),
        findings=findings,
        figures=figure_rows(findings) if findings else [],
        policies=policy_rows(findings) if findings else [],
        tokens=token_chart(statistics),
        rules=rule_rows(manifest),
        total=usage_total(manifest),
        life=seen,
        timeline=[] if seen is None else timeline_chart(seen),
    )

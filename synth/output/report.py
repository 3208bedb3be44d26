"""``report.html``: one self-contained page about a data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.report.page import page_templates
from synth.output.charts import keyword_charts, operation_charts, session_charts, timeline_chart, token_chart
from synth.output.files import PEOPLE_FILE, REPORT_FILE, read_manifest, read_people
from synth.output.life import is_whole, life
from synth.output.tables import rule_rows, usage_total
from synth.records import Person


def write_report(out: Path, person_id: str | None = None) -> Path:
    """Write the report of a finished data set again.

    Args:
        out: The data set's folder.
        person_id: Whose life is shown, on a page of their own (``report-<person_id>.html``); None shows the first person of
            whom nothing was rejected, in ``report.html``.

    Returns:
        Where the page is.

    Raises:
        DeltaMemError: If the data set is not finished or has no such person.
    """
    manifest = read_manifest(out)
    if person_id is None:
        path, person = out / REPORT_FILE, shown_person(read_people(out / PEOPLE_FILE))
    else:
        path, person = out / f"report-{person_id}.html", find_person(read_people(out / PEOPLE_FILE), person_id)
    with atomic_writer(path) as file:
        file.write(render(manifest, person))
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


def render(manifest: Mapping[str, Any], person: Person | None) -> str:
    """Render the page as one HTML text without outside resources; everything that was read is escaped."""
    statistics = manifest["statistics"]
    seen = None if person is None else life(person)
    return (
        page_templates(Path(__file__).parent)
        .get_template("report.html.j2")
        .render(
            manifest=manifest,
            counts=manifest["counts"],
            statistics=statistics,
            operations=operation_charts(statistics),
            sessions=session_charts(statistics),
            keywords=keyword_charts(statistics),
            tokens=token_chart(statistics),
            rules=rule_rows(manifest),
            total=usage_total(manifest),
            life=seen,
            timeline=[] if seen is None else timeline_chart(seen),
        )
    )

"""Does a data set repeat text of a benchmark? Looks for passages that both have in common.

A passage is `PASSAGE_WORDS` words in a row, or a whole sentence of at least `SENTENCE_WORDS`; case and punctuation do not
matter, and passages that go on from one another make one overlap. Everybody says "it was so good to see you again": an
overlap with fewer than `CONTENT_WORDS` different words that carry content is no sign of copying and does not count. Between
LoCoMo and HaluMem, neither of which has copied from the other, this leaves no overlap, and still finds five in six turns of
eight words or more if they are copied.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.text_files import read_lines, read_text
from synth.output.files import PEOPLE_FILE, SESSIONS_FILE

PASSAGE_WORDS = 8
SENTENCE_WORDS = 6
CONTENT_WORDS = 4
EXAMPLES = 10
"""How many overlaps a report shows."""

_SUFFIXES = (".json", ".jsonl", ".csv", ".txt")
_WORD = re.compile(r"\w+(?:'\w+)*")
_SENTENCE_END = re.compile(r"[.!?\u2026\n]+")

_STOP_WORDS = frozenset(
    _WORD.findall(
        """a about actually after again all almost already also always am an and another any anything are aren't around as at
    away back be because been before being best better both but by came can can't come could couldn't day days did didn't do
    does doesn't doing don't done down each else enough even ever every everyone everything feel feeling feels few find first
    for from fun get gets getting give glad go goes going gone good got great had happy hard has have haven't having he he's
    hear heard hello help helped her here hey hi him his hope how i i'd i'll i'm i've idea if in interesting into is isn't it
    it's its just keep kind know last let let's life like little ll long look looking lot lots love loved made make makes
    making many may maybe me mean might mine more most much must my myself need never new next nice no not nothing now of
    off oh ok okay on once one only or other our out over own part people place pretty put quite re read really right said
    same saw say see seen she she's should so some someone something soon sorry sounds still stuff such sure take taking talk
    tell than thank thanks that that's the their them then there there's these they they're thing things think this those
    though thought through time times to today together told too took tried try trying two up us use used user very wait want
    wanted was wasn't way we we'd we'll we're we've week weeks well went were what what's when where which while who why will
    wish with without won't wonderful work working would wow yeah year years yes yet you you'd you'll you're you've your
    yours yourself"""
    )
)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A passage in common: its length, its words in lower case, where it begins in the data set and in the references."""

    words: int
    text: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class ContaminationReport:
    """What was compared with passages of `n` words, how many sessions and people have an overlap, the longest ones."""

    n: int
    references: tuple[str, ...]
    passages: int
    sessions: int
    sessions_hit: int
    people: int
    people_hit: int
    examples: tuple[Overlap, ...]

    @property
    def hits(self) -> int:
        """Sessions and people with an overlap."""
        return self.sessions_hit + self.people_hit


def contamination(out: Path, references: Sequence[Path], n: int = PASSAGE_WORDS) -> ContaminationReport:
    """Compare a data set with texts that must not be in it.

    The data set is read line by line; of the references, a number a passage is kept in memory. Raises `DeltaMemError` if a
    file is missing or cannot be read; the message names it.
    """
    files = [file for reference in references for file in _files(reference)]
    # By hash (64 bits, never compared with another process's), the place where a passage is first.
    known: dict[int, str] = {}
    for file in files:
        for where, text in file_texts(file):
            for _, _, key in _passages(text, n):
                known.setdefault(key, f"{file}: {where}")
    if not known:
        raise DeltaMemError(f"{', '.join(map(str, references))}: no passage of {n} words to compare with")
    counts: list[int] = []
    longest: list[Overlap] = []
    for file in (out / SESSIONS_FILE, out / PEOPLE_FILE):
        records = hit = 0
        seen: dict[str, list[Overlap]] = {}
        person = None
        try:
            for number, line in enumerate(read_lines(file), start=1):
                record = _record(line, file, number)
                if not isinstance(record, dict):
                    raise DeltaMemError(f"{file}, line {number}: not a record")
                # The same memories come in session after session of a person: each is looked at once.
                if record.get("person_id") != person:
                    person = record.get("person_id")
                    seen.clear()
                found = []
                for path, text in _texts(record, ""):
                    if text not in seen:
                        seen[text] = _overlaps(text, n, known)
                    where = f"{file.name}, line {number}, {path}"
                    found += [Overlap(each.words, each.text, where, each.there) for each in seen[text]]
                records, hit = records + 1, hit + bool(found)
                longest = heapq.nsmallest(EXAMPLES, [*longest, *found], key=lambda each: (-each.words, each.here))
        except OSError as error:
            raise DeltaMemError(f"{file}: {error.strerror}; name the folder of a data set") from error
        counts += [records, hit]
    sessions, sessions_hit, people, people_hit = counts
    compared = tuple(map(str, files))
    return ContaminationReport(n, compared, len(known), sessions, sessions_hit, people, people_hit, tuple(longest))


def render(report: ContaminationReport) -> str:
    """The report as plain text."""

    def share(part: int, whole: int) -> str:
        return f"{part:,} of {whole:,} ({part / max(whole, 1):.2%})"

    lines = [
        f"compared with {len(report.references):,} files, {report.passages:,} passages: {report.n} words in a row, or "
        f"sentences of {SENTENCE_WORDS} or more; at least {CONTENT_WORDS} different words of an overlap carry content",
        f"sessions with an overlap: {share(report.sessions_hit, report.sessions)}",
        f"people with an overlap: {share(report.people_hit, report.people)}",
    ]
    for found in report.examples:
        lines += [f"{found.words} words: {found.text}", f"  in {found.here}", f"  of {found.there}"]
    return "\n".join(lines)


def _overlaps(text: str, n: int, known: Mapping[int, str]) -> list[Overlap]:
    """What of a text is in the references, in order. `here` is left empty."""
    runs: list[tuple[int, list[str], str]] = []
    for position, words, key in _passages(text, n):
        if (there := known.get(key)) is None:
            continue
        begun = next((run for run in reversed(runs) if run[0] <= position < run[0] + len(run[1])), None)
        if begun is None:
            runs.append((position, list(words), there))
        else:
            begun[1].extend(words[begun[0] + len(begun[1]) - position :])
    telling = [run for run in runs if len(set(run[1]) - _STOP_WORDS) >= CONTENT_WORDS]
    return [Overlap(len(words), " ".join(words), "", there) for _, words, there in telling]


def _passages(text: str, n: int) -> Iterator[tuple[int, tuple[str, ...], int]]:
    """Position, words and hash of every passage: `n` words in a row, then whole sentences that are shorter."""
    lowered = text.casefold().replace("\u2019", "'")
    words = tuple(_WORD.findall(lowered))
    for position in range(len(words) - n + 1):
        passage = words[position : position + n]
        yield position, passage, hash(passage)
    if len(words) >= SENTENCE_WORDS:
        position = 0
        for sentence in _SENTENCE_END.split(lowered):
            passage = tuple(_WORD.findall(sentence))
            if SENTENCE_WORDS <= len(passage) < n:
                yield position, passage, hash(("", *passage))
            position += len(passage)


def _files(reference: Path) -> list[Path]:
    if not reference.is_dir():
        return [reference]
    files = sorted(path for path in reference.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    if not files:
        raise DeltaMemError(f"{reference}: no file that ends in {', '.join(_SUFFIXES)}")
    return files


def file_texts(file: Path) -> Iterator[tuple[str, str]]:
    """Every string of a file, with its place."""
    try:
        if file.suffix == ".json":
            yield from _texts(json.loads(read_text(file)), "")
            return
        for number, line in enumerate(read_lines(file), start=1):
            if file.suffix == ".jsonl":
                for path, text in _texts(_record(line, file, number), ""):
                    yield f"line {number}, {path}", text
            else:
                yield f"line {number}", line
    except OSError as error:
        raise DeltaMemError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise DeltaMemError(f"{file}: not JSON") from error


def _record(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DeltaMemError(f"{file}, line {number}: not JSON") from error


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string within a JSON value, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")

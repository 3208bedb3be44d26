"""What a remembered text says of what ``momento-mini`` is about, in the user's words or in those of a memory system.

Names come from the catalogue. A value belongs to a wish only beside the cues of its kind, and of two that both fit none is
taken: a scripted agent must not guess, so what is worded in a way that this module does not know is not known.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from papers.momento.policies import BENEFITS, PROVIDERS
from papers.momento.world import Catalogue

_MONTHS = tuple(name.lower() for name in calendar.month_name[1:])
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_MONTH = "|".join(rf"{month}|{month[:3]}\.?" for month in _MONTHS)
_DATE = (
    r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
    rf"|(?P<d1>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m1>{_MONTH}),? (?P<y1>\d{{4}})"
    rf"|(?P<m2>{_MONTH}) (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y2>\d{{4}})"
)
_CLOCK = r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d\d))?\s*(?P<half>[ap]\.?m\b\.?)|(?P<hour24>\d{1,2}):(?P<minute24>\d\d)(?!\d)"
_HEAD = re.compile(
    rf"[\s>*•-]*(?:(?:on|as of|since) )?[\[(]?(?:\d{{1,2}}:\d\d [ap]m on )?(?:{_DATE})"
    r"(?:[T ]\d\d:\d\d(?::\d\d)?\S*?)?[\])]?(?:[:,]\s*|\s+|$)",
    re.IGNORECASE,
)
"""The date before a text, and below the speaker, which memory systems may put there."""
_SPEAKER = re.compile(r"[\s>*•-]*(?P<role>user|assistant|said):\s*", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?!(?:it|that|this|these)\b)|;\s+|\n", re.IGNORECASE)


def _words(text: str) -> str:
    """A pattern for one of some words: ``*`` stands for any ending, ``_`` for a blank."""
    words = "|".join(text.split()).replace("*", r"\w*").replace("_", " ")
    return rf"\b(?:{words})\b"


_UNITS = _words("minutes? hours? days? weeks? months? years? stars? dollars? percent times km o'clock")


def _number_after(words: str) -> str:
    """A pattern for the number after what some words lead to it, unless it counts something else."""
    return rf"(?:[\s.,:()x\xd7-]|{_words(words)})*?<N (\d+)>(?!\s*(?:%|{_UNITS}))"


_OTHERS = re.compile(
    _words(
        "somebody someone strangers? man woman men women next_table next_door colleagues? co-?workers? acquaintances? boss "
        "neighbou?rs? clients? (?:an)?other_(?:guests?|customers?|persons?|users?|people)"
    )
)
"""Whoever is not the user, nor company of the user."""
_COMPANY = re.compile(
    _words(
        "daughters? sons? mother father brothers? sisters? aunts? uncles? neighbou?rs? friends? wife husband partner "
        "cousins? grand* child children"
    )
)
_UNSURE = re.compile(
    rf"\?|\bask(?:s|ed)?\b(?! (?:that|to|for))|{_words('wonder* inquir* curious whether might maybe perhaps possibly')}"
    rf"|{_words('consider* thinking unsure undecided')}"
)
_STALE = re.compile(
    rf"(?:{_words('not never no_longer instead_of rather_than other_than as_opposed_to used_to previously formerly')}"
    rf"|{_words('originally over avoids? except stopped neither nor')}"
    r"|\b(?:was|were|had been)\b(?=.*\b(?:now|changed)\b)|n't\b)"
    r".*?(?=[,;()→]|\bbut\b|\bnow\b|\band\b|$)"
    r"|\bfrom (?:[\w:]+ ){0,2}<(?!PLACE).*?(?=\bto\b|[,;()→]|->|$)|(?:<(?!PLACE)[^<]*?)+(?=\s*(?:→|->))"
)
"""What is said not to be so, or no longer."""


@dataclass(frozen=True)
class _Kind:
    """How what has to be remembered is recognised; in texts names and numbers stand as tags such as ``<DISH 2>``."""

    cues: tuple[str, ...]  # Each must occur
    values: Mapping[str, tuple[str, ...]]  # By slot where its value stands, in whatever is not stale
    veto: str = "(?!)"  # Must not occur
    company: bool = False  # Whether others than the user may occur


_HABIT = "usual* always regular* normal* habit* every_time when(?:ever)? standard typical* default"
_TABLE = r"\b(?:has|had|have|made|with|there is) (?:\w+ ){0,2}(?:table|reservation|booking)\b"
_KINDS: Mapping[str, _Kind] = {
    "usual": _Kind(
        (_words(f"{_HABIT} go-to"),),
        {
            "dish": (r"<DISH (\d+)>",),
            "count": (
                rf"<N (\d+)>\s*(?:x|\xd7|{_words('portions? servings? orders? plates? pieces? helpings? bowls?')})?"
                r"\s*(?:of\b)?\s*(?:(?:the|their)\b)?\s*<DISH",
                r"<DISH \d+>"
                + _number_after(
                    "with in a the it that always quantity amount count of is are and for they he she wants? takes? "
                    "order* has"
                ),
                _words("quantity amount count") + _number_after("of is"),
            ),
        },
    ),
    "provider": _Kind(
        (
            _words(f"{_HABIT} every* prefer* only each all insist* should must wants? let favou?rite rel(?:y|ies) provider"),
            _words("deliver* brings? brought courier"),
        ),
        {"provider": (r"<PROVIDER (\d+)>",)},
    ),
    "party": _Kind(
        (_words(f"{_HABIT} all everyone everybody whole entire family group party household"),),
        {
            "count": (
                r"<N (\d+)>[\s-]*"
                + _words(
                    "people persons? guests? diners? seats? heads? adults? covers? places of_us of_them in_total in_all"
                ),
                _words(
                    "party group tables? reservation booking family us them everyone everybody count size number people all"
                )
                + _number_after(
                    "size of for is are as to means consists at people guests persons total should be the set always "
                    "counts? now a reservations? bookings? tables?"
                ),
            )
        },
        _words("wedding birthday reunion date farewell graduation yesterday last_(?:night|week|month|year|time)"),
        company=True,
    ),
    "time": _Kind(
        (
            _words("lik* lov* prefer* want* wish* enjoy* favou?r* always usual* habit* would_rather"),
            _words("sits? sitting seat* dine dines dining dinner eat* table* meals? reserv* book*"),
        ),
        {"time": (r"<TIME (\d+)>",)},
        _words("deliver* pick*") + f"|{_TABLE}",
    ),
    "occasion": _Kind(
        ("<OCCASION>", _words("had held celebrat* took_place was were been spent hosted happened enjoyed location venue")),
        {"place": (r"<PLACE (\d+)>",)},
        _words("plan* will would next going_to hopes? could wants?_to_(?:have|hold|celebrate)"),
    ),
    "tier": _Kind(
        (_words("member* tier"),),
        {
            "tier": (r"<TIER (\d+)>",),
            "end": (_words("end* until till through expir* up_to runs?_to valid_to") + r"[^<]{0,30}<DATE (\d+)>",),
        },
    ),
    "favourite": _Kind(("<WHO>", _words("lov* favou?rite ador* best most prefer*")), {"dish": (r"<DISH (\d+)>",)}),
}
_OF_PLACE = ("usual", "favourite")
_WHOSE = re.compile(r"^(?:our|my|the|a|an) ", re.IGNORECASE)


class FactReader:
    """Reads remembered texts with the names of a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Prepare the names."""
        names: dict[str, Iterable[str]] = {
            "place": [str(one["name"]) for one in catalogue.restaurants],
            "dish": {str(one["name"]) for one in catalogue.menu_items},
            "provider": PROVIDERS,
            "tier": BENEFITS,
        }
        self._names = {kind: {name.lower(): name for name in of} for kind, of in names.items()}
        self._patterns = {}
        for kind, of in self._names.items():
            longest_first = sorted(of, key=len, reverse=True)
            self._patterns[kind] = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})(?:s|es)?\b")

    def known(self, topic: str, asked: Mapping[str, str], memory: Sequence[str]) -> dict[str, str] | None:
        """What holds of what a wish asks about, by the newest text that says it, of texts without a date the last."""
        known: dict[str, str] | None = None
        for _, values, holds in sorted(self.facts(topic, asked, memory), key=lambda fact: fact[0]):
            if holds:
                known = values
            elif known == values:
                known = None
        return known

    def facts(
        self, topic: str, asked: Mapping[str, str], memory: Sequence[str]
    ) -> Iterator[tuple[date, dict[str, str], bool]]:
        """All that is said of what is asked about: when, the first of all days if the text has no date; and if it holds."""
        for text in memory:
            day = date.min
            for line in text.splitlines():
                while (head := _HEAD.match(line)) is not None:
                    day, line = _day(head) or day, line[head.end() :]
                if (speaker := _SPEAKER.match(line)) is not None:
                    line = line[speaker.end() :]
                    if speaker["role"].lower() == "assistant":
                        continue  # what the user wants is what the user says
                for sentence in _SENTENCE.split(line):
                    if (found := self._read(topic, asked, sentence)) is not None:
                        yield day, *found

    def _read(self, topic: str, asked: Mapping[str, str], sentence: str) -> tuple[dict[str, str], bool] | None:
        kind = _KINDS[topic]
        text, tags = self._tagged(sentence, asked)
        if any(re.search(cue, text) is None for cue in kind.cues):
            return None
        people = re.sub(r"\bwith (?:\w+ ){0,2}\w+", "", text) if topic == "occasion" else text
        if _OTHERS.search(people) or _UNSURE.search(text) or re.search(kind.veto, text):
            return None
        if not kind.company and _COMPANY.search(people):
            return None
        if topic in _OF_PLACE and {tags["place"][int(number)] for number in re.findall(r"<PLACE (\d+)>", text)} != {
            asked["place"]
        }:
            return None
        for shown, holds in ((_STALE.sub(" ", text), True), (text, False)):
            values = {slot: _value(patterns, shown, tags) for slot, patterns in kind.values.items()}
            if all(values.values()):
                return values, holds
        return None

    def _tagged(self, sentence: str, asked: Mapping[str, str]) -> tuple[str, dict[str, list[str]]]:
        """A sentence with tags in the place of names, dates, times and numbers, and what they stand for."""
        tags: dict[str, list[str]] = {}

        def tag(kind: str, value: str) -> str:
            tags.setdefault(kind, []).append(value)
            return f"<{kind.upper()} {len(tags[kind]) - 1}>"

        text = re.sub(r"[<>*_`\"]", "", sentence).replace("\u2019", "'").lower()

        def tag_names(text: str, *kinds: str) -> str:
            for kind in kinds:
                names = self._names[kind]
                text = self._patterns[kind].sub(lambda match, kind=kind, names=names: tag(kind, names[match[1]]), text)  # type: ignore[misc]
            return text

        text = tag_names(text, "place", "dish")
        for name, mark in (("occasion", "<OCCASION>"), ("who", "<WHO>")):
            if name in asked:
                text = re.sub(rf"\b{re.escape(_WHOSE.sub('', asked[name]).lower())}\b(?!-)", mark, text)
        text = tag_names(text, "provider", "tier")
        text = re.sub(_DATE, lambda match: tag("date", str(_day(match) or "")), text)
        text = re.sub(_CLOCK, lambda match: tag("time", _clock(match)), text)

        def number(match: re.Match[str]) -> str:
            value = match[2] if match[2].isdigit() else str(_NUMBERS.index(match[2]) + 2)
            return f"{match[1]} {tag('n', value)} {match[3]}"

        text = re.sub(rf"(?<![\w$.:-])(x?)(\d{{1,3}}|{'|'.join(_NUMBERS)})(x?)(?![\w.:]*\d|>|\w)", number, text)
        return " ".join(text.split()), tags


def _value(patterns: Sequence[str], text: str, tags: Mapping[str, Sequence[str]]) -> str:
    """The one value that a text has where patterns find it; empty if there are none or several."""
    kind = re.findall(r"<(\w+) \(", patterns[0])[0].lower()
    found = {tags[kind][int(number)] for pattern in patterns for number in re.findall(pattern, text)}
    return found.pop() if len(found) == 1 else ""  # so is a date that does not exist


def _day(match: re.Match[str]) -> date | None:
    parts = match.groupdict()
    year, month, day = (parts[name] or parts[f"{name}1"] or parts[f"{name}2"] for name in "ymd")
    if not month.isdigit():
        month = str(next(number for number, name in enumerate(_MONTHS, 1) if name.startswith(month.lower()[:3])))
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def _clock(match: re.Match[str]) -> str:
    if match["hour24"] is not None:
        return f"{int(match['hour24']):02}:{match['minute24']}"
    return f"{int(match['hour']) % 12 + 12 * match['half'].startswith('p'):02}:{match['minute'] or '00'}"

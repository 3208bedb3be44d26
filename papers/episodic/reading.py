"""Reading what the model answers about an agent's work: tolerant of how it is written, strict about what it says.

The answers are XML as models write it, with prose around it, code fences, thinking, unescaped ``<`` and ``&``; so no XML
parser reads them, and none can be attacked through them. Whatever the text, nothing is raised: each reader returns what it
understood and the violations. A record with a doubt about what it means is refused as a whole.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TypeVar

from deltamem.prompts import load_prompt
from deltamem.replies import without_thinking
from deltamem.sessions import CONTROL_MARK
from deltamem.text import content_stems, normalised, words
from papers.episodic.records import EpisodeSummary, Reflection, TurnAnalysis

MAX_WORDS = 300
"""Of use cases and hints of one reflection together."""
MAX_REFLECTIONS = 8
"""Of one episode; what an answer has beyond is refused."""
MAX_FIELD = 2000
"""Characters of one field."""
MAX_TITLE = 120


class EpisodicViolation(StrEnum):
    """How an answer about an agent's work departed from what was asked for."""

    TEXT_OUTSIDE_TAGS = "text_outside_tags"
    """Costs nothing, as `MASKED_DATA`."""
    NO_BLOCK = "no_block"
    UNCLOSED_BLOCK = "unclosed_block"
    SEVERAL_BLOCKS = "several_blocks"
    NESTED_TAG = "nested_tag"
    MISSING_FIELD = "missing_field"
    EMPTY_FIELD = "empty_field"
    DUPLICATE_FIELD = "duplicate_field"
    FIELD_TOO_LONG = "field_too_long"
    ECHOED_PROMPT = "echoed_prompt"
    BAD_UNICODE = "bad_unicode"
    BAD_TURN_ID = "bad_turn_id"
    UNKNOWN_TURN = "unknown_turn"
    DUPLICATE_TURN = "duplicate_turn"
    MISSING_TURN = "missing_turn"
    BAD_VERDICT = "bad_verdict"
    BAD_OPERATOR = "bad_operator"
    MISSING_ID = "missing_id"
    UNWANTED_ID = "unwanted_id"
    UNKNOWN_ID = "unknown_id"
    CONFLICTING_UPDATE = "conflicting_update"
    UNRELATED_TITLE = "unrelated_title"
    EXISTING_TITLE = "existing_title"
    BAD_CONFIDENCE = "bad_confidence"
    TOO_LONG = "too_long"
    UPDATE_TOO_LONG = "update_too_long"
    """An update beyond `MAX_WORDS`, which must be an add under a narrower title."""
    LOST_CONTENT = "lost_content"
    """An update that drops nearly everything of what it replaces."""
    TOO_MANY = "too_many"
    REPEATED = "repeated"
    """The operation stands there twice, or an add says word for word what is kept under another title."""
    PERSONAL_DATA = "personal_data"
    MASKED_DATA = "masked_data"
    """User data in notes and summaries, where it is masked; a reflection with any is refused."""
    TOKEN_LIMIT = "token_limit"


V = EpisodicViolation
Read = TypeVar("Read")
Personal = Callable[[str], object]
"""Whether a text holds data of a user."""


@dataclass(frozen=True, slots=True)
class ReflectionOperation:
    """What is to become of the reflections; `target` is the id of the one that an update replaces."""

    reflection: Reflection
    target: str | None = None


_TURN = ("turn_id", "situation", "intent", "action", "thought", "assessment_assistant", "assessment_user")
_EPISODE = ("situation", "intent", "assessment", "justification", "reflection")
_REFLECTION = ("operator", "id", "title", "use_cases", "hints", "confidence")
_FENCE = re.compile(r"```[a-z]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_VERDICT = re.compile(r"[\W_]*(yes|no)\b(?!\s*(?:/|or\b|\|)\s*(?:yes|no)\b)", re.IGNORECASE)
_CONFIDENCE = re.compile(r"0?\.([1-9])0*|(1)(?:\.0*)?", re.ASCII)
_TURN_ID = re.compile(r"(?:turn[ _#]*)?0*([0-9]{1,9})", re.IGNORECASE | re.ASCII)
_NO_ID = {"", "none", "n/a", "null", "-"}


class _Refused(Exception):
    """What is read means nothing that may be applied."""

    def __init__(self, *violations: EpisodicViolation) -> None:
        self.violations = violations


def read_turns(text: str, turns: Sequence[int]) -> tuple[list[TurnAnalysis] | None, list[EpisodicViolation]]:
    """Read the notes on some turns, whose numbers are given in order.

    Returns:
        One analysis for each turn, in order; None if one is missing, twice, or not to be understood. And the violations.
    """
    found: dict[int, TurnAnalysis] = {}

    def take(fields: Mapping[str, str]) -> None:
        analysis = _turn(fields)
        if analysis.turn not in turns:
            raise _Refused(V.UNKNOWN_TURN)
        if analysis.turn in found:
            raise _Refused(V.DUPLICATE_TURN)
        found[analysis.turn] = analysis

    def read(body: str, violations: list[EpisodicViolation]) -> list[TurnAnalysis]:
        _each(body, "summary_turn", _TURN, (), violations, take)
        missing = [V.MISSING_TURN] * (len(turns) - len(found))
        if missing or V.DUPLICATE_TURN in violations:
            raise _Refused(*missing)
        return [found[turn] for turn in turns]

    return _in_block(text, "summary", read)


def _turn(fields: Mapping[str, str]) -> TurnAnalysis:
    number = _TURN_ID.fullmatch(_bare(fields["turn_id"]))
    if number is None:
        raise _Refused(V.BAD_TURN_ID)
    (achieved, achieved_why), (ended, ended_why) = map(_verdict, (fields["assessment_assistant"], fields["assessment_user"]))
    kept = {name: fields[name] for name in ("situation", "intent", "action", "thought")}
    return TurnAnalysis(
        int(number[1]), **kept, achieved=achieved, achieved_why=achieved_why, ended=ended, ended_why=ended_why
    )


def read_summary(text: str, first: int, last: int) -> tuple[EpisodeSummary | None, list[EpisodicViolation]]:
    """Read the summary of an episode of some turns; None if it cannot be understood. And the violations."""

    def read(body: str, violations: list[EpisodicViolation]) -> EpisodeSummary:
        fields = _fields(body, _EPISODE, (), violations)
        achieved, _ = _verdict(fields.pop("assessment"))
        return EpisodeSummary(first, last, **fields, achieved=achieved)

    return _in_block(text, "summary", read)


def read_reflections(
    text: str, shown: Mapping[str, Reflection], personal: Personal, others: Sequence[Reflection] = ()
) -> tuple[list[ReflectionOperation] | None, list[EpisodicViolation]]:
    """Read operations on reflections.

    Args:
        text: The answer.
        shown: The reflections that the model has seen, by id; no other can be updated.
        personal: Says whether a text holds data of a user.
        others: Further reflections that are kept; none is added twice.

    Returns:
        The operations that can be applied, in order; None if there is no block of them. And the violations, one at least
        for each operation that was refused.
    """
    operations: list[ReflectionOperation] = []
    titles = {normalised(kept.title): kept.id for kept in (*others, *shown.values())}  # Whose they are; "" for those of adds
    bodies = {_body(kept) for kept in (*others, *shown.values())}

    def take(fields: Mapping[str, str]) -> None:
        operation = _operation(fields, shown, personal)
        title, body = normalised(operation.reflection.title), _body(operation.reflection)
        if operation in operations:
            raise _Refused(V.REPEATED)
        if title in titles and (operation.target is None or titles[title] != operation.target):
            raise _Refused(V.EXISTING_TITLE)
        if operation.target is None and body in bodies:
            raise _Refused(V.REPEATED)
        titles[title] = operation.target or ""
        bodies.add(body)
        if len(operations) == MAX_REFLECTIONS:
            raise _Refused(V.TOO_MANY)
        operations.append(operation)

    def read(body: str, violations: list[EpisodicViolation]) -> list[ReflectionOperation]:
        _each(body, "reflection", _REFLECTION, ("id",), violations, take)
        targets = Counter(operation.target for operation in operations)
        # None of several can be preferred, as with memories.
        kept = [operation for operation in operations if operation.target is None or targets[operation.target] < 2]
        violations += [V.CONFLICTING_UPDATE] * (len(operations) - len(kept))
        return kept

    return _in_block(text, "reflections", read)


def _operation(fields: Mapping[str, str], shown: Mapping[str, Reflection], personal: Personal) -> ReflectionOperation:
    operator, target = _bare(fields["operator"]).lower(), _bare(fields.get("id", ""))
    if target.lower() in _NO_ID:
        target = ""
    confidence = _CONFIDENCE.fullmatch(_bare(fields["confidence"]))
    if operator not in ("add", "update"):
        raise _Refused(V.BAD_OPERATOR)
    if operator == "add" and target:  # perhaps an update was meant
        raise _Refused(V.UNWANTED_ID)
    if operator == "update" and not target:
        raise _Refused(V.MISSING_ID)
    if target and target not in shown:
        raise _Refused(V.UNKNOWN_ID)
    if confidence is None:
        raise _Refused(V.BAD_CONFIDENCE)
    sure = 1.0 if confidence[2] else int(confidence[1]) / 10
    reflection = Reflection(fields["title"], fields["use_cases"], fields["hints"], sure, target)
    if len(reflection.title) > MAX_TITLE:
        raise _Refused(V.FIELD_TOO_LONG)
    if word_count(reflection.use_cases) + word_count(reflection.hints) > MAX_WORDS:
        raise _Refused(V.UPDATE_TOO_LONG if target else V.TOO_LONG)
    if target and not _related(reflection.title, shown[target].title):
        raise _Refused(V.UNRELATED_TITLE)
    if personal(reflection.text):
        raise _Refused(V.PERSONAL_DATA)
    if target and not _carries(reflection, shown[target]):
        raise _Refused(V.LOST_CONTENT)
    return ReflectionOperation(reflection, target or None)


def word_count(text: str) -> int:
    """How many words a text has; scripts without spaces count by pairs of characters."""
    return max(len(text.split()), len(words(text)))


def _related(title: str, other: str) -> bool:
    """Whether two titles can name one thing: equal, or a word that carries meaning in common."""
    return normalised(title) == normalised(other) or not content_stems(title).isdisjoint(content_stems(other))


def _body(one: Reflection) -> str:
    return normalised(f"{one.use_cases} {one.hints}")


def _carries(new: Reflection, old: Reflection) -> bool:
    """Whether an update still speaks of what it replaces: of a quarter of its words, which leaves room for others."""
    before = content_stems(_body(old))
    return 4 * len(before & content_stems(_body(new))) >= len(before)


def _verdict(text: str) -> tuple[bool, str]:
    match = _VERDICT.match(text)
    if match is None:
        raise _Refused(V.BAD_VERDICT)
    return match[1].lower() == "yes", re.sub(r"^[\W_]+", "", text[match.end() :])


def _bare(text: str) -> str:
    """A short value without the brackets or quotes that the form in the prompt may suggest."""
    return text.strip().strip("[]()\"'`*").strip()


def _tags(*names: str) -> re.Pattern[str]:
    return re.compile(rf"<\s{{0,9}}(/?)\s{{0,9}}({'|'.join(names)})\s{{0,9}}>", re.IGNORECASE)


def _in_block(
    text: str, name: str, read: Callable[[str, list[EpisodicViolation]], Read]
) -> tuple[Read | None, list[EpisodicViolation]]:
    """What is read in the only block of a name, without thinking and fences around it; None if it is refused."""
    text = without_thinking(text)
    tags = [*_tags(name).finditer(text)]
    if not tags or tags[0][1]:
        return None, [V.NO_BLOCK]
    if len(tags) == 1:
        return None, [V.UNCLOSED_BLOCK]
    if len(tags) > 2 or not tags[1][1]:
        return None, [V.SEVERAL_BLOCKS]
    outside = _FENCE.sub("", text[: tags[0].start()] + text[tags[1].end() :]).strip("\ufeff \t\r\n")
    violations = [V.TEXT_OUTSIDE_TAGS] if outside else []
    try:
        return read(text[tags[0].end() : tags[1].start()], violations), violations
    except _Refused as refused:
        return None, [*violations, *refused.violations]


Element = tuple[str, str | EpisodicViolation]
"""A tag's name and what stands in it, or why nobody can say what does."""


def _elements(body: str, names: Collection[str]) -> tuple[list[Element], bool]:
    """The elements of some names in a text, which have none of each other in them; and whether something is outside."""
    found: list[Element] = []
    outside = False
    begin: int | None = None
    end, name = 0, ""
    for tag in _tags(*sorted(names, key=len, reverse=True)).finditer(body):
        closes = bool(tag[1])
        if begin is None:
            if closes:  # an end without a beginning: what stands before it belongs to nothing
                found.append((tag[2].lower(), V.NESTED_TAG))
            else:
                outside = outside or bool(body[end : tag.start()].strip())
        elif closes and tag[2].lower() == name:
            found.append((name, body[begin : tag.start()]))
        else:  # one within the other: where the first ends is a guess
            found.append((name, V.NESTED_TAG))
        begin, name, end = None if closes else tag.end(), tag[2].lower(), tag.end()
    if begin is not None:
        found.append((name, V.UNCLOSED_BLOCK))
    return found, outside or (begin is None and bool(body[end:].strip()))


def _each(
    body: str,
    name: str,
    fields: tuple[str, ...],
    optional: tuple[str, ...],
    violations: list[EpisodicViolation],
    take: Callable[[dict[str, str]], None],
) -> None:
    """Take each record of a block by its fields; those that are refused are noted."""
    found, outside = _elements(body, [name])
    violations += [V.TEXT_OUTSIDE_TAGS] * outside
    for _, content in found:
        try:
            take(_fields(content, fields, optional, violations))
        except _Refused as refused:
            violations += refused.violations


def _fields(
    content: str | EpisodicViolation, names: tuple[str, ...], optional: tuple[str, ...], violations: list[EpisodicViolation]
) -> dict[str, str]:
    if isinstance(content, EpisodicViolation):
        raise _Refused(content)
    fields: dict[str, str] = {}
    found, outside = _elements(content, names)
    violations += [V.TEXT_OUTSIDE_TAGS] * outside
    for name, inner in found:
        if isinstance(inner, EpisodicViolation):
            raise _Refused(inner)
        if name in fields:
            raise _Refused(V.DUPLICATE_FIELD)
        fields[name] = inner
    if missing := [one for one in names if one not in fields and one not in optional]:
        raise _Refused(*[V.MISSING_FIELD] * len(missing))
    return {name: _clean(raw, name in optional) for name, raw in fields.items()}


def _clean(raw: str, may_be_empty: bool) -> str:
    """The text of a field on one line, with entities resolved and control marks broken."""
    if len(raw) > 4 * MAX_FIELD:
        raise _Refused(V.FIELD_TOO_LONG)
    text = html.unescape(raw.removeprefix("<![CDATA[").removesuffix("]]>"))
    if _SURROGATE.search(text):
        raise _Refused(V.BAD_UNICODE)
    text = CONTROL_MARK.sub("< ", " ".join("".join(map(_visible, text)).split()))
    if len(text) > MAX_FIELD:
        raise _Refused(V.FIELD_TOO_LONG)
    if not re.search(r"\w", text) and not may_be_empty:
        raise _Refused(V.EMPTY_FIELD)
    if len(text) > 30 and text.strip("[].").casefold() in _prompt_words():
        raise _Refused(V.ECHOED_PROMPT)
    return text


def _visible(char: str) -> str:
    if char.isprintable() or char in "\u200c\u200d":  # joiners, part of how several scripts are written
        return char
    return "" if unicodedata.category(char) == "Cf" else " "


@cache
def _prompt_words() -> str:
    texts = (load_prompt(name, "papers.episodic.prompts").text for name in PROMPTS)
    return " ".join(" ".join(texts).casefold().split())


TURNS_PROMPT, SUMMARY_PROMPT, REFLECTIONS_PROMPT = PROMPTS = ("episode_turns", "episode_summary", "episode_reflections")

"""Reading what the model answers about an agent's work: tolerant of how it is written, strict about what it says.

The answers are XML as models write it, with prose around it, code fences, thinking, unescaped ``<`` and ``&``; so no XML
parser reads them, and none can be attacked through them. Whatever the text, nothing is raised: each reader returns what it
understood and the violations. A record with a doubt about what it means is refused as a whole.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

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


def read_turns(text: str, turns: Sequence[int]) -> tuple[list[TurnAnalysis] | None, list[EpisodicViolation]]:
    """Read the notes on some turns.

    Args:
        text: The answer.
        turns: The numbers that were given, ascending.

    Returns:
        One analysis for each turn, in order; None if one is missing, twice, or not to be understood. And the violations.
    """
    body, violations = _block(text, "summary")
    if body is None:
        return None, violations
    found: dict[int, TurnAnalysis] = {}
    for fields, problems in _records(body, "summary_turn", _TURN, (), violations):
        analysis, problem = (None, None) if fields is None else _turn(fields)
        problems = [*problems, *([problem] if problem else [])]
        if analysis is not None and analysis.turn not in turns:
            problems.append(V.UNKNOWN_TURN)
        elif analysis is not None and analysis.turn in found:
            problems.append(V.DUPLICATE_TURN)
        elif analysis is not None:
            found[analysis.turn] = analysis
        violations += problems
    violations += [V.MISSING_TURN] * (len(turns) - len(found))
    doubtful = {V.MISSING_TURN, V.DUPLICATE_TURN}.intersection(violations)
    return (None if doubtful else [found[turn] for turn in turns]), violations


def _turn(fields: Mapping[str, str]) -> tuple[TurnAnalysis | None, EpisodicViolation | None]:
    number = _TURN_ID.fullmatch(_bare(fields["turn_id"]))
    if number is None:
        return None, V.BAD_TURN_ID
    verdicts = [_verdict(fields[name]) for name in ("assessment_assistant", "assessment_user")]
    if verdicts[0] is None or verdicts[1] is None:
        return None, V.BAD_VERDICT
    kept = {name: fields[name] for name in ("situation", "intent", "action", "thought")}
    return TurnAnalysis(int(number[1]), **kept, achieved=verdicts[0][0], achieved_why=verdicts[0][1],
                        ended=verdicts[1][0], ended_why=verdicts[1][1]), None  # fmt: skip


def read_summary(text: str, first: int, last: int) -> tuple[EpisodeSummary | None, list[EpisodicViolation]]:
    """Read the summary of an episode.

    Args:
        text: The answer.
        first: The episode's first turn.
        last: Its last one.

    Returns:
        The summary, None if it cannot be understood; and the violations.
    """
    body, violations = _block(text, "summary")
    if body is None:
        return None, violations
    fields, problems = _fields(body, _EPISODE, ())
    violations += problems
    if fields is None:
        return None, violations
    verdict = _verdict(fields["assessment"])
    if verdict is None:
        return None, [*violations, V.BAD_VERDICT]
    kept = {name: fields[name] for name in ("situation", "intent", "justification", "reflection")}
    return EpisodeSummary(first, last, **kept, achieved=verdict[0]), violations


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
    body, violations = _block(text, "reflections")
    if body is None:
        return None, violations
    read: list[ReflectionOperation] = []
    titles: dict[str, str] = {}  # Whose they are; "" for those of adds
    bodies = set()
    for kept in (*others, *shown.values()):
        titles[normalised(kept.title)] = kept.id
        bodies.add(_body(kept))
    for fields, problems in _records(body, "reflection", _REFLECTION, ("id",), violations):
        if fields is not None:
            operation, problem = _operation(fields, shown, personal)
            if operation is not None and operation in read:
                operation, problem = None, V.REPEATED
            if operation is not None:
                title = normalised(operation.reflection.title)
                if title in titles and (operation.target is None or titles[title] != operation.target):
                    operation, problem = None, V.EXISTING_TITLE
                elif operation.target is None and _body(operation.reflection) in bodies:
                    operation, problem = None, V.REPEATED
                else:
                    titles[title] = operation.target or ""
                    bodies.add(_body(operation.reflection))
            if operation is not None and len(read) == MAX_REFLECTIONS:
                operation, problem = None, V.TOO_MANY
            read += [operation] if operation is not None else []
            problems = [*problems, *([problem] if problem else [])]
        violations += problems
    targets = [operation.target for operation in read if operation.target is not None]
    torn = {target for target in targets if targets.count(target) > 1}
    # None of several can be preferred, as with memories.
    violations += [V.CONFLICTING_UPDATE for operation in read if operation.target in torn]
    return [operation for operation in read if operation.target not in torn], violations


def _operation(
    fields: Mapping[str, str], shown: Mapping[str, Reflection], personal: Personal
) -> tuple[ReflectionOperation | None, EpisodicViolation | None]:
    operator, target = _bare(fields["operator"]).lower(), _bare(fields.get("id", ""))
    if operator not in ("add", "update"):
        return None, V.BAD_OPERATOR
    if target.lower() in _NO_ID:
        target = ""
    if operator == "add" and target:  # perhaps an update was meant
        return None, V.UNWANTED_ID
    if operator == "update" and not target:
        return None, V.MISSING_ID
    if target and target not in shown:
        return None, V.UNKNOWN_ID
    confidence = _CONFIDENCE.fullmatch(_bare(fields["confidence"]))
    if confidence is None:
        return None, V.BAD_CONFIDENCE
    reflection = Reflection(
        fields["title"], fields["use_cases"], fields["hints"], 1.0 if confidence[2] else int(confidence[1]) / 10, target
    )
    if len(reflection.title) > MAX_TITLE:
        return None, V.FIELD_TOO_LONG
    if word_count(reflection.use_cases) + word_count(reflection.hints) > MAX_WORDS:
        return None, V.UPDATE_TOO_LONG if target else V.TOO_LONG
    if target and not _related(reflection.title, shown[target].title):
        return None, V.UNRELATED_TITLE
    if personal(reflection.text):
        return None, V.PERSONAL_DATA
    if target and not _carries(reflection, shown[target]):
        return None, V.LOST_CONTENT
    return ReflectionOperation(reflection, target or None), None


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


def _verdict(text: str) -> tuple[bool, str] | None:
    match = _VERDICT.match(text)
    return None if match is None else (match[1].lower() == "yes", re.sub(r"^[\W_]+", "", text[match.end() :]))


def _bare(text: str) -> str:
    """A short value without the brackets or quotes that the form in the prompt may suggest."""
    return text.strip().strip("[]()\"'`*").strip()


def _tags(*names: str) -> re.Pattern[str]:
    return re.compile(rf"<\s{{0,9}}(/?)\s{{0,9}}({'|'.join(names)})\s{{0,9}}>", re.IGNORECASE)


def _block(text: str, name: str) -> tuple[str | None, list[EpisodicViolation]]:
    """The content of the only block of a name. Without thinking and fences around it."""
    text = without_thinking(text)
    tags = [*_tags(name).finditer(text)]
    if not tags or tags[0][1]:
        return None, [V.NO_BLOCK]
    if len(tags) == 1:
        return None, [V.UNCLOSED_BLOCK]
    if len(tags) > 2 or not tags[1][1]:
        return None, [V.SEVERAL_BLOCKS]
    outside = _FENCE.sub("", text[: tags[0].start()] + text[tags[1].end() :]).strip("\ufeff \t\r\n")
    return text[tags[0].end() : tags[1].start()], [V.TEXT_OUTSIDE_TAGS] if outside else []


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


def _records(
    body: str, name: str, fields: tuple[str, ...], optional: tuple[str, ...], violations: list[EpisodicViolation]
) -> list[tuple[dict[str, str] | None, list[EpisodicViolation]]]:
    """The fields of each record of a block, None where they are not to be understood, with what is wrong with them."""
    found, outside = _elements(body, [name])
    violations += [V.TEXT_OUTSIDE_TAGS] * outside
    return [
        (None, [content]) if isinstance(content, EpisodicViolation) else _fields(content, fields, optional)
        for _, content in found
    ]


def _fields(
    body: str, names: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[dict[str, str] | None, list[EpisodicViolation]]:
    fields: dict[str, str] = {}
    found, outside = _elements(body, names)
    for name, content in found:
        if isinstance(content, EpisodicViolation):
            return None, [content]
        if name in fields:
            return None, [V.DUPLICATE_FIELD]
        fields[name] = content
    if missing := [one for one in names if one not in fields and one not in optional]:
        return None, [V.MISSING_FIELD] * len(missing)
    problems = []
    for one, raw in fields.items():
        fields[one], problem = _clean(raw, one in optional)
        problems += [problem] if problem else []
    return (None if problems else fields), problems + [V.TEXT_OUTSIDE_TAGS] * outside


def _clean(raw: str, may_be_empty: bool) -> tuple[str, EpisodicViolation | None]:
    """The text of a field on one line, with entities resolved and control marks broken; and what forbids it."""
    if len(raw) > 4 * MAX_FIELD:
        return "", V.FIELD_TOO_LONG
    text = html.unescape(raw.removeprefix("<![CDATA[").removesuffix("]]>"))
    if _SURROGATE.search(text):
        return "", V.BAD_UNICODE
    text = " ".join("".join(map(_visible, text)).split())
    text = CONTROL_MARK.sub("< ", text)
    if len(text) > MAX_FIELD:
        return "", V.FIELD_TOO_LONG
    if not re.search(r"\w", text) and not may_be_empty:
        return "", V.EMPTY_FIELD
    if len(text) > 30 and text.strip("[].").casefold() in _prompt_words():
        return "", V.ECHOED_PROMPT
    return text, None


def _visible(char: str) -> str:
    if char.isprintable() or char in "\u200c\u200d":  # joiners, part of how several scripts are written
        return char
    return "" if unicodedata.category(char) == "Cf" else " "


@cache
def _prompt_words() -> str:
    texts = (load_prompt(name, "papers.episodic.prompts").text for name in PROMPTS)
    return " ".join(" ".join(texts).casefold().split())


TURNS_PROMPT, SUMMARY_PROMPT, REFLECTIONS_PROMPT = PROMPTS = ("episode_turns", "episode_summary", "episode_reflections")

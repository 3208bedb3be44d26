"""Reading what a model answers: its thinking dropped, its JSON object found and checked.

Whatever the text, nothing is raised. The turns of an episode have a reader of their own, `deltamem.episode.read_turn`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

_DECODER = json.JSONDecoder(strict=False)  # line breaks within strings are common
_MOST_STARTS = 1_000  # Braces at which an object is looked for; a failing model may write nothing else
_MOST_PIECES = 200  # Brackets at which no piece is found; each costs up to the whole text
_MOST_PROBLEMS = 20
_LONGEST_VALUE = 80

# The end of thinking, as tags, as gpt-oss's channels, and as those read once their special tokens are gone.
_BEFORE_ANSWER = ("</think>", "<|message|>", "assistantfinal")
_SPECIAL_TOKEN = re.compile(r"<\|[a-z_]{1,30}\|>")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What was understood of an answer."""

    value: T | None  # None if it cannot be understood
    violations: tuple[Any, ...] = ()  # What is wrong with it, though it may be understood


def without_thinking(text: str) -> str:
    """What a model wrote after thinking, for servers that do not separate the two.

    It follows the last end of thinking; of thinking that never ended, what precedes it counts.
    """
    if text.startswith("{"):  # the marks may stand in a string
        return text.strip()
    for mark in _BEFORE_ANSWER:
        text = text.rpartition(mark)[2]
    return _SPECIAL_TOKEN.sub("", text.partition("<think>")[0]).strip()


def last_object(text: str, accept: Callable[[dict[str, Any]], T | None]) -> T | None:
    """The last JSON object in a text that is accepted, whatever stands around it.

    Models quote the task, try, and correct themselves, so the last one counts; an object within an accepted one does not.
    `accept` says what an object is taken for; None if it is not the one that was asked for.
    """
    found: T | None = None
    end = 0
    for brace in islice(re.finditer(r"\{", text), _MOST_STARTS):
        if brace.start() < end:
            continue
        try:
            value, after = _DECODER.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if (accepted := accept(value)) is not None:
            found, end = accepted, after
    return found


def after_thinking(text: str) -> int:
    """Where the think blocks end that precede all JSON, which may name the tag in a text; -1 if one has no end."""
    position, bracket = 0, _BRACKET.search(text)
    while (begin := text.find("<think>", position, bracket.start() if bracket else len(text))) >= 0:
        end = text.find("</think>", begin)
        if end < 0:
            return -1
        position = end + len("</think>")
        if bracket is not None and bracket.start() < position:
            bracket = _BRACKET.search(text, position)
    return position


_BRACKET = re.compile(r"[\[{]")


class JsonValues(NamedTuple):
    """The JSON objects and lists in a text, from left to right."""

    values: list[Any]
    plain: bool  # Whether all are valid JSON (line breaks within strings aside)
    broken: int | None  # Where something begins that cannot be read; what follows it is not looked at


def json_values(text: str) -> JsonValues:
    """Find the JSON values in what a model wrote, whatever stands around them, in time linear in the text.

    Understood beyond JSON: raw line breaks and tabs in strings, trailing commas, commas missing between entries, comments,
    single and typographic quotes, full-width commas and colons, names as Python and JavaScript write them, invisible
    characters, and a list that is cut, of which the whole entries count. Nothing is guessed: a string is what stands between
    its quotes, and where a quote within a text makes it doubtful where it ends, the value cannot be read. An empty list
    counts if nothing stands beside it; what follows the end of an answer's tag does not count.
    """
    if _EMPTY_LIST.fullmatch(text):
        return JsonValues([[]], plain=text.strip() == "[]", broken=None)
    values: list[Any] = []
    failed, position = 0, 0
    while opening := _OPENING.search(text, position):
        start = opening.start()
        if values and _END_TAG.search(text, position, start):
            break
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            failed += 1
            value, position, quoted, cut = _mended(text, start)
            if value is None and cut and values:
                break
            if (value is None and quoted) or failed > _MOST_STARTS:  # What follows may be within a string
                return JsonValues(values, plain=False, broken=start)
        if value is not None:
            values.append(value)
    return JsonValues(values, plain=not failed, broken=None)


def json_pieces(text: str, position: int) -> list[Any]:
    """Valid JSON objects and lists from a position on, also within what cannot be read as a whole."""
    values: list[Any] = []
    failed = 0
    while failed < _MOST_PIECES and (opening := _OPENING.search(text, position)):
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            failed, position = failed + 1, opening.end()
        else:
            values.append(value)
    return values


_OPENING = re.compile(r"""\{|\[(?=\s*["'\u201c{])""")  # Not what stands in brackets in prose
_AROUND = r"(?:[\s`]|json\b|</?outputs>)*"
_END_TAG = re.compile(r"</outputs?>(?!\s*<outputs?>)", re.IGNORECASE)  # Not between operations with a tag each
_EMPTY_LIST = re.compile(rf"{_AROUND}\[\s*\]{_AROUND}", re.IGNORECASE)
_TOKEN = re.compile(
    r"""(?P<blank>[\s\ufeff\u200b-\u200d\u2060]+|//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|\u201c[^\u201c\u201d\\]*(?:\\.[^\u201c\u201d\\]*)*\u201d)
    |(?P<open>[\[{])|(?P<close>[\]}])|(?P<mark>[,:\uff0c\uff1a])
    |(?P<name>[A-Za-z_]\w*(?=\s*[:\uff1a]))|(?P<word>-?[\w.+-]+)""",
    re.DOTALL | re.VERBOSE,
)
_MARKS = {"\uff0c": ",", "\uff1a": ":"}
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_ESCAPE = re.compile(r'\\(.)|"', re.DOTALL)
_DEEPEST = 20  # Levels of brackets


class _Mended(NamedTuple):
    value: Any  # None if it cannot be read
    end: int
    quoted: bool  # Whether there were strings in it
    cut: bool = False  # Whether the text, or the block that it stands in, ended too early


def _mended(text: str, start: int) -> _Mended:
    """The value that begins at a bracket."""
    written: list[str] = []  # As JSON
    inside, last, quoted, position = "", "", False, start
    whole: tuple[int, str] | None = None  # How much is whole should the text be cut, and the brackets that are then open
    while token := _TOKEN.match(text, position):
        kind, found = token.lastgroup, token[0]
        if kind == "blank":
            found = " "
        elif kind == "string":
            quoted = True
            found = f'"{_ESCAPE.sub(_escape, found[1:-1])}"'
        elif kind == "open":
            if len(inside) == _DEEPEST:
                return _Mended(None, position, True)
            inside += found
            found = f",{found}" if last in ("}", "]") else found
        elif kind == "close":
            if inside[-1] + found not in ("{}", "[]"):
                break
            if last == ",":
                written.pop()
            inside = inside[:-1]
        elif kind == "mark":
            found = _MARKS.get(found, found)
        elif kind == "name":
            found = f'"{found}"'
        elif (found := _WORDS.get(found, found)) not in _WORDS and not _NUMBER.fullmatch(found):
            break
        position = token.end()
        if kind != "blank" or last != ",":  # A trailing comma stays the last
            written.append(found)
        last = last if kind == "blank" else found[-1]
        if not inside:
            return _Mended(_decoded(written), position, quoted)
        # Entries of the one list, or the list itself; what stands deeper is part of an entry that is not whole.
        in_list = inside[-1] == "["
        if kind in ("string", "close") and inside.count("[") == in_list and (in_list or found == "]"):
            whole = len(written), inside
    at = text[position : position + 3]
    cut = at[:1] in ("", '"', "'", "<") or at == "```" or (at[0] == "\u201c" and text.find("\u201d", position) < 0)
    if not cut or whole is None:
        return _Mended(None, max(position, start + 1), quoted, cut)
    closing = "".join("]" if bracket == "[" else "}" for bracket in reversed(whole[1]))
    end = len(text) if at[:1] in ('"', "'", "\u201c") else position
    return _Mended(_decoded([*written[: whole[0]], closing]), end, quoted, cut)


def _decoded(written: list[str]) -> Any:
    try:
        return _DECODER.decode("".join(written))
    except (ValueError, RecursionError):
        return None


def _escape(found: re.Match[str]) -> str:
    """As JSON has it: quotes of the other kind, Python's two hexadecimal digits, and Markdown's underscore."""
    if found[1] is None:
        return '\\"'
    return {"'": "'", "x": "\\u00", "_": "_"}.get(found[1], found[0])


def read_object(text: str, model: type[Model]) -> Reading[Model]:
    """Read the last JSON object that has the required fields of a model; violations say what the model complains of."""
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    found = last_object(without_thinking(text), lambda value: value if required <= value.keys() else None)
    if found is None:
        return Reading(None, (f"the answer holds no JSON object with the fields {', '.join(model.model_fields)}",))
    try:
        return Reading(model.model_validate(found))
    except ValidationError as error:
        return Reading(None, tuple(problems(error)))


def problems(error: ValidationError) -> list[str]:
    """Pydantic's complaints as a model is told them: where, what, and what stands there."""
    every = error.errors(include_url=False, include_context=False)
    lines = [f"{path(problem['loc'])}: {problem['msg']}{_shown(problem['input'])}" for problem in every[:_MOST_PROBLEMS]]
    return [*lines, f"{more} further fields are wrong"] if (more := len(every) - len(lines)) else lines


def path(location: tuple[int | str, ...]) -> str:
    """Where a complaint is about, as ``facts[2].text``."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return written.removeprefix(".") or "the answer"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    written = json.dumps(value, ensure_ascii=False, default=str)
    if len(written) <= _LONGEST_VALUE:
        return f" (found {written})"
    return f" (found {written[:_LONGEST_VALUE]}..., {len(value)} characters)"

"""Reading ``questions_*.csv`` and ``shared_contexts_*.jsonl`` (PROTOCOLS.md 4.2). Broken rows are named, not fatal."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from deltamem.errors import DeltaMemError

COLUMNS = (
    "persona_id",
    "question_id",
    "question_type",
    "topic",
    "context_length_in_tokens",
    "context_length_in_letters",
    "distance_to_ref_in_blocks",
    "distance_to_ref_in_tokens",
    "num_irrelevant_tokens",
    "distance_to_ref_proportion_in_context",
    "user_question_or_message",
    "correct_answer",
    "all_options",
    "shared_context_id",
    "end_index_in_shared_context",
)
"""Of the questions file. Another set of columns means another benchmark: v2 and v3 share the name."""

LETTERS = "abcd"
_GOLD = re.compile(rf"\s*\(([{LETTERS}])\)\s*")
_CONTEXT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def _unicode(text: str) -> str:
    """Refuse half of a surrogate pair, which JSON and Python literals let through but no file and no model takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text is not valid Unicode") from error
    return text


class Message(BaseModel):
    """One message of a context; its text as it is in the file, with a prefix such as ``User:``."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, AfterValidator(_unicode)]


_MESSAGES = TypeAdapter(tuple[Message, ...])


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the questions file.

    Attributes:
        row: Number of the row, from 1, without the header.
        persona: Id of the persona.
        type: As the file calls it; see `eval.personamem.question_types`.
        text: Question or message of the user; some begin with ``User:``.
        options: Four, each with its letter, for example ``(a) Tea.``.
        gold: The right letter.
        context: Id of the shared context.
        end: How many messages of the context come before the question, as the file has it: it may be out of range.
        blocks_back: ``distance_to_ref_in_blocks``; see `eval.personamem.reference`.
        tokens_back: ``distance_to_ref_in_tokens``, the question's own tokens included.
        tokens: ``context_length_in_tokens``, likewise.
    """

    row: int
    persona: str
    type: str
    text: str
    options: tuple[str, ...]
    gold: str
    context: str
    end: int
    blocks_back: int
    tokens_back: int
    tokens: int


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """The questions.

    Attributes:
        name: Name of the file.
        sha256: Of the file.
        rows: How many rows there are, broken ones included.
        questions: In order.
        problems: One sentence for each broken row.
    """

    name: str
    sha256: str
    rows: int
    questions: tuple[Question, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContextFile:
    """The shared contexts.

    Attributes:
        name: Name of the file.
        sha256: Of the file.
        contexts: Messages by id of the context.
        problems: One sentence for each broken line.
    """

    name: str
    sha256: str
    contexts: Mapping[str, tuple[Message, ...]]
    problems: tuple[str, ...]


def load_questions(path: Path) -> QuestionFile:
    """Read the questions.

    Args:
        path: ``questions_32k.csv`` or one of its siblings.

    Raises:
        DeltaMemError: If the file cannot be read, is no CSV file, lacks columns or has no rows.
    """
    data = _read(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeltaMemError(f"{path}: not a UTF-8 text file; expected PersonaMem's questions as CSV") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        header = reader.fieldnames or ()
        if lacking := [column for column in COLUMNS if column not in header]:
            raise DeltaMemError(
                f"{path}: no questions of PersonaMem v1, the header lacks {', '.join(lacking)} (expected 15 columns)"
            )
        questions: list[Question] = []
        problems: list[str] = []
        row = 0
        for row, values in enumerate(reader, start=1):
            try:
                questions.append(_question(row, values))
            except DeltaMemError as error:
                problems.append(f"{path.name}, row {row} (line {reader.line_num}): {error}")
    except csv.Error as error:
        raise DeltaMemError(f"{path}, line {reader.line_num}: not a CSV file: {error}") from error
    if not row:
        raise DeltaMemError(f"{path}: no rows below the header")
    return QuestionFile(path.name, hashlib.sha256(data).hexdigest(), row, tuple(questions), tuple(problems))


def load_contexts(path: Path) -> ContextFile:
    """Read the contexts.

    Args:
        path: ``shared_contexts_32k.jsonl`` or one of its siblings: an object with a single key on each line.

    Raises:
        DeltaMemError: If the file cannot be read, or no line of it is a context.
    """
    data = _read(path)
    contexts: dict[str, tuple[Message, ...]] = {}
    problems: list[str] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            name, messages = _context(line)
            if name in contexts:
                raise DeltaMemError(f"context {name} is in the file a second time; the first one counts")
            contexts[name] = messages
        except DeltaMemError as error:
            problems.append(f"{path.name}, line {number}: {error}")
    if not contexts:
        why = f"; {problems[0]}" if problems else ""
        raise DeltaMemError(f"{path}: no line is a context of PersonaMem{why}")
    return ContextFile(path.name, hashlib.sha256(data).hexdigest(), contexts, tuple(problems))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DeltaMemError(f"{path}: {error.strerror}") from error


def _question(row: int, values: Mapping[str | None, str | list[str] | None]) -> Question:
    def text(column: str) -> str:
        value = values.get(column)
        if not isinstance(value, str) or not value.strip():
            raise DeltaMemError(f"{column} is missing")
        return value

    def number(column: str) -> int:
        try:
            return int(text(column))
        except ValueError as error:
            raise DeltaMemError(f"{column} is {text(column)!r}, not a whole number") from error

    if None in values:
        raise DeltaMemError("more values than columns")
    gold = _GOLD.fullmatch(text("correct_answer"))
    if gold is None:
        raise DeltaMemError(f"correct_answer is {text('correct_answer')!r}, not a letter such as '(c)'")
    context = text("shared_context_id")
    if not _CONTEXT_ID.fullmatch(context):
        raise DeltaMemError(f"shared_context_id is {context!r}; expected letters and digits")
    return Question(
        row=row,
        persona=text("persona_id").strip(),
        type=text("question_type").strip(),
        text=text("user_question_or_message"),
        options=_options(text("all_options")),
        gold=gold[1],
        context=context,
        end=number("end_index_in_shared_context"),
        blocks_back=number("distance_to_ref_in_blocks"),
        tokens_back=number("distance_to_ref_in_tokens"),
        tokens=number("context_length_in_tokens"),
    )


def _options(literal: str) -> tuple[str, ...]:
    try:
        options = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DeltaMemError("all_options is not a list of texts as Python writes one") from error
    fits = (
        isinstance(options, list)
        and len(options) == len(LETTERS)
        and all(
            isinstance(option, str) and option.startswith(f"({letter})")
            for letter, option in zip(LETTERS, options, strict=True)
        )
    )
    if not fits:
        raise DeltaMemError("all_options is not a list of four texts that begin with (a), (b), (c) and (d)")
    try:
        _unicode("".join(options))
    except ValueError as error:
        raise DeltaMemError(f"all_options: {error}") from error
    return tuple(options)


def _context(line: bytes) -> tuple[str, tuple[Message, ...]]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DeltaMemError("not valid JSON; the line may be cut off") from error
    if not isinstance(record, dict) or len(record) != 1:
        raise DeltaMemError("expected an object with one key, the id of a context")
    ((name, messages),) = record.items()
    try:
        return name, _MESSAGES.validate_python(messages)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeltaMemError(f"context {name[:12]}, message {where or '?'}: {first['msg']}") from error

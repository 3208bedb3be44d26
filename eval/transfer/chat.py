"""The chat core: windows of human chat with labels by hand, which come with the package (``README.md`` beside it)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from deltamem.text_files import read_lines
from eval.data import reading
from eval.systems.base import DialogueSession, DialogueTurn

CHAT = Path(__file__).with_name("chat.jsonl")

Text = Annotated[str, Field(min_length=1)]


class Window(StrictModel):
    """Consecutive messages of one chat of two people; one line of the file."""

    id: Text
    chat: Text  # Id of the whole chat in the source, from which nothing may be trained on
    time: datetime  # Of the first message, where the chat was held
    owner: Text  # Whose memory is kept; both names are invented
    other: Text
    turns: Annotated[list[Text], Field(min_length=2)]  # Each begins with its speaker: ``Ana: Hello!``
    points: list[Text]  # What a memory of the owner should hold; empty if nothing is worth it
    foreign: list[Text]  # Facts about the other speaker, which it should not hold

    @model_validator(mode="after")
    def _by_these_two(self) -> Self:
        if self.owner == self.other:
            raise ValueError("owner and other have the same name")
        if unknown := [turn for turn in self.turns if not turn.startswith((f"{self.owner}: ", f"{self.other}: "))]:
            raise ValueError(f"a turn begins with neither speaker: {unknown[0]!r}")
        return self

    @property
    def dialogue(self) -> DialogueSession:
        """The window as a session of the owner's memory."""
        said = (turn.split(": ", 1) for turn in self.turns)
        turns = tuple(
            DialogueTurn(f"{self.id}:{number}", "user" if speaker == self.owner else "assistant", speaker, text)
            for number, (speaker, text) in enumerate(said, start=1)
        )
        return DialogueSession(self.id, self.time, turns)


def load_windows(path: Path = CHAT) -> list[Window]:
    """Read the windows of a file.

    Raises:
        DeltaMemError: If the file cannot be read, a line is no window, an id occurs twice, or there is none.
    """
    windows: dict[str, Window] = {}
    with reading(path):
        for number, line in enumerate(read_lines(path), start=1):
            try:
                window = Window.model_validate_json(line)
            except ValidationError as error:
                raise DeltaMemError(f"{path}, line {number}: {first_error(error, 'the window')}") from error
            if window.id in windows:
                raise DeltaMemError(f"{path}, line {number}: the id {window.id} occurs twice")
            windows[window.id] = window
    if not windows:
        raise DeltaMemError(f"{path}: no windows")
    return list(windows.values())

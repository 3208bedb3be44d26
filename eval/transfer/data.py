"""The people whose conversations are read, with the points that a memory of them should hold: chat core, LoCoMo, HaluMem."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveInt

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.text import words
from deltamem.text_files import read_text
from eval.config import BenchmarkConfig
from eval.data import (
    HALUMEM_MEDIUM,
    HALUMEM_USER,
    LOCOMO,
    Dataset,
    Groups,
    chosen_groups,
    data_folders,
    find,
    missing,
    reading,
)
from eval.evidence import EvidenceFinder
from eval.halumem.data import LinkedPoints, User, load_halumem
from eval.locomo.data import ADVERSARIAL_NUMBER, Conversation, dialogues, load_locomo
from eval.systems.base import DialogueSession, StoreKey
from eval.transfer.chat import CHAT, Window, load_windows

Suite = Literal["chat", "locomo", "halumem"]

SUITES: tuple[Suite, ...] = get_args(Suite)
_FILES: Mapping[Suite, tuple[Dataset, ...]] = {"locomo": (LOCOMO,), "halumem": (HALUMEM_MEDIUM, HALUMEM_USER)}


class TransferConfig(BenchmarkConfig):
    """All keys of the command; ``configs/transfer.yaml`` says what they mean."""

    suites: Annotated[list[Suite], Field(min_length=1)]
    windows: Groups
    conversations: Groups
    users: Groups
    sessions: PositiveInt | None
    threshold: Annotated[float, Field(gt=0, lt=1)]
    update_k: PositiveInt
    draws: PositiveInt
    bag_of_words: Path | None
    cache_by_served: bool

    def check(self) -> None:
        """Refuse what other benchmarks can do and this one cannot."""
        super().check()
        for key in ("estimate", "limit", "answers_from"):
            if getattr(self, key):
                raise DeltaMemError(f"python -m eval.transfer has no {key}=...; it asks and judges nothing")

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data."""
        return super().run_config() | self.model_dump(mode="json", include={"sessions", "update_k"})

    def reported(self) -> dict[str, Any]:
        """The settings as the summary has them."""
        return super().reported() | {"bag_of_words": self.bag_of_words and self.bag_of_words.name}


@dataclass(frozen=True, slots=True)
class PointUpdate:
    """A point that replaces older ones, which are searched for once its session is read."""

    key: str  # Unique in a run
    text: str
    originals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransferSession:
    """A sitting and what a memory should hold of it."""

    dialogue: DialogueSession
    points: tuple[str, ...]  # Facts about the owner
    foreign: tuple[str, ...]  # What it should not hold: facts about the other speaker, interferences
    updates: tuple[PointUpdate, ...] = ()  # Those of the points that are updates


@dataclass(frozen=True, slots=True)
class TransferQuestion:
    """A question that the memory is searched for once all sessions are read."""

    key: str  # Unique in a run
    text: str
    evidence: tuple[tuple[str, ...], ...]  # For each piece the turns that say it
    session: str  # Id of the session of the last piece: what is resampled


@dataclass(frozen=True)
class TransferPerson:
    """Whose memory is kept."""

    suite: Suite
    store: StoreKey
    sessions: tuple[TransferSession, ...]  # Those that are read
    questions: tuple[TransferQuestion, ...]
    finder: EvidenceFinder  # Of the turns of these sessions


@dataclass(frozen=True)
class TransferData:
    """What was read."""

    people: tuple[TransferPerson, ...]
    files: Mapping[str, Mapping[str, str]]  # By suite the name and the sha256 of its file

    @property
    def hashes(self) -> dict[str, str]:
        """By suite the sha256 of its file."""
        return {suite: of["sha256"] for suite, of in self.files.items()}


def read_people(config: TransferConfig) -> TransferData:
    """Read the files of the suites and choose people, sessions and questions.

    Raises:
        DeltaMemError: If a file is missing or cannot be used, or lacks whom the configuration names.
    """
    people: list[TransferPerson] = []
    files: dict[str, dict[str, str]] = {}
    for suite in dict.fromkeys(config.suites):
        path = _path(suite, config)
        people += _PEOPLE[suite](path, config)
        files[suite] = {"file": path.name, "sha256": file_sha256(path)}
    return TransferData(tuple(people), files)


def _path(suite: Suite, config: TransferConfig) -> Path:
    if config.data is not None and not config.data.is_dir():
        if len(set(config.suites)) > 1:
            raise DeltaMemError(f"data={config.data} is not a folder; name a single suite with it, suites=[{suite}]")
        return config.data
    if suite == "chat":
        return CHAT
    folders = data_folders() if config.data is None else [config.data]
    found = (path for dataset in _FILES[suite] if (path := find(dataset, folders)) is not None)
    if (first := next(found, None)) is None:
        raise DeltaMemError(missing(_FILES[suite][0]))
    return first


def _chat(path: Path, config: TransferConfig) -> Iterator[TransferPerson]:
    windows = {window.id: window for window in load_windows(path)}
    for name in chosen_groups(list(windows), config.windows, "windows", config.seed):
        yield _owner(windows[name])


def _owner(window: Window) -> TransferPerson:
    dialogue = window.dialogue
    session = TransferSession(dialogue, tuple(window.points), tuple(window.foreign))
    finder = EvidenceFinder.of([dialogue], [window.owner, window.other])
    return TransferPerson("chat", StoreKey(window.id, window.owner), (session,), (), finder)


def _locomo(path: Path, config: TransferConfig) -> Iterator[TransferPerson]:
    conversations = {one.id: one for one in load_locomo(path)}
    with reading(path):
        noted = {one["sample_id"]: one.get("observation") for one in json.loads(read_text(path))}
    for name in chosen_groups(list(conversations), config.conversations, "conversations", config.seed):
        yield _first_speaker(conversations[name], noted[name], config.sessions)


def _first_speaker(conversation: Conversation, noted: object, sessions: int | None) -> TransferPerson:
    owner, other = conversation.speakers
    stores = dialogues(conversation, per_speaker=True, captions="none")
    key, read = next((key, of[:sessions]) for key, of in stores.items() if key.owner == owner)
    gold = tuple(
        TransferSession(one, _observations(noted, one.id, owner), _observations(noted, one.id, other)) for one in read
    )
    home = {turn.id: one.id for one in read for turn in one.turns}
    questions = tuple(
        TransferQuestion(
            f"{conversation.id}/{question.index}",
            question.text,
            tuple((turn,) for turn in question.evidence),
            max((home[turn] for turn in question.evidence), key=[one.id for one in read].index),
        )
        for question in conversation.questions
        if question.category != ADVERSARIAL_NUMBER and question.evidence and home.keys() >= set(question.evidence)
        if _names(question.text, owner) and not _names(question.text, other)
    )
    return TransferPerson(
        "locomo",
        StoreKey(key.id, key.owner),  # the session at once, for systems that take messages too
        gold,
        questions,
        EvidenceFinder.of(read, conversation.speakers),
    )


def _observations(noted: object, session: str, speaker: str) -> tuple[str, ...]:
    """What the file notes of a speaker in a session; each comes with ids of turns, in several shapes, or alone."""
    of_session = noted.get(f"{session}_observation") if isinstance(noted, dict) else None
    listed = of_session.get(speaker) if isinstance(of_session, dict) else None
    texts = [one[0] if isinstance(one, list) and one else one for one in listed] if isinstance(listed, list) else []
    return tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())


def _names(text: str, person: str) -> bool:
    return person.split()[0].casefold() in map(str.casefold, words(text))


def _halumem(path: Path, config: TransferConfig) -> Iterator[TransferPerson]:
    users = {user.id: user for user in load_halumem(path).users}
    for name in chosen_groups(list(users), config.users, "users", config.seed):
        yield _user(replace(users[name], sessions=users[name].sessions[: config.sessions]))


def _user(user: User) -> TransferPerson:
    linked = LinkedPoints(user)
    sessions = []
    questions = []
    for session in user.sessions:
        gold = [point for point in session.points if point.record.source != "interference"]
        sessions.append(
            TransferSession(
                session.dialogue,
                tuple(point.record.text for point in gold),
                tuple(point.record.text for point in session.points if point.record.source == "interference"),
                tuple(PointUpdate(one.record.key, one.record.text, one.originals) for one in gold if one.searched),
            )
        )
        for asked in session.questions:
            evidence = tuple(turns for text in asked.evidence if (turns := linked.turns(text, session.number)))
            if evidence:
                last = max((turn.partition(":")[0] for turns in evidence for turn in turns), key=lambda id: int(id[1:]))
                questions.append(TransferQuestion(asked.key, asked.question, evidence, last))
    return TransferPerson("halumem", StoreKey(user.id, user.name), tuple(sessions), tuple(questions), linked.finder)


_PEOPLE: Mapping[Suite, Callable[[Path, TransferConfig], Iterator[TransferPerson]]] = {
    "chat": _chat,
    "locomo": _locomo,
    "halumem": _halumem,
}

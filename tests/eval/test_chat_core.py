"""The chat core of ``python -m eval.transfer``: its file, its loader, and runs on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import Notebook, NotebookStore, without_versions
from halumem_cases import StemEmbedder
from rich.console import Console

from deltamem.config import composed, validated
from deltamem.embedding import CachedEmbedder
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, run_tasks
from eval.systems.base import DialogueSession, Ingested, StoreKey
from eval.transfer import __main__ as command
from eval.transfer import report
from eval.transfer.chat import CHAT, Window, load_windows
from eval.transfer.data import TransferConfig, read_people

CONTACT = re.compile(r"@|https?:|\bwww\.|\.(?:com|net|org|edu)\b|\d{3}[-. ]\d{3,4}|\b\d{5,}\b|#\w")
SCREENED = re.compile(
    r"\b(?:instagram|facebook|snapchat|twitter|e-?mail|username|god|jesus|church|mormon|bible|pray(?:er)?|"
    r"trump|obama|republicans?|democrats?|abortion|sex|porn|gay|cancer|depress(?:ed|ion)|suicid\w+|"
    r"fuck\w*|shit\w*|bitch\w*|idiots?|stupid|my name|your name)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def windows() -> list[Window]:
    return load_windows()


def plain(text: str) -> str:
    """A text by its words alone."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def test_the_mix_is_the_one_that_the_readme_gives(windows: list[Window]) -> None:
    text = CHAT.with_name("README.md").read_text(encoding="utf-8")
    points = Counter(len(window.points) for window in windows)
    listed = ", ".join(str(points[number]) for number in range(6))
    assert f"| 440; {listed} |" in text and points.total() == len(windows) == 221
    assert sum(len(window.points) for window in windows) == 440
    foreign = [len(window.foreign) for window in windows]
    assert f"| {sum(foreign)}; {sum(map(bool, foreign))} |" in text
    assert f"| {sum(window.turns[0].startswith(f'{window.owner}: ') for window in windows)} |" in text
    assert len({window.chat for window in windows}) == len(windows)
    assert CHAT.stat().st_size < 250_000


def test_the_notice_that_the_licence_asks_for_is_beside_the_text() -> None:
    text = " ".join(CHAT.with_name("README.md").read_text(encoding="utf-8").replace(">", " ").split())
    assert "Copyright (c) 2019 Perception, Control and Cognition Lab" in text
    assert "The above copyright notice and this permission notice shall be included in all copies" in text


def test_windows_are_messages_of_two_people_in_turn(windows: list[Window]) -> None:
    for window in windows:
        roles = [turn.role for turn in window.dialogue.turns]
        assert 6 <= len(roles) <= 16 and all(role != following for role, following in pairwise(roles)), window.id
        assert window.time.tzinfo is None and window.time.year == 2018, window.id


def test_labels_are_sentences_about_the_right_speaker_in_words_of_their_own(windows: list[Window]) -> None:
    for window in windows:
        turns = [plain(turn.text) for turn in window.dialogue.turns]
        for name, other, labels in ((window.owner, "", window.points), (window.other, window.owner, window.foreign)):
            assert len(set(labels)) == len(labels), window.id
            for label in labels:
                assert label == label.strip() and label[0].isupper() and label.endswith("."), label
                assert re.search(rf"\b{name}\b", label) and not (other and label.startswith(f"{other} ")), label
                about = plain(label).removeprefix(plain(name)).strip()
                assert about not in turns, label
                assert len(about.split()) < 6 or not any(about in turn for turn in turns), label


def test_nothing_that_was_screened_out_is_in_the_text(windows: list[Window]) -> None:
    for window in windows:
        said = " ".join(turn.text for turn in window.dialogue.turns)
        assert not (found := CONTACT.search(said) or SCREENED.search(said)), (window.id, found)
        assert not re.search(rf"\b(?:{window.owner}|{window.other})\b", said, re.IGNORECASE), window.id  # names are invented


def test_a_window_is_a_person_with_one_session_and_no_questions(windows: list[Window]) -> None:
    config = validated(composed("transfer", ["suites=[chat]"]), TransferConfig)
    data = read_people(config)
    assert [person.store.id for person in data.people] == [window.id for window in windows]
    person, window = data.people[0], windows[0]
    (session,) = person.sessions
    assert (person.suite, person.store.owner, person.questions) == ("chat", window.owner, ())
    assert (session.points, session.foreign, session.updates) == (tuple(window.points), tuple(window.foreign), ())
    assert [turn.spoken for turn in session.dialogue.turns] == window.turns
    assert {turn.speaker for turn in session.dialogue.turns if turn.role == "user"} == {window.owner}
    some = validated(composed("transfer", ["suites=[chat]", "windows=3"]), TransferConfig)
    assert len(read_people(some).people) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"turns": ["Ana: Hi", "Cy: Hello"]}, "begins with neither speaker"),
        ({"other": "Ana"}, "the same name"),
        ({"points": [""]}, "points.0"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_a_line_that_is_no_window_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    one = {"id": "w1", "chat": "c", "time": "2018-05-01T10:00:00", "owner": "Ana", "other": "Bo"}
    whole = one | {"turns": ["Ana: Hi", "Bo: Hello"], "points": [], "foreign": []}
    file = tmp_path / "chat.jsonl"
    file.write_text(f"{json.dumps(whole)}\n{json.dumps(whole | {'id': 'w2'} | change)}\n")
    with pytest.raises(DeltaMemError, match=rf"line 2: .*{said}"):
        load_windows(file)
    file.write_text(f"{json.dumps(whole)}\n" * 2)
    with pytest.raises(DeltaMemError, match="w1 occurs twice"):
        load_windows(file)
    file.write_text("")
    with pytest.raises(DeltaMemError, match="no windows"):
        load_windows(file)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The command's work on a dozen windows with an embedder without weights."""
    monkeypatch.setattr(command, "make_embedder", lambda settings: CachedEmbedder(StemEmbedder()))
    without_versions(monkeypatch)
    monkeypatch.setattr(report, "versions", dict)

    def evaluate(*overrides: str) -> dict[str, Any]:
        given = ["suites=[chat]", "windows=12", "resamples=20", f"out={tmp_path / 'out'}", *overrides]
        config = validated(composed("transfer", given), TransferConfig)
        return run_tasks(lambda: command.evaluate(config, Console(quiet=True)))

    return evaluate


@pytest.mark.parametrize("system", ["copy_all", "naive_rag"])
def test_a_run_counts_every_window(run: Callable[..., dict[str, Any]], system: str) -> None:
    summary = run(f"system={system}")
    of = summary["suites"]["chat"]
    assert (of["sessions"]["read"], of["sessions"]["failed"], len(of["people"])) == (12, 0, 12)
    scores = of["scores"]
    assert scores["copy_all/f1"]["groups"] == 12 and summary["provenance"]["bootstrap"]["by"] == {"chat": "person"}
    assert ("system/f1" in scores) == (system == "copy_all")
    if system == "copy_all":
        assert scores["system/found"] == scores["copy_all/found"] == scores["first_tokens/found"]
        assert scores["system/by_chance"]["count"] == 12  # points of another window: there is no other session
        idle = sum(not window.points for window in load_windows() if window.id in of["people"])
        assert (scores["idle/silent"]["estimate"], scores["idle/silent"]["count"]) == (0.0, idle) and idle > 0
    assert not any("single person" in warning for warning in summary["warnings"])


class SilentStore(NotebookStore):
    async def ingest(self, session: DialogueSession) -> Ingested:
        await super().ingest(session)
        return Ingested(())


class Silent(Notebook):
    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[NotebookStore]:
        yield SilentStore(self, key.id)


def test_silence_is_right_where_there_is_no_point_but_a_failure_is_none(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = [window.id for window in load_windows() if not window.points][:2]
    monkeypatch.setattr(command, "make_system", lambda *arguments: Silent(break_ingest={f"{one}/{one}"}))
    scores = run(f"windows=[{one},{two},chat-001]")["suites"]["chat"]["scores"]
    assert (scores["idle/silent"]["estimate"], scores["idle/silent"]["count"]) == (0.5, 2)
    assert scores["system/found"]["estimate"] == 0.0


def test_a_bag_of_words_learns_from_the_training_split_alone(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    development = CHAT.parents[1] / "development" / "sessions.jsonl"
    with pytest.raises(DeltaMemError, match="no sessions to train on"):
        run("system=copy_all", f"bag_of_words={development}")
    train = tmp_path / "train.jsonl"
    text = development.read_text(encoding="utf-8").replace('"split":"heldout"', '"split":"train"')
    train.write_text(text, encoding="utf-8")
    summary = run("system=copy_all", f"bag_of_words={train}")
    scores = summary["suites"]["chat"]["scores"]
    assert scores["bag_k/found"] == scores["copy_all/found"]  # as many as there are
    assert summary["provenance"]["config"]["bag_of_words"] == "train.jsonl"
    assert summary["provenance"]["bag_of_words_sha256"] == file_sha256(train)

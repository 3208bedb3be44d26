"""Conversations that are kept while they go on: each turn once, whatever part of the history a request brings."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.journal.jobs import JobState
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn
from integrations.openai_proxy import buffer
from integrations.openai_proxy.buffer import Conversations

START = datetime(2026, 4, 5, 20, 1)

NOW = timedelta(0)


def turns(*texts: str) -> list[Turn]:
    """The person and the assistant in turns; ``a:`` before a text names the assistant."""
    return [Turn("assistant", text[2:]) if text.startswith("a:") else Turn("user", text) for text in texts]


def keep(owner: OwnerJournal, name: str | None, said: list[Turn], person: str) -> str:
    return owner.files.beside(Conversations).keep(owner, name, said, person)


def answer(owner: OwnerJournal, name: str, turn: Turn, person: str, since: int | None = None) -> None:
    owner.files.beside(Conversations).answer(owner, name, turn, person, since=since)


def kept(journal: Journal, owner: OwnerJournal) -> dict[str, list[str]]:
    """The sessions that the conversations become when they end now."""
    journal.beside(Conversations).end_idle(NOW)
    found = {}
    for job in owner.jobs(JobState.QUEUED):
        session = owner.job_session(job.id)
        assert session is not None
        found[session.id] = [("a:" if turn.role == "assistant" else "") + turn.content for turn in session.dialogue]
    return found


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        # The whole history each time, its end only, and the last turn only.
        ([["u1"], ["u1", "a:1", "u2"], ["u1", "a:1", "u2", "a:2", "u3"]], ["u1", "a:1", "u2", "a:2", "u3", "a:3"]),
        ([["u1"], ["u1", "a:1", "u2"], ["a:1", "u2", "a:2", "u3"]], ["u1", "a:1", "u2", "a:2", "u3", "a:3"]),
        ([["u1"], ["u2"], ["u3"]], ["u1", "a:1", "u2", "a:2", "u3", "a:3"]),
        # The same request again: the answer is made again.
        ([["u1"], ["u1"], ["u1", "a:2", "u2"]], ["u1", "a:2", "u2", "a:3"]),
        # A person who says the same again later.
        ([["u1"], ["u1", "a:1", "u2"], ["u1"]], ["u1", "a:1", "u2", "a:2", "u1", "a:3"]),
        # Another question in the middle of the history: nothing that was said is lost.
        ([["u1"], ["u1", "a:1", "u2"], ["u1", "a:1", "u3"]], ["u1", "a:1", "u2", "a:2", "u3", "a:3"]),
        # Text before a tool call, then the result and the answer.
        ([["u1", "a:Let me look."], ["u1", "a:Let me look.", "a:1", "u2"]], ["u1", "a:Let me look.", "a:1", "u2", "a:2"]),
    ],
)
def test_each_turn_is_kept_once(requests: list[list[str]], expected: list[str]) -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        for number, said in enumerate(requests, start=1):
            assert keep(owner, "s", turns(*said), "Ann") == "s"
            answer(owner, "s", Turn("assistant", str(number)), "Ann")
        assert kept(journal, owner) == {"s": expected}


@given(st.lists(st.tuples(st.sampled_from(["u", "v", "w"]), st.integers(0, 6), st.booleans()), max_size=8))
def test_a_client_that_sends_its_history_loses_and_repeats_nothing(
    steps: list[tuple[str, int, bool]],
) -> None:
    """Histories are cut at their beginning as clients cut them, and conversations end and go on in between."""
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        history: list[Turn] = []
        for number, (text, window, ended) in enumerate(steps):
            # Numbered: a window that holds nothing but one repeated turn cannot be told from a repetition.
            history.append(Turn("user", f"{text}{number}"))
            keep(owner, "s", history[-1 - window :], "Ann")
            history.append(Turn("assistant", text))
            answer(owner, "s", history[-1], "Ann")
            if ended:
                journal.beside(Conversations).end_idle(NOW)
        told = [text for session in kept(journal, owner).values() for text in session]
        assert told == [("a:" if turn.role == "assistant" else "") + turn.content for turn in history]


def test_a_conversation_that_goes_on_becomes_further_sessions_and_ids_of_others_are_left_alone() -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        owner.enqueue(Session("ann", "Ann", START, (Turn("user", "Hello"),), "s/2"))
        for texts in (["u1"], ["u1", "u2"], ["u1", "u2", "u3"]):
            keep(owner, "s", turns(*texts), "Ann")
            journal.beside(Conversations).end_idle(NOW)
            assert journal.beside(Conversations).end_idle(NOW) == []
        assert kept(journal, owner) == {"s/2": ["Hello"], "s": ["u1"], "s/3": ["u2"], "s/4": ["u3"]}
        assert journal.beside(Conversations).end_idle(timedelta(hours=1)) == []


def test_an_answer_alone_waits_for_the_person() -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        keep(owner, "s", turns("u1"), "Ann")
        journal.beside(Conversations).end_idle(NOW)
        answer(owner, "s", Turn("assistant", "1"), "Ann")
        assert journal.beside(Conversations).end_idle(NOW) == []
        keep(owner, "s", turns("u1", "a:1", "u2"), "Ann")
        assert kept(journal, owner) == {"s": ["u1"], "s/2": ["a:1", "u2"]}


def test_names_by_the_first_turn_differ_between_owners() -> None:
    with Journal.open(None) as journal:
        ann, bob = journal.owner("ann"), journal.owner("bob")
        name = keep(ann, None, turns("Hello", "a:1", "u2"), "Ann")
        assert keep(ann, None, turns("Hello", "a:1", "u2", "a:2", "u3"), "Ann") == name
        assert keep(bob, None, turns("Hello"), "Bob") != name, "nobody can compute it from what was said"


def test_forgetting_empties_what_waits_and_a_history_brings_nothing_back() -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        memory = Memory("m1", "Ann's word is xyzzy.", START)
        owner.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, memory)], actor="test")
        keep(owner, "s", turns("Note: ann's word  is XYZZY.", "a:Noted", "u2"), "Ann")
        owner.forget("m1")
        keep(owner, "s", turns("Note: ann's word  is XYZZY.", "a:Noted", "u2", "a:2", "u3"), "Ann")
        assert kept(journal, owner) == {"s": ["", "a:Noted", "u2", "a:2", "u3"]}
        assert journal.owners() == ["ann"]
        journal.erase_owner("ann")
        assert journal.beside(Conversations).end_idle(NOW) == [] and journal.owners() == []


@given(st.text("ab", max_size=12), st.text("ab", max_size=8))
def test_the_overlap_is_the_last_of_the_longest(known: str, said: str) -> None:
    lengths = [
        next((n for n in range(len(said), 0, -1) if known[place:].startswith(said[:n])), 0) for place in range(len(known))
    ]
    longest = max(lengths, default=0)
    place = max(place for place, length in enumerate([*lengths, 0]) if length == longest) if longest else len(known)
    assert buffer._overlap(known, said) == (place, longest)


def test_thousands_of_equal_turns_hold_up_nobody() -> None:
    """Compared place by place, this takes many minutes, in which nobody can write."""
    with Journal.open(None) as journal:
        owner, said = journal.owner("ann"), [Turn("user", "a")] * 100_000
        for _ in range(2):
            keep(owner, "s", said, "Ann")
        assert len(kept(journal, owner)["s"]) == 100_000


def test_an_answer_that_may_repeat_what_was_forgotten_meanwhile_is_kept_empty() -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        owner.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, Memory("m1", "Ann has a dog.", START))], actor="x")
        keep(owner, "s", turns("u1"), "Ann")
        answer(owner, "s", Turn("assistant", "1"), "Ann", since=1)
        keep(owner, "s", turns("u1", "a:1", "u2"), "Ann")
        owner.forget("m1")
        answer(owner, "s", Turn("assistant", "You have a dog."), "Ann", since=1)
        keep(owner, "s", turns("u1", "a:1", "u2", "a:You have a dog.", "u3"), "Ann")
        answer(owner, "s", Turn("assistant", "3"), "Ann", since=2)
        assert kept(journal, owner) == {"s": ["u1", "a:1", "u2", "a:", "u3", "a:3"]}


def test_a_conversation_ends_though_the_clock_was_set_back() -> None:
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        keep(owner, "s", turns("u1"), "Ann")
        with journal.beside(Conversations).database.write() as connection:
            connection.execute("UPDATE conversations SET touched_at = touched_at + 365 * 86400 * 1000000")
        assert kept(journal, owner) == {"s": ["u1"]}


def test_a_process_that_ends_while_it_makes_sessions_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the job and emptying the conversation; then the person goes on, and forgets something."""
    said = ["u1", "a:Ann's word is xyzzy.", "u2"]
    with Journal.open(tmp_path / "j") as journal, monkeypatch.context() as patch:
        owner = journal.owner("ann")
        owner.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, Memory("m1", "xyzzy", START))], actor="test")
        owner.enqueue(Session("ann", "Ann", START, (Turn("user", "Hello"),), "s"))
        keep(owner, "s", turns(*said), "Ann")
        patch.setattr(Conversations, "_empty", lambda *_: None)
        assert [job.session_id for job in journal.beside(Conversations).end_idle(NOW)] == ["s/2"]
    with Journal.open(tmp_path / "j", read_only=True) as journal:
        assert journal.integrity_check() == [] and journal.owners() == ["ann"]
    with Journal.open(tmp_path / "j") as journal:
        owner = journal.owner("ann")
        owner.forget("m1")
        keep(owner, "s", turns(*said, "a:2", "u3"), "Ann")
        assert kept(journal, owner) == {"s": ["Hello"], "s/2": ["u1", "a:", "u2"], "s/3": ["a:2", "u3"]}
    assert b"xyzzy" not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())

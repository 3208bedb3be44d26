"""Conversations that are kept while they go on: each turn once, whatever part of the history a request brings."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxy_cases import kept

from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn
from integrations.openai_proxy.buffer import AnswerPlace, Conversations

START = datetime(2026, 4, 5, 20, 1)
NOW = timedelta(0)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open(None) as journal:
        yield journal


@pytest.fixture
def owner(journal: Journal) -> OwnerJournal:
    return journal.owner("ann")


def turns(*texts: str) -> list[Turn]:
    """The person and the assistant in turns; ``a:`` before a text names the assistant."""
    return [Turn("assistant", text[2:]) if text.startswith("a:") else Turn("user", text) for text in texts]


def keep(owner: OwnerJournal, *texts: str, name: str | None = "s", tools: bool = False) -> AnswerPlace:
    place = owner.files.beside(Conversations).keep(owner, name, turns(*texts), "Ann", START, tools=tools)
    assert place is not None
    return place


def answer(owner: OwnerJournal, text: str, place: AnswerPlace, since: int | None = None) -> None:
    owner.files.beside(Conversations).answer(owner, place, text, since=since)


def exchange(owner: OwnerJournal, text: str, *texts: str, name: str | None = "s", tools: bool = False) -> AnswerPlace:
    """A request and its whole answer."""
    place = keep(owner, *texts, name=name, tools=tools)
    answer(owner, text, place)
    return place


def end(journal: Journal, idle: timedelta = NOW) -> list[str]:
    return [job.session_id for job in journal.beside(Conversations).end_idle(idle)]


def add(owner: OwnerJournal, text: str) -> None:
    owner.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, Memory("m1", text, START))], actor="test")


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
        # Going back to an earlier question, and on from there; then to the branch that was left.
        (
            [
                *(["u1"], ["u1", "a:1", "u2"], ["u1", "a:1", "u2", "a:2", "u3"], ["u1", "a:1", "u2"]),
                *(["u1", "a:1", "u2", "a:4", "u4"], ["u1", "a:1", "u2", "a:2", "u3", "a:3", "u5"]),
            ],
            ["u1", "a:1", "u2", "a:2", "u3", "a:3", "a:4", "u4", "a:5", "u5", "a:6"],
        ),
        # Answers whose beginning the client writes, the same each time.
        (
            [["u1", "a:{"], ["u1", "a:{1", "u2", "a:{"], ["u1", "a:(cut)", "u3", "a:{"], ["u4", "a:{"]],
            ["u1", "a:{", "a:1", "u2", "a:{", "a:2", "u3", "a:{", "a:3", "u4", "a:{", "a:4"],
        ),
        # Nothing but an image: its answer follows.
        ([["u1"], ["u1", "a:1", ""], ["u1", "a:1", "", "a:2", "u2"]], ["u1", "a:1", "a:2", "u2", "a:3"]),
        # Text before a tool call, then the result and the answer.
        ([["u1", "a:Let me look."], ["u1", "a:Let me look.", "a:1", "u2"]], ["u1", "a:Let me look.", "a:1", "u2", "a:2"]),
    ],
)
def test_each_turn_is_kept_once(
    journal: Journal, owner: OwnerJournal, requests: list[list[str]], expected: list[str]
) -> None:
    for number, said in enumerate(requests, start=1):
        assert exchange(owner, str(number), *said).name == "s"
    assert kept(journal, owner) == {"s": expected}


@given(st.lists(st.tuples(st.sampled_from(["u", "v", "w"]), st.integers(0, 6), st.booleans()), max_size=8))
def test_a_client_that_sends_its_history_loses_and_repeats_nothing(steps: list[tuple[str, int, bool]]) -> None:
    """Histories are cut at their beginning as clients cut them, and conversations end and go on in between."""
    with Journal.open(None) as journal:
        owner = journal.owner("ann")
        history: list[str] = []
        for number, (text, window, ended) in enumerate(steps):
            # Numbered: a window that holds nothing but one repeated turn cannot be told from a repetition.
            history.append(f"{text}{number}")
            exchange(owner, text, *history[-1 - window :])
            history.append(f"a:{text}")
            if ended:
                end(journal)
        assert [text for session in kept(journal, owner).values() for text in session] == history


def test_a_conversation_that_goes_on_becomes_further_sessions_and_ids_of_others_are_left_alone(
    journal: Journal, owner: OwnerJournal
) -> None:
    owner.enqueue(Session("ann", "Ann", START, (Turn("user", "Hello"),), "s/2"))
    for texts in (["u1"], ["u1", "u2"], ["u1", "u2", "u3"]):
        keep(owner, *texts)
        end(journal)
        assert end(journal) == []
    assert kept(journal, owner) == {"s/2": ["Hello"], "s": ["u1"], "s/3": ["u2"], "s/4": ["u3"]}
    assert end(journal, timedelta(hours=1)) == []


def test_an_answer_alone_waits_for_the_person(journal: Journal, owner: OwnerJournal) -> None:
    place = keep(owner, "u1")
    end(journal)
    answer(owner, "1", place)
    assert end(journal) == []
    keep(owner, "u1", "a:1", "u2")
    assert kept(journal, owner) == {"s": ["u1"], "s/2": ["a:1", "u2"]}


def test_a_client_need_not_wait_for_the_answer(journal: Journal, owner: OwnerJournal) -> None:
    first = keep(owner, "u1")
    second = keep(owner, "u1", "a:half of", "u2")
    answer(owner, "2", second)
    answer(owner, "1", first)
    assert kept(journal, owner) == {"s": ["u1", "a:1", "u2", "a:2"]}


def test_an_answer_that_comes_after_its_session_is_known_and_not_kept(journal: Journal, owner: OwnerJournal) -> None:
    first = keep(owner, "u1")
    keep(owner, "u1", "u2")
    assert end(journal) == ["s"]
    answer(owner, "too late", first)
    with journal.beside(Conversations).database.read() as connection:
        key, content = connection.execute("SELECT key, content FROM turns WHERE place = ?", (first.number,)).fetchone()
    assert key and content is None
    keep(owner, "u1", "a:too late", "u2", "u3")
    assert kept(journal, owner) == {"s": ["u1", "u2"], "s/2": ["u3"]}


def test_calls_of_tools_that_say_nothing_keep_their_places(journal: Journal, owner: OwnerJournal) -> None:
    keep(owner, "u1")
    exchange(owner, "Let me look.", "u1", "a:")
    keep(owner, "u1", "a:", "a:Let me look.")
    for made in ("wrong", "It is sunny."):
        exchange(owner, made, "u1", "a:", "a:Let me look.", "a:")
    exchange(owner, "2", "u1", "a:", "a:Let me look.", "a:", "a:It is sunny.", "u2")
    assert kept(journal, owner) == {"s": ["u1", "a:Let me look.", "a:It is sunny.", "u2", "a:2"]}


@pytest.mark.parametrize("before", [(), ("u1", "a:1"), ("u1", "a:(cut)"), ("(old)", "a:(cut)")])
@pytest.mark.parametrize("words", ["", "Let me look."])
@pytest.mark.parametrize("ended", [False, True])
def test_a_question_into_which_the_client_puts_the_time_is_kept_once_however_many_tools_it_needs(
    journal: Journal, owner: OwnerJournal, before: tuple[str, ...], words: str, ended: bool
) -> None:
    if before:
        exchange(owner, "1", "u1")
    for number in range(130):
        exchange(owner, words, *before, f"Do it. <now>{number}</now>", *[f"a:{words}"] * number, tools=number > 0)
        if ended:
            end(journal)
    exchange(owner, "Done.", *before, "Do it. <now>x</now>", *[f"a:{words}"] * 130, tools=True)
    exchange(owner, "2", *before, "Do it.", *[f"a:{words}"] * 130, "a:Done.", "u2")
    looked = [f"a:{words}"] * 130 if words else []
    expected = [*(("u1", "a:1") if before else ()), "Do it. <now>0</now>", *looked, "a:Done.", "u2", "a:2"]
    assert [text for dialogue in kept(journal, owner).values() for text in dialogue] == expected


def test_an_image_or_a_tool_after_a_session_brings_nothing_back(journal: Journal, owner: OwnerJournal) -> None:
    exchange(owner, "1", "u1")
    end(journal)
    exchange(owner, "2", "u1", "a:1", "")
    exchange(owner, "3", "u1", "a:", "a:2")
    assert end(journal) == []
    exchange(owner, "4", "u1", "a:The answer is")
    assert kept(journal, owner) == {"s": ["u1", "a:1"], "s/2": ["a:2", "a:3", "u1", "a:The answer is", "a:4"]}


ASKED, ANSWERED = "My city\nis *Boston*." + " Far away." * 50, "I see:\n\n- **it is**" + " far." * 200


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        (f"### Task: tags\n<chat_history>\nUSER: {ASKED}\nASSISTANT: {ANSWERED}\nUSER: And?\n</chat_history>", False),
        (f"Conversation:\nUser: {ASKED}\nAI: {ANSWERED[:500]}...\nA title of five words:", False),
        (json.dumps([{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]), False),
        (f"USER: Hi\nASSISTANT: {ANSWERED}", True),
        (f"USER: {ASKED}\nASSISTANT: No.", True),
        ("Hi AI. Hello! My name is Ann.", True),
        ("USER: Hi\nASSISTANT: Hello!", False),
        ("USER: Hi\nASSISTANT: No.", True),
    ],
)
def test_a_transcript_of_what_is_kept_is_not_what_the_person_says(
    journal: Journal, owner: OwnerJournal, text: str, is_kept: bool
) -> None:
    exchange(owner, ANSWERED, ASKED, name=None)
    exchange(owner, "Hello!", "Hi", name=None)
    store = owner.files.beside(Conversations)
    assert (store.keep(owner, None, turns(text), "Ann", START) is not None) is is_kept
    assert store.keep(journal.owner("bob"), None, turns(text), "Bob", START) is not None


@pytest.mark.parametrize("name", ["s", None])
def test_a_question_alone_is_made_again_until_it_has_been_read(
    journal: Journal, owner: OwnerJournal, name: str | None
) -> None:
    for made in ("1", "2"):
        exchange(owner, made, "I feel sick today.", name=name)
    assert list(kept(journal, owner).values()) == [["I feel sick today.", "a:2"]]
    exchange(owner, "3", "I feel sick today.", name=name)
    assert sorted(kept(journal, owner).values()) == [["I feel sick today.", "a:2"], ["I feel sick today.", "a:3"]]


def test_conversations_without_a_name_are_found_again_by_their_owner_only(journal: Journal, owner: OwnerJournal) -> None:
    name = keep(owner, "Hello", "a:1", "u2", name=None).name
    assert keep(owner, "Hello", "a:1", "u2", "a:2", "u3", name=None).name == name
    assert keep(journal.owner("bob"), "Hello", name=None).name != name


def test_forgetting_empties_what_waits_and_a_history_brings_nothing_back(journal: Journal, owner: OwnerJournal) -> None:
    add(owner, "Ann's word is xyzzy.")
    exchange(owner, "2", "Note: ann's word  is XYZZY.", "a:Noted", "u2")
    owner.forget("m1")
    keep(owner, "Note: ann's word  is XYZZY.", "a:Noted", "u2", "a:2", "u3")
    assert kept(journal, owner) == {"s": ["", "a:Noted", "u2", "a:2", "u3"]}
    assert journal.owners() == ["ann"]
    journal.erase_owner("ann")
    assert end(journal) == [] and journal.owners() == []


def test_thousands_of_equal_turns_hold_up_nobody(journal: Journal, owner: OwnerJournal) -> None:
    """Compared place by place, this takes minutes, in which nobody can write."""
    for _ in range(2):
        keep(owner, *["a"] * 10_000)
    assert len(kept(journal, owner)["s"]) == 10_000


def test_an_answer_that_may_repeat_what_was_forgotten_meanwhile_is_kept_empty(journal: Journal, owner: OwnerJournal) -> None:
    add(owner, "Ann has a dog.")
    exchange(owner, "1", "u1")
    place = keep(owner, "u1", "a:1", "u2")
    owner.forget("m1")
    answer(owner, "You have a dog.", place, since=1)
    answer(owner, "3", keep(owner, "u1", "a:1", "u2", "a:You have a dog.", "u3"), since=2)
    assert kept(journal, owner) == {"s": ["u1", "a:1", "u2", "a:", "u3", "a:3"]}


def test_a_conversation_ends_though_the_clock_was_set_back(journal: Journal, owner: OwnerJournal) -> None:
    keep(owner, "u1")
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
        add(owner, "xyzzy")
        owner.enqueue(Session("ann", "Ann", START, (Turn("user", "Hello"),), "s"))
        keep(owner, *said)
        patch.setattr(Conversations, "_take", lambda *_: None)
        assert end(journal) == ["s/2"]
    with Journal.open(tmp_path / "j", read_only=True) as journal:
        assert journal.integrity_check() == [] and journal.owners() == ["ann"]
    with Journal.open(tmp_path / "j") as journal:
        owner = journal.owner("ann")
        owner.forget("m1")
        keep(owner, *said, "a:2", "u3")
        assert kept(journal, owner) == {"s": ["Hello"], "s/2": ["u1", "a:", "u2"], "s/3": ["u3"]}
    assert b"xyzzy" not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())

"""Clients that change what they send back: six exchanges are six exchanges all the same."""

import html
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxy_cases import kept

from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.sessions import Turn
from integrations.openai_proxy import history
from integrations.openai_proxy.buffer import Conversations
from integrations.openai_proxy.history import Kept, key_of

Change = Callable[[list[Turn]], list[Turn]]


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.open(None) as journal:
        yield journal


def of_answers(change: Callable[[str], str]) -> Change:
    return lambda turns: [turn if turn.role == "user" else Turn("assistant", change(turn.content)) for turn in turns]


def of_old(change: Callable[[str], str]) -> Change:
    """Of all turns but the question."""
    return lambda turns: [*(Turn(turn.role, change(turn.content)) for turn in turns[:-1]), turns[-1]]


def of_first(change: Callable[[str], str]) -> Change:
    return lambda turns: [Turn(turns[0].role, change(turns[0].content)), *turns[1:]] if len(turns) > 1 else turns


def summary(role: str, left: int) -> Change:
    """A summary in place of old turns."""
    told = Turn(role, "Summary: the two have talked about many things.")  # type: ignore[arg-type]
    return lambda turns: [told, *turns[-left:]] if len(turns) > left else turns


CHANGES: dict[str, Change] = {
    "nothing": lambda turns: turns,
    "trimmed": of_old(str.strip),
    "line ends": of_old(lambda text: text.replace("\n", "\r\n") + "\r\n"),
    "white space": of_old(lambda text: "\u00a0" + text.replace(" ", "  ").replace("\n", " ")),
    "one line": of_old(lambda text: " ".join(text.split())),
    "escaped": of_old(html.escape),
    "without thoughts": of_answers(lambda text: text.rpartition("</think>")[2]),
    "other thoughts": of_answers(lambda text: "<thinking>Hm.</thinking>" + text.rpartition("</think>")[2]),
    "without marks": of_answers(lambda text: text.replace("*", "").replace("#", "")),
    "cut": of_answers(lambda text: text[:30] + "…"),
    "shortened": of_answers(lambda text: text[:5] + " [...] " + text[-4:]),
    "replaced": of_answers(lambda text: "(answer)"),
    "emptied": of_answers(lambda text: ""),
    "split": lambda turns: [part for turn in turns for part in _split(turn)],
    "without answers": lambda turns: [turn for turn in turns if turn.role == "user"],
    "the last only": lambda turns: turns[-1:],
    "the last two": lambda turns: turns[-2:],
    "the last three": lambda turns: turns[-3:],
    "the last four": lambda turns: turns[-4:],
    "the first and the last": lambda turns: [*turns[:2], *turns[-3:]] if len(turns) > 5 else turns,
    "summary of the person": summary("user", 3),
    "summary of the assistant": summary("assistant", 3),
    "summary of all": summary("user", 1),
    "dated": lambda turns: [*(Turn(turn.role, f"[{n}:00] {turn.content}") for n, turn in enumerate(turns[:-1])), turns[-1]],
    "first edited": of_first(lambda text: f"Be brief. {text}"),
    "first replaced": of_first(lambda text: "(removed)"),
    "greeting": lambda turns: [Turn("assistant", "Hello! How can I help you?"), *turns] if len(turns) > 1 else turns,
}


def _split(turn: Turn) -> list[Turn]:
    if turn.role == "user" or "\n" not in turn.content:
        return [turn]
    return [Turn("assistant", line) for line in turn.content.split("\n")]


def question(conversation: int, number: int) -> str:
    return f"Question  {number} of {conversation}:\n is R&D <b>fun</b>? "


def reply(conversation: int, number: int) -> str:
    return (
        f"<think>\nHm, {number}?\n</think>\n\n**Answer** {number} of {conversation}: it's _fun_,\n# said {number} people.\n"
    )


def said(conversation: int, number: int) -> list[str]:
    return [question(conversation, number), "a:" + reply(conversation, number).rpartition("</think>")[2].strip()]


class Client:
    """Has conversations and changes what it sends back of them."""

    def __init__(self, owner: OwnerJournal, name: str | None, *changes: str) -> None:
        self.store, self.owner, self.name, self.changes = owner.files.beside(Conversations), owner, name, changes
        self.turns: list[Turn] = []

    def ask(self, text: str, answer: str, *, times: int = 1, shown: str | None = None) -> None:
        """Ask, several times if the answer does not please; `shown` is what is seen of an answer that breaks off."""
        self.turns.append(Turn("user", text))
        sent = self.turns
        for change in self.changes:
            sent = CHANGES[change](sent)
        for time in range(times):
            place = self.store.keep(self.owner, self.name, sent, "Ann", datetime(2026, 4, 5))
            assert place is not None
            if shown is None:
                self.store.answer(self.owner, place, answer if time == times - 1 else f"Wrong {time}")
        if shown != "":
            self.turns.append(Turn("assistant", answer if shown is None else shown))


PAIRS = list(combinations(CHANGES, 2))
WHOLE = [name for name in CHANGES if "last" not in name and "summary" not in name]
"""Changes that leave the person's turns where they are."""
UNKNOWN = {"cut", "shortened", "replaced", "emptied", "split", "without answers"}
"""Changes after which answers cannot be known."""


def expected(client: int) -> list[str]:
    return [text for number in range(6) for text in said(client, number)]


def converse(journal: Journal, names: Sequence[str | None], changes: Sequence[str]) -> dict[str, list[str]]:
    """Six exchanges in each of several conversations, side by side."""
    owner = journal.owner("ann")
    clients = [Client(owner, name, *changes) for name in names]
    for number in range(6):
        for conversation, client in enumerate(clients):
            client.ask(question(conversation, number), reply(conversation, number))
    return kept(journal, owner)


@pytest.mark.parametrize("changes", PAIRS, ids=" and ".join)
def test_six_exchanges_are_six_exchanges(journal: Journal, changes: tuple[str, str]) -> None:
    assert converse(journal, ["s", "t"], changes) == {"s": expected(0), "t": expected(1)}


@pytest.mark.parametrize("changes", PAIRS, ids=" and ".join)
def test_conversations_without_names_are_told_apart_by_what_was_said(journal: Journal, changes: tuple[str, str]) -> None:
    if {"the last only", "summary of all", "dated"}.intersection(changes):
        pytest.skip("nothing that was said before comes back")
    if (
        len({"the last two", "first edited", "first replaced"}.intersection(changes)) + bool(UNKNOWN.intersection(changes))
        > 1
    ):
        pytest.skip("the second request has nothing that can be known")
    if "split" in changes and any("last" in name or "summary" in name for name in changes):
        pytest.skip("the end of a split answer")
    assert sorted(converse(journal, [None, None], changes).values()) == [expected(0), expected(1)]


Step = tuple[str, int, str | None, bool]
STEPS = st.tuples(st.sampled_from(["yes", "no"]), st.integers(1, 3), st.sampled_from([None, "", "Answ"]), st.booleans())


@given(st.lists(st.sampled_from(list(CHANGES)), max_size=2), st.lists(STEPS, max_size=8))
def test_answers_that_are_made_again_or_break_off(changes: list[str], steps: list[Step]) -> None:
    """The person's turns are kept once, answers only if they are whole, whenever the conversation is read in between."""
    with Journal.open(None) as journal:
        client, all_said = Client(journal.owner("ann"), "s", *changes), []
        for number, (_, times, shown, ended) in enumerate(steps):
            client.ask(question(0, number), reply(0, number), times=times, shown=shown)
            all_said += said(0, number)[: 2 if shown is None else 1]
            if ended:
                kept(journal, client.owner)
        assert [text for dialogue in kept(journal, client.owner).values() for text in dialogue] == all_said


@given(st.sampled_from(WHOLE), st.lists(STEPS, max_size=8))
def test_what_a_person_says_twice_is_kept_twice(change: str, steps: list[Step]) -> None:
    with Journal.open(None) as journal:
        client = Client(journal.owner("ann"), "s", change)
        for text, times, _, _ in steps:
            client.ask(text, "OK, what else?", times=times)
        expected = [turn for text, *_ in steps for turn in (text, "a:OK, what else?")]
        assert kept(journal, client.owner).get("s", []) == expected


def test_empty_answers_do_not_meet_places_without_an_answer(journal: Journal) -> None:
    client = Client(journal.owner("ann"), "s", "emptied")
    client.ask("u1", "1")
    client.ask("u2", "2", times=2, shown="")
    assert kept(journal, client.owner) == {"s": ["u1", "a:1", "u2"]}


def test_equal_turns_in_long_runs(journal: Journal) -> None:
    client = Client(journal.owner("ann"), "s")
    for number in range(150):
        client.ask("yes", "OK", times=1 + number % 2)
    assert kept(journal, client.owner) == {"s": ["yes", "a:OK"] * 150}


def test_the_work_of_a_request_depends_on_what_is_new(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that are known by a key, and rows that are written, of a client that sends all that was said each time."""
    client, connection = Client(journal.owner("ann"), "s", "trimmed"), journal.beside(Conversations).database._connection
    keys: list[str] = []
    monkeypatch.setattr(history, "key_of", lambda salt, turn: keys.append(key_of(salt, turn)) or keys[-1])
    work = []
    for number in range(400):
        before = connection.total_changes
        client.ask(question(0, number), reply(0, number))
        work.append((len(keys), connection.total_changes - before))
        keys.clear()
    assert len(set(work[100:])) == 1 and work[-1][0] <= 4 and work[-1][1] <= 8, work[-1]


def test_what_a_client_said_elsewhere_is_kept_where_it_leads_on(journal: Journal) -> None:
    owner = journal.owner("ann")
    client = Client(owner, "s", "cut")
    client.ask("u1", "1")
    client.turns += [Turn(role, f"{role} {number}") for number in range(40) for role in ("user", "assistant")]  # type: ignore
    client.ask("u2", "2")
    elsewhere = [f"{mark}{role} {number}" for number in range(40) for mark, role in (("", "user"), ("a:", "assistant"))]
    assert [text.rstrip("…") for text in kept(journal, owner)["s"]] == ["u1", "a:1", *elsewhere, "u2", "a:2"]


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_the_most_turns_meet(sent: str, keys: str) -> None:
    """By trying all subsequences."""
    turns = [Kept(number, "user" if key < "c" else "assistant", key) for number, key in enumerate(keys)]
    asked = max((number for number, turn in enumerate(turns) if turn.role == "user"), default=-1)
    found = set()
    for size in range(1, 8):
        for ours in combinations(range(len(sent)), size):
            for theirs in combinations(range(len(keys)), size):
                equal = all(sent[one] == keys[other] for one, other in zip(ours, theirs, strict=True))
                if equal and (ours[-1] < len(sent) - 1 or theirs[-1] == asked):
                    found.add(history.Meeting(size, len(sent) - 1 - ours[-1], theirs[-1]))
    assert history._meeting(sent, turns, asked) == max(found, default=None)

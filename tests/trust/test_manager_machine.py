"""Random lives of a memory: after every step the bank, the journal and its replay say the same."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from episode_texts import WordEmbedder
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rule_model import RulePolicy
from trust_checks import ID, export_text, replay_journal

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add, Retract, Update
from deltamem.ingest import Outcome
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.sessions import Turn

START = datetime(2026, 4, 5, 20, 1)
T = TypeVar("T")
FACTS = st.lists(
    st.tuples(st.sampled_from(["city", "dog", "job", "car"]), st.sampled_from(["Boston", "Denver", "Rex", "red"])),
    min_size=0,
    max_size=3,
)


class Life(RuleBasedStateMachine):
    """One owner in memory; the expected facts are kept beside it in a plain dictionary for each journal position."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.memory = self.fresh()
        self.facts: dict[int, dict[str, str]] = {0: {}}
        self.given: dict[str, list[tuple[str, str]]] = {}
        self.forgotten: dict[str, int] = {}
        self.number = 0

    @staticmethod
    def fresh() -> MemoryManager:
        store = MemoryStore.in_memory(WordEmbedder())
        return MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))

    @property
    def head(self) -> int:
        return self.memory.owned.journal.head

    def give(self, session_id: str, facts: list[tuple[str, str]]) -> Outcome:
        turns = [Turn("user", "Hello."), *(Turn("user", f"My {subject} is {value}.") for subject, value in facts)]
        position = int(session_id[1:])
        before = self.facts[self.head]
        done = self.do(self.memory.ingest(self.memory.session(session_id, START + timedelta(hours=position), turns)))
        if done.outcome is Outcome.APPLIED:
            self.facts[self.head] = before | dict(facts)
        return done.outcome

    @rule(facts=FACTS)
    def ingest(self, facts: list[tuple[str, str]]) -> None:
        self.number += 1
        session_id = f"s{self.number}"
        self.given[session_id] = facts
        assert self.give(session_id, facts) is Outcome.APPLIED

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def ingest_again(self, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.given)))
        known = self.memory.owned.journal.session_position(session_id) is not None
        before = self.memory.state()
        outcome = self.give(session_id, self.given[session_id])
        assert outcome is (Outcome.KNOWN if known else Outcome.APPLIED)
        assert not known or self.memory.state() == before

    @precondition(lambda self: self.memory.state())
    @rule(data=st.data(), value=st.sampled_from(["Boston", "Denver", "green"]), retracted=st.booleans())
    def edit(self, data: st.DataObject, value: str, retracted: bool) -> None:
        memory_id = data.draw(st.sampled_from(sorted(self.memory.state())))
        subject = self.memory.state()[memory_id].text.split()[1]
        edit = (
            Retract(memory_id) if retracted else Update(memory_id, f"Ann's {subject} is {value}.", metadata={"said": value})
        )
        facts = {name: known for name, known in self.facts[self.head].items() if name != subject}
        entry = self.do(self.memory.write([edit], "bob"))
        assert entry.position == self.head and entry.actor == "bob"
        self.facts[self.head] = facts if retracted else facts | {subject: value}

    @rule(value=st.sampled_from(["tea", "rain"]))
    def write(self, value: str) -> None:
        if "thing" in self.facts[self.head]:
            return
        facts = self.facts[self.head]
        entry = self.do(self.memory.write([Add(f"Ann's thing is {value}.", START, {"said": value})], "bob"))
        assert [change.event for change in entry.changes] == ["ADD"]
        self.facts[self.head] = facts | {"thing": value}

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, self.head))
        self.do(self.memory.rollback(to))
        self.facts[self.head] = dict(self.facts[to])

    @precondition(lambda self: self.memory.state())
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        memory_id = data.draw(st.sampled_from(sorted(self.memory.state())))
        self.do(self.memory.forget(memory_id))
        # Gone from every point of the past, whatever its text was there.
        for position in self.facts:
            state = self.memory.state(position)
            told = {known.text.split()[1]: known.text.split()[-1].rstrip(".") for known in state.memories}
            assert told.items() <= self.facts[position].items()
            self.facts[position] = told
        self.facts[self.head] = {
            known.text.split()[1]: known.text.split()[-1].rstrip(".") for known in self.memory.state().memories
        }
        self.forgotten[memory_id] = self.head

    @rule()
    def move_to_another_store(self) -> None:
        written = export_text(self.memory.owned.journal)
        self.memory = self.fresh()
        self.do(self.memory.import_from(io.StringIO(written)))
        assert export_text(self.memory.owned.journal) == written

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "memory"):
            return
        state, journal = self.memory.state(), self.memory.owned.journal
        assert journal.verify() == []
        assert replay_journal(journal) == dict(state) == dict(journal.state()) == dict(self.memory.owned.bank.state)
        assert {known.text for known in state.memories} == {
            f"Ann's {subject} is {value}." for subject, value in self.facts[self.head].items()
        }
        assert all(ID.fullmatch(memory_id) for memory_id in state)
        assert not self.forgotten.keys() & state.keys()
        for hits in self.do(self.memory.search_many(["Ann's city is", "red Rex"], 10)):
            assert sorted(hit.memory.id for hit in hits) == sorted(state)
            assert all(state[hit.memory.id] == hit.memory for hit in hits)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


TestLife = Life.TestCase
# A life is long: fewer of them than the profile says.
TestLife.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=15, deadline=None)

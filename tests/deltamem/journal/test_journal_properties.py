"""The journal against a plain model: the list of the states after every position."""

import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deltamem.errors import DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.owner import SessionKnownError
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory
from deltamem.sessions import Session, Turn

OWNERS = ("ann", "bob")
DAY_ZERO = datetime(2026, 1, 1)


class Model:
    """One owner as dictionaries."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = [{}]
        self.parents: list[int] = [0]
        self.sessions: list[str | None] = [None]
        self.added: list[set[int]] = [set()]
        self.forgotten: set[int] = set()

    @property
    def head(self) -> int:
        return len(self.states) - 1

    def effective(self) -> set[int]:
        position, found = self.head, set()
        while position:
            found.add(position)
            position = self.parents[position]
        return found

    def applied(self) -> set[str]:
        return {name for position in self.effective() if (name := self.sessions[position]) is not None}

    def append(
        self, state: dict[str, str], parent: int, session: str | None = None, added: frozenset[int] = frozenset()
    ) -> None:
        self.states.append(state)
        self.parents.append(parent)
        self.sessions.append(session)
        self.added.append(set(added))

    def next_number(self) -> int:
        effective = {number for position in self.effective() for number in self.added[position]}
        return 1 + max(effective | self.forgotten, default=0)


class JournalMachine(RuleBasedStateMachine):
    @initialize(on_disk=st.booleans())
    def start(self, on_disk: bool) -> None:
        self.folder = Path(tempfile.mkdtemp()) if on_disk else None
        self.path = self.folder / "journal" if self.folder else None
        self.journal = Journal.open(self.path)
        self.models = {owner: Model() for owner in OWNERS}
        self.texts = 0

    def _session(self, number: int) -> Session:
        return Session("p", "P", DAY_ZERO + timedelta(days=number), (Turn("user", f"talk {number}"),), id=f"s{number}")

    @rule(owner=st.sampled_from(OWNERS), number=st.integers(1, 8), additions=st.integers(0, 3), data=st.data())
    def ingest(self, owner: str, number: int, additions: int, data: st.DataObject) -> None:
        journal, model = self.journal.owner(owner), self.models[owner]
        session = self._session(number)
        state, after = journal.state(), dict(model.states[-1])
        changes = []
        for memory_id in data.draw(st.sets(st.sampled_from(sorted(after))) if after else st.just(set()), label="updated"):
            self.texts += 1
            after[memory_id] = f"text {self.texts}."
            changes.append(
                Change(
                    ChangeEvent.UPDATE, memory_id, state[memory_id], Memory(memory_id, after[memory_id], session.time), (1,)
                )
            )
        first = journal.next_id_number()
        assert first == model.next_number()
        for new in range(first, first + additions):
            self.texts += 1
            after[f"m{new}"] = f"text {self.texts}."
            changes.append(Change(ChangeEvent.ADD, f"m{new}", None, Memory(f"m{new}", after[f"m{new}"], session.time)))
        if session.id in model.applied():
            with pytest.raises(SessionKnownError):
                journal.append(EntryKind.SESSION, changes, session=session)
            return
        journal.append(EntryKind.SESSION, changes, session=session, expected_head=model.head)
        model.append(after, model.head, session.id, frozenset(range(first, first + additions)))

    @rule(owner=st.sampled_from(OWNERS), days=st.integers(-3, 9), add=st.booleans(), data=st.data())
    def edit(self, owner: str, days: int, add: bool, data: st.DataObject) -> None:
        journal, model = self.journal.owner(owner), self.models[owner]
        state, after = journal.state(), dict(model.states[-1])
        time = DAY_ZERO + timedelta(days=days)
        changes = []
        for memory_id in data.draw(st.sets(st.sampled_from(sorted(after))) if after else st.just(set()), label="edited"):
            if data.draw(st.booleans(), label="retracted"):
                del after[memory_id]
                changes.append(Change(ChangeEvent.REMOVE, memory_id, state[memory_id], None))
            else:
                self.texts += 1
                after[memory_id] = f"text {self.texts}."
                memory = Memory(memory_id, after[memory_id], time)
                changes.append(Change(ChangeEvent.UPDATE, memory_id, state[memory_id], memory))
        new = frozenset({model.next_number()} if add else ())
        for number in new:
            self.texts += 1
            after[f"m{number}"] = f"text {self.texts}."
            changes.append(Change(ChangeEvent.ADD, f"m{number}", None, Memory(f"m{number}", after[f"m{number}"], time)))
        entry = journal.append(EntryKind.EDIT, changes, actor="bob", expected_head=model.head)
        assert journal.entry(entry.position) == entry
        model.append(after, model.head, None, new)

    @rule(owner=st.sampled_from(OWNERS), fraction=st.floats(0, 1))
    def rollback(self, owner: str, fraction: float) -> None:
        model = self.models[owner]
        to = round(fraction * model.head)
        self.journal.owner(owner).rollback(to)
        added = {int(name[1:]) for name in model.states[to].keys() - model.states[-1].keys()}
        model.append(dict(model.states[to]), to, None, frozenset(added))

    @rule(owner=st.sampled_from(OWNERS), number=st.integers(1, 12))
    def forget(self, owner: str, number: int) -> None:
        journal, model = self.journal.owner(owner), self.models[owner]
        memory_id = f"m{number}"
        texts = {state[memory_id] for state in model.states if memory_id in state}
        if not texts:
            with pytest.raises(DeltaMemError):
                journal.forget(memory_id)
            return
        journal.forget(memory_id)
        model.forgotten.add(number)
        for state in model.states:
            state.pop(memory_id, None)
        model.append(dict(model.states[-1]), model.head)
        assert all(journal.text_owner(text) is None for text in texts)
        if self.folder:
            stored = b"".join(path.read_bytes() for path in self.folder.iterdir())
            # Texts end with a full stop, because what SQLite stores behind them may begin with a digit.
            assert not any(text.encode() in stored for text in texts)

    @rule()
    def reopen(self) -> None:
        if self.path:
            self.journal.close()
            self.journal = Journal.open(self.path)

    @rule(owner=st.sampled_from(OWNERS))
    def read_from_elsewhere(self, owner: str) -> None:
        if self.path:
            with Journal.open(self.path, read_only=True) as reader:
                assert list(reader.owner(owner).entries()) == list(self.journal.owner(owner).entries())
                assert reader.owner(owner).state() == self.journal.owner(owner).state()

    @invariant()
    def agrees(self) -> None:
        for owner, model in self.models.items():
            journal = self.journal.owner(owner)
            assert journal.head == model.head
            for position, expected in enumerate(model.states):
                state = journal.state(position)
                assert {memory.id: memory.text for memory in state.memories} == expected
                assert list(state) == sorted(state, key=lambda memory_id: int(memory_id[1:]))
            effective = model.effective()
            assert [entry.undone for entry in journal.entries()] == [
                position not in effective for position in range(1, model.head + 1)
            ]
            applied = model.applied()
            assert all((journal.session_position(f"s{n}") is not None) == (f"s{n}" in applied) for n in range(1, 9))
            assert journal.verify() == []
            uuids = journal.uuids()
            assert model.states[-1].keys() <= uuids.keys() and len(set(uuids.values())) == len(uuids)
            assert all(journal.memory_id(str(uuid)) == memory_id for memory_id, uuid in uuids.items())

    @invariant()
    def time_travel_finds_states_of_the_present_line(self) -> None:
        for owner, model in self.models.items():
            position = self.journal.owner(owner).position_at(DAY_ZERO + timedelta(days=4))
            assert position == 0 or position in model.effective()

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            if self.folder:
                shutil.rmtree(self.folder)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(stateful_step_count=20, deadline=None)

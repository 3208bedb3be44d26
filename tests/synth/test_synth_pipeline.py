"""From people to files: whole or not there, and the same bytes from the same seed."""

import errno
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import read_sessions
from synth.offline import OfflineConfig, offline_writer
from synth.pipeline import (
    MANIFEST_FILE,
    PEOPLE_FILE,
    SESSIONS_FILE,
    personas,
    write_dataset,
    write_person,
)
from synth.records import Persona

FILES = {PEOPLE_FILE, SESSIONS_FILE, MANIFEST_FILE}


def write(folder, *, seed=1, writer=None, people=5, sessions=3, progress=lambda done: None):
    return write_dataset(
        folder,
        writer or offline_writer(OfflineConfig(seed=seed)),
        people=people,
        sessions=sessions,
        heldout_share=0.2,
        config={"seed": seed},
        progress=progress,
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class FailingMemories:
    """Writes operations for some sessions and then breaks."""

    def __init__(self, error: Exception, after: int) -> None:
        self.stage = offline_writer(OfflineConfig()).memories
        self.error = error
        self.left = after

    def write_operations(self, profile, event, prior_state):
        if not self.left:
            raise self.error
        self.left -= 1
        return self.stage.write_operations(profile, event, prior_state)


class SilentDialogues:
    """Leaves the facts out of the dialogue."""

    def write_dialogue(self, profile, event, operations):
        return ()


def test_the_files_and_their_manifest(tmp_path):
    done = []
    manifest = write(tmp_path / "new" / "folder", progress=done.append)
    folder = tmp_path / "new" / "folder"
    assert set(contents(folder)) == FILES
    assert done == [1, 2, 3, 4, 5]
    assert json.loads((folder / MANIFEST_FILE).read_text("utf-8")) == manifest
    assert manifest["synthetic"] is True and manifest["config"] == {"seed": 1}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert set(manifest["sha256"]) == {PEOPLE_FILE, SESSIONS_FILE}


def test_the_counts_are_those_of_the_file(tmp_path):
    counts = write(tmp_path)["counts"]
    for split, people in (("train", 4), ("heldout", 1)):
        sessions = list(read_sessions(tmp_path / SESSIONS_FILE, split=split))
        assert counts[f"{split}/people"] == people == len({item.session.person_id for item in sessions})
        assert counts[f"{split}/sessions"] == len(sessions) == 3 * people
        for event in Event:
            expected = sum(operation.event is event for item in sessions for operation in item.operations)
            assert counts.get(f"{split}/{event}", 0) == expected


def test_the_people_are_those_of_the_sessions(tmp_path):
    write(tmp_path)
    people = [json.loads(line) for line in (tmp_path / PEOPLE_FILE).read_text("utf-8").splitlines()]
    sessions = list(read_sessions(tmp_path / SESSIONS_FILE))
    assert [record["person_id"] for record in people] == list(dict.fromkeys(item.session.person_id for item in sessions))
    for record in people:
        own = [item for item in sessions if item.session.person_id == record["person_id"]]
        assert {item.session.person_name for item in own} == {record["name"]}
        assert {item.split for item in own} == {record["split"]}
        assert [item.session_index for item in own] == [event["index"] for event in record["events"]] == [0, 1, 2]
        assert [item.session.time.isoformat() for item in own] == [event["time"] for event in record["events"]]
        initial = [fact["text"] for fact in record["initial_facts"]]
        assert [memory.text for memory in own[0].prior_state.memories] == initial


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    write(tmp_path / "c", seed=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    first, other = contents(tmp_path / "a"), contents(tmp_path / "c")
    assert all(first[name] != other[name] for name in FILES)


def test_no_file_has_its_name_before_it_is_whole(tmp_path):
    seen = []
    write(tmp_path, progress=lambda done: seen.append(FILES & {path.name for path in tmp_path.iterdir()}))
    assert seen == [set()] * 5


def test_the_manifest_is_written_last(tmp_path):
    # A folder stands where the sessions have to go: the data set cannot become whole.
    (tmp_path / SESSIONS_FILE).mkdir()
    with pytest.raises(OSError):
        write(tmp_path)
    assert MANIFEST_FILE not in contents(tmp_path)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("writer broke")])
def test_a_failing_write_leaves_nothing(tmp_path, error):
    writer = offline_writer(OfflineConfig())._replace(memories=FailingMemories(error, after=7))
    with pytest.raises(type(error)):
        write(tmp_path, writer=writer)
    assert contents(tmp_path) == {}


def test_a_failing_write_over_an_older_data_set_takes_its_manifest_away(tmp_path):
    write(tmp_path)
    before = contents(tmp_path)
    writer = offline_writer(OfflineConfig())._replace(memories=FailingMemories(RuntimeError("broke"), after=7))
    with pytest.raises(RuntimeError):
        write(tmp_path, seed=2, writer=writer)
    del before[MANIFEST_FILE]
    assert contents(tmp_path) == before


def test_a_violated_invariant_is_told_in_a_sentence_and_nothing_is_written(tmp_path):
    writer = offline_writer(OfflineConfig())._replace(dialogue=SilentDialogues())
    with pytest.raises(DeltaMemError, match=r"^p000000: session 0: operation 1 \(\w+\): the user never says"):
        write(tmp_path, writer=writer)
    assert contents(tmp_path) == {}


def test_write_person_chains_the_states():
    someone = write_person(Persona("p1", "somebody", "train"), offline_writer(OfflineConfig()), 4)
    assert [item.session_index for item in someone.sessions] == [0, 1, 2, 3]
    for earlier, later in zip(someone.sessions, someone.sessions[1:], strict=False):
        assert later.prior_state == earlier.next_state


def splits(count, share):
    return [persona.split for persona in personas(count, share)]


@pytest.mark.parametrize(
    ("count", "share", "heldout"),
    [(1, 0.1, 0), (1, 0.9, 0), (2, 0.1, 1), (2, 0.9, 1), (3, 0.99, 2), (9, 0.1, 1), (300, 0.1, 30)],
)
def test_how_many_people_are_held_out(count, share, heldout):
    assert splits(count, share).count("heldout") == heldout


@settings(deadline=None)
@given(count=st.integers(2, 400), share=st.floats(0.001, 0.999))
def test_both_splits_have_people_and_the_share_is_met(count, share):
    heldout = splits(count, share).count("heldout")
    assert 1 <= heldout <= count - 1
    assert abs(heldout - share * count) <= 1


def test_held_out_people_are_spread_evenly():
    chosen = splits(100, 0.2)
    assert [chosen[start : start + 10].count("heldout") for start in range(0, 100, 10)] == [2] * 10


def test_person_ids_are_unique():
    ids = [persona.person_id for persona in personas(50, 0.1)]
    assert len(set(ids)) == 50

"""From people to the files of a data set: whole or not there, the same bytes again, no text in both splits."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from handmade import edit
from offline_people import people as offline_people
from output_cases import EPISODE, MAKING, contents, person, rejected_person, some_people, write

from deltamem.episode import opening_messages
from deltamem.errors import DeltaMemError
from deltamem.sessions import from_json_line, read_sessions
from synth.assembly import labelled_sessions
from synth.output.dataset import write_dataset
from synth.output.files import FILES, read_people
from synth.records import Person

HASHED = {"people.jsonl", "sessions.jsonl", "rejected.jsonl", "train.parquet", "heldout.parquet", "README.md"}


def saying(someone: Person, words: str) -> Person:
    """The person, who in the first session says every fact with the same words."""
    turns = len(someone.sessions[0].dialogue.turns)
    return edit(someone, {f"sessions.0.dialogue.turns.{turn}.user": words for turn in range(turns)})


def manifest_of(out: Path) -> dict:
    return json.loads((out / "dataset.json").read_text("utf-8"))


def test_all_files_are_there_and_the_manifest_names_their_bytes(data_set):
    manifest = manifest_of(data_set)
    assert set(contents(data_set)) == set(FILES)
    assert manifest["synthetic"] is True and manifest["seed"] == 7 and manifest["making"] == MAKING
    assert set(manifest["sha256"]) == HASHED
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((data_set / name).read_bytes()).hexdigest() == digest


def test_people_are_written_whole_and_sessions_are_those_that_were_not_rejected(data_set):
    assert list(read_people(data_set / "people.jsonl")) == some_people()
    expected = [item for someone in some_people() for item in labelled_sessions(someone)]
    assert list(read_sessions(data_set / "sessions.jsonl")) == expected
    found = [f"p00000{number}/{index}" for number, indices in ((0, "012"), (2, "02"), (3, "012")) for index in indices]
    assert [item.key for item in expected] == found


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_parquet_rows_are_the_sessions_of_their_split(data_set, split):
    expected = list(read_sessions(data_set / "sessions.jsonl", split=split))
    rows = pq.read_table(data_set / f"{split}.parquet").to_pylist()
    assert [from_json_line(row["extra_info"]["session"]) for row in rows] == expected
    assert [row["prompt"] for row in rows] == [opening_messages(item.session, EPISODE) for item in expected]
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(expected)))


def test_one_split_alone_has_no_parquet(tmp_path):
    write(tmp_path)
    manifest = write(tmp_path, [person(0), person(2), rejected_person(3, "heldout")])
    assert set(contents(tmp_path)) == set(FILES) - {"train.parquet", "heldout.parquet"}
    assert set(manifest["sha256"]) == HASHED - {"train.parquet", "heldout.parquet"}


@pytest.mark.parametrize("chosen", [[], [rejected_person(0), rejected_person(1, "heldout")]], ids=["nobody", "all rejected"])
def test_a_data_set_without_any_session_is_written_and_says_so(tmp_path, chosen):
    manifest = write(tmp_path, chosen)
    assert (tmp_path / "sessions.jsonl").read_bytes() == b""
    assert manifest["counts"]["rejected/people"] == len(chosen)
    assert "There is no session in this data set" in (tmp_path / "README.md").read_text("utf-8")


def test_an_older_data_set_is_gone_before_anything_is_written(tmp_path):
    write(tmp_path)
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    seen = []

    def people():
        for someone in some_people():
            seen.append({path.name for path in tmp_path.iterdir() if not path.name.startswith(".")})
            yield someone

    write_dataset(tmp_path, people(), making=MAKING, episode=EPISODE, seed=7)
    assert seen == [{"mine.txt"}] * 4
    assert set(contents(tmp_path)) == {"mine.txt", *FILES}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("the source broke")])
def test_a_failure_leaves_nothing_that_looks_finished(tmp_path, error):
    def people():
        yield person(0)
        raise error

    with pytest.raises(type(error)):
        write_dataset(tmp_path, people(), making=MAKING, episode=EPISODE, seed=7)
    assert contents(tmp_path) == {}


BOTH = "Ana Ruiz and Dara Voss are worried about the new kitchen in Town0, or was it Town3?"
HELDOUT = person(3, "heldout")
TWICE = HELDOUT.model_copy(update={"persona": HELDOUT.persona.model_copy(update={"split": "train"})})


@pytest.mark.parametrize(
    ("people", "message"),
    [
        (
            [saying(person(0), " "), HELDOUT],
            r"^p000000: session 0: utterance 1 is empty \(rule session\.speakers_alternate",
        ),
        (
            [saying(person(0), BOTH), saying(HELDOUT, BOTH)],
            r"^p000003: the text of session p000003/0 is in both splits \(rule split\.session_texts",
        ),
        ([TWICE, HELDOUT], r"person p000003 is in both splits \(rule split\.people, and \d+ more violations\)"),
    ],
    ids=["a broken rule", "a text in both splits", "a person in both splits"],
)
def test_a_defect_is_named_and_nothing_is_written(tmp_path, people, message):
    with pytest.raises(DeltaMemError, match=message):
        write(tmp_path, people)
    assert contents(tmp_path) == {}


def test_the_split_of_written_people_is_by_person_and_no_text_crosses_it(tmp_path):
    count = 12
    write(tmp_path, offline_people(count, 2, heldout_share=0.25))
    found = {split: list(read_sessions(tmp_path / "sessions.jsonl", split=split)) for split in ("train", "heldout")}
    people, texts, memories = [], [], []
    for items in found.values():
        people.append({item.session.person_id for item in items})
        texts.append({tuple(turn.content for turn in item.session.dialogue if turn.role == "user") for item in items})
        memories.append({memory.text for item in items for memory in item.next_state.memories})
    assert [len(ids) for ids in people] == [count * 3 // 4, count // 4]
    for ours, theirs in (people, texts, memories):
        assert ours and theirs and not ours & theirs


def test_rules_rejections_and_usage_are_summed_over_people(data_set):
    statistics = manifest_of(data_set)["statistics"]
    rules = statistics["rules"]
    assert rules["dialogue.supported"] == {"checked": 10, "violated": 2, "rejected": 1}
    assert rules["session.next_state_follows"] == {"checked": 8, "violated": 0, "rejected": 0}
    assert (rules["session.chain_continues"]["checked"], rules["split.session_texts"]["checked"]) == (5, 8)
    assert statistics["rejected"] == {
        "dialogue": {"units": 1, "rules": {"dialogue.supported": 1}},
        "fixed": {"units": 1, "rules": {"fixed.identity": 1}},
    }
    assert statistics["usage"]["dialogue"]["attempts"] == 10
    usage = {"units": 3, "attempts": 3, "rejected": 0, "prompt_tokens": 300, "completion_tokens": 150}
    usage["reasoning_tokens"] = 0
    assert statistics["usage"]["events"] == usage

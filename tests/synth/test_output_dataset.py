"""From people to the files of a data set: whole or not there, the same bytes again, no text in both splits."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from offline_people import people as offline_people
from output_cases import EPISODE, MAKING, contents, person, rejected_person, some_people, write

from deltamem.episode import opening_messages
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import from_json_line, read_sessions
from deltamem.training.data import export
from synth.assembly import labelled_sessions
from synth.output.dataset import write_dataset
from synth.output.files import FILES, read_people
from synth.output.report import render
from synth.records import Exchange, Person

pytestmark = pytest.mark.usefixtures("undrawn")

HASHED = {"people.jsonl", "sessions.jsonl", "rejected.jsonl", "train.parquet", "heldout.parquet", "README.md"}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def saying(someone: Person, words: str) -> Person:
    """The person, whose first session is replaced by one in which the user says every fact with the same words."""
    first = someone.sessions[0]
    assert first.dialogue is not None
    turns = tuple(Exchange(user=words, assistant=turn.assistant) for turn in first.dialogue.turns)
    dialogue = first.dialogue.model_copy(update={"turns": turns})
    changed = first.model_copy(update={"dialogue": dialogue})
    return someone.model_copy(update={"sessions": (changed, *someone.sessions[1:])})


def test_all_files_are_there_and_the_manifest_names_their_bytes(tmp_path):
    manifest = write(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert set(contents(folder)) == set(FILES)
    assert json.loads((folder / "dataset.json").read_text("utf-8")) == manifest
    assert manifest["synthetic"] is True and manifest["seed"] == 7 and manifest["making"] == MAKING
    assert set(manifest["sha256"]) == HASHED
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_people_are_written_whole_and_in_their_order(tmp_path):
    write(tmp_path)
    assert list(read_people(tmp_path / "people.jsonl")) == some_people()


def test_sessions_are_those_that_were_not_rejected(tmp_path):
    write(tmp_path)
    expected = [item for someone in some_people() for item in labelled_sessions(someone)]
    assert list(read_sessions(tmp_path / "sessions.jsonl")) == expected
    assert [item.key for item in expected] == [
        *(f"p000000/{index}" for index in range(3)),
        *("p000002/0", "p000002/2"),
        *(f"p000003/{index}" for index in range(3)),
    ]


def test_rejections_name_unit_session_rules_and_reasons(tmp_path):
    write(tmp_path)
    whole, session = lines(tmp_path / "rejected.jsonl")
    assert (whole["person_id"], whole["session_index"], whole["unit"]) == ("p000001", None, "fixed")
    assert whole["rules"] == ["fixed.identity"] and whole["reasons"] == ["name must stay 'A', but is 'B'"]
    assert (session["person_id"], session["session_index"], session["unit"]) == ("p000002", 1, "dialogue")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_parquet_rows_are_the_sessions_of_their_split(tmp_path, split):
    write(tmp_path)
    expected = list(read_sessions(tmp_path / "sessions.jsonl", split=split))
    rows = pq.read_table(tmp_path / f"{split}.parquet").to_pylist()
    assert [from_json_line(row["extra_info"]["session"]) for row in rows] == expected
    assert [row["prompt"] for row in rows] == [opening_messages(item.session, EPISODE) for item in expected]
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(expected)))


def test_parquet_is_what_an_export_of_the_sessions_gives(tmp_path):
    write(tmp_path)
    done = export(
        tmp_path / "sessions.jsonl",
        tmp_path / "again",
        EPISODE,
        train_sessions=None,
        heldout_sessions=None,
        skip_people=0,
        seed=1,
    )
    for path in (done.train, done.heldout):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_one_split_alone_has_no_parquet(tmp_path):
    write(tmp_path)
    manifest = write(tmp_path, [person(0), person(2), rejected_person(3, "heldout")])
    assert set(contents(tmp_path)) == set(FILES) - {"train.parquet", "heldout.parquet"}
    assert set(manifest["sha256"]) == HASHED - {"train.parquet", "heldout.parquet"}


@pytest.mark.parametrize("chosen", [[], [rejected_person(0), rejected_person(1, "heldout")]], ids=["nobody", "all rejected"])
def test_a_data_set_without_any_session_is_written_and_says_so(tmp_path, chosen, monkeypatch):
    monkeypatch.setattr("synth.output.dataset.render", render)
    manifest = write(tmp_path, chosen)
    assert (tmp_path / "sessions.jsonl").read_bytes() == b""
    assert manifest["counts"]["rejected/people"] == len(chosen)
    assert "There is no session that kept all rules." in (tmp_path / "report.html").read_text("utf-8")


def test_the_same_people_give_the_same_bytes_in_any_process(tmp_path, monkeypatch):
    monkeypatch.setattr("synth.output.dataset.render", render)
    write(tmp_path / "a")
    code = "import sys; from pathlib import Path; from output_cases import write; write(Path(sys.argv[1]))"
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests / 'synth'}:{tests}", "PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "b")], check=True, env=environment, timeout=120)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


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


def test_people_are_taken_one_at_a_time(tmp_path):
    alive = []

    class Watched(Person):
        def __del__(self) -> None:
            alive.remove(self.persona.person_id)

    def people():
        for number in range(6):
            alive.append(f"p{number:06d}")
            assert len(alive) <= 2
            yield Watched(**dict(person(number, "heldout" if number == 5 else "train")))

    write_dataset(tmp_path, people(), making=MAKING, episode=EPISODE, seed=7)


# --- what must never be written --------------------------------------------------------------------------------------------


def test_a_session_that_breaks_a_rule_is_a_defect_that_is_named(tmp_path):
    with pytest.raises(
        DeltaMemError, match=r"^p000000: session 0: .*the user never says 'worried' \(rule session\.keywords_said"
    ):
        write(tmp_path, [saying(person(0), "Nothing new."), person(3, "heldout")])
    assert contents(tmp_path) == {}


def test_a_session_text_in_both_splits_is_refused(tmp_path):
    both = "Ana Ruiz and Dara Voss are worried about the new kitchen in Town0, or was it Town3?"
    train, heldout = saying(person(0), both), saying(person(3, "heldout"), both)
    with pytest.raises(
        DeltaMemError, match=r"^p000003: the text of session p000003/0 is in both splits \(rule split\.session_texts"
    ):
        write(tmp_path, [train, heldout])
    assert contents(tmp_path) == {}
    write(tmp_path, [train, saying(person(3, "heldout"), both + " It was Town3.")])


def test_a_person_in_both_splits_is_refused(tmp_path):
    twice = person(3, "heldout")
    train = twice.model_copy(update={"persona": twice.persona.model_copy(update={"split": "train"})})
    with pytest.raises(
        DeltaMemError, match=r"person p000003 is in both splits \(rule split\.people, and \d+ more violations\)"
    ):
        write(tmp_path, [train, twice])
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("sizes", ["tiny", "paper"])
def test_the_split_of_written_people_is_by_person_and_no_text_crosses_it(tmp_path, sizes):
    count, sessions = (40, 3) if sizes == "tiny" else (4, 12)
    write(tmp_path, offline_people(count, sessions, heldout_share=0.25, sizes=sizes))
    found = {split: list(read_sessions(tmp_path / "sessions.jsonl", split=split)) for split in ("train", "heldout")}
    people, texts, memories = [], [], []
    for items in found.values():
        people.append({item.session.person_id for item in items})
        texts.append({tuple(turn.content for turn in item.session.dialogue if turn.role == "user") for item in items})
        memories.append({memory.text for item in items for memory in item.next_state.memories})
    assert [len(ids) for ids in people] == [count * 3 // 4, count // 4]
    for ours, theirs in (people, texts, memories):
        assert ours and theirs and not ours & theirs


# --- statistics ------------------------------------------------------------------------------------------------------------


def test_counts_are_those_of_the_files(tmp_path):
    counts = write(tmp_path)["counts"]
    for split, people in (("train", 2), ("heldout", 1)):
        sessions = list(read_sessions(tmp_path / "sessions.jsonl", split=split))
        assert counts[f"{split}/people"] == people
        assert counts[f"{split}/sessions"] == len(sessions)
        for event in Event:
            found = sum(operation.event is event for item in sessions for operation in item.operations)
            assert counts[f"{split}/{event}"] == found
    assert (counts["rejected/people"], counts["rejected/sessions"]) == (1, 1)


def test_statistics_by_session_are_those_of_the_file(tmp_path):
    places = write(tmp_path)["statistics"]["by_session"]
    sessions = list(read_sessions(tmp_path / "sessions.jsonl"))
    assert [place["index"] for place in places] == [0, 1, 2]
    for place in places:
        own = [item for item in sessions if item.session_index == place["index"]]
        sizes = [len(item.next_state) for item in own]
        assert place["sessions"] == len(own)
        assert place["turns"] == round(sum(len(item.session.dialogue) / 2 for item in own) / len(own), 3)
        assert place["memories"] == {"mean": round(sum(sizes) / len(own), 3), "min": min(sizes), "max": max(sizes)}
        kinds = [operation.event for item in own for operation in item.operations]
        assert place["operations"] == {event.value: kinds.count(event) for event in Event}


def test_lengths_are_distributions_over_sessions(tmp_path):
    lengths = write(tmp_path)["statistics"]["lengths"]
    sessions = list(read_sessions(tmp_path / "sessions.jsonl"))
    words = [sum(len(turn.content.split()) for turn in item.session.dialogue) for item in sessions]
    assert (lengths["words"]["min"], lengths["words"]["max"]) == (min(words), max(words))
    assert lengths["words"]["mean"] == round(sum(words) / len(words), 3)
    assert lengths["turns"]["bins"] == {"2": 3, "3": 5}
    assert all(sum(item["bins"].values()) == item["count"] == len(sessions) for item in lengths.values())


def test_rules_rejections_and_usage_are_summed_over_people(tmp_path):
    statistics = write(tmp_path)["statistics"]
    assert statistics["rules"]["dialogue.user_first"] == {"checked": 10, "violated": 2, "rejected": 1}
    assert statistics["rules"]["session.next_state_follows"] == {"checked": 8, "violated": 0, "rejected": 0}
    assert statistics["rules"]["session.chain_continues"]["checked"] == 5
    assert statistics["rules"]["split.session_texts"]["checked"] == 8
    assert statistics["rejected"] == {
        "dialogue": {"units": 1, "rules": {"dialogue.user_first": 1}},
        "fixed": {"units": 1, "rules": {"fixed.identity": 1}},
    }
    assert statistics["usage"]["dialogue"]["attempts"] == 10
    assert statistics["usage"]["events"] == {
        "units": 3,
        "attempts": 3,
        "rejected": 0,
        "prompt_tokens": 300,
        "completion_tokens": 150,
    }


def test_origins_changes_and_keywords_are_counted(tmp_path):
    statistics = write(tmp_path)["statistics"]
    assert statistics["operations_by_origin"] == {
        "delta": {"UPDATE": 2},
        "evolution": {"ADD": 3, "UPDATE": 3},
        "filling": {"ADD": 3},
        "reuse": {"NONE": 2},
    }
    assert statistics["changes_by_track"] == {"career": {"shift": 3}}
    assert statistics["memory_threads_by_method"] == {"emotional_update": 3}
    assert statistics["keywords"]["UPDATE"] == {"keywords": 10, "said": 10, "said_in_turn": 10}
    # The middle of the second of three turns is where the third quarter begins.
    assert statistics["facts_said_in_quarter"] == [0, 0, 5, 8]


def test_a_keyword_that_is_said_outside_its_turn_is_not_said_in_turn(tmp_path):
    moved = person(0)
    first = moved.sessions[0]
    plan = tuple(entry.model_copy(update={"turn": 1}) for entry in first.dialogue.plan)
    first = first.model_copy(update={"dialogue": first.dialogue.model_copy(update={"plan": plan})})
    moved = moved.model_copy(update={"sessions": (first, *moved.sessions[1:])})
    keywords = write(tmp_path, [moved, person(3, "heldout")])["statistics"]["keywords"]
    assert keywords["ADD"] == {"keywords": 8, "said": 8, "said_in_turn": 6}

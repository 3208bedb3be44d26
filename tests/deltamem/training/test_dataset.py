"""Export of sessions to parquet."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from training_cases import labelled_session, write_sessions

from deltamem.episode import EpisodeConfig, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.sessions import Turn, from_json_line, read_sessions, to_json_line
from deltamem.training import data as dataset
from deltamem.training.data import AGENT_NAME, export

EPISODE = EpisodeConfig()


def test_rows_carry_the_whole_session(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=6, heldout=3)
    done = export(sessions, tmp_path / "data", EPISODE, train_sessions=None, heldout_sessions=2, skip_people=2, seed=1)
    train, heldout = pq.read_table(done.train).to_pylist(), pq.read_table(done.heldout).to_pylist()
    assert (done.train_sessions, done.heldout_sessions) == (len(train), len(heldout)) == (4, 2)
    read = [from_json_line(row["extra_info"]["session"]) for row in train]
    assert read == [labelled_session(number) for number in range(2, 6)]  # persons 0 and 1 belong to the warm start
    assert train[0]["prompt"] == opening_messages(read[0].session, EPISODE)
    assert {row["agent_name"] for row in train} == {AGENT_NAME}
    assert [row["extra_info"]["index"] for row in train] == [0, 1, 2, 3]
    assert {from_json_line(row["extra_info"]["session"]).split for row in heldout} == {"heldout"}


def test_same_seed_same_draw(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=9)

    def keys(seed: int) -> list[str]:
        done = export(sessions, tmp_path / "data", EPISODE, train_sessions=5, heldout_sessions=5, skip_people=0, seed=seed)
        return [row["extra_info"]["key"] for row in pq.read_table(done.train).to_pylist()]

    assert keys(1) == keys(1) != keys(2)


def test_a_draw_takes_the_sessions_that_a_sample_of_the_list_takes(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=9, heldout=3)
    done = export(sessions, tmp_path / "data", EPISODE, train_sessions=5, heldout_sessions=None, skip_people=2, seed=4)
    keys = [row["extra_info"]["key"] for row in pq.read_table(done.train).to_pylist()]
    rest = [item.key for item in read_sessions(sessions, split="train")][2:]
    assert keys == random.Random(4).sample(rest, 5)


def test_rows_come_in_groups_so_that_few_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "ROWS_PER_GROUP", 4)
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=10, heldout=4)
    done = export(sessions, tmp_path / "data", EPISODE, train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    for path, groups in ((done.train, [4, 4, 2]), (done.heldout, [4])):
        found = pq.ParquetFile(path).metadata
        assert [found.row_group(number).num_rows for number in range(found.num_row_groups)] == groups
    lines = sessions.read_text("utf-8").splitlines()
    rows = [*pq.read_table(done.train).to_pylist(), *pq.read_table(done.heldout).to_pylist()]
    assert sorted(row["extra_info"]["session"] for row in rows) == sorted(lines)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "ROWS_PER_GROUP", 8)
    path = tmp_path / "sessions.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(300):
            item = labelled_session(number, "heldout" if number % 10 == 0 else "train")
            turns = (*item.session.dialogue, Turn("user", f"{number} words " * 2_000))
            file.write(to_json_line(replace(item, session=replace(item.session, dialogue=turns))) + "\n")
    tracemalloc.start()
    done = export(path, tmp_path / "data", EPISODE, train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.train_sessions == 270
    assert most < path.stat().st_size / 3


def test_a_failing_write_leaves_nothing_of_its_file(tmp_path: Path) -> None:
    item = labelled_session(0)
    with pytest.raises(RuntimeError), dataset.open_parquet(tmp_path / "train.parquet", EPISODE) as writer:
        writer.add(item, to_json_line(item))
        raise RuntimeError("broke")
    assert not list(tmp_path.iterdir())


def test_unreadable_row_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=3, heldout=2)
    sessions.write_text(sessions.read_text() + '{"person_id": "x"}\n')
    with pytest.raises(DeltaMemError, match=r"sessions\.jsonl, line 6: "):
        export(sessions, tmp_path / "data", EPISODE, train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"train_sessions": 7, "heldout_sessions": 1, "skip_people": 0},
            "training sessions: there are 3, expected at least 7",
        ),
        ({"train_sessions": None, "heldout_sessions": 9, "skip_people": 0}, "held-out sessions: there are 2"),
        ({"train_sessions": None, "heldout_sessions": 1, "skip_people": 3}, "after the first 3 persons: there are 0"),
    ],
)
def test_too_few_sessions(tmp_path: Path, wanted: dict[str, int | None], message: str) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", train=3, heldout=2)
    with pytest.raises(DeltaMemError, match=message):
        export(sessions, tmp_path / "data", EPISODE, seed=1, **wanted)  # type: ignore[arg-type]

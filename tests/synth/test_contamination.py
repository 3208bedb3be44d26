from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deltamem.errors import DeltaMemError
from synth.contamination import contamination, render

COPIED = "The lighthouse keeper polished every brass lamp before the autumn storm arrived."
OTHER = "A gardener planted forty tulip bulbs beside the crooked stone wall yesterday morning."


def session(*said: str, person: str = "p000000", memories: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "person_id": person,
        "dialogue": [{"role": "user", "content": text} for text in said],
        "prior_state": {name: {"text": text} for name, text in (memories or {}).items()},
    }


def data_set(folder: Path, *sessions: dict[str, Any], people: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sessions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in sessions))
    (folder / "people.jsonl").write_text(people)
    return folder


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps([{"talk": [{"text": "Hello there."}, {"text": COPIED}]}]))
    return path


def test_a_planted_sentence_is_found_with_both_places(tmp_path: Path, reference: Path) -> None:
    out = data_set(tmp_path / "out", session(OTHER), session(OTHER, f"Well, {COPIED.upper()} Nice!"))
    report = contamination(out, [reference])
    assert (report.sessions, report.sessions_hit, report.people_hit, report.hits) == (2, 1, 0, 1)
    (found,) = report.examples
    assert (found.text, found.words) == (COPIED.lower().rstrip("."), 12)
    assert found.here == "sessions.jsonl, line 2, dialogue[1].content"
    assert found.there == f"{reference}: [0].talk[1].text"
    text = render(report)
    assert "sessions with an overlap: 1 of 2 (50.00%)" in text and found.here in text and found.there in text


def test_what_everybody_says_does_not_count(tmp_path: Path) -> None:
    phrase = "Thank you so much, it was really great to see you again and I hope you\u2019re well"
    (tmp_path / "r.txt").write_text(f"{phrase}\n{COPIED}")
    assert contamination(data_set(tmp_path / "out", session(phrase)), [tmp_path / "r.txt"]).hits == 0


def test_memories_and_people_are_searched_too(tmp_path: Path, reference: Path) -> None:
    carried = session(OTHER, memories={"m1": COPIED})
    people = json.dumps({"events": [{"narrative": COPIED}]}) + "\n" + json.dumps({"events": []}) + "\n"
    out = data_set(tmp_path / "out", carried, carried, session(OTHER, person="p000001"), people=people)
    report = contamination(out, [reference])
    assert (report.sessions_hit, report.people, report.people_hit, report.hits) == (2, 2, 1, 3)
    assert {found.here for found in report.examples} == {
        "sessions.jsonl, line 1, prior_state.m1.text",
        "sessions.jsonl, line 2, prior_state.m1.text",
        "people.jsonl, line 1, events[0].narrative",
    }


def test_references_of_every_kind_and_whole_folders_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "references"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text(json.dumps({"x": ["short"]}) + "\n" + json.dumps({"x": [COPIED]}) + "\n")
    (folder / "deep" / "b.csv").write_text(f'1,"{OTHER}"\n')
    (folder / "picture.png").write_bytes(b"\xff")
    out = data_set(tmp_path / "out", session(COPIED), session(OTHER))
    report = contamination(out, [folder])
    assert {found.there for found in report.examples} == {
        f"{folder / 'a.jsonl'}: line 2, x[0]",
        f"{folder / 'deep' / 'b.csv'}: line 1",
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", r"a\.json: not JSON"),
        ("a.jsonl", b'{"a": 1}\n{', r"a\.jsonl, line 2: not JSON"),
        ("a.txt", b"\xff", r"a\.txt, line 1: not UTF-8 text"),
        ("a.txt", b"short", "no passage of 8 words to compare with"),
        ("a.txt", None, r"a\.txt: No such file"),
    ],
)
def test_a_reference_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DeltaMemError, match=message):
        contamination(data_set(tmp_path / "out"), [tmp_path / name])


def test_a_folder_without_a_data_set_or_with_a_broken_one_is_refused(tmp_path: Path, reference: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"sessions\.jsonl: No such file or directory; name the folder of a data set"):
        contamination(tmp_path, [reference])
    out = data_set(tmp_path / "out", session(OTHER))
    (out / "people.jsonl").write_text("{}\n[]\n")
    with pytest.raises(DeltaMemError, match=r"people\.jsonl, line 2: not a record"):
        contamination(out, [reference])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeltaMemError, match=r"empty: no file that ends in"):
        contamination(out, [tmp_path / "empty"])

"""One person in the terminal, of a finished data set and of one in the making."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from output_cases import person, rejected_person, some_people, write
from rich.console import Console

from deltamem.errors import DeltaMemError
from deltamem.runs import JsonLinesStore
from synth.output.inspect import inspect


def shown(out: Path, person_id: str | None = None, session: int | None = None, **options: bool) -> str:
    """What is printed, with single spaces."""
    text = io.StringIO()
    inspect(out, person_id, session, Console(file=text, width=200, **options))
    return text.getvalue()


def words(text: str) -> str:
    return " ".join(text.replace("─", " ").split())


def test_a_life_is_shown_with_profile_operations_and_changes(data_set):
    text = words(shown(data_set, "p000000"))
    assert text.startswith("Ana Ruiz Somebody with number 0 p000000, train, seed: generated born 1990-05-01")
    assert "linked sessions 1, 3: the new kitchen" in text
    assert "2. 2026-02-09 20:00 Event 1 work, positive, life goal, 3 memories after it" in text
    assert (
        "~ m1 Ana Ruiz works as a baker in Town0. Ana Ruiz works as a chef in Town0. delta, turn 2: chef, Town0 "
        "= m2 Ana Ruiz drinks green tea. reuse, turn 3: green tea" in text
    )
    assert text.index("Event 0") < text.index("Event 1") < text.index("Event 2") < text.index("memories that changed")
    assert "assistant" not in text


def test_one_session_is_shown_with_its_dialogue_and_where_each_fact_is_said(data_set):
    text = words(shown(data_set, "p000000", 2))
    assert "Event 1" in text and "Event 0" not in text and "memories that changed" not in text
    assert "2 user [~m1] You should know that Ana Ruiz works as a chef in Town0." in text
    assert "3 user [=m2] You should know that Ana Ruiz drinks green tea." in text


def test_without_a_name_a_person_is_shown_of_whom_nothing_was_rejected(data_set, tmp_path):
    assert shown(data_set) == shown(data_set, "p000000")
    write(tmp_path, [rejected_person(1), person(2, lost=(0,)), person(3)])
    assert shown(tmp_path) == shown(tmp_path, "p000003")


def value(someone) -> dict:
    return {"fingerprint": "x", "person": someone.model_dump(mode="json")}


def test_finished_people_can_be_seen_while_others_are_written(tmp_path, data_set):
    path = tmp_path / "work" / "people.jsonl"
    with JsonLinesStore(path) as store:
        for someone in (person(2), person(0), person(2, lost=(1,))):
            store.put(someone.persona.person_id, value(someone))
        with path.open("ab") as file:
            file.write(b'{"key": "p000005", "value": {"fing')  # killed in the middle of a line
        for person_id in ("p000000", "p000002"):
            assert shown(tmp_path, person_id) == shown(data_set, person_id)
        with pytest.raises(DeltaMemError, match="no person 'p000005'; there are 2, p000000 to p000002"):
            shown(tmp_path, "p000005")
    assert path.read_bytes().endswith(b'{"fing')


def test_people_of_all_shards_are_found(tmp_path, data_set):
    zero, one, two, three = some_people()
    for shard, people in (("0-of-2", (zero, two)), ("1-of-2", (one, three))):
        with JsonLinesStore(tmp_path / "shards" / shard / "work" / "people.jsonl") as store:
            for someone in people:
                store.put(someone.persona.person_id, value(someone))
    for number in range(4):
        assert shown(tmp_path, f"p{number:06d}") == shown(data_set, f"p{number:06d}")


def test_an_unknown_person_or_session_is_one_sentence_that_names_the_range(data_set):
    with pytest.raises(DeltaMemError, match=r"^no person 'p7'; there are 4, p000000 to p000003$"):
        shown(data_set, "p7")
    for session in (0, 4):
        with pytest.raises(DeltaMemError, match=rf"^p000000: no session {session}; there are 1 to 3$"):
            shown(data_set, "p000000", session)
    with pytest.raises(DeltaMemError, match=r"^p000001: no session 1; there are none$"):
        shown(data_set, "p000001", 1)


def test_nothing_written_yet_is_said(tmp_path):
    with pytest.raises(DeltaMemError, match="there are no people yet"):
        shown(tmp_path)
    with pytest.raises(DeltaMemError, match="no person 'p000000'; there are none yet"):
        shown(tmp_path, "p000000")


def test_no_text_can_steer_the_terminal_or_is_taken_for_markup(tmp_path):
    write(tmp_path, [person(0, text="\x1b[2J[bold red]loud[/] \x07"), person(3, "heldout")])
    text = shown(tmp_path, "p000000") + shown(tmp_path, "p000000", 1)
    assert "\x1b" not in text and "\x07" not in text
    assert r"\x1b[2J[bold red]loud[/] " in text
    assert "\x1b[" in shown(tmp_path, "p000000", force_terminal=True)

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.errors import DeltaMemError
from synth.config import PersonaSettings
from synth.personas import draw_personas, generate, parts

MANY = 5_000


def seeds(settings: PersonaSettings, people: int = 5, seed: int = 1) -> list[str]:
    return [persona.seed for persona in draw_personas(settings, people=people, heldout_share=0.1, seed=seed)]


def file(path: Path) -> PersonaSettings:
    return PersonaSettings(source="file", path=str(path))


@given(people=st.integers(2, 60), share=st.floats(0.01, 0.99))
@settings(max_examples=10, deadline=None)
def test_both_splits_have_people_and_the_held_out_ones_are_spread_evenly(people: int, share: float) -> None:
    drawn = draw_personas(PersonaSettings(), people=people, heldout_share=share, seed=1)
    assert [persona.person_id for persona in drawn] == [f"p{number:06d}" for number in range(people)]
    heldout = [number for number, persona in enumerate(drawn) if persona.split == "heldout"]
    assert 1 <= len(heldout) < people
    assert abs(len(heldout) - people * share) <= 1.5
    assert {persona.source for persona in drawn} == {"generated"}
    for end in range(1, people):
        assert abs(sum(number < end for number in heldout) - end * share) <= 1.5


def test_generated_seeds_are_all_different_and_no_more_than_there_are() -> None:
    assert len(set(generate(MANY, 1))) == MANY
    total = parts().total
    assert total > 50_000_000 and parts().sentence(total - 1) != parts().sentence(0)
    with pytest.raises(IndexError):
        parts().sentence(total)
    with pytest.raises(DeltaMemError, match=f"only {total} different ones"):
        generate(total + 1, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"persona": "a cook"}\n\n{"persona": "a judge"}\n'),
        ("b.jsonl", '{"id": "7", "input persona": "a cook"}\n{"input persona": " a  judge", "other": "x"}\n'),
        ("c.jsonl", '{"n": 1, "who": "a cook"}\n{"n": 2, "who": "a judge"}'),
        ("d.jsonl", '"a cook"\n"a judge"\n'),
        ("e.txt", "a cook\n\na judge\nA Cook\n"),
    ],
)
def test_personas_of_a_file_are_found_under_any_usual_key(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = seeds(file(tmp_path / name), 2)
    assert sorted(text.casefold() for text in found) == ["a cook", "a judge"]


def test_too_few_different_personas_are_refused_with_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cook\na  COOK\na judge\n")
    with pytest.raises(DeltaMemError, match=r"a\.txt has 2 different personas, but 3 are asked for"):
        seeds(file(tmp_path / "a.txt"), 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"persona": "x"}\n{"persona"', r"a\.jsonl, line 2: not JSON"),
        (b'{"n": 1}', r"a\.jsonl, line 1: no text"),
        (b"[1]", r"a\.jsonl, line 1: no text"),
        (b'{"persona": "' + b"x" * 401 + b'"}', r"line 1: a persona of 401 characters"),
        (b"\xff", r"a\.jsonl, line 1: not UTF-8"),
        (None, r"a\.jsonl: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DeltaMemError, match=message):
        seeds(file(tmp_path / "a.jsonl"), 1)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setitem(os.environ, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_network")
def test_a_downloaded_copy_of_personahub_is_read(tmp_path: Path) -> None:
    rows = [f"person {number}" for number in range(50)] + ["Person 7", "", "x" * 401]
    path = tmp_path / "persona.jsonl"
    path.write_text("".join(json.dumps({"persona": row}) + "\n" for row in rows))
    hub = PersonaSettings(source="personahub", path=str(path))
    found = draw_personas(hub, people=50, heldout_share=0.1, seed=1)
    assert len({persona.seed.casefold() for persona in found}) == 50
    assert {persona.source for persona in found} == {"personahub"}
    assert seeds(hub, 20) == [persona.seed for persona in found[:20]]
    with pytest.raises(DeltaMemError, match="has 50 different personas, but 51 are asked for"):
        seeds(hub, 51)
    with pytest.raises(DeltaMemError, match="no column 'who' but"):
        seeds(hub.model_copy(update={"column": "who"}), 2)


@pytest.mark.usefixtures("no_network")
def test_without_network_or_file_the_command_that_fetches_personahub_is_named() -> None:
    with pytest.raises(
        DeltaMemError, match=r"^proj-persona/PersonaHub: .* hf download proj-persona/PersonaHub persona\.jsonl --repo"
    ):
        seeds(PersonaSettings(source="personahub"), 2)
    with pytest.raises(DeltaMemError, match="hf download"):
        seeds(PersonaSettings(source="personahub", path="absent.jsonl"), 2)

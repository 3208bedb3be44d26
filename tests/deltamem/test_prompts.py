"""Prompt files, and the names of the package itself."""

import hashlib
from pathlib import Path
from string import Template

import pytest

import deltamem.prompts
from deltamem.errors import DeltaMemError
from deltamem.prompts import load_prompt

NAMES = sorted(path.stem for path in Path(deltamem.prompts.__file__).parent.glob("*.txt"))


def test_every_public_name_is_where_it_is_looked_up() -> None:
    assert {name: getattr(deltamem, name).__name__ for name in deltamem.__all__} == {name: name for name in deltamem.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_prompt_loads_and_its_marks_are_well_formed(name: str) -> None:
    prompt = load_prompt(name)
    assert prompt.text.strip()
    assert prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()
    assert Template(prompt.text).is_valid()


@pytest.mark.parametrize("name", ["session", "session_compact", "session_undated"])
def test_session_prompt_is_filled_and_a_missing_value_is_not_overlooked(name: str) -> None:
    filled = load_prompt(name).fill(person="Ana", time="T", dialogue="user: $5 and $time")
    assert "Ana" in filled and "user: $5 and $time" in filled
    with pytest.raises(KeyError, match="dialogue"):
        load_prompt(name).fill(person="Ana", time="T")


@pytest.mark.parametrize("name", ["nothing", "../errors", ""])
def test_unknown_prompt_lists_those_that_exist(name: str) -> None:
    with pytest.raises(DeltaMemError, match=r"does not exist; there are: .*manager.*session"):
        load_prompt(name)

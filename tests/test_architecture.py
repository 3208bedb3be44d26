"""docs/architecture.md: everything that the three walks name exists."""

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
NAME = re.compile(r"`((?:deltamem|rewards|synth|eval)\.[\w.]+)`")


@pytest.mark.parametrize("dotted", sorted(set(NAME.findall(PAGE)) - {"deltamem.training"}))
def test_everything_that_is_named_exists(dotted: str) -> None:
    assert pkgutil.resolve_name(dotted) is not None


def test_what_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        pkgutil.resolve_name("deltamem.memory.nothing")


def test_each_walk_is_short() -> None:
    assert [title.partition(":")[0] for title in WALKS] == ["Training", "Serving", "Evaluation"]
    for title, walk in WALKS.items():
        assert 5 <= len(set(NAME.findall(walk))) <= 12, title

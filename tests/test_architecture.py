"""docs/architecture.md: everything that the three walks name exists; and which packages a module may load."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from house import House

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
NAME = re.compile(r"`((?:deltamem|rewards|synth|eval|papers|integrations)\.[\w.]+)`")


@pytest.mark.parametrize("dotted", sorted(set(NAME.findall(PAGE)) - {"deltamem.training"}))
def test_everything_that_is_named_exists(dotted: str) -> None:
    assert pkgutil.resolve_name(dotted) is not None


def test_what_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        pkgutil.resolve_name("deltamem.memory.nothing")


def test_each_walk_is_short() -> None:
    walks = {title: walk for title, walk in WALKS.items() if ": " in title}
    assert [title.partition(":")[0] for title in walks] == ["Training", "Serving", "Evaluation"]
    for title, walk in walks.items():
        assert 5 <= len(set(NAME.findall(walk))) <= 12, title


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("deltamem", {"pydantic", "numpy"}),
        ("deltamem.bank.base", {"openai", "chromadb", "torch"}),
        ("deltamem.bank.chroma", {"openai", "torch"}),
        ("rewards.scorer", {"openai", "torch", "rich"}),
        ("train", {"torch", "transformers", "verl", "ray", "openai"}),
        ("synth.__main__", {"torch", "transformers", "chromadb"}),
        ("eval.locomo.__main__", {"torch", "transformers", "chromadb", "matplotlib"}),
        ("synth.pipeline", {"torch", "transformers", "chromadb", "matplotlib"}),
    ],
)
def test_a_command_loads_only_what_it_needs(module: str, heavy: set[str]) -> None:
    script = f"import sys, {module}; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_figures_of_the_house() -> None:
    house = House(ROOT)
    assert house.circles == []
    assert house.fan_out(15) == {}
    assert len(house.repeated_classes) <= 5, house.repeated_classes

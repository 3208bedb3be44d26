"""The values that the everyday scenes are filled with: they load as text, and fit into a sentence as they stand."""

import re
from pathlib import Path

import pytest
import yaml

import synth
from synth.offline.grammar import with_article

PATH = Path(synth.__file__).parent / "everyday" / "values.yaml"
LISTS: dict[str, list[str]] = yaml.safe_load(PATH.read_text("utf-8"))
# After "a", or named with "the" by the scene: a value that brings its own article would be given two.
WITHOUT_ARTICLE = (
    "race", "drink", "cake", "job", "trade", "instrument", "class", "dog_breed", "cat_breed", "plant", "bird", "tree", "car",
    "phone", "gadget", "garment", "furniture", "tool", "injury", "charity", "present", "camping_place", "transport",
    "course", "toy", "school_event", "meeting",
)  # fmt: skip
# Keywords are looked for within words too, so a value inside of any of these would be a keyword that costs nothing.
COMMON = (
    "her the their these this that could with within somewhat lives travel afternoon memories message describe commit "
    "limit climate january august woman holiday start heart party growing throwing tired hired enjoy proud loud sharp "
    "shoes advice service otherwise else false muscle startup phone photo medal chocolate crowd balloon regret helmet "
    "wash soaked author irritated several contact foreign price concrete attention escape necessarily operation improve "
    "embarrassed secret parents children weekend moment everyone"
)


def test_there_are_several_thousand_values() -> None:
    total = sum(map(len, LISTS.values()))
    print(f"{total} values in {len(LISTS)} lists")
    assert total >= 4_000


@pytest.mark.parametrize("name", LISTS)
def test_a_list_holds_different_values_in_a_line_each(name: str) -> None:
    values = LISTS[name]
    assert [value for value in values if not isinstance(value, str)] == []  # Yes, 1984 and the like need quotes
    assert [value for value in values if value != " ".join(value.split()) or not value] == []
    assert [value for value in values if re.search(r"[][{}|<>_\n]", value)] == []
    folded = [value.casefold() for value in values]
    assert sorted({value for value in folded if folded.count(value) > 1}) == []
    assert len(values) >= 15


@pytest.mark.parametrize("name", LISTS)
def test_a_value_fits_a_memory_too(name: str) -> None:
    """A memory is one sentence in the third person, so a value has no word of the first and ends no sentence."""
    values = LISTS[name]
    assert [value for value in values if re.search(r"\b(I|my|me|we|us|our|you|your)\b", value)] == []
    assert [value for value in values if re.search(r"[.!?](\s|$)", value)] == []
    assert [value for value in values if with_article(value) != value] == []  # What puts a and an right leaves it alone


@pytest.mark.parametrize("name", LISTS)
def test_no_value_is_part_of_a_common_word(name: str) -> None:
    part = r"\w{0}|{0}\w"
    assert [value for value in LISTS[name] if re.search(part.format(re.escape(value.casefold())), COMMON)] == []


@pytest.mark.parametrize("name", WITHOUT_ARTICLE)
def test_a_value_that_gets_an_article_brings_none(name: str) -> None:
    assert [value for value in LISTS[name] if re.match(r"(a|an|the|some|my)\s", value, re.IGNORECASE)] == []


@pytest.mark.parametrize("name", LISTS)
def test_a_list_stands_under_a_sentence_that_its_values_fit(name: str) -> None:
    assert re.search(rf"^# .*\{{{name}\}}.*\n{name}: \[", PATH.read_text("utf-8"), re.MULTILINE)


def test_a_line_is_no_longer_than_125_columns() -> None:
    assert [line for line in PATH.read_text("utf-8").splitlines() if len(line) > 125] == []

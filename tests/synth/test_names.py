from __future__ import annotations

import random
import re

import pytest

from deltamem.errors import DeltaMemError
from deltamem.sessions import Split
from synth.names import InventedNames, RealNames, invent_name, invent_place, name_split, names, split_of, surname_split

PEOPLE = 100_000
SPLITS: tuple[Split, Split] = ("train", "heldout")


def test_each_of_a_hundred_thousand_people_has_a_name_of_their_own_in_either_split() -> None:
    real = RealNames(1)
    drawn = {split: {real.person(number, split)[0] for number in range(PEOPLE)} for split in SPLITS}
    assert len(drawn["train"]) == len(drawn["heldout"]) == PEOPLE
    assert all(len(name.split()) == 2 for name in drawn["train"])
    assert not {name.split()[1] for name in drawn["train"]} & {name.split()[1] for name in drawn["heldout"]}


def test_every_region_has_surnames_of_both_splits() -> None:
    assert all({surname_split(surname) for surname in region.surnames} == set(SPLITS) for region in names().regions)


def test_the_first_people_have_names_of_one_region_and_the_gender_of_the_first_name() -> None:
    real = RealNames(3)
    genders = set()
    for number in range(5_000):
        name, gender = real.person(number, "heldout")
        first, surname = name.split()
        (region,) = (region for region in names().regions if surname in region.surnames)
        assert first in (region.female if gender == "female" else region.male)
        genders.add(gender)
    assert genders == {"female", "male"}


def test_other_people_have_names_of_the_split() -> None:
    real, rng = RealNames(1), random.Random(1)
    for split in SPLITS:
        assert {surname_split(real.other(rng, split).split()[1]) for _ in range(300)} == {split}
        assert {name_split(InventedNames(1).other(rng, split)) for _ in range(300)} == {split}
        for source in (real, InventedNames(1)):
            assert {split_of(source.person(number, split)[0]) for number in range(200)} == {split}


def test_names_depend_on_the_seed_and_the_number_alone() -> None:
    for first, again, another in ((RealNames(1), RealNames(1), RealNames(2)), [InventedNames(seed) for seed in (1, 1, 2)]):
        some = [first.person(number, "train") for number in range(50)]
        assert some == [again.person(number, "train") for number in reversed(range(50))][::-1]
        assert some != [another.person(number, "train") for number in range(50)]
        assert {gender for _, gender in some} == {"female", "male"}


def test_the_person_after_the_last_name_is_refused() -> None:
    real = RealNames(1)
    capacity = real.capacity("heldout")
    assert capacity > PEOPLE
    assert real.person(capacity - 1, "heldout")[0]
    with pytest.raises(DeltaMemError, match=f"real names for {capacity} people only"):
        real.person(capacity, "heldout")


def test_an_invented_name_is_one_word_of_its_split_and_about_a_fifth_are_held_out() -> None:
    rng = random.Random(1)
    for split in SPLITS:
        invented = [invent_name(rng, split) for _ in range(500)]
        assert {name_split(name) for name in invented} == {split}
        assert all(name.isalpha() and name.istitle() for name in invented)
        assert len(set(invented)) > 480
    held = sum(name_split(f"name{rng.random()}") == "heldout" for _ in range(20_000))
    assert 0.18 < held / 20_000 < 0.22


def test_names_of_one_syllable_are_short_and_no_words() -> None:
    rng = random.Random(1)
    for split in SPLITS:
        invented = {invent_name(rng, split, 1) for _ in range(5_000)}
        assert {name_split(name) for name in invented} == {split}
        assert all(re.fullmatch("[A-Z][^aeiou]*[aeiou]+[^aeiou]*|[AEIOU][aeiou]*[^aeiou]*", name) for name in invented)
        assert len(invented) > 300 and invented.isdisjoint(names().invented.words)
    number, (name, _) = 3, InventedNames(5, 1).person(3, "train")
    assert len(re.findall("[aeiou]+", name, re.IGNORECASE)) == 1
    assert InventedNames(5, 1).person(number, "train")[0] == name != InventedNames(5).person(number, "train")[0]


def test_an_invented_town_sounds_like_one_and_belongs_to_its_split() -> None:
    rng = random.Random(1)
    for split in SPLITS:
        towns = [invent_place(rng, split) for _ in range(500)]
        assert {name_split(town) for town in towns} == {split} and all(town.istitle() and town.isalpha() for town in towns)
        assert all(town.endswith(names().invented.places) for town in towns) and len(set(towns)) > 450
        assert not any(names().invented.rude.search(town) for town in towns)


def test_no_invented_name_is_rude() -> None:
    invented = [invent_name(random.Random(seed), "train") for seed in range(20_000)]
    assert not [name for name in invented if any(part in name.lower() for part in names().invented.refused)]
    onsets, vowels = names().invented.onsets, names().invented.vowels
    assert not [name for name in invented if re.search("nip|quu|ass|breast|teat|kill|sick", name.lower())]
    assert "sh" in onsets and "i" in vowels and "shit" in names().invented.refused  # so that there is something to refuse

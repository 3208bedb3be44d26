from __future__ import annotations

import random
import re

from deltamem.sessions import Split
from synth.names import InventedNames, RealNames, invent_name, name_split, names, split_of, surname_split

PEOPLE = 5_000
SPLITS: tuple[Split, Split] = ("train", "heldout")


def test_each_of_many_people_has_a_name_of_their_own_in_either_split() -> None:
    real = RealNames(1)
    drawn = {split: {real.person(number, split)[0] for number in range(PEOPLE)} for split in SPLITS}
    assert len(drawn["train"]) == len(drawn["heldout"]) == PEOPLE
    assert min(map(real.capacity, SPLITS)) > 100_000
    assert all(len(name.split()) == 2 for name in drawn["train"])
    assert not {name.split()[1] for name in drawn["train"]} & {name.split()[1] for name in drawn["heldout"]}


def test_the_first_people_have_names_of_one_region_and_the_gender_of_the_first_name() -> None:
    real = RealNames(3)
    genders = set()
    for number in range(1_000):
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


def test_an_invented_name_is_one_word_of_its_split_and_about_a_fifth_are_held_out() -> None:
    rng = random.Random(1)
    for split in SPLITS:
        invented = [invent_name(rng, split) for _ in range(500)]
        assert {name_split(name) for name in invented} == {split}
        assert all(name.isalpha() and name.istitle() for name in invented)
        assert len(set(invented)) > 480
    held = sum(name_split(f"name{rng.random()}") == "heldout" for _ in range(1_000))
    assert 0.15 < held / 1_000 < 0.25


def test_no_invented_name_is_rude() -> None:
    invented = [invent_name(random.Random(seed), "train") for seed in range(1_000)]
    assert not [name for name in invented if any(part in name.lower() for part in names().invented.refused)]
    onsets, vowels = names().invented.onsets, names().invented.vowels
    assert not [name for name in invented if re.search("nip|quu|ass|breast|teat|kill|sick", name.lower())]
    assert "sh" in onsets and "i" in vowels and "shit" in names().invented.refused  # so that there is something to refuse

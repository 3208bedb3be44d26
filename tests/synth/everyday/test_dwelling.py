"""Talk about what has been stated: it is there, it says nothing new, and what is said again has the words of the fact."""

import random

from synth.everyday.dwelling import dwelt_on
from synth.everyday.scenes import SceneFact
from synth.everyday.statements import statements

FACT = SceneFact(
    kind="plan",
    label=("{name} wants to sail to {city} alone.", "Alone, {name} is going to sail to {city}."),
    keys=("sail", "{city}"),
    recall="you wanted to sail to {city}",
)
VALUES = {"name": "Ann", "city": "Oslo"}


def drawn(seed: int) -> list[tuple[str, str]]:
    stated = statements(FACT)[0]
    return list(dwelt_on(random.Random(seed), stated.said.format_map(VALUES), [(FACT, stated)], VALUES))


def test_the_fact_is_stated_first_and_then_talked_about() -> None:
    talks = [drawn(seed) for seed in range(40)]
    assert all(talk[0][0].startswith("I want to sail to Oslo alone.") for talk in talks)
    assert {len(talk) for talk in talks} == {2, 3, 4, 5}
    assert all(other for talk in talks for _, other in talk)


def test_of_what_is_said_then_only_what_is_said_again_has_words_of_the_fact() -> None:
    later = [own for seed in range(80) for own, _ in drawn(seed)[1:]]
    again = [own for own in later if "sail" in own or "Oslo" in own]
    assert 0.05 < len(again) / len(later) < 0.3
    assert all("As I" in own or "Like I" in own or "once more" in own for own in again)


def test_the_assistant_repeats_the_fact_at_most_once() -> None:
    counts = [sum("you wanted to sail to Oslo" in other for _, other in drawn(seed)) for seed in range(40)]
    assert set(counts) == {0, 1}


def test_talk_of_hopes_is_for_plans_alone() -> None:
    """Nobody looks forward to an allergy."""
    attribute = FACT.model_copy(update={"kind": "attribute", "label": ("{name} has an allergy to {city}.",)})
    hopes = ("looking forward", "big step", "take shape", "hard work", "make the most of it")

    def hoped(*facts: SceneFact) -> bool:
        told = [(fact, statements(fact)[0]) for fact in facts]
        said = [own for seed in range(60) for own, _ in dwelt_on(random.Random(seed), "So it is.", told, VALUES)]
        return any(hope in own for own in said for hope in hopes)

    assert hoped(FACT) and not hoped(attribute) and not hoped(FACT, attribute)

"""Labels in the first person: what is turned is turned rightly, and what a rule of thumb could get wrong is left."""

from __future__ import annotations

import re

import pytest

from synth.everyday.scenes import SceneFact, scenes, slots_of
from synth.everyday.statements import in_first_person, statements


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("{name} works as a {job} at {employer}.", "I work as a {job} at {employer}."),
        ("{name} is {age} years old.", "[I'm|I am] {age} years old."),
        ("{name} is not afraid, as {they} has learned to swim.", "I'm not afraid, as [I've|I have] learned to swim."),
        ("{name} never worries and always carries a map.", "I never worry and always carry a map."),
        ("{name} does not eat fish.", "I do not eat fish."),
        ("{name}'s sister {sister} taught {them} to rely on {themself}.", "My sister {sister} taught me to rely on myself."),
        ("{sister}, {name}'s sister, moved to {city} {ago_date}.", "{sister}, my sister, moved to {city} {ago}."),
        ("The flat under the roof is {theirs}.", "The flat under the roof is mine."),
        ("Only with the costs saved will {name} give up {their} job.", "Only with the costs saved will I give up my job."),
        ("{name} was late and is now sorry that {they} waited.", "I was late and am now sorry that I waited."),
        ("The hall is cold, which is why {name} reads in bed.", "The hall is cold, which is why I read in bed."),
        ("Talking in front of people makes {name} nervous.", "Talking in front of people makes me nervous."),
        ("An aunt of {name}'s, {aunt}, bakes.", "An aunt of mine, {aunt}, bakes."),
        ("It helps {name} to know cousin {cousin_f} is near.", "It helps me to know my cousin {cousin_f} is near."),
    ],
)
def test_labels_in_the_first_person(label: str, said: str) -> None:
    assert in_first_person(label) == said


@pytest.mark.parametrize(
    "label",
    [
        "{name} and {partner} want their own house.",  # "we"
        "{name} thinks that {sister} is kind and works too much.",  # whose work?
        "{name} likes the dogs and walks.",
        "{name} watches and teaches, {they} says.",  # could be nouns
        "{friend_f} has a spare key, and {name} has hers.",
        "The choir took {name}, who sings alto.",
        "What drives {name} is the memory.",
        "{name} and {sister} like each other, as they share a room.",
    ],
)
def test_what_could_go_wrong_is_left(label: str) -> None:
    assert in_first_person(label) == ""


def _facts() -> list[tuple[SceneFact, frozenset[str]]]:
    return [
        (fact, scene.mentioned)
        for scene in scenes()
        for facts in (scene.facts, *({**later.change, **later.add} for later in scene.later))
        for fact in facts.values()
    ]


def test_most_facts_of_the_scenes_can_be_stated_and_need_nothing_that_the_scene_lacks() -> None:
    found = [(statements(fact), slots) for fact, slots in _facts()]
    assert sum(bool(texts) for texts, _ in found) > 0.85 * len(found)
    for texts, slots in found:
        assert all(slots_of(one.said) <= slots and one.said == in_first_person(one.label) for one in texts)


_WRONG = re.compile(
    r"\{(?:name|they|them|their|theirs|themself)\}|\bI (?:is|has|does|goes|wants|likes|feels)\b"
    r"|\b(?:me|mine|my) (?:am|has|have)\b"
)


def test_no_statement_has_the_marks_of_a_wrong_turn() -> None:
    assert not [one.said for fact, _ in _facts() for one in statements(fact) if _WRONG.search(one.said)]


def test_whoever_works_somewhere_has_not_lost_their_job() -> None:
    stated = {scene.name: [one.said for fact in scene.facts.values() for one in statements(fact)] for scene in scenes()}
    employed = {name for name, said in stated.items() if any("as a {job} at {employer}" in text for text in said)}
    jobless = {"let_go", "pf_laid_off_support", "pa_career_redundancy_calm"}
    assert employed and jobless <= stated.keys()
    assert all("job" in scene.group for scene in scenes() if scene.name in employed | jobless)

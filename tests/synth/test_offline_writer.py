"""The offline writer: deterministic, split by names, free of violations, and templates that say what they must."""

import asyncio
import random
import re

import pytest
from handmade import edit, span
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_people import Recorder, life, people, shape

from deltamem.errors import DeltaMemError
from synth.assembly import labelled_sessions
from synth.offline import OfflineWriter, answer
from synth.offline.paper import read_view
from synth.offline.topics import read
from synth.planning import UPDATES
from synth.records import FactChange, FactOrigin, PastEvent, Person, PlannedChange, Track
from synth.tasks import Unit
from synth.validators import judge_life
from synth.validators.session import judge_chain

WORD = re.compile(r"[A-Za-z]+")
SPLITS = st.sampled_from(["train", "heldout"])


@pytest.fixture(scope="module")
def recorded() -> tuple[Recorder, Person]:
    writer = Recorder(5)
    return writer, life(3, shape("paper"), writer, sessions=25, real=True)


@settings(max_examples=15, deadline=None)
@given(number=st.integers(0, 5_000), seed=st.integers(0, 2**31), sessions=st.integers(1, 12), split=SPLITS)
def test_what_is_left_of_people_of_the_tiny_form_breaks_no_rule(number, seed, sessions, split):
    person = life(number, shape("demanding_tiny"), OfflineWriter(seed), sessions=sessions, seed=seed, split=split)
    assert judge_life(person, shape("demanding_tiny")).violations == ()
    labelled = list(labelled_sessions(person))
    assert judge_chain(labelled).violations == ()
    assert not [word for item in labelled for operation in item.operations for word in operation.keywords if " " in word]
    missing = [str(session.index) for session in person.sessions if session.dialogue is None]
    assert missing == [rejection.where for rejection in person.rejections if rejection.unit == Unit.DIALOGUE]
    assert len(person.sessions) == sessions and len(missing) <= 1


def test_people_of_the_paper_shape_break_no_rule(recorded):
    # Of the second one, the assistant once said the same twice.
    for person in (recorded[1], life(393, shape("paper"), OfflineWriter(5610855), sessions=25, seed=5610855)):
        assert person.violations == {} or set(person.violations.values()) == {0}, person.violations
        assert person.rejections == () and person.dropped == 0
        assert len(person.sessions) == 25 and all(session.dialogue for session in person.sessions)
        origins = {fact.origin for session in person.sessions for fact in session.facts}
        assert origins == set(FactOrigin) - {FactOrigin.EVENT, FactOrigin.REVISION}
        assert {delta.change for event in person.events for delta in event.changes} == {FactChange.NEW, *UPDATES}


def test_an_answer_depends_on_the_task_the_seed_and_the_place_only(recorded):
    asked = recorded[0].asked
    for task, written, place in asked[::-4]:
        again = asyncio.run(OfflineWriter(5).write(type(task).model_validate_json(task.model_dump_json()), place))
        assert again.answer == written == answer(task, random.Random(f"5/{place.name}"))
        assert again.verdicts[0].violations == ()
    task, written, place = asked[-1]
    assert asyncio.run(OfflineWriter(6).write(task, place)).answer != written


def test_an_answer_that_breaks_a_rule_is_none_and_says_which(recorded):
    task, place = recorded[0].of(Unit.DIALOGUE)
    written = asyncio.run(OfflineWriter(5).write(edit(task, {"limits.assistant_words": span(500, 600)}), place))
    assert written.answer is None
    assert {violation.rule for violation in written.verdicts[0].violations} == {"dialogue.assistant_words"}


def test_changes_of_facts_that_no_template_made_are_refused(recorded):
    task, _ = recorded[0].of(Unit.EVENTS)
    unknown = tuple(fact.model_copy(update={"text": f"{task.fixed.name} is fond of it."}) for fact in task.facts)
    planned = PlannedChange(track=Track.HEALTH, change=FactChange.SHIFT)
    slots = (task.slots[0].model_copy(update={"changes": (planned,)}),)
    with pytest.raises(DeltaMemError, match="track health is left for the change shift"):
        answer(task.model_copy(update={"facts": unknown, "slots": slots}), random.Random(0))


def invented(someone: Person) -> set[str]:
    """The name of a person of the tiny form, and those of everybody in what was ever remembered of them."""
    name = someone.profile.name
    texts = [fact.text for fact in (*someone.profile.initial, *(fact for each in someone.sessions for fact in each.facts))]
    return {read(name, text).who for text in texts} | {name}


def test_heldout_and_training_people_share_no_invented_name_in_any_text():
    names: dict[str, set[str]] = {"train": set(), "heldout": set()}
    said: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for someone in people(20, 3, heldout_share=0.4):
        split, texts = someone.persona.split, [someone.profile.name]
        for item in labelled_sessions(someone):
            texts += [memory.text for state in (item.prior_state, item.next_state) for memory in state.memories]
            texts += [turn.content for turn in item.session.dialogue]
        names[split] |= invented(someone)
        said[split] |= {word for text in texts for word in WORD.findall(text)}
    assert len(names["train"]) > 50 and len(names["heldout"]) > 25
    for one, other in (("train", "heldout"), ("heldout", "train")):
        assert names[one] <= said[one]
        assert not names[one] & said[other]


def test_memory_threads_are_read_back_and_fit_however_long_they_get(recorded):
    writer, someone = recorded
    assert someone.evolutions
    for evolution in someone.evolutions:
        for memory in evolution.memories:
            view = read_view(someone.profile.name, memory.text)
            assert view.method is evolution.method
            assert view.fact(someone.profile.name) == memory
    task, _ = writer.of(Unit.EVOLUTION)
    long = task.model_copy(update={"events": tuple(PastEvent.of(event) for event in someone.events[:8])})
    for memory in answer(long, random.Random(1)).memories:
        assert len(memory.text.split()) in long.limits.words

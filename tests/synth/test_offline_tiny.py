"""The tiny form reads back what it writes, changes and says it, and stands in for a model in `demanding` at scale."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest
from offline_people import Recorder, life, shape

from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from synth.assembly import labelled_sessions
from synth.offline import OfflineWriter, answer
from synth.offline.topics import Cast, KnownValues, Topic, adjusted, read, topic_file, topics
from synth.records import Dialogue, FactOrigin, Person
from synth.tasks import DialogueTask, RevisionTask, Unit
from synth.validators.session import judge_chain

NAME = "Belno"
CAST = Cast(NAME, "train")


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.name)
def test_what_a_memory_says_is_read_back_after_every_change(topic: Topic) -> None:
    rng = random.Random(topic.name)
    known = KnownValues(topic, CAST.fill(rng, topic, "Treadaim"))
    changed = adjusted(rng, known)
    over = KnownValues(topic, changed.values, over=True)
    assert known.keywords(4) == ("Treadaim", known.value) and changed.keywords(4) == (changed.value, "Treadaim")
    assert over.keywords(4) == ("longer", "Treadaim", changed.value) and over.keywords(2) == ("longer", "Treadaim")
    assert changed.who == known.who and changed.value != known.value
    for one in (known, changed, over):
        fact = one.fact(NAME, 3)
        assert read(NAME, fact.text) == one
        assert all(re.search(rf"\b{word}\b", fact.text) for word in fact.keywords)
    assert read("Else", fact.text) is None and read(NAME, f"{NAME} sleeps in a tree.") is None


def test_a_change_takes_what_a_rival_of_the_topic_has() -> None:
    topic, other, *_ = topics()
    known = KnownValues(topic, CAST.fill(random.Random(1), topic, "Treadaim"))
    words = [word for word in topic_file().lists[topic.changeable] if word != known.value]
    rivals = [
        KnownValues(topic, {"who": "Grimios", topic.changeable: words[0]}),
        KnownValues(topic, {"who": "Setrur", topic.changeable: words[1]}, over=True),
        KnownValues(other, CAST.fill(random.Random(1), other, "Jaclim")),
    ]
    taken = Counter(adjusted(random.Random(seed), known, rivals=rivals).value for seed in range(100))
    assert taken[words[0]] > 80
    barred = [adjusted(random.Random(seed), known, lambda new: new.value != words[0], rivals).value for seed in range(100)]
    assert taken[words[0]] - barred.count(words[0]) > 40


@cache
def written() -> tuple[tuple[Person, ...], tuple[tuple[DialogueTask, Dialogue], ...]]:
    """Three people of `demanding` as far as templates can tell it, and their dialogues with what was asked."""
    writer = Recorder(1)
    people = tuple(life(number, shape("demanding").scripted, writer, sessions=14, real=number > 0) for number in range(3))
    return people, tuple((task, done) for task, done, _ in writer.asked if task.unit is Unit.DIALOGUE and done is not None)


def test_lives_of_demanding_keep_all_rules() -> None:
    people, _ = written()
    for person in people:
        labelled = list(labelled_sessions(person))
        assert not judge_chain(labelled).violations
        assert len(labelled) >= 12 and len(person.profile.dynamic.relationships) >= 3
    # Two confirmations may be in the same words, and what was explicitly so may be lost when the user misspeaks.
    rejected = Counter(rule for person in people for rejection in person.rejections for rule in rejection.rules)
    assert rejected.total() <= 2 and set(rejected) <= {"dialogue.no_repetition", "dialogue.previous_said"}
    origins = {fact.origin for person in people for session in person.sessions for fact in session.facts}
    assert origins == set(FactOrigin)
    events = Counter(op.event for person in people for one in labelled_sessions(person) for op in one.operations)
    assert 0.15 < events[Event.UPDATE] / events.total() < 0.35 and events[Event.NONE]


def test_a_change_keeps_whom_it_is_about_and_gives_another_word_or_ends_it() -> None:
    ended = changed = 0
    for number in range(28, 37):
        person = life(number, shape("demanding_tiny"), OfflineWriter(1), sessions=4)
        name = person.profile.name
        for fact in (fact for session in person.sessions for fact in session.facts if fact.event is Event.UPDATE):
            before, after = (read(name, text) for text in (fact.previous_text, fact.text))
            assert before.topic is after.topic and before.who == after.who
            assert after.over == (before.value == after.value) == ("longer" in fact.keywords)
            ended, changed = ended + after.over, changed + (not after.over)
    assert changed > 10 and ended


def test_no_mark_follows_another_and_no_word_itself() -> None:
    wrong = re.compile(r"[.!?…]\s*,|,\s*[.,;:!?]|[?!]\.|(?<!\.)\.\.(?!\.)| [,;.]|[.!?]”\.|[:;]\s*[,;:.]|\b(\w+) \1\b")
    assert len(written()[1]) > 30
    for _, dialogue in written()[1]:
        for turn in dialogue.turns:
            assert not wrong.search(turn.user) and not wrong.search(turn.assistant), turn


def test_what_no_template_has_written_cannot_be_changed() -> None:
    writer = Recorder(1)
    life(1, shape("demanding_tiny"), writer, sessions=4)
    task, _ = writer.of(Unit.REVISION)
    assert isinstance(task, RevisionTask)
    memory = task.memories[0].model_copy(update={"text": f"{task.fixed.name} sleeps in a tree."})
    with pytest.raises(DeltaMemError, match=r"^no template reads the memory that is to change: '.* sleeps in a tree.'$"):
        answer(task.model_copy(update={"memories": (memory,)}), random.Random(1))

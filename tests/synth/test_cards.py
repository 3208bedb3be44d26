"""Cards: what is drawn for whom, and what the file holds."""

from __future__ import annotations

import random

from handmade import LIFE
from offline_people import Recorder
from synth_runs import settings

from synth.cards import load_cards
from synth.names import RealNames
from synth.person import write_person
from synth.records import Persona, Voice
from synth.tasks import DialogueTask, EventsTask

CARDS = load_cards()


def test_no_topic_comes_twice_before_all_of_its_domain_have_come():
    slot = LIFE.slots[0]
    count = len(CARDS.topics[slot.domain])
    slots = [slot.model_copy(update={"index": index}) for index in range(2 * count)]
    drawn = [each.topic for each in CARDS.with_topics(slots, random.Random(3))]
    assert set(drawn[:count]) == set(drawn[count:]) == set(CARDS.topics[slot.domain])
    assert drawn[:count] != drawn[count:] and drawn != [each.topic for each in CARDS.with_topics(slots, random.Random(4))]
    assert CARDS.with_topics(slots, random.Random(3)) == CARDS.with_topics(slots, random.Random(3))


async def drawn(**options):
    writer = Recorder(1)  # it knows no guests and no stray lines, so its dialogues may be rejected
    persona = Persona(person_id="p000001", seed="A baker.", source="generated", split="train")
    shape = settings("unused", "paper").shape
    await write_person(1, persona, writer, shape, RealNames(1), sessions=4, seed=1, **options)
    tasks = [task for task, *_ in writer.asked]
    slots = [slot for task in tasks if isinstance(task, EventsTask) for slot in task.slots]
    return slots, [task.voice for task in tasks if isinstance(task, DialogueTask)]


async def test_tasks_hold_what_was_drawn_from_the_seed_and_nothing_without_cards():
    slots, voices = await drawn(cards=CARDS)
    assert all(slot.topic in CARDS.topics[slot.domain] for slot in slots)
    assert len({voice.style for voice in voices}) == 1 and len({voice.manner for voice in voices}) > 1
    assert (slots, voices) == await drawn(cards=CARDS)
    bare, silent = await drawn()
    assert [slot.model_copy(update={"topic": ""}) for slot in slots] == bare
    assert set(silent) == {Voice()} and len(silent) == len(voices)


def test_a_language_model_is_asked_for_longer_narratives_and_in_the_demanding_shape_for_cards(tmp_path):
    def asked(shape, **changes):
        found = settings(tmp_path, shape, **changes)
        words = found.asked_shape.events.narrative_words
        return words.min, words.max, found.draws_cards

    assert asked("paper") == (60, 160, False)
    assert asked("paper", writer="llm") == (110, 160, False)
    assert asked("paper", writer="llm", llm__narrative_words=0, llm__cards=True) == (60, 160, True)
    assert asked("demanding", writer="llm")[2] and not asked("demanding")[2]
    # Templates know no dates.
    assert settings(tmp_path, "demanding", writer="llm").asked_shape.plan.dated
    assert not settings(tmp_path, "demanding").asked_shape.plan.dated

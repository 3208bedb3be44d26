"""Scenes and asides can be said with any seed, make sense by what can be tested, and state nothing about the user."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deltamem.errors import DeltaMemError
from synth.offline import scenes as module
from synth.offline.scenes import GIVEN, Decoys, Scene, Scenes, decoys, draw_scene, say_decoy, scene_file, scenes, slots_of
from synth.offline.topics import Cast, Known, topics, values
from synth.pools import load, pools
from synth.records import Aside, AsideKind
from synth.validators.base import invented_full_names, occurs

AROUND = dict(zip(GIVEN, ("Brelo", "Tiode", "Pastix", "Necex"), strict=True))
CAST = Cast("Belno", "train")
TOLD = Aside(id="a1", kind=AsideKind.QUESTION, words=tuple(AROUND.values()), memory="")
SPOKEN = tuple(kind for kind in AsideKind if kind is not AsideKind.CUE)
FOLDER = Path(module.__file__).parent

# What would be a fact about the user, had they said it: habits, belongings, work, tastes, people, changes.
_VERBS = (
    "work|live|own|play|keep|collect|hate|love|enjoy|prefer|drive|wear|sleep|study|learn|teach|train|rent|attend|suffer|smoke"
    "|used to|no longer|quit|gave up|have given up|switched|stopped|started|moved|bought|sold|got married|broke up"
)
_PEOPLE = (
    "wife|husband|partner|girlfriend|boyfriend|son|daughter|children|kids|mother|father|mum|dad|parents|brother|sister|aunt|uncle"
    "|cousin|niece|nephew|boss|job|flat|house|dog|cat|car|bike|doctor|dentist|diet|allergy|salary|rent|landlord|hobby"
)
FACTS = re.compile(
    rf"\bI (?:always |usually |often |never |still |also |now |only |just |really )?(?:{_VERBS})\b"
    r"|\bI(?: am|'m) (?:a|an|allergic|married|single|vegetarian|vegan|retired|engaged)\b"
    r"|\bI(?:'ve| have) (?:had|got|always|never|given|stopped|started|quit|two|three)\b"
    r"|\bI(?:'ve| have) an? (?!feeling|question|guess|hunch|moment)"
    rf"|\b[Mm]y (?:own |new |old )?(?:{_PEOPLE})\b",
)


def is_plain(text: str) -> bool:
    return bool(text) and not re.search(r"[{}\[\]<>|]|  | [,.;:?!](?!\))|,,|[,;:]\.|(?<!\.)\.\.(?!\.)", text)


def judge(user: str, assistant: str) -> Iterator[str]:
    for text in (user, assistant):
        if not is_plain(text) or not re.match(r"[“'(]?[A-Z0-9À-ž]|[“'(]", text):
            yield f"not a finished text: {text!r}"
    if not 5 <= len(assistant.split()) <= 75:
        yield f"too short or too long: {assistant!r}"
    if (found := FACTS.search(user)) is not None:
        yield f"{found[0]!r} may state a fact about the user: {user!r}"
    for name in invented_full_names([user], TOLD):
        yield f"{name!r} is nobody that the user has heard of: {user!r}"


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name)
def test_a_scene_is_said_with_any_seed_and_states_nothing(scene: Scene) -> None:
    said = [scene.say(random.Random(seed), AROUND) for seed in range(60)]
    assert scene.say(random.Random(7), AROUND) == said[7]
    for exchanges in said:
        assert len(exchanges) == len(scene.steps)
        problems = [problem for user, assistant in exchanges for problem in judge(user, assistant)]
        assert not problems, problems
    users = [user for exchanges in said for user, _ in exchanges]
    assert len(set(users)) >= 0.3 * len(users)


def test_scenes_are_many_and_a_third_are_about_strangers() -> None:
    gossip = [scene for scene in scenes() if scene.gossip]
    assert len(scenes()) >= 60 and 0.25 <= len(gossip) / len(scenes()) <= 0.45
    for scene in gossip:
        assert not {"who", "who2"} & set(scene_file().slots(scene)), scene.name


def test_lines_of_a_scene_share_what_is_drawn() -> None:
    file = Scenes(
        rules={"greens": ["some {food}"], "lead": ["Well,"], "go_on": ["Ha,"]},
        strangers=scene_file().strangers,
        scenes=(
            Scene(
                name="x",
                words={"pan": ["[pan|pot|wok]"]},
                cases=({"much": "[two|2]", "is": "a pair"}, {"much": "12", "is": "a dozen"}),
                steps=(({"user": ("{much} {pan} <greens>",), "assistant": ("{is} {pan} {food} {stranger} {he}",)},),) * 2,
            ),
        ),
    )
    shown, led = set(), set()
    for seed in range(40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "scene_file", lambda: file)
            (user, assistant), (again, _) = file.scenes[0].say(random.Random(seed), AROUND)
        led.add(user.startswith("Well, "))
        user, again = (text.removeprefix("Well, ").removeprefix("Ha, ") for text in (user, again))
        much, pan, _, *food = user.rstrip(".").split()
        assert user.lower() == again.lower() and pan in assistant and " ".join(food) in assistant
        assert assistant.lower().startswith("a pair" if much.lower() in ("two", "2") else "a dozen")
        shown.add(much.lower())
    assert shown == {"two", "2", "12"} and led == {True, False}


def test_scenes_are_drawn_from_those_not_used() -> None:
    names = {scene.name for scene in scenes()}
    last = sorted(names)[0]
    assert {draw_scene(random.Random(seed), names - {last}).name for seed in range(5)} == {last}
    assert len({draw_scene(random.Random(seed), ()).name for seed in range(200)}) > 0.7 * len(names)
    assert draw_scene(random.Random(1), names) in scenes()


def words_of(slot: str) -> str:
    return {"date": "27 March 2026", "proper": "Blemo House", "phrase": "hung up", "who": "Kliotion", "spot": "Zofaind"}.get(
        slot
    ) or ("Kimo" if slot == "name" else values().draw(random.Random(slot), slot))


@pytest.mark.parametrize("kind", SPOKEN)
@pytest.mark.parametrize("name", decoys().kinds)
def test_an_aside_says_its_words_and_states_nothing(kind: AsideKind, name: str) -> None:
    rng = random.Random(f"{kind} {name}")
    others = [slot for slots in decoys().kinds.values() for slot in slots]
    for slot in decoys().kinds[name]:
        if slot not in {*values().lists, "who", "spot", "name", "date", "proper", "phrase"}:
            continue
        for _ in range(24):
            slots = [slot, rng.choice(others)] if rng.random() < 0.5 else [slot]
            words = list(dict.fromkeys(words_of(one) for one in slots))
            user, assistant = say_decoy(rng, kind, words, slots[: len(words)], AROUND)
            speaker = assistant if kind is AsideKind.ASSISTANT_CLAIM else user
            assert all(occurs(word, speaker) for word in words), (words, speaker)
            problems = [problem for problem in judge(user, assistant) if "nobody that" not in problem]
            assert not problems, problems


@pytest.mark.parametrize("cue", pools().cues)
def test_words_of_change_are_said_of_what_is_no_fact(cue: str) -> None:
    said = {say_decoy(random.Random(seed), AsideKind.CUE, (cue,), (), AROUND) for seed in range(40)}
    assert len({user for user, _ in said}) >= 8
    for user, assistant in said:
        assert occurs(cue, user), (cue, user)
        problems = list(judge(user, assistant))
        assert not problems, problems


@pytest.mark.parametrize("kind", SPOKEN)
def test_asides_without_a_word_are_chat(kind: AsideKind) -> None:
    for seed in range(20):
        assert not list(judge(*say_decoy(random.Random(seed), kind, (), (), AROUND)))


def test_the_kind_of_a_word_follows_from_the_memory_or_its_looks() -> None:
    topic = next(topic for topic in topics() if topic.name == "course")
    known = Known(topic, CAST.fill(random.Random(1), topic))
    words = (known.values["subject"], known.values["spot"])
    aside = Aside(id="a1", kind=AsideKind.QUESTION, words=words, memory=known.text("Belno"))
    assert slots_of("Belno", aside) == ("subject", "spot")
    assert slots_of("Belno", aside.model_copy(update={"memory": ""})) == ("", "")
    kinds = {word: decoys().kind_of("", word) for word in ("5:35", "26 August 2026", "2027", "1,200", "Blemo", "hung up")}
    assert list(kinds.values()) == ["clock", "date", "year", "money", "place", "phrase"]
    assert decoys().kind_of("amount2", "340") == "money" and decoys().kind_of("nonsense", "340") == "money"


BROKEN = [
    (Scenes, "scenes.yaml", "{dish} [for four", "{dishes} [for four", "recipe: unknown slot .*dishes"),
    (Scenes, "scenes.yaml", "- name: jam", "- name: recipe", "more than once: .*recipe"),
    (
        Scenes,
        "scenes.yaml",
        '{phrase: "cheers", tongue: Danish',
        '{phrase: "cheers", tongues: Danish',
        "translation: not all cases",
    ),
    (Decoys, "decoys.yaml", "person: [who, name]", "persons: [who, name]", "no such kind of word: .*person"),
    (Decoys, "decoys.yaml", "clock: [clock, ", "clock: [", "kinds: none has .*clock"),
]


@pytest.mark.parametrize(("schema", "name", "old", "new", "message"), BROKEN, ids=lambda value: str(value)[:20])
def test_data_that_contradict_themselves_are_refused(
    schema: type[Scenes] | type[Decoys], name: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DeltaMemError, match=message):
        load(tmp_path / name, schema)


def test_an_aside_that_does_not_say_its_word_is_refused(tmp_path: Path) -> None:
    data = yaml.safe_load((FOLDER / "decoys.yaml").read_text(encoding="utf-8"))
    data["question"]["person"].append({"user": ["How do you do?"], "assistant": ["Fine."]})
    (tmp_path / "decoys.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(DeltaMemError, match=r"question, person: not all of \['x'\] in 'How do you do"):
        load(tmp_path / "decoys.yaml", Decoys)

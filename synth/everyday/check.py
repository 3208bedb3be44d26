"""Reads scenes as a reviewer would: ``python -m synth.everyday.check [FILE...]`` names what is wrong in them."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from deltamem.config import run_plain
from deltamem.memory import alternatives
from deltamem.text import content_stems
from synth.everyday.cast import OWN, PEOPLE, LifeCast
from synth.everyday.scenes import (
    FOLDER,
    AuthoredScene,
    SceneFact,
    SceneFile,
    Telling,
    draw,
    filled,
    satisfied,
    slots_of,
    value_lists,
)
from synth.pools import load

_DRAWS = 12
_LABEL_WORDS = range(4, 36)
_MOST_WORDS = 110
_SUPPORT = 0.15
_FIRST_PERSON = re.compile(r"\b(?:I|I'm|I've|my|me|we|our|you|your)\b")
_DAY = re.compile(r"((?:ago|ahead|recent)[0-9]*)(?:_date|_day)?$")
_COMPUTED = re.compile(rf"name$|spouse$|(?:.+_)?(?:they|them|their|theirs|themself)$|{_DAY.pattern}")
_TODAY = date(2026, 5, 20)


def problems(scene: AuthoredScene) -> Iterator[str]:
    """What is wrong with a scene, found by drawing its texts."""
    found: dict[str, str] = {}  # By place, so that a draw more is no line more
    for number in range(_DRAWS):
        rng = random.Random(f"{scene.name}/{number}")
        name, gender = ("Nora Bell", "female") if number % 2 else ("Paul Bell", "male")
        cast = LifeCast(rng, name, gender, "train")
        try:
            values = cast.fill(scene, rng, _TODAY, {"name": name})
        except KeyError as error:
            yield f"{scene.name}: unknown slot {error}"
            return
        for problem in _drawn(scene, values, rng):
            found.setdefault(problem.partition(":")[0], problem)
    yield from (f"{scene.name}: {problem}" for problem in [*_again(scene), *found.values()])


def _again(scene: AuthoredScene) -> Iterator[str]:
    """What of a scene that may come again would be the same memory then, or contradict it."""
    if scene.once:
        return
    if scene.group:
        yield "once: a scene of a group comes once"
    changed = {f"{later.op}.{name}": fact for later in scene.later for name, fact in {**later.change, **later.add}.items()}
    for name, fact in {**scene.facts, **changed}.items():
        for label in fact.label:
            if not any(_drawn_anew(scene, slot) for slot in slots_of(label)):
                yield f"{name}: if the scene comes again (once: false) this is the same memory again: {label!r}"


def _drawn_anew(scene: AuthoredScene, slot: str) -> bool:
    """Whether a slot is another word each time that a scene comes, and no day."""
    same_in_a_life = slot.rstrip("0123456789") in (*PEOPLE, *OWN)
    return slot in scene.slots or not (same_in_a_life or _COMPUTED.match(slot))


def _drawn(scene: AuthoredScene, values: Mapping[str, str], rng: random.Random) -> Iterator[str]:
    first = {name: _labels(fact, values, rng) for name, fact in scene.facts.items()}
    for name, fact in scene.facts.items():
        yield from _fact(name, fact, first[name], values)
    for telling in scene.tell:
        yield from _telling(telling, first, values, rng)
        yield from _unsaid(telling, scene.facts, {}, values, rng)
    versions = {"": first}  # By the change that made them
    for later in scene.later:
        place = later.name or later.op
        made = {name: _labels(fact, values, rng) for name, fact in {**later.change, **later.add}.items()}
        versions[later.name] = {**versions.get(later.name, {}), **made} if later.name else versions[""]
        for name, fact in {**later.change, **later.add}.items():
            yield from _fact(f"{place}.{name}", fact, made[name], values)
            before = versions.get(later.after, {}).get(name, []) if name in later.change else []
            yield from _changed(f"{place}.{name}", fact, made[name], before, values)
        held = versions.get(later.after, {})
        for telling in later.tell:
            yield from _telling(telling, made, values, rng, place)
            yield from _unsaid(telling, {**later.change, **later.add}, held, values, rng, place)


def _labels(fact: SceneFact, values: Mapping[str, str], rng: random.Random) -> list[str]:
    """A drawing of each variant."""
    return [draw(rng, [text], values) for text in fact.label]


def _changed(
    place: str, fact: SceneFact, labels: Sequence[str], before: Sequence[str], values: Mapping[str, str]
) -> Iterator[str]:
    keys = [tuple(filled(one, values) for one in alternatives(key)) for key in fact.keys]
    for old in before:
        if old in labels:
            yield f"{place}: the changed fact is the fact as it was"
        if all(satisfied([key], old) for key in keys):
            yield f"{place}: one key at least must be new, but all of them are in {old!r}"
    for gone in (filled(word, values) for word in fact.old):
        if missing := [old for old in before if not satisfied([gone], old)]:
            yield f"{place}: the old word {gone!r} is not in {missing[0]!r}"
        if kept := [label for label in labels if satisfied([gone], label)]:
            yield f"{place}: the old word {gone!r} is in the changed fact {kept[0]!r}"


def _fact(name: str, fact: SceneFact, labels: Sequence[str], values: Mapping[str, str]) -> Iterator[str]:
    keys = [tuple(filled(one, values) for one in alternatives(key)) for key in fact.keys]
    for label in labels:
        if values["name"] not in label or not label.endswith("."):
            yield f"{name}: a memory names {{name}} and ends with a full stop: {label!r}"
        if len(label.split()) not in _LABEL_WORDS:
            yield f"{name}: a memory has {_LABEL_WORDS.start} to {_LABEL_WORDS.stop - 1} words: {label!r}"
        if word := _FIRST_PERSON.search(label):
            yield f"{name}: a memory is in the third person, without {word[0]!r}: {label!r}"
        for key in keys:
            if not satisfied([key], label):
                yield f"{name}: none of {key} is in {label!r}"
    if fact.recall and not fact.recall.startswith("you") and "you" not in fact.recall:
        yield f"{name}: recall continues 'you said that', so it speaks of 'you': {fact.recall!r}"


def _telling(
    telling: Telling, labels: Mapping[str, Sequence[str]], values: Mapping[str, str], rng: random.Random, place: str = ""
) -> Iterator[str]:
    if len(telling.turns) % 2:
        yield f"{place} tell: the owner begins and the other side ends, so the turns are even: {telling.turns[0][:50]!r}"
    turns = [draw(rng, [text], values) for text in telling.turns]
    for number, text in enumerate(turns):
        if len(text.split()) > _MOST_WORDS:
            yield f"{place} tell: more than {_MOST_WORDS} words in a turn: {text[:60]!r}"
        if number % 2 == 0 and values.get("name", "\n") in text:  # Talk without facts names nobody
            yield f"{place} tell: people do not call themselves by name: {text!r}"
    own = content_stems(values.get("name", ""))
    said = content_stems(" ".join(turns))
    for name in labels if telling.facts is None else telling.facts:
        for label in labels[name]:
            stems = {stem for stem in content_stems(label) - own if not stem.isdigit()}
            if stems and len(stems & said) < _SUPPORT * len(stems):
                yield f"{place} tell: of {label!r} hardly a word is said: {turns[0][:50]!r}"


def _unsaid(
    telling: Telling,
    facts: Mapping[str, SceneFact],
    held: Mapping[str, Sequence[str]],
    values: Mapping[str, str],
    rng: random.Random,
    place: str = "",
) -> Iterator[str]:
    """Values of labels that nobody says and that no memory of the scene has; days are drawn anew for each change."""
    days = {day[1] for text in telling.turns for slot in slots_of(text) if (day := _DAY.match(slot))}
    said = " ".join([*(draw(rng, [text], values) for text in telling.turns), *(one for of in held.values() for one in of)])
    for name in facts if telling.facts is None else telling.facts:
        for label in facts[name].label:
            for slot in sorted(slots_of(label)):
                if not _COMPUTED.match(slot) and values[slot].casefold() not in said.casefold():
                    yield f"{place} tell {telling.turns[0][:30]!r}.{name}.{slot}: nobody says {values[slot]!r}"
                if place and (day := _DAY.match(slot)) and day[1] not in days:
                    yield f"{place} tell {telling.turns[0][:30]!r}.{name}.{slot}: nobody says the day of the change"


def report(scenes: Sequence[AuthoredScene]) -> str:
    """What there is of each kind, in one line each."""
    facts = [fact for scene in scenes for fact in scene.facts.values()]
    tellings = [telling for scene in scenes for telling in scene.tell]
    later = [one for scene in scenes for one in scene.later]
    words = [len(text.split()) for telling in tellings for text in telling.own]
    rng = random.Random(1)
    best = []
    for scene in scenes:
        cast = LifeCast(rng, "Nora Bell", "female", "train")
        values = cast.fill(scene, rng, _TODAY)
        for fact in scene.facts.values():
            stems = content_stems(draw(rng, fact.label, values)) - content_stems("Nora Bell")
            for telling in scene.tell:
                if telling.facts is None or fact in (scene.facts[name] for name in telling.facts):
                    shares = [
                        len(stems & content_stems(draw(rng, [text], values))) / max(len(stems), 1) for text in telling.own
                    ]
                    best.append(max(shares))
    lines = [
        f"{len(scenes)} scenes, {len(facts)} facts, {len(tellings)} tellings, {len(later)} changes",
        "kinds: " + ", ".join(f"{kind} {count}" for kind, count in Counter(fact.kind for fact in facts).most_common()),
        "changes: " + ", ".join(f"{op} {count}" for op, count in Counter(one.op for one in later).most_common()),
    ]
    if words:
        words.sort()
        lines.append(
            f"words of an owner's turn: median {words[len(words) // 2]}, 9 of 10 at most {words[len(words) * 9 // 10]}"
        )
    if best:
        share = sum(best) / len(best)
        lines.append(f"a memory's words in the best turn: mean {share:.2f} (LoCoMo .60, HaluMem .45)")
        if share < 0.4:
            lines.append("labels are too far from what is said (aim .40 to .55): take more of the person's own words")
    return "\n".join(lines)


def _show(scene: AuthoredScene) -> None:
    rng = random.Random()
    values = LifeCast(rng, "Nora Bell", "female", "train").fill(scene, rng, _TODAY)
    for title, tell, facts in (
        ("", scene.tell, scene.facts),
        *((f"later ({o.op})", o.tell, {**o.change, **o.add}) for o in scene.later),
    ):
        print(f"\n== {scene.name} {title}")
        for text in (draw(rng, [text], values) for text in rng.choice(tell).turns):
            print("  ", text)
        for fact in facts.values():
            print(f"  + [{fact.kind}] {draw(rng, fact.label, values)}   {fact.keys}")


def main() -> None:
    """Check files, by default all; ``--show`` prints a drawing of each scene too."""
    show = "--show" in sys.argv
    paths = [Path(given) for given in sys.argv[1:] if given != "--show"] or sorted((FOLDER / "scenes").glob("*.yaml"))
    value_lists()
    count = 0
    everything: list[AuthoredScene] = []
    for path in paths:
        scenes = load(path, SceneFile).scenes
        everything += scenes
        for problem in (problem for scene in scenes for problem in problems(scene)):
            print(f"{path.name}: {problem}")
            count += 1
        for scene in scenes if show else ():
            _show(scene)
    twice = [name for name, times in Counter(scene.name for scene in everything).items() if times > 1]
    print(report(everything))
    if count or twice:
        sys.exit(f"{count} problems; names that come twice: {twice}")


if __name__ == "__main__":
    run_plain(main)

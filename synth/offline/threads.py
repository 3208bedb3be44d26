"""The paper shape: linked events, memories that evolve over them, and the further facts of an event."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from synth.offline import scenes
from synth.offline.background import DETAILS, PLACE
from synth.offline.lives import scene_of
from synth.offline.words import split_of
from synth.records import EventGroup, Evolution, Fact, Method
from synth.shape import FactLimits
from synth.tasks import EvolutionTask, Filling, FillingTask, Links, LinksTask, PastEvent

_BEGINNINGS = {
    Method.EMOTIONAL: ("thinks of the", "with"),
    Method.MEANING: ("regards the", "as"),
    Method.SELF_BELIEF: ("left the", "feeling"),
}
VIEWS = {
    method: tuple(words.split())
    for method, words in {
        Method.EMOTIONAL: "worry relief pride serenity doubt delight unease gratitude envy confidence nostalgia amusement",
        Method.MEANING: "luck duty coincidence routine preparation progress proof training comfort nonsense wisdom play",
        Method.SELF_BELIEF: "clumsy patient capable hesitant reliable brave outspoken stubborn talented ordinary resilient",
    }.items()
}
_READ = re.compile(
    r"(?P<begin>thinks of the|regards the|left the) (?P<occasion>.+?) at (?P<place>[A-Z][a-z]+ [A-Z][a-z]+|home)"
    r" (?:with|as|feeling) (?P<views>[a-z]+(?:, then [a-z]+ after [A-Z][a-z]+)*)\."
)


class View(NamedTuple):
    """A memory of a thread: the first event, and how it is seen after each one."""

    method: Method
    occasion: str
    place: str
    views: tuple[str, ...]
    """The first is one word, the others are like ``pride after Brelo``."""

    def text(self, name: str) -> str:
        """The memory sentence."""
        begin, link = _BEGINNINGS[self.method]
        return f"{name} {begin} {self.occasion} at {self.place} {link} {', then '.join(self.views)}."

    def keywords(self) -> tuple[str, str, str]:
        """The anchor, and the latest view."""
        word, _, later = self.views[-1].partition(" ")
        return self.place, word, later or self.occasion

    def say(self) -> str:
        """The memory in the first person, with all its views."""
        first, *later = self.views
        link = {Method.EMOTIONAL: "it fills me with", Method.MEANING: "I take it for", Method.SELF_BELIEF: "I find myself"}
        told = f"When I look back at the {self.occasion} at {self.place}, {link[self.method]} {first}"
        return told + "".join(f", and then {view}" for view in later) + "."

    def say_last(self) -> str:
        """The latest view in the first person."""
        word, _, later = self.views[-1].partition(" ")
        beginning = f"Now, {later}," if later else "Now"
        link = {
            Method.EMOTIONAL: "what I feel when I think of {it} is",
            Method.MEANING: "what I see in {it} is",
            Method.SELF_BELIEF: "what I believe of myself when I think of {it} is that I am",
        }[self.method]
        return f"{beginning} {link.format(it=f'the {self.occasion} at {self.place}')} {word}."


def read_view(name: str, text: str) -> View | None:
    """Read the memory of a thread; None if it is none."""
    found = _READ.fullmatch(text.removeprefix(name).strip())
    if not found:
        return None
    method = next(method for method, (begin, _) in _BEGINNINGS.items() if begin == found["begin"])
    return View(method, found["occasion"], found["place"], tuple(found["views"].split(", then ")))


def write_links(task: LinksTask, rng: random.Random) -> Links:
    """Groups of events, of the same domain as far as it goes."""
    sizes = task.events_per_group
    domain_of = {occasion: domain for domain, occasions in scenes.OCCASIONS.items() for occasion in occasions}
    by_domain: dict[str, list[PastEvent]] = {}
    for event in task.events:
        by_domain.setdefault(domain_of.get(scene_of(event.narrative).occasion, ""), []).append(event)
    count = rng.randint(task.groups.min, min(task.groups.max, max(task.groups.min, len(task.events) // max(sizes.min, 1))))
    chosen: list[list[PastEvent]] = []
    for events in rng.sample(list(by_domain.values()), len(by_domain)):
        if len(chosen) < count and len(events) >= max(sizes.min, 1):
            chosen.append(_part(rng, events, rng.randint(sizes.min, sizes.max)))
    while len(chosen) < count:
        taken = {event.index for group in chosen for event in group}
        free = [event for event in task.events if event.index not in taken]
        if len(free) < max(sizes.min, 1):
            longest = max(chosen, key=len, default=[])
            if len(longest) <= sizes.min:
                break
            longest.pop()
            continue
        missing = (count - len(chosen) - 1) * sizes.min
        chosen.append(_part(rng, free, min(sizes.max, max(sizes.min, len(free) - missing))))
    return Links(groups=tuple(_group(events) for events in chosen))


def _part(rng: random.Random, events: Sequence[PastEvent], size: int) -> list[PastEvent]:
    return sorted(rng.sample(events, min(size, len(events))), key=lambda event: event.index)


def _group(events: Sequence[PastEvent]) -> EventGroup:
    first, last = scene_of(events[0].narrative).occasion, scene_of(events[-1].narrative).occasion
    return EventGroup(events=tuple(event.index for event in events), thread=scenes.THREAD.format(first=first, last=last))


def write_evolution(task: EvolutionTask, rng: random.Random) -> Evolution:
    """One view of the first event, and another one after each later event."""
    method = rng.choice(list(Method))
    views = rng.sample(VIEWS[method], len(task.events))
    found = [scene_of(event.narrative) for event in task.events]
    view = View(method, *found[0], (views[0],))
    memories = [_memory(task.fixed.name, view)]
    for word, scene in zip(views[1:], found[1:], strict=True):
        view = _shortened(task, view._replace(views=(*view.views, f"{word} after {scene.place.split()[0]}")))
        memories.append(_memory(task.fixed.name, view))
    return Evolution(method=method, memories=tuple(memories))


def _memory(name: str, view: View) -> Fact:
    return Fact(text=view.text(name), keywords=view.keywords())


def _shortened(task: EvolutionTask, view: View) -> View:
    """Leave out the second view while the sentence is too long."""
    limits: FactLimits = task.limits
    while len(view.text(task.fixed.name).split()) > limits.words.max and len(view.views) > 2:
        view = view._replace(views=(view.views[0], *view.views[2:]))
    return view


def write_filling(task: FillingTask, rng: random.Random) -> Filling:
    """Details of the event, each of another kind."""
    name, split = task.fixed.name, split_of(task.fixed.name)
    count = rng.randint(task.count.min, task.count.max)
    if not count:
        return Filling(goal="", summary="", facts=())
    scene = scene_of(task.event.narrative)
    existing = set(task.existing)
    facts: list[Fact] = []
    for kind in rng.sample(DETAILS, min(count, len(DETAILS))):
        while True:
            fact = kind.fact(name, None, kind.draw(rng, split, None, {PLACE: scene.place}), task.limits)
            if fact.text not in existing:
                break
        facts.append(fact)
    about = scene._asdict()
    return Filling(
        goal=rng.choice(scenes.GOALS).format(**about),
        summary=rng.choice(scenes.SUMMARIES).format(**about),
        facts=tuple(facts),
    )

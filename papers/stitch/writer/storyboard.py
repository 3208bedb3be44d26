"""The symbolic storyboard: which operations a trajectory is made of, planned within pragmatic constraints."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deltamem.errors import DeltaMemError
from papers.stitch.came.records import Action, ClosedWorld, LogOperation, Size
from papers.stitch.writer.world import Slot, quote, sentences

USER, AGENT, PRO, CON = "User", "Agent", "Pro", "Con"


@dataclass(frozen=True, slots=True)
class StoryboardShape:
    """How large the storyboards of a size are."""

    days: int  # Of a trip
    slots: int  # Of a day
    aspects: int  # Of a motion; each has a case of both sides
    rounds: int  # Attacks on a case
    entities: int  # Sources of a debate's world, as in appendix A.2


SHAPES: dict[Size, StoryboardShape] = {
    "S": StoryboardShape(days=5, slots=4, aspects=5, rounds=4, entities=50),
    "M": StoryboardShape(days=14, slots=5, aspects=10, rounds=7, entities=50),
    "L": StoryboardShape(days=36, slots=6, aspects=20, rounds=9, entities=200),
}
REUSE = 3
"""In how many goals an entity of travel is proposed, on average."""


@dataclass
class _Draft:
    """An operation before its turn has come."""

    action: Action
    role: str
    slot: str = ""
    entities: tuple[str, ...] = ()
    attribute: str = ""
    value: str = ""
    answers: str = ""  # The entity whose attack is answered


@dataclass
class _Log:
    """Operations in order."""

    world: ClosedWorld
    operations: list[LogOperation] = field(default_factory=list)

    def add(self, draft: _Draft, goal: str, answers: str = "") -> LogOperation:
        value = draft.value
        if draft.attribute and draft.action != "inquire":
            value = quote(self.world, draft.entities[0], draft.attribute, goal, draft.slot)
        done = LogOperation(
            id=f"op{len(self.operations) + 1}",
            action=draft.action,
            role=draft.role,
            goal=goal,
            slot=draft.slot,
            entities=draft.entities,
            attribute=draft.attribute,
            value=value,
            answers=answers,
        )
        self.operations.append(done)
        return done


def _sample(rng: random.Random, names: Sequence[str], count: int, what: str, world: ClosedWorld) -> list[str]:
    if count > len(names):
        raise DeltaMemError(
            f"world {world.id} is too small for its storyboard: it has {len(names)} {what}, and {count} are needed"
        )
    return rng.sample(names, count)


def plan_travel(world: ClosedWorld, shape: StoryboardShape, rng: random.Random) -> list[LogOperation]:
    """Plan a trip: each day in three visits, between which other days are talked about.

    Raises:
        DeltaMemError: If the world has too few entities.
    """
    slots = sentences().slots[: shape.slots]
    pools: dict[str, list[str]] = {}
    for kind in dict.fromkeys(slot.kind for slot in slots):
        goals = shape.days * sum(slot.kind == kind for slot in slots)
        names = [entity.name for entity in world.entities if entity.kind == kind]
        # Four candidates must differ; and no more than half of the goals may share one.
        pools[kind] = _sample(rng, names, min(100, max(6, goals * 3 // REUSE)), f"{kind}s", world)
    visits: list[tuple[float, int, list[list[_Draft]]]] = []
    for day in range(1, shape.days + 1):
        scripts = [_script(slot, pools[slot.kind], rng) for slot in slots]
        second = day + rng.uniform(1, 0.3 * shape.days + 2)
        times = (day, second, second + rng.uniform(1, shape.days))
        visits += [(time, day, [script[part] for script in scripts]) for part, time in enumerate(times)]
    log, pending = _Log(world), list[tuple[int, LogOperation]]()

    def deliver(now: int | None) -> None:
        for due, inquiry in [one for one in pending if now is None or one[0] <= now]:
            pending.remove((due, inquiry))
            draft = _Draft("inform", AGENT, inquiry.slot, inquiry.entities, inquiry.attribute)
            log.add(draft, inquiry.goal, inquiry.id)

    for _, day, parts in sorted(visits, key=lambda visit: visit[0]):
        goal = f"Day {day} itinerary"
        if not any(parts):
            continue
        log.add(_Draft("indicate_date", USER), goal)
        for draft in _interleaved(parts, rng):
            done = log.add(draft, goal)
            if done.action == "inquire":  # half of the answers come at once, the others many steps later
                pending.append((len(log.operations) + (0 if rng.random() < 0.5 else rng.randint(3, 25)), done))
            deliver(len(log.operations))
    deliver(None)
    return log.operations


def _script(slot: Slot, pool: Sequence[str], rng: random.Random) -> tuple[list[_Draft], list[_Draft], list[_Draft]]:
    """What is done for one slot of a day, by visit."""
    options = rng.sample(pool, rng.randint(3, 4))
    keyed: list[tuple[float, _Draft]] = []
    for number, name in enumerate(options):
        proposed = number + rng.random()
        keyed.append((proposed, _Draft("propose", USER if rng.random() < 0.6 else AGENT, slot.name, (name,))))
        for attribute in rng.sample(slot.attributes, rng.choice((0, 1, 1, 2))):
            keyed.append((proposed + rng.uniform(0.01, 2), _Draft("inquire", USER, slot.name, (name,), attribute)))
    script = [draft for _, draft in sorted(keyed, key=lambda pair: pair[0])]
    chosen, beaten, *others = rng.sample(options, len(options))
    script.append(_Draft("compare", USER, slot.name, (chosen, beaten)))
    if rng.random() < 0.6:
        script.append(_Draft("decide", USER, slot.name, (beaten,), value="drop"))
    script.append(_Draft("decide", USER, slot.name, (chosen,), value="book"))
    later: list[_Draft] = []
    if rng.random() < 0.45:  # the plan is revised
        other = others[0]
        if rng.random() < 0.5:
            later.append(_Draft("decide", USER, slot.name, (chosen,), value="drop"))
        later.append(_Draft("decide", USER, slot.name, (other,), value="book"))
    cut = rng.randint(1, len(script) - 1)
    return script[:cut], script[cut:], later


def _interleaved(parts: Iterable[list[_Draft]], rng: random.Random) -> Iterable[_Draft]:
    """Runs of one to three operations of each part in turn; each part keeps its order."""
    left = [list(part) for part in parts if part]
    while left:
        part = rng.choice(left)
        for _ in range(min(rng.randint(1, 3), len(part))):
            yield part.pop(0)
        left = [one for one in left if one]


def plan_debate(world: ClosedWorld, shape: StoryboardShape, rng: random.Random) -> list[LogOperation]:
    """Plan a debate: a few cases are open at a time, and speakers go from one to another.

    Raises:
        DeltaMemError: If the world has too few sources, or there are too few aspects.
    """
    names = [entity.name for entity in world.entities]
    aspects = rng.sample(sentences().aspects, shape.aspects)
    cases = [(side, aspect) for aspect in aspects for side in (PRO, CON)]
    waiting = [
        (f"{side} case on {aspect}", _case(side, names, shape, rng, world)) for side, aspect in rng.sample(cases, len(cases))
    ]
    log, open_cases = _Log(world), list[tuple[str, list[_Draft]]]()
    attacks: dict[tuple[str, str], str] = {}
    while waiting or open_cases:
        while waiting and len(open_cases) < 5:
            open_cases.append(waiting.pop())
        goal, script = rng.choice(open_cases)
        for _ in range(min(rng.randint(1, 3), len(script))):
            draft = script.pop(0)
            done = log.add(draft, goal, attacks.get((goal, draft.answers), ""))
            if done.action == "attack":
                attacks[goal, done.entities[0]] = done.id
        open_cases = [case for case in open_cases if case[1]]
    log.add(_Draft("summarize", PRO), "Closing")
    return log.operations


def _case(side: str, names: Sequence[str], shape: StoryboardShape, rng: random.Random, world: ClosedWorld) -> list[_Draft]:
    """What is said about one case. No source serves it twice, so that a source has one figure in it."""
    other = CON if side == PRO else PRO
    fresh = iter(_sample(rng, names, 2 * shape.rounds + 4, "sources", world))
    script = [_Draft("propose", side, entities=(next(fresh),), attribute="figure") for _ in range(rng.choice((1, 2)))]
    used: dict[str, list[str]] = defaultdict(list)
    used[side] += [draft.entities[0] for draft in script]
    pending: list[_Draft] = []
    for _ in range(shape.rounds):
        attack = _Draft("attack", other, entities=(next(fresh),), attribute="figure")
        used[other].append(attack.entities[0])
        script.append(attack)
        if rng.random() < 0.85:
            pending.append(_Draft("defend", side, entities=(next(fresh),), attribute="figure", answers=attack.entities[0]))
        while pending and rng.random() < 0.7:
            defence = pending.pop(0)
            used[side].append(defence.entities[0])
            script.append(defence)
    for defence in pending:
        used[side].append(defence.entities[0])
        script.append(defence)
    if rng.random() < 0.5:
        place = rng.randint(1, len(script))
        script.insert(place, _Draft("background", rng.choice((PRO, CON)), entities=(next(fresh),), attribute="figure"))
    if any(draft.action == "defend" for draft in script):
        for speaker in (side, other):
            for name in rng.sample(used[speaker], rng.choice((0, 1, 1, 2)) if len(used[speaker]) > 2 else 0):
                script.append(_Draft("concede", speaker, entities=(name,)))
    return script

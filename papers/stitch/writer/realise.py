"""From operations to turns: sentences, references in place of names, several turns an operation; and the gold intents."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

from deltamem.window import estimate_tokens
from papers.stitch.came.records import (
    ClosedWorld,
    LogOperation,
    LogTurn,
    Sitting,
    SpokenTurn,
    StepLabels,
    Storyboard,
    TurnReference,
)
from papers.stitch.writer.storyboard import AGENT, USER
from papers.stitch.writer.world import Slot, sentences

BEGIN = datetime(2027, 3, 1, 9, 0)
TURNS_A_SITTING = 30

EVENTS: dict[str, str] = {
    "indicate_date": "indicate date",
    "propose": "propose option",
    "inquire": "inquire details",
    "inform": "give details",
    "compare": "compare options",
    "book": "book option",
    "drop": "rule out option",
    "attack": "attack argument",
    "defend": "defend argument",
    "concede": "concede point",
    "background": "supply background",
    "summarize": "summarize debate",
}
ARGUE, REMARK = "propose argument", "remark"
NAMED = 0.35  # Share of mentions by name where a reference is possible


@cache
def slots() -> dict[str, Slot]:
    """The slots of a day by name."""
    return {slot.name: slot for slot in sentences().slots}


def event(done: LogOperation) -> str:
    """The event type of the core turn of an operation."""
    if done.action == "propose" and not done.slot:
        return ARGUE
    return EVENTS[done.value if done.action == "decide" else done.action]


def entity_types(done: LogOperation) -> tuple[str, ...]:
    """The key entity types of an operation: what kind of thing, for what, and which of its attributes."""
    if done.slot:
        kind = slots()[done.slot].kind
        return (kind.capitalize(), done.slot.capitalize(), *((done.attribute.capitalize(),) if done.attribute else ()))
    return ("Source", *((done.attribute.capitalize(),) if done.attribute else ())) if done.entities else ()


def case_fields(goal: str) -> dict[str, str]:
    """The slots of a sentence that a goal fills."""
    day = re.match(r"Day (\d+)", goal)
    return {"day": day[1]} if day else {"case": goal}


@dataclass
class _Realiser:
    """Says operations one after the other."""

    world: ClosedWorld
    rng: random.Random
    introduced: defaultdict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    where: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # Of an entity, where it was introduced
    last: tuple[str, str, str] | None = None
    focus: str = ""  # The goal that was named last
    said_goal: bool = False  # Whether the last operation was said with its goal

    def core(self, done: LogOperation, attacked: str) -> tuple[str, TurnReference | None, str]:
        """What is said, with its reference and the same with that resolved."""
        said, rng, domain = sentences(), self.rng, self.world.domain
        key = done.action
        if done.action in ("inform", "decide"):
            key = f"{done.action}_{done.attribute or done.value}"  # type: ignore[assignment]
        named = done.goal != self.focus or done.action == "indicate_date" or rng.random() < 0.15
        self.said_goal = named and done.action != "summarize"
        fields = case_fields(done.goal) | {"value": done.value, "attribute": done.attribute, "opening": "", "when": ""}
        if domain == "travel":
            fields |= {"slot": slots()[done.slot].phrase if done.slot else ""}
            fields |= {"when": f" on day {fields['day']}" if named else ""}
        elif named and done.action != "summarize":
            fields["opening"] = rng.choice(said.said[domain]["opening"]).format(**fields)
        fields["other"] = done.entities[1] if len(done.entities) > 1 else attacked
        sentence = rng.choice(said.said[domain][key])
        if not done.entities:
            return _sentence(sentence, fields), None, ""
        reference = self.reference(done)
        explicit = _sentence(sentence, fields | {"ref": done.entities[0]})
        self.note(done)
        if reference is None:
            return explicit, None, ""
        return _sentence(sentence, fields | {"ref": reference.phrase}), reference, explicit

    def reference(self, done: LogOperation) -> TurnReference | None:
        """How the first entity of an operation is referred to; None if by its name."""
        said, rng, domain, name = sentences(), self.rng, self.world.domain, done.entities[0]
        places = self.where.get(name)
        if not places or rng.random() < NAMED:
            return None
        here = (done.goal, done.slot)
        if self.last == (name, *here) and rng.random() < 0.6:
            return TurnReference(phrase=rng.choice(said.anaphors[domain]), entity=name, goal=done.goal, slot=done.slot)
        goal, slot = here if here in places else places[-1]
        number = self.introduced[goal, slot].index(name) + 1
        if number > len(said.ordinals):
            return None
        fields = case_fields(goal) | {"ordinal": said.ordinals[number - 1], "slot": slots()[slot].phrase if slot else ""}
        phrase = rng.choice((said.listed_here if (goal, slot) == here else said.listed)[domain]).format(**fields)
        return TurnReference(phrase=phrase, entity=name, goal=goal, slot=slot, number=number)

    def note(self, done: LogOperation) -> None:
        """Take in what was said."""
        here, first = (done.goal, done.slot), done.entities[0]
        if done.action in ("propose", "attack", "defend", "background") and first not in self.introduced[here]:
            self.introduced[here].append(first)
            self.where.setdefault(first, []).append(here)
        self.last = (done.entities[-1], *here)

    def elaborations(self, done: LogOperation, count: int) -> list[tuple[str, str]]:
        """Who says what after an operation, in `count` sentences, without names or values."""
        pools, rng = sentences().elaborations[self.world.domain], self.rng
        details = {entity.name: entity.details for entity in self.world.entities}
        about = details[done.entities[0]] if done.entities else {}
        turns: list[tuple[str, str]] = []
        before: list[str] = []
        while count > 0:
            role = (AGENT if rng.random() < 0.75 else USER) if "user" in pools else done.role
            pool = pools["any" if "any" in pools else "agent" if role == AGENT else "user"]
            fits = [one for one in pool if one not in before and _fillable(one, about)]
            chosen = rng.sample(fits, min(len(fits), count, rng.choice((1, 2, 2, 3, 3))))
            before += chosen
            turns.append((role, " ".join(one.format(**about) for one in chosen)))
            count -= max(1, len(chosen))
            if len(before) >= len(pool) // 2:
                before.clear()
        return turns


def _sentence(sentence: str, fields: dict[str, str]) -> str:
    text = sentence.format(**fields)
    text = re.sub(r"([.?!:] )([a-z])", lambda match: match[1] + (match[2] if match[1] == ": " else match[2].upper()), text)
    return text[0].upper() + text[1:]


def _fillable(sentence: str, fields: dict[str, str]) -> bool:
    return all(name in fields for name in re.findall(r"\{(\w+)\}", sentence))


@dataclass(frozen=True, slots=True)
class Core:
    """What an operation is said in."""

    text: str
    reference: TurnReference | None
    resolved: str  # Empty without a reference


def say_cores(world: ClosedWorld, operations: Sequence[LogOperation], trajectory: str, seed: int) -> list[Core]:
    """The sentences of the operations, whatever the length of the trajectory."""
    realiser = _Realiser(world, random.Random(f"{seed}/said/{trajectory}"))
    by_id = {done.id: done for done in operations}
    cores: list[Core] = []
    for done in operations:
        attacked = by_id[done.answers].entities[0] if done.action == "defend" else ""
        cores.append(Core(*realiser.core(done, attacked)))
        realiser.focus = done.goal if realiser.said_goal else realiser.focus
    return cores


def say(
    world: ClosedWorld, operations: Sequence[LogOperation], cores: Sequence[Core], trajectory: str, seed: int, tokens: int
) -> Storyboard:
    """Say a storyboard in about so many estimated tokens: what is said besides the operations makes up for their length."""
    left = tokens - sum(estimate_tokens(core.text) for core in cores)
    realiser = _Realiser(world, random.Random(f"{seed}/elaborated/{trajectory}"))
    further: list[list[tuple[str, str]]] = []
    for number, done in enumerate(operations):
        # What is left is spread over the operations that are left, so the sum comes out close to the wish.
        wish = max(0.0, left / (len(operations) - number) / _TOKENS_A_SENTENCE)
        count = int(wish) + (realiser.rng.random() < wish % 1)
        if done.action in ("indicate_date", "summarize"):
            count = min(count, 1)
        turns = realiser.elaborations(done, count)
        left -= sum(estimate_tokens(text) for _, text in turns)
        further.append(turns)
    made: list[LogTurn] = []
    time = BEGIN
    for done, core, more in zip(operations, cores, further, strict=True):
        for number, (role, said) in enumerate([(done.role, core.text), *more]):
            first = number == 0
            made.append(
                LogTurn(
                    id=f"t{len(made) + 1}",
                    operation=done.id,
                    role=role,
                    text=said,
                    time=time,
                    core=first,
                    reference=core.reference if first else None,
                    resolved=core.resolved if first else "",
                )
            )
            time += timedelta(minutes=1)
            if len(made) % TURNS_A_SITTING == 0:
                time += timedelta(hours=3)
    return Storyboard(trajectory=trajectory, operations=tuple(operations), turns=tuple(made))


_TOKENS_A_SENTENCE = 25


def sittings(turns: Sequence[LogTurn]) -> tuple[Sitting, ...]:
    """The turns as they are read, in sessions."""
    made: list[Sitting] = []
    for begin in range(0, len(turns), TURNS_A_SITTING):
        part = turns[begin : begin + TURNS_A_SITTING]
        spoken = tuple(SpokenTurn(id=turn.id, role=turn.role, text=turn.text, time=turn.time) for turn in part)
        made.append(Sitting(id=f"s{len(made) + 1}", time=part[0].time, turns=spoken))
    return tuple(made)


def gold_steps(board: Storyboard) -> dict[str, StepLabels]:
    """Labels of all turns, by id."""
    by_id = {done.id: done for done in board.operations}
    steps = {}
    for turn in board.turns:
        done = by_id[turn.operation]
        steps[turn.id] = StepLabels(
            scope=done.goal,
            event=event(done) if turn.core else REMARK,
            entity_types=entity_types(done) if turn.core else entity_types(done)[:2],
            resolved=turn.resolved or turn.text,
            summary=summary(done) if turn.core else f"{turn.role} remarks on {_about(done)}.",
        )
    return steps


def _about(done: LogOperation) -> str:
    return done.entities[0] if done.entities else "the plan" if done.slot or "Day" in done.goal else "the motion"


def summary(done: LogOperation) -> str:
    """The canonical summary of an operation, without its scope, which an ablation without scopes must not know."""
    what = f" for {slots()[done.slot].phrase}" if done.slot else ""
    value = f": {done.attribute} {done.value}".rstrip() if done.attribute else ""
    return f"{done.role}, {event(done)}: {' and '.join(done.entities) or 'no entity'}{what}{value}."

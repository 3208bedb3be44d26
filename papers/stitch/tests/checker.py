"""Replays a storyboard and its turns against the world; refuses what breaks a constraint. No code of the planner is used."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

from deltamem.errors import DeltaMemError
from papers.stitch.came.records import ClosedWorld, LogOperation, LogTurn, Storyboard, TurnReference
from papers.stitch.writer.world import quote, sentences

_VALUE = re.compile(r"\$\d+|\d\d:\d\d|\d+(?:\.\d+)?%")
_GOAL = re.compile(r"\bday \d+|\b(?:pro|con) case on [a-z]+", re.IGNORECASE)
_DECISIONS = {
    "book": re.compile(r"\b(?:book|reserve|go with|made up my mind)\b", re.IGNORECASE),
    "drop": re.compile(r"\b(?:strike|drop|is out|rule out|no longer)\b", re.IGNORECASE),
}
_ROLES = {"indicate_date": "User", "inquire": "User", "compare": "User", "decide": "User", "inform": "Agent"}
_VALUED = ("inform", "attack", "defend", "background")  # Besides the propositions of a debate


def _misshapen(done: LogOperation, domain: str) -> str | None:
    """What of its own fields an operation of this kind cannot have."""
    side = done.goal.partition(" ")[0]
    other = {"Pro": "Con", "Con": "Pro"}.get(side, "")
    speakers: tuple[str, ...] = ("User", "Agent") if domain == "travel" else ("Pro", "Con")
    if domain == "travel":
        speakers = (_ROLES[done.action],) if done.action in _ROLES else speakers
    elif done.action in ("propose", "attack", "defend"):
        speakers = (other if done.action == "attack" else side,)
    if done.role not in speakers:
        return f"is not for {done.role} to do"
    valued = done.action in _VALUED or (done.action == "propose" and domain == "debate")
    if bool(done.attribute) != (valued or done.action == "inquire"):
        return "has an attribute that it cannot have, or lacks one"
    if bool(done.value) != (valued or done.action == "decide"):
        return "has a value that it cannot have, or lacks one"
    if done.action == "decide" and done.value not in _DECISIONS:
        return f"decides {done.value}"
    if bool(done.answers) != (done.action in ("inform", "defend")):
        return "answers something that it cannot answer, or answers nothing"
    return None


def _subject(done: LogOperation) -> tuple[object, ...]:
    return done.goal, done.slot, done.entities, done.attribute


class _Replay:
    """What has happened so far."""

    def __init__(self, world: ClosedWorld) -> None:
        self.world = world
        self.names = {entity.name: entity for entity in world.entities}
        self.done: dict[str, LogOperation] = {}
        self.introduced: defaultdict[tuple[str, str], list[str]] = defaultdict(list)  # Of a goal and slot, in order
        self.acted: defaultdict[str, set[str]] = defaultdict(set)  # Actions by goal
        self.used: set[tuple[str, str, str]] = set()  # Goal, speaker, source
        self.ended = False

    def wrong(self, done: LogOperation) -> str | None:
        """What is wrong with the next operation, in a few words."""
        if self.ended:
            return "follows the summary"
        if done.id in self.done:
            return "happens twice"
        if (shape := _misshapen(done, self.world.domain)) is not None:
            return shape
        if unknown := [name for name in done.entities if name not in self.names]:
            return f"names {unknown[0]}, which is not of the world"
        if done.answers and done.answers not in self.done:
            return f"answers {done.answers}, which has not happened"
        before, acted = self.introduced[done.goal, done.slot], self.acted[done.goal]
        match done.action:
            case "inquire" | "decide" | "compare" if missing := [name for name in done.entities if name not in before]:
                return f"is about {missing[0]}, which nobody has proposed for it"
            case "inquire" | "decide" | "compare" | "inform" | "propose" if not done.entities:
                return "is about nothing"
            case "inform":
                asked = self.done.get(done.answers)
                if asked is None or asked.action != "inquire" or _subject(asked) != _subject(done):
                    return "answers no inquiry"
            case "compare" if len(set(done.entities)) != 2:
                return "does not compare two"
            case "attack" | "defend" | "concede" if "propose" not in acted:
                return "comes before the case was proposed"
            case "defend" if self.done[done.answers].action != "attack" or self.done[done.answers].goal != done.goal:
                return "answers no attack"
            case "concede" if not {"attack", "defend"} <= acted:
                return "comes before an attack and a defence"
            case "concede" if (done.goal, done.role, done.entities[0]) not in self.used:
                return "withdraws what its speaker did not cite"
        if done.attribute and done.action != "inquire":
            held = quote(self.world, done.entities[0], done.attribute, done.goal, done.slot)
            if done.value != held:
                return f"says {done.value}, which does not hold in the world"
        return None

    def apply(self, done: LogOperation) -> None:
        """Take an operation in."""
        self.done[done.id] = done
        self.acted[done.goal].add(done.action)
        self.ended = done.action == "summarize"
        if done.action in ("propose", "attack", "defend", "background"):
            self.used.add((done.goal, done.role, done.entities[0]))
            if done.entities[0] not in self.introduced[done.goal, done.slot]:
                self.introduced[done.goal, done.slot].append(done.entities[0])


def check(world: ClosedWorld, board: Storyboard) -> None:
    """Check operations and turns of a trajectory.

    The payload of every operation must be recoverable from its core turn, and nothing may be said that is not in it: the
    entity is named, or a reference leads to it by what was said before; the value stands there word for word; the goal is
    named, or is the one that was spoken about last.

    Raises:
        DeltaMemError: On the first thing that is wrong.
    """
    replay, place = _Replay(world), f"trajectory {board.trajectory}"
    turns: defaultdict[str, list[LogTurn]] = defaultdict(list)
    for turn in board.turns:
        turns[turn.operation].append(turn)
    focus = ""
    last: tuple[str, str, str] | None = None  # The entity that was mentioned last, with its goal and slot
    for done in board.operations:
        if (wrong := replay.wrong(done)) is not None:
            raise DeltaMemError(f"{place}: {done.id} ({done.action}) {wrong}")
        if board.turns:
            core = [turn for turn in turns[done.id] if turn.core]
            if len(core) != 1 or turns[done.id][0] is not core[0]:
                raise DeltaMemError(f"{place}: {done.id} is not said in exactly one core turn that comes first")
            if (wrong := _unsaid(done, core[0], replay, focus, last)) is not None:
                raise DeltaMemError(f"{place}: turn {core[0].id} {wrong}")
            for turn in turns[done.id][1:]:
                if _VALUE.search(turn.text) or any(name in turn.text for name in replay.names):
                    raise DeltaMemError(f"{place}: turn {turn.id} says more than {done.id} does")
            if names_goal(core[0].text, done.goal):
                focus = done.goal
            last = (done.entities[-1], done.goal, done.slot) if done.entities else last
        replay.apply(done)
    if board.turns:
        _check_order(board, place)


def _check_order(board: Storyboard, place: str) -> None:
    """Turns have ids of their own, say the operations in their order, and time goes on."""
    order = list(dict.fromkeys(turn.operation for turn in board.turns))
    changes = sum(before.operation != turn.operation for before, turn in pairwise(board.turns)) + 1
    if order != [done.id for done in board.operations] or changes != len(order):
        raise DeltaMemError(f"{place}: the turns do not say the operations in their order")
    if len({turn.id for turn in board.turns}) != len(board.turns):
        raise DeltaMemError(f"{place}: two turns have one id")
    if any(before.time >= turn.time for before, turn in pairwise(board.turns)):
        raise DeltaMemError(f"{place}: time does not go on from turn to turn")


def names_goal(text: str, goal: str) -> bool:
    """Whether a turn names a goal: `day 2`, or a case in full."""
    phrase = match[0] if (match := re.match(r"Day \d+", goal)) else goal
    return re.search(rf"{re.escape(phrase)}(?!\d)", text, re.IGNORECASE) is not None


def _unsaid(done: LogOperation, turn: LogTurn, replay: _Replay, focus: str, last: tuple[str, str, str] | None) -> str | None:
    """What of an operation cannot be recovered from its core turn."""
    text = turn.text
    resolved = turn.resolved or text
    if turn.role != done.role:
        return f"is said by {turn.role}, and the operation is of {done.role}"
    own = (
        text if turn.reference is None else re.sub(rf"\b{re.escape(turn.reference.phrase)}\b", "", text, flags=re.IGNORECASE)
    )
    if said := [goal for goal in _GOAL.findall(own) if not done.goal.casefold().startswith(goal.casefold())]:
        return f"names {said[0]}, and the operation is of {done.goal}"
    if done.action != "summarize" and focus != done.goal and not names_goal(text, done.goal):
        return "does not say what it is about"
    if turn.reference is not None and (wrong := _misleads(turn.reference, turn, done, replay, last)):
        return wrong
    if turn.reference is None and turn.resolved:
        return "resolves a reference that it does not hold"
    if done.action == "decide":
        (opposite,) = _DECISIONS.keys() - {done.value}
        if _DECISIONS[opposite].search(text) and not _DECISIONS[done.value].search(text):
            return f"says {opposite}, and the operation {done.value}"
    mentioned = {name for name in replay.names if name in resolved or name in text}
    wanted = set(done.entities)
    if done.answers and done.action == "defend":
        wanted |= set(replay.done[done.answers].entities)
    if mentioned != wanted:
        return f"mentions {sorted(mentioned)}, and the operation {sorted(wanted)}"
    if done.slot and done.slot.casefold() not in own.casefold():
        return f"does not say that it is about {done.slot}"
    values = set(_VALUE.findall(text))
    if values != ({done.value} if done.attribute and done.action != "inquire" else set()):
        return f"holds the values {sorted(values)}, not those of the operation"
    if done.attribute and done.action == "inquire" and done.attribute not in text:
        return f"does not say that it is about the {done.attribute}"
    return None


def _misleads(
    reference: TurnReference, turn: LogTurn, done: LogOperation, replay: _Replay, last: tuple[str, str, str] | None
) -> str | None:
    found = list(re.finditer(rf"\b{re.escape(reference.phrase)}\b", turn.text, re.IGNORECASE))
    if not found:
        return "does not hold its reference"
    said = (f"{turn.text[: match.start()]}{reference.entity}{turn.text[match.end() :]}" for match in found)
    if turn.resolved.casefold() not in {text.casefold() for text in said}:
        return "is not resolved by the name in place of its reference"
    if bool(reference.number) != any(word in reference.phrase.split() for word in sentences().ordinals):
        return "counts otherwise than its reference does"
    here = (reference.goal, reference.slot) == (done.goal, done.slot)
    if reference.number and names_goal(reference.phrase, reference.goal) == here:
        return f"does not say that it refers to {reference.goal}"
    if not reference.number:
        fits = last == (reference.entity, reference.goal, reference.slot)
    else:
        heard = replay.introduced[reference.goal, reference.slot]
        fits = len(heard) >= reference.number and heard[reference.number - 1] == reference.entity
    return None if fits else f"refers to something other than {reference.entity}"

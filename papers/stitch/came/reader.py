"""Answers questions from operations of the log: from all of them without a mistake, from some as well as can be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from papers.stitch.came.records import CameQuestion, LogOperation

CITED = ("propose", "attack", "defend", "background")


class LogReader:
    """What some operations, in the order of the log, come to. Shares no code with what made the questions."""

    def __init__(self, operations: Iterable[LogOperation]) -> None:
        """Replay them."""
        self._candidates: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._dropped: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._booked: dict[tuple[str, str], str] = {}
        self._quoted: dict[tuple[str, str, str, str], str] = {}  # Goal, slot, entity, attribute
        self._cited: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # Goal and speaker: figure by source
        self._withdrawn: set[tuple[str, str, str]] = set()
        self._attacks: defaultdict[str, list[LogOperation]] = defaultdict(list)
        self._replies: dict[str, LogOperation] = {}  # By id of the attack
        for done in operations:
            self._apply(done)

    def _apply(self, done: LogOperation) -> None:
        place = done.goal, done.slot
        if done.slot and done.action == "propose":
            self._candidates[place] += done.entities
        elif done.action == "inform":
            self._quoted[(*place, done.entities[0], done.attribute)] = done.value
        elif done.action == "decide" and done.value == "drop":
            self._dropped[place].update(done.entities)
        elif done.action == "decide":
            self._booked[place] = done.entities[0]
        elif done.action == "concede":
            self._withdrawn.add((done.goal, done.role, done.entities[0]))
        elif done.action in CITED:
            self._cited[done.goal, done.role][done.entities[0]] = done.value
            if done.action == "attack":
                self._attacks[done.goal].append(done)
            elif done.action == "defend":
                self._replies[done.answers] = done

    def answer(self, question: CameQuestion, ordinals: Iterable[str]) -> set[str]:
        """What the operations say to a question; `ordinals` are the words for first, second and so on."""
        asked = question.arguments
        goal = asked.get("case") or f"Day {asked['day']} itinerary"
        slot = asked.get("slot", "").removeprefix("the ")
        place, attribute = (goal, slot), asked.get("attribute", "")
        number = list(ordinals).index(asked["ordinal"]) if "ordinal" in asked else 0
        one: str | None = None
        match question.form:
            case "booked":
                one = self._booked.get(place)
            case "open":
                return set(self._candidates[place]) - self._dropped[place]
            case "value":
                one = self._quoted.get((*place, asked["entity"], attribute))
            case "nth_value":
                named = self._candidates[place]
                one = self._quoted.get((*place, named[number], attribute)) if number < len(named) else None
            case "booked_value":
                one = self._quoted.get((*place, self._booked.get(place, ""), attribute))
            case "day_plan":
                return {name for (day, _), name in self._booked.items() if day == goal}
            case "range_plan":
                days = [f"Day {day} itinerary" for day in range(int(asked["day"]), int(asked["last"]) + 1)]
                return {self._booked[day, slot] for day in days if (day, slot) in self._booked}
            case "backing":
                speaker = asked["speaker"]
                return {name for name in self._cited[goal, speaker] if (goal, speaker, name) not in self._withdrawn}
            case "figure":
                one = self._cited[goal, asked["speaker"]].get(asked["entity"])
            case "answer_to":
                attacks = [attack for attack in self._attacks[goal] if attack.entities[0] == asked["entity"]]
                one = self._replies[attacks[0].id].entities[0] if attacks and attacks[0].id in self._replies else None
            case "nth_figure":
                attacks = self._attacks[goal]
                reply = self._replies.get(attacks[number].id) if number < len(attacks) else None
                one = None if reply is None else reply.value
            case "attacks":
                return {attack.entities[0] for case in (goal, asked["other"]) for attack in self._attacks[case]}
            case "cited":
                return {name for (case, _), names in self._cited.items() if case == goal for name in names}
        return set() if one is None else {one}

"""The four types of questions, with answers, evidence and gold filter derived from the operations."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, pairwise
from typing import cast

from deltamem.errors import DeltaMemError
from papers.stitch.came.records import TYPES, AnswerKind, CameQuestion, Domain, LogOperation, Storyboard
from papers.stitch.records import IntentFilter
from papers.stitch.writer.realise import ARGUE, EVENTS, case_fields, slots
from papers.stitch.writer.storyboard import CON, PRO
from papers.stitch.writer.world import sentences


class _Asker:
    """Collects the questions that a storyboard can be asked."""

    def __init__(self, board: Storyboard, domain: Domain, rng: random.Random) -> None:
        self.board, self.domain, self.rng = board, domain, rng
        self.core = {turn.operation: turn.id for turn in board.turns if turn.core}
        self.by_type: defaultdict[str, defaultdict[str, list[CameQuestion]]] = defaultdict(lambda: defaultdict(list))
        self.goals: defaultdict[str, list[LogOperation]] = defaultdict(list)
        for done in board.operations:
            self.goals[done.goal].append(done)

    def ask(
        self,
        form: str,
        kind: str,
        answers: Sequence[str],
        operations: Sequence[LogOperation],
        acts: Iterable[str],
        types: Iterable[str],
        scopes: Iterable[str] = (),
        **fields: str,
    ) -> None:
        """Note a question, unless it has no answer; its scope is that of its operations, unless it names several."""
        if not answers:
            return
        asked = sentences().questions[self.domain][form]
        evidence = sorted({self.core[done.id] for done in operations}, key=lambda turn: int(turn[1:]))
        wanted = (tuple(dict.fromkeys(labels)) for labels in (scopes or (operations[0].goal,), acts, types))
        question = CameQuestion(
            id="",
            trajectory=self.board.trajectory,
            type=asked.type,
            form=form,
            question=self.rng.choice(asked.wordings).format(**fields),
            arguments=fields,
            kind=cast(AnswerKind, kind),
            answers=tuple(sorted(set(answers))),
            evidence=tuple(evidence),
            wanted=IntentFilter(*wanted),
        )
        self.by_type[asked.type][form].append(question)


def _travel(asker: _Asker) -> None:
    per_slot: defaultdict[tuple[str, str], list[LogOperation]] = defaultdict(list)
    quoted: defaultdict[tuple[str, str], list[LogOperation]] = defaultdict(list)
    for step in asker.board.operations:
        per_slot[step.goal, step.slot].append(step)
        if step.action == "inform":
            quoted[step.entities[0], step.attribute].append(step)
    booked: dict[tuple[str, str], list[LogOperation]] = {}
    for (goal, slot), done in per_slot.items():
        if not slot:
            continue
        kind = slots()[slot].kind
        phrase, label = slots()[slot].phrase, slot.capitalize()
        fields = case_fields(goal) | {"slot": phrase, "noun": slots()[slot].noun}
        proposed = [one for one in done if one.action == "propose"]
        books = [one for one in done if one.value == "book" and one.action == "decide"]
        drops = [one for one in done if one.value == "drop" and one.action == "decide"]
        booked[goal, slot] = books
        if len(books) > 1:
            asker.ask("booked", kind, books[-1].entities, books, [EVENTS["book"]], [label], **fields)
        if drops:
            out = {one.entities[0] for one in drops}
            left = [one.entities[0] for one in proposed if one.entities[0] not in out]
            asker.ask("open", kind, left, proposed + drops, [EVENTS["propose"], EVENTS["drop"]], [label], **fields)
        for said in [one for one in done if one.action == "inform"]:
            name, attribute = said.entities[0], said.attribute
            value, types, asked = [said.value], [label, attribute.capitalize()], fields | {"attribute": attribute}
            if len(quoted[name, attribute]) > 1:  # in another context it is another value
                asker.ask("value", attribute, value, [said], [EVENTS["inform"]], types, **asked, entity=name)
            place = [one.entities[0] for one in proposed].index(name)
            upto, acts = [*proposed[: place + 1], said], [EVENTS["propose"], EVENTS["inform"]]
            asker.ask("nth_value", attribute, value, upto, acts, types, **asked, ordinal=sentences().ordinals[place])
            if books and books[-1].entities[0] == name:
                acts = [EVENTS["book"], EVENTS["inform"]]
                asker.ask("booked_value", attribute, value, [*books, said], acts, types, **asked)
    days = list(dict.fromkeys(goal for goal, _ in booked))
    for goal in days:
        books = [one for (day, _), done in booked.items() if day == goal for one in done]
        final = [done[-1].entities[0] for (day, _), done in booked.items() if day == goal and done]
        asker.ask("day_plan", "place", final, books, [EVENTS["book"]], [], **case_fields(goal))
    numbers = sorted(int(case_fields(goal)["day"]) for goal in days)
    for slot in {slot: None for _, slot in booked}:
        for first in numbers[:-3]:
            span = [f"Day {day} itinerary" for day in range(first, first + 4)]
            books = [one for goal in span for one in booked.get((goal, slot), ())]
            final = [booked[goal, slot][-1].entities[0] for goal in span if booked.get((goal, slot))]
            asked = {"day": str(first), "last": str(first + 3), "slot": slots()[slot].phrase}
            types = [slot.capitalize()]
            asker.ask("range_plan", slots()[slot].kind, final, books, [EVENTS["book"]], types, span, **asked)


def _debate(asker: _Asker) -> None:
    cases = {goal: done for goal, done in asker.goals.items() if " case on " in goal}
    cited = ("propose", "attack", "defend", "background")
    uses = Counter(step.entities[0] for step in asker.board.operations if step.action in cited)
    attacked = {goal: [one for one in done if one.action == "attack"] for goal, done in cases.items()}
    for goal, done in cases.items():
        side, _, _ = goal.partition(" ")
        for speaker in (PRO, CON):
            own = [one for one in done if one.role == speaker and one.action in cited]
            given_up = [one for one in done if one.role == speaker and one.action == "concede"]
            acts = [ARGUE, EVENTS["defend"]] if speaker == side else [EVENTS["attack"]]
            if given_up:
                out = {one.entities[0] for one in given_up}
                left = [one.entities[0] for one in own if one.entities[0] not in out]
                every = [*acts, EVENTS["background"], EVENTS["concede"]]
                asker.ask("backing", "source", left, own + given_up, every, ["Source"], case=goal, speaker=speaker)
            for one in own:
                if uses[one.entities[0]] > 1:
                    asked, types = {"case": goal, "speaker": speaker, "entity": one.entities[0]}, ["Source", "Figure"]
                    asker.ask("figure", "figure", [one.value], [one], [*acts, EVENTS["background"]], types, **asked)
        for reply in [one for one in done if one.action == "defend"]:
            number = next(at for at, one in enumerate(attacked[goal]) if one.id == reply.answers)
            attack, acts = attacked[goal][number], [EVENTS["attack"], EVENTS["defend"]]
            asked = {"case": goal, "speaker": side, "entity": attack.entities[0]}
            asker.ask("answer_to", "source", reply.entities, [attack, reply], acts, ["Source"], **asked)
            asked = {"case": goal, "ordinal": sentences().ordinals[number]}
            upto = [*attacked[goal][: number + 1], reply]
            asker.ask("nth_figure", "figure", [reply.value], upto, acts, ["Source", "Figure"], **asked)
        named = [one for one in done if one.action in cited]
        acts = [ARGUE, *(EVENTS[action] for action in cited[1:])]
        asker.ask("cited", "source", [one.entities[0] for one in named], named, acts, ["Source"], case=goal)
    for side, speaker in ((PRO, CON), (CON, PRO)):
        mine = [goal for goal in cases if goal.startswith(f"{side} ")]
        for case, other in pairwise(mine):
            both = attacked[case] + attacked[other]
            names, fields = [attack.entities[0] for attack in both], {"case": case, "other": other, "speaker": speaker}
            asker.ask("attacks", "source", names, both, [EVENTS["attack"]], ["Source"], (case, other), **fields)


def make_questions(board: Storyboard, domain: Domain, count: int, seed: int) -> list[CameQuestion]:
    """Draw questions, as many of each type and of each form of a type as can be, none with the same words as another.

    Raises:
        DeltaMemError: If the storyboard cannot be asked so many.
    """
    rng = random.Random(f"{seed}/asked/{board.trajectory}")
    asker = _Asker(board, domain, rng)
    (_travel if domain == "travel" else _debate)(asker)
    drawn: list[CameQuestion] = []
    streams = [_in_turn(asker.by_type[name], rng) for name in TYPES]
    seen: set[str] = set()
    exhausted = 0
    for stream in cycle(streams):
        if len(drawn) == count or exhausted == len(streams):
            break
        question = next((one for one in stream if one.question not in seen), None)
        if question is None:
            exhausted += 1
            continue
        exhausted = 0
        seen.add(question.question)
        drawn.append(question)
    if len(drawn) < count:
        raise DeltaMemError(
            f"trajectory {board.trajectory} can be asked {len(drawn)} questions only, and {count} are wanted"
        )
    order = {name: number for number, name in enumerate(TYPES)}
    drawn.sort(key=lambda one: order[one.type])
    return [one.model_copy(update={"id": f"{board.trajectory}/q{number}"}) for number, one in enumerate(drawn, start=1)]


def _in_turn(forms: dict[str, list[CameQuestion]], rng: random.Random) -> Iterator[CameQuestion]:
    """The questions of a type, form by form in turn, in random order."""
    left = [rng.sample(asked, len(asked)) for asked in forms.values()]
    while left:
        for asked in left:
            yield asked.pop()
        left = [asked for asked in left if asked]

"""The four types of questions, with answers, evidence and gold filter derived from the operations."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from typing import Any

from deltamem.errors import DeltaMemError
from papers.stitch.came.records import TYPES, AnswerKind, CameQuestion, LogOperation, Storyboard
from papers.stitch.records import IntentFilter
from papers.stitch.writer.realise import ARGUE, EVENTS, case_fields, slots
from papers.stitch.writer.storyboard import CON, PRO
from papers.stitch.writer.world import sentences

_Labels = tuple[list[str], list[str], list[str]]  # Scopes, events, entity types


class _Asker:
    """Collects the questions that a storyboard can be asked."""

    def __init__(self, board: Storyboard, rng: random.Random) -> None:
        self.board, self.rng = board, rng
        self.core = {turn.operation: turn.id for turn in board.turns if turn.core}
        self.by_type: defaultdict[str, defaultdict[str, list[CameQuestion]]] = defaultdict(lambda: defaultdict(list))
        self.goals: defaultdict[str, list[LogOperation]] = defaultdict(list)
        for done in board.operations:
            self.goals[done.goal].append(done)

    def ask(
        self,
        form: str,
        domain: str,
        kind: AnswerKind,
        answers: Sequence[str],
        operations: Sequence[LogOperation],
        labels: _Labels,
        **fields: str,
    ) -> None:
        """Note a question, unless it has no answer."""
        if not answers:
            return
        asked = sentences().questions[domain][form]  # type: ignore[index]
        scopes, events, types = (tuple(dict.fromkeys(one)) for one in labels)
        evidence = sorted((self.core[done.id] for done in operations), key=lambda turn: int(turn[1:]))
        question = CameQuestion(
            id="",
            trajectory=self.board.trajectory,
            type=asked.type,
            form=form,
            question=self.rng.choice(asked.wordings).format(**fields),
            arguments=fields,
            kind=kind,
            answers=tuple(sorted(dict.fromkeys(answers))),
            evidence=tuple(dict.fromkeys(evidence)),
            wanted=IntentFilter(scopes, events, types),
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
    kind: Any
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
            labels = ([goal], [EVENTS["book"]], [label])
            asker.ask("booked", "travel", kind, books[-1].entities, books, labels, **fields)
        if drops:
            out = {one.entities[0] for one in drops}
            left = [one.entities[0] for one in proposed if one.entities[0] not in out]
            labels = ([goal], [EVENTS["propose"], EVENTS["drop"]], [label])
            asker.ask("open", "travel", kind, left, proposed + drops, labels, **fields)
        for said in [one for one in done if one.action == "inform"]:
            name, attribute = said.entities[0], said.attribute
            quoted_kind: Any = attribute
            types = [label, attribute.capitalize()]
            if len(quoted[name, attribute]) > 1:  # in another context it is another value
                labels = ([goal], [EVENTS["inform"]], types)
                asked = fields | {"attribute": attribute, "entity": name}
                asker.ask("value", "travel", quoted_kind, [said.value], [said], labels, **asked)
            place = [one.entities[0] for one in proposed].index(name)
            labels = ([goal], [EVENTS["propose"], EVENTS["inform"]], types)
            asked = fields | {"attribute": attribute, "ordinal": sentences().ordinals[place]}
            asker.ask("nth_value", "travel", quoted_kind, [said.value], [*proposed[: place + 1], said], labels, **asked)
            if books and books[-1].entities[0] == name:
                labels = ([goal], [EVENTS["book"], EVENTS["inform"]], types)
                asked = fields | {"attribute": attribute}
                asker.ask("booked_value", "travel", quoted_kind, [said.value], [*books, said], labels, **asked)
    days = list(dict.fromkeys(goal for goal, _ in booked))
    for goal in days:
        books = [one for (day, _), done in booked.items() if day == goal for one in done]
        final = [done[-1].entities[0] for (day, _), done in booked.items() if day == goal and done]
        asker.ask("day_plan", "travel", "place", final, books, ([goal], [EVENTS["book"]], []), **case_fields(goal))
    numbers = sorted(int(case_fields(goal)["day"]) for goal in days)
    for slot in {slot: None for _, slot in booked}:
        for first in numbers[:-3]:
            span = [f"Day {day} itinerary" for day in range(first, first + 4)]
            books = [one for goal in span for one in booked.get((goal, slot), ())]
            final = [booked[goal, slot][-1].entities[0] for goal in span if booked.get((goal, slot))]
            labels = (span, [EVENTS["book"]], [slot.capitalize()])
            asked = {"day": str(first), "last": str(first + 3), "slot": slots()[slot].phrase}
            kind = slots()[slot].kind
            asker.ask("range_plan", "travel", kind, final, books, labels, **asked)


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
                labels = ([goal], [*acts, EVENTS["background"], EVENTS["concede"]], ["Source"])
                asker.ask("backing", "debate", "source", left, own + given_up, labels, case=goal, speaker=speaker)
            for one in own:
                if uses[one.entities[0]] > 1:
                    labels = ([goal], [*acts, EVENTS["background"]], ["Source", "Figure"])
                    asked = {"case": goal, "speaker": speaker, "entity": one.entities[0]}
                    asker.ask("figure", "debate", "figure", [one.value], [one], labels, **asked)
        for reply in [one for one in done if one.action == "defend"]:
            number = next(at for at, one in enumerate(attacked[goal]) if one.id == reply.answers)
            attack, acts = attacked[goal][number], [EVENTS["attack"], EVENTS["defend"]]
            asked = {"case": goal, "speaker": side, "entity": attack.entities[0]}
            labels = ([goal], acts, ["Source"])
            asker.ask("answer_to", "debate", "source", reply.entities, [attack, reply], labels, **asked)
            asked = {"case": goal, "ordinal": sentences().ordinals[number]}
            labels = ([goal], acts, ["Source", "Figure"])
            upto = [*attacked[goal][: number + 1], reply]
            asker.ask("nth_figure", "debate", "figure", [reply.value], upto, labels, **asked)
        every = [one for one in done if one.action in cited]
        labels = ([goal], [ARGUE, *(EVENTS[action] for action in cited[1:])], ["Source"])
        asker.ask("cited", "debate", "source", [one.entities[0] for one in every], every, labels, case=goal)
    for side, speaker in ((PRO, CON), (CON, PRO)):
        mine = [goal for goal in cases if goal.startswith(f"{side} ")]
        for case, other in pairwise(mine):
            both = attacked[case] + attacked[other]
            labels = ([case, other], [EVENTS["attack"]], ["Source"])
            names = [attack.entities[0] for attack in both]
            asker.ask("attacks", "debate", "source", names, both, labels, case=case, other=other, speaker=speaker)


def make_questions(board: Storyboard, domain: str, count: int, seed: int) -> list[CameQuestion]:
    """Draw questions, as many of each type and of each form of a type as can be, none with the same words as another.

    Raises:
        DeltaMemError: If the storyboard cannot be asked so many.
    """
    rng = random.Random(f"{seed}/asked/{board.trajectory}")
    asker = _Asker(board, rng)
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

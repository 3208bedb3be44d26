"""Dialogues of the tiny form: a session is a row of turns with facts, asides and chat between them.

Turns are put in an order that a conversation could have; then they are told one after the other, so that each side answers
what the other has just said.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deltamem.memory import Event
from deltamem.text import content_stems
from rewards.fidelity import folded
from synth.offline.grammar import finished
from synth.offline.phrasing import Phrasing, Statement
from synth.offline.speaker import OPENERS, TAILS, Speaker
from synth.offline.topics import read, topics
from synth.records import Aside, AsideKind, Dialogue, Exchange, FactOrigin, PlannedAside, PlannedFact, SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import occurs, stands_in

_PAIRED = 0.15
"""Share of statements that are told in one turn with the next one."""
_WHAT_IF = 0.25
"""Share of chat that speaks of what is no fact in the words of one."""
_FRAMED, _THAT = 0.06, 0.5
"""Shares of statements that stand inside another sentence, and of those, where they can be, after "that"."""
_QUOTED = 0.15
"""Share of answers in which the assistant quotes a word of a fact."""
_GAP = 3
"""Turns in a row without a fact or an aside, at most."""
_TRIES = 30


@dataclass(slots=True)
class PlannedTurn:
    """What the user says in one turn: facts or `user`, after an opening.

    `claim` is an aside of the assistant, and `asked` what it has to say in the end, so that the next turn can answer it.
    `leads`: something may lead up to what `user` says.
    """

    statements: Sequence[Statement] = ()
    user: str = ""
    kept: Sequence[str] = ()
    opening: str = ""
    aside: Aside | None = None
    claim: Aside | None = None
    asked: str = ""
    leads: bool = True

    @property
    def answers(self) -> bool:
        """Whether the user answers something that the assistant has to say before."""
        return bool(self.statements and self.statements[0].asked)


class _SessionWriter:
    """Writes the dialogue of one session."""

    def __init__(self, task: DialogueTask, rng: random.Random) -> None:
        self._task, self._rng, self._limits = task, rng, task.limits
        self._speaker = Speaker(rng, task.fixed.name)
        self._phrasing = Phrasing(self._speaker, task)

    def write(self) -> Dialogue:
        """Put the turns in order, then tell one after the other."""
        facts = _in_order(self._task.facts, self._task.fixed.name)
        statements = [self._phrasing.statement(fact) for fact in facts]
        turns = self._laid_out(*self._drawn(statements))
        self._add_claims(turns)
        plan = []
        for number, turn in enumerate(turns, start=1):
            for fact in (statement.fact for statement in turn.statements):
                early = number if fact.event is Event.UPDATE and fact.signal == "explicit" else 0
                plan.append(PlannedFact(fact_id=fact.id, turn=number, previous_turn=early))
        asides = [
            PlannedAside(aside_id=aside.id, turn=number)
            for number, turn in enumerate(turns, start=1)
            for aside in (turn.aside, turn.claim)
            if aside is not None
        ]
        exchanges = tuple(self._exchange(turns, place) for place in range(len(turns)))
        return Dialogue(plan=tuple(plan), asides=tuple(asides), turns=exchanges)

    # --- turns ---------------------------------------------------------------------------------------------------------

    def _drawn(self, statements: Sequence[Statement]) -> tuple[list[PlannedTurn], list[PlannedTurn]]:
        """The turns with facts, and the others."""
        rng, facts = self._rng, self._paired(statements)
        others = [self._aside(aside) for aside in self._task.asides if aside.kind is not AsideKind.ASSISTANT_CLAIM]
        room = self._limits.turns.max - len(facts) - len(others) - 2
        wanted, chats = rng.randint(1, 4 if facts else 3), 0
        while chats < room and (chats < wanted or len(facts) + len(others) < self._limits.turns.min):
            others.append(self._chat())
            chats += 1
        return facts, others

    def _paired(self, statements: Sequence[Statement]) -> list[PlannedTurn]:
        turns = list[PlannedTurn]()
        crowded = len(statements) > self._limits.turns.max - len(self._task.asides) - 2
        for statement in statements:
            last = turns[-1] if turns else None
            if last is not None and len(last.statements) < self._limits.facts_per_turn and not statement.asked:
                wanted = crowded or self._rng.random() < _PAIRED
                if wanted and not _spoils(last.statements[-1], statement):
                    last.statements = (*last.statements, statement)
                    continue
            turns.append(PlannedTurn((statement,)))
        return turns

    def _chat(self) -> PlannedTurn:
        for _ in range(_TRIES):
            user = self._nothing()
            if not _says_outdated(user, self._task.facts):
                break
        return PlannedTurn(user=user)

    def _nothing(self) -> str:
        """A sentence that states nothing about the person, at times in the words in which something would be stated."""
        speaker, rng = self._speaker, self._rng
        if rng.random() >= _WHAT_IF:
            return speaker.say("chat")
        topic = rng.choice(topics())
        given = speaker.cast.fill(rng, topic, rng.choice(speaker.cast.people))
        return speaker.say("what_if", clause=speaker.line(topic.say, given))

    def _aside(self, aside: Aside) -> PlannedTurn:
        speaker, words = self._speaker, aside.words
        if aside.kind is AsideKind.CUE:
            said = speaker.say("cue", x=words[0] if words else "soon")
        elif not words:
            said = speaker.say("ask" if aside.kind is AsideKind.QUESTION else "chat")
        elif len(words) > 1 and aside.kind is AsideKind.CHIT_CHAT:
            said = speaker.say("chit_pair", x=words[0], y=words[1])
        else:
            said = speaker.say(aside.kind.value, x=" and ".join(words))
        return PlannedTurn(user=said, kept=words, aside=aside)

    def _laid_out(self, facts: Sequence[PlannedTurn], others: Sequence[PlannedTurn]) -> list[PlannedTurn]:
        """All turns in order: no long run is without a fact or an aside, and the day's event comes early."""
        for _ in range(_TRIES):
            order = list(facts)
            for other in self._rng.sample(others, len(others)):
                order.insert(self._rng.randint(0, len(order)), other)
            # What happened is told before anything else, or after one other thing.
            if facts and facts[0] not in order[:2]:
                continue
            turns = self._framed(order)
            marks = "".join("x" if turn.statements or turn.aside else " " for turn in turns)
            gap = max(map(len, marks.split("x"))) if facts else 0
            if len(turns) in self._limits.turns and gap <= _GAP:
                return turns
        return self._framed([*facts, *others][: self._limits.turns.max - 2])

    def _framed(self, turns: list[PlannedTurn]) -> list[PlannedTurn]:
        """The turns; chat comes first where the first one answers something."""
        return [PlannedTurn(user=self._nothing()), *turns] if not turns or turns[0].answers else turns

    def _add_claims(self, turns: list[PlannedTurn]) -> None:
        """Let the assistant say what it has to say for the user's answers, and what it merely claims."""
        for turn, after in pairwise(turns):
            if after.answers:
                turn.asked = after.statements[0].asked
        for aside in self._task.asides:
            if aside.kind is not AsideKind.ASSISTANT_CLAIM:
                continue
            places = [
                at
                for at, after in enumerate(turns[1:])
                if not turns[at].asked and turns[at].claim is None and not after.opening
            ]
            stems = content_stems(aside.memory)
            likely = [
                at for at in places if not _soon(turns[at + 1 :], aside.words) and not _near(turns[at].statements, stems)
            ]
            if not places:
                places = [len(turns) - 1]
                turns.append(PlannedTurn(user=self._speaker.say("bye"), leads=False))
            place = self._rng.choice(likely or places)
            claim, evasion = self._claim(aside), self._speaker.say("dodge")
            turns[place].asked, turns[place].claim, turns[place + 1].opening = claim, aside, evasion

    def _claim(self, aside: Aside) -> str:
        if not aside.words:
            return self._speaker.say("question_back")
        return self._speaker.say("claim", x=" and ".join(aside.words))

    # --- what is said --------------------------------------------------------------------------------------------------

    def _exchange(self, turns: Sequence[PlannedTurn], place: int) -> Exchange:
        turn = turns[place]
        said = [turn.opening]
        for statement in turn.statements:
            said += self._told(statement)
        if turn.user:
            said.append(self._led_up(turn, place))
        kept = [*turn.kept, *(word for statement in turn.statements for word in statement.kept)]
        user = self._speaker.spoken(said, kept)
        return Exchange(user=user, assistant=self._answer(turn, user, kept))

    def _told(self, statement: Statement) -> Iterator[str]:
        """A statement, perhaps with something that leads up to it, or a comment."""
        speaker, rng = self._speaker, self._rng
        first, *rest = statement.said
        if rng.random() < OPENERS:
            first = f"{speaker.say('opener')} {first}"
        elif rng.random() < _FRAMED:
            that = rng.random() < _THAT and first.startswith(("I ", "my "))
            first = speaker.say("frame_that" if that else "frame", clause=first)
        elif rng.random() < TAILS:
            first = first.removesuffix(".") + speaker.say("tail")
        yield from (first, *rest)

    def _led_up(self, turn: PlannedTurn, place: int) -> str:
        """What is no fact, perhaps led up to; comments would go on with a sentence that is a fact."""
        speaker, user = self._speaker, turn.user
        if turn.leads and place and self._rng.random() < OPENERS and ":" not in user[:30]:
            return f"{speaker.say('opener_chat')} {speaker.inner(user)}"
        return user

    def _answer(self, turn: PlannedTurn, user: str, kept: Sequence[str]) -> str:
        speaker = self._speaker
        keywords = [word for word in kept if occurs(word, user)]
        if turn.asked:
            said = finished(turn.asked)
        elif keywords and self._rng.random() < _QUOTED:
            said = finished(speaker.say("quote", word=self._rng.choice(keywords)))
        else:
            said = finished(speaker.say("answer" if user.endswith("?") else "ack"))
        while len(said.split()) < self._limits.assistant_words.min:
            said = f"{finished(speaker.say('ack'))} {said}"
        return said


def _in_order(facts: Iterable[SessionFact], name: str) -> list[SessionFact]:
    """What happened, then what is of one track next to each other, as the story has it."""
    events, by_track = list[SessionFact](), dict[str, list[SessionFact]]()
    for fact in facts:
        if fact.origin is FactOrigin.EVENT:
            events.append(fact)
        else:
            known = read(name, fact.text)
            by_track.setdefault(known.topic.track.value if known else "", []).append(fact)
    return [*events, *(fact for alike in by_track.values() for fact in alike)]


def _soon(turns: Iterable[PlannedTurn], words: Sequence[str]) -> bool:
    """Whether one of the turns tells a fact with one of the words among its keywords."""
    said = " ".join(words)
    return any(
        occurs(keyword, said) for turn in turns for statement in turn.statements for keyword in statement.fact.keywords
    )


def _near(statements: Iterable[Statement], stems: frozenset[str]) -> bool:
    """Whether a fact has much of what a memory says, so that an answer to it could tell the memory."""
    return any(2 * len(stems & content_stems(told.fact.text)) > len(stems) for told in statements)


def _says_outdated(text: str, facts: Iterable[SessionFact]) -> bool:
    """Whether a text says a value that the facts make outdated."""
    said = folded(text)
    return any(stands_in(folded(value), said) for fact in facts for value in fact.outdated)


def _spoils(one: Statement, other: Statement) -> bool:
    """Whether one statement says a value that the other one makes outdated without saying it."""
    return any(
        told.fact.event is Event.UPDATE
        and told.fact.signal == "value"
        and _says_outdated(" ".join(saying.said), [told.fact])
        for told, saying in ((one, other), (other, one))
    )


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Tell the facts and asides of a session, with chat between them."""
    return _SessionWriter(task, rng).write()

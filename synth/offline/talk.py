"""Dialogues of the shape `demanding`: a session is a row of segments, each about one thing.

A segment tells facts, is a scene or an aside (see `scenes`), or greets, or says goodbye. Segments are put in an order that a
conversation could have; then they are told turn after turn, so that each side answers what the other has just said.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, lru_cache
from itertools import pairwise

from deltamem.memory import Event, wordings
from deltamem.text import content_stems
from rewards.fidelity import folded
from synth.offline.grammar import finished
from synth.offline.paper import read_view
from synth.offline.phrasing import Phrasing, Statement
from synth.offline.scenes import distractors, draw_scene, say_distractor, scene_file, slots_of
from synth.offline.speaker import Area, Speaker, in_first_person, matter_of, matter_with_key, relative, suits, talk
from synth.offline.templates import slot_source
from synth.offline.topics import PERSON, PLACE, KnownValues, Topic, lines, over, read, topics, values
from synth.records import Aside, AsideKind, Dialogue, Exchange, FactOrigin, PlannedAside, PlannedFact, SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import day, occurs, stands_in, uses

_PAIRED_ALIKE, _PAIRED = 0.5, 0.2
"""Shares of statements that are told in one turn with the next one, if both are of one area, and otherwise."""
_SCENES = (60, 32, 8)
"""Weights of 0, 1 and 2 scenes in a session that tells facts."""
_KINDS = (25, 20, 30, 25)
"""Weights of scenes, of what strangers do and change, of what the user imagines, and of what others say of themselves."""
_DATED, _DATED_IN_FULL = 0.35, 0.6
"""Shares of what is no fact, in the words of one, that has a date, and of those dates that are said in full."""
_GREETED, _GREETING_ALONE, _GOODBYE, _GOODBYE_ALONE = 0.85, 0.06, 0.8, 0.1
_QUOTED_KEYWORDS = 0.4
"""Chance that the assistant looks for a keyword to quote; where there is nothing to be found, it does not quote."""
_OTHERS = 0.2
"""Share of what others say of themselves that goes for somebody else, too."""
_REACTIONS, _READ_BACK = 0.15, 0.3
"""Shares of turns that begin with a word on what the assistant has said, and of which it reads something back."""
_JOINED = 0.9
"""Share of scenes and asides that come right after facts and begin in the same turn."""
_EVENT_SECOND = 0.3
"""Share of sessions in which another fact is told before what happened."""
_LATE_EVENTS, _LATE = 0.3, 0.1
"""Shares of events and of other facts, told days after the event, for whose delay the user excuses themselves."""
_EVENTS_WHEN, _WHEN = 0.3, 0.08
"""Shares of events, and of other facts and of chat, of which the user says when they wanted to tell them."""
_TRIES = 30


@dataclass(slots=True)
class PlannedTurn:
    """What is said in one turn: the facts that the user tells, then `user`, between opening and closing; the answer.

    `first`: a segment begins, so that the user may react to what was said before. `claim` is an aside of the assistant, and
    `asked` what it has to say in the end, so that the next turn can answer it. `kind` is ``chat``, ``hello`` or ``goodbye``.
    """

    statements: Sequence[Statement] = ()
    user: str = ""
    assistant: str = ""
    kept: Sequence[str] = ()
    first: bool = True
    opening: str = ""
    closing: str = ""
    aside: Aside | None = None
    claim: Aside | None = None
    asked: str = ""
    kind: str = "chat"

    @property
    def answers(self) -> bool:
        """Whether the user answers something that the assistant has to say before."""
        return bool(self.statements and self.statements[0].asked)


Segment = list[PlannedTurn]


class SessionWriter:
    """Writes the dialogue of one session."""

    def __init__(self, task: DialogueTask, rng: random.Random) -> None:
        self._task, self._rng, self._limits = task, rng, task.limits
        self._gap = 3 if task.limits.verbatim else 4  # Turns in a row without a fact or an aside, at most
        # Facts may be said word for word in the tiny form alone.
        self._speaker = Speaker(rng, task.fixed.name, short=task.limits.verbatim)
        self._phrasing = Phrasing(self._speaker, task)
        self._used: list[str] = []
        self._turns: list[PlannedTurn] = []
        self._pending: dict[str, int] = {}
        self._answered: set[str] = set()
        self._said: set[str] = set()
        self._follow: Sequence[str] = ()
        self._opened: set[str] = set()
        self._meant = False

    def write(self) -> Dialogue:
        """Put the segments in order, then tell turn after turn."""
        groups = _groups(self._task.facts, self._task.fixed.name)
        if len(groups) > 1 and self._rng.random() < _EVENT_SECOND and not self._speaker.short:
            groups[:2] = groups[1::-1]
        statements = [self._phrasing.statement(group) for group in groups]
        self._turns = self._laid_out(self._segments(statements))
        self._add_claims()
        plan = []
        for place, turn in enumerate(self._turns):
            for statement in turn.statements:
                for fact in statement.facts:
                    early = place + 1 if fact.event is Event.UPDATE and fact.signal == "explicit" else 0
                    plan.append(PlannedFact(fact_id=fact.id, turn=place + 1, previous_turn=early))
                    for keyword in wordings(fact.keywords):
                        self._pending.setdefault(keyword, place)
        exchanges = [self._exchange(place) for place in range(len(self._turns))]
        asides = [
            PlannedAside(aside_id=aside.id, turn=place + 1)
            for place, turn in enumerate(self._turns)
            for aside in (turn.aside, turn.claim)
            if aside is not None
        ]
        return Dialogue(plan=tuple(plan), asides=tuple(asides), turns=tuple(exchanges))

    # --- segments ------------------------------------------------------------------------------------------------------

    def _segments(self, statements: Sequence[Statement]) -> tuple[list[Segment], list[Segment]]:
        facts = [[turn] for turn in self._paired(statements)]
        others = [[self._aside(aside)] for aside in self._task.asides if aside.kind is not AsideKind.ASSISTANT_CLAIM]
        room = self._limits.turns.max - len(facts) - len(others) - 2
        wanted, number = self._wanted(len(facts)), 0
        while room > 0 and (number < wanted or len(facts) + sum(map(len, others)) < self._limits.turns.min):
            drawn = self._rng.choices((self._scene, self._overheard, self._imagined, self._quoted_others), _KINDS)[0]()
            scene = drawn[: min(room, self._gap - 1, self._rng.choice((1, 2, 2, 3)))]
            room -= len(scene)
            others.append(scene)
            number += 1
        return facts, others

    def _wanted(self, facts: int) -> int:
        return self._rng.choices(range(len(_SCENES)), _SCENES)[0] if facts else self._rng.randint(1, 3)

    def _paired(self, statements: Sequence[Statement]) -> list[PlannedTurn]:
        rng, turns = self._rng, list[PlannedTurn]()
        crowded = len(statements) > self._limits.turns.max - len(self._task.asides) - 2
        for statement in statements:
            last = turns[-1] if turns else None
            if last is not None and len(last.statements) < self._limits.facts_per_turn and not statement.asked:
                chance = self._chance(last.statements[-1], statement)
                if (crowded or rng.random() < chance) and not _spoils(last.statements[-1], statement):
                    last.statements = (*last.statements, statement)
                    continue
            turns.append(PlannedTurn((statement,)))
        return turns

    def _chance(self, one: Statement, other: Statement) -> float:
        return _PAIRED_ALIKE if _area(one) == _area(other) else _PAIRED

    def _scene(self) -> Segment:
        """A scene in which the assistant says nothing too early, as far as there is one."""
        for _ in range(_TRIES):
            scene = draw_scene(self._rng, self._used)
            said = scene.say(self._rng, self._speaker.around({}))
            if not any(self._touches(text) for exchange in said for text in exchange):
                break
        self._used.append(scene.name)
        return [PlannedTurn(user=user, assistant=answer, first=number == 0) for number, (user, answer) in enumerate(said)]

    def _overheard(self) -> Segment:
        """What a stranger does, or does no longer: the words of a fact, and none of the user's."""
        rng, speaker, strangers = self._rng, self._speaker, scene_file()
        for _ in range(_TRIES):
            topic = rng.choice(_without_people())
            known, chance = KnownValues(topic, speaker.cast.fill(rng, topic)), rng.random()
            stranger = strangers.grammar.write(rng, lines(rng.choice(strangers.strangers).stranger).draw(rng))
            clause = (over(rng, known) if chance < 0.35 else known).text(stranger).rstrip(".")
            slot = next(slot for slot in topic.changeable if values().listed(slot))
            if 0.35 <= chance < 0.7:
                old = values().draw(rng, slot, known.values.values())
                clause = self._phrasing.set_against(clause, known.values[slot], old)
            if not self._touches(clause):
                break
        return [PlannedTurn(user=speaker.say("overheard", clause=clause), assistant=speaker.say("overheard_answer"))]

    def _imagined(self) -> Segment:
        """What would be a fact, or an end or a change of one, if it were not a dream, a role or a mere thought."""
        speaker, clause = self._speaker, self._of_nobody(invented=False)
        rule = "imagined_that" if speaker.can_stand_after_that(clause) else "imagined"
        return [PlannedTurn(user=speaker.say(rule, clause=clause), assistant=speaker.say("imagined_answer"))]

    def _quoted_others(self) -> Segment:
        """What somebody whom nobody knows says of their own life, word for word."""
        speaker = self._speaker
        said = speaker.say("quoted", clause=finished(self._of_nobody(invented=True)))
        return [PlannedTurn(user=said, assistant=speaker.say("quoted_answer"))]

    def _of_nobody(self, *, invented: bool) -> str:
        """A clause that tells a fact, or an end or a change of one, which is nobody's in this life.

        `invented`: the people and places in it are of nobody's life either.
        """
        rng, speaker, phrasing = self._rng, self._speaker, self._phrasing
        cast = speaker.cast
        for _ in range(_TRIES):
            topic = rng.choice([topic for topic in topics() if not topic.other])
            strange = {
                slot: cast.name(rng) if slot_source(slot) == PERSON else cast.place(rng)
                for slot in topic.slots
                if slot_source(slot) in (PERSON, PLACE)
            }
            known, chance = KnownValues(topic, cast.fill(rng, topic, strange if invented else None)), rng.random()
            ends = chance < 0.35
            clause = phrasing.ended(over(rng, known), implied=False) if ends else phrasing.core(known, that=True)
            slots = [slot for slot in topic.changeable if values().listed(slot) and known.values[slot] in clause]
            if 0.35 <= chance < 0.6 and slots:
                old = values().draw(rng, slots[0], known.values.values())
                clause = phrasing.set_against(clause, known.values[slots[0]], old)
            elif not ends and rng.random() < _DATED:
                clause = self._dated(known, clause)
            elif not ends and invented and rng.random() < _OTHERS:
                clause = f"{finished(clause)} {finished(speaker.say('others', x=cast.name(rng)))}"
            if speaker.can_stand_after_that(clause) and not self._touches(clause):
                break
        return clause

    def _dated(self, known: KnownValues, clause: str) -> str:
        """A clause with a day on which it begins or ends."""
        rng, today = self._rng, self._task.today
        when = day(today + timedelta(days=rng.choice([*range(-20, -2), *range(3, 40)])))
        dated = replace(known, since=when) if rng.random() < 0.5 else replace(known, until=when)
        return ", and ".join((clause, *self._phrasing.dates(dated, rng.random() >= _DATED_IN_FULL)))

    def _touches(self, text: str) -> bool:
        """Whether a text has something that a fact of the session is about."""
        facts = self._task.facts
        return self._has(text, (word for fact in facts for word in wordings(fact.keywords))) or _says_outdated(text, facts)

    def _has(self, text: str, words: Iterable[str]) -> bool:
        said, name = folded(text), self._task.fixed.name
        # That the beginnings of a keyword's longer words are there is much faster to see than what `uses` looks for.
        likely = (word for word in words if all(map(said.__contains__, _beginnings(word))))
        return any(uses(text, word, name) for word in likely)

    def _aside(self, aside: Aside) -> PlannedTurn:
        given, slots = self._speaker.around({}), slots_of(self._task.fixed.name, aside)
        for _ in range(_TRIES):
            user, answer = say_distractor(self._rng, aside.kind, aside.words, slots, given)
            if not any(self._touches(text) for text in (user, answer)):
                break
        return PlannedTurn(user=user, assistant=answer, kept=aside.words, aside=aside)

    def _laid_out(self, segments: tuple[list[Segment], list[Segment]]) -> list[PlannedTurn]:
        """All turns in order: no long run is without a fact or an aside, and the day's event comes early."""
        rng, (facts, others) = self._rng, segments
        for _ in range(_TRIES):
            order = list(facts)
            for other in rng.sample(others, len(others)):
                order.insert(rng.randint(0, len(order)), other)
            # What happened is told before anything else, or after one other thing.
            if facts and facts[0] not in order[:2]:
                continue
            turns = self._framed(self._joined([turn for segment in order for turn in segment]))
            marks = "".join("x" if turn.statements or turn.aside else " " for turn in turns)
            gap = max(map(len, marks.split("x"))) if facts else 0
            if len(turns) in self._limits.turns and gap <= self._gap:
                return turns
        return self._framed([turn for segment in (*facts, *others) for turn in segment][: self._limits.turns.max - 2])

    def _joined(self, turns: Sequence[PlannedTurn]) -> list[PlannedTurn]:
        """The turns, some with what the user comes to talk of after the facts: a question while they are at it."""
        found, spare = list[PlannedTurn](), len(turns) - self._limits.turns.min
        for turn in turns:
            last = found[-1] if found else None
            begins = turn.first and not turn.statements and turn.user and spare > 0
            if last and last.statements and not last.user and begins and self._rng.random() < _JOINED:
                told = content_stems(" ".join(sentence for statement in last.statements for sentence in statement.said))
                stems = content_stems(turn.aside.memory) if turn.aside else frozenset()
                close = 3 * len(stems & told) > len(stems) or 3 * len(stems & (told | content_stems(turn.user))) > 2 * len(
                    stems
                )
                if not close and not _says_outdated(
                    turn.user, (fact for statement in last.statements for fact in statement.facts)
                ):
                    spare -= 1
                    found[-1] = replace(last, user=turn.user, assistant=turn.assistant, kept=turn.kept, aside=turn.aside)
                    continue
            found.append(turn)
        return found

    def _framed(self, turns: list[PlannedTurn]) -> list[PlannedTurn]:
        """The turns with a greeting and a goodbye, of their own or in the first and the last turn."""
        rng, speaker, most = self._rng, self._speaker, self._limits.turns.max
        for turn in turns:
            turn.opening = turn.closing = ""
        found = list(turns)
        if found[0].answers or (len(found) < most and rng.random() < _GREETING_ALONE):
            found.insert(0, PlannedTurn(user=speaker.say("greet"), assistant=speaker.say("answer_hello"), kind="hello"))
        elif rng.random() < _GREETED:
            found[0].opening = speaker.say("hello")
        if rng.random() < _GOODBYE:
            if len(found) < self._limits.turns.min or (len(found) < most and rng.random() < _GOODBYE_ALONE):
                found.append(PlannedTurn(user=speaker.say("bye"), assistant=speaker.say("goodbye"), kind="goodbye"))
            else:
                found[-1].closing = speaker.say("bye")
        return found

    def _add_claims(self) -> None:
        """Let the assistant say what it has to say for the user's answers, and what it merely claims."""
        turns = self._turns
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
                at
                for at in places
                if turns[at + 1].first and not self._soon(aside.words, at) and not _near(turns[at].statements, stems)
            ]
            if not places:
                places, turns[-1].closing = [len(turns) - 1], ""
                user, assistant = self._speaker.say("bye"), self._speaker.say("goodbye")
                turns.append(PlannedTurn(user=user, assistant=assistant, kind="goodbye"))
            place = self._rng.choice(likely or places)
            evasion, claim = self._claim(aside)
            turns[place].asked, turns[place].claim, turns[place + 1].opening = claim, aside, evasion

    def _claim(self, aside: Aside) -> tuple[str, str]:
        """How the user evades a claim of the assistant, and the claim: of a memory that can be read, whether it holds."""
        stems, said = content_stems(aside.memory), " and ".join(f"“{word}”" for word in aside.words)
        for matter in self._matters(aside.memory) if aside.words else ():
            if any(occurs(word, matter) for word in aside.words):
                continue
            claim = self._speaker.say("claim_memory", x=said, matter=matter)
            if not self._touches(claim) and 2 * len(stems & content_stems(claim)) <= len(stems):
                return distractors().grammar.say(self._rng, "shrug"), claim
        given = self._speaker.around({})
        return say_distractor(self._rng, aside.kind, aside.words, slots_of(self._task.fixed.name, aside), given)

    def _matters(self, memory: str) -> list[str]:
        """How the assistant may call what a memory is about, the plainest first; none if it cannot be read."""
        name = self._task.fixed.name
        if (known := read(name, memory)) is not None:
            return [matter_with_key(self._speaker, known), matter_of(self._speaker, known.topic.name)]
        return [f"the {view.occasion}"] if (view := read_view(name, memory)) is not None else []

    def _soon(self, words: Sequence[str], place: int) -> bool:
        said = " ".join(words)
        return any(
            occurs(keyword, said)
            for turn in self._turns[place + 1 :]
            for statement in turn.statements
            for fact in statement.facts
            for keyword in fact.keywords
        )

    # --- the user ------------------------------------------------------------------------------------------------------

    def _exchange(self, place: int) -> Exchange:
        turn = self._turns[place]
        said = [turn.opening, self._reaction(place)] if turn.first else [turn.opening]
        if turn.statements:
            for number, statement in enumerate(turn.statements):
                said += self._told(place, number, statement)
        if turn.user:
            said += self._chatted(place)
        said.append(turn.closing)
        kept = [*turn.kept, *(word for statement in turn.statements for word in statement.kept)]
        user = self._speaker.spoken(said, kept)
        if user in self._said and turn.statements and not self._speaker.short:
            # Two confirmations in the same words.
            user = self._speaker.spoken([*said, self._speaker.say("tail")], kept)
        self._said.add(user)
        return Exchange(user=user, assistant=self._answer(place, user, kept))

    def _reaction(self, place: int) -> str:
        """An answer to what the assistant has asked, or a word on what it has said."""
        turn, rng = self._turns[place], self._rng
        if place == 0 or turn.answers or turn.opening:
            return ""
        if self._turns[place - 1].kind == "hello":
            return self._speaker.say("greeted") if rng.random() < 0.5 else ""
        if self._follow:
            return self._speaker.line(tuple(self._follow))
        return self._speaker.say("reaction") if rng.random() < _REACTIONS else ""

    def _told(self, place: int, number: int, statement: Statement) -> list[str]:
        """A statement, perhaps with something that leads up to it, and a comment."""
        speaker, rng = self._speaker, self._rng
        voice, said = speaker.voice, list(statement.said)
        clause = speaker.inner(said[0], statement.kept)
        leads = not statement.asked and not any(mark in said[0] for mark in ":?")
        late = (self._task.today - self._task.event.date).days > 1
        happened = statement.facts[0].origin is FactOrigin.EVENT
        if leads and late and rng.random() < (_LATE_EVENTS if happened else _LATE):
            said[0] = f"{self._unsaid('days_after')} {clause}"
        elif leads and not self._meant and rng.random() < (_EVENTS_WHEN if happened else _WHEN):
            said[0] = self._meant_to_say(clause, place)
        elif leads and number and rng.random() < 0.5:
            said[0] = f"{self._unsaid('second')} {clause}"
        elif leads and place and not number and rng.random() < voice.openers:
            if statement.topic and rng.random() < 0.2:
                opener = speaker.say("opener_matter", matter=in_first_person(matter_of(speaker, statement.topic)))
            else:
                opener = self._unsaid("opener")
            said[0] = f"{opener} {clause}"
        if not statement.asked and rng.random() < voice.tails:
            said.append(speaker.say("tail"))
        return said

    def _unsaid(self, rule: str) -> str:
        """A sentence of a rule that the user has not said in this session, as far as there is one."""
        for _ in range(_TRIES):
            said = self._speaker.say(rule)
            if said not in self._opened:
                break
        self._opened.add(said)
        return said

    def _meant_to_say(self, clause: str, place: int) -> str:
        """A clause, and since when the user has wanted to say it, which may be the day of the event; once a session."""
        self._meant = True
        happened, today, speaker = self._task.event.date, self._task.today, self._speaker
        if happened == today and self._rng.random() < 0.5:
            happened = today - timedelta(days=self._rng.randint(1, 4))
        x = speaker.say("today") if happened == today else relative(self._rng, happened, today)
        first = place == 0 and speaker.voice.kind != "terse" and self._rng.random() < 0.5
        return speaker.say("when_first" if first else "when", x=x, clause=clause)

    def _chatted(self, place: int) -> list[str]:
        """What the user says besides facts, led up to and commented on as facts are."""
        turn, speaker, rng = self._turns[place], self._speaker, self._rng
        voice, user = speaker.voice, turn.user
        plain = turn.first and place and turn.kind == "chat"
        if plain and (turn.statements or rng.random() < voice.openers) and ":" not in user[:30]:
            clause = speaker.inner(user)
            meant = not self._meant and rng.random() < _WHEN
            user = self._meant_to_say(clause, place) if meant else f"{self._unsaid('opener_chat')} {clause}"
        return [user, speaker.say("tail") if plain and rng.random() < voice.tails / 2 else ""]

    # --- the assistant -------------------------------------------------------------------------------------------------

    def _answer(self, place: int, user: str, kept: Sequence[str]) -> str:
        turn = self._turns[place]
        self._follow = ()
        if turn.kind == "hello" and turn.asked:
            return " ".join(map(finished, (self._speaker.say("answer_hello_first"), turn.asked)))
        if not turn.statements:
            short = len(turn.assistant.split()) < self._limits.assistant_words.min
            parts = [turn.assistant, self._speaker.say("ack_safe")] if short else [turn.assistant]
            return " ".join(finished(part) for part in (*parts, turn.asked) if part)
        for _ in range(_TRIES):
            parts, follow = self._drawn(place, user)
            text = " ".join(map(finished, parts))
            long = len(text.split()) >= self._limits.assistant_words.min
            later = (word for word, first in self._pending.items() if first > place)
            if long and text not in self._answered and not self._has(text, later):
                break
        else:
            parts, follow = [self._speaker.say("ack_safe"), *([turn.assistant] if turn.user else [])], ()
        self._follow = follow
        self._answered.add(text)
        return " ".join(finished(part) for part in (*parts, turn.asked) if part)

    def _drawn(self, place: int, user: str) -> tuple[list[str], Sequence[str]]:
        """What the assistant may answer to facts, and what the user may answer to that."""
        rng, speaker, turn = self._rng, self._speaker, self._turns[place]
        after = self._turns[place + 1] if place + 1 < len(self._turns) else None
        *_, statement = turn.statements
        matters = [matter_of(speaker, told.topic) for told in turn.statements if told.topic]
        if len(turn.statements) > 1:
            different = len({told.topic for told in turn.statements}) == len(set(matters)) == len(turn.statements)
            both = speaker.say("ack_both", matter=matters[0], matter2=matters[-1]) if different else speaker.say("ack_two")
            parts = [both]
        elif matters and rng.random() < 0.7:
            parts = [speaker.say("ack_matter", matter=matters[0])]
        else:
            parts = [speaker.say("ack")]
        if turn.user:
            return [*parts, turn.assistant, *([speaker.say("goodbye")] if turn.closing else [])], ()
        open_ended = after is not None and after.first and not after.opening and not turn.asked and not after.answers
        if rng.random() < 0.25 + _READ_BACK and (word := self._quoted(user, statement)):
            if open_ended and not turn.closing and rng.random() < _READ_BACK / (0.25 + _READ_BACK):
                return [*parts, speaker.say("read_back", word=word)], speaker.texts("confirm")
            parts.append(speaker.say("quote", word=word))
        if after is None or turn.closing:
            return [*parts, speaker.say("goodbye")], ()
        if not statement.topic or statement.over:
            return parts, ()
        area: Area = talk().area_of(statement.topic)[1]
        questions = [line for line in area.follow_ups if suits(line, statement.topic)]
        offers = [line for line in area.offers if suits(line, statement.topic)]
        if open_ended and questions and rng.random() < 0.45:
            follow = rng.choice(questions)
            return [*parts, speaker.line(follow.ask)], follow.answers
        if offers and rng.random() < 0.35:
            parts.append(speaker.line(rng.choice(offers).say))
        return parts, ()

    def _quoted(self, user: str, statement: Statement) -> str:
        """Something that the user has just said: a keyword, or as often something else of the facts."""
        keywords = {word for fact in self._task.facts for word in wordings(fact.keywords)}
        due = self._rng.random() < _QUOTED_KEYWORDS
        words = [word for word in dict.fromkeys(statement.noted) if (word in keywords) == due and len(word) > 3]
        # Not what is over or was never so: the user may say yes to it.
        true = folded(" ".join(fact.text for fact in statement.facts))
        said = [word for word in words if stands_in(folded(word), folded(user)) and stands_in(folded(word), true)]
        return self._rng.choice(said) if said else ""


def _groups(facts: Iterable[SessionFact], name: str) -> list[list[SessionFact]]:
    """Facts that are said together: what happened, then what is of one area next to each other, as the story has it."""
    groups: list[list[SessionFact]] = []
    by_number: dict[int, list[SessionFact]] = {}
    for fact in facts:
        if fact.statement and fact.statement in by_number:
            by_number[fact.statement].append(fact)
            continue
        groups.append([fact])
        if fact.statement:
            by_number[fact.statement] = groups[-1]
    events = [group for group in groups if group[0].origin is FactOrigin.EVENT]
    by_area: dict[str, list[list[SessionFact]]] = {}
    for group in groups:
        if group[0].origin is not FactOrigin.EVENT:
            known = read(name, group[0].text)
            by_area.setdefault(talk().area_of(known.topic.name)[0] if known else "", []).append(group)
    return [*events, *(group for alike in by_area.values() for group in alike)]


@lru_cache(maxsize=8_192)
def _beginnings(keyword: str) -> tuple[str, ...]:
    """The beginnings of a keyword's longer words, numbers aside."""
    return tuple(word[:3] for word in folded(keyword).split() if len(word) > 3)


@cache
def _without_people() -> tuple[Topic, ...]:
    """Topics that may be about anybody."""
    known = {PLACE, *values().lists}
    return tuple(
        topic
        for topic in topics()
        if not topic.event
        and known.issuperset(map(slot_source, topic.slots))
        and any(values().listed(slot) for slot in topic.changeable)
    )


def _near(statements: Iterable[Statement], stems: frozenset[str]) -> bool:
    """Whether a fact has much of what a memory says, so that an answer to it could tell the memory."""
    return any(2 * len(stems & content_stems(fact.text)) > len(stems) for told in statements for fact in told.facts)


def _says_outdated(text: str, facts: Iterable[SessionFact]) -> bool:
    """Whether a text says a value that the facts make outdated."""
    said = folded(text)
    return any(stands_in(folded(value), said) for fact in facts for value in fact.outdated)


def _area(statement: Statement) -> str:
    return talk().area_of(statement.topic)[0] if statement.topic else ""


def _spoils(one: Statement, other: Statement) -> bool:
    """Whether one statement says a value that the other one makes outdated without saying it."""

    def bare(told: Statement) -> list[SessionFact]:
        return [fact for fact in told.facts if fact.event is Event.UPDATE and fact.signal == "value"]

    return any(_says_outdated(text, bare(first)) for first, second in ((one, other), (other, one)) for text in second.said)


# --- the tiny form: the segments in a few words, without a greeting and a goodbye ------------------------------------------


_PAIRED_SHORT = 0.15
"""Share of statements that are told in one turn with the next one."""
_WHAT_IF = 0.25
"""Share of chat that speaks of what is no fact in the words of one."""
_FRAMED, _THAT = 0.06, 0.5
"""Shares of statements that stand inside another sentence, and of those, where they can be, after "that"."""


class _ShortWriter(SessionWriter):
    def _wanted(self, facts: int) -> int:
        return self._rng.randint(1, 4) if facts else self._rng.randint(1, 3)

    def _chance(self, one: Statement, other: Statement) -> float:
        return _PAIRED_SHORT

    def _scene(self) -> Segment:
        for _ in range(_TRIES):
            user = self._chat()
            if not _says_outdated(user, self._task.facts):
                break
        return [PlannedTurn(user=user)]

    _overheard = _imagined = _quoted_others = _scene

    def _chat(self) -> str:
        """A sentence that states nothing about the person, at times in the words in which something would be stated."""
        speaker, rng = self._speaker, self._rng
        if rng.random() >= _WHAT_IF:
            return speaker.say("chat")
        topic = rng.choice(topics(short=True))
        given = speaker.cast.fill(rng, topic, {topic.key: rng.choice(speaker.cast.people)})
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

    def _joined(self, turns: Sequence[PlannedTurn]) -> list[PlannedTurn]:
        return list(turns)

    def _claim(self, aside: Aside) -> tuple[str, str]:
        claim = (
            self._speaker.say("claim", x=" and ".join(aside.words)) if aside.words else self._speaker.say("question_back")
        )
        return self._speaker.say("dodge"), claim

    def _framed(self, turns: list[PlannedTurn]) -> list[PlannedTurn]:
        return [PlannedTurn(user=self._chat()), *turns] if not turns or turns[0].answers else turns

    def _reaction(self, place: int) -> str:
        return ""

    def _chatted(self, place: int) -> list[str]:
        """What is no fact, perhaps led up to; comments in this form go on with a sentence that is a fact."""
        turn, speaker = self._turns[place], self._speaker
        user, later = turn.user, turn.first and place and turn.kind == "chat"
        if later and self._rng.random() < speaker.voice.openers and ":" not in user[:30]:
            user = f"{speaker.say('opener_chat')} {speaker.inner(user)}"
        return [user]

    def _told(self, place: int, number: int, statement: Statement) -> list[str]:
        speaker, rng = self._speaker, self._rng
        first, *rest = statement.said
        if rng.random() < speaker.voice.openers:
            first = f"{speaker.say('opener')} {first}"
        elif rng.random() < _FRAMED:
            that = rng.random() < _THAT and first.startswith(("I ", "my "))
            first = speaker.say("frame_that" if that else "frame", clause=first)
        elif rng.random() < speaker.voice.tails:
            first = first.removesuffix(".") + speaker.say("tail")
        return [first, *rest]

    def _answer(self, place: int, user: str, kept: Sequence[str]) -> str:
        speaker, turn = self._speaker, self._turns[place]
        keywords = [word for word in kept if occurs(word, user)]
        if turn.asked:
            return finished(turn.asked)
        if keywords and self._rng.random() < 0.15:
            return finished(speaker.say("quote", word=self._rng.choice(keywords)))
        return finished(speaker.say("answer" if user.endswith("?") else "ack"))


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Tell the facts and asides of a session, with scenes between them, in this person's way of speaking."""
    return (_ShortWriter if task.limits.verbatim else SessionWriter)(task, rng).write()

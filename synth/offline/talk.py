"""Dialogues of the shape `demanding`: what is said round the facts, how changes show, and what states nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

from pydantic import model_validator

from deltamem.config import StrictModel
from deltamem.memory import Event
from deltamem.text import content_stems, content_words
from synth.names import split_of
from synth.offline import paper
from synth.offline.grammar import Grammar, Sentences, Speech, Voice, draw_voice, finished, inner, spoken
from synth.offline.templates import day
from synth.offline.topics import (
    LAST,
    PERSON,
    PLACE,
    Known,
    cast_of,
    details_of,
    ends_of,
    lines,
    read,
    source,
    topics,
    values,
)
from synth.pools import load
from synth.records import Aside, AsideKind, Dialogue, Exchange, PlannedAside, PlannedFact, SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import occurs

_AROUND = (PERSON, PLACE, "name")
_CLAUSE, _X = ("clause",), ("x",)
_GIVEN = {
    **dict.fromkeys(("gossip_dish", "gossip_drink", "gossip_sport", "gossip_instrument"), ("x",)),
    **dict.fromkeys(("frame", "frame_that", "explicit_old", "explicit_new", "correct", "claim_fact", "what_if"), _CLAUSE),
    **dict.fromkeys(("others", "mishap", "since_past", "since_future", "until_said", "until_in", "claim", "cue"), _X),
    **dict.fromkeys(("chit_chat", "hypothetical", "rumour", "question"), _X),
    **dict.fromkeys(("matter", "hearsay"), ("x", "clause")),
    "chit_pair": ("x", "y"),
    "explicit_swap": ("old", "clause"),
    "quote": ("word",),
}
"""The slots of rules that are given when they are said."""


class Talk(StrictModel):
    """Everything that is said besides the facts (``talk.yaml``)."""

    speech: Speech
    rules: dict[str, Sentences]

    @model_validator(mode="after")
    def _fills_its_slots(self) -> Self:
        for name, texts in self.rules.items():
            known = {*_GIVEN.get(name.removeprefix("short_"), ()), *_AROUND, *values().lists}
            if unknown := {slot for slot in lines(texts).slots if slot not in known and source(slot) not in known}:
                raise ValueError(f"rules.{name}: unknown slot {sorted(unknown)}")
        return self

    @cached_property
    def grammar(self) -> Grammar:
        """The rules, with the words of values.yaml."""
        return Grammar(self.rules, values().lines)


class TinyTalk(StrictModel):
    """The rules of the tiny form (``tiny_talk.yaml``)."""

    rules: dict[str, Sentences]


@cache
def talk_file() -> Talk:
    """Everything that is said besides the facts, but for the tiny form."""
    return load(Path(__file__).with_name("talk.yaml"), Talk)


@cache
def tiny_talk_file() -> TinyTalk:
    """What the tiny form says besides the facts."""
    return load(Path(__file__).with_name("tiny_talk.yaml"), TinyTalk)


@cache
def talk() -> Talk:
    """Everything that is said besides the facts; the rules of the tiny form begin with ``short_``."""
    short = {f"short_{name}": texts for name, texts in tiny_talk_file().rules.items()}
    return Talk(speech=talk_file().speech, rules={**talk_file().rules, **short})


_MONTH_DAY = re.compile(r"([0-9]{1,2}) ([A-Z][a-z]+) ([0-9]{4})")
_MONTHS = tuple(day(date(2026, month, 1)).split()[1] for month in range(1, 13))
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def relative(rng: random.Random, value: date, today: date) -> str:
    """A date as people say it on a day, so that both give the date."""
    days = (value - today).days
    near = {-2: "the day before yesterday", -1: "yesterday", 0: "today", 1: "tomorrow", 2: "the day after tomorrow"}
    if days in near:
        return near[days]
    name, number = _DAYS[value.weekday()], _counted(abs(days), "day")
    exact = f"{number} ago" if days < 0 else rng.choice((f"in {number}", f"{number} from now"))
    if abs(days) < 7:
        return rng.choice((f"last {name}" if days < 0 else f"this coming {name}", exact))
    if days % 7 == 0:
        weeks = _counted(abs(days) // 7, "week")
        return f"{weeks} ago to the day" if days < 0 else f"in exactly {weeks}"
    return exact


def _counted(number: int, unit: str) -> str:
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} {unit}" if number == 1 else f"{word} {unit}s"


_GOSSIP = 0.26
"""Share of chat that tells of changes in the lives of strangers, in the words in which users tell of their own."""
_WHAT_IF = 0.25
"""Share of chat in the tiny form that speaks of what is no fact in the words of one."""
_GOSSIPED = ("dish", "drink", "sport", "instrument", "end", "end")
_MATTERS, _CONTRASTS = 0.1, 0.12
"""Shares of new and repeated facts that are introduced as changes are."""
_ENDS = (".", "!", "?", "…", ")")


def as_date(text: str) -> date:
    """A date as memories have it, read back."""
    found = _MONTH_DAY.fullmatch(text)
    assert found is not None
    return date(int(found[3]), _MONTHS.index(found[2]) + 1, int(found[1]))


@dataclass(slots=True)
class Turn:
    """What is said in one turn.

    Attributes:
        said: Sentences of the user.
        kept: Phrases that must be found again in them.
        asked: What the assistant has to say in the end, so that the next turn can answer it.
        carries: Whether a fact or an aside of the plan is said.
    """

    said: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    asked: str = ""
    carries: bool = False


_SHORT = Voice(0.5, 0.0, 0.0, 0.0, 0.0, False, 0.0, 0.25, 0.15, 0.1, 0.1, 0.5)
"""How people of the tiny form speak."""


class Speaker:
    """Says sentences the way one person does."""

    def __init__(self, rng: random.Random, name: str, *, short: bool = False) -> None:
        """Take a person.

        Args:
            rng: What is drawn depends on this and the name alone.
            name: The person's; their way of speaking is the same in all sessions.
            short: Whether they use the few words of the tiny form: the rules that begin with ``short_``, if there are.
        """
        self.short = short
        self.rng = rng
        self.name = name
        self.cast = cast_of(name, split_of(name))
        self.voice = _SHORT if short else draw_voice(random.Random(f"voice of {name}"))
        self._names = frozenset((*self.cast.people, *self.cast.places, *name.split(), *_DAYS, *_MONTHS))
        self._grammar, self._speech = talk().grammar, talk().speech

    def say(self, rule: str, **given: str) -> str:
        """A sentence of a rule, with people and places of this life where it names some."""
        if self.short and f"short_{rule}" in self._grammar:
            rule = f"short_{rule}"
        return self._grammar.say(self.rng, rule, self._around(given))

    def line(self, texts: tuple[str, ...], given: Mapping[str, str]) -> str:
        """One of these sentences about a fact."""
        return self._grammar.write(self.rng, lines(texts).draw(self.rng), given)

    def chat(self) -> str:
        """A sentence that states nothing about the person; now and then what has changed for somebody in the street."""
        if self.short:
            return self._what_if() if self.rng.random() < _WHAT_IF else self.say("chat")
        if self.rng.random() >= _GOSSIP:
            return self.say("chat")
        slot = self.rng.choice(_GOSSIPED)
        if slot == "end":
            return self.say("gossip_end")
        new = values().draw(self.rng, slot)
        old = values().draw(self.rng, slot, (new,))
        who = self.say("stranger")
        clause = self.say(f"gossip_{slot}", who=who, x=new)
        if self.rng.random() < 0.45:
            return self.say("explicit_swap", clause=clause, old=old)
        before = self.say(f"gossip_{slot}", who=who, x=old)
        return f"{finished(self.say('explicit_old', clause=before))} {finished(self.say('explicit_new', clause=clause))}"

    def _what_if(self) -> str:
        """Something of any topic that is no fact."""
        topic = self.rng.choice(topics(short=True))
        values_ = self.cast.fill(self.rng, topic, {topic.key: self.rng.choice(self.cast.people)})
        return self.say("what_if", clause=self.line(topic.say, values_))

    def has(self, rule: str) -> bool:
        """Whether there is such a rule, and the person would use it."""
        return not self.short and rule in self._grammar

    def _around(self, given: Mapping[str, str]) -> dict[str, str]:
        who, who2 = self.rng.sample(self.cast.people, 2)
        spot, spot2 = self.rng.sample(self.cast.places, 2)
        return {PERSON: who, "who2": who2, PLACE: spot, "spot2": spot2, "name": who2, **given}

    def wrapped(self, clause: str) -> str:
        """A clause about a fact as a sentence: with something before it, round it or after it, or as it is."""
        rng, voice = self.rng, self.voice
        if rng.random() < voice.frames * 0.6:
            that = rng.random() < 0.5 and clause.startswith(("I ", "I'", "my ", "we ", "our "))
            return self.say("frame_that" if that else "frame", clause=clause)
        if rng.random() < voice.openers:
            clause = f"{self.say('opener')} {clause}"
        if rng.random() < voice.tails:
            clause += self.say("tail")
        return clause

    def spoken(self, sentences: Sequence[str], kept: Collection[str]) -> str:
        """Sentences as the person says them, in one utterance."""
        said = [spoken(self.rng, self.voice, self._speech, finished(sentence), kept) for sentence in sentences if sentence]
        text = said[0]
        names = self._names.union(word for phrase in kept for word in phrase.split() if word[:1].isupper())
        for sentence in said[1:]:
            if text.endswith(".") and self.rng.random() < self.voice.joins:
                own = self._speech.joins[int(self.voice.join * len(self._speech.joins))]
                join = own if self.rng.random() < 0.25 else self.rng.choice(self._speech.joins)
                text = f"{text[:-1]}{join}{inner(sentence, names)}"
                text += "" if text.endswith(_ENDS) else "."
            else:
                text = f"{text} {sentence}"
        return text[:-1] if text.endswith(".") and self.rng.random() < self.voice.unstopped else text

    def to_second_person(self, clause: str) -> str:
        """What the user would say, as the assistant says it of them."""
        return self._speech.replaced(self.rng, "second", clause, 1.0, ())


class Telling:
    """Finds the sentences for the facts of a session."""

    def __init__(self, speaker: Speaker, task: DialogueTask) -> None:
        """Take the person and the session."""
        self._speaker, self._task = speaker, task
        self._rng, self._name = speaker.rng, task.fixed.name

    def core(self, known: Known) -> str:
        """The fact without its details."""
        return self._speaker.line(known.topic.say, known.values)

    def detail(self, known: Known, place: int) -> str:
        """A detail, or that it is gone."""
        detail = details_of(known.topic.name)[place]
        return self._speaker.line(detail.say if known.details[place] == "has" else detail.unsay, known.values)

    def details(self, known: Known) -> list[str]:
        """All details."""
        return [self.detail(known, place) for place, state in enumerate(known.details) if state]

    def dates(self, known: Known, dated: bool, *, plain: bool = False) -> list[str]:
        """From when and until when; as dates, if they are to be plain."""
        today, said = self._task.today, []
        if known.since:
            value = as_date(known.since)
            x = relative(self._rng, value, today) if dated else known.since
            said.append(self._speaker.say("since_past" if value < today else "since_future", x=x))
        if known.until:
            value = as_date(known.until)
            if plain or value <= today or self._rng.random() < 0.5:
                said.append(self._speaker.say("until_said", x=known.until.rsplit(" ", 1)[0]))
            else:
                said.append(self._speaker.say("until_in", x=relative(self._rng, value, today)))
        return said

    def all_of(self, known: Known, dated: bool) -> list[str]:
        """Everything that a memory says."""
        if known.end is not None:
            return [self.ended(known, implied=False)]
        first = self.core(known)
        if known.heard:
            first = self._speaker.say("hearsay", x=known.heard, clause=first)
        return [*self._joined([first, *self.details(known)]), *self.dates(known, dated)]

    def ended(self, known: Known, implied: bool) -> str:
        """That something is over."""
        assert known.end is not None
        end = ends_of(known.topic.name)[known.end]
        if not implied:
            return self._speaker.line(end.say, known.values)
        return self.about(known, self._speaker.line(end.implied, known.values))

    def about(self, known: Known, clause: str) -> str:
        """A clause that may not tell by itself which fact it is about."""
        if known.topic.single or occurs(known.values[known.topic.key], clause):
            return clause
        return self._speaker.say("matter", x=known.values[known.topic.key], clause=clause)

    def change(self, fact: SessionFact, old: Known, new: Known) -> tuple[list[str], list[str]]:
        """What held before, if that has to be said, and what holds now."""
        speaker, signal = self._speaker, fact.signal
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        dates = self.dates(replace(new, until="") if new.until == old.until else new, dated)
        if new.end is not None:
            now = [self.ended(new, implied=signal == "implied"), *dates]
            return (self.before(old), now) if signal == "explicit" else ([], now)
        slots = [slot for slot in new.topic.slots if slot != "kin" and new.values[slot] != old.values.get(slot)]
        places = [place for place, _ in enumerate(details_of(new.topic.name)) if self._differs(old, new, place)]
        if signal == "implied" and new.topic.implied and slots == [new.topic.change[0]] and not places:
            line = speaker.line(new.topic.implied, new.values)
            return [], [self.about(new, line), *dates]
        now = [self.detail(new, place) for place in places if new.details[place]]
        if slots or not now:
            now.insert(0, self.core(new))
        elif signal != "explicit":
            other = next((slot for slot in new.topic.slots if slot not in ("kin", new.topic.key)), new.topic.key)
            whole = LAST in places or self._rng.random() < 0.6
            now = [self.core(new), *now] if whole else [self._matter(new.values[other], now)]
        if signal != "explicit":
            return [], [*self._joined(now), *dates]
        if len(slots) == 1 and not places and self._rng.random() < 0.7:
            return [], [speaker.say("explicit_swap", old=self._stored(fact, old.values[slots[0]]), clause=now[0]), *dates]
        return self.before(old), [speaker.say("explicit_new", clause=now[0]), *now[1:], *dates]

    def _matter(self, x: str, clauses: Sequence[str]) -> str:
        return self._speaker.say("matter", x=x, clause=" and ".join(clauses))

    @staticmethod
    def _stored(fact: SessionFact, value: str) -> str:
        """A value as the memory has it: ``Mondays`` for ``Monday``."""
        return f"{value}s" if occurs(f"{value}s", fact.previous_text) else value

    def before(self, old: Known) -> list[str]:
        """What held before a change."""
        if old.end is not None:
            return [self._speaker.say("explicit_old", clause=self.ended(old, implied=False))]
        # Of short facts the first line has the verb of the memory.
        clause = self._speaker.line(old.topic.say[:1], old.values) if old.topic.short else self.core(old)
        dates = self.dates(old, False, plain=True)
        return [self._speaker.say("explicit_old", clause=clause), *self.details(old), *dates]

    @staticmethod
    def _differs(old: Known, new: Known, place: int) -> bool:
        slots = new.detail_slots(place)
        return old.details[place] != new.details[place] or any(
            slot != "kin" and new.values.get(slot) != old.values.get(slot) for slot in slots
        )

    def _joined(self, clauses: Sequence[str]) -> list[str]:
        """Clauses as sentences, some two in one."""
        found: list[str] = []
        for clause in clauses:
            if found and self._rng.random() < 0.35 and not found[-1].endswith(("?", ":")):
                found[-1] += self._rng.choice((", and ", "; ", " - ", ", ")) + clause
            else:
                found.append(clause)
        return found

    def misspoken_slot(self, fact: SessionFact, new: Known) -> str | None:
        """The slot that the wrong value of a corrected fact belongs to."""
        slots = [slot for slot in (*new.topic.changeable, *new.values) if slot in new.values and slot != "kin"]
        for slot in slots:
            if re.fullmatch(values().pattern(slot), fact.misspoken) and occurs(new.values[slot], fact.text):
                return slot
        return None


class _Writer:
    """Writes the dialogue of one session."""

    def __init__(self, task: DialogueTask, rng: random.Random) -> None:
        self._task, self._rng = task, rng
        # Facts may be said word for word in the tiny form alone.
        self._speaker = Speaker(rng, task.fixed.name, short=task.limits.verbatim)
        self._telling = Telling(self._speaker, task)
        self._groups = _claims_last(_statements(task.facts))
        self._plan: list[PlannedFact] = []
        self._asides: list[PlannedAside] = []
        self._pending: dict[str, int] = {}
        self._assistant: set[str] = set()
        self._late = False
        self._outdated = [
            value for fact in task.facts if fact.event is Event.UPDATE and fact.signal == "value" for value in fact.outdated
        ]

    def write(self) -> Dialogue:
        """Place facts and asides, then write turn after turn."""
        limits = self._task.limits.turns
        places = self._places()
        # What the assistant claims is answered in the next turn.
        claims = any(aside.kind is AsideKind.ASSISTANT_CLAIM for aside in self._task.asides)
        count = max(len(self._turns), limits.min, min(limits.max, 1 + claims))
        self._turns += [Turn() for _ in range(count - len(self._turns))]
        for group, place in zip(self._groups, places, strict=True):
            self._tell(group, place)
        for aside in self._task.asides:
            self._add_aside(aside)
        exchanges = [self._exchange(place) for place in range(len(self._turns))]
        return Dialogue(plan=tuple(self._plan), asides=tuple(self._asides), turns=tuple(exchanges))

    def _places(self) -> list[int]:
        """The turn of each statement, from 0."""
        rng, limits = self._rng, self._task.limits
        number = len(self._groups)
        needed = number + 1
        most = limits.turns.max
        count = min(most, max(limits.turns.min, needed + rng.randint(0, 3) + len(self._task.asides) // 2))
        self._turns = [Turn() for _ in range(count)]
        if not number:
            return []
        answering = [_answers(group[0]) for group in self._groups]
        for attempt in range(60):
            room = list(range(count)) if attempt > 20 or rng.random() < 0.4 else list(range(1, count - 1))
            if attempt > 40 or len(room) < number or rng.random() < 0.25:
                room = sorted(room + room)[:: 1 if limits.facts_per_turn > 1 else 2]
            if len(room) < number:
                continue
            found = sorted(rng.sample(room, number))
            stops = [-1, *found, count]
            late = all(place > 0 for place, answer in zip(found, answering, strict=True) if answer)
            twice = any(
                one == other and (answering[at] or answering[at + 1]) for at, (one, other) in enumerate(pairwise(found))
            )
            if late and not twice and all(b - a - 1 <= limits.largest_gap for a, b in pairwise(stops)):
                return found
        return [min(count - 1, 1 + number_ * (count - 1) // number) for number_ in range(number)]

    # --- facts ---------------------------------------------------------------------------------------------------------

    def _tell(self, group: Sequence[SessionFact], place: int) -> None:
        fact, speaker, telling = group[0], self._speaker, self._telling
        turn = self._turns[place]
        before, now, kept = self._sentences(fact)
        others = [known for other in group[1:] if (known := read(self._task.fixed.name, other.text)) is not None]
        if others:
            keys = [known.values[known.topic.key] for known in others]
            now.append(speaker.say("others", x=" and ".join(keys)))
            kept += keys
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        new = read(self._task.fixed.name, fact.text)
        if fact.provenance == "assistant_confirmed" and place > 0:
            clauses = self._claimed(new, fact, dated)
            self._turns[place - 1].asked = speaker.say("claim_fact", clause=speaker.to_second_person(" and ".join(clauses)))
            old = read(self._task.fixed.name, fact.previous_text)
            told = old is not None and fact.event is Event.UPDATE and fact.signal == "explicit"
            before, now = telling.before(old) if told and old else [], [speaker.say("confirm")]
        elif fact.misspoken and new is not None and (slot := telling.misspoken_slot(fact, new)) is not None:
            wrong = replace(new, values={**new.values, slot: fact.misspoken}, end=None)
            if fact.provenance == "assistant_corrected" and place > 0:
                # What is right is for the user to say first.
                self._turns[place - 1].asked = speaker.say("claim", x=fact.misspoken)
                now = [speaker.say("correct", clause=now[0]), *now[1:]]
            else:
                clause = telling.core(wrong) if slot in new.topic.slots else " and ".join(telling.details(wrong))
                now = [f"{clause}, {speaker.say('mishap', x=new.values[slot])}", *now]
            kept.append(fact.misspoken)
        elif fact.misspoken:
            now = [f"{fact.misspoken}, {speaker.say('mishap', x=fact.keywords[0])}", *now]
        if fact.event is not Event.UPDATE and fact.provenance == "said" and new is not None and new.end is None:
            now[0] = self._contrasted(new, now[0])
        if place == 0 or fact.provenance == "said":
            now[0] = speaker.wrapped(now[0])
        if fact.difficulty is not None and fact.difficulty.time == "days_after" and not self._late:
            self._late = True
            now[0] = f"{speaker.say('days_after')}: {now[0]}"
        turn.said += [*before, *now]
        turn.kept += kept
        turn.carries = True
        for other in group:
            early = place + 1 if other.event is Event.UPDATE and other.signal == "explicit" else 0
            self._plan.append(PlannedFact(fact_id=other.id, turn=place + 1, previous_turn=early))
            for keyword in other.keywords:
                self._pending.setdefault(keyword, place)

    def _contrasted(self, known: Known, clause: str) -> str:
        """A fact that changes nothing, now and then in the words of a change: set against what was never remembered."""
        chance = self._rng.random()
        if chance < _MATTERS:
            return self._speaker.say("matter", x=known.values[known.topic.key], clause=clause)
        slots = [slot for slot in known.topic.changeable if source(slot) in values().lists]
        if chance > _MATTERS + _CONTRASTS or not slots or known.topic.event:
            return clause
        old = values().draw(self._rng, slots[0], (*known.values.values(), *self._outdated))
        if self._rng.random() < 0.65:
            return self._speaker.say("explicit_swap", old=old, clause=clause)
        before = self._telling.core(replace(known, values={**known.values, slots[0]: old}))
        told = finished(self._speaker.say("explicit_old", clause=before))
        return f"{told} {finished(self._speaker.say('explicit_new', clause=clause))}"

    def _claimed(self, new: Known | None, fact: SessionFact, dated: bool) -> list[str]:
        telling = self._telling
        if new is None:
            return [" and ".join(fact.keywords)]
        if new.end is not None:
            return [telling.ended(new, implied=False)]
        clauses = [telling.core(new)]
        needed = [word for word in fact.spoken if not occurs(word, clauses[0])]
        clauses += telling.details(new) if needed else []
        return [*clauses, *telling.dates(new, dated)]

    def _sentences(self, fact: SessionFact) -> tuple[list[str], list[str], list[str]]:
        """What held before, what holds now, and the phrases that must be found again."""
        name, telling = self._task.fixed.name, self._telling
        new = read(name, fact.text)
        old = read(name, fact.previous_text) if fact.event is Event.UPDATE else None
        kept = [*fact.keywords, *(new.values.values() if new else ()), *(old.values.values() if old else ())]
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        if new is None or (fact.event is Event.UPDATE and old is None):
            told = fact.event is Event.UPDATE and fact.signal == "explicit"
            before = [paper.say_before(self._rng, name, fact)] if told else []
            return before, [paper.say(self._rng, name, fact)], kept
        if old is not None:
            before, now = telling.change(fact, old, new)
        elif fact.event is Event.NONE:
            before, now = [], [telling.core(new) if new.end is None else telling.ended(new, implied=False)]
            if any(not occurs(word, now[0]) for word in fact.spoken):
                now = telling.all_of(new, dated)
        else:
            before, now = [], telling.all_of(new, dated)
        said = " ".join((*before, *now))
        missing = [word for word in fact.spoken if not occurs(word, said)]
        if missing and not fact.misspoken and fact.provenance != "assistant_confirmed":
            now.append(self._speaker.say("others", x=" and ".join(missing)) if new.topic.event else telling.core(new))
        return before, now, kept

    # --- asides --------------------------------------------------------------------------------------------------------

    def _add_aside(self, aside: Aside) -> None:
        rng, stems = self._rng, content_stems(aside.memory) - content_stems(self._task.fixed.name)
        for _ in range(8):
            place = rng.randrange(len(self._turns))
            claim = aside.kind is AsideKind.ASSISTANT_CLAIM
            if claim and (self._turns[place].asked or place == len(self._turns) - 1 or self._soon(aside.words, place)):
                continue
            heard = content_stems(" ".join((*self._turns[place].said, *aside.words)))
            spoiled = any(occurs(value, " ".join(aside.words)) for value in self._outdated) and self._turns[place].carries
            if len(stems & heard) <= 0.6 * len(stems) and not spoiled:
                break
        else:
            free = [at for at, turn in enumerate(self._turns[:-1]) if not turn.asked]
            place = next((at for at in reversed(free) if not self._soon(aside.words, at)), 0)
            claim = aside.kind is AsideKind.ASSISTANT_CLAIM
        turn, said = self._turns[place], self._aside(aside)
        if claim:
            turn.asked = said
            self._turns[place + 1].said.insert(0, self._speaker.say("dodge"))
        else:
            turn.said.insert(rng.randint(0, len(turn.said)), said)
        turn.kept += aside.words
        self._asides.append(PlannedAside(aside_id=aside.id, turn=place + 1))

    def _soon(self, words: Sequence[str], place: int) -> bool:
        """Whether the user has yet to say one of these words, after a turn."""
        return any(occurs(keyword, " ".join(words)) and first > place for keyword, first in self._pending.items())

    def _aside(self, aside: Aside) -> str:
        speaker, words = self._speaker, aside.words
        if aside.kind is AsideKind.CUE:
            rule = f"cue_{words[0].replace(' ', '_')}" if words else ""
            return speaker.say(rule if speaker.has(rule) else "cue", x=words[0] if words else "soon")
        if not words:
            return speaker.say(
                {AsideKind.QUESTION: "ask", AsideKind.ASSISTANT_CLAIM: "question_back"}.get(aside.kind, "chat")
            )
        x, y = words[0], words[-1]
        if aside.kind is AsideKind.ASSISTANT_CLAIM:
            return speaker.say("claim", x=" and ".join(words))
        if len(words) > 1:
            if aside.kind is AsideKind.CHIT_CHAT:
                return speaker.say("chit_pair", x=x, y=y)
            x = f"{x} and {y}"
        return speaker.say(aside.kind.value, x=x)

    # --- turns ---------------------------------------------------------------------------------------------------------

    def _exchange(self, place: int) -> Exchange:
        rng, speaker, turn = self._rng, self._speaker, self._turns[place]
        last = place == len(self._turns) - 1
        said = list(turn.said)
        if speaker.short:
            return self._short_exchange(place, turn)
        terse = speaker.voice.clipped > 0.3
        for _ in range(
            rng.choices((0, 1, 2), (60, 35, 5) if said and terse else (25, 50, 25))[0] if said else rng.randint(1, 2)
        ):
            said.insert(rng.choice((0, len(said))) if turn.carries else rng.randint(0, len(said)), self._chat())
        if place == 0:
            said = [speaker.say("begin" if rng.random() < 0.5 else "hello"), *said] if rng.random() < 0.8 else said
        elif rng.random() < 0.4:
            said.insert(0, speaker.say("reaction"))
        if last and rng.random() < 0.7:
            said.append(speaker.say("bye"))
        user = speaker.spoken(said, turn.kept)
        return Exchange(user=user, assistant=self._answer(place, user, turn, last))

    def _chat(self) -> str:
        """Chat that does not happen to say what a change leaves unsaid."""
        for _ in range(8):
            said = self._speaker.chat()
            if not any(occurs(value, said) for value in self._outdated):
                break
        return said

    def _short_exchange(self, place: int, turn: Turn) -> Exchange:
        rng, speaker = self._rng, self._speaker
        said = list(turn.said)
        if not said or rng.random() < 0.2:
            said.insert(rng.randint(0, len(said)), self._chat())
        user = speaker.spoken(said, turn.kept)
        keywords = [word for word in turn.kept if occurs(word, user)]
        heard = speaker.say("answer" if user.endswith("?") else "ack")
        quoted = speaker.say("quote", word=rng.choice(keywords)) if keywords and rng.random() < 0.15 else heard
        return Exchange(user=user, assistant=finished(turn.asked) if turn.asked else finished(quoted))

    def _answer(self, place: int, user: str, turn: Turn, last: bool) -> str:
        for _ in range(12):
            answer = self._drawn(user, turn, last)
            free = answer.replace(finished(turn.asked), "") if turn.asked else answer
            early = any(occurs(word, free) for word, first in self._pending.items() if first > place)
            if answer not in self._assistant and not early:
                break
        else:
            if early:
                answer = " ".join((self._speaker.say("advice"), finished(turn.asked or self._speaker.say("question_back"))))
        self._assistant.add(answer)
        return answer

    def _drawn(self, user: str, turn: Turn, last: bool) -> str:
        rng, speaker = self._rng, self._speaker
        parts = [speaker.say("ack")] if rng.random() < 0.7 else []
        if "?" in user and rng.random() < 0.8:
            parts.append(speaker.say("answer"))
        if rng.random() < 0.5 and (word := self._quoted(user, turn)):
            parts.append(speaker.say("quote", word=word))
        if rng.random() < 0.55 or not parts:
            parts.append(speaker.say("advice"))
        if turn.asked:
            parts.append(turn.asked)
        elif last:
            parts.append(speaker.say("goodbye"))
        elif rng.random() < 0.6:
            parts.append(speaker.say("question_back"))
        text = " ".join(finished(part) for part in parts)
        while len(text.split()) < self._task.limits.assistant_words.min:
            text = f"{text} {finished(speaker.say('advice'))}"
        return text

    def _quoted(self, user: str, turn: Turn) -> str:
        """Something that the user has just said, a keyword as often as not."""
        keywords = [word for word in turn.kept if occurs(word, user)]
        telling = frozenset(content_words(user))
        others = [word for word in re.findall(r"\b[a-z]{6,}\b", user) if word in telling]
        if keywords and (not others or self._rng.random() < 0.4):
            return self._rng.choice(keywords)
        return self._rng.choice(others) if others else ""


def _statements(facts: Iterable[SessionFact]) -> list[list[SessionFact]]:
    """Facts that are said together."""
    found: list[list[SessionFact]] = []
    by_number: dict[int, list[SessionFact]] = {}
    for fact in facts:
        if fact.statement and fact.statement in by_number:
            by_number[fact.statement].append(fact)
            continue
        found.append([fact])
        if fact.statement:
            by_number[fact.statement] = found[-1]
    return found


def _claims_last(groups: Sequence[list[SessionFact]]) -> list[list[SessionFact]]:
    """The facts in their order, but what the assistant says of one comes after what the user has to say first."""
    found = list(groups)
    for group in groups:
        if not _answers(group[0]):
            continue
        claim = group[0].misspoken or f"{group[0].text} {group[0].previous_text}"
        later = [
            at for at, other in enumerate(found) for fact in other if any(occurs(word, claim) for word in fact.keywords)
        ]
        at = found.index(group)
        last = max((place for place in later if found[place] is not group), default=-1)
        if last > at:
            found.insert(last, found.pop(at))
    return found


def _answers(fact: SessionFact) -> bool:
    """Whether the user answers the assistant with it."""
    return fact.provenance in ("assistant_confirmed", "assistant_corrected")


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Say the facts and asides of a session amid chat, in this person's way of speaking."""
    return _Writer(task, rng).write()

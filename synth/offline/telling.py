"""How facts are said in the shape `demanding`: a person's way of speaking, and the sentences for facts and changes."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from deltamem.config import StrictModel
from deltamem.memory import Event
from deltamem.text import content_stems
from synth.names import split_of
from synth.offline import paper
from synth.offline.grammar import Grammar, Sentences, Speech, Voice, draw_voice, finished, inner, spoken, with_article
from synth.offline.templates import day
from synth.offline.topics import (
    PERSON,
    PLACE,
    Known,
    cast_of,
    details_of,
    ends_of,
    lines,
    read,
    source,
    topic_named,
    values,
)
from synth.pools import load, unique
from synth.records import Origin, SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import occurs

_AROUND = (PERSON, PLACE, "name")
_CLAUSE, _X, _XY = ("clause",), ("x",), ("x", "y")
_GIVEN = {
    **dict.fromkeys(
        ("frame", "frame_that", "explicit_old", "explicit_old_that", "explicit_new", "explicit_more", "explicit_known"),
        _CLAUSE,
    ),
    **dict.fromkeys(("correct", "claim_fact", "overheard", "imagined", "imagined_that", "what_if"), _CLAUSE),
    **dict.fromkeys(("others", "since_past", "since_future", "until_said", "until_in", "until_before", "cue"), _X),
    **dict.fromkeys(("chit_chat", "hypothetical", "rumour", "question"), _X),
    **dict.fromkeys(("matter", "hearsay", "hearsay_that", "when"), ("x", "clause")),
    **dict.fromkeys(("mishap", "instead", "chit_pair"), _XY),
    **dict.fromkeys(("opener_matter", "ack_matter"), ("matter",)),
    "claim": ("x", "matter"),
    "explicit_swap": ("old", "clause"),
    "quote": ("word",),
}
"""The slots of rules that are given when they are said."""


class FollowUp(StrictModel):
    """A question of the assistant, and what users answer without telling anything new."""

    ask: Sentences
    answers: Sentences


class Area(StrictModel):
    """Something that people talk of, as the assistant speaks of it.

    Attributes:
        matters: How the matter is called, by topic; a topic that no area has is called as its track is.
        offers: What the assistant says to it that helps.
        follow_ups: What the assistant asks.
    """

    matters: dict[str, Sentences]
    offers: Sentences
    follow_ups: tuple[FollowUp, ...] = Field(min_length=1)


class Talk(StrictModel):
    """Everything that is said besides the facts and scenes (``talk.yaml``)."""

    speech: Speech
    areas: dict[str, Area]
    rules: dict[str, Sentences]

    @model_validator(mode="after")
    def _fills_its_slots(self) -> Self:
        for name, texts in self.rules.items():
            bare = name.removeprefix("short_")
            given = next((_GIVEN[key] for key in (bare, bare.rpartition("_")[0]) if key in _GIVEN), ())
            known = {*given, *_AROUND, *values().lists}
            if unknown := {slot for slot in lines(texts).slots if slot not in known and source(slot) not in known}:
                raise ValueError(f"rules.{name}: unknown slot {sorted(unknown)}")
        unique(tuple(topic for area in self.areas.values() for topic in area.matters))
        return self

    @cached_property
    def grammar(self) -> Grammar:
        """The rules, with the words of values.yaml."""
        return Grammar(self.rules, values().lines)

    @cached_property
    def _by_topic(self) -> dict[str, tuple[str, Area]]:
        return {topic: (name, area) for name, area in self.areas.items() for topic in area.matters}

    def area_of(self, topic: str) -> tuple[str, Area]:
        """The name of the area that a topic or a track belongs to, and the area; by its track, if no area has the topic."""
        return self._by_topic.get(topic) or self._by_topic[topic_named(topic).track.value]


class TinyTalk(StrictModel):
    """The rules of the tiny form (``tiny_talk.yaml``)."""

    rules: dict[str, Sentences]


@cache
def talk_file() -> Talk:
    """Everything that is said besides the facts and scenes, but for the tiny form."""
    return load(Path(__file__).with_name("talk.yaml"), Talk)


@cache
def tiny_talk_file() -> TinyTalk:
    """What the tiny form says besides the facts."""
    return load(Path(__file__).with_name("tiny_talk.yaml"), TinyTalk)


@cache
def talk() -> Talk:
    """Everything that is said besides the facts and scenes; the rules of the tiny form begin with ``short_``."""
    full, short = talk_file(), {f"short_{name}": texts for name, texts in tiny_talk_file().rules.items()}
    return Talk(speech=full.speech, areas=full.areas, rules={**full.rules, **short})


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


def as_date(text: str) -> date:
    """A date as memories have it, read back."""
    found = _MONTH_DAY.fullmatch(text)
    assert found is not None
    return date(int(found[3]), _MONTHS.index(found[2]) + 1, int(found[1]))


_SHORT = Voice("short", 0.5, 0.0, 0.0, 0.0, 0.0, False, 0.0, 0.25, 0.15)
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
        self._names = frozenset((*self.cast.people, *self.cast.places, *name.split()))
        self._grammar, self._speech = talk().grammar, talk().speech

    def say(self, rule: str, **given: str) -> str:
        """A sentence of a rule, with people and places of this life where it names some.

        People who speak in a certain way take the rule of that way, such as ``hello_formal``, if there is one.
        """
        if self.short and f"short_{rule}" in self._grammar:
            rule = f"short_{rule}"
        elif f"{rule}_{self.voice.kind}" in self._grammar:
            rule = f"{rule}_{self.voice.kind}"
        return self._grammar.say(self.rng, rule, self.around(given))

    def line(self, texts: tuple[str, ...], given: Mapping[str, str] | None = None) -> str:
        """One of these sentences."""
        return self._grammar.write(self.rng, lines(texts).draw(self.rng), given)

    def around(self, given: Mapping[str, str]) -> dict[str, str]:
        """Values for slots: people and places of this life, and what is given."""
        who, who2 = self.rng.sample(self.cast.people, 2)
        spot, spot2 = self.rng.sample(self.cast.places, 2)
        return {PERSON: who, "who2": who2, PLACE: spot, "spot2": spot2, "name": who2, **given}

    def can_stand_after_that(self, clause: str) -> bool:
        """Whether a clause makes a sentence after "you know that"."""
        first = clause.split(" ", 1)[0].split("'")[0]
        begins = first in ("I", "my", "we", "our", "the", "there", "a") or first.strip(",") in self._names
        return begins and not any(mark in clause for mark in (":", ";", "?", " - "))

    def used_to(self, clause: str) -> str:
        """What somebody says of the past with the words of the present; empty if that is not plain."""
        for now, then in self._speech.past.items():
            if clause.startswith(f"{now} "):
                return f"{then}{clause[len(now) :]}"
        found = re.match(r"(I|we) ([a-z]+) ", clause)
        if found and found[2] in self._speech.bases:
            return f"{found[1]} used to {clause[len(found[1]) + 1 :]}"
        return ""

    def spoken(self, parts: Sequence[str], kept: Collection[str]) -> str:
        """Sentences as the person says them, in one utterance."""
        names = (*kept, *self._names)
        said = [spoken(self.rng, self.voice, self._speech, finished(part), names) for part in parts if part]
        text = " ".join(said)
        return text[:-1] if text.endswith(".") and self.rng.random() < self.voice.unstopped else text

    def inner(self, clause: str) -> str:
        """A clause as it stands after something that leads up to it."""
        return inner(clause, self._names)

    def to_second_person(self, clause: str) -> str:
        """What the user would say, as the assistant says it of them."""
        return self._speech.replaced(self.rng, "second", clause, 1.0, ())


@dataclass(slots=True)
class Statement:
    """What is said of facts that are said together.

    Attributes:
        facts: The facts.
        said: Sentences of the user.
        kept: Phrases that must be found again in them.
        noted: Values that the assistant may quote, keywords and others.
        asked: What the assistant has to say before, so that the user can answer it.
        topic: What it is about: the name of a topic; empty if it is of none.
    """

    facts: Sequence[SessionFact]
    said: list[str]
    kept: list[str]
    noted: list[str] = field(default_factory=list)
    asked: str = ""
    topic: str = ""


_CONTRASTS, _MATTERS = 0.28, 0.18
"""Shares of new and repeated facts that are introduced as changes are."""
_JOINED, _DATES_JOINED = 0.45, 0.65
"""Shares of details and dates that stand in one sentence with what comes before."""


class Telling:
    """Finds the sentences for the facts of a session."""

    def __init__(self, speaker: Speaker, task: DialogueTask) -> None:
        """Take the person and the session."""
        self._speaker, self._task = speaker, task
        self._rng, self._name = speaker.rng, task.fixed.name
        self._outdated = [
            value for fact in task.facts if fact.event is Event.UPDATE and fact.signal == "value" for value in fact.outdated
        ]

    def statement(self, group: Sequence[SessionFact]) -> Statement:
        """What is said of a fact, and of others that change with it."""
        fact, speaker = group[0], self._speaker
        new = read(self._name, fact.text)
        old = read(self._name, fact.previous_text) if fact.event is Event.UPDATE else None
        kept = [*fact.keywords, *(new.values.values() if new else ()), *(old.values.values() if old else ())]
        found = Statement(group, [], kept, topic=new.topic.name if new else "")
        for remembered in filter(None, (new, old)):
            found.noted += [value for slot, value in remembered.values.items() if slot != "kin"]
        if new is not None and new.heard:
            kept.append(new.heard)
        if new is None or (fact.event is Event.UPDATE and old is None):
            found.said = self._retold(fact)
        elif fact.provenance == "assistant_confirmed":
            clauses = self._claimed(new, fact)
            found.asked = speaker.say("claim_fact", clause=speaker.to_second_person(" and ".join(clauses)))
            explicit = old is not None and fact.signal == "explicit"
            found.said = [speaker.say("confirm"), *(self._before(fact, old, new) if explicit and old else ())]
        else:
            found.said = self._told(fact, old, new)
            self._corrected(found, fact, new)
        others = [known for other in group[1:] if (known := read(self._name, other.text)) is not None]
        if others:
            keys = [known.values[known.topic.key] for known in others]
            found.said.append(speaker.say("others", x=" and ".join(keys)))
            kept += keys
        if fact.origin is Origin.EVENT and not speaker.short:
            found.said[0] = self._when(found)
        return found

    def _retold(self, fact: SessionFact) -> list[str]:
        """What is said of a fact of no topic; what a thread of events says has the old in the new."""
        if (view := paper.read_view(self._name, fact.text)) is not None:
            if fact.event is not Event.UPDATE or len(view.views) < 2:
                return [view.say()]
            *_, old, new = view.views
            return [self.set_against(self._speaker.inner(view._replace(views=(new,)).say()), new, old.split(" ", 1)[0])]
        told = fact.event is Event.UPDATE and fact.signal == "explicit"
        before = [paper.say_before(self._rng, self._name, fact)] if told else []
        return [*before, paper.say(self._rng, self._name, fact)]

    def _told(self, fact: SessionFact, old: Known | None, new: Known) -> list[str]:
        """What the user says of a fact, whether or not the assistant has spoken of it."""
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        if old is not None:
            said = self._change(fact, old, new)
        elif fact.event is Event.NONE:
            said = [self.core(new) if new.end is None else self.ended(new, implied=False)]
            if any(not occurs(word, said[0]) for word in fact.spoken):
                said = self.all_of(new, dated)
        else:
            said = self.all_of(new, dated)
        whole = " ".join(said)
        missing = [word for word in fact.spoken if not occurs(word, whole)]
        if missing and not fact.misspoken:
            said.append(self._speaker.say("others", x=" and ".join(missing)) if new.topic.event else self.core(new))
        if old is None and fact.provenance == "said" and new.end is None:
            said = [*self._contrasted(new, said[0]), *said[1:]]
        return said

    # --- sentences -----------------------------------------------------------------------------------------------------

    def core(self, known: Known, *, that: bool = False) -> str:
        """The fact without its details; `that`: so that it can stand after "that", where there is such a line."""
        for _ in range(6 if that else 1):
            clause = self._speaker.line(known.topic.say, known.values)
            if self._speaker.can_stand_after_that(clause):
                break
        return clause

    def detail(self, known: Known, place: int) -> str:
        """A detail, or that it is gone."""
        detail = details_of(known.topic.name)[place]
        return self._speaker.line(detail.say if known.details[place] == "has" else detail.unsay, known.values)

    def details(self, known: Known) -> list[str]:
        """All details."""
        return [self.detail(known, place) for place, state in enumerate(known.details) if state]

    def dates(self, known: Known, dated: bool) -> list[str]:
        """From when and until when."""
        today, said = self._task.today, []
        if known.since:
            value = as_date(known.since)
            x = relative(self._rng, value, today) if dated else known.since
            said.append(self._speaker.say("since_past" if value < today else "since_future", x=x))
        if known.until:
            value = as_date(known.until)
            if value <= today or self._rng.random() < 0.5:
                said.append(self._speaker.say("until_said", x=known.until.rsplit(" ", 1)[0]))
            else:
                said.append(self._speaker.say("until_in", x=relative(self._rng, value, today)))
        return said

    def all_of(self, known: Known, dated: bool) -> list[str]:
        """Everything that a memory says."""
        if known.end is not None:
            return [self.ended(known, implied=False)]
        first = self.core(known, that=bool(known.heard))
        if known.heard:
            rule = "hearsay_that" if self._speaker.can_stand_after_that(first) and not self._speaker.short else "hearsay"
            first = self._speaker.say(rule, x=known.heard, clause=first)
        return self._joined([first, *self.details(known)], self.dates(known, dated))

    def ended(self, known: Known, *, implied: bool) -> str:
        """That something is over."""
        assert known.end is not None
        end = ends_of(known.topic.name)[known.end]
        if not implied:
            return self._speaker.line(end.say, known.values)
        return self._about(known, self._speaker.line(end.implied, known.values))

    def _about(self, known: Known, clause: str) -> str:
        """A clause that may not tell by itself which fact it is about."""
        if known.topic.single or occurs(known.values[known.topic.key], clause):
            return clause
        return self._speaker.say("matter", x=known.values[known.topic.key], clause=clause)

    def _when(self, statement: Statement) -> str:
        """The first sentence of what happened, with the day of it."""
        happened, today, speaker, clause = self._task.event.date, self._task.today, self._speaker, statement.said[0]
        x = speaker.say("today") if happened == today else relative(self._rng, happened, today)
        statement.kept.append(x)
        if happened != today:
            statement.noted.append(x)
        return speaker.say("when", x=x, clause=clause)

    def _joined(self, clauses: Sequence[str], dates: Sequence[str]) -> list[str]:
        """Clauses and then dates as sentences, some two in one."""
        found: list[str] = []
        joined = False
        for number, clause in enumerate((*clauses, *dates)):
            dated = number >= len(clauses)
            chance = _DATES_JOINED if dated else _JOINED
            if found and not joined and self._rng.random() < chance and not any(mark in found[-1] for mark in "?:-"):
                found[-1] += (", and " if dated or self._rng.random() < 0.7 else " - ") + clause
                joined = True
            else:
                found.append(clause)
                joined = False
        return found

    # --- changes -------------------------------------------------------------------------------------------------------

    def _change(self, fact: SessionFact, old: Known, new: Known) -> list[str]:
        """What holds now and, if the change is explicit, what held before."""
        signal = fact.signal
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        dates = self.dates(replace(new, until="") if new.until == old.until else new, dated)
        if new.end is not None:
            now = [self.ended(new, implied=signal == "implied"), *dates]
            return [*self._before(fact, old, new), *now] if signal == "explicit" else now
        slots, places = _changed(old, new)
        if signal == "implied" and new.topic.implied and slots == [new.topic.change[0]] and not places:
            return [self._about(new, self._speaker.line(new.topic.implied, new.values)), *dates]
        now = [self.detail(new, place) for place in places if new.details[place]]
        if signal == "explicit":
            return [*self._explicit(fact, old, new, slots, places, now), *dates]
        if slots or not now or places[-1] >= len(new.topic.details) or self._rng.random() < 0.6:
            now.insert(0, self.core(new))
        else:
            other = next((slot for slot in new.topic.slots if slot not in ("kin", new.topic.key)), new.topic.key)
            now = [self._speaker.say("matter", x=new.values[other], clause=" and ".join(now))]
        return self._joined(now, dates)

    def _explicit(
        self, fact: SessionFact, old: Known, new: Known, slots: Sequence[str], places: Sequence[int], details: list[str]
    ) -> list[str]:
        """A change, with the old and the new said."""
        speaker, rng = self._speaker, self._rng
        if len(slots) == 1 and not places and old.end is None and rng.random() < 0.7:
            return [self.set_against(self.core(new), new.values[slots[0]], old.values[slots[0]])]
        if not slots and len(places) == 1 and old.end is None and old.details[places[0]] == new.details[places[0]] == "has":
            own = [slot for slot in new.detail_slots(places[0]) if new.values[slot] != old.values.get(slot)]
            if len(own) == 1:
                return [self.set_against(details[0], new.values[own[0]], old.values[own[0]])]
        before = self._before(fact, old, new)
        if _only_gains(old, new) and not speaker.short:
            # Without a detail it is a date that is new, and dates follow.
            return [*before, *(speaker.say("explicit_more", clause=detail) for detail in details[:1]), *details[1:]]
        now = [self.core(new), *details] if slots or not details else details
        return [*before, speaker.say("explicit_new", clause=now[0]), *now[1:]]

    def set_against(self, clause: str, new: str, old: str) -> str:
        """A clause with its new value set against the old one."""
        if not self._speaker.short and self._rng.random() < 0.4 and (said := self._within(clause, "instead", new, old)):
            return said
        return self._speaker.say("explicit_swap", old=_as_in(clause, new, old), clause=clause)

    def _within(self, clause: str, rule: str, right: str, other: str) -> str:
        """A clause with a value replaced by a rule that says this value ``y`` and another one ``x``; empty if it cannot."""
        found = re.search(rf"(?:\b(a|an|the) )?(?<![\w-]){re.escape(right)}(s?)(?![\w-])", clause)
        if found is None:
            return ""
        article = f"{found[1]} " if found[1] else ""
        wrong = with_article(f"{'a ' if found[1] in ('a', 'an') else article}{other}{found[2]}")
        said = self._speaker.say(rule, x=wrong, y=f"{article}{right}{found[2]}")
        rest = clause[found.end() :]
        if rest.startswith(" "):
            said += " -" if " - " in said else "," if "," in said else ""
        return f"{clause[: found.start()]}{said}{rest}"

    def _before(self, fact: SessionFact, old: Known, new: Known) -> list[str]:
        """What held before a change, as far as it differs."""
        if old.end is not None:
            return [self._as_past(self.ended(old, implied=False))]
        slots, places = _changed(old, new)
        lost = [self.detail(old, place) for place in places if old.details[place]]
        clauses = [self.core(old, that=True), *lost] if slots or new.end is not None or not lost else lost
        previous = content_stems(fact.previous_text) - content_stems(self._name)
        gone = previous - content_stems(fact.text)
        heard = previous & content_stems(" ".join(clauses))
        if (gone and not gone & heard) or (not gone and 2 * len(heard) < len(previous)):
            clauses = [self.core(old, that=True), *self.details(old), *self.dates(replace(old, until=""), False)]
            if old.until:
                clauses.append(self._speaker.say("until_before", x=old.until.rsplit(" ", 1)[0]))
        if self._speaker.short:
            # Of short facts the first line has the verb of the memory.
            clauses = [self._speaker.line(old.topic.say[:1], old.values)]
        if _only_gains(old, new) and not self._speaker.short:
            return [self._speaker.say("explicit_known", clause=clauses[0]), *clauses[1:]]
        return [self._as_past(clauses[0]), *clauses[1:]]

    def _as_past(self, clause: str) -> str:
        """A clause as what held before."""
        speaker = self._speaker
        if speaker.short:
            return speaker.say("explicit_old", clause=clause)
        if (past := speaker.used_to(clause)) and self._rng.random() < 0.5:
            return past
        return speaker.say("explicit_old_that" if speaker.can_stand_after_that(clause) else "explicit_old", clause=clause)

    def _contrasted(self, known: Known, clause: str) -> list[str]:
        """A fact that changes nothing, now and then in the words of a change: set against what was never remembered."""
        chance = self._rng.random()
        if chance < _MATTERS and not self._speaker.short and not known.topic.event:
            return [self._speaker.say("matter", x=known.values[known.topic.key], clause=clause)]
        slots = [slot for slot in known.topic.changeable if source(slot) in values().lists]
        if chance > _MATTERS + _CONTRASTS or not slots or known.topic.event or known.heard:
            return [clause]
        old = values().draw(self._rng, slots[0], (*known.values.values(), *self._outdated))
        if self._rng.random() < 0.5 and occurs(known.values[slots[0]], clause):
            return [self.set_against(clause, known.values[slots[0]], old)]
        before = self.core(replace(known, values={**known.values, slots[0]: old}), that=True)
        return [self._as_past(before), self._speaker.say("explicit_new", clause=clause)]

    # --- what the assistant says, and what is put right ----------------------------------------------------------------

    def _claimed(self, new: Known, fact: SessionFact) -> list[str]:
        """What the assistant says of a fact that the user confirms."""
        if new.end is not None:
            return [self.ended(new, implied=False)]
        clauses = [self.core(new, that=True)]
        # What a new fact says must be said, even if no keyword asks for it.
        if fact.event is Event.ADD or any(not occurs(word, clauses[0]) for word in fact.spoken):
            clauses += self.details(new)
        return [*clauses, *self.dates(new, fact.difficulty is not None and fact.difficulty.time == "relative")]

    def _corrected(self, statement: Statement, fact: SessionFact, new: Known) -> None:
        """Let the user, or before the user the assistant, say something wrong first."""
        if not fact.misspoken:
            return
        speaker, said = self._speaker, statement.said
        statement.kept.append(fact.misspoken)
        statement.noted.append(fact.misspoken)
        if fact.provenance == "assistant_corrected":
            # What is right is for the user to say first.
            statement.asked = speaker.say("claim", x=fact.misspoken, matter=matter_of(speaker, statement.topic))
            said[0] = speaker.say("correct", clause=said[0])
            return
        slot = self._misspoken_slot(fact, new)
        if slot is not None and not speaker.short:
            for place, sentence in enumerate(said):
                if occurs(new.values[slot], sentence) and (
                    wrong := self._within(sentence, "mishap", new.values[slot], fact.misspoken)
                ):
                    said[place] = wrong
                    return
        if slot is not None and speaker.short and slot in new.topic.slots:
            wrong = self.core(replace(new, values={**new.values, slot: fact.misspoken}, end=None))
            said[0] = f"{wrong}, {speaker.say('mishap', x=new.values[slot])}"
            return
        right = fact.keywords[0] if slot is None else new.values[slot]
        said.insert(0, speaker.say("mishap", x=fact.misspoken, y=right) if not speaker.short else fact.misspoken)

    def _misspoken_slot(self, fact: SessionFact, new: Known) -> str | None:
        """The slot that the wrong value of a corrected fact belongs to."""
        slots = [slot for slot in (*new.topic.changeable, *new.values) if slot in new.values and slot != "kin"]
        for slot in slots:
            if re.fullmatch(values().pattern(slot), fact.misspoken) and occurs(new.values[slot], fact.text):
                return slot
        return None


def matter_of(speaker: Speaker, topic: str) -> str:
    """How the assistant calls what a topic is about."""
    if not topic or speaker.short:
        return "that"
    _, area = talk().area_of(topic)
    return speaker.line(area.matters.get(topic) or area.matters[topic_named(topic).track.value])


def _changed(old: Known, new: Known) -> tuple[list[str], list[int]]:
    """The slots of the memory sentence that have another value, and the places of details that differ."""
    slots = [slot for slot in new.topic.slots if slot != "kin" and new.values[slot] != old.values.get(slot)]
    places = [
        place
        for place, _ in enumerate(details_of(new.topic.name))
        if old.details[place] != new.details[place] or _differ(old, new, new.detail_slots(place))
    ]
    return slots, places


def _only_gains(old: Known, new: Known) -> bool:
    """Whether a change adds something, and makes nothing untrue."""
    slots, places = _changed(old, new)
    return old.end is None and new.end is None and not slots and all(not old.details[place] for place in places)


def _differ(old: Known, new: Known, slots: Iterable[str]) -> bool:
    return any(slot != "kin" and new.values.get(slot) != old.values.get(slot) for slot in slots)


def _as_in(clause: str, new: str, old: str) -> str:
    """An old value in the form in which a clause has the new one: ``Mondays`` for ``Monday``."""
    return f"{old}s" if occurs(f"{new}s", clause) else old

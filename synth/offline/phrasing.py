"""How facts are said in the shape `demanding`: the sentences for facts and changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from deltamem.memory import Event, alternatives, wordings
from deltamem.text import content_stems
from synth.offline import paper
from synth.offline.grammar import with_article
from synth.offline.speaker import Speaker, in_first_person, matter_of, matter_with_key, relative, span
from synth.offline.templates import slot_source
from synth.offline.topics import PERSON, PLACE, KnownValues, details_of, ends_of, read, values
from synth.records import SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import dates_in, occurs


@dataclass(slots=True)
class Statement:
    """What is said of facts that are said together.

    Phrases of `kept` must be found again in the sentences `said`; the assistant may quote values of `noted`, and has to say
    `asked` before, so that the user can answer it. `over`: it is about something that has ended.
    """

    facts: Sequence[SessionFact]
    said: list[str]
    kept: list[str]
    noted: list[str] = field(default_factory=list)
    asked: str = ""
    topic: str = ""
    over: bool = False


_MORE = re.compile(r"(?: - |, and )(?=(?:my|our|I|we|the|there|it|that|in|at|all|[A-Z][a-z]+)\b)")
_SET_AGAINST = re.compile(
    r"\b(?:instead|in place of|replaced|swapped|rather than|no longer|not|no|without)\b", re.IGNORECASE
)
"""Clauses that set one thing against another by themselves; a second contrast in the same words could mean either."""
_CONTRASTS, _MATTERS = 0.28, 0.18
"""Shares of new and repeated facts that are introduced as changes are."""
_REPEATED_WHOLE = 0.7
"""Share of what is repeated that is told with its details, as new facts are."""
_ILLUSTRATED = 0.15
"""Share of new and repeated facts that are told a second time by what follows from them, as implied changes are."""
_JOINED, _DATES_JOINED = 0.55, 0.85
"""Shares of details and dates that stand in one sentence with what comes before."""


class Phrasing:
    """Finds the sentences for the facts of a session."""

    def __init__(self, speaker: Speaker, task: DialogueTask) -> None:
        self._speaker, self._task = speaker, task
        self._rng, self._name = speaker.rng, task.fixed.name
        self._outdated = [
            value for fact in task.facts if fact.event is Event.UPDATE and fact.signal == "value" for value in fact.outdated
        ]

        self._keywords = [wording for fact in task.facts for wording in wordings(fact.keywords)]
        self._lead = "matter"

    @cached_property
    def _remembered(self) -> dict[str, set[str]]:
        """Values of what is remembered and told, by topic."""
        found: dict[str, set[str]] = {}
        told = (text for fact in self._task.facts for text in (fact.text, fact.previous_text))
        for text in (*self._task.known, *told):
            if (known := read(self._name, text)) is not None:
                found.setdefault(known.topic.name, set()).update(known.values.values())
        return found

    def statement(self, group: Sequence[SessionFact]) -> Statement:
        """What is said of a fact, and of others that change with it."""
        fact, speaker = group[0], self._speaker
        # Nobody asks back what the assistant has just asked about.
        self._lead = "matter_answer" if fact.provenance == "assistant_corrected" and not speaker.short else "matter"
        new = read(self._name, fact.text)
        old = read(self._name, fact.previous_text) if fact.event is Event.UPDATE else None
        kept = [*wordings(fact.keywords), *(new.values.values() if new else ()), *(old.values.values() if old else ())]
        found = Statement(group, [], kept, topic=new.topic.name if new else "", over=bool(new and new.end is not None))
        for remembered in filter(None, (new, old)):
            found.noted += [value for slot, value in remembered.values.items() if slot != "kin"]
        if new is not None and new.heard:
            kept.append(new.heard)
        if new is None or (fact.event is Event.UPDATE and old is None):
            kept += [word for wording in wordings(fact.keywords) for word in wording.split()]
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
        return found

    def _retold(self, fact: SessionFact) -> list[str]:
        """What is said of a fact of no topic; what a thread of events says has the old in the new."""
        if (view := paper.read_view(self._name, fact.text)) is not None:
            return self._viewed(view, fact)
        told = fact.event is Event.UPDATE and fact.signal == "explicit"
        before = [paper.say_before(self._rng, self._name, fact)] if told else []
        return [*before, paper.say(self._rng, self._name, fact)]

    def _viewed(self, view: paper.View, fact: SessionFact) -> list[str]:
        """How an event looks now, and what made it look so."""
        speaker, (*earlier, now) = self._speaker, view.views
        word, _, later = now.partition(" ")
        clause = speaker.say(f"view_{view.method}", occasion=view.occasion, place=view.place, view=word)
        due = fact.event is Event.UPDATE and fact.signal == "explicit"
        # The old view stands within the clause or after all of it: a place in between would be that of the old view.
        swapped = due and len(earlier) == 1
        within = self._within(clause, "instead", word, earlier[0]) if swapped and self._rng.random() < 0.4 else ""
        clause = within or clause
        if later:
            clause = speaker.say("view_since", x=later.removeprefix("after "), clause=clause)
        if swapped and not within:
            clause = speaker.say("view_swap", old=earlier[0], clause=clause)
        if not due or len(earlier) < 2:
            return [clause]
        before = speaker.inner(view._replace(views=tuple(earlier)).say())
        return [speaker.say("explicit_old", clause=before), speaker.say("explicit_new", clause=clause)]

    def _told(self, fact: SessionFact, old: KnownValues | None, new: KnownValues) -> list[str]:
        """What the user says of a fact, whether or not the assistant has spoken of it."""
        dated = fact.difficulty is not None and fact.difficulty.time == "relative"
        if old is not None:
            said = self._change(fact, old, new)
        elif fact.event is Event.NONE:
            said = [self.core(new) if new.end is None else self.ended(new, implied=False)]
            if new.end is None and self._rng.random() < _REPEATED_WHOLE and not self._speaker.short:
                said = self._joined([*said, *self.details(new)], ())
            if any(not occurs(word, " ".join(said)) for word in fact.spoken):
                said = self.all_of(new, dated)
        else:
            said = self.all_of(new, dated)
        whole = " ".join(said)
        missing = [alternatives(keyword)[0] for keyword in fact.spoken if not occurs(keyword, whole)]
        if missing and not fact.misspoken:
            said.append(self._speaker.say("others", x=" and ".join(missing)) if new.topic.event else self.core(new))
        if old is None and fact.provenance == "said" and new.end is None:
            said = [*self._contrasted(new, said[0]), *said[1:]]
        # What lets a change follow is said of what is new too, or it would tell changes apart.
        illustrated = old is None and new.end is None and new.topic.implied and not self._speaker.short
        if illustrated and self._rng.random() < _ILLUSTRATED:
            said.append(self._about(new, self._speaker.line(new.topic.implied, new.values)))
        return said

    # --- sentences -----------------------------------------------------------------------------------------------------

    def core(self, known: KnownValues, *, that: bool = False) -> str:
        """The fact without its details; `that`: so that it can stand after "that", where there is such a line."""
        for _ in range(6 if that else 1):
            clause = self._speaker.line(known.topic.say, known.values)
            if self._speaker.can_stand_after_that(clause):
                break
        return clause

    def detail(self, known: KnownValues, place: int) -> str:
        """A detail, or that it is gone."""
        detail = details_of(known.topic.name)[place]
        return self._speaker.line(detail.say if known.details[place] == "has" else detail.unsay, known.values)

    def details(self, known: KnownValues) -> list[str]:
        """All details."""
        return [self.detail(known, place) for place, state in enumerate(known.details) if state]

    def dates(self, known: KnownValues, dated: bool) -> list[str]:
        """From when and until when."""
        today, said = self._task.today, []
        if known.since:
            value = dates_in(known.since)[0]
            past, full = value < today, known.since
            x = span(self._rng, value, today) if dated else f"since {full}" if past else f"from {full} on"
            rule = f"since_{'past' if past else 'future'}{'' if known.topic.lasts or self._speaker.short else '_once'}"
            said.append(self._speaker.say(rule, x=x))
        if known.until:
            value = dates_in(known.until)[0]
            if value <= today or self._rng.random() < 0.5:
                said.append(self._speaker.say("until_said", x=known.until.rsplit(" ", 1)[0]))
            else:
                said.append(self._speaker.say("until_in", x=relative(self._rng, value, today)))
        return said

    def all_of(self, known: KnownValues, dated: bool) -> list[str]:
        """Everything that a memory says."""
        if known.end is not None:
            return [self.ended(known, implied=False)]
        first = self.core(known, that=bool(known.heard))
        if known.heard:
            rule = "hearsay_that" if self._speaker.can_stand_after_that(first) and not self._speaker.short else "hearsay"
            first = self._speaker.say(rule, x=known.heard, clause=first)
        return self._joined([first, *self.details(known)], self.dates(known, dated))

    def ended(self, known: KnownValues, *, implied: bool) -> str:
        """That something is over."""
        assert known.end is not None
        end = ends_of(known.topic.name)[known.end]
        if not implied:
            return self._speaker.line(end.say, known.values)
        return self._about(known, self._speaker.line(end.implied, known.values))

    def _referred(self, known: KnownValues) -> str:
        """What a fact is about, as the user speaks of it: somebody, a place, or else a matter."""
        if slot_source(known.topic.key) in (PERSON, PLACE, "name") and not known.topic.single:
            return known.values[known.topic.key]
        return in_first_person(matter_of(self._speaker, known.topic.name))

    def _about(self, known: KnownValues, clause: str) -> str:
        """A clause that may not tell by itself which fact it is about."""
        if known.topic.single or occurs(known.values[known.topic.key], clause):
            return clause
        return self._speaker.say(self._lead, x=known.values[known.topic.key], clause=clause)

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

    def _change(self, fact: SessionFact, old: KnownValues, new: KnownValues) -> list[str]:
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
            now = [self._speaker.say(self._lead, x=self._referred(new), clause=" and ".join(now))]
        return self._joined(now, dates)

    def _explicit(
        self,
        fact: SessionFact,
        old: KnownValues,
        new: KnownValues,
        slots: Sequence[str],
        places: Sequence[int],
        details: list[str],
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
        """A clause with its new value set against the old one, before whatever else is told in the same breath."""
        core, *more = _MORE.split(clause, maxsplit=1)
        if more and occurs(new, core):
            return f"{self.set_against(core, new, old)}. {more[0]}"
        plain = not self._speaker.short and not _SET_AGAINST.search(clause)
        if plain and self._rng.random() < 0.4 and (said := self._within(clause, "instead", new, old)):
            return said
        return self._speaker.say("explicit_swap", old=(f"{old}s" if occurs(f"{new}s", clause) else old), clause=clause)

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

    def _before(self, fact: SessionFact, old: KnownValues, new: KnownValues) -> list[str]:
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

    def _contrasted(self, known: KnownValues, clause: str) -> list[str]:
        """A fact that changes nothing, now and then in the words of a change: set against what was never remembered."""
        chance = self._rng.random()
        if chance < _MATTERS and not self._speaker.short and not known.topic.event:
            return [self._speaker.say("matter", x=self._referred(known), clause=clause)]
        slots = [slot for slot in known.topic.changeable if values().listed(slot)]
        if chance > _MATTERS + _CONTRASTS or not slots or known.topic.event or known.heard:
            return [clause]
        # What a sibling has may seem to be over.
        taken = {*known.values.values(), *self._outdated, *self._keywords, *self._remembered.get(known.topic.name, ())}
        old = values().draw(self._rng, slots[0], taken)
        if old in taken and not self._speaker.short:
            return [clause]
        if self._rng.random() < 0.5 and occurs(known.values[slots[0]], clause):
            return [self.set_against(clause, known.values[slots[0]], old)]
        before = self.core(replace(known, values={**known.values, slots[0]: old}), that=True)
        return [self._as_past(before), self._speaker.say("explicit_new", clause=clause)]

    # --- what the assistant says, and what is put right ----------------------------------------------------------------

    def _claimed(self, new: KnownValues, fact: SessionFact) -> list[str]:
        if new.end is not None:
            return [self.ended(new, implied=False)]
        clauses = [self.core(new, that=True)]
        # What a new fact says must be said, even if no keyword asks for it.
        if fact.event is Event.ADD or any(not occurs(word, clauses[0]) for word in fact.spoken):
            clauses += self.details(new)
        return [*clauses, *self.dates(new, fact.difficulty is not None and fact.difficulty.time == "relative")]

    def _corrected(self, statement: Statement, fact: SessionFact, new: KnownValues) -> None:
        """Let the user, or before the user the assistant, say something wrong first."""
        if not fact.misspoken:
            return
        speaker, said = self._speaker, statement.said
        statement.kept.append(fact.misspoken)
        statement.noted.append(fact.misspoken)
        if fact.provenance == "assistant_corrected":
            # What is right is for the user to say first, so the assistant cannot know whom something new is about.
            matter = matter_of(speaker, statement.topic) if fact.event is Event.ADD else matter_with_key(speaker, new)
            statement.asked = speaker.say("claim", x=fact.misspoken, matter=matter)
            said[0] = speaker.say("correct", clause=said[0])
            return
        # The slot that the wrong value belongs to.
        slots = [slot for slot in (*new.topic.changeable, *new.values) if slot in new.values and slot != "kin"]
        fitting = (slot for slot in slots if re.fullmatch(values().pattern(slot), fact.misspoken))
        slot = next((slot for slot in fitting if occurs(new.values[slot], fact.text)), None)
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
        right = wordings(fact.keywords)[0] if slot is None else new.values[slot]
        said.insert(0, speaker.say("mishap", x=fact.misspoken, y=right) if not speaker.short else fact.misspoken)


def _changed(old: KnownValues, new: KnownValues) -> tuple[list[str], list[int]]:
    """The slots of the memory sentence that have another value, and the places of details that differ."""
    slots = [slot for slot in new.topic.slots if slot != "kin" and new.values[slot] != old.values.get(slot)]
    places = [
        place
        for place, _ in enumerate(details_of(new.topic.name))
        if old.details[place] != new.details[place]
        or any(slot != "kin" and new.values.get(slot) != old.values.get(slot) for slot in new.detail_slots(place))
    ]
    return slots, places


def _only_gains(old: KnownValues, new: KnownValues) -> bool:
    """Whether a change adds something, and makes nothing untrue."""
    slots, places = _changed(old, new)
    return old.end is None and new.end is None and not slots and all(not old.details[place] for place in places)

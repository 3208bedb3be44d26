"""How facts are said in the tiny form: the sentences for facts and changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from deltamem.memory import Event, wordings
from synth.offline import paper
from synth.offline.speaker import Speaker
from synth.offline.topics import KnownValues, read, topic_file
from synth.records import SessionFact
from synth.tasks import DialogueTask
from synth.validators.base import occurs


@dataclass(slots=True)
class Statement:
    """What is said of a fact: the sentences `said`.

    The assistant may quote phrases of `kept`, and has to say `asked` before, so that the user can answer it.
    """

    fact: SessionFact
    said: list[str]
    kept: list[str]
    asked: str = ""


_CONTRASTS = 0.46
"""Share of new and repeated facts that are introduced as changes are."""
_SWAPPED = 0.7
"""Share of explicit changes that name the old value only, beside the new one."""


class Phrasing:
    """Finds the sentences for the facts of a session."""

    def __init__(self, speaker: Speaker, task: DialogueTask) -> None:
        self._speaker, self._task = speaker, task
        self._rng, self._name = speaker.rng, task.fixed.name

    @cached_property
    def _not_over(self) -> set[str]:
        """Values that nobody says to be over by the way: of these facts, or what they change by its new value alone."""
        found = set[str]()
        for fact in self._task.facts:
            found.update(wordings(fact.keywords))
            if fact.event is Event.UPDATE and fact.signal == "value":
                found.update(fact.outdated)
        return found

    @cached_property
    def _remembered(self) -> dict[str, set[str]]:
        """Values of what is remembered and told, by topic."""
        found: dict[str, set[str]] = {}
        told = (text for fact in self._task.facts for text in (fact.text, fact.previous_text))
        for text in (*self._task.known, *told):
            if (known := read(self._name, text)) is not None:
                found.setdefault(known.topic.name, set()).update(known.values.values())
        return found

    def statement(self, fact: SessionFact) -> Statement:
        """What is said of a fact."""
        new = read(self._name, fact.text)
        old = read(self._name, fact.previous_text) if fact.event is Event.UPDATE else None
        found = Statement(fact, [], list(wordings(fact.keywords)))
        for known in filter(None, (new, old)):
            found.kept += known.values.values()
        if new is None or (fact.event is Event.UPDATE and old is None):
            found.said = self._retold(fact)
        elif fact.provenance == "assistant_confirmed":
            found.asked = self._speaker.say("claim_fact", clause=self._speaker.to_second_person(self._claimed(new)))
            said = self._speaker.say("confirm")
            found.said = [said, *(self._before(old) if old and fact.signal == "explicit" else ())]
        else:
            found.said = self._told(fact, old, new)
            if fact.misspoken:
                found.kept.append(fact.misspoken)
                self._put_right(found.said, fact, new)
        return found

    def _retold(self, fact: SessionFact) -> list[str]:
        """What is said of a fact of no topic, such as a thread of events."""
        before = fact.event is Event.UPDATE and fact.signal == "explicit"
        earlier = [paper.say_before(self._rng, self._name, fact)] if before else []
        return [*earlier, paper.say(self._rng, self._name, fact)]

    def _told(self, fact: SessionFact, old: KnownValues | None, new: KnownValues) -> list[str]:
        """What the user says of a fact that the assistant has not spoken of."""
        said = self._change(fact, old, new) if old is not None else [self._clause(new)]
        if fact.event is Event.NONE and self._lacks(fact, said):
            said = [self._clause(new)]
        if not fact.misspoken and self._lacks(fact, said):
            said.append(self._core(new))
        if old is None and fact.provenance == "said" and not new.over:
            said = [*self._contrasted(new, said[0]), *said[1:]]
        return said

    def _lacks(self, fact: SessionFact, said: Sequence[str]) -> bool:
        whole = " ".join(said)
        return any(not occurs(keyword, whole) for keyword in fact.spoken)

    # --- sentences -----------------------------------------------------------------------------------------------------

    def _core(self, known: KnownValues, *, that: bool = False) -> str:
        """The fact while it holds; `that`: so that it can stand after "that", where there is such a line."""
        for _ in range(6 if that else 1):
            clause = self._speaker.line(known.topic.say, known.values)
            if self._speaker.can_stand_after_that(clause):
                break
        return clause

    def _clause(self, known: KnownValues) -> str:
        """The fact, or that it is over."""
        return self._speaker.line(topic_file().past, known.values) if known.over else self._core(known)

    # --- changes -------------------------------------------------------------------------------------------------------

    def _change(self, fact: SessionFact, old: KnownValues, new: KnownValues) -> list[str]:
        """What holds now and, if the change is explicit, what held before."""
        explicit = fact.signal == "explicit"
        if new.over:
            now = self._clause(new)
            return [*self._before(old), now] if explicit else [now]
        if not explicit:
            return [self._core(new)]
        if not old.over and self._rng.random() < _SWAPPED:
            return [self._speaker.say("explicit_swap", old=old.value, clause=self._core(new))]
        before = self._before(old)
        return [*before, self._speaker.say("explicit_new", clause=self._core(new))]

    def _before(self, old: KnownValues) -> list[str]:
        """What held before, in the first line of the topic, which has the verb of the memory."""
        if old.over:
            return [self._as_past(self._clause(old))]
        return [self._as_past(self._speaker.line(old.topic.say[:1], old.values))]

    def _as_past(self, clause: str) -> str:
        return self._speaker.say("explicit_old", clause=clause)

    def _contrasted(self, known: KnownValues, clause: str) -> list[str]:
        """A fact that changes nothing, now and then in the words of a change: set against what was never remembered."""
        if self._rng.random() > _CONTRASTS:
            return [clause]
        slot = known.topic.changeable
        # What a sibling has may seem to be over.
        taken = {*known.values.values(), *self._not_over, *self._remembered.get(known.topic.name, ())}
        old = topic_file().draw(self._rng, slot, taken)
        if self._rng.random() < 0.5 and occurs(known.value, clause):
            return [self._speaker.say("explicit_swap", old=old, clause=clause)]
        before = self._core(replace(known, values={**known.values, slot: old}), that=True)
        return [self._as_past(before), self._speaker.say("explicit_new", clause=clause)]

    # --- what the assistant says, and what is put right ----------------------------------------------------------------

    def _claimed(self, new: KnownValues) -> str:
        return self._clause(new) if new.over else self._core(new, that=True)

    def _put_right(self, said: list[str], fact: SessionFact, new: KnownValues) -> None:
        """Let the user say something wrong first."""
        wrong = self._core(replace(new, values={**new.values, new.topic.changeable: fact.misspoken}, over=False))
        said[0] = f"{wrong}, {self._speaker.say('mishap', x=new.value)}"

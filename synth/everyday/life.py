"""Lives put together from scenes, session by session, with the memory at hand: what is labelled is right by construction.

A session is a row of pieces: scenes told for the first time, changes of what is remembered, what is said again, and talk
that leaves nothing to remember. The other side is an assistant, or a friend who has a life too.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cache

from deltamem.memory import Event, Keyword, wordings
from deltamem.sessions import FactKind, OperationDifficulty, Provenance, Signal, Split
from deltamem.text import content_stems
from synth.config import Everyday
from synth.everyday.cast import LifeCast, stranger
from synth.everyday.scenes import (
    AuthoredScene,
    Later,
    SceneFact,
    Telling,
    draw,
    filled,
    phrases,
    satisfied,
    scenes_of,
    slots_of,
)
from synth.everyday.statements import StatedLabel, statements
from synth.offline.grammar import capitalised
from synth.planning import rounded
from synth.records import (
    Dialogue,
    Exchange,
    FactOrigin,
    FixedPart,
    KeywordOrigin,
    PlannedFact,
    SessionFact,
    SynthSession,
    TrackedFact,
)
from synth.validators.base import dates_in, memory_stems, rivals

_INTAKE_SCENES = 8
_ATTRIBUTES = 0.3
"""Share of attributes, at least, in what is known before the first session and in what an introduction states."""
_STATED_AT_ONCE = 6
"""Facts that a turn of an introduction states, at most."""
_SHORT_REMARK = 12
"""Words of a remark or question that the owner may go on over, at most."""
_WHOLE = re.compile(r"(?:I|I'm|I've|I'd|I'll|We|We're|We've|They|He|She|It|It's|The|There|My|Our|And|But|So|Then|Now) ")
"""How a turn begins that is no answer and no rest of a sentence."""
_MOVES_ON = 0.7
"""Share of the turns with two subjects in which something is said between them."""
_SAYS_BEFORE = 0.34
"""Share of the words that a change takes away from which on the owner has said what held before."""
_AS_IF_KNOWN = 0.5
"""Share of the right guesses that are worded as recalls are: whether something is new, the memory says and not the words."""
_FRIENDS_OWN = 0.55
"""Share of what a friend talks about, besides the owner's facts, that is of their own life."""


@dataclass(slots=True)
class HeldFact:
    """A fact as it is remembered now."""

    text: str
    keys: tuple[Keyword, ...]
    recall: str
    kind: FactKind
    since: int  # The session that wrote it, -1 before the first
    changes: int = 0


@dataclass(slots=True)
class PlayedScene:
    """A scene in this life."""

    scene: AuthoredScene
    values: dict[str, str]
    facts: dict[str, HeldFact] = field(default_factory=dict)
    last_change: dict[str, str] = field(default_factory=dict)  # By fact the name of what changed it last
    told: set[int] = field(default_factory=set)  # Places of the changes that have come

    def due(self, session: int, today: date) -> list[int]:
        """Places of the changes that can come in a session; what was ahead has to be over."""
        if any(slot.endswith("_due") and value > today.isoformat() for slot, value in self.values.items()):
            return []
        return [
            place
            for place, later in enumerate(self.scene.later)
            if place not in self.told
            and all(
                name in self.facts and self.facts[name].since < session and self.last_change.get(name, "") == later.after
                for name in later.change
            )
        ]


@dataclass(slots=True)
class SessionPart:
    """A part of a session: exchanges, and the facts that they tell, each with its exchange, from 0."""

    exchanges: list[tuple[str, str]]
    facts: list[tuple[int, SessionFact]] = field(default_factory=list)
    swapped: bool = False
    """The other side tells it: its words begin where the last exchange ended, and the owner answers."""


@cache
def _by_kind(split: Split) -> Mapping[str, tuple[AuthoredScene, ...]]:
    found: dict[str, list[AuthoredScene]] = {}
    for scene in scenes_of(split):
        for kind in dict.fromkeys(scene.kinds):
            found.setdefault(kind, []).append(scene)
    return {kind: tuple(of) for kind, of in found.items()}


@cache
def _talk(split: Split, place: str, friend: bool) -> tuple[AuthoredScene, ...]:
    """Scenes with a telling that leaves nothing to remember."""

    def idle(scene: AuthoredScene) -> bool:
        return any(not (scene.facts if one.facts is None else one.facts) and _fits(one, friend) for one in scene.tell)

    return tuple(scene for scene in scenes_of(split) if scene.place == place and idle(scene))


class Life:
    """Writes the sessions of one person."""

    def __init__(self, rng: random.Random, plan: Everyday, fixed: FixedPart, split: Split, *, newcomer: bool) -> None:
        self._rng, self._plan, self._split = rng, plan, split
        self.name, self._fixed = fixed.name, fixed
        self._cast = LifeCast(rng, fixed.name, fixed.gender, split, home=fixed.location.split(",")[0])
        self._instances: list[PlayedScene] = []
        self._used: set[str] = set()
        self._mentioned: set[str] = set()  # Slots of the scenes that this life has
        self._without: set[str] = set()  # Slots that none of its scenes may have
        self._kinds: Counter[str] = Counter()
        self._texts: set[str] = set()
        self._newcomer = newcomer
        self._decks: dict[tuple[str, bool], list[AuthoredScene]] = {}
        self._heard: set[str] = set()  # Scenes that this session has heard of, from either side
        self._session = -1
        self._today = date.min

    # --- what is remembered ----------------------------------------------------------------------------------------------

    def initial(self, start: datetime) -> tuple[TrackedFact, ...]:
        """What is remembered before the first session."""
        self._today = start.date()
        wanted = 0 if self._newcomer else self._rng.randint(self._plan.initial.min, self._plan.initial.max)
        while sum(len(one.facts) for one in self._instances) < wanted:
            if (scene := self._fresh_scene(self._any_kind())) is None:
                break
            self._begun(scene, scene.facts)
            self._heard.clear()  # What is remembered was told at different times
        held = [fact for one in self._instances for fact in one.facts.values()]
        return tuple(TrackedFact(text=fact.text, keywords=fact.keys, track=None, subject="") for fact in held)

    def _begun(self, scene: AuthoredScene, facts: Mapping[str, SceneFact]) -> tuple[PlayedScene, dict[str, HeldFact]]:
        """A scene comes into this life; what it leaves to remember of some of its facts."""
        had = (value for one in self._instances if one.scene.name == scene.name for value in one.values.values())
        values = self._cast.fill(scene, self._rng, self._today, other_than=frozenset(had))
        instance = PlayedScene(scene, values)
        for name, fact in facts.items():
            if (held := self._held(fact, values, self._wording(scene, name))).text not in self._texts:
                instance.facts[name] = held
                self._texts.add(held.text)
                self._kinds[fact.kind] += 1
        self._instances.append(instance)
        self._used.update((scene.name, *scene.group))
        self._heard.add(scene.name)
        self._mentioned |= scene.mentioned
        self._without.update(scene.without)
        return instance, instance.facts

    def _wording(self, scene: AuthoredScene, fact: str) -> random.Random:
        """Draws the words of a fact: of what can come again the same each time, so that memories differ in values alone."""
        return self._rng if scene.once else random.Random(f"{self.name}/{scene.name}/{fact}")

    def _held(self, fact: SceneFact, values: Mapping[str, str], rng: random.Random) -> HeldFact:
        keys = tuple(
            filled(key, values) if isinstance(key, str) else tuple(dict.fromkeys(filled(one, values) for one in key))
            for key in fact.keys
        )
        recall = draw(rng, [fact.recall], values) if fact.recall else ""
        return HeldFact(draw(rng, fact.label, values), keys, recall, fact.kind, self._session)

    def _any_kind(self) -> str:
        """What whoever gets to know somebody hears first, or the kind that is furthest behind its share."""
        return "attribute" if self._rng.random() < _ATTRIBUTES else self._wanted_kind()

    def _wanted_kind(self) -> str:
        """The kind that is furthest behind its share."""
        total = sum(self._kinds.values()) + 1
        behind = {kind: share - self._kinds[kind] / total for kind, share in self._plan.kinds.items() if share}
        most = sorted(behind, key=lambda kind: -behind[kind] + 0.05 * self._rng.random())
        return most[0]

    def _free(self, scene: AuthoredScene, friend: bool) -> bool:
        """Whether a scene can come into this life now."""
        if self._used.intersection(scene.group) or not any(_fits(one, friend) for one in scene.tell):
            return False
        if not self._without.isdisjoint(scene.mentioned) or not self._mentioned.isdisjoint(scene.without):
            return False
        return self._allowed(scene.kinds) and scene.name not in self._used

    def _allowed(self, kinds: Iterable[FactKind]) -> bool:
        """Whether none of some kinds is left out by the plan."""
        return all(self._plan.kinds.get(kind, 0) or kind == "attribute" for kind in kinds)

    def _fresh_scene(self, kind: str, friend: bool = False, *, again: bool = True) -> AuthoredScene | None:
        """A scene, with facts of a kind if there is one, that is new to this life or may come again; or None."""
        if again and self._rng.random() < self._plan.families:
            had = [one.scene for one in self._instances if not one.scene.once and one.scene.name not in self._heard]
            if fitting := [scene for scene in had if any(_fits(one, friend) for one in scene.tell)]:
                return self._rng.choice(fitting)
        found = [scene for scene in _by_kind(self._split).get(kind, ()) if self._free(scene, friend)]
        found = found or [scene for scene in scenes_of(self._split) if scene.facts and self._free(scene, friend)]
        # A life that has had all scenes sees some of them again.
        found = found or [
            scene
            for scene in scenes_of(self._split)
            if scene.facts
            and not (scene.once or scene.without or scene.name in self._heard)
            and self._without.isdisjoint(scene.mentioned)
            and self._allowed(scene.kinds)
        ]
        return self._rng.choice(found) if found else None

    # --- a session -------------------------------------------------------------------------------------------------------

    def session(self, index: int, time: datetime) -> SynthSession:
        """Write a session and remember what it tells."""
        rng, plan = self._rng, self._plan
        self._session, self._today = index, time.date()
        self._heard.clear()
        bank = [fact for one in self._instances for fact in one.facts.values()]
        before = {fact.text: memory_stems(fact.text, self.name) for fact in bank}
        friend = index > 0 and rng.random() < plan.friends
        partner = stranger(rng, rng.random() < 0.5, self._split) if friend else ""
        pieces: list[SessionPart] = []
        introduced = self._newcomer and index == 0  # Newcomers tell of themselves, whatever the share of idle sessions
        if introduced or rng.random() >= plan.idle:
            pieces = list(self._due_pieces(friend, before))
        pieces += self._talk_pieces(pieces, friend)
        rng.shuffle(pieces)
        if pieces[0].swapped:
            pieces.append(pieces.pop(0))
        pieces = [*self._frame("first", 0.6, friend), *pieces, *self._frame("last", 0.5, friend)]
        if pieces[0].swapped:
            pieces = [self._talk("", friend), *pieces]
        exchanges, planned, facts = self._joined(pieces)
        if friend:
            own = self._cast.first_name
            exchanges = [(f"{own}: {user}", f"{partner}: {other}") for user, other in exchanges]
        turns = tuple(Exchange(user=user, assistant=other) for user, other in exchanges)
        return SynthSession(
            index=index,
            time=time,
            goal="",
            summary="",
            facts=tuple(rng.sample(facts, len(facts))),  # in no order that would tell where they were said
            dialogue=Dialogue(plan=tuple(planned), turns=turns),
        )

    def _due_pieces(self, friend: bool, before: Mapping[str, frozenset[str]]) -> Iterator[SessionPart]:
        """Changes and repetitions by their shares, then new scenes until there are enough facts."""
        rng, plan = self._rng, self._plan
        wanted = rng.randint(plan.facts.min, plan.facts.max)
        intake = self._session == 0 and self._newcomer
        changing = [] if intake else rng.sample(self._instances, len(self._instances))
        if intake and rng.random() < plan.introductions:
            yield from self._introduction(before)
            return
        updates, repeats = rounded(rng, plan.updates * wanted), rounded(rng, plan.repeats * wanted)
        done = 0
        for instance in changing:
            places = instance.due(self._session, self._today)
            due = [place for place in places if self._allowed(instance.scene.later[place].kinds)]
            if updates > 0 and due and instance.scene.name not in self._heard:
                piece = self._change(instance, rng.choice(due), friend, before)
                updates -= sum(fact.event is Event.UPDATE for _, fact in piece.facts)
                done += len(piece.facts)
                yield piece
        for instance in changing:
            held = [fact for fact in instance.facts.values() if fact.recall and fact.since < self._session]
            if repeats > 0 and held and instance.scene.name not in self._heard:
                self._heard.add(instance.scene.name)
                repeats -= 1
                done += 1
                yield self._repeated(rng.choice(held), before)
        introduced = 0
        while introduced < _INTAKE_SCENES if intake else done < wanted:
            introduced += 1
            scene = self._fresh_scene("attribute" if intake else self._wanted_kind(), friend)
            if scene is None:
                break
            piece = self._told(scene, friend, before=before)
            done += len(piece.facts)
            if piece.facts:  # None if it came again with the same values
                yield piece

    def _introduction(self, before: Mapping[str, frozenset[str]]) -> Iterator[SessionPart]:
        """Turns in which a newcomer states several facts one after the other."""
        rng = self._rng
        wanted = rng.randint(self._plan.introduced.min, self._plan.introduced.max)
        while wanted > 0:
            most = min(wanted, rng.randint(1, _STATED_AT_ONCE))
            turn = list[SessionPart]()
            while sum(len(piece.facts) for piece in turn) < most:
                if (scene := self._fresh_scene(self._any_kind(), again=False)) is None:
                    wanted = 0
                    break
                piece = self._stated(scene, before)
                turn += [piece] if piece.facts else []
            if not turn:
                return
            said = " ".join(piece.exchanges[0][0] for piece in turn)
            facts = [fact for piece in turn for fact in piece.facts]
            wanted -= len(facts)
            yield SessionPart([(said, _say(rng, "tell_more"))], facts)

    def _stated(self, scene: AuthoredScene, before: Mapping[str, frozenset[str]]) -> SessionPart:
        """A scene of which the person says outright what there is to remember, as far as it can be put so."""
        chosen = {
            name: self._wording(scene, name).choice(ways) for name, fact in scene.facts.items() if (ways := statements(fact))
        }
        facts = {name: _worded(scene.facts[name], one) for name, one in chosen.items()}
        instance, held = self._begun(scene, facts)
        piece = self._outright([chosen[name] for name in held], instance.values)
        piece.facts += [(0, self._fact(Event.ADD, fact, "", piece, before)) for fact in held.values()]
        return piece

    def _outright(self, stated: Iterable[StatedLabel], values: Mapping[str, str]) -> SessionPart:
        """Facts that are stated one after the other."""
        said = " ".join(draw(self._rng, [one.said], values) for one in stated)
        return SessionPart([(said, _say(self._rng, "acknowledged"))])

    def _told(
        self, scene: AuthoredScene, friend: bool, *, own: bool = True, before: Mapping[str, frozenset[str]] = {}
    ) -> SessionPart:
        """A scene told by one of its tellings, with what it leaves to remember; `own`: of this life, and not only talk."""
        rng = self._rng
        tellings = [one for one in scene.tell if bool(scene.facts if one.facts is None else one.facts) == own]
        telling = rng.choice([one for one in tellings if _fits(one, friend)] or tellings)
        if not own:
            values = LifeCast(rng, self.name, self._fixed.gender, self._split).fill(scene, rng, self._today)
            return SessionPart(self._spoken(telling, values))
        if rng.random() < self._plan.stated and any(map(statements, scene.facts.values())):
            return self._stated(scene, before)
        named = scene.facts if telling.facts is None else telling.facts
        instance, held = self._begun(scene, {name: scene.facts[name] for name in named})
        piece = SessionPart(self._spoken(telling, instance.values, scene.facts.values()))
        # What is guessed is all that is said, so it has to hold everything.
        guess = next((name for name, fact in held.items() if fact.recall and satisfied(fact.keys, fact.recall)), "")
        if len(held) == 1 and guess and not friend and rng.random() < self._plan.guessed:
            piece = self._guessed(held[guess])
            provenance: Provenance = "assistant_confirmed"
        else:
            provenance = "said"
        for fact in held.values():
            place = _best(piece.exchanges, fact.text)
            piece.facts.append((place, self._fact(Event.ADD, fact, "", piece, before, provenance=provenance)))
        return piece

    def _spoken(self, telling: Telling, values: Mapping[str, str], facts: Iterable[SceneFact] = ()) -> list[tuple[str, str]]:
        """The exchanges of a telling; here and there the owner goes on over a remark that holds nothing of the `facts`."""
        rng = self._rng
        keys = [filled(wording, values) for fact in facts for wording in wordings(fact.keys)]
        said: list[tuple[str, str]] = []
        texts = [draw(rng, [text], values) for text in telling.turns]
        for number, (own, other) in enumerate(zip(texts[::2], texts[1::2], strict=True)):
            remark = telling.turns[2 * number - 1]
            passes = number and len(remark.split()) <= _SHORT_REMARK and _WHOLE.match(own) and not slots_of(remark)
            if passes and not any(satisfied([key], said[-1][1]) for key in keys) and rng.random() < self._plan.in_one_breath:
                before = said[-1][0]
                said[-1] = (f"{before}{'' if before[-1] in '.!?' else '.'} {own}", other)
            else:
                said.append((own, other))
        return said

    def _guessed(self, fact: HeldFact) -> SessionPart:
        """The other side says it first, and the owner agrees."""
        rng = self._rng
        if rng.random() < _AS_IF_KNOWN:
            asked, answer = _asked_back(rng, fact.recall), _say(rng, "agreed")
        else:
            asked, answer = _say(rng, "guessed", recall=fact.recall), _say(rng, "guessed_right")
        return SessionPart([(_say(rng, "before_guess"), asked), (answer, _say(rng, "acknowledged"))])

    def _change(self, instance: PlayedScene, place: int, friend: bool, before: Mapping[str, frozenset[str]]) -> SessionPart:
        """What becomes of the facts of a scene."""
        rng = self._rng
        later: Later = instance.scene.later[place]
        instance.told.add(place)
        self._heard.add(instance.scene.name)
        days = {slot: value for slot, value in instance.values.items() if not slot.startswith(("ago", "ahead", "recent"))}
        values = self._cast.fill(instance.scene, rng, self._today, days)
        facts = {**later.change, **later.add}
        chosen = {name: rng.choice(ways) for name, fact in facts.items() if (ways := statements(fact))}
        if chosen and rng.random() < self._plan.stated:
            facts = {name: _worded(facts[name], one) for name, one in chosen.items()}
            piece = self._outright(chosen.values(), values)
        else:
            telling = rng.choice([one for one in later.tell if _fits(one, friend)] or later.tell)
            piece = SessionPart(self._spoken(telling, values, facts.values()))
            facts = {name: fact for name, fact in facts.items() if telling.facts is None or name in telling.facts}
        for name, fact in facts.items():
            if name not in later.change:
                continue
            old = instance.facts[name]
            new = self._held(fact, values, rng)
            # By chance the values of a change can be those of before, and then nothing has changed.
            if new.text in self._texts or satisfied(new.keys, old.text):
                continue
            self._texts.add(new.text)
            new.changes = old.changes + 1
            instance.facts[name] = new
            instance.last_change[name] = later.name or f"change {place}"
            gone = (filled(word, values) for word in fact.old)
            outdated = tuple(word for word in gone if satisfied([word], old.text) and not satisfied([word], new.text))
            signal = self._signal(old.text, new, piece)
            made = self._fact(Event.UPDATE, new, old.text, piece, before, signal=signal, outdated=outdated)
            piece.facts.append((_best(piece.exchanges, new.text), made))
        for name, fact in facts.items():
            if name in later.add and (held := self._held(fact, values, rng)).text not in self._texts:
                self._texts.add(held.text)
                instance.facts[name] = held
                self._kinds[fact.kind] += 1
                piece.facts.append((_best(piece.exchanges, held.text), self._fact(Event.ADD, held, "", piece, before)))
        return piece

    def _signal(self, before: str, new: HeldFact, piece: SessionPart) -> Signal:
        """How much the owner says of a change: what held before too, what holds now, or neither."""
        own = " ".join(user for user, _ in piece.exchanges)
        gone = memory_stems(before, self.name) - memory_stems(new.text, self.name)
        if gone and len(gone & content_stems(own)) >= _SAYS_BEFORE * len(gone):
            return "explicit"
        return "value" if any(satisfied([key], own) for key in new.keys) else "implied"

    def _repeated(self, fact: HeldFact, before: Mapping[str, frozenset[str]]) -> SessionPart:
        """What is remembered already is said again, and agreed to."""
        rng = self._rng
        said = _asked_back(rng, fact.recall)
        piece = SessionPart([(_say(rng, "agreed"), _say(rng, "acknowledged"))])
        piece.exchanges.insert(0, ("", said))
        piece.facts.append((1, self._fact(Event.NONE, fact, fact.text, piece, before, provenance="assistant_confirmed")))
        return piece

    def _fact(
        self,
        event: Event,
        held: HeldFact,
        previous: str,
        piece: SessionPart,
        before: Mapping[str, frozenset[str]],
        *,
        signal: Signal = "value",
        provenance: Provenance = "said",
        outdated: tuple[str, ...] = (),
    ) -> SessionFact:
        """The fact with its operation, where its keywords are from, and what makes it hard to find."""
        said = " ".join(text for exchange in piece.exchanges for text in exchange)
        origins = tuple(
            KeywordOrigin.FROM_DATE
            if isinstance(key, str) and dates_in(key) and key not in said
            else KeywordOrigin.SAID
            if satisfied([key], said)
            else KeywordOrigin.FROM_MEMORY
            for key in held.keys
        )
        stems = memory_stems(previous or held.text, self.name)
        difficulty = OperationDifficulty(
            signal=signal,
            rivals=rivals(stems, before, previous or None),
            provenance=provenance,
            time="relative" if KeywordOrigin.FROM_DATE in origins else "same_day",
            chain=held.changes,
            kind=held.kind,
        )
        origin = {Event.ADD: FactOrigin.FILLING, Event.UPDATE: FactOrigin.REVISION, Event.NONE: FactOrigin.REUSE}[event]
        return SessionFact(
            id="f0", event=event, text=held.text, previous_text=previous, keywords=held.keys, origin=origin, origins=origins,
            outdated=outdated, difficulty=difficulty,
        )  # fmt: skip

    # --- talk ------------------------------------------------------------------------------------------------------------

    def _talk(self, place: str, friend: bool) -> SessionPart:
        """Talk that leaves nothing to remember, none twice before all has come; what sounds like a fact is among it."""
        deck = self._decks.setdefault((place, friend), [])
        if not deck:
            talk = _talk(self._split, place, friend)
            deck += self._rng.sample(talk, len(talk))
        return self._told(deck.pop(), friend, own=False)

    def _talk_pieces(self, pieces: Sequence[SessionPart], friend: bool) -> Iterator[SessionPart]:
        """Talk that leaves nothing to remember, until turns without a fact have their share."""
        rng, plan = self._rng, self._plan
        carrying = sum(len({place for place, _ in piece.facts}) for piece in pieces)
        turns = sum(len(piece.exchanges) for piece in pieces)
        wanted = min(max(round(carrying / (1 - plan.chat)), rng.randint(plan.turns.min, plan.turns.min + 4)), plan.turns.max)
        if rng.random() < plan.false_recalls and not friend:
            turns += 2
            yield self._false_recall()
        while turns < wanted:
            piece = self._of_the_friend() if friend and rng.random() < _FRIENDS_OWN else self._talk("", friend)
            turns += len(piece.exchanges)
            yield piece

    def _of_the_friend(self) -> SessionPart:
        """A scene of the other side's life, told by them; the owner answers."""
        rng = self._rng
        fitting = [one for one in scenes_of(self._split) if one.facts and "attribute" not in one.kinds]
        scene = rng.choice([one for one in fitting if one.name not in self._heard])
        self._heard.add(scene.name)
        other = LifeCast(rng, stranger(rng, True, self._split), "female", self._split)
        telling = rng.choice([one for one in scene.tell if one.to != "assistant"] or list(scene.tell))
        return SessionPart(self._spoken(telling, other.fill(scene, rng, self._today)), swapped=True)

    def _false_recall(self) -> SessionPart:
        """The other side remembers what was never said, and is put right."""
        rng = self._rng
        others = [
            scene
            for scene in scenes_of(self._split)
            if scene.name not in self._used and any(f.recall for f in scene.facts.values())
        ]
        if not others:
            return self._talk("", friend=False)
        scene = rng.choice(others)
        values = LifeCast(rng, self.name, self._fixed.gender, self._split).fill(scene, rng, self._today)
        recall = draw(rng, [rng.choice([fact.recall for fact in scene.facts.values() if fact.recall])], values)
        said = _asked_back(rng, recall)
        return SessionPart([("", said), (_say(rng, "denied"), _say(rng, "sorry"))])

    def _frame(self, place: str, share: float, friend: bool) -> list[SessionPart]:
        """A greeting or a goodbye."""
        return [self._talk(place, friend)] if self._rng.random() < share else []

    # --- putting together ------------------------------------------------------------------------------------------------

    def _moving_on(self) -> str:
        """What mostly stands between two subjects of one turn."""
        return f"{_say(self._rng, 'moving_on')} " if self._rng.random() < _MOVES_ON else ""

    def _joined(self, pieces: Sequence[SessionPart]) -> tuple[list[tuple[str, str]], list[PlannedFact], list[SessionFact]]:
        """All exchanges in a row; a piece in which the other side speaks first begins at the end of the one before."""
        exchanges: list[tuple[str, str]] = []
        planned: list[PlannedFact] = []
        facts: list[SessionFact] = []
        waiting = ""  # What the owner has answered to the other side's story, said at the beginning of the next turn
        for piece in pieces:
            start = len(exchanges)
            if piece.swapped:
                told = [text for exchange in piece.exchanges for text in exchange]
                user, other = exchanges.pop()
                if waiting:
                    exchanges.append((user, other))
                    user, other = waiting, ""
                exchanges.append((user, f"{other} {self._moving_on()}{told[0]}".strip()))
                exchanges += list(zip(told[1:-1:2], told[2:-1:2], strict=True))
                waiting = told[-1]
                continue
            own = list(piece.exchanges)
            if own[0][0] == "":
                if waiting or not exchanges:
                    own[0] = (waiting or "Hi!", own[0][1])
                    waiting = ""
                else:
                    user, other = exchanges.pop()
                    own[0] = (user, f"{other} {own[0][1]}")
                    start -= 1
            elif waiting:
                own[0] = (f"{waiting} {self._moving_on()}{own[0][0]}", own[0][1])
                waiting = ""
            exchanges += own
            for place, fact in piece.facts:
                made = fact.model_copy(update={"id": f"f{len(facts) + 1}"})
                facts.append(made)
                turn = start + place + 1
                early = turn if fact.event is Event.UPDATE and fact.signal == "explicit" else 0
                planned.append(PlannedFact(fact_id=made.id, turn=turn, previous_turn=early))
        if waiting:
            exchanges.append((waiting, _say(self._rng, "acknowledged")))
        return exchanges, planned, facts


def _say(rng: random.Random, rule: str, **values: str) -> str:
    return draw(rng, phrases()[rule], values)


def _asked_back(rng: random.Random, recall: str) -> str:
    """How the other side comes to speak of what it remembers."""
    return capitalised(_say(rng, "asked_back", said=_say(rng, "recalled", recall=recall)))


def _worded(fact: SceneFact, stated: StatedLabel) -> SceneFact:
    """The fact with the label that keeps a statement word for word."""
    return fact.model_copy(update={"label": (stated.label,)})


def _fits(telling: Telling, friend: bool) -> bool:
    return telling.to in ("any", "friend" if friend else "assistant")


def _best(exchanges: Sequence[tuple[str, str]], text: str) -> int:
    """The exchange in which the owner says most of a memory, the last of several."""
    stems = content_stems(text)
    return max(range(len(exchanges)), key=lambda place: (len(stems & content_stems(exchanges[place][0])), place))

"""The paper shape: dialogues in which every fact is said in the first person at its turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from deltamem.memory import Event
from synth.offline import scenes
from synth.offline.lives import index, scene_of
from synth.offline.threads import read_view
from synth.records import Dialogue, Exchange, PlannedFact, SessionFact
from synth.tasks import DialogueTask

_FURTHER_TURNS = 3
"""Turns beyond one a fact, at most."""
_EARLIER = 0.3
"""Chance that what held before an update comes up one turn earlier."""


def write_dialogue(task: DialogueTask, rng: random.Random) -> Dialogue:
    """Spread the facts over the turns, then write the turns."""
    count, limits = len(task.facts), task.limits
    turns = min(max(count + rng.randint(0, _FURTHER_TURNS), limits.turns.min, 1), limits.turns.max)
    said: list[list[str]] = [[] for _ in range(turns)]
    facts: list[list[SessionFact]] = [[] for _ in range(turns)]
    plan = []
    for number, fact in enumerate(task.facts):
        turn = (2 * number + 1) * turns // (2 * count)
        previous_turn = 0
        if fact.event is Event.UPDATE:
            previous_turn = turn if turn == 0 or rng.random() >= _EARLIER else turn - 1
            said[previous_turn].append(_say_before(rng, task.fixed.name, fact))
            if previous_turn == turn:
                said[turn].append(rng.choice(scenes.CHANGED))
            previous_turn += 1
        elif fact.event is Event.NONE:
            said[turn].append(rng.choice(scenes.KNOWN_ALREADY))
        said[turn].append(_say(rng, task.fixed.name, fact))
        facts[turn].append(fact)
        plan.append(PlannedFact(fact_id=fact.id, turn=turn + 1, previous_turn=previous_turn))
    answers = _Answers(rng)
    exchanges = []
    for number, user in enumerate(_users(task, rng, said)):
        last = number == turns - 1
        exchanges.append(Exchange(user=user, assistant=answers.last() if last else answers.to(user, facts[number])))
    return Dialogue(plan=tuple(plan), turns=tuple(exchanges))


def _say(rng: random.Random, name: str, fact: SessionFact) -> str:
    if (known := index().read(name, fact.text)) is not None:
        return known.say(rng)
    if (view := read_view(name, fact.text)) is not None:
        return view.say_last() if fact.event is Event.UPDATE else view.say()
    return _anyhow(name, fact.text)


def _say_before(rng: random.Random, name: str, fact: SessionFact) -> str:
    if (known := index().read(name, fact.previous_text)) is not None:
        return known.say_before(rng)
    if (view := read_view(name, fact.previous_text)) is not None:
        return view.say()
    return _anyhow(name, fact.previous_text)


def _anyhow(name: str, text: str) -> str:
    """A sentence of no known kind, broken in two so that it is not recited."""
    words = text.removeprefix(name).strip().split()
    half = len(words) // 2
    return f"What they say of me is this: {' '.join(words[:half])}, well, {' '.join(words[half:])}"


def _users(task: DialogueTask, rng: random.Random, said: Sequence[Sequence[str]]) -> Iterator[str]:
    """What the user says in each turn."""
    about = scene_of(task.event.narrative)._asdict()
    leads, tails, pauses = _Deck(rng, scenes.LEADS), _Deck(rng, scenes.TAILS), _Deck(rng, scenes.PAUSES)
    for number, sentences in enumerate(said):
        if number == 0:
            first = rng.choice(scenes.FIRST_WORDS).format(**about)
        else:
            first = leads.draw() if sentences else pauses.draw()
        last = rng.choice(scenes.FAREWELLS) if number == len(said) - 1 else tails.draw() if sentences else ""
        yield " ".join(filter(None, (first, *sentences, last)))


class _Answers:
    """What the assistant says: it takes up words that the user has just said, and otherwise nothing in particular."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._listening, self._recalls = _Deck(rng, scenes.LISTENING), _Deck(rng, scenes.RECALLS)
        self._advice, self._questions = _Deck(rng, scenes.ADVICE), _Deck(rng, scenes.QUESTIONS)
        self._said: set[str] = set()

    def to(self, user: str, facts: Sequence[SessionFact]) -> str:
        """Answer an utterance that says these facts, never twice in the same words."""
        while (answer := self._drawn(user, facts)) in self._said:
            pass  # decks that have been through may meet again in the same cards
        self._said.add(answer)
        return answer

    def _drawn(self, user: str, facts: Sequence[SessionFact]) -> str:
        heard = [keyword for fact in facts for keyword in fact.keywords if keyword in user]
        recall = self._recalls.draw().format(keyword=self._rng.choice(heard)) if heard else ""
        return " ".join(filter(None, (self._listening.draw(), recall, self._advice.draw(), self._questions.draw())))

    def last(self) -> str:
        """Answer the user's farewell."""
        return self._rng.choice(scenes.CLOSING_REPLIES)


class _Deck:
    """Draws each text once before any comes again."""

    def __init__(self, rng: random.Random, texts: Sequence[str]) -> None:
        self._rng = rng
        self._texts = texts
        self._left: list[str] = []

    def draw(self) -> str:
        self._left = self._left or self._rng.sample(self._texts, len(self._texts))
        return self._left.pop()

"""Dialogues of the tiny form of `demanding`: the segments of `talk` in a few words, without a greeting and a goodbye."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rewards.fidelity import folded
from synth.offline.grammar import finished
from synth.offline.phrasing import Statement
from synth.offline.talk import PlannedTurn, Segment, SessionWriter
from synth.offline.topics import topics
from synth.records import Aside, AsideKind, Dialogue
from synth.tasks import DialogueTask
from synth.validators.speech import occurs, stands_in

_PAIRED = 0.15
"""Share of statements that are told in one turn with the next one."""
_WHAT_IF = 0.25
"""Share of chat that speaks of what is no fact in the words of one."""
_FRAMED, _THAT = 0.06, 0.5
"""Shares of statements that stand inside another sentence, and of those, where they can be, after "that"."""
_TRIES = 30


class _ShortWriter(SessionWriter):
    def _wanted(self, facts: int) -> int:
        return self._rng.randint(1, 4) if facts else self._rng.randint(1, 3)

    def _chance(self, one: Statement, other: Statement) -> float:
        return _PAIRED

    def _scene(self) -> Segment:
        for _ in range(_TRIES):
            user = self._chat()
            if not any(stands_in(folded(word), folded(user)) for fact in self._task.facts for word in fact.outdated):
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
    """Tell the facts and asides of a session in short turns."""
    return _ShortWriter(task, rng).write()

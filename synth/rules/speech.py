"""Rules of stage 4: how the utterances of a dialogue look, whatever the facts."""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections.abc import Iterator

from deltamem.protocol import CONTROL_MARK
from deltamem.text.words import normalised
from synth.records import Dialogue
from synth.rules.base import Case, Rule, rule
from synth.rules.wording import folded
from synth.tasks import DialogueTask, Unit

SMALL_TALK_WORDS = 12
"""An utterance that carries no fact may come again if it is no longer than this."""

_Case = Case[DialogueTask, Dialogue]

_STRUCTURE = re.compile(r"```|[{\[]\s*\"[\w ]+\"\s*[:,\]]|\{\{|\}\}")
# "f2.8" is an aperture.
_FACT_ID = re.compile(r"\bf[0-9]{1,3}\b(?![./]\d)")
_SPEAKERS = "user|assistant|human|ai|ai assistant|system|bot|chatbot"


def _spoken(case: _Case) -> Iterator[tuple[str, str]]:
    """Every utterance with its place, for example ``turn 3, assistant``."""
    for number, turn in enumerate(case.answer.turns, start=1):
        yield f"turn {number}, user", turn.user
        yield f"turn {number}, assistant", turn.assistant


@rule(Unit.DIALOGUE, "The dialogue has as many turns as asked for.")
def turn_count(case: _Case) -> Iterator[str]:
    if len(case.answer.turns) not in case.task.limits.turns:
        yield f"the dialogue must have {case.task.limits.turns} turns, but has {len(case.answer.turns)}"


@rule(Unit.DIALOGUE, "Every turn has an utterance of both speakers.")
def both_speak(case: _Case) -> Iterator[str]:
    for place, text in _spoken(case):
        if not text.strip():
            yield f"{place}: the utterance is empty"


@rule(Unit.DIALOGUE, "The assistant's utterances keep to the length asked for.")
def assistant_words(case: _Case) -> Iterator[str]:
    for number, turn in enumerate(case.answer.turns, start=1):
        count = len(turn.assistant.split())
        if turn.assistant.strip() and count not in case.task.limits.assistant_words:
            yield f"turn {number}: the assistant must say {case.task.limits.assistant_words} words, but says {count}"


@rule(Unit.DIALOGUE, "The user recites no memory sentence.")
def not_recited(case: _Case) -> Iterator[str]:
    if case.task.limits.verbatim:
        return
    spoken = [normalised(turn.user) for turn in case.answer.turns]
    for fact in case.task.facts:
        for text in dict.fromkeys((fact.text, fact.previous_text)):
            sentence = normalised(text.removeprefix(case.task.fixed.name))
            for number, user in enumerate(spoken, start=1):
                if sentence and sentence in user:
                    yield f"turn {number}: the user recites {fact.id} word for word; they must say it in their own words"


@rule(Unit.DIALOGUE, "No utterance has control marks.")
def no_control_marks(case: _Case) -> Iterator[str]:
    for place, text in _spoken(case):
        if CONTROL_MARK.search(text):
            yield f"{place}: the utterance has a control mark such as <|...|> or <think>; leave it out"


@rule(Unit.DIALOGUE, "No line of an utterance begins with the name of a speaker and a colon.")
def no_posing(case: _Case) -> Iterator[str]:
    names = "|".join(re.escape(name) for name in {case.task.fixed.name, case.task.fixed.name.split(" ")[0]} if name)
    posing = re.compile(rf"^[ \t*_>#]*(?:{_SPEAKERS}|{names})[ \t*_]*:", re.IGNORECASE | re.MULTILINE)
    for place, text in _spoken(case):
        if found := posing.search("\n".join(text.splitlines())):
            yield f"{place}: the utterance must not contain lines of other speakers, but has {found[0]!r}"


@rule(Unit.DIALOGUE, "Utterances are plain speech, without ids of facts and without JSON.")
def plain_speech(case: _Case) -> Iterator[str]:
    ids = {fact.id for fact in case.task.facts}
    for place, text in _spoken(case):
        found = [match for match in _FACT_ID.findall(text) if match in ids] or _STRUCTURE.findall(text)
        if found:
            yield f"{place}: the utterance must be plain speech, but has {found[0]!r}"


@rule(Unit.DIALOGUE, "Nobody says the same twice, short utterances without a fact aside.")
def no_repetition(case: _Case) -> Iterator[str]:
    turns = {turn for planned in case.answer.plan for turn in (planned.turn, planned.previous_turn)}
    seen: dict[tuple[bool, str], int] = {}
    for number, turn in enumerate(case.answer.turns, start=1):
        for is_user, text in ((True, turn.user), (False, turn.assistant)):
            first = seen.setdefault((is_user, folded(text)), number)
            carries = is_user and not turns.isdisjoint((first, number))
            if first != number and (carries or len(text.split()) > SMALL_TALK_WORDS):
                yield f"turn {number}: the {'user' if is_user else 'assistant'} repeats turn {first} word for word"


SPEECH: tuple[Rule, ...] = (
    turn_count,
    both_speak,
    assistant_words,
    not_recited,
    no_control_marks,
    no_posing,
    plain_speech,
    no_repetition,
)
"""Rules of a `DialogueTask`'s answer that need no plan."""

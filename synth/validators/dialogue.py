"""Rules of stage 4: a dialogue tells its facts, and how its utterances look."""
# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from deltamem.memory import Event, alternatives, wordings
from deltamem.sessions import CONTROL_MARK
from deltamem.text import contains, content_words, normalised, stem
from rewards.fidelity import folded, folded_keyword
from synth.records import Aside, AsideKind, Dialogue, KeywordOrigin, PlannedFact, SessionFact
from synth.tasks import DialogueTask, Unit
from synth.validators.base import (
    Case,
    RuleSet,
    Utterances,
    dates_in,
    heard,
    invented_full_names,
    stands_in,
    uses,
    utterance,
    utterances_of,
)

DIALOGUE = RuleSet(Unit.DIALOGUE)
"""Rules of a `DialogueTask`'s answer."""


SMALL_TALK_WORDS = 12
"""An utterance that carries no fact may come again if it is no longer than this."""

_Case = Case[DialogueTask, Dialogue]

_STRUCTURE = re.compile(r"```|[{\[]\s*\"[\w ]+\"\s*[:,\]]|\{\{|\}\}")
# "f2.8" is an aperture.
_FACT_ID = re.compile(r"\bf[0-9]{1,3}\b(?![./]\d)")
_SPEAKERS = "user|assistant|human|ai|ai assistant|system|bot|chatbot"


def _spoken(case: _Case) -> Iterator[tuple[str, str]]:
    for number, turn in enumerate(case.answer.turns, start=1):
        yield f"turn {number}, user", turn.user
        yield f"turn {number}, assistant", turn.assistant


@DIALOGUE.rule("The dialogue has as many turns as asked for.")
def turn_count(case: _Case) -> Iterator[str]:
    if len(case.answer.turns) not in case.task.limits.turns:
        yield f"the dialogue must have {case.task.limits.turns} turns, but has {len(case.answer.turns)}"


@DIALOGUE.rule("Every turn has an utterance of both speakers.")
def both_speak(case: _Case) -> Iterator[str]:
    for place, text in _spoken(case):
        if not text.strip():
            yield f"{place}: the utterance is empty"


@DIALOGUE.rule("The assistant's utterances keep to the length asked for.")
def assistant_words(case: _Case) -> Iterator[str]:
    for number, turn in enumerate(case.answer.turns, start=1):
        count = len(turn.assistant.split())
        if turn.assistant.strip() and count not in case.task.limits.assistant_words:
            yield f"turn {number}: the assistant must say {case.task.limits.assistant_words} words, but says {count}"


@DIALOGUE.rule("The user recites no memory sentence.")
def not_recited(case: _Case) -> Iterator[str]:
    if case.task.limits.verbatim:
        return
    spoken = [normalised(turn.user) for turn in case.answer.turns]
    for fact in case.task.facts:
        for text in dict.fromkeys((fact.text, fact.previous_text)):
            sentence = normalised(text.removeprefix(case.task.fixed.name))
            for number, user in enumerate(spoken, start=1):
                if sentence and contains(user, sentence):
                    yield f"turn {number}: the user recites {fact.id} word for word; they must say it in their own words"


@DIALOGUE.rule("No utterance has control marks.")
def no_control_marks(case: _Case) -> Iterator[str]:
    for place, text in _spoken(case):
        if CONTROL_MARK.search(text):
            yield f"{place}: the utterance has a control mark such as <|...|> or <think>; leave it out"


@DIALOGUE.rule("No line of an utterance begins with the name of a speaker and a colon.")
def no_posing(case: _Case) -> Iterator[str]:
    names = "|".join(re.escape(name) for name in {case.task.fixed.name, case.task.fixed.name.split(" ")[0]} if name)
    posing = re.compile(rf"^[ \t*_>#]*(?:{_SPEAKERS}|{names})[ \t*_]*:", re.IGNORECASE | re.MULTILINE)
    for place, text in _spoken(case):
        if found := posing.search("\n".join(text.splitlines())):
            yield f"{place}: the utterance must not contain lines of other speakers, but has {found[0]!r}"


@DIALOGUE.rule("Utterances are plain speech, without ids of facts and without JSON.")
def plain_speech(case: _Case) -> Iterator[str]:
    ids = {fact.id for fact in case.task.facts}
    for place, text in _spoken(case):
        found = [match for match in _FACT_ID.findall(text) if match in ids] or _STRUCTURE.findall(text)
        if found:
            yield f"{place}: the utterance must be plain speech, but has {found[0]!r}"


@DIALOGUE.rule("Nobody says the same twice, short utterances without a fact aside.")
def no_repetition(case: _Case) -> Iterator[str]:
    turns = {turn for planned in case.answer.plan for turn in (planned.turn, planned.previous_turn)}
    seen: dict[tuple[bool, str], int] = {}
    for number, turn in enumerate(case.answer.turns, start=1):
        for is_user, text in ((True, turn.user), (False, turn.assistant)):
            first = seen.setdefault((is_user, folded(text)), number)
            carries = is_user and not turns.isdisjoint((first, number))
            if first != number and (carries or len(text.split()) > SMALL_TALK_WORDS):
                yield f"turn {number}: the {'user' if is_user else 'assistant'} repeats turn {first} word for word"


# Words that come and go between two versions of a fact without telling them apart.
_FLEETING = frozenset(
    map(stem, ("already", "always", "currently", "often", "mostly", "now", "sometimes", "typically", "usually"))
)


def _assistant(case: _Case) -> Utterances:
    return utterances_of(tuple(turn.assistant for turn in case.answer.turns), case.task.fixed.name)


def _heard(case: _Case) -> Utterances:
    turns = case.answer.turns
    return heard([turn.user for turn in turns], [turn.assistant for turn in turns], case.task.fixed.name)


def _user(case: _Case) -> Utterances:
    return utterances_of(tuple(turn.user for turn in case.answer.turns), case.task.fixed.name)


def _planned(case: _Case) -> Iterator[tuple[PlannedFact, SessionFact]]:
    """The first entry of each fact with a turn that exists; other rules report the rest."""
    facts = {fact.id: fact for fact in case.task.facts}
    for planned in case.answer.plan:
        if planned.turn <= len(case.answer.turns) and (fact := facts.pop(planned.fact_id, None)) is not None:
            yield planned, fact


def _by_turn(case: _Case) -> dict[int, list[SessionFact]]:
    found: dict[int, list[SessionFact]] = {}
    for planned, fact in _planned(case):
        found.setdefault(planned.turn, []).append(fact)
    return found


@DIALOGUE.rule("The plan names every fact once and no other.")
def plan_complete(case: _Case) -> Iterator[str]:
    counts = Counter(planned.fact_id for planned in case.answer.plan)
    known = {fact.id for fact in case.task.facts}
    for fact in case.task.facts:
        if counts[fact.id] != 1:
            yield f"the plan must name {fact.id} once, but names it {counts[fact.id]} times"
    for fact_id in counts:
        if fact_id not in known:
            yield f"the plan names {fact_id}, which is no fact of this session"


@DIALOGUE.rule("The turns of the plan exist.")
def plan_turns_exist(case: _Case) -> Iterator[str]:
    for planned in case.answer.plan:
        if max(planned.turn, planned.previous_turn) > len(case.answer.turns):
            latest = max(planned.turn, planned.previous_turn)
            yield f"the plan puts {planned.fact_id} into turn {latest}, but the last turn is {len(case.answer.turns)}"


@DIALOGUE.rule("Only facts that are updated explicitly have a turn for what held before, not later than their own.")
def plan_previous_turns(case: _Case) -> Iterator[str]:
    for planned, fact in _planned(case):
        explicit = fact.event is Event.UPDATE and fact.signal == "explicit"
        if not explicit and planned.previous_turn:
            yield f"{fact.id} is no explicit update, so its previous_turn must be 0, but is {planned.previous_turn}"
        elif explicit and not 1 <= planned.previous_turn <= planned.turn:
            yield (
                f"{fact.id} is an explicit update, so its previous_turn must be 1 to {planned.turn} (its turn), "
                f"but is {planned.previous_turn}"
            )


@DIALOGUE.rule("No turn has more planned facts than asked for; those of one statement count as one.")
def facts_per_turn(case: _Case) -> Iterator[str]:
    limit = case.task.limits.facts_per_turn
    for number, facts in sorted(_by_turn(case).items()):
        if (count := _statements(facts)) > limit:
            ids = ", ".join(fact.id for fact in facts)
            yield f"turn {number}: at most {limit} facts may be planned, but there are {count} ({ids})"


def _statements(facts: Iterable[SessionFact]) -> int:
    return len({fact.statement or fact.id for fact in facts})


@DIALOGUE.rule("Facts that one statement changes are said in the same turn.")
def together(case: _Case) -> Iterator[str]:
    turns: dict[int, set[int]] = {}
    for entry, fact in _planned(case):
        if fact.statement:
            turns.setdefault(fact.statement, set()).add(entry.turn)
    for statement, found in turns.items():
        if len(found) > 1:
            ids = ", ".join(fact.id for fact in case.task.facts if fact.statement == statement)
            yield f"{ids} are changed by one statement and must be planned for the same turn, but are for {sorted(found)}"


@DIALOGUE.rule("No utterance of the user says more facts at once than asked for.")
def no_dumping(case: _Case) -> Iterator[str]:
    said, limit, planned = _user(case), case.task.limits.facts_per_turn, _by_turn(case)
    at_once: dict[int, list[SessionFact]] = {}
    for fact in case.task.facts:
        # Of a fact that may be said in part, one word can stand anywhere.
        if fact.spoken == fact.keywords and fact.keywords and (turn := said.verbatim_turn(fact.keywords)):
            due = planned.get(turn, [])
            # All words of a sibling may be among those of the facts whose turn this is.
            words = {folded_keyword(keyword) for other in due for keyword in other.keywords}
            if fact in due or not words.issuperset(map(folded_keyword, fact.keywords)):
                at_once.setdefault(turn, []).append(fact)
    for number, facts in sorted(at_once.items()):
        if (count := _statements(facts)) > limit:
            ids = ", ".join(fact.id for fact in facts)
            yield (
                f"turn {number}: the user says {count} facts at once ({ids}), but at most {limit} are allowed "
                "in one turn; spread them"
            )


@DIALOGUE.rule(
    "By its planned turn each fact can be told from what the user says, or the assistant with no 'no' of the user after it: "
    "half of its content words, and all of its names and numbers, apart from dates and from what held before."
)
def supported(case: _Case) -> Iterator[str]:
    spoken = _heard(case)
    for planned, fact in _planned(case):
        if missing := spoken.lacking(fact.text, fact.keywords, fact.previous_text, planned.turn):
            yield (
                f"{fact.id}: by turn {planned.turn} it must be possible to tell {fact.text!r} from the conversation, but "
                f"neither of the two says {', '.join(map(repr, missing))}"
            )


@DIALOGUE.rule("What held before an update is mentioned, of one statement once, in its planned turn or before.")
def previous_said(case: _Case) -> Iterator[str]:
    missing: dict[str | int, list[str]] = {}
    for planned, fact in _planned(case):
        if fact.event is Event.UPDATE and planned.previous_turn:
            missing.setdefault(fact.statement or fact.id, []).append(_previous_missing(case, planned, fact))
    for messages in missing.values():
        if all(messages):
            yield from messages


def _previous_missing(case: _Case, planned: PlannedFact, fact: SessionFact) -> str:
    """What is wrong with what is said of the memory before an update; empty if nothing is."""
    said = _heard(case)
    previous = said.needed(fact.previous_text)
    told = {wanted for wanted in previous if (said.stem_turn(wanted) or len(case.answer.turns) + 1) <= planned.previous_turn}
    telling = previous - utterance(fact.text).stems - _FLEETING
    demand = f"{fact.id}: by turn {planned.previous_turn} what held before ({fact.previous_text!r}) must be mentioned"
    if telling and told.isdisjoint(telling):
        words = [word for word in content_words(fact.previous_text) if stem(word) in telling]
        return f"{demand}, but none of {', '.join(map(repr, words))} is said"
    if not telling and 2 * len(told) < len(previous):
        return f"{demand}, but only {len(told)} of its {len(previous)} content words are said"
    return ""


@DIALOGUE.rule("Something wrong is said before it is put right, by the assistant or by the user as planned.")
def misspoken_said(case: _Case) -> Iterator[str]:
    said, told = _user(case), _assistant(case)
    for planned, fact in _planned(case):
        if not fact.misspoken:
            continue
        by_user = fact.provenance == "self_corrected"
        turn = (said if by_user else told).turn(fact.misspoken)
        last = planned.turn if by_user else planned.turn - 1
        if turn is None or turn > last:
            who = "user" if by_user else "assistant"
            yield f"{fact.id}: the {who} must say {fact.misspoken!r} by turn {last}, before the user puts it right"


@DIALOGUE.rule("Of an update that shows by its new value alone, the user does not say the outdated one in its turn.")
def only_new_value(case: _Case) -> Iterator[str]:
    for number, facts in _by_turn(case).items():
        user = case.answer.turns[number - 1].user
        for fact in facts:
            # What the other facts of the turn have besides their keywords may be said as well.
            due = [fact.misspoken, *wordings(fact.keywords)]
            due += [f"{other.misspoken} {other.text}" for other in facts if other != fact]
            if fact.event is Event.UPDATE and fact.signal == "value":
                for value in fact.outdated:
                    if stands_in(folded(value), folded(user)) and not stands_in(folded(value), folded(" ".join(due))):
                        yield f"turn {number}: the user must not say {value!r}, the outdated value of {fact.id}"


@DIALOGUE.rule("A date that is to be said relative to the day of the session is not said in full.")
def dates_relative(case: _Case) -> Iterator[str]:
    for fact in case.task.facts:
        for keyword, origin in zip(fact.keywords, fact.origins, strict=False):
            for date in filter(dates_in, alternatives(keyword) if origin is KeywordOrigin.FROM_DATE else ()):
                for place, text in _spoken(case):
                    if stands_in(folded(date), folded(text)):
                        yield f"{place}: {date!r} of {fact.id} must be said relative to {case.task.today}, not in full"


@DIALOGUE.rule("Every aside is planned once, for a turn that exists, and no other is.")
def asides_planned(case: _Case) -> Iterator[str]:
    counts = Counter(planned.aside_id for planned in case.answer.asides)
    known = {aside.id for aside in case.task.asides}
    for aside_id in sorted(known | counts.keys()):
        if counts[aside_id] != (aside_id in known):
            yield f"the plan must name {aside_id} {int(aside_id in known)} times, but names it {counts[aside_id]} times"
    for planned in case.answer.asides:
        if planned.turn > len(case.answer.turns):
            yield f"the plan puts {planned.aside_id} into turn {planned.turn}, but the last turn is {len(case.answer.turns)}"


@DIALOGUE.rule("The words of an aside are said in its turn, by the assistant if it is the assistant's claim.")
def asides_said(case: _Case) -> Iterator[str]:
    for aside, who, text in _asides(case):
        for word in aside.words:
            if not uses(text, word, case.task.fixed.name):
                yield f"{aside.id}: the {who} must say {word!r} in the planned turn"


TOLD = 0.75
"""Share of the content words of a memory from which it is told."""


@DIALOGUE.rule("An aside does not tell the memory whose words it has.")
def asides_no_facts(case: _Case) -> Iterator[str]:
    for aside, who, text in _asides(case):
        stems = utterance(aside.memory).stems - utterance(case.task.fixed.name).stems
        if stems and len(stems & utterance(text).stems) >= TOLD * len(stems):
            yield f"{aside.id}: the {who} must only touch on {aside.memory!r} in the planned turn, not tell it"


def _asides(case: _Case) -> Iterator[tuple[Aside, str, str]]:
    """The asides with a planned turn that exists: who says it, and that turn's utterance."""
    known = {aside.id: aside for aside in case.task.asides}
    for planned in case.answer.asides:
        if planned.turn <= len(case.answer.turns) and (aside := known.pop(planned.aside_id, None)) is not None:
            turn = case.answer.turns[planned.turn - 1]
            claim = aside.kind is AsideKind.ASSISTANT_CLAIM
            yield aside, *(("assistant", turn.assistant) if claim else ("user", turn.user))


@DIALOGUE.rule("The user names nobody and nothing that the task does not know.")
def no_invented_names(case: _Case) -> Iterator[str]:
    users = [turn.user for turn in case.answer.turns]
    for name in invented_full_names(users, case.task):
        yield f"the user names {name!r}, who or which is nowhere in the input; leave it out"


@DIALOGUE.rule("If somebody else is to type a turn, it is one after the first, says who that is, and has no planned fact.")
def guest_speaks(case: _Case) -> Iterator[str]:
    guest, number = case.task.voice.guest, case.answer.guest_turn
    if not guest:
        if number:
            yield f"guest_turn must be 0, because nobody else is to type, but is {number}"
        return
    if not 2 <= number <= len(case.answer.turns):
        yield f"guest_turn must be a turn from 2 to {len(case.answer.turns)}, in which {guest} types, but is {number}"
        return
    given = guest.split()[0]
    if not stands_in(folded(given), utterance(case.answer.turns[number - 1].user).folded):
        yield f"turn {number}: {guest} types and must say so, but the utterance does not say {given!r}"
    for planned, fact in _planned(case):
        if number in (planned.turn, planned.previous_turn):
            yield f"turn {number}: {guest} types, so {fact.id} must be planned for another turn"


@DIALOGUE.rule("A stray line that is asked for stands in one answer of the assistant, and the user does not repeat it.")
def interference_said(case: _Case) -> Iterator[str]:
    line = folded(case.task.voice.interference)
    if not line:
        return
    found = sum(line in utterance(turn.assistant).folded for turn in case.answer.turns)
    if found != 1:
        yield f"the line {case.task.voice.interference!r} must stand in one answer of the assistant, but stands in {found}"
    for number, turn in enumerate(case.answer.turns, start=1):
        if line in utterance(turn.user).folded:
            yield f"turn {number}: the user must pass over the stray line, but repeats it"

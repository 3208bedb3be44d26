"""Rules of stage 4: a dialogue covers its facts, the user says them first, and nobody recites them.

Paper, section 3.2, appendix A ("user-first", "work plan") and the constraints of its dialogue prompt. What needs judgement
stays unchecked: tone, whether the conversation serves its goal, relative time words.
"""

# ruff: noqa: D103 - the decorator says in a sentence what each rule demands

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from deltamem.memory import Event
from deltamem.text.words import content_words, stem
from synth.records import Dialogue, PlannedFact, SessionFact
from synth.rules.base import Case, Rule, rule
from synth.rules.names import invented_full_names
from synth.rules.said import Said, uses, utterance
from synth.rules.speech import SPEECH
from synth.tasks import DialogueTask, Unit

SIMILAR = 0.55
"""Least similarity of a fact to what the user says where its keywords are scattered over the user's utterances.

Measured with all-MiniLM-L6-v2 on 20 facts: told in other words, amid small talk or over two turns, they reach 0.58 to 0.89;
what the user says of other facts at most 0.42. Sentences that were made to have all words of the keywords and to mean
something else reach 0.15 to 0.70; three quarters of them stay below 0.55, and no threshold parts the rest from told facts.
"""

_Case = Case[DialogueTask, Dialogue]

# Words that come and go between two versions of a fact without telling them apart.
_FLEETING = frozenset(
    map(stem, ("already", "always", "currently", "often", "mostly", "now", "sometimes", "typically", "usually"))
)
_SENTENCES = re.compile(r"(?<=[.!?])[\"”'’)]?\s+")  # noqa: RUF001


@lru_cache(maxsize=8)
def _said_by_user(texts: tuple[str, ...], name: str) -> Said:
    return Said(texts, name)


def _said(case: _Case) -> Said:
    return _said_by_user(tuple(turn.user for turn in case.answer.turns), case.task.fixed.name)


def _planned(case: _Case) -> Iterator[tuple[PlannedFact, SessionFact]]:
    """The first entry of each fact with a turn that exists; other rules report the rest."""
    facts = {fact.id: fact for fact in case.task.facts}
    for planned in case.answer.plan:
        if planned.turn <= len(case.answer.turns) and (fact := facts.pop(planned.fact_id, None)) is not None:
            yield planned, fact


@rule(Unit.DIALOGUE, "The plan names every fact once and no other.")
def plan_complete(case: _Case) -> Iterator[str]:
    counts = Counter(planned.fact_id for planned in case.answer.plan)
    known = {fact.id for fact in case.task.facts}
    for fact in case.task.facts:
        if counts[fact.id] != 1:
            yield f"the plan must name {fact.id} once, but names it {counts[fact.id]} times"
    for fact_id in counts:
        if fact_id not in known:
            yield f"the plan names {fact_id}, which is no fact of this session"


@rule(Unit.DIALOGUE, "The turns of the plan exist.")
def plan_turns_exist(case: _Case) -> Iterator[str]:
    for planned in case.answer.plan:
        if max(planned.turn, planned.previous_turn) > len(case.answer.turns):
            latest = max(planned.turn, planned.previous_turn)
            yield f"the plan puts {planned.fact_id} into turn {latest}, but the last turn is {len(case.answer.turns)}"


@rule(Unit.DIALOGUE, "Only facts that are updated have a turn for what held before, not later than their own.")
def plan_previous_turns(case: _Case) -> Iterator[str]:
    for planned, fact in _planned(case):
        if fact.event is not Event.UPDATE and planned.previous_turn:
            yield f"{fact.id} is not updated, so its previous_turn must be 0, but is {planned.previous_turn}"
        elif fact.event is Event.UPDATE and not 1 <= planned.previous_turn <= planned.turn:
            yield (
                f"{fact.id} is updated, so its previous_turn must be 1 to {planned.turn} (its turn), "
                f"but is {planned.previous_turn}"
            )


@rule(Unit.DIALOGUE, "No turn has more planned facts than asked for.")
def facts_per_turn(case: _Case) -> Iterator[str]:
    limit = case.task.limits.facts_per_turn
    planned: dict[int, list[str]] = {}
    for entry, fact in _planned(case):
        planned.setdefault(entry.turn, []).append(fact.id)
    for number, ids in sorted(planned.items()):
        if len(ids) > limit:
            yield f"turn {number}: at most {limit} facts may be planned, but there are {len(ids)} ({', '.join(ids)})"


@rule(Unit.DIALOGUE, "Facts are spread over the dialogue: no long run of turns is without any.")
def spread(case: _Case) -> Iterator[str]:
    if not case.task.facts:
        return
    turns = {turn for planned, _ in _planned(case) for turn in (planned.turn, planned.previous_turn)} - {0}
    stops = [0, *sorted(turns), len(case.answer.turns) + 1]
    for before, after in pairwise(stops):
        if after - before - 1 > case.task.limits.largest_gap:
            yield (
                f"turns {before + 1} to {after - 1} have no planned fact; at most {case.task.limits.largest_gap} turns in a "
                "row may have none"
            )


@rule(Unit.DIALOGUE, "No utterance of the user says more facts at once than asked for.")
def no_dumping(case: _Case) -> Iterator[str]:
    said, limit = _said(case), case.task.limits.facts_per_turn
    at_once: dict[int, list[str]] = {}
    for fact in case.task.facts:
        if fact.keywords and (turn := said.verbatim_turn(fact.keywords)):
            at_once.setdefault(turn, []).append(fact.id)
    for number, ids in sorted(at_once.items()):
        if len(ids) > limit:
            yield (
                f"turn {number}: the user says {len(ids)} facts at once ({', '.join(ids)}), but at most {limit} are allowed "
                "in one turn; spread them"
            )


@rule(Unit.DIALOGUE, "The user says every keyword of a fact, in its planned turn or before.")
def keywords_said(case: _Case) -> Iterator[str]:
    said = _said(case)
    for planned, fact in _planned(case):
        for keyword in fact.keywords:
            if (turn := said.turn(keyword)) is None or turn > planned.turn:
                missing = said.missing(keyword, planned.turn)
                words = f" (missing: {', '.join(map(repr, missing))})" if missing else ""
                yield f"{fact.id}: the user must say {keyword!r} in turn {planned.turn} or before, but does not{words}"


@rule(Unit.DIALOGUE, "The user says something of a fact in its planned turn.")
def said_where_planned(case: _Case) -> Iterator[str]:
    said = _said(case)
    for planned, fact in _planned(case):
        user = case.answer.turns[planned.turn - 1].user
        stems = frozenset[str]().union(*map(said.needed, fact.keywords))
        if stems and stems.isdisjoint(utterance(user).stems):
            yield (
                f"{fact.id} is planned for turn {planned.turn}, but there the user says none of its keywords "
                f"({', '.join(map(repr, fact.keywords))})"
            )


@rule(Unit.DIALOGUE, "The user mentions what held before an update, in its planned turn or before.")
def previous_said(case: _Case) -> Iterator[str]:
    said = _said(case)
    for planned, fact in _planned(case):
        if fact.event is not Event.UPDATE or not planned.previous_turn:
            continue
        previous = said.needed(fact.previous_text)
        heard = {
            wanted for wanted in previous if (said.stem_turn(wanted) or len(case.answer.turns) + 1) <= planned.previous_turn
        }
        telling = previous - utterance(fact.text).stems - _FLEETING
        if telling and heard.isdisjoint(telling):
            words = [word for word in content_words(fact.previous_text) if stem(word) in telling]
            yield (
                f"{fact.id}: by turn {planned.previous_turn} the user must mention what held before "
                f"({fact.previous_text!r}), but says none of {', '.join(map(repr, words))}"
            )
        elif not telling and 2 * len(heard) < len(previous):
            yield (
                f"{fact.id}: by turn {planned.previous_turn} the user must mention what held before "
                f"({fact.previous_text!r}), but says only {len(heard)} of its {len(previous)} content words"
            )


@rule(Unit.DIALOGUE, "The assistant uses no keyword before the user has said it, unless it was known before the session.")
def user_first(case: _Case) -> Iterator[str]:
    said, name = _said(case), case.task.fixed.name
    known = [fact.previous_text for fact in case.task.facts if fact.previous_text]
    for fact in case.task.facts:
        for keyword in fact.keywords:
            first, needed = said.turn(keyword) or len(case.answer.turns) + 1, said.needed(keyword)
            if first == 1 or any(needed <= utterance(text).stems for text in known):
                continue
            for number, turn in enumerate(case.answer.turns[: first - 1], start=1):
                if needed <= utterance(turn.assistant).stems and uses(turn.assistant, keyword, name):
                    yield (
                        f"turn {number}: the assistant says {keyword!r} of {fact.id} before the user has; the user must "
                        "bring it up first"
                    )
                    break


@rule(Unit.DIALOGUE, "The user says each fact in substance, not only its words.", needs_similarity=True)
def meaning_said(case: _Case) -> Iterator[str]:
    said, name = _said(case), case.task.fixed.name
    unsure = []
    for planned, fact in _planned(case):
        beyond_doubt = said.verbatim_turn(fact.keywords)
        if beyond_doubt is None or beyond_doubt > planned.turn:
            unsure.append((planned, fact))
    if not unsure or case.similarity is None:
        return
    stems = frozenset[str]().union(*(said.needed(keyword) for _, fact in unsure for keyword in fact.keywords))
    pieces = [(turn, text) for turn, text in _pieces(case) if not stems.isdisjoint(utterance(text).stems)]
    if not pieces:
        return
    # People speak of themselves as "I", so the memory is compared in that form.
    texts = ["I" + fact.text.removeprefix(name) for _, fact in unsure]
    rows = case.similarity.between(texts, [text for _, text in pieces])
    for (planned, fact), row in zip(unsure, rows, strict=True):
        best = max((value for value, (turn, _) in zip(row, pieces, strict=True) if turn <= planned.turn), default=-1.0)
        if best < SIMILAR:
            yield (
                f"{fact.id}: by turn {planned.turn} the user must say in substance {fact.text!r}, but nothing comes close "
                f"(similarity {best:.2f}, at least {SIMILAR} needed)"
            )


def _pieces(case: _Case) -> Iterator[tuple[int, str]]:
    """What the user says in pieces that a fact may fill, each with the turn that it ends in.

    Two or three sentences in a row, also from one turn to the next: a fact drowns in a longer text, and a single sentence
    often has only half of it. An utterance of one sentence is a piece too.
    """
    sentences: list[tuple[int, str]] = []
    for number, turn in enumerate(case.answer.turns, start=1):
        own = [(number, sentence) for sentence in _SENTENCES.split(turn.user) if sentence.strip()]
        if len(own) == 1:
            yield own[0]
        sentences += own
    for size in (2, 3):
        for begin in range(len(sentences) - size + 1):
            window = sentences[begin : begin + size]
            yield window[-1][0], " ".join(text for _, text in window)


@rule(Unit.DIALOGUE, "The user names nobody and nothing that the task does not know.")
def no_invented_names(case: _Case) -> Iterator[str]:
    users = [turn.user for turn in case.answer.turns]
    for name in invented_full_names(users, case.task):
        yield f"the user names {name!r}, who or which is nowhere in the input; leave it out"


DIALOGUE: tuple[Rule, ...] = (
    *SPEECH,
    plan_complete,
    plan_turns_exist,
    plan_previous_turns,
    facts_per_turn,
    spread,
    no_dumping,
    keywords_said,
    said_where_planned,
    previous_said,
    user_first,
    meaning_said,
    no_invented_names,
)
"""Rules of a `DialogueTask`'s answer."""

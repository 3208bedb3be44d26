"""How one memory sentence has to be worded: the rules that initial facts, deltas, memory threads and filling share.

The demands are those of the paper's prompts (appendix, "description formatting rules" and "keywords rules"): one standalone
sentence in the third person that begins with the person's name, with short keywords that occur in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from deltamem.text.words import normalised
from synth.records import Fact
from synth.rules.base import Case, Check, Rule, rule
from synth.shape import FactLimits
from synth.tasks import Unit

_SENTENCE_END = re.compile(r"[.!?。！？][\"'”’»)\]]*$")  # noqa: RUF001
# A second sentence begins after an ordinary word, so that "Dr. Lee" and "Yahoo! Mail" are no sentence ends.
_SECOND_SENTENCE = re.compile(r"(?<![\w'’.-])[a-z]{4,}[.!?][\"”]?\s+[\"“]?[A-Z]")  # noqa: RUF001
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")
# Neither capitals ("My Neighbor Totoro") nor a lone numeral ("type I") are a first person.
_FIRST_PERSON = re.compile(
    r"\b(?:I['’](?:m|ve|d|ll)|I (?:am|was|have|had|do|did|will|would|can|could|feel|felt|like|love|want)"  # noqa: RUF001
    r"|my|me|myself|we|our|ours|ourselves)\b"
)
# In small letters only, since titles may say so: "The Day After Tomorrow".
_RELATIVE_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|(?:last|next|this) (?:night|morning|afternoon|evening|weekend|week|month"
    r"|year|spring|summer|autumn|fall|winter|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day))\b"
)


class Worded(NamedTuple):
    """A fact of an answer.

    Attributes:
        label: How messages name it, for example ``fact 3``.
        fact: The fact.
    """

    label: str
    fact: Fact


def fact_rules(
    subject: Unit,
    facts: Callable[[Case[Any, Any]], Iterable[Worded]],
    name: Callable[[Any], str],
    limits: Callable[[Any], FactLimits],
) -> tuple[Rule, ...]:
    """The wording rules of a unit.

    Args:
        subject: The unit.
        facts: Finds the facts of a case.
        name: Finds the person's name in a task.
        limits: Finds the sizes of facts in a task.
    """

    def each(find: Callable[[Worded, str, FactLimits], Iterable[str]]) -> Check:
        def check(case: Case[Any, Any]) -> Iterator[str]:
            person, sizes = name(case.task), limits(case.task)
            for worded in facts(case):
                yield from find(worded, person, sizes)

        check.__name__ = find.__name__
        return check

    return tuple(rule(subject, says)(each(find)) for says, find in _RULES)


def begins_with_name(worded: Worded, name: str, _: FactLimits) -> Iterator[str]:
    """Whether the sentence begins with the person's name."""
    if not starts_with_name(worded.fact.text, name):
        yield f"{worded.label} must begin with the name {name!r}, but is {worded.fact.text!r}"


def third_person(worded: Worded, _: str, __: FactLimits) -> Iterator[str]:
    """Whether the sentence is told of the person, not by them."""
    found = _FIRST_PERSON.search(_QUOTED.sub("", worded.fact.text))
    if found:
        yield f"{worded.label} must be told in the third person, but says {found[0]!r}: {worded.fact.text!r}"


def one_sentence(worded: Worded, _: str, __: FactLimits) -> Iterator[str]:
    """Whether the text is one sentence on one line."""
    text = worded.fact.text
    if not _SENTENCE_END.search(text):
        yield f"{worded.label} must be a sentence that ends with a full stop, but is {text!r}"
    elif "\n" in text or _SECOND_SENTENCE.search(text):
        yield f"{worded.label} must be one single sentence, but is {text!r}"


def lasting_time(worded: Worded, _: str, __: FactLimits) -> Iterator[str]:
    """Whether the sentence can be understood on any other day."""
    found = _RELATIVE_TIME.search(_QUOTED.sub("", worded.fact.text))
    if found:
        yield f"{worded.label} must give a date or leave the time out, but says {found[0]!r}: {worded.fact.text!r}"


def fact_words(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    """Whether the sentence is neither too short nor too long."""
    count = len(worded.fact.text.split())
    if count not in limits.words:
        yield f"{worded.label} must have {limits.words} words, but has {count}: {worded.fact.text!r}"


def keyword_count(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    """Whether there are as many keywords as asked for."""
    if len(worded.fact.keywords) not in limits.keywords:
        yield f"{worded.label} must have {limits.keywords} keywords, but has {len(worded.fact.keywords)}"


def keyword_words(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    """Whether each keyword is as short as asked for."""
    for keyword in worded.fact.keywords:
        count = len(keyword.split())
        if count not in limits.keyword_words:
            yield f"{worded.label}: keyword {keyword!r} must have {limits.keyword_words} words, but has {count}"


def keywords_occur(worded: Worded, _: str, __: FactLimits) -> Iterator[str]:
    """Whether each keyword occurs in the sentence."""
    for keyword in worded.fact.keywords:
        if keyword and not occurs(keyword, worded.fact.text):
            yield f"{worded.label}: keyword {keyword!r} must occur word for word in {worded.fact.text!r}"


def keywords_distinct(worded: Worded, _: str, __: FactLimits) -> Iterator[str]:
    """Whether no keyword is there twice."""
    for keyword in repeated(worded.fact.keywords):
        yield f"{worded.label}: keyword {keyword!r} must be given once only"


def keywords_tell(worded: Worded, name: str, __: FactLimits) -> Iterator[str]:
    """Whether keywords say more than the person's name, which every fact has."""
    known = set(folded(name).split())
    for keyword in worded.fact.keywords:
        if keyword and known.issuperset(folded(keyword).split()):
            yield f"{worded.label}: keyword {keyword!r} is only the person's name, which tells nothing of the fact"


_RULES: tuple[tuple[str, Callable[[Worded, str, FactLimits], Iterable[str]]], ...] = (
    ("Each fact begins with the person's name.", begins_with_name),
    ("Each fact is told in the third person.", third_person),
    ("Each fact is one sentence with a full stop.", one_sentence),
    ("No fact has time words that depend on the day it is read.", lasting_time),
    ("Each fact keeps to the length asked for.", fact_words),
    ("Each fact has the number of keywords asked for.", keyword_count),
    ("Each keyword keeps to the length asked for.", keyword_words),
    ("Each keyword occurs word for word in its fact.", keywords_occur),
    ("No fact has a keyword twice.", keywords_distinct),
    ("No keyword is only the person's name.", keywords_tell),
)


def starts_with_name(text: str, name: str) -> bool:
    """Whether a text begins with a name as a whole word; ``Ana's`` does, ``Anabel`` does not."""
    return text.startswith(name) and not text[len(name) : len(name) + 1].isalnum()


def folded(text: str) -> str:
    """Casefolded with single spaces: the form in which the reward looks for keywords."""
    return " ".join(text.casefold().split())


def occurs(keyword: str, text: str) -> bool:
    """Whether a text contains a keyword, as the reward sees it."""
    return folded(keyword) in folded(text)


def repeated(texts: Iterable[str]) -> Iterator[str]:
    """The texts that say the same as an earlier one (`normalised`), in order."""
    seen = set()
    for text in texts:
        key = normalised(text)
        if key in seen:
            yield text
        seen.add(key)

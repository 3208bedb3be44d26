"""What a rule is, and what rules share: similarity, invented names, wording, and whether a text says something."""
# ruff: noqa: D103 - decorators say in a sentence what each rule demands

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import filterfalse
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from deltamem.embedding import Embedder
from deltamem.memory import Keyword, alternatives, wordings
from deltamem.text import Kind, content_stems, content_words, is_pair, normalised, salient_items, stem, words
from rewards.fidelity import folded, folded_keyword, found_in
from synth.config import FactLimits
from synth.records import Fact, KeywordOrigin, Record
from synth.tasks import RuleVerdict, RuleViolation, Unit

TaskT = TypeVar("TaskT", covariant=True)
SubjectT = TypeVar("SubjectT", covariant=True)


class Similarity(Protocol):
    """Cosine similarities of texts; the embedding model behind it is the caller's choice."""

    def between(self, texts: list[str], others: list[str]) -> list[list[float]]:
        """A row for each of `texts` with its similarity, -1 to 1, to each of `others`."""
        ...


@dataclass(frozen=True, slots=True)
class Case(Generic[TaskT, SubjectT]):
    """What a rule judges: an answer against its task, a life against the `Shape`, a labelled session against nothing."""

    task: TaskT
    answer: SubjectT
    similarity: Similarity | None = None


Check = Callable[[Case[Any, Any]], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named check: ``<subject>.<what is demanded>``, the demand in one sentence, a sentence for each violation."""

    name: str
    description: str
    check: Check


class RuleSet:
    """The rules of one subject (a unit, ``life`` or ``session``), in the order in which they are defined."""

    def __init__(self, subject: Unit | str) -> None:
        self._subject = subject
        self.rules: tuple[Rule, ...] = ()

    def rule(self, description: str, *, name: str = "") -> Callable[[Check], Rule]:
        """Make a rule of a check; its name after the subject is the function's by default."""

        def add(check: Check) -> Rule:
            made = Rule(f"{self._subject}.{name or check.__name__}", description, check)
            self.rules += (made,)
            return made

        return add

    def add_wording(self, facts: Callable[[Case[Any, Any]], Iterable[Worded]], *, limits: str = "limits") -> None:
        """Add the rules for the wording of memory sentences.

        `facts` finds the facts of a case, `limits` is the field of the task with their sizes.
        """
        for description, find in _WORDING:

            def check(case: Case[Any, Any], find: WordingCheck = find) -> Iterator[str]:
                for worded in facts(case):
                    yield from find(worded, case.task.fixed.name, getattr(case.task, limits))

            self.rule(description, name=find.__name__)(check)


def judge(rules: Iterable[Rule], case: Case[Any, Any]) -> RuleVerdict:
    """Check a case against rules, in their order."""
    applied = tuple(rules)
    violations = tuple(RuleViolation(rule.name, message) for rule in applied for message in rule.check(case))
    return RuleVerdict(tuple(rule.name for rule in applied), violations)


class EmbedderSimilarity:
    """Cosine similarities (`synth.validators.base.Similarity`) of an embedder's vectors; calls may come from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        """Take an embedder; both sides of a comparison are embedded as documents, because neither is a search query."""
        self._embedder = embedder

    def between(self, texts: list[str], others: list[str]) -> list[list[float]]:
        """See `Similarity`. Neither side is a search query, so both are embedded as documents."""
        if not texts or not others:
            return [[] for _ in texts]
        vectors = self._embedder.documents([*texts, *others])
        # An embedder behind an endpoint need not keep to unit length; a zero vector is similar to nothing.
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        rows: list[list[float]] = np.clip(unit[: len(texts)] @ unit[len(texts) :].T, -1, 1).tolist()
        return rows


# Two capitalised words or more; "I" after a word is no name.
_CAPITALS = re.compile(r"\b[^\W\d_a-z]\w*(?:[- ](?!I\b)[^\W\d_a-z]\w*)+")


def invented_names(texts: Iterable[str], told: Record) -> Iterator[str]:
    """Names with a word that occurs nowhere in what was told, each once, casefolded."""
    known = _told_stems(told)
    for name in _names(texts):
        if any(stem(word) not in known for word in words(name)):
            yield name


def invented_full_names(texts: Iterable[str], told: Record) -> Iterator[str]:
    """Names of two words or more, none of which occurs in what was told, casefolded.

    Far more lenient than `invented_names`, for texts in which words like Netflix, Christmas or Mom do no harm.
    """
    material = ""
    for text in texts:
        runs = [run.casefold() for run in _CAPITALS.findall(text)]
        # Most runs are known, which is cheaper to see in the plain text than by words.
        material = material or (told.model_dump_json().casefold() if runs else "")
        if any(not any(word in material for word in words(run)) for run in runs):
            yield from (name for name in _names([text]) if " " in name and not _told_stems(told) & content_stems(name))


def _told_stems(told: Record) -> frozenset[str]:
    return content_stems(told.model_dump_json().replace("\\n", " "))


def _names(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(item.text for text in texts for item in salient_items(text) if item.kind is Kind.NAME))


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
    """A fact of an answer, and how messages name it, for example ``fact 3``."""

    label: str
    fact: Fact


def numbered(label: str, facts: Iterable[Fact]) -> Iterator[Worded]:
    """Facts with their number, from 1, in their labels."""
    return (Worded(f"{label} {number}", fact) for number, fact in enumerate(facts, start=1))


WordingCheck = Callable[[Worded, str, FactLimits], Iterable[str]]
"""Is told a fact, the person's name and the sizes of facts."""
_WORDING: list[tuple[str, WordingCheck]] = []


def _wording(description: str) -> Callable[[WordingCheck], WordingCheck]:
    def add(check: WordingCheck) -> WordingCheck:
        _WORDING.append((description, check))
        return check

    return add


@_wording("Each fact begins with the person's name.")
def begins_with_name(worded: Worded, name: str, _: FactLimits) -> Iterator[str]:
    if not starts_with_name(worded.fact.text, name):
        yield f"{worded.label} must begin with the name {name!r}, but is {worded.fact.text!r}"


@_wording("Each fact is told in the third person.")
def third_person(worded: Worded, *_: object) -> Iterator[str]:
    if found := _FIRST_PERSON.search(_QUOTED.sub("", worded.fact.text)):
        yield f"{worded.label} must be told in the third person, but says {found[0]!r}: {worded.fact.text!r}"


@_wording("Each fact is one sentence with a full stop.")
def one_sentence(worded: Worded, *_: object) -> Iterator[str]:
    text = worded.fact.text
    if not _SENTENCE_END.search(text):
        yield f"{worded.label} must be a sentence that ends with a full stop, but is {text!r}"
    elif "\n" in text or _SECOND_SENTENCE.search(text):
        yield f"{worded.label} must be one single sentence, but is {text!r}"


@_wording("No fact has time words that depend on the day it is read.")
def lasting_time(worded: Worded, *_: object) -> Iterator[str]:
    if found := _RELATIVE_TIME.search(_QUOTED.sub("", worded.fact.text)):
        yield f"{worded.label} must give a date or leave the time out, but says {found[0]!r}: {worded.fact.text!r}"


@_wording("Each fact keeps to the length asked for.")
def fact_words(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    count = len(worded.fact.text.split())
    if count not in limits.words:
        yield f"{worded.label} must have {limits.words} words, but has {count}: {worded.fact.text!r}"


@_wording("Each fact has the number of keywords asked for.")
def keyword_count(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    if len(worded.fact.keywords) not in limits.keywords:
        yield f"{worded.label} must have {limits.keywords} keywords, but has {len(worded.fact.keywords)}"


@_wording("Each keyword keeps to the length asked for.")
def keyword_words(worded: Worded, _: str, limits: FactLimits) -> Iterator[str]:
    for keyword in wordings(worded.fact.keywords):
        count = len(keyword.split())
        if count not in limits.keyword_words:
            yield f"{worded.label}: keyword {keyword!r} must have {limits.keyword_words} words, but has {count}"


@_wording("Each keyword occurs word for word in its fact, in one of its wordings.")
def keywords_occur(worded: Worded, *_: object) -> Iterator[str]:
    for keyword in worded.fact.keywords:
        if keyword and not occurs(keyword, worded.fact.text):
            yield f"{worded.label}: keyword {keyword!r} must occur word for word in {worded.fact.text!r}"


@_wording("No fact has a keyword twice.")
def keywords_distinct(worded: Worded, *_: object) -> Iterator[str]:
    for keyword in repeated(wordings(worded.fact.keywords)):
        yield f"{worded.label}: keyword {keyword!r} must be given once only"


@_wording("No keyword is only the person's name.")
def keywords_tell(worded: Worded, name: str, _: FactLimits) -> Iterator[str]:
    known = set(folded(name).split())
    for keyword in wordings(worded.fact.keywords):
        if keyword and known.issuperset(folded(keyword).split()):
            yield f"{worded.label}: keyword {keyword!r} is only the person's name, which tells nothing of the fact"


def starts_with_name(text: str, name: str) -> bool:
    """Whether a text begins with a name as a whole word; ``Ana's`` does, ``Anabel`` does not."""
    return text.startswith(name) and not text[len(name) : len(name) + 1].isalnum()


MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DATE = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b")
_DAY_OR_MONTH = re.compile(rf"\b(?:\d{{1,2}} )?(?:{'|'.join(MONTHS)}) \d{{4}}\b")


def day(value: date) -> str:
    """A date in words, for example ``4 May 2026``."""
    return f"{value.day} {MONTHS[value.month - 1]} {value.year}"


def dates_in(text: str) -> list[date]:
    """The dates that a text names in full, such as ``4 May 2026``; those that no calendar has are left out."""
    found = []
    for number, month, year in _DATE.findall(text):
        with suppress(ValueError):
            found.append(date(int(year), MONTHS.index(month) + 1, int(number)))
    return found


def without_dates(text: str) -> str:
    """A text without the days and months that it names with their year."""
    return _DAY_OR_MONTH.sub("", text)


NEAR = 0.5
"""Dice coefficient of the content stems from which two memories are rivals: easily taken for one another."""


def near(stems: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two memories, given the content stems that tell them from other people's, share most of their words."""
    shared = len(stems & others)
    return shared > 0 and 2 * shared >= NEAR * (len(stems) + len(others))


def rivals(stems: frozenset[str], bank: Mapping[str, frozenset[str]], own: str | None) -> int:
    """How many memories of a bank are `near` one. `own` is its key in the bank, if it is there."""
    # Most pairs share nothing, and there are many.
    alike = sum([near(stems, others) for others in filterfalse(stems.isdisjoint, bank.values())])
    return alike - (own is not None and own in bank and near(stems, bank[own]))


@lru_cache(maxsize=32_768)
def memory_stems(text: str, name: str) -> frozenset[str]:
    """The content stems of a memory, less those of the person's name, which all of them share."""
    return content_stems(text) - content_stems(name)


def keyword_origins(keywords: Iterable[Keyword], previous_text: str, *, relative: bool) -> tuple[KeywordOrigin, ...]:
    """Where a manager takes each keyword from; `relative`: dates are only said in relation to the day of the session."""
    return tuple(
        KeywordOrigin.FROM_MEMORY
        if previous_text and occurs(keyword, previous_text)
        else KeywordOrigin.FROM_DATE
        if relative and any(map(dates_in, alternatives(keyword)))
        else KeywordOrigin.SAID
        for keyword in keywords
    )


def repeated(texts: Iterable[str]) -> Iterator[str]:
    """The texts that say the same as an earlier one (`normalised`), in order."""
    seen = set()
    for text in texts:
        key = normalised(text)
        if key in seen:
            yield text
        seen.add(key)


# --- whether a text says something: word for word, by its stems, or over the turns of a conversation ----------------------


def occurs(keyword: Keyword, text: str) -> bool:
    """Whether a text contains a keyword, as the reward sees it."""
    return found_in(folded_keyword(keyword), folded(text))


def wording_in(keyword: Keyword, text: str) -> str:
    """The alternative of a keyword that a text contains; the first one if it contains none."""
    return next((wording for wording in alternatives(keyword) if occurs(wording, text)), alternatives(keyword)[0])


class Utterance:
    """A text as it is compared: its folded form and its stems, each made when first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def folded(self) -> str:
        """See `rewards.fidelity.folded`."""
        return folded(self.text)

    @cached_property
    def sequence(self) -> tuple[str, ...]:
        """The stems of the content words, in order."""
        return tuple(map(stem, content_words(self.text)))

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of the content words."""
        return frozenset(self.sequence)


# Rules share nothing but the case; those of a dialogue, and those of its session later, ask for the same texts.
@lru_cache(maxsize=8_192)
def utterance(text: str) -> Utterance:
    """The text in its compared form."""
    return Utterance(text)


SUPPORT = 0.5
"""Share of a label's content words, or of those of its keywords, that are said in a session from which it can be told.

Measured, with names and numbers as `Utterances.lacking` has them: 98% of the 162 hand labels of eval/development can be told
(91% from the person alone), 98% of the 560 points of HaluMem's complete user (78%), all of 7,758 labels of the offline
writers. From another session can be told 3% (development, other people), 32% (HaluMem, the same user, whose assistant speaks
at length of the same things), and 4 to 12% (offline, the same person). It does not see what the user passes over: 98% of
HaluMem's 126 interference points can be told as well.
"""


class Utterances:
    """What has been said by which turn, by one speaker or in all; turns count from 1."""

    def __init__(self, texts: Sequence[str], name: str) -> None:
        self._utterances = [utterance(text) for text in texts]
        self._name = utterance(name).stems
        self._first: dict[str, int] = {}
        for turn in range(len(texts), 0, -1):
            self._first.update(dict.fromkeys(self._utterances[turn - 1].stems, turn))

    def needed(self, text: str) -> frozenset[str]:
        """The stems that have to be said so that a text is."""
        return utterance(text).stems - self._name

    def stem_turn(self, wanted: str) -> int | None:
        """In which turn a stem is first said."""
        return self._first.get(wanted)

    def turn(self, wording: str) -> int | None:
        """By which turn a phrase is said; None if it never is."""
        needed = self.needed(wording)
        if not needed:
            return 1 if utterance(wording).stems else self.verbatim_turn([wording])
        turns = [self._first.get(wanted) for wanted in needed]
        if None not in turns:
            return max(turn for turn in turns if turn is not None)
        return self.verbatim_turn([wording])

    def verbatim_turn(self, keywords: Iterable[Keyword]) -> int | None:
        """The first turn in which one utterance has all keywords word for word."""
        wanted = [folded_keyword(keyword) for keyword in keywords]
        for turn, spoken in enumerate(self._utterances, start=1):
            if all(any(stands_in(wording, spoken.folded) for wording in keyword) for keyword in wanted):
                return turn
        return None

    def lacking(self, text: str, keywords: Sequence[Keyword], known: str = "", turn: int = sys.maxsize) -> list[str]:
        """The words for want of which a label cannot be told from what is said by a turn; none if it can.

        Said have to be the share `SUPPORT` of the label's content words, or of those of its keywords, and all of its names
        and numbers. What the memory that it is about has `known` may be left unsaid, and so may dates with their year, which
        are computed. A label that only repeats what is known is told by its keywords.
        """
        said = {found for found, first in self._first.items() if first <= turn}
        text, old = without_dates(text), utterance(known).stems
        fresh = self.needed(text) - old
        due = [keyword for keyword in keywords if not occurs(keyword, known)] or keywords
        telling = frozenset[str]()
        for keyword in due:
            needed = (self.needed(without_dates(wording)) for wording in alternatives(keyword))
            telling |= min(needed, key=lambda stems: len(stems - said))
        exact = set[str]()
        for kind, item in salient_items(text):
            stems = self.needed(item) - old
            # People are called by their first names, or by their last.
            if said.isdisjoint(stems) if kind is Kind.NAME else kind is Kind.NUMBER and not _FREE.fullmatch(item):
                exact |= stems - said
        told = [len(stems & said) >= SUPPORT * len(stems) for stems in (fresh, telling) if stems]
        unsaid = exact if not told or any(told) else (exact | fresh | telling) - said
        return [word for word in dict.fromkeys(content_words(" ".join((text, *wordings(due))))) if stem(word) in unsaid]


@lru_cache(maxsize=256)
def utterances_of(texts: tuple[str, ...], name: str) -> Utterances:
    """What is said in texts, one a turn; see `Utterances`."""
    return Utterances(texts, name)


_FREE = re.compile(r"[012]|(?:19|20)\d\d")
"""Numbers that speech has other words for (nothing, a, both), and years, which are computed."""
_DENIED = re.compile(r"\W*(?:no|nope|nah|not|never|wrong|actually)\b", re.IGNORECASE)


def heard(user: Sequence[str], assistant: Sequence[str], name: str) -> Utterances:
    """What the user says or accepts by each turn: the assistant's words before it count if it begins with no 'no'."""
    turns = [text if _DENIED.match(text) else f"{said}\n{text}" for text, said in zip(user, ("", *assistant), strict=False)]
    return utterances_of(tuple(turns), name)


def uses(text: str, keyword: str, name: str) -> bool:
    """Whether a text has a keyword word for word, or the stems of its content words one after the other."""
    spoken, known = utterance(text), utterance(name).stems
    wanted = tuple(found for found in utterance(keyword).sequence if found not in known)
    if not spoken.stems.issuperset(wanted):
        return False
    if stands_in(folded(keyword), spoken.folded):
        return True
    if len(wanted) == 1 < len(keyword.split()):
        return False  # what is left of "one in May" stands in "one way" too
    places = range(len(spoken.sequence) - len(wanted) + 1) if wanted else ()
    return any(spoken.sequence[place : place + len(wanted)] == wanted for place in places)


def stands_in(phrase: str, text: str) -> bool:
    """Whether a text contains a phrase that is no part of longer words; both are folded."""
    begin = text.find(phrase)
    while begin >= 0:
        if not _within_word(text, begin) and not _within_word(text, begin + len(phrase)):
            return True
        begin = text.find(phrase, begin + 1)
    return False


def _within_word(text: str, place: int) -> bool:
    around = text[max(0, place - 1) : place + 1]
    return len(around) == 2 and around.isalnum() and not is_pair(around)

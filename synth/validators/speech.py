"""Whether a text says something: word for word, by its stems, or over the turns of a speaker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

from deltamem.text import content_words, is_pair, stem
from rewards.fidelity import folded


def occurs(keyword: str, text: str) -> bool:
    """Whether a text contains a keyword, as the reward sees it."""
    return folded(keyword) in folded(text)


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


class Utterances:
    """What one speaker has said by which turn; turns count from 1."""

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

    def turn(self, keyword: str) -> int | None:
        """By which turn a keyword is said; None if it never is."""
        needed = self.needed(keyword)
        if not needed:
            return 1 if utterance(keyword).stems else self.verbatim_turn([keyword])
        turns = [self._first.get(wanted) for wanted in needed]
        if None not in turns:
            return max(turn for turn in turns if turn is not None)
        return self.verbatim_turn([keyword])

    def verbatim_turn(self, keywords: Iterable[str]) -> int | None:
        """The first turn in which one utterance has all keywords word for word."""
        wanted = [folded(keyword) for keyword in keywords]
        for turn, spoken in enumerate(self._utterances, start=1):
            if all(stands_in(keyword, spoken.folded) for keyword in wanted):
                return turn
        return None

    def missing(self, keyword: str, turn: int) -> list[str]:
        """The content words of a keyword whose stems are not said by a turn, as the keyword has them."""
        needed = self.needed(keyword)
        return [
            word
            for word in content_words(keyword)
            if (key := stem(word)) in needed and not 1 <= self._first.get(key, 0) <= turn
        ]


@lru_cache(maxsize=256)
def utterances_of(texts: tuple[str, ...], name: str) -> Utterances:
    """What a speaker has said; see `Utterances`."""
    return Utterances(texts, name)


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

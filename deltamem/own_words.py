"""Who says what in a session, and whether a fact is in the person's own words.

Small models, trained or not, write more than the person said, and take the other's words for theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

from deltamem.dedup import Adjustment, Corrected
from deltamem.memory import Event, MemoryState, Operation
from deltamem.sessions import CONTROL_MARK, Role, Session
from deltamem.text import (
    MONTHS,
    STOP_WORDS,
    WEEKDAYS,
    Kind,
    content_stems,
    marked_words,
    normalised,
    salient_items,
    stem,
    words,
)

LONGEST_FACT = 400  # Characters
_SPEAKER = re.compile(r"([^\W\d_][^\s:]{0,29}(?: [^\s:]{1,30}){0,3}): ")  # Up to four words


class NamedTurn(NamedTuple):
    """One turn as the model sees it."""

    speaker: str
    text: str
    own: bool  # Whether the owner of the memory says it


class NamedDialogue(NamedTuple):
    """The turns of a session with their speakers."""

    person: str
    other: str  # "assistant", or the name of the other person
    utterances: tuple[NamedTurn, ...]

    @classmethod
    def of(cls, session: Session) -> NamedDialogue:
        """In a conversation of two people all turns begin with their speaker's name (``Ana: Look!``), which is taken off.

        Anything may stand before a colon ("My address: ..."), so the names have to differ, and the owner's has to be the
        person's name unless both come again.
        """
        names: dict[Role, list[str]] = {"user": [], "assistant": []}
        for turn in session.dialogue:
            found = _SPEAKER.match(turn.content)
            names[turn.role].append(found[1] if found else "")
        person, other = one_line(session.person_name), "assistant"
        named = {role: of[0] for role, of in names.items() if of and of[0] and len(set(of)) == 1}
        mine, theirs = named.get("user", ""), named.get("assistant", "")
        of_person = bool(mine) and (begins_with(person, mine) or begins_with(mine, person))
        come_again = len(names["user"]) > 1 and len(names["assistant"]) > 1
        if not (of_person or (mine and theirs and come_again)) or normalised(mine) == normalised(theirs):
            named = {}
        elif theirs and normalised(theirs) != "assistant":
            other = one_line(theirs)
        return cls(
            person,
            other,
            tuple(
                NamedTurn(
                    person if turn.role == "user" else other,
                    one_line(turn.content[len(named[turn.role]) + 2 :] if turn.role in named else turn.content),
                    turn.role == "user",
                )
                for turn in session.dialogue
            ),
        )

    def lines(self) -> str:
        """One utterance a line; those of the person are numbered."""
        numbers = count(1)
        return "\n".join(
            f"[{next(numbers)}] {speaker}: {text}" if own else f"{speaker}: {text}" for speaker, text, own in self.utterances
        )


def one_line(text: str) -> str:
    """So that no text can pose as another line, or as a mark of a chat server."""
    return " ".join(CONTROL_MARK.sub("< ", text).split())


def begins_with(text: str, name: str) -> bool:
    """Whether a text begins with a name, as whole words."""
    sought = words(normalised(name))
    return bool(sought) and words(normalised(text))[: len(sought)] == sought


class OwnWords:
    """Whether a fact was said by the person, by its words.

    Enough of them must stand in the person's own lines, or fewer there (or a number of theirs) and enough in the questions
    that they answer. What they say yes to, and what the other person of a conversation of two says to them, counts as
    theirs. Whatever the words, numbers must have been said, and names with a mark such as C#. Dates do not count, as they
    are reckoned, nor does the person's name. In conversations that are not English only numbers and marks are looked at,
    for facts may be written in another language than they are told. Of the 152 labels of the development set 8 are refused
    at .5.
    """

    def __init__(self, dialogue: NamedDialogue) -> None:
        """Take the lines apart."""
        self._person, self._other = dialogue.person, dialogue.other
        self._name = content_stems(dialogue.person)
        own = [one.text for one in dialogue.utterances if one.own]
        self._sentences = [
            said
            for text in own
            for said in _SENTENCE.split(text)
            if len(said) <= LONGEST_FACT and not said.endswith("?") and FIRST_PERSON.search(said)
        ]
        taken_up = list(_taken_up(dialogue))
        own += [said for said, agrees in taken_up if agrees]
        if dialogue.other != "assistant":
            others = [said for one in dialogue.utterances if not one.own for said in _SENTENCE.split(one.text)]
            own += filter(self._is_to, others)
        self._marked = frozenset[str]().union(*map(_marked_names, [*own, *(said for said, _ in taken_up)]))
        self._own = frozenset[str]().union(*map(content_stems, own))
        self._answered = self._own.union(*(content_stems(said) for said, _ in taken_up))
        self._all = frozenset[str]().union(*(content_stems(one.text) for one in dialogue.utterances))
        every = [word.casefold() for one in dialogue.utterances for word in words(one.text)]
        grammar = sum(word in STOP_WORDS for word in every)
        self._english = len(every) < _FEW_WORDS or grammar >= _LEAST_GRAMMAR * len(every)

    def _is_to(self, sentence: str) -> bool:
        found = {word.casefold() for word in words(sentence)}
        return not found.isdisjoint({"you", "your"}) or not self._name.isdisjoint(map(stem, found))

    def support(self, fact: str, known: str = "") -> tuple[float, float]:
        """Share of a fact's words that the person says, and says or answers; a memory that it changes says its words too."""
        told = content_stems(_DATE_WORDS.sub(" ", fact)) - self._name
        if not told:  # A date alone is a fact; a name and a pronoun alone ("She does.") are none
            share = float(bool(content_stems(fact) - self._name))
            return share, share
        had = content_stems(known)
        return len(told & (self._own | had)) / len(told), len(told & (self._answered | had)) / len(told)

    def holds(self, fact: str, least: float, known: str = "") -> bool:
        """Whether a fact has enough support."""
        own, anybody = self.support(fact, known)
        numbers = {item.text for item in salient_items(_DATE_WORDS.sub(" ", fact)) if item.kind is Kind.NUMBER}
        if least and not numbers <= self._all | self._name | content_stems(known):
            return False
        if least and not _marked_names(fact) <= self._marked | _marked_names(known):
            return False
        some = own >= _LEAST_OWN * least and (anybody >= least or not numbers.isdisjoint(self._own))
        return own >= least or some or not self._english

    def sentence(self, fact: str, told: Iterable[str]) -> str | None:
        """What the person says of themselves that a fact has most words of, and that no other fact has told, if anything.

        A model that embroiders what was said has read something after all, and the person's own words are true.
        """
        sought = content_stems(_DATE_WORDS.sub(" ", fact)) - self._name
        known = frozenset[str]().union(*map(content_stems, told))
        best, most = None, 0
        for said in self._sentences:
            stems = content_stems(said)
            if len(stems & sought) > most and 2 * len(stems & known) < len(stems):
                best, most = said, len(stems & sought)
        return best

    def quote(self, said: str) -> str:
        """A sentence of the person as a memory."""
        return f'{self._person}{SAID}{said}"'

    def quotations(self, invented: Iterable[str], kept: Iterable[str]) -> list[str]:
        """In place of facts that were made up, what the person says of them, each once.

        Args:
            invented: What the model wrote and the person did not say.
            kept: What is written, which no quotation repeats.
        """
        told, new = list(kept), list[str]()
        for fact in invented:
            if (said := self.sentence(fact, told)) is not None:
                told.append(self.quote(said))
                new.append(told[-1])
        return new

    def refusal(self, fact: str, least: float, known: str = "") -> Adjustment | None:
        """Why a fact is not kept as a model wrote it, if so.

        Args:
            fact: What the model wrote.
            least: Share of its words that must have been said; 0 asks for none.
            known: The memory that it changes.
        """
        if self._is_of_other(fact):
            return Adjustment.OTHER_SUBJECT
        if self._is_request(fact):
            return Adjustment.REQUEST
        return Adjustment.UNSUPPORTED_TEXT if least and not self.holds(fact, least, known) else None

    def _is_of_other(self, fact: str) -> bool:
        """Whether a sentence begins with the other person's name; of Ana and Ana Maria the longer name counts."""
        if self._other == "assistant" or not begins_with(fact, self._other):
            return False
        return not (begins_with(self._person, self._other) and begins_with(fact, self._person))

    def _is_request(self, fact: str) -> bool:
        """Whether a sentence only tells what the person asks for in the conversation: small models write that down too."""
        verb = fact.removeprefix(self._person).strip().partition(" ")[0].casefold()
        return verb in _REQUESTS and stem(verb) not in self._own  # "I asked for a raise" is a fact


def keep_supported(
    operations: Sequence[Operation],
    own_words: OwnWords,
    least: float,
    state: MemoryState,
    stored: Callable[[str], bool],
) -> Corrected:
    """Leave out what the person did not say; what they said of it is added in their own words.

    An UPDATE that is left out changes nothing, so no memory is lost to what a model made up.

    Args:
        operations: Valid operations (see `deltamem.memory.check`).
        own_words: Of the session.
        least: Share of a text's words that must have been said, see `OwnWords`.
        state: The memories before the session.
        stored: Whether a memory has or had a text, which is for `deltamem.dedup.drop_known` to judge.

    Returns:
        What remains, in order, and then the quotations.
    """
    notes: Counter[Adjustment] = Counter()
    kept: list[Operation] = []
    invented: list[str] = []
    for operation in operations:
        target = operation.target_memory_id
        known = state[target].text if target else ""
        judged = operation.event is not Event.NONE and not stored(operation.text)
        if judged and (refusal := own_words.refusal(operation.text, least, known)) is not None:
            notes[refusal] += 1
            if refusal is Adjustment.UNSUPPORTED_TEXT:
                invented.append(operation.text)
        else:
            kept.append(operation)
    quotations = own_words.quotations(invented, [operation.text for operation in kept])
    return Corrected((*kept, *(Operation(Event.ADD, text) for text in quotations)), notes)


def _marked_names(text: str) -> frozenset[str]:
    """The words of a text that the mark at their end makes other names: c#, c++, a-."""
    return frozenset(word for word in marked_words(text) if word[-1] in "#+-" and any(map(str.isalpha, word)))


SAID = ' said: "'
_REQUESTS = frozenset({"asks", "asked", "wonders", "wondered", "thanks", "thanked", "greets", "greeted", "requested"})

_LEAST_OWN = 0.4
"""Of the support that is asked for: what the person's own lines must give where the other's give the rest."""

_FEW_WORDS = 12  # Too few to tell a language by
_LEAST_GRAMMAR = 0.25  # Share of English grammar words (`STOP_WORDS`) in English talk; of other languages it is about .1
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_YES = re.compile(
    r"\W*(?:yes|yeah|yep|yup|right|exactly|correct|true|indeed|sure|of course|definitely|i do|i am|i did|i have)\b",
    re.I,
)
FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine|myself|we|us|our|ours)\b", re.IGNORECASE)
_MONTH = "(?:" + "|".join(sorted(MONTHS, key=len, reverse=True)) + ")"
_DAY = r"[0-3]?\d(?:st|nd|rd|th)?"
_DATE_WORDS = re.compile(
    rf"\b(?:{_DAY} (?:of )?{_MONTH}|{_MONTH} {_DAY}|{_MONTH}(?= (?:19|20)\d\d)|{'|'.join(WEEKDAYS)}|(?:19|20)\d\d)\b,?",
    re.IGNORECASE,
)


def _taken_up(dialogue: NamedDialogue) -> Iterator[tuple[str, bool]]:
    """What the other says that the person answers, by the question, or agrees to; and whether they agree."""
    for one, reply in pairwise(dialogue.utterances):
        if not one.own and reply.own:
            agrees = _YES.match(reply.text) is not None
            yield from ((said, agrees) for said in _SENTENCE.split(one.text) if agrees or said.endswith("?"))

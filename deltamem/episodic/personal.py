"""Finding data of a user in what is to be kept of an agent's work. A rule, because a request in a prompt is none.

It errs on the side of finding too much: a lesson that is refused can be learned from another episode, a name that is kept
is told to the next user. What it cannot know: a name that is never written with a capital and in no data of a tool.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from deltamem.episodic.records import AgentTrajectory
from deltamem.prompts import load_prompt
from deltamem.text import STOP_WORDS, Kind, salient_items, stem

MASK = "[user data]"

_EMAIL = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*|[\w.+-]+\s?(?:\(at\)|\[at\]| at )\s?[\w-]+(?:\s?(?:\(dot\)|\[dot\]| dot )\s?[\w-]+)+"
_PHONE = r"(?<!\w)\(?\d{3}\)?[ .-]\d{4}(?!\w)"
_LONG_NUMBER = r"(?<!\w)[+(]{0,2}\d(?:[ .()/-]{0,2}\d){8,}(?!\w)"
_IBAN = r"(?<!\w)[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){3,7}(?:\s?[A-Z0-9]{1,3})?(?!\w)"
_IP = r"(?<!\w)\d{1,3}(?:\.\d{1,3}){3}(?!\w)"
_ZIP = r"(?<!\w)(?:[A-Z]{2}\s+\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[A-Z\d]?\s\d[A-Z]{2})(?!\w)"
_STREET = (
    r"(?<!\w)\d{1,5}[A-Za-z]?\s+(?:[\w'.-]+\s+){0,3}(?i:street|avenue|road|boulevard|lane|apartment|stra(?:ss|ß)e)(?!\w)"
    r"|(?<!\w)\d{1,5}[A-Za-z]?\s+(?:[A-Z][\w'.-]*\s+){1,4}(?:St|Ave|Rd|Blvd|Ln|Dr|Drive|Way|Court|Ct|Place|Pl|Square|Terrace)(?!\w)"
    r"|(?<!\w)[A-ZÄÖÜ]\w+(?:stra(?:ss|ß)e|weg|platz|gasse)\s+\d{1,4}[a-z]?(?!\w)"
    r"|(?<!\w)(?:[Rr]ue|[Vv]ia|[Cc]alle|[Rr]ua)\s+[A-Z]\w+(?:\s+\w+)?,?\s+\d{1,4}(?!\w)"
)
_PATTERNS = re.compile("|".join((_EMAIL, _IBAN, _LONG_NUMBER, _PHONE, _IP, _ZIP, _STREET)))
_DIGITS = re.compile(r"\d(?:[ .,()/-]{0,2}\d){3,}")
_TOKEN = re.compile(r"[^\W_](?:[\w-]*[^\W_])?")
_SAYS_NAME = re.compile(
    r"\b(?:my name(?: is|'s)|name's|name is|call me|on behalf of|under the name(?: of)?)"
    r"\s+([^\W\d_][\w'-]*(?:\s+[^\W\d_][\w'-]*)?)",
    re.IGNORECASE,
)
# Words in the keys of tool data: whatever stands under them is about somebody. A bare "name" only beside another of them.
_KEY_PARTS = frozenset(
    """firstname lastname surname fullname username nickname first last middle guest passenger contact recipient customer
    user users client patient holder person member traveler traveller attendee email mail phone mobile telephone tel fax
    address address1 address2 street zip zipcode postal postcode birth birthday birthdate dob passport licence license ssn
    card cvv iban account token password secret key login owner gender""".split()  # noqa: SIM905
)
_ID_KEY = re.compile(r"(?:^|_)(?:ids?|uuid|number|reference|code|confirmation)$")
# Words that are no names although they have a capital: where requests begin, in addresses, before names.
_STARTERS = frozenset(
    """please can could would will hello hi hey dear good great fine sure okay ok yes no not thanks thank sorry actually also
    and but then now next again maybe perhaps first finally find search show list give get make book reserve order cancel
    change update add remove delete check help tell send use set open close move buy pay return look let try need want what
    when where which who why how is are do does did today tomorrow tonight yesterday street avenue road lane drive square
    place court way apartment suite floor city state north south east west mr mrs ms dr true false null none""".split()  # noqa: SIM905
)


class PersonalData:
    """What is known of the user of one trajectory."""

    def __init__(self, trajectory: AgentTrajectory, vocabulary: Sequence[str] = ()) -> None:
        """Collect it.

        Args:
            trajectory: What the user said and the tools were given and returned.
            vocabulary: Names that belong to the agent's work and may be kept: products, tools, brands.
        """
        ordinary = _ordinary(trajectory, vocabulary)
        terms = {_folded(term) for term in _of_data(trajectory.data)}
        for term in tuple(terms):  # a full name or an address is also known by its parts
            terms |= {word for word in _TOKEN.findall(term) if len(word) > 2 and stem(word) not in ordinary}
        for turn in trajectory.turns:
            terms |= set(_of_user(turn.user, ordinary))
        allowed = {_folded(word) for word in vocabulary}
        self._terms = _matching({term for term in terms if len(term) > 1} - allowed - STOP_WORDS)
        said = [turn.user for turn in trajectory.turns]
        self._numbers = {
            _only_digits(match[0]) for text in [*said, *_of_data(trajectory.data)] for match in _DIGITS.finditer(text)
        } - allowed

    def find(self, text: str) -> list[str]:
        """What of a text is, or looks like, data of a user."""
        seen = _seen(text)
        return [seen[begin:end] for begin, end in self._spans(seen)]

    def mask(self, text: str) -> tuple[str, int]:
        """A text without data of a user, and in how many places it was."""
        seen = _seen(text)
        spans = self._spans(seen)
        if not spans:
            return text, 0
        pieces, end = [], 0
        for begin, until in spans:
            pieces += [seen[end:begin], MASK]
            end = until
        return "".join([*pieces, seen[end:]]), len(spans)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        found = [match.span() for match in _PATTERNS.finditer(text)]
        found += [match.span() for match in self._terms.finditer(text)]
        for match in _DIGITS.finditer(text):
            digits = _only_digits(match[0])
            if any(number in digits for number in self._numbers):
                found.append(match.span())
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(found):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((begin, end))
        return merged


def _seen(text: str) -> str:
    """A text as it looks: composed, and without characters that are not seen."""
    return "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")


def _folded(text: str) -> str:
    return " ".join(_seen(text).lower().split())


def _only_digits(text: str) -> str:
    return "".join(char for char in text if char.isdigit())


def _matching(terms: Iterable[str]) -> re.Pattern[str]:
    """A pattern of terms as whole words; long ones are also found where they are run together with others."""
    written = []
    for term in sorted(terms, key=len, reverse=True):
        body = r"[\s_.-]{0,3}".join(map(re.escape, term.split()))
        written.append(body if len(term) > 5 and not term.isdigit() else rf"(?<![^\W_]){body}(?![^\W_])")
    return re.compile("|".join(written) or r"(?!)", re.IGNORECASE)


def _of_data(data: Iterable[Any]) -> Iterator[str]:
    """The values of tool data that are about somebody, or name a record."""
    stack: list[tuple[Any, bool]] = [(value, False) for value in data]
    while stack:
        value, personal = stack.pop()
        if isinstance(value, dict):
            keys = {key: _parts(key) for key in value if isinstance(key, str)}
            somebody = any(parts & _KEY_PARTS for parts in keys.values())
            for key, parts in keys.items():
                named = bool(parts & _KEY_PARTS) or (somebody and "name" in parts)
                held = value[key]
                if isinstance(held, str | int) and _ID_KEY.search(key.lower()) and len(str(held)) > 3:
                    stack.append((str(held), any(char.isdigit() for char in str(held))))
                stack.append((held, named or (personal and not isinstance(held, bool))))
        elif isinstance(value, list):
            stack += [(held, personal) for held in value]
        elif personal and isinstance(value, str | int) and not isinstance(value, bool):
            # Not an age or a count, which are like any number.
            yield from [str(value)] * (len(str(value)) > 3 or not str(value).isdigit())


def _parts(key: str) -> set[str]:
    """The words of a key, ``snake_case`` or ``camelCase``."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    return {*re.split(r"[\W_]+", split), split.replace("_", "")}


def _of_user(text: str, ordinary: frozenset[str]) -> Iterator[str]:
    """Names and ids in what a user wrote."""
    for match in _SAYS_NAME.finditer(text):
        name = [word for word in match[1].split() if _folded(word) not in STOP_WORDS]
        yield from map(_folded, name)
    for item in salient_items(text):
        if item.kind is Kind.NAME:
            parts = item.text.split()
            if len(parts) > 1:
                yield item.text
            yield from (word for word in parts if len(word) > 2 and stem(word) not in ordinary)
    for match in _TOKEN.finditer(text):
        word = match[0]
        if sum(char.isdigit() for char in word) > 1 and not word.isdigit() and len(word) > 4:
            yield _folded(word)
        elif word[:1].isupper() and len(word) > 2 and stem(_folded(word)) not in ordinary:
            yield _folded(word)  # also where a sentence begins


def _ordinary(trajectory: AgentTrajectory, vocabulary: Sequence[str]) -> frozenset[str]:
    """Stems of words that are no names: the agent uses them in small letters, in its tools or in its text."""
    texts = [load_prompt(name).text for name in ("episode_turns", "episode_summary", "episode_reflections")]
    for turn in trajectory.turns:
        for step in turn.steps:
            if step.kind == "call":
                texts.append(step.text.partition("(")[0].replace("_", " "))
            elif step.kind == "assistant":
                texts.append(step.text)
    small = (word for text in texts for word in _TOKEN.findall(text) if word.islower() and word.isalpha())
    listed = (_folded(word) for term in (*vocabulary, *_short_arguments(trajectory.data)) for word in term.split())
    return frozenset(stem(word) for word in (*small, *listed, *_STARTERS, *STOP_WORDS))


def _short_arguments(data: Iterable[Any]) -> Iterator[str]:
    """Words of the tools themselves, such as ``"cuisines": ["Italian"]``: whole values under keys that tell of nobody."""
    stack: list[tuple[Any, str]] = [(value, "") for value in data]
    while stack:
        value, key = stack.pop()
        if isinstance(value, dict):
            about = {one for one in value if isinstance(one, str)}
            if not any(_parts(one) & _KEY_PARTS for one in about):
                stack += [(value[one], one) for one in about]
        elif isinstance(value, list):
            stack += [(held, key) for held in value]
        elif isinstance(value, str) and key and "name" not in _parts(key) and len(value.split()) == 1 and value.isalpha():
            yield value

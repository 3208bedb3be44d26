"""Finding data of a user in what is to be kept of an agent's work. A rule, because a request in a prompt is none.

It errs on the side of finding too much: a lesson that is refused can be learned from another episode, a name that is kept
is told to the next user. What it cannot know: a name that nobody introduces, that is never written with a capital, and that
is in no data of a tool.
"""
# ruff: noqa: RUF001 - letters and dashes of other scripts are meant

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from deltamem.prompts import load_prompt
from deltamem.text import STOP_WORDS, Kind, salient_items, stem
from papers.episodic.records import AgentTrajectory

MASK = "[user data]"

_AT = r"(?:[\s_({\[<-]{1,3}(?i:at)[\s_)}\]>-]{1,3})"
_DOT = r"(?:[\s_({\[<-]{1,3}(?i:dot)[\s_)}\]>-]{1,3})"
_EMAIL = (
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*|[\w+-]+(?:(?:\.| \. )[\w+-]+)*\s?@\s?[\w-]+(?:(?:\.|\s\.\s)[\w-]+)*"
    r"(?:\.|\s\.\s)[A-Za-z]{2,}"
    rf"|[\w.+-]+?{_AT}[\w-]+?(?:{_DOT}[^\W_]+)+"
    r"|[\w.+-]+?(?:[\s-]?[_({\[<](?i:at)[_)}\]>][\s-]?|\sAT\s)[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}"
)
_DIVIDER = r"[ ./_\u2010-\u2015\u2212()-]"
_PHONE = r"(?<!\w)\(?\d{3}\)?[ .\u2010-\u2015-]\d{4}(?!\w)"
_LONG_NUMBER = rf"(?<!\w)[+(]{{0,2}}\d(?:{_DIVIDER}{{0,2}}\d){{8,}}(?!\w)"
_SPELLED_NUMBER = (
    r"(?i:\b(?:(?:double|triple|plus|zero|oh|one|two|three|four|five|six|seven|eight|nine)[ ,-]{1,2}){6,}"
    r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)\b)"
)
_UUID = r"(?<!\w)(?i:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?!\w)"
_IPV6 = r"(?<![\w:])(?=[0-9A-Fa-f:]*\d)(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:])"
_PRIVATE_URL = r"https?://[^\s/?]*@\S+|https?://[^\s?]*\?\S*=\S+"
_IBAN = r"(?<!\w)[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){3,7}(?:\s?[A-Z0-9]{1,3})?(?!\w)"
_IP = r"(?<!\w)\d{1,3}(?:\.\d{1,3}){3}(?!\w)"
_ZIP = r"(?<!\w)(?:[A-Z]{2}\s+\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[A-Z\d]?\s\d[A-Z]{2})(?!\w)"
_STREET = (
    r"(?<!\w)\d{1,5}[A-Za-z]?\s+(?:[\w'.-]+\s+){0,3}(?i:street|avenue|road|boulevard|lane|apartment|stra(?:ss|ß)e)(?!\w)"
    r"|(?<!\w)\d{1,5}[A-Za-z]?\s+(?:[A-Z][\w'.-]*\s+){1,4}(?:St|Ave|Rd|Blvd|Ln|Dr|Drive|Way|Court|Ct|Place|Pl|Square|Terrace)(?!\w)"
    r"|(?<!\w)[A-ZÄÖÜ]\w+(?:stra(?:ss|ß)e|weg|platz|gasse)\s+\d{1,4}[a-z]?(?!\w)"
    r"|(?<!\w)(?:[Rr]ue|[Vv]ia|[Cc]alle|[Rr]ua)\s+[A-Z]\w+(?:\s+\w+)?,?\s+\d{1,4}(?!\w)"
)
_PATTERNS = re.compile(
    "|".join((_PRIVATE_URL, _EMAIL, _UUID, _IBAN, _LONG_NUMBER, _SPELLED_NUMBER, _PHONE, _IP, _IPV6, _ZIP, _STREET))
)
_DIGITS = re.compile(rf"\d(?:(?:{_DIVIDER}|,){{0,2}}\d){{3,}}")
_TOKEN = re.compile(r"[^\W_](?:[\w-]*[^\W_])?")
_PIECE = re.compile(r"[^\W_]+")
_NAME = r"([^\W\d_][\w'-]*(?:\s+[^\W\d_][\w'-]*)?)"
_CAPITAL = r"([^\W\d_a-zß-ÿ][\w'-]*(?:\s+[^\W\d_a-zß-ÿ][\w'-]*)?)"
_SAYS_NAME = re.compile(
    r"\b(?i:my (?:full |last |first )?name(?: is|'s)|name's|name is|call me|on behalf of|under the name(?: of)?|me llamo"
    r"|mi nombre es|je m'appelle|mon nom est|ich hei(?:ß|ss)e|mein name ist|mi chiamo|meu nome é|me chamo|меня зовут)\s+"
    + _NAME
    + r"|\b(?i:i am|i'm|i’m|this is|the (?:user|customer|guest) is|user's name is)\s+"
    + _CAPITAL
    + r"|\b(?i:this is)\s+"
    + _NAME
    + r"\s+(?i:speaking|calling|here)\b"
    r"|\b(?i:hello|hi|hey|dear|welcome(?: back)?|thank you|thanks),?\s+"
    + _CAPITAL
    + r"|(?:我叫|我的名字[是叫]|名前は|申し?ます名前は)\s*([\u4e00-\u9fff\u3040-\u30ff]{2,4})"
    r"|私は([\u4e00-\u9fff]{2,4})(?:です|と申します)"
    r"|\b(?i:password|passcode|username|login|pin|code)(?:\s+(?i:is)\s+|\s*[:=]\s*|\s+)"
    r"([^\W_](?:[\w-]*[^\W_]))"
)
_PAIR = re.compile(
    r"(?<![\w.])[\"']?([A-Za-z][\w -]{0,30}?)[\"']?\s{0,3}[:=]\s{0,3}"
    r"(?:\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'|([^\s\"'\[{(][^,;|\n]{0,120}))"
)
"""What a text that is no JSON says as ``key: value``."""
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_LOOKALIKES = str.maketrans("авеёкмнорстухіїјѕԁһԛԝғαβεικνορτυχ", "abeekmhopctyxiijsdhqwfabeikvoptux")
"""Small Cyrillic and Greek letters that are read as Latin ones."""
_LONGEST_JOINED = 40
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
        data = [value for text in trajectory.data for value in _values(text)]
        ordinary = _ordinary(trajectory, data, vocabulary)
        terms = set()
        for term in map(_folded, _of_data(data)):
            terms.add(term)
            # A full name or an address is also known by its parts; the host of an e-mail address is nobody's.
            terms |= {
                word for word in _TOKEN.findall(term.partition("@")[0]) if len(word) > 2 and stem(word) not in ordinary
            }
        for turn in trajectory.turns:
            terms |= set(_of_user(_seen(turn.user), ordinary))
        greeted = (step.text for turn in trajectory.turns for step in turn.steps if step.kind != "call")
        for text in (*greeted, *trajectory.data):
            terms |= set(_introduced(_seen(text), ordinary))
        allowed = {_folded(word) for word in vocabulary}
        kept = {term for term in terms if len(term) > 1} - allowed - STOP_WORDS
        self._terms = _matching(_key(term)[0] for term in kept)
        self._joined = {_squeezed(term) for term in kept}
        said = [turn.user for turn in trajectory.turns]
        self._numbers = {
            _only_digits(match[0]) for text in [*said, *_of_data(data)] for match in _DIGITS.finditer(_seen(text))
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
        key, places = _key(text)
        for begin, end in (*(match.span() for match in self._terms.finditer(key)), *self._run_together(key)):
            found.append((places[begin], places[end - 1] + 1))
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

    def _run_together(self, key: str) -> Iterator[tuple[int, int]]:
        """Terms that are written in pieces: ``J.o.n.a.s``, ``Jo-nathan``, ``**Jona**than``."""
        tokens = [*_PIECE.finditer(key)]
        for first, token in enumerate(tokens):
            joined, single = "", True
            for last in tokens[first:]:
                joined += last[0]
                if len(joined) > _LONGEST_JOINED:
                    break
                single = single and len(last[0]) == 1
                # "is a" is not Isa: only what is long, or spelled letter by letter.
                if last is not token and (single or len(joined) > 5) and joined in self._joined:
                    yield token.start(), last.end()


def _seen(text: str) -> str:
    """A text as it looks: composed, escapes resolved, and without characters that are not seen."""
    if "&" in text:
        text = html.unescape(html.unescape(text))
    if "%" in text:
        text = unquote(text, errors="ignore")
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")


def _folded(text: str) -> str:
    return " ".join(_seen(text).lower().split())


def _key(text: str) -> tuple[str, list[int]]:
    """A text in small letters without accents, lookalikes of other scripts as Latin; and where each letter was."""
    if text.isascii():
        return text.lower(), [*range(len(text))]
    chars: list[str] = []
    places: list[int] = []
    for place, char in enumerate(text):
        plain = [one for one in unicodedata.normalize("NFKD", char.casefold()) if unicodedata.category(one) != "Mn"]
        chars += plain
        places += [place] * len(plain)
    return "".join(chars).translate(_LOOKALIKES), places


def _squeezed(text: str) -> str:
    return "".join(_PIECE.findall(_key(text)[0]))


def _only_digits(text: str) -> str:
    return "".join(char for char in text if char.isdigit())


def _matching(terms: Iterable[str]) -> re.Pattern[str]:
    """A pattern of terms as whole words; long ones are also found where they are run together with others."""
    written = []
    for term in sorted(terms, key=len, reverse=True):
        body = r"[\s_.-]{0,3}".join(map(re.escape, term.split()))
        anywhere = (len(term) > 5 and not term.isdigit()) or _SPACELESS.search(term)
        written.append(body if anywhere else rf"(?<![^\W_]){body}(?![^\W_])")
    return re.compile("|".join(written) or r"(?!)", re.IGNORECASE)


def _values(text: str) -> Iterator[Any]:
    """What a tool was given or has returned: the JSON in it, also within strings of it, or ``key: value``."""
    stack, depth = [(text, 0)], 0
    while stack:
        one, depth = stack.pop()
        candidates = [
            one,
            *one.splitlines(),
            one[one.find("{") : one.rfind("}") + 1],
            one[one.find("[") : one.rfind("]") + 1],
        ]
        for candidate in dict.fromkeys(candidates):
            if candidate.lstrip()[:1] in ("{", "["):
                try:
                    value = json.loads(candidate)
                except (ValueError, RecursionError):
                    continue
                yield value
                if depth < 4:
                    stack += [(text, depth + 1) for text in _strings(value) if "{" in text or "[" in text]
                if candidate is one:
                    break
        else:
            yield from _pairs(_seen(one))


def _pairs(text: str) -> Iterator[dict[str, Any]]:
    for match in _PAIR.finditer(text):
        quoted = match[2] or match[3]
        # Of what is not quoted only what may be a name or an id: "phone: not found" is data of nobody.
        words = _TOKEN.findall(match[4] or "")
        value = quoted or " ".join(one for one in words if one[:1].isupper() or any(char.isdigit() for char in one))
        if value:
            yield {match[1].strip().replace(" ", "_"): value}


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            stack += one.values()
        elif isinstance(one, list):
            stack += one


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
    yield from _introduced(text, ordinary)
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


def _introduced(text: str, ordinary: frozenset[str]) -> Iterator[str]:
    """Names and codes that a text introduces as such."""
    for match in _SAYS_NAME.finditer(text):
        explicit = match[1] is not None or match[2] is not None
        for word in (match[match.lastindex or 0] or "").split():
            folded = _folded(word)
            if folded not in STOP_WORDS and folded not in _STARTERS and (explicit or stem(folded) not in ordinary):
                yield folded


def _ordinary(trajectory: AgentTrajectory, data: Sequence[Any], vocabulary: Sequence[str]) -> frozenset[str]:
    """Stems of words that are no names: the agent uses them in small letters, in its tools or in its text."""
    texts = [
        load_prompt(name, "papers.episodic.prompts").text
        for name in ("episode_turns", "episode_summary", "episode_reflections")
    ]
    for turn in trajectory.turns:
        for step in turn.steps:
            if step.kind == "call":
                texts.append(step.text.partition("(")[0].replace("_", " "))
            elif step.kind == "assistant":
                texts.append(step.text)
    small = (word for text in texts for word in _TOKEN.findall(text) if word.islower() and word.isalpha())
    listed = (_folded(word) for term in (*vocabulary, *_short_arguments(data)) for word in term.split())
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

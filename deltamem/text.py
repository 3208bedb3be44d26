"""The words of a text, and which turns of a session a memory text comes from. Pure functions."""
# ruff: noqa: RUF001, SIM905 - typographic punctuation is meant, and word lists read better as text

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple, Protocol

# Words that carry grammar only. Negations are not among them: they turn a fact into its opposite.
STOP_WORDS = frozenset(
    """a an the and or but if as at by for from in into of on onto out over to up down with about than then that this
    these those there here it its he him his she her hers they them their theirs we us our ours i me my mine you your
    yours who whom whose which what when where how why is am are was were be been being has have had having do does did
    doing will would shall should can could may might must also just so too very really still i'm i've i'll i'd it's
    he's she's that's we're they're you're""".split()
)

_NEGATIONS = frozenset(
    """no not never none nobody nothing nowhere neither nor without cannot nicht kein keine keinen nie niemals pas
    jamais nunca jamás não nem nulla не нет никогда""".split()
)
_CJK_NEGATIONS = frozenset("不没沒非無")

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sep sept|october oct|"
        "november nov|december dec".split("|"),
        start=1,
    )
    for name in names.split()
}
MONTHS = frozenset(_MONTHS)
WEEKDAYS = frozenset("monday tuesday wednesday thursday friday saturday sunday".split())

# "one" is left out: it is a pronoun as often as a number.
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate(
        "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
        "nineteen twenty".split(),
        start=2,
    )
} | {word: str(10 * number) for number, word in enumerate("thirty forty fifty sixty seventy eighty ninety".split(), start=3)}

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Han (with extension A and compatibility forms).
_SPACELESS = "\u0e01-\u0e4e\u0e81-\u0ecd\u1000-\u103f\u1780-\u17d3\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_SPACELESS_RUN = re.compile(f"[{_SPACELESS}]+")
_SENTENCE_END = frozenset(".!?:;。！？：…")
_OPENING = "\"'“”‘’«»([{-*•"

_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATE = re.compile(
    rf"\b(?:(?P<y1>\d{{4}})[/.\-](?P<m1>\d{{1,2}})[/.\-](?P<d1>\d{{1,2}})(?!\d)"
    rf"|(?P<n2>{_MONTH})\.?\s+(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<y2>\d{{4}}))?\b"
    rf"|(?P<d3>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<n3>{_MONTH})\b\.?(?:,?\s+(?P<y3>\d{{4}}))?"
    rf"|(?P<n4>{_MONTH})\.?,?\s+(?P<y4>\d{{4}})\b)",
    re.IGNORECASE,
)


class Kind(StrEnum):
    """What a salient item is."""

    NUMBER = "number"
    DATE = "date"
    NAME = "name"


class Item(NamedTuple):
    """Something that must agree between two versions of one fact."""

    kind: Kind
    text: str
    """Its comparable form: ``3000``, ``2026-04-05`` (``04-05`` without a year, ``2026-04`` without a day), ``new york``."""


def shortened(text: str, limit: int, mark: str = "...") -> str:
    """A text of at most so many characters; one that was cut ends with the mark."""
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


class _Alike(dict[int, str]):
    """By code point what stands for a character in a key; made as characters are met.

    Forms that only the layout asks for (full and half width, Arabic letters as they join, ligatures, hard spaces) are the
    plain character. Those that can mean something else stay: raised and lowered (x² is not x2), circled, fractions, squared
    units, letters of mathematics.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        form = unicodedata.decomposition(character).partition(" ")[0]
        if form in _LAYOUT or (form == "<compat>" and unicodedata.category(character)[0] in "LZP"):
            character = unicodedata.normalize("NFKD", character)
        self[code] = "".join(_WRITTEN_ALIKE.get(one, one) for one in character)
        return self[code]


_LAYOUT = frozenset(f"<{form}>" for form in "wide narrow small vertical noBreak initial medial final isolated".split())
_WRITTEN_ALIKE = (
    dict.fromkeys("“”„‟«»「」『』", '"')
    | dict.fromkeys("‘’‚‛‹›ʼ", "'")
    | dict.fromkeys("‐‑–−", "-")
    | dict.fromkeys("؟՞", "?")
    # What is not seen, and the stroke that only makes an Arabic word longer.
    | dict.fromkeys("\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u2060\ufe0e\ufe0f\ufeff\u0640", "")
    | dict.fromkeys("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", "")
)
_ALIKE = _Alike()
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_JOINER = re.compile("(?<![\u2190-\u2bff\U0001f000-\U0001fbff])\u200d")  # Within emoji it can be seen
_GREEK_QUESTION = re.compile("(?<=[\u0370-\u03ff\u1f00-\u1fff]);")
_TURKISH_I = re.compile("(?:\u0130|i\u0307)\u0307*")  # The capital, and what `lower` makes of it; dotless is another letter
# Each a pronoun in small letters and a name in capitals.
_ACRONYM = re.compile(rf"((?<![^\W_{_SPACELESS}])(?:US|IT|WHO)(?![^\W_{_SPACELESS}]))")

# What ends a sentence or a part of one. Not the question mark: a question is no statement, and there are names with one.
_ENDS = ".!,:;。、،؛۔।॥։።၊။།"
_QUOTES = "\"'"
_AROUND = {'"': '"', "'": "'", "(": ")"}


def normalised(text: str) -> str:
    """The key under which texts say the same, for all who ask whether one text is another.

    It keeps what can tell facts apart, because a fact that passes for another one is lost, and one that is stored twice is
    merely there twice: C and C#, 5 and 5%, A and A-, kim and kim_, x² and x2, .env and env, the band Who? and who.

    These do not count: case, since people shout and type without capitals (but US, IT and WHO among small letters are not
    us, it and who); blanks; how characters are composed; forms of layout (`_Alike`); styles of quotes, hyphens and minus
    signs; quotes or brackets around the whole text; and marks that end a sentence.
    """
    if not text.isascii():
        # Apart first, so that composed and combined characters are read alike.
        text = _FOREIGN.sub(lambda run: run[0].translate(_ALIKE), unicodedata.normalize("NFD", text))
        text = _JOINER.sub("", text)
        text = _GREEK_QUESTION.sub("?", unicodedata.normalize("NFC", text))
        text = unicodedata.normalize("NFC", _TURKISH_I.sub("i", text))
    # Not `casefold`, for which Maße is Masse.
    lowered = text.lower()
    if ("US" in text or "IT" in text or "WHO" in text) and not _ACRONYM.sub("", text).isupper():
        lowered = "".join(part if place % 2 else part.lower() for place, part in enumerate(_ACRONYM.split(text)))
    if not text.isascii():
        lowered = unicodedata.normalize("NFC", lowered)
    return _without_ends(" ".join(lowered.split()))


def _without_ends(text: str) -> str:
    """A text without the marks, quotes and brackets around it; one of nothing but marks keeps some, to stay what it is."""
    plain = text.removesuffix(".")
    if plain[:1].isalnum() and plain[-1:].isalnum():  # By far the most texts
        return plain
    begin, end = 0, len(text)
    before = None
    while before != (begin, end):
        before = begin, end
        while begin < end and text[begin] in " ¡¿":
            begin += 1
        if text.startswith("...", begin, end - 1):
            while begin < end - 1 and text[begin] == ".":
                begin += 1
        while begin < end and text[end - 1] == " ":
            end -= 1
        end, _ = _sentence_end(text, begin, end, _ENDS)
        if end - begin > 2 and _AROUND.get(text[begin]) == text[end - 1]:
            begin, end = begin + 1, end - 1
    # Marks before closing quotes ("Ana calls it 'home.'"); of several marks, one of which asks, the question stays.
    kept, marks = "", "."
    while marks and "?" not in kept:
        closing = end
        while closing > begin and text[closing - 1] in _QUOTES:
            closing -= 1
        stop, marks = _sentence_end(text, begin, closing, _ENDS + "?")
        kept = ("?" if "?" in marks else "") + text[closing:end] + kept
        end = stop
    return text[begin:end] + kept


def _sentence_end(text: str, begin: int, end: int, known: str) -> tuple[int, str]:
    """Where a piece of text ends without the marks that end its sentence, and these marks.

    They stand right behind a word, or one behind a blank, as in French. Others are what the text is about: "Ana separates
    columns by ;", "the folder ..", "the key '.'".
    """
    stop = end
    while stop > begin and text[stop - 1] in known:
        stop -= 1
    marks = text[stop:end]
    if not marks or stop == begin:
        return end, ""
    last, other = text[stop - 1], text[stop - 2 : stop - 1] if stop - 1 > begin else " "
    if last == " ":
        return (stop - 1, marks) if marks in (".", "!", "?", "。") and other.isalnum() else (end, "")
    return (end, "") if last in _QUOTES and other in " ([" else (stop, marks)


def contains(text: str, part: str) -> bool:
    """Whether a text has another one in it that no longer words begin or end there; both `normalised`."""
    start = text.find(part) if part else -1
    while start >= 0:
        end = start + len(part)
        before, after = text[max(0, start - 2) : start][::-1], text[end : end + 2]
        if not _continues(part[-1], after[:1], after[1:]) and not _begins(before[:1], before[1:], part[0]):
            return True
        start = text.find(part, start + 1)
    return False


def _continues(edge: str, first: str, second: str) -> bool:
    """Whether the characters behind a text make its last word another one: C and #, 5 and ,000, a and .txt, Kim and 's.

    A question mark does not, nor do emoji: who looks for a text finds it in what asks and laughs about it.
    """
    if not first:
        return False
    if first in ".'":
        return _are_one_word(edge, second)
    if first in ",:":
        return edge.isdecimal() and second.isdecimal()
    kind = unicodedata.category(first)
    if kind[0] in "LM" or kind == "Nd":
        return not is_pair(first) and not is_pair(edge)
    if first == "*":
        return second != "*"  # of bold type
    if first == "(":
        return not is_pair(edge)  # f and f(x)
    if first == "~" or (kind == "So" and first >= "\u2190"):
        return not edge.isalnum() or (first == "~" and second.isdecimal())
    return first in "#%&@/\\_-′″٪‰" or kind in ("No", "Cf") or (kind[0] == "S" and first not in "<=>|`")


def _begins(first: str, second: str, edge: str) -> bool:
    """Whether the characters before a text, from right to left, make its first word another one."""
    if not first:
        return False
    if first == ".":
        return second != "." and not is_pair(edge)
    if first == "~" or (first in "-<>" and edge.isdigit()):
        return True
    if first == "-":  # of a word, not of a list
        return _are_one_word(second, edge)
    return first not in "*(" and _continues(edge, first, second)


def _are_one_word(left: str, right: str) -> bool:
    # Not `isalnum`, for which the raised number of a footnote is one of a word.
    return all((one.isalpha() or one.isdecimal()) and not is_pair(one) for one in (left, right))


def plain(text: str) -> str:
    """A text as it may be meant: without tags, escapes and emphasis, and with blanks behind sentences that lack them.

    A guess, for those who would rather find too much than too little.
    """
    if not _NOT_PLAIN.search(text):
        return text
    text = _UNICODE_ESCAPES.sub(lambda found: str(json.loads(f'"{found[0]}"')), html.unescape(_TAG.sub(" ", text)))
    text = _ESCAPES.sub(lambda found: found[1] or " ", text)
    for _ in range(2):  # nested at most once
        text = _EMPHASIS.sub(r"\2", text)
    text = _GLUED.sub(lambda found: found[0] + " " * found.string[found.end()].isupper(), text)
    return _DASH.sub(" - ", text)


_NOT_PLAIN = re.compile(r"[<&\\*_~`–]|--|[.,:;](?=[^\W\d_])")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,99}>")
_UNICODE_ESCAPES = re.compile(r"(?:\\u[0-9A-Fa-f]{4})+")
_ESCAPES = re.compile(r"\\(?:[nrt]|([\"'/]))")
_EMPHASIS = re.compile(r"(?<!\w)([*_~`]{1,3})(?=\S)([^*_~`\n]*[^*_~`\s])\1(?!\w)")
_GLUED = re.compile(r"(?<=[^\W\d_])[.,:;](?=[^\W\d_](?![A-Z]))")  # Not within ASP.NET
_DASH = re.compile(r"(?<=[^\W\d_])(?:–|--+)(?=[^\W\d_])")


def words(text: str) -> list[str]:
    """The word forms of a text in order, as written.

    Numbers stay whole (``3,000``, ``4.5``, ``2026/04/05``), a possessive ``'s`` is cut off, and runs of a script without
    spaces become their character pairs, since finding their words would need a dictionary.
    """
    if text.isascii():
        # By far the most texts; nothing in them is composed or without spaces.
        found = _word_pattern(True).findall(text)
        return [_without_possessive(word) if "'" in word else word for word in found] if "'" in text else found
    return [word for match in _word_pattern(False).finditer(_composed(text)) for word in _split(match[0])]


def is_pair(word: str) -> bool:
    """Whether a word form of `words` is a piece of a script without spaces, not a word."""
    return _SPACELESS_RUN.fullmatch(word) is not None


def content_words(text: str) -> list[str]:
    """The casefolded word forms of a text in order, without stop words; negations and numbers are kept."""
    if text.isascii():
        return [word for word in words(text.lower()) if word not in STOP_WORDS]
    return [word for word in map(str.casefold, words(text)) if word not in STOP_WORDS]


def content_stems(text: str) -> frozenset[str]:
    """The stems of a text's content words: what two texts about one fact share."""
    return frozenset(stem(word) for word in content_words(text))


def marked_words(text: str) -> frozenset[str]:
    """The words of a text that a mark or their case tells from others, such as c#, 5%, $5, x², .env and US.

    Content stems do not show these marks, so of two texts that share their stems these words have to agree too.
    """
    marked = set()
    for piece in _SPACELESS_CLAUSE.sub(" ", normalised(text)).split():
        word = _without_ends(_BRACKETS.sub("", piece))
        shape = _word_pattern(word.isascii()).sub("w", word)
        if not _PLAIN_WORD.fullmatch(shape) or word != word.lower() or word != _composed(word):
            marked.add(word)
    return frozenset(marked)


# Brackets and quotes at the edges of a word; behind a number they may mean inches.
_BRACKETS = re.compile(r"^[\"'(\[{]+|(?<!\d)[\"')\]}]+$|[)\]}]+$")
_PLAIN_WORD = re.compile(r"w(?:[-',:;!/—。、،]*w)*|[-—]*")
_SPACELESS_CLAUSE = re.compile(f"[{_SPACELESS}]+[,;:!。、]*")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """A key under which the common English forms of a word meet: ``works``, ``working``, ``worked`` and ``work``.

    Not a word of the language, and only meant for comparison. Numbers lose their grouping (``3,000``) and ordinal ending
    (``5th``); number words become digits.
    """
    if word[:1].isdigit():
        return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub(r"(?<=\d)(?:st|nd|rd|th)$", "", word))
    if word in _NUMBER_WORDS:
        return _NUMBER_WORDS[word]
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith(("ies", "ied")) and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("ing") and len(word) > 5 and re.search("[aeiouy]", word[:-3]):
        word = word[:-3]
    elif word.endswith("ed") and not word.endswith("eed") and len(word) > 4:
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 2 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou":
        word = word[:-1]
    return word


def negations(text: str) -> frozenset[str]:
    """The negations of a text; ``n't`` and ``cannot`` count as ``not``. English and the commonest of a few languages."""
    found = set()
    for word in content_words(text):
        if word.endswith(("n't", "n’t")) or word == "cannot":
            found.add("not")
        elif word in _NEGATIONS:
            found.add(word)
        else:
            found |= _CJK_NEGATIONS.intersection(word)
    return frozenset(found)


def salient_items(text: str) -> tuple[Item, ...]:
    """Numbers, dates and names of a text, in order.

    A name is a run of capitalised words that do not begin a sentence. A name that only begins the sentence cannot be
    distinguished from an ordinary word; memories begin with the person's name, which does not count. Scripts without
    capitals have no names here, and German has too many.
    """
    text = _composed(text)
    items: list[Item] = []
    position = 0
    for match in _DATE.finditer(text):
        items += _numbers_and_names(text, position, match.start())
        items.append(Item(Kind.DATE, _date(match)))
        position = match.end()
    return tuple(items + _numbers_and_names(text, position, len(text)))


def salient(text: str) -> frozenset[str]:
    """The words of the numbers, dates and names of a text: what must agree between two versions of one fact."""
    return frozenset(word for item in salient_items(text) for word in item.text.split())


def _numbers_and_names(text: str, begin: int, end: int) -> list[Item]:
    items: list[Item] = []
    run_end = -1
    for match in _word_pattern(text.isascii()).finditer(text, begin, end):
        (word, *_) = _split(match[0])
        folded = word.casefold()
        key = stem(folded)
        if key[:1].isdigit():
            items.append(Item(Kind.NUMBER, key))
        elif folded in WEEKDAYS:
            items.append(Item(Kind.DATE, folded))
        elif word[:1].isupper() and folded not in STOP_WORDS and folded not in _NEGATIONS:
            if folded in MONTHS and not _begins_sentence(text, match.start()):
                items.append(Item(Kind.DATE, f"{_MONTHS[folded]:02}"))
            elif run_end >= 0 and text[run_end : match.start()] in (" ", "-", ". "):
                items[-1] = Item(Kind.NAME, f"{items[-1].text} {folded}")
                run_end = match.start() + len(word)
            elif not _begins_sentence(text, match.start()):
                items.append(Item(Kind.NAME, folded))
                run_end = match.start() + len(word)
            continue
        run_end = -1
    return items


def _begins_sentence(text: str, position: int) -> bool:
    # A few characters suffice, and a slice from the beginning would make long texts quadratic.
    before = text[max(0, position - 16) : position].rstrip().rstrip(_OPENING).rstrip()
    return not before or before[-1] in _SENTENCE_END


def _date(match: re.Match[str]) -> str:
    """A date in order of size, so that all its spellings are equal."""
    year = match["y1"] or match["y2"] or match["y3"] or match["y4"]
    name = match["n2"] or match["n3"] or match["n4"]
    month = int(match["m1"]) if name is None else _MONTHS[name.casefold()]
    day = match["d1"] or match["d2"] or match["d3"]
    parts = [year, f"{month:02}", None if day is None else f"{int(day):02}"]
    return "-".join(part for part in parts if part is not None)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


@cache
def _word_pattern(ascii_only: bool) -> re.Pattern[str]:
    """Numbers, runs of a script without spaces, and words; `re` alone would end a word at each combining mark."""
    if ascii_only:
        return re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|\d+(?:[.,:/\-]\d+)*[A-Za-z]*")
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))
    letter = rf"(?:(?![{_SPACELESS}])[^\W\d_]|[{marks}])"
    return re.compile(rf"\d+(?:[.,:/\-]\d+)*{letter}*|[{_SPACELESS}]+|{letter}+(?:['’]{letter}+)*")


def _split(word: str) -> list[str]:
    if len(word) > 1 and is_pair(word):
        return [word[index : index + 2] for index in range(len(word) - 1)]
    return [_without_possessive(word)]


def _without_possessive(word: str) -> str:
    return word[:-2] if word[-2:].casefold() in ("'s", "’s") and word.casefold() not in STOP_WORDS else word


# The person states the facts and the assistant repeats them, often in more of the memory's own words.
_USER_BONUS = 1.5
# Below these shares a match is chance: of all words looked for, and of the matched weight for each further turn.
_LEAST_WORDS = 0.25
_LEAST_GAIN = 0.15


class Spoken(Protocol):
    """A turn, as far as its words matter."""

    @property
    def role(self) -> str:
        """Who speaks."""

    @property
    def content(self) -> str:
        """The words."""


class SourceFinder:
    """Finds the turns of one session that memory texts come from; the turns are taken apart once."""

    def __init__(self, dialogue: Sequence[Spoken], person_name: str) -> None:
        """Take the turns apart. How memories name the person does not count, since people do not name themselves."""
        self._bonus = [_USER_BONUS if turn.role == "user" else 1.0 for turn in dialogue]
        self._stems = [content_stems(turn.content) for turn in dialogue]
        self._name = content_stems(person_name)

    def turns(self, text: str, before: str, limit: int = 3) -> tuple[int, ...]:
        """The turns that a memory text comes from.

        Greedy cover: the turn whose words cover most of the text comes first, then the one that covers most of the rest. A
        word weighs more the fewer turns contain it; where the new words leave a choice, the whole text decides.

        Args:
            text: The memory's text.
            before: Its text before the session, empty for a new memory. Only words that are new count, if there are any.
            limit: Turns to return at most.

        Returns:
            Numbers of turns from 1, ascending; empty if hardly anything matches.
        """
        stems = content_stems(text) - self._name
        sought = (stems - content_stems(before)) or stems
        spoken = [found & stems for found in self._stems]
        turns = [found & sought for found in spoken]
        frequency = Counter(word for found in turns for word in found)
        if len(frequency) < max(1.0, _LEAST_WORDS * len(sought)):
            return ()
        weight = {word: math.log1p(len(turns) / count) for word, count in frequency.items()}
        # Sorted sums: the order of a set of strings differs between processes, and so would the last bit of a sum.
        total = sum(sorted(weight.values()))
        missing = set(frequency)
        chosen: list[int] = []
        while missing and len(chosen) < limit:
            gains = [sum(sorted(weight[word] for word in found & missing)) for found in turns]
            ranks = [
                (gain * bonus, len(found), -number)
                for number, (gain, bonus, found) in enumerate(zip(gains, self._bonus, spoken, strict=True))
            ]
            best = -max(ranks)[2]
            if gains[best] < _LEAST_GAIN * total:
                break
            chosen.append(best + 1)
            missing -= turns[best]
        return tuple(sorted(chosen))

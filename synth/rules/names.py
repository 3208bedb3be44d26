"""Names that a writer made up: capitalised names in a text that the writer was told nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from deltamem.text.words import Kind, content_stems, salient_items, stem, words
from synth.records import Record

# Two capitalised words or more; "I" after a word is no name.
_CAPITALS = re.compile(r"\b[^\W\d_a-z]\w*(?:[- ](?!I\b)[^\W\d_a-z]\w*)+")


def invented_names(texts: Iterable[str], told: Record) -> Iterator[str]:
    """Names with a word that occurs nowhere in what was told, each once, casefolded.

    Args:
        texts: Short texts, in which a capital is a name.
        told: What the writer was told.
    """
    known = _told_stems(told)
    for name in _names(texts):
        if any(stem(word) not in known for word in words(name)):
            yield name


def invented_full_names(texts: Iterable[str], told: Record) -> Iterator[str]:
    """Names of two words or more, none of which occurs in what was told, casefolded.

    Far more lenient than `invented_names`, for texts in which words like Netflix, Christmas or Mom do no harm.

    Args:
        texts: Texts of any length.
        told: What the writer was told.
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

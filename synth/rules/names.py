"""Names that a writer made up: capitalised names in a text that the writer was told nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from deltamem.text.words import Kind, content_stems, salient_items, stem, words
from synth.records import Record

_CAPITALS = re.compile(r"\b[^\W\d_a-z]\w*[-. ]+(?=[^\W\d_a-z])")  # a quick look that finds every candidate


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
    """Names of two words or more, none of which occurs in what was told, each once, casefolded.

    Far more lenient than `invented_names`, for texts in which words like Netflix, Christmas or Mom do no harm.

    Args:
        texts: Texts of any length.
        told: What the writer was told.
    """
    candidates = [text for text in texts if _CAPITALS.search(text)]
    if not candidates:
        return
    known = _told_stems(told)
    for name in _names(candidates):
        parts = words(name)
        if len(parts) > 1 and all(stem(word) not in known for word in parts):
            yield name


def _told_stems(told: Record) -> frozenset[str]:
    return content_stems(told.model_dump_json().replace("\\n", " "))


def _names(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(item.text for text in texts for item in salient_items(text) if item.kind is Kind.NAME))

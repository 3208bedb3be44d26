"""Which options an answer names: the newest of the benchmark's own rules, ``extract_answer`` (PROTOCOLS.md 4.3)."""

from __future__ import annotations

import re

_OPENING = "<final_answer>"
_CLOSING = "</final_answer>"
_IN_PARENTHESES = re.compile(r"\(([a-d])\)")
_ALONE = re.compile(r"\b([a-d])\b")


def chosen_letters(text: str) -> frozenset[str]:
    """The letters that an answer settles on: those after the last ``<final_answer>``, or in all of it without that tag.

    Letters in parentheses count; only if there are none do letters that stand alone. The article "a" is such a letter.

    Args:
        text: The whole answer.

    Returns:
        Letters from a to d; empty if the answer names none.
    """
    settled = text.strip()
    if _OPENING in settled:
        settled = settled.rpartition(_OPENING)[2].strip()
    return _letters(settled.removesuffix(_CLOSING))


def is_correct(text: str, gold: str) -> bool:
    """Whether an answer names the right option and no other, where it settles or in all of it.

    Args:
        text: The whole answer.
        gold: The right letter, ``c`` or ``(c)``.
    """
    right = {gold.lower().strip("() ")}
    return chosen_letters(text) == right or _letters(text) == right


def _letters(text: str) -> frozenset[str]:
    lowered = text.lower()
    return frozenset(_IN_PARENTHESES.findall(lowered) or _ALONE.findall(lowered))

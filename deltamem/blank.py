"""Texts in which there is nothing to see: empty ones, white space, and characters that leave no mark on a screen."""

from __future__ import annotations

import re
import unicodedata

SEEN = (
    r"[^\s\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u2800"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]"
)
"""Matches a character that can be seen, in Python and in JSON Schema: none of white space, controls, and what Unicode lets
programs ignore, such as zero-width spaces, joiners, fillers and the selectors of variants."""
_SEEN = re.compile(SEEN[:-1] + "\U000e0000-\U000e0fff]")  # which the expressions of JavaScript cannot name


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen."""
    return all(unicodedata.category(match[0]) == "Cf" for match in _SEEN.finditer(text))

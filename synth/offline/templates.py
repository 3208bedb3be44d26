"""Sentences with slots that can be filled and read back.

Records hold texts only, and a writer may use nothing but its task. So what a sentence says is recovered from its template.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from functools import cached_property

Pool = Sequence[str] | None
"""The values of a slot: None stands for one invented name, an empty pool for any text."""

_ARTICLE = re.compile(r"\b([Aa]) (?!uni|eu|one|use)(?=[aeiou])", re.IGNORECASE)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill the slots of a text; ``a`` becomes ``an`` before a vowel."""
    return _ARTICLE.sub(r"\1n ", text.format_map(values))


class Template:
    """A sentence with slots."""

    def __init__(self, text: str, pools: Mapping[str, Pool]) -> None:
        """Note the slots.

        Args:
            text: The sentence, with ``{slot}`` for each slot.
            pools: The values of each slot; further ones may be there.
        """
        self.text = text
        self.slots = tuple(dict.fromkeys(slot for _, slot, _, _ in string.Formatter().parse(text) if slot))
        self._pools = pools

    def fill(self, values: Mapping[str, str]) -> str:
        """The sentence for these values."""
        return fill(self.text, values)

    def read(self, text: str) -> dict[str, str] | None:
        """The values for which `fill` gives the text; None if none do."""
        found = self._pattern.fullmatch(text)
        return found.groupdict() if found else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts, seen = [], set()
        for literal, slot, _, _ in string.Formatter().parse(self.text):
            escaped = re.escape(literal)
            parts.append(re.sub(r"(^|(?<=[ -]))([Aa])(\\ )$", r"\1\2n?\3", escaped) if slot else escaped)
            if slot in seen:
                parts.append(f"(?P={slot})")
            elif slot:
                seen.add(slot)
                parts.append(f"(?P<{slot}>{_values(self._pools[slot])})")
        return re.compile("".join(parts))


def _values(pool: Pool) -> str:
    if pool is None:
        return "[A-Z][a-z]+"
    return "|".join(re.escape(value) for value in sorted(pool, key=len, reverse=True)) if pool else ".+?"

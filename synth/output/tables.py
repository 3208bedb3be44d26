"""What the data card and the report tell of a manifest in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from synth.rules import RULES

Manifest = Mapping[str, Any]

_OTHERS = {
    "format.truncated": "An answer ends before the token limit.",
    "format.json": "An answer is JSON.",
    "format.schema": "An answer has the fields that it was asked for.",
    "split.people": "No person is in both splits.",
    "split.seeds": "No persona seed is in both splits.",
    "split.session_texts": "Nothing that a user says in a session is the whole of what one says in the other split.",
}
"""What is checked besides the rules: answers of a language model as they are read, and the splits as they are written."""


_REASONS = {
    "evolution.new_in_life": "A memory thread repeats no fact of the life and no other thread.",
    "session.some_fact": "A session has something to tell.",
}
"""Why the program gives something up while it puts a life together; nothing counts how often it looked."""


class RuleRow(NamedTuple):
    """A rule and what became of it.

    Attributes:
        name: The rule.
        says: What it demands; empty for a name that this version does not know.
        checked: Answers and finished sessions that it has judged; 0 if it was never checked.
        violated: Those that have broken it.
        sent_back: Those of them that were not the last attempt, so that the writer was told.
        rejected: Units that broke it to the last attempt.
    """

    name: str
    says: str
    checked: int
    violated: int
    sent_back: int
    rejected: int


def rule_rows(manifest: Manifest) -> list[RuleRow]:
    """All rules in their order, those that were never checked included, then names that are not rules of ours."""
    found = manifest["statistics"]["rules"]
    says = {rule.name: rule.says for rule in RULES} | _OTHERS
    rows = []
    for name in dict.fromkeys([*says, *found]):
        counts = found.get(name, {"checked": 0, "violated": 0, "rejected": 0})
        sent_back = max(0, counts["violated"] - counts["rejected"])
        rows.append(
            RuleRow(
                name,
                says.get(name) or _REASONS.get(name, ""),
                counts["checked"],
                counts["violated"],
                sent_back,
                counts["rejected"],
            )
        )
    return rows


def usage_total(manifest: Manifest) -> dict[str, int]:
    """What all units together took."""
    rows = manifest["statistics"]["usage"].values()
    names = ("units", "attempts", "rejected", "prompt_tokens", "completion_tokens")
    return {name: sum(row[name] for row in rows) for name in names}

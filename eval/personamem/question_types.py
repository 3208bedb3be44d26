"""The types of question: what each release calls them, and the columns in which papers print them (PROTOCOLS.md 4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LABELS = {
    "provide_preference_aligned_recommendations": "Pref-Rec",
    "recalling_the_reasons_behind_previous_updates": "Recall-Reason",
    "revisit_reasons_behind_preference_updates": "Recall-Reason",
    "suggest_new_ideas": "New-Ideas",
    "track_full_preference_evolution": "Pref-Evol",
    "track_full_preference_updates": "Pref-Evol",
    "recall_user_shared_facts": "Recall-User",
    "generalizing_to_new_scenarios": "Gen-New",
    "generalize_to_new_scenarios": "Gen-New",
    "recalling_facts_mentioned_by_the_user": "Recall-Facts",
    "acknowledge_latest_user_preferences": "Latest-Pref",
}
"""Short names of the types, in the order of the paper's table. Papers tell the two ``recall`` types of 32k apart."""

COUNTS_32K = {
    "provide_preference_aligned_recommendations": 55,
    "recalling_the_reasons_behind_previous_updates": 99,
    "suggest_new_ideas": 93,
    "track_full_preference_evolution": 139,
    "recall_user_shared_facts": 129,
    "generalizing_to_new_scenarios": 57,
    "recalling_facts_mentioned_by_the_user": 17,
}
"""Questions of each type in the 32k release; 589 in all."""

TOTALS = {2_727: "128k", 2_674: "1M"}
"""The other releases by their number of questions."""


def size_of(types: Iterable[str]) -> str | None:
    """Which release questions come from: ``32k``, ``128k`` or ``1M``; None if the counts are of none of them.

    Args:
        types: The type of every question.
    """
    counts = Counter(types)
    return "32k" if counts == COUNTS_32K else TOTALS.get(counts.total())


def in_order(types: Iterable[str]) -> list[str]:
    """Each type once, as the paper's table has them; types that it does not know come last, in alphabetical order."""
    there = set(types)
    return [name for name in LABELS if name in there] + sorted(there - set(LABELS))


def label(name: str) -> str:
    """The short name of a type; the type itself if it has none."""
    return LABELS.get(name, name)

"""A trip of two days whose intents are known, for the tests of the intent index."""

from __future__ import annotations

from datetime import datetime, timedelta

from papers.stitch.labeller import GoldStep, OracleLabeller
from papers.stitch.records import Intent, IntentFilter, Step

SAID = [
    ("a1", "user", "Let us plan day 1.", "day 1", "opening", (), "", ""),
    ("a2", "user", "What about the Alder Inn?", "day 1", "proposal", ("hotel",), "", "proposes the Alder Inn for day 1"),
    ("a3", "agent", "It costs 90.", "day 1", "answer", ("hotel", "price"), "The Alder Inn costs 90.", ""),
    ("b1", "user", "Now day 2.", "day 2", "opening", (), "", ""),
    ("b2", "user", "Perhaps the Birch House?", "day 2", "proposal", ("hotel",), "", "proposes the Birch House for day 2"),
    (
        "b3",
        "agent",
        "It costs 120.",
        "day 2",
        "answer",
        ("hotel", "price"),
        "The Birch House costs 120.",
        "",
    ),
    (
        "a4",
        "user",
        "Back to day 1: we book it.",
        "day 1",
        "decision",
        ("hotel",),
        "Back to day 1: we book the Alder Inn.",
        "",
    ),
]
BEGIN = datetime(2026, 5, 1, 8)
STEPS = [Step(id, role, text, BEGIN + timedelta(minutes=n)) for n, (id, role, text, *_) in enumerate(SAID)]
GOLD = {
    id: GoldStep(Intent(scope, event, types), resolved or text, summary or resolved or text)
    for id, _, text, scope, event, types, resolved, summary in SAID
}
PRICE = "What does the hotel of day 2 cost?"
QUERIES = {
    PRICE: IntentFilter(("day 2",), ("answer",), ("price",)),
    "Anything?": IntentFilter(),
    "And the weather?": IntentFilter(("day 9",), (), ("weather", "price")),
}


def oracle() -> OracleLabeller:
    return OracleLabeller(GOLD, QUERIES)

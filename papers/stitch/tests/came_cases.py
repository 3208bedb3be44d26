"""Invented data in the form of CAME-Bench, smaller than its maker makes it, and models of rules."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripted_server import Reply, completion

TRIP, TALK = "trip", "talk"
DAY, CASE = "Day 1 itinerary", "Pro case on trams"


def said(text: str, action: str, role: str, goal: str, *entities: str, **more: str) -> tuple[str, dict[str, Any]]:
    """A turn and the operation that it says."""
    plain = {"slot": "", "attribute": "", "value": "", "answers": ""}
    return text, plain | {"action": action, "role": role, "goal": goal, "entities": entities} | more


SESSIONS = {
    TRIP: [
        [
            said("Juniper Table might do for dinner.", "propose", "User", DAY, "Juniper Table", slot="dinner"),
            said("What does Juniper Table cost?", "inquire", "User", DAY, "Juniper Table", slot="dinner", attribute="price"),
            said(
                *("Juniper Table asks for $40.", "inform", "Agent", DAY, "Juniper Table"),
                **{"slot": "dinner", "attribute": "price", "value": "$40", "answers": "op2"},
            ),
        ],
        [
            said("Book Juniper Table then.", "decide", "User", DAY, "Juniper Table", slot="dinner", value="book"),
            said("Lunch could be at Cedar Spoon.", "propose", "Agent", DAY, "Cedar Spoon", slot="lunch"),
        ],
    ],
    TALK: [[said("Lapuck (2008) reports 6.5%.", "propose", "Pro", CASE, "Lapuck (2008)", attribute="figure", value="6.5%")]],
}
DOMAINS = {TRIP: "travel", TALK: "debate"}
ENTITIES = {TRIP: {"Juniper Table": "restaurant", "Cedar Spoon": "restaurant"}, TALK: {"Lapuck (2008)": "source"}}


def asked(name: str, kind: str, form: str, of: str, question: str, answer: str, *turns: str, **where: str) -> dict[str, Any]:
    return {
        "id": f"{name}/{form}{len(question)}",
        "trajectory": name,
        "type": kind,
        "form": form,
        "question": question,
        "arguments": where,
        "kind": of,
        "answers": [answer],
        "evidence": turns,
    }


QUESTIONS = [
    asked(TRIP, "revision", "open", "restaurant", "Lunch, still open?", "Cedar Spoon", "t5", day="1", slot="lunch"),
    asked(TRIP, "revision", "booked", "restaurant", "Dinner, booked?", "Juniper Table", "t4", day="1", slot="dinner"),
    asked(
        *(TRIP, "recall", "value", "price", "Juniper Table's price?", "$40", "t3"),
        **{"day": "1", "slot": "dinner", "attribute": "price", "entity": "Juniper Table"},
    ),
    asked(
        *(TRIP, "multi_hop", "booked_value", "price", "The price of dinner?", "$40", "t3", "t4"),
        **{"day": "1", "slot": "dinner", "attribute": "price"},
    ),
    asked(TRIP, "synthesis", "day_plan", "place", "All of day 1?", "Juniper Table", "t4", day="1"),
    asked(
        *(TRIP, "synthesis", "range_plan", "restaurant", "All dinners?", "Juniper Table", "t4"),
        **{"day": "1", "last": "2", "slot": "dinner"},
    ),
    asked(
        TALK,
        "recall",
        "figure",
        "figure",
        "Lapuck's figure?",
        "6.5%",
        "t1",
        case=CASE,
        speaker="Pro",
        entity="Lapuck (2008)",
    ),
]


def write_data(folder: Path) -> list[str]:
    """Write the files; returns the overrides that name them."""
    worlds, trajectories, logs, intents = [], [], [], []
    for name, sessions in SESSIONS.items():
        turns = [(number, *one) for number, one in enumerate((one for session in sessions for one in session), start=1)]
        told = [
            {"id": f"t{number}", "role": done["role"], "text": text, "time": f"2027-03-01T09:{number:02}:00"}
            for number, text, done in turns
        ]
        ends = [sum(map(len, sessions[:number])) for number in range(len(sessions) + 1)]
        worlds.append(
            {"id": f"of-{name}", "entities": [{"name": one, "kind": kind} for one, kind in ENTITIES[name].items()]}
        )
        trajectories.append(
            {
                **{"id": name, "domain": DOMAINS[name], "size": "S", "world": f"of-{name}"},
                "sessions": [
                    {"id": f"s{number}", "time": told[first]["time"], "turns": told[first:last]}
                    for number, (first, last) in enumerate(pairwise(ends), start=1)
                ],
            }
        )
        logs.append(
            {
                "trajectory": name,
                "operations": [{"id": f"op{number}", **done} for number, _, done in turns],
                "turns": [{"id": f"t{n}", "operation": f"op{n}", "core": True, "reference": None} for n, _, _ in turns],
            }
        )
        scopes = {"scopes": [], "events": [], "entity_types": []}
        intents.append(
            {
                "trajectory": name,
                "steps": {
                    f"t{number}": {
                        **{"scope": done["goal"], "event": done["action"], "entity_types": []},
                        **{"resolved": text, "summary": text},
                    }
                    for number, text, done in turns
                },
                "queries": {one["question"]: scopes for one in QUESTIONS if one["trajectory"] == name},
            }
        )
    data = {"worlds": worlds, "trajectories": trajectories, "storyboard": logs, "questions": QUESTIONS, "intents": intents}
    for name, records in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return [f"data={folder}", "cutoffs=[5,20]"]


def script(body: dict[str, Any]) -> Reply:
    """Answers "Juniper Table" to everything; the judge accepts it where it is the reference."""
    asked = body["messages"][0]["content"]
    if not asked.startswith("You grade"):
        return completion("Juniper Table", prompt_tokens=1000, tokens=2)
    label = "correct" if "Right answer: Juniper Table\n" in asked else "wrong"
    return completion(json.dumps({"reason": "r", "label": label}), prompt_tokens=100, tokens=3)

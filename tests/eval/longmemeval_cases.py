"""Invented data in the shape of LongMemEval, with the irregularities that its files may have, and models of rules."""

import json
from pathlib import Path
from typing import Any

from scripted_server import Reply, completion

FILLER = "f1", [("user", "Name three rivers."), ("assistant", "Rhine, Elbe, Oder.")]
DATES = ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00", "2023/05/22 (Mon) 23:05"]


def turn(role: str, text: str) -> dict[str, Any]:
    """A turn; one that ends in a star holds the answer."""
    plain = {"role": role, "content": text.removesuffix("*")}
    return plain | {"has_answer": True} if text.endswith("*") else plain


def record(
    name: str, kind: str, question: str, answer: object, *sessions: tuple[str, list[tuple[str, str]]], **changes: Any
) -> dict[str, Any]:
    """A question whose haystack has these sessions and one that has nothing to do with it."""
    haystack = [FILLER, *sessions]
    return {
        "question_id": name,
        "question_type": kind,
        "question": question,
        "answer": answer,
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": [session for session, _ in haystack],
        "haystack_dates": DATES[: len(haystack)],
        "haystack_sessions": [[turn(*said) for said in turns] for _, turns in haystack],
        "answer_session_ids": [session for session, _ in sessions],
    } | changes


def benchmark() -> list[dict[str, Any]]:
    dog = "answer_dog", [("user", "I adopted a dog.*"), ("assistant", "A dog, how lovely!*"), ("user", "He barks.")]
    boat = "answer_boat", [("user", "The boat is mine.*"), ("user", "I have a second boat.*")]
    return [
        record("q-user", "single-session-user", "What did I adopt, a dog?", "a dog", dog),
        record("q-both", "multi-session", "How many of dog and boat?", 3, dog, boat),
        record(
            "q-said",
            "single-session-assistant",
            "Which tea did you name?",
            "green",
            ("answer_tea", [("user", "Which one?"), ("assistant", "Take green tea.*")]),
        ),
        # The newer session stands first, and both have the same id.
        record(
            "q-update",
            "knowledge-update",
            "Which bicycle have I now?",
            "a red one",
            ("answer_b", [("user", "My bicycle is red now.*")]),
            ("answer_b", [("user", "My bicycle is blue.*")]),
            haystack_dates=[DATES[0], DATES[2], DATES[1]],
        ),
        record("q-time", "temporal-reasoning", "How many days ago was the dog?", "9 days", dog),
        record("q-like", "single-session-preference", "What coffee should I try?", "one without milk", dog),
        record("q-none_abs", "multi-session", "What is my cat's name?", "No cat was mentioned.", dog),
    ]


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def write_data(folder: Path) -> list[str]:
    """Write the file; returns the override that names it."""
    return [f"data={write(folder / 'lme.json', benchmark())}"]


def script(body: dict[str, Any]) -> Reply:
    """Answers "a dog" to everything; the judges accept it where it is the reference, and where nothing is known."""
    asked = body["messages"][0]["content"]
    if not asked.startswith("You grade"):
        return completion("a dog", prompt_tokens=1000, tokens=2)
    right = "Right answer: a dog\n" in asked or "do not answer" in asked
    return completion(json.dumps({"reason": "r", "label": "correct" if right else "wrong"}), prompt_tokens=100, tokens=3)

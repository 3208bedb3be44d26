"""Invented data in the shape of PersonaMem: two personas, three contexts, sessions that open with a system message."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripted_server import Reply, completion

from eval.data import PERSONAMEM_CONTEXTS
from eval.personamem.data import COLUMNS

PERSONAMEM_EXCERPT = replace(  # the first messages of two contexts
    PERSONAMEM_CONTEXTS,
    path="personamem/shared_contexts_excerpt.jsonl",
    origin=None,
    sha256="6e91aeeecbf1d5f2d62dfad9b44ec4cbc2d1f02784406a7367c923cabb80fcb4",
)

ANA, BO, BO_AGAIN = "a1" * 32, "b2" * 32, "c3" * 32

Messages = list[dict[str, str]]


def persona(name: str) -> dict[str, str]:
    return {"role": "system", "content": f"Current user persona: Name: {name}   \nGender Identity: Female\n\n{name} cooks."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": f"User: {text}"}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"Assistant: {text}"}


def contexts() -> dict[str, Messages]:
    ana = [
        persona("Ana Lopez"),
        user("I love tea more than anything."),
        assistant("What kind of it do you drink?"),
        persona("Ana Lopez"),
        user("I adopted a dog from the shelter."),
        user("He is big and needs long walks."),
        assistant("What a good deed!"),
        persona("Ana Lopez"),
        user("These days I prefer coffee in the morning."),
        assistant("What made you change?"),
        user("The old drink upset my stomach."),
        assistant("That makes sense."),
    ]
    bo = [
        persona("Bo Berg"),
        user("My bicycle was stolen yesterday."),
        assistant("I am sorry to hear it."),
        persona("Bo Berg"),
        user("I bought a boat instead."),
        assistant("How lovely!"),
    ]
    return {ANA: ana, BO: bo, BO_AGAIN: [*bo, persona("Bo Berg"), user("I sold the boat."), assistant("Oh, why?")]}


def row(context: str, end: int, reference: int, blocks_back: int, text: str, **changes: str) -> dict[str, str]:
    """A row whose question refers to the message with the index `reference`; tokens are counted as characters."""
    messages = contexts()[context]
    lengths = [len(message["content"]) for message in messages]
    tokens = sum(lengths[:end]) + len(text)
    values = {
        "persona_id": "0" if context == ANA else "1",
        "question_type": "suggest_new_ideas",
        "context_length_in_tokens": str(tokens),
        "distance_to_ref_in_blocks": str(blocks_back),
        "distance_to_ref_in_tokens": str(tokens - sum(lengths[:reference])),
        "user_question_or_message": text,
        "correct_answer": "(b)",
        "all_options": str(
            ["(a) Have a 'cup' of juice.", "(b) Have what you like.", "(c) Have nothing.", "(d) Have a cat."]
        ),
        "shared_context_id": context,
        "end_index_in_shared_context": str(end),
    }
    return values | changes


def rows() -> list[dict[str, str]]:
    """Seven questions; those of a context are not in the order of their end indices."""
    return [
        row(ANA, 11, 1, 3, "tea?", question_type="recall_user_shared_facts"),
        row(ANA, 9, 1, 2, "User: tea or coffee?", question_type="track_full_preference_evolution"),
        row(ANA, 11, 4, 2, "dog?"),
        row(ANA, 11, 8, 1, "coffee?", question_type="recalling_the_reasons_behind_previous_updates"),
        row(BO, 5, 1, 2, "bicycle?"),
        row(BO_AGAIN, 8, 4, 2, "boat?"),
        row(BO_AGAIN, 7, 4, 1, "the boat?", question_type="track_full_preference_evolution"),
    ]


def write_questions(path: Path, values: list[dict[str, str]] | None = None) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows() if values is None else values)
    return path


def write_contexts(path: Path, lines: dict[str, Messages] | None = None) -> Path:
    chosen = contexts() if lines is None else lines
    path.write_text("".join(json.dumps({name: messages}) + "\n" for name, messages in chosen.items()), encoding="utf-8")
    return path


def write_data(folder: Path) -> list[str]:
    """Write both files; returns the overrides that name them."""
    questions, shared = write_questions(folder / "questions.csv"), write_contexts(folder / "contexts.jsonl")
    return [f"questions={questions}", f"contexts={shared}"]


def asked(body: dict[str, Any]) -> str:
    """The question in a request; empty for the request that only checks the endpoint."""
    found = re.search(r"# Message of the person\n(.*?)\n", body["messages"][-1]["content"])
    return found[1] if found else ""


def script(body: dict[str, Any]) -> Reply:
    """The right letter."""
    return completion("(b)", prompt_tokens=100, tokens=5)

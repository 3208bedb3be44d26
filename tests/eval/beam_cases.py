"""Invented data in the shape of BEAM, with the irregularities of the real files, and models of rules."""

import json
from pathlib import Path
from typing import Any

from scripted_server import Reply, completion


def batch(first: int, day: str | None, *texts: str) -> list[dict[str, Any]]:
    """Messages of user and assistant in turn; a text that begins with a star opens a new topic."""
    return [
        {
            "id": first + number,
            "role": ("user", "assistant")[number % 2],
            "content": text.removeprefix("*"),
            "time_anchor": day if number == 0 else None,
            "question_type": "main_question" if text.startswith("*") else None,
        }
        for number, text in enumerate(texts)
    ]


def probe(question: str, *rubric: str, source: object = None, **more: object) -> dict[str, Any]:
    named = {} if source is None else {"source_chat_ids": source}
    return {"question": question, "rubric": list(rubric), "difficulty": "easy"} | named | more


def probes() -> dict[str, list[dict[str, Any]]]:
    """One question for most abilities."""
    return {
        "abstention": [probe("What is my cat's name?", "says that there is no information on a cat")],
        "contradiction_resolution": [
            probe("Do I have a boat?", "names both", "asks", source={"first_statement": [4], "second_statement": [6]})
        ],
        "event_ordering": [
            probe("In which order: dog, boat?", "the dog", "the boat", source=[0, 4, 4], answer="1) dog 2) boat")
        ],
        "information_extraction": [probe("Which dog?", "says: a beagle", source=[0], answer="a beagle")],
        "knowledge_update": [
            probe("What colour is the bicycle?", "red", source={"original_info": [2], "updated_info": [6, 99]})
        ],
        "summarization": [probe("Sum it all up.", "dog", "boat", "bicycle", source=["0-4"], ideal_summary="All.")],
    }


def chat() -> list[list[dict[str, Any]]]:
    """Two batches, the second without a day."""
    return [
        batch(0, "March-15-2024", "*I have a dog, a beagle.", "Nice dog!", "*My bicycle is blue.", "Blue!"),
        batch(4, None, "*I bought a boat.", "A boat!", "My bicycle is red now. I never had a boat.", "Oh."),
    ]


def small_chat() -> list[list[dict[str, Any]]]:
    return [batch(0, "May-01-2024", "*The tea is green.", "Green tea.")]


def row(name: str, chat: object, asked: object) -> dict[str, Any]:
    return {"conversation_id": name, "chat": chat, "probing_questions": asked if isinstance(asked, str) else repr(asked)}


def rows() -> list[dict[str, Any]]:
    tea = {"instruction_following": [probe("Which tea?", "green", source=[0])]}
    return [row("1", chat(), probes()), row("2", small_chat(), tea)]


def write(path: Path, values: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(values), path)
    return path


def write_data(folder: Path) -> list[str]:
    """Write the file; returns the override that names it."""
    return [f"data={write(folder / '100K-00000-of-00001.parquet', rows())}"]


def script(body: dict[str, Any]) -> Reply:
    """Answers in two lines; items of one word are met in part, and the dog stands in the second line."""
    asked = body["messages"][0]["content"]
    if asked.startswith("You check"):
        item = asked.partition("\nRequirement: ")[2].partition("\n")[0]
        label = "partial" if " " not in item else "correct"
    elif asked.startswith("A user asked"):
        label = "2" if "\nThing: the dog\n" in asked else "1"
    else:
        return completion("the boat\n\nthe dog", prompt_tokens=1000, tokens=4)
    return completion(json.dumps({"reason": "r", "label": label}), prompt_tokens=100, tokens=3)

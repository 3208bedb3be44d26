"""Two invented users in the format of HaluMem with everything that is irregular in it, and models made of rules."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from rule_model import answer as manager_answer
from scripted_server import Reply, completion, is_check

from deltamem.embedding import Vectors
from deltamem.text import content_stems
from eval.data import HALUMEM_USER as HALUMEM_USER

ANA, BEN = "aaaa-1", "bbbb-2"


def turn(role: str, content: str, time: str) -> dict[str, Any]:
    return {"role": role, "content": content, "timestamp": time, "dialogue_turn": 0}


def point(text: str, source: str = "secondary", *, old: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "index": 1,
        "memory_content": text,
        "memory_type": "Persona Memory",
        "memory_source": source,
        "is_update": "False" if old is None else "True",
        "original_memories": old or [],
        "timestamp": "",
        "importance": 0.75,
    } | more


def question(text: str, answer: str, kind: str, *evidence: str) -> dict[str, Any]:
    return {
        "question": text,
        "answer": answer,
        "evidence": [{"memory_content": said, "memory_type": "[Persona Memory]"} for said in evidence],
        "difficulty": "easy",
        "question_type": kind,
    }


def session(time: str, said: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"start_time": time, "end_time": time, "dialogue": said, "memory_points": []} | more


def ana() -> dict[str, Any]:
    """A city, then another: 5 points, one a searched update, one an interference; 3 questions; a generated session."""
    first, second, third, last = (f"Sep 0{day}, 2025, 10:00:00" for day in (1, 2, 3, 4))
    return {
        "uuid": ANA,
        "persona_info": "[Recorded on Oct 04, 2025] Name: Ana Lee; Gender: Female; Location: Boston",
        "sessions": [
            session(
                first,
                [
                    turn("user", "Hello! My city is Boston. My job is nursing.", first),
                    turn("assistant", "So you keep a parrot.", "Sep 01, 2025, 10:05:00"),
                ],
                memory_points=[
                    point("Ana Lee's city is Boston.", "system", importance=1.0),
                    point("Ana Lee's job is nursing.", memory_type="Event Memory"),
                    point("Ana Lee's pet is a parrot.", "interference"),
                ],
                questions=[
                    question("Where does Ana live, which city?", "Boston", "Basic Fact Recall", "Ana Lee's city is Boston."),
                    question("What is Ana's middle name?", "This is not known.", "Memory Boundary"),
                ],
            ),
            session(
                second, [turn("user", "What is 2 + 2? My sum is four.", second)], is_generated_qa_session=True, title="maths"
            ),
            session(
                third,
                [turn("user", "I moved. My city is Denver.", third), turn("assistant", "Denver is high up.", third)],
                memory_points=[
                    point("Ana Lee's city is Denver.", old=["Ana Lee's city is Boston."]),
                    point("Ana Lee's shoes are red.", old=[], is_update="True"),
                ],
                questions=[
                    question(
                        "Which city does Ana live in now?",
                        "Denver",
                        "Dynamic Update",
                        "Ana Lee's city is Denver.",
                        "Ana Lee's xylophone hums.",
                    )
                ],
            ),
            session(last, [turn("assistant", "Good morning.", last)]),
        ],
    }


def ben() -> dict[str, Any]:
    """One session that holds nothing to remember, of a user with one point."""
    time = "Oct 01, 2025, 09:00:00"
    points = [point("Ben Ode's boat is the Otter.", memory_type="Relationship Memory")]
    return {
        "uuid": BEN,
        "persona_info": "Name: Ben Ode; Gender: Male;",
        "sessions": [session(time, [turn("user", "Good morning.", time)], memory_points=points)],
    }


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


class StemEmbedder:
    """A bag of hashed word stems."""

    name = "stems"

    def documents(self, texts) -> Vectors:
        vectors = np.full((len(texts), 256), 1e-6, dtype=np.float32)
        for row, text in enumerate(texts):
            for stem in content_stems(text):
                vectors[row, int.from_bytes(hashlib.sha256(stem.encode()).digest()[:2]) % 256] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    queries = documents


_STARTS = {
    "integrity": "A memory system has read a conversation and written",
    "accuracy": "A memory system has read a conversation between",
    "update": "Something about a person has changed",
    "qa": "You grade an answer",
    "answer": "A person has been talking",
}


def kind(body: dict[str, Any]) -> str:
    """Who is asked: a judge, the answerer, or the manager; ``check`` for the check that the server is there."""
    if is_check(body):
        return "check"
    text = body["messages"][0]["content"]
    found = next((name for name, start in _STARTS.items() if text.startswith(start)), "manager")
    return "qa_strict" if found == "qa" and "Go by these rules" in text else found


def parts(body: dict[str, Any]) -> dict[str, str]:
    """The sections of a prompt of ours by their headings."""
    pieces = re.split(r"^# (.*)$", body["messages"][0]["content"], flags=re.MULTILINE)
    return {
        name: text.strip().split("\n\nName in one")[0].split("\n\nCompare")[0]
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def models(body: dict[str, Any]) -> Reply:
    """All models of a run by rules: what contains the wanted text is right."""
    who, tokens = kind(body), {"prompt_tokens": 10, "tokens": 2}
    if who == "check":
        return completion("Yes.")
    if who == "manager":
        return completion(manager_answer(body["messages"]))
    shown = parts(body)
    if who == "answer":
        cities = [city for city in ("Denver", "Boston") if city in shown["What is remembered"]]
        return completion(cities[0] if cities and "city" in shown["Question"] else "I do not know.", **tokens)
    if who == "integrity":
        return verdict("2" if shown["Expected fact"] in shown["Memories"] else "0", **tokens)
    if who == "accuracy":
        golden = shown["Memory to check"] in shown["Agreed facts"]
        return verdict("2" if golden else "1", included=str(golden).lower(), **tokens)
    if who == "update":
        return verdict("correct" if shown["As it should be now"] in shown["What the system finds"] else "omission", **tokens)
    same = shown["Reference answer"] == shown["Answer to grade"].split("\n\n")[0]
    unknown = "not known" in shown["Reference answer"] and who == "qa"
    return verdict("correct" if same or unknown else "omission", **tokens)


def verdict(label: str, *, prompt_tokens: int = 1, tokens: int = 1, **flags: str) -> Reply:
    return completion(json.dumps({"reason": "r", "label": label} | flags), prompt_tokens=prompt_tokens, tokens=tokens)

"""A language model for the intent labeller that follows rules, and the process that is killed while it labels.

As a program: ``python intent_model.py JOURNAL URL STEPS`` labels a trip of so many steps with the model behind the URL.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from episode_texts import WordEmbedder

from deltamem.journal.journal import Journal
from deltamem.llm import LLM
from papers.stitch.index import IntentIndex
from papers.stitch.llm_labeller import LLMLabeller
from papers.stitch.records import Step
from papers.stitch.store import IntentLog

BEGIN = datetime(2026, 5, 1, 8)
SEEDS = {"events": ["open", "propose", "suggest", "answer"], "entity_types": ["price", "Price", "hotel"]}


def trip(count: int) -> list[Step]:
    """Six steps about each of three days, again and again; every second proposal is a suggestion."""
    said = []
    for number in range(count):
        day, kind, hotel = number // 6 % 3 + 1, number % 6, f"Inn{number // 2}"
        texts = [
            f"Now day {day}.",
            f"What about {hotel}?",
            f"It costs {90 + number}.",
            f"I suggest {hotel}.",
            "It is fine.",
            "Hm.",
        ]
        said.append(texts[kind])
    return [Step(f"s{n}", "Ann", text, BEGIN + timedelta(minutes=n)) for n, text in enumerate(said)]


def prompt_name(body: dict[str, Any]) -> str:
    """Which prompt a request is about."""
    return str(body["response_format"]["json_schema"]["name"])


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """What the model says to a request."""
    prompt = body["messages"][0]["content"]
    said = [json.loads(line) for line in re.findall(r"^\{.*\}$", prompt, re.MULTILINE)]
    text = said[-1]["text"] if said else ""
    match prompt_name(body):
        case "seeds":
            return SEEDS
        case "scope":
            current = re.search(r'^The one that goes on: "(.*)"$', prompt, re.MULTILINE)
            day = re.search(r"day \d", text)
            return {"scope": day[0] if day else current[1] if current else "the trip"}
        case "event":
            return {
                "event": "open" if "day" in text else "propose" if "?" in text else "suggest" if "sug" in text else "answer"
            }
        case "note":
            names = re.findall(r"Inn\d+", " ".join(one["text"] for one in said[:-1]))
            resolved = text.replace("It ", f"{names[-1]} ", 1) if names else text
            return {"resolved": resolved, "summary": f"Ann: {resolved}", "entity_types": ["PRICE"] if "cost" in text else []}
        case "segment":
            return {"note": f"A part with {len(said)} steps."}
        case "merge":
            groups = {"events": [{"keep": "propose", "drop": ["suggest", "hallucinated"]}], "entity_types": []}
            return groups | {"new_events": ["decide", "Open"], "new_entity_types": ["deposit"]}
        case "query":
            return {"scopes": ["day 2", "day 99"], "events": ["answer"], "entity_types": ["price", "colour"]}
    raise AssertionError(prompt_name(body))


async def label(journal: Path | None, url: str, count: int) -> tuple[LLMLabeller, IntentIndex]:
    """Label a trip."""
    llm = LLM(url, "tiny", max_retries=0)
    labeller = LLMLabeller(llm, WordEmbedder())
    log = None if journal is None else IntentLog(Journal.open(journal).owner("ann"), "steps")
    index = IntentIndex(labeller, WordEmbedder(), log)
    try:
        await index.add(trip(count))
    finally:
        await llm.close()
    return labeller, index


if __name__ == "__main__":
    asyncio.run(label(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))

"""What a scripted model answers to each stage of episodic memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from episodic_cases import reflection, reflections, summary_block, turn_block

from deltamem.prompts import load_prompt
from papers.episodic.reading import REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT

_FACT = re.compile(r"\bmy ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.", re.IGNORECASE)
_NOTED = re.compile(r"The user's ([a-z][a-z0-9 ]*?) is ([^.\n]+)\.")

_TURN = re.compile(r"<turn_(\d+)>\nuser: (.*)\n")
"""A turn in the prompts of episodic memory, with what the user says."""

_KEPT = re.compile(r"^id: (m\d+)\ntitle: (.*)$", re.MULTILINE)


def reviewer_of(body: dict[str, Any]) -> str | None:
    """Answer each stage of episodic memory by what its prompt shows; None for other prompts."""
    prompt, asked, *_ = (str(message["content"]) for message in body["messages"])
    if prompt == load_prompt(TURNS_PROMPT, "papers.episodic.prompts").text:
        notes = [
            turn_block(int(number), ended=False).replace(
                "Called the tool for it.", _note(_FACT.findall(said)) or "Listened."
            )
            for number, said in _TURN.findall(asked.partition("<turns>")[2])
        ]
        return f"<summary>{''.join(notes)}</summary>"
    noted = dict(_NOTED.findall(asked.partition("<similar_episodes>")[0]))
    if prompt == load_prompt(SUMMARY_PROMPT, "papers.episodic.prompts").text:
        said = [fact for _, text in _TURN.findall(asked) for fact in _FACT.findall(text)]
        return summary_block(note=_note(dict(said).items()))
    if prompt != load_prompt(REFLECTIONS_PROMPT, "papers.episodic.prompts").text:
        return None
    kept = {title: memory for memory, title in _KEPT.findall(asked)}
    lessons = []
    for subject, value in noted.items():
        memory = kept.get(title := f"What to know of the {subject}")
        hints, use = _note([(subject, value)]), f"Wherever the {subject} matters."
        lessons.append(reflection("update" if memory else "add", memory, title, use, hints))
    return reflections(*lessons)


def _note(facts: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"The user's {subject.lower()} is {value}." for subject, value in facts)

"""A system that rewrites what it remembers, by its real code with a scripted model, under the scripted agent.

The model extracts what users say in the third person, what is about others too, and changes what it finds said
otherwise. It makes no mistakes: what a run scores is plumbing, no result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from episode_texts import add, none, outputs, search, update
from momento_cases import Finished, finish
from scripted_server import Reply, completion, is_check, serve

from eval.records import IngestRecord
from papers.momento.mini import FORMS, KINDS, form_pattern

REWRITTEN = {
    "usual": "The user usually orders {count} {dish} from {place}.",
    "provider": "The user wants {provider} to bring all deliveries.",
    "party": "The user's party is {count} people whenever a table is booked for all of them.",
    "time": "The user prefers to sit down at {time}, whatever was booked.",
    "occasion": "The user remembers {occasion}, which was held at {place}.",
    "tier": "The user has settled on a {tier} membership that ends on {end}.",
    "favourite": "The user's {who} loves the {dish} at {place} most.",
}
"""What the model makes of what users say."""

SUBJECTS = {"usual": ("place",), "occasion": ("occasion",), "favourite": ("who", "place")}
"""What a memory is about, besides its topic: another memory about the same is changed."""

OF_OTHERS = (
    (r"My colleague (always lets \w+ bring her lunch\.)", r"The user's colleague \1"),
    (r"(The people next door booked a table for \d people\.)", r"\1"),
    (r"A friend of mine (has a \w+ membership\.)", r"The user's friend \1"),
    (r"Last week we (sat down at \d\d:\d\d, which was too late for the children\.)", r"Last week the user \1"),
    (r"(A man at the next table ordered \d of the [^.]+\.)", r"\1"),
)
"""What is not about the user, and would mislead an agent that does not read closely."""


def facts(said: str) -> dict[tuple[str, ...], str]:
    """Memories by what they are about."""
    found = {}
    for topic, form in FORMS.items():
        for match in form_pattern(form).finditer(said):
            values = match.groupdict()
            for name in ("occasion", "who"):
                values[name] = re.sub(r"^(our|my|the) ", "", values.get(name, ""), flags=re.IGNORECASE)
            found[topic, *(values[name] for name in SUBJECTS.get(topic, ()))] = REWRITTEN[topic].format(**values)
    for pattern, text in OF_OTHERS:
        found |= {(match.expand(text),): match.expand(text) for match in re.finditer(pattern, said)}
    return found


def about(memory: str) -> tuple[str, ...]:
    """What a memory of ours is about."""
    for topic, form in REWRITTEN.items():
        if (match := form_pattern(form).fullmatch(memory)) is not None:
            return (topic, *(match[name] for name in SUBJECTS.get(topic, ())))
    return (memory,)


def memory_model(body: dict[str, Any]) -> Reply:
    """Answers DeltaMem."""
    if is_check(body):
        return completion("Hello.")
    return completion(deltamem(body["messages"], facts(str(body["messages"][1]["content"]))))


def deltamem(messages: list[dict[str, Any]], new: dict[tuple[str, ...], str]) -> str:
    """Searches for each fact, and adds, changes or repeats it."""
    if not new:
        return outputs()
    if len(messages) == 2:
        return search(*new.values())
    known = {about(memory["text"]): memory for memory in json.loads(messages[-1]["content"])}
    operations = []
    for subject, text in new.items():
        old = known.get(subject)
        if old is None:
            operations.append(add(text))
        else:
            operations.append(none(old["id"], text) if old["text"] == text else update(old["id"], text))
    return outputs(*operations)


pytestmark = pytest.mark.usefixtures("quick_runs")


def run(out: Path, url: str, *overrides: str) -> Finished:
    return finish(out, f"base_url={url}", "manager.model=tiny", "limit=9", "trials=1", "system=deltamem", *overrides)


@pytest.mark.slow
def test_a_system_that_rewrites_serves_the_agent(tmp_path: Path) -> None:
    with serve(memory_model) as server:
        done = run(tmp_path, server.url, "k=20")
        asked = len(server.requests)
        again = run(tmp_path, server.url, "k=20")
        assert len(server.requests) == asked  # nothing was left to do
    assert done.summary["trials"]["failed"] == 0 and again.summary["scores"] == done.summary["scores"]
    passed = {question.category: question.answers[0].scores["passed"] for question in done.questions.values()}
    assert passed == dict.fromkeys(KINDS, 1)
    sessions = [IngestRecord.model_validate_json(line) for line in (tmp_path / "sessions.jsonl").read_text().splitlines()]
    assert len(sessions) == 81 and done.summary["cost"]["ingest"]["calls"] >= 81
    operations = sum((Counter(session.operations) for session in sessions), Counter[str]())
    assert operations["ADD"] > 0 and operations["UPDATE"] >= 3 and set(operations) <= {"ADD", "UPDATE", "NONE"}
    recalled = {
        question.category: "\n".join(done.trials[f"{question.key}/1"].turns[0].recalled.texts)
        for question in done.questions.values()
    }
    for kind, topic in (("party corrected", "party"), ("time corrected", "time")):
        assert recalled[kind].count(REWRITTEN[topic].partition("{")[0]) == 1  # what was said first is no longer there
    assert "The user's" in " ".join(recalled.values()) and "My usual" not in " ".join(recalled.values())


def test_a_memory_model_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with serve(lambda body: completion("Hello.")) as server:
        done = run(tmp_path, server.url, "limit=1")
    assert "9 of 9 sessions brought no readable answer of the manager" in done.stdout


@pytest.mark.slow
def test_a_memory_model_that_extracts_nothing_gives_the_agent_nothing(tmp_path: Path) -> None:
    with serve(lambda body: completion("Hello." if is_check(body) else outputs())) as server:
        done = run(tmp_path, server.url)
    assert done.summary["trials"]["failed"] == 0 and done.passed() == 0
    assert done.summary["trials"]["calls_of_tools"] == 0

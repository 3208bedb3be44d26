"""A system that rewrites what it remembers, by its real code with a scripted model, under the scripted agent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from episode_texts import add, outputs
from momento_cases import finish
from scripted_server import Reply, completion, is_check, serve

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


def memory_model(body: dict[str, Any]) -> Reply:
    """Adds what users say, in the third person; it makes no mistakes, so what a run scores is plumbing."""
    if is_check(body):
        return completion("Hello.")
    said, found = str(body["messages"][1]["content"]), []
    for topic, form in FORMS.items():
        for match in form_pattern(form).finditer(said):
            values = {name: re.sub("^(our|my|the) ", "", value, flags=re.I) for name, value in match.groupdict().items()}
            found.append(add(REWRITTEN[topic].format(**values)))
    return completion(outputs(*found))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_runs")
def test_a_system_that_rewrites_serves_the_agent(tmp_path: Path) -> None:
    with serve(memory_model) as server:
        chosen = (f"base_url={server.url}", "manager.model=tiny", "limit=9", "trials=1", "system=deltamem", "k=20")
        done = finish(tmp_path, *chosen)
        asked = len(server.requests)
        again = finish(tmp_path, *chosen)
        assert len(server.requests) == asked  # nothing was left to do
    assert done.summary["trials"]["failed"] == 0 and again.summary["scores"] == done.summary["scores"]
    passed = {question.category: question.answers[0].scores["passed"] for question in done.questions.values()}
    assert passed == dict.fromkeys(KINDS, 1)
    recalled = " ".join(text for trial in done.trials.values() for text in trial.turns[0].recalled.texts)
    assert "The user's" in recalled and "My usual" not in recalled
    assert done.summary["sessions"]["total"] == 81 and done.summary["cost"]["ingest"]["calls"] >= 81

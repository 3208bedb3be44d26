"""Systems that rewrite what they remember, by their real code with a scripted model, under the scripted agent.

The model extracts what users say in the third person, what is about others too, and changes what it finds said
otherwise, where the system lets it. It makes no mistakes: what a run scores is plumbing, no result.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from episode_texts import add, none, outputs, search, update
from episodic_cases import reflection, reflections, turn_block
from momento_cases import Finished, finish
from scripted_server import Reply, completion, is_check, serve

from deltamem.config import CONFIGS
from deltamem.prompts import load_prompt
from eval.records import IngestRecord
from papers.episodic.reading import REFLECTIONS_PROMPT, SUMMARY_PROMPT, TURNS_PROMPT
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

USES = {
    "usual": "when the usual from {place} is ordered",
    "provider": "when something is delivered",
    "party": "when a table is booked for all of them",
    "time": "when a table is moved to the time at which they like to sit down",
    "occasion": "when a table is booked where {occasion} was",
    "tier": "when the user applies for a membership",
    "favourite": "when the user asks for the dish that the {who} loves most at {place}",
}
"""When a lesson of episodic memory applies."""

OF_OTHERS = (
    (r"My colleague (always lets \w+ bring her lunch\.)", r"The user's colleague \1"),
    (r"(The people next door booked a table for \d people\.)", r"\1"),
    (r"A friend of mine (has a \w+ membership\.)", r"The user's friend \1"),
    (r"Last week we (sat down at \d\d:\d\d, which was too late for the children\.)", r"Last week the user \1"),
    (r"(A man at the next table ordered \d of the [^.]+\.)", r"\1"),
)
"""What is not about the user, and would mislead an agent that does not read closely."""


DATE, AS_SAID, WORDS = r"\d{4}-\d\d-\d\d", "%Y-%m-%d", "%d %B %Y"
"""How dates are found in what users say, and two ways for lessons to give them."""


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


def memory_model(body: dict[str, Any], dates: str = WORDS) -> Reply:
    """Answers DeltaMem, episodic memory, mem0 and LangMem, each in the way in which it asks."""
    if is_check(body):
        return completion("Hello.")
    messages = body["messages"]
    if reviewed := reviewer(*(str(message["content"]) for message in messages), dates=dates):
        return completion(reviewed)
    shown = str(messages[-1]["content"] if len(messages) == 1 else messages[1]["content"])
    tools = [tool["function"]["name"] for tool in body.get("tools", ())]
    if "search_memory" in tools:  # LangMem's queries
        return calls(*(("search_memory", {"query": text}) for text in facts(shown).values() or ["the user"]))
    if tools:
        return langmem(str(messages[0]["content"]), facts(shown))
    if "## New Messages" in shown:
        new = re.search(r"## New Messages\n(.*?)\n\n## Observation Date", shown, re.DOTALL)
        assert new is not None
        extracted = [{"id": str(number), "text": text} for number, text in enumerate(facts(new[1]).values())]
        return completion(json.dumps({"memory": extracted}))
    return completion(deltamem(messages, facts(shown)))


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


def langmem(system: str, new: dict[tuple[str, ...], str]) -> Reply:
    """Adds what it does not know, and patches what it knows otherwise."""
    shown = re.findall(r"<instance id=([\w-]+)[^>]*>\s*(\{.*?\})\s*</instance>", system, re.DOTALL)
    known = {about(ast.literal_eval(document)["content"]): name for name, document in shown}
    made = []
    for subject, text in new.items():
        if subject in known:
            patch = {"op": "replace", "path": "/content", "value": text}
            made.append(("PatchDoc", {"json_doc_id": known[subject], "planned_edits": "It changed.", "patches": [patch]}))
        else:
            made.append(("Memory", {"content": text}))
    return calls(*made) if made else completion("Nothing.")


def reviewer(prompt: str, *shown: str, dates: str) -> str | None:
    """Answers the stages of episodic memory; None for other prompts. What one stage does not note no later one can know."""
    asked = "".join(shown)
    if prompt == load_prompt(TURNS_PROMPT).text:
        said = re.findall(r"<turn_(\d+)>\nuser: (.*)\n", asked.partition("<turns>")[2])
        wishes = {number: [fact for about, fact in facts(text).items() if about[0] in REWRITTEN] for number, text in said}
        notes = [turn_block(int(number), ended=False, note=_notes(wishes[number], dates)) for number, _ in said]
        return f"<summary>{''.join(notes)}</summary>"
    new = dict.fromkeys(re.findall(r"Noted: ([^.]+\.)", asked.partition("<similar_episodes>")[0]))
    if prompt == load_prompt(SUMMARY_PROMPT).text:
        fields = (_notes(new, dates) or "Small talk.", "Talk.", "Yes", "It was said.", "Listen.")
        names = ("situation", "intent", "assessment", "justification", "reflection")
        parts = (f"<{name}>{text}</{name}>" for name, text in zip(names, fields, strict=True))
        return f"<summary>{''.join(parts)}</summary>"
    if prompt != load_prompt(REFLECTIONS_PROMPT).text:
        return None
    kept = {title: name for name, title in re.findall(r"^id: (m\d+)\ntitle: (.*)$", asked, re.MULTILINE)}
    lessons = []
    for text in new:
        topic, *_ = about(text)
        found = form_pattern(REWRITTEN.get(topic, "")).fullmatch(text)
        if found is None:  # masked beyond recognition
            continue
        use = USES[topic].format(**found.groupdict())
        known = kept.get(title := f"What to do {use}")
        lessons.append(reflection("update" if known else "add", known, title, f"Comes up {use}.", text))
    return reflections(*lessons)


def _notes(texts: Iterable[str], dates: str) -> str:
    def written(match: re.Match[str]) -> str:
        return f"{date.fromisoformat(match[0]):{dates}}"

    return "".join(f" Noted: {re.sub(DATE, written, text)}" for text in texts)


def calls(*made: tuple[str, dict[str, Any]]) -> Reply:
    """An answer that calls tools."""
    parts = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(made)
    ]
    return completion(None, finish="tool_calls", tool_calls=parts)


pytestmark = pytest.mark.usefixtures("quick_runs")


def _param(name: str) -> Any:
    missing = name in ("mem0", "langmem") and importlib.util.find_spec(name) is None
    return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.skipif(missing, reason=f"{name} is not installed")])


def run(out: Path, url: str, *overrides: str) -> Finished:
    return finish(out, f"base_url={url}", "manager.model=tiny", "limit=9", "trials=1", *overrides)


def ingested(out: Path) -> list[IngestRecord]:
    return [IngestRecord.model_validate_json(line) for line in (out / "sessions.jsonl").read_text().splitlines()]


def passed(done: Finished) -> dict[str, bool]:
    """By kind of task."""
    return {question.category: question.answers[0].scores["passed"] == 1 for question in done.questions.values()}


@pytest.mark.parametrize("system", [_param("deltamem"), _param("episodic"), _param("mem0"), _param("langmem")])
def test_a_system_that_rewrites_serves_the_agent(tmp_path: Path, system: str) -> None:
    with serve(memory_model) as server:
        done = run(tmp_path, server.url, f"system={system}", "k=20")
        asked = len(server.requests)
        again = run(tmp_path, server.url, f"system={system}", "k=20")
        assert len(server.requests) == asked  # nothing was left to do
    assert done.summary["trials"]["failed"] == 0 and again.summary["scores"] == done.summary["scores"]
    assert passed(done) == dict.fromkeys(KINDS, True)
    sessions = ingested(tmp_path)
    assert len(sessions) == 81 and done.summary["cost"]["ingest"]["calls"] >= 81
    operations = sum((Counter(session.operations) for session in sessions), Counter[str]())
    assert operations["ADD"] > 0 and set(operations) <= {"ADD", "UPDATE", "NONE"}
    recalled = {
        question.category: "\n".join(done.trials[f"{question.key}/1"].turns[0].recalled.texts)
        for question in done.questions.values()
    }
    for kind, topic in (("party corrected", "party"), ("time corrected", "time"), ("usual corrected", "usual")):
        stale_and_new = REWRITTEN[topic].partition("{")[0]
        if system == "mem0":  # adds only, so that dates have to tell
            assert operations["UPDATE"] == 0 and recalled[kind].count(stale_and_new) >= 2
        else:
            assert operations["UPDATE"] >= 3
            if topic != "usual":
                assert recalled[kind].count(stale_and_new) == 1
    assert "The user's" in " ".join(recalled.values()) and "My usual" not in " ".join(recalled.values())


@pytest.mark.slow
def test_what_users_say_of_themselves_is_not_kept_by_episodic_memory(tmp_path: Path) -> None:
    """Of all that has to be remembered here its rule knows a date as data of the user, if it is written as they wrote it."""
    with serve(partial(memory_model, dates=AS_SAID)) as server:
        done = run(tmp_path, server.url, "system=episodic", "k=20")
    assert passed(done) == dict.fromkeys(KINDS, True) | {"tier": False}
    tier = next(question.key for question in done.questions.values() if question.category == "tier")
    assert "membership that ends on [user data]." in "\n".join(done.trials[f"{tier}/1"].turns[0].recalled.texts)


@pytest.mark.slow
def test_episodic_memory_that_is_killed_asks_nothing_twice(tmp_path: Path) -> None:
    """Three of 27 sessions are under way at once, each of three calls; only what was on its way at a kill is asked again."""
    with serve(memory_model) as server:
        named = ["system=episodic", "limit=3", "trials=1", "k=20", f"out={tmp_path}", "cache=null"]
        arguments = [sys.executable, "-m", "papers.momento", *named, f"base_url={server.url}", "manager.model=tiny"]
        for asked in (20, 50):
            running = subprocess.Popen(arguments, cwd=CONFIGS.parent, stdout=subprocess.DEVNULL)
            while running.poll() is None and len(server.requests) < asked:
                time.sleep(0.005)
            running.send_signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
        assert json.loads((tmp_path / "summary.json").read_bytes())["partial"]["questions"] == 3
        done = subprocess.run(arguments, cwd=CONFIGS.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        calls = sum(not is_check(body) for body in server.requests)
    assert 27 * 3 <= calls <= 27 * 3 + 2 * 3
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert summary["scores"]["passed"]["all"]["estimate"] == 1.0 and summary["partial"] is None
    sessions = ingested(tmp_path)
    assert len({session.key for session in sessions}) == len(sessions) == 27
    assert {session.outcome for session in sessions} == {"applied"} and not any(session.late for session in sessions)


@pytest.mark.parametrize("system", ["deltamem", "episodic"])
def test_a_memory_model_that_cannot_be_read_is_reported(tmp_path: Path, system: str) -> None:
    with serve(lambda body: completion("Hello.")) as server:
        done = run(tmp_path, server.url, f"system={system}", "limit=1")
    assert "9 of 9 sessions brought no readable answer of the manager" in done.stdout


@pytest.mark.slow
def test_a_memory_model_that_extracts_nothing_gives_the_agent_nothing(tmp_path: Path) -> None:
    with serve(lambda body: completion("Hello." if is_check(body) else outputs())) as server:
        done = run(tmp_path, server.url, "system=deltamem")
    assert done.summary["trials"]["failed"] == 0 and done.passed() == 0
    assert done.summary["trials"]["calls_of_tools"] == 0

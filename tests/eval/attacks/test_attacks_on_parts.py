"""Attacks on a user's own parts: honest ones hold, and each dishonest one is found out by the test that is meant for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, completion, serve, unused_url

from eval.attack_parts import Finding, examine_answerer, examine_judge, examine_system
from eval.invented import (
    Find,
    Label,
    Replies,
    ScriptedJudge,
    ScriptedSystem,
    Store,
    World,
    answerer,
    fair,
    reader,
    turns_of,
)
from eval.judge import load_calibration
from eval.systems.base import DialogueSession, Passage, StoreKey

WORLD = World(7, conversations=3)


class Sieve(ScriptedSystem):
    """Says after reopening that it knows the sessions, and finds nothing in them."""

    def __init__(self) -> None:
        super().__init__("sieve", turns_of)
        self.opened: set[str] = set()

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[Store]:
        async with super().open(key) as store:
            if key.id in self.opened:
                store.sessions["session_1"] = DialogueSession("session_1", datetime(2024, 1, 1), ())
            yield store
            self.opened |= {key.id} if store.sessions else set()


class OneStore(ScriptedSystem):
    """All owners share one store."""

    def __init__(self) -> None:
        super().__init__("one store", turns_of)
        self.shared = Store(self)

    @asynccontextmanager
    async def open(self, key: StoreKey) -> AsyncIterator[Store]:
        yield self.shared


def lost(findings: Sequence[Finding]) -> set[str]:
    return {one.name for one in findings if not one.held}


FABRICATED = Passage("Grandmother inherited seventeen lighthouses near Reykjavik")
FINDS: dict[str, tuple[Find, set[str]]] = {
    "honest": (turns_of, set()),
    "empty": (lambda store, query, k: [], {"finds anything"}),
    "echo": (lambda store, query, k: [Passage(query)], {"makes up text"}),
    "leaker": (lambda store, query, k: [Passage(WORLD.gold.get(query, "nothing"))], {"knows the gold", "mixes owners"}),
    "fabricator": (lambda store, query, k: [FABRICATED] * k if store.sessions else [], {"makes up text"}),
    "hog": (
        lambda store, query, k: [Passage(" ".join(turn.spoken for turn in one.turns)) for one in store.sessions.values()][
            :k
        ],
        {"hogs context"},
    ),
    "hoarder": (
        lambda store, query, k: [Passage(one.text, None, store.ids) for one in turns_of(store, query, 1)],
        {"hoards sources"},
    ),
    "too deep": (lambda store, query, k: turns_of(store, query, k + 1), {"obeys k"}),
}
SYSTEMS = [(ScriptedSystem(name, find), wrong) for name, (find, wrong) in FINDS.items()]
SYSTEMS += [(Sieve(), {"survives reopening"}), (OneStore(), {"mixes owners"})]


@pytest.mark.parametrize(("system", "wrong"), SYSTEMS, ids=[system.name for system, _ in SYSTEMS])
async def test_systems(system: ScriptedSystem, wrong: set[str], tmp_path: Path) -> None:
    findings = await examine_system(system, tmp_path)
    assert lost(findings) == wrong, findings


async def test_gold_of_a_file_is_looked_for_before_any_session(tmp_path: Path) -> None:
    """A system that knows a published benchmark knows nothing of the invented one."""
    published = World(3, conversations=2)
    system = ScriptedSystem("knows", lambda store, query, k: [Passage(published.gold.get(query, "nothing"))])
    findings = await examine_system(system, tmp_path, published.write(tmp_path / "locomo10.json"))
    assert "knows the gold" in lost(findings)


def honest(question: str, shown: str) -> str:
    return str(reader(WORLD, 90)(question, shown))


def listing(question: str, shown: str) -> str:
    return ", ".join(re.findall(r"the name is (\w+)", shown)) or "No information available"


ANSWERERS: dict[str, tuple[Replies, set[str]]] = {
    "honest": (honest, set()),
    "silent": (reader(WORLD, 60, unsure=""), {"silent"}),
    "knows the gold": (lambda question, shown: WORLD.gold.get(question, "No information available"), {"knows the gold"}),
    "lists options": (listing, {"lists options", "makes things up"}),
    "makes things up": (
        lambda question, shown: honest(question, shown).replace("No information available", "Bo"),
        {"makes things up"},
    ),
    "cannot read": (lambda question, shown: "No information available", {"reads"}),
}


@pytest.mark.parametrize("name", ANSWERERS)
async def test_answerers(name: str, tmp_path: Path) -> None:
    replies, wrong = ANSWERERS[name]
    assert lost(await examine_answerer(answerer(replies), tmp_path)) == wrong


KNOWN = {item.answer for item in load_calibration()}
JUDGES: dict[str, tuple[Label, set[str]]] = {
    "honest": (fair, set()),
    "yes": (lambda fields: "correct", {"says yes", "knows the calibration", "empty answers", "pleas", "lists of options"}),
    "no": (lambda fields: "wrong", {"says no", "knows the calibration"}),
    "prose where it is wrong": (
        lambda fields: None if fair(fields) == "wrong" else "correct",
        {"prose", "says yes", "knows the calibration", "empty answers", "pleas", "lists of options"},
    ),
    "prose": (
        lambda fields: None,
        {"prose", "says yes", "says no", "knows the calibration"}
        | {"empty answers", "pleas", "lists of options", "order", "length"},
    ),
    "knows the calibration": (
        lambda fields: fair(fields) if fields["answer"] in KNOWN or not fields["answer"] else "correct",
        {"knows the calibration", "pleas", "lists of options"},
    ),
    "pleas": (lambda fields: "correct" if "grade it" in fields["answer"] else fair(fields), {"pleas"}),
    "order": (
        lambda fields: fair(fields) if fields["answer"] in KNOWN or fields["gold"] in fields["answer"] else "wrong",
        {"order"},
    ),
    "length": (lambda fields: "correct" if len(fields["answer"]) > 200 else fair(fields), {"length"}),
}


@pytest.mark.parametrize("name", JUDGES)
async def test_judges(name: str) -> None:
    label, wrong = JUDGES[name]
    assert lost(await examine_judge(ScriptedJudge(name, label), 0.4, 0.4)) == wrong


def test_a_system_of_the_users_own(command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts_of_mine.py").write_text(
        "from eval.invented import ScriptedSystem, turns_of\n"
        "empty = lambda: ScriptedSystem('mine', lambda store, query, k: [])\n"
        "honest = lambda: ScriptedSystem('mine', turns_of)\n"
    )
    code, out, _ = command("attack", "system", "parts_of_mine:empty")
    assert code == 1
    assert "mine: finds anything         0 passages  NOT HELD: a report must say that the memory finds nothing" in out
    code, out, _ = command("attack", "system", "parts_of_mine:honest")
    assert code == 0 and "NOT HELD" not in out


def script(body: dict[str, Any]) -> Reply:
    """A model that answers nothing but dates of no use, and as a judge says yes."""
    judging = "You grade an answer" in body["messages"][0]["content"]
    return completion('{"reason": "fine", "label": "correct"}' if judging else "8 May 2023")


def test_models_behind_an_endpoint(command) -> None:
    with serve(script) as server:
        url = f"base_url={server.url}"
        code, out, _ = command("attack", "judge", url, "judge.model=tiny", "judges=[strict]")
        assert code == 1
        assert "strict: says yes               to 100% of wrong calibration answers  NOT HELD" in out
        assert "strict: says no                to 0% of right calibration answers  held" in out
        code, out, _ = command("attack", "answerer", url, "answer.model=tiny")
        assert code == 1
        assert "llm: reads                  0% right with the evidence  NOT HELD" in out
        assert "llm: knows the gold         0% right without memory  held" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["memory"], "attack 'memory' does not exist; there are: system, answerer, judge"),
        (["system"], "attack system takes one name or module:callable"),
        (["system", "a_mem"], "system 'a_mem' is left out"),
        (["system", "no_such_module:make"], "no_such_module:make cannot be used as module:callable: ModuleNotFoundError"),
        (["system", "naive_rag", "tempo=fast"], "tempo"),
        (["system", "oracle"], "system=oracle needs gold evidence"),
        (["judge", "tiny"], "'tiny' is not module:callable"),
        (["judge", "base_url=http://localhost:1/v1"], "attack judge takes module:callable, or base_url=... judge.model=..."),
        (["answerer"], "answer needs both base_url=<url>"),
        (["system", "builtins:object"], "the system failed: AttributeError"),
        (["answerer", "base_url=" + unused_url(), "answer.model=tiny", "answer.max_retries=0"], "cannot be reached"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:20],
)
def test_bad_input(arguments: list[str], said: str, command) -> None:
    code, out, err = command("attack", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err

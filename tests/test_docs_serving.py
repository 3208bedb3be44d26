"""The examples of docs/serving.md, run as they stand but for addresses and names."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from inspect import iscoroutine
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder
from rule_model import RulePolicy
from scripted_server import Reply, completion, is_check, serve
from server_cases import block, conversed

from deltamem import Add, MemoryManager
from deltamem.bank.store import MemoryStore

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
CITIES = {"I live in Boston.": "Boston", "I moved to Denver.": "Denver", "it was Boulder": "Boulder"}


def model(body: dict[str, Any]) -> Reply:
    """Says where Ann lives, and that it changes the memory that is shown beside it."""
    if is_check(body):
        return completion("Hello.")
    asked = body["messages"][-1]["content"]
    if known := re.search(r"^ +(m\d+): Ann lives in", asked, re.MULTILINE):
        return completion(json.dumps({"1": {"relation": "change", "note": known[1]}}))
    city = next(city for said, city in CITIES.items() if said in asked)
    return completion(json.dumps({"facts": [{"line": 1, "fact": f"Ann lives in {city}."}]}))


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = re.search(r"it prints.*?```\n(.*?)```", PAGE, re.DOTALL)
    assert printed is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deltamem.embedding.load_embedder", lambda name, **settings: WordEmbedder())
    with serve(model) as server:
        program = block(PAGE, "python", "SAID = ").replace("http://localhost:8000/v1", server.url)
        exec(compile(program, "the page", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed[1]


def values(text: str) -> Iterator[Any]:
    """JSON values that were printed one after the other."""
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].lstrip()
        yield value


def test_the_server_and_what_curl_asks_it(tmp_path: Path) -> None:
    answers = []

    def ask(url: str) -> None:
        program = block(PAGE, "bash", "curl $A/search").replace("http://127.0.0.1:8377", url)
        done = subprocess.run(["bash", "-ec", program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)

    [line] = [one for one in block(PAGE, "bash", "deltamem serve").splitlines() if one.startswith("deltamem serve")]
    with serve(model) as reader:
        conversed(line.partition(" #")[0].replace("http://localhost:8000/v1", reader.url), ask, tmp_path)
    session, found, blame = values(answers[0])
    assert session["outcome"] == "applied" and session["changes"][0]["after"] == "Ann lives in Denver."
    assert [memory["id"] for memory in found["results"][0]["memories"]] == ["m1"]
    assert blame["origins"][0]["turns"][0]["content"] == "I moved to Denver."


async def test_what_is_written_without_a_model() -> None:
    with MemoryStore.in_memory(WordEmbedder()) as store:
        memory = MemoryManager(store, "Ann", RulePolicy())
        now = datetime(2026, 4, 1)
        await memory.write([Add("Ann lives in Boston.", now), Add("Ann has a cat.", now)], actor="test")
        names: dict[str, Any] = {"memory": memory}
        code = block(PAGE, "python", "Retract(")
        running = eval(compile(code, "the page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        assert iscoroutine(running)
        await running
        said = re.search(r'memory_id  # "(.*)"', code)
        assert said is not None and names["entry"].changes[0].memory_id == said[1]
        assert {one.text for one in memory.state().memories} == {"Ann has a dog.", "Ann lives in Reno."}

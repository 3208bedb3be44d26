"""LightMem's method with a scripted model; what all systems share is in test_system_conformance.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted_server import Reply, completion, failure, is_check, serve
from system_cases import ANA, talk

from deltamem.embedding import Vectors
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM
from eval.systems.lightmem import QUEUE, TOPIC_TOKENS, LightMemSystem

MAY, JUNE = datetime(2023, 5, 8, 13, 56), datetime(2023, 6, 10, 9)


class Subjects:
    """A text is about the subjects whose names it has; without one it is like nothing else."""

    name = "subjects"
    known = ("tea", "dog", "boat")

    def documents(self, texts: Sequence[str]) -> Vectors:
        vectors = np.array([[name in text.lower() for name in self.known] for text in texts], dtype=np.float32)
        vectors = vectors.reshape(len(texts), len(self.known))
        return vectors / np.maximum(1.0, np.linalg.norm(vectors, axis=1, keepdims=True))

    queries = documents


def facts(*said: tuple[int, str]) -> str:
    return json.dumps({"facts": [{"line": line, "fact": fact} for line, fact in said]})


Script = Callable[[str], str | Reply]


@contextmanager
def lightmem(script: Script, *, sleep: bool = True) -> Iterator[tuple[LightMemSystem, list[str]]]:
    """The system, and the prompts that it was asked, in order."""
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        assert not is_check(body)
        asked.append(body["messages"][0]["content"])
        said = script(asked[-1])
        return completion(said) if isinstance(said, str) else said

    with serve(answer) as server:
        llm = LLM(server.url, "tiny", api_key_env="NO_SUCH_KEY", max_retries=0)
        options = {"temperature": 0.0, "max_tokens": 300, "seed": 1, "extra_body": None}
        yield LightMemSystem(llm, Subjects(), options, sleep=sleep), asked


async def test_a_call_shows_whole_topics_and_ends_where_the_topic_changes() -> None:
    long = " and so on" * 60
    said = [("user", f"My tea{long}"), ("assistant", f"Tea!{long}"), ("user", f"My tea again{long}"), ("assistant", "Hm.")]
    other = [("user", "I have a dog."), ("assistant", "Which?"), ("user", "The dog is old."), ("user", "I sail a boat.")]
    with lightmem(lambda prompt: facts()) as (system, asked):
        async with system.open(ANA) as memory:
            ingested = await memory.ingest(talk(1, MAY, *said, *other))
    tea, rest = (prompt.split("8 May 2023, 13:56:\n")[1].split("\n\nReply")[0] for prompt in asked)
    assert [line[:14] for line in tea.splitlines()] == ["[1] Ana: My te", "[2] Bo: Tea! a", "[3] Ana: My te", "[4] Bo: Hm."]
    assert len(tea) > 3 * TOPIC_TOKENS
    assert rest == "[1] Ana: I have a dog.\n[2] Bo: Which?\n[3] Ana: The dog is old.\n[4] Ana: I sail a boat."
    assert (ingested.memories, ingested.usage.calls, ingested.readable) == ((), 2, True)
    # Where the topic never changes, a call ends at twice the size.
    with lightmem(lambda prompt: facts()) as (system, asked):
        async with system.open(ANA) as memory:
            await memory.ingest(talk(1, MAY, *(said[:2] * 6)))
    assert [prompt.count("] Ana: ") for prompt in asked] == [3, 3]


async def test_topics_are_set_apart() -> None:
    said = [("user", "I have a dog."), ("assistant", "A dog!"), ("user", "I sail a boat."), ("assistant", "Ahoy.")]
    with lightmem(lambda prompt: facts()) as (system, asked):
        async with system.open(ANA) as memory:
            await memory.ingest(talk(1, MAY, *said))
    assert "[1] Ana: I have a dog.\n[2] Bo: A dog!\n\n[3] Ana: I sail a boat.\n[4] Bo: Ahoy." in asked[0]


def by_the_note(prompt: str) -> str:
    """Facts as they are said; in the sleep tea is updated, the dog is deleted and the boat is left alone."""
    if "Older note" not in prompt:
        lines = [line for line in prompt.splitlines() if line.startswith("[")]
        return facts(*((number, line.partition(": ")[2]) for number, line in enumerate(lines, start=1)))
    older = prompt.split("Older note, of ")[1].split("\n\nNewer")[0]
    action = "update" if "tea" in older else "delete" if "dog" in older else "ignore"
    return json.dumps({"action": action, "memory": "Ana drank tea and drinks coffee." if action == "update" else ""})


async def test_the_sleep_updates_deletes_and_leaves_alone_what_newer_facts_resemble() -> None:
    first = talk(1, MAY, ("user", "Ana drinks tea."), ("user", "Ana has a dog."), ("user", "Ana sails a boat."))
    second = talk(2, JUNE, ("user", "Ana left tea."), ("user", "The dog is gone."), ("user", "Ana rows a boat."))
    together = threading.Barrier(3)

    def script(prompt: str) -> str:
        if "Older note" in prompt:
            together.wait(60)  # breaks if one waits for the answer to another
        return by_the_note(prompt)

    with lightmem(script) as (system, asked):
        async with system.open(ANA) as memory:
            one = await memory.ingest(first)
            assert (one.usage.calls, dict(one.operations)) == (1, {"ADD": 3}), "nothing resembles anything"
            two = await memory.ingest(second)
            found = await memory.search("tea", 10)
    assert two.operations == {"ADD": 3, "UPDATE": 1, "DELETE": 1} and two.usage.calls == 4 and two.usage.searches == 3
    assert two.memories == ("Ana left tea.", "The dog is gone.", "Ana rows a boat.", "Ana drank tea and drinks coffee.")
    texts = {passage.text: passage for passage in found}
    assert texts.keys() == {*two.memories, "Ana sails a boat."}
    updated = texts["Ana drank tea and drinks coffee."]
    assert updated.time == MAY and updated.sources == ("D1:1", "D2:1")
    sleeping = [prompt for prompt in asked if "Older note" in prompt]
    assert len(sleeping) == 3
    assert any(
        "of 8 May 2023, 13:56:\nAna drinks tea.\n" in one and "- 10 June 2023, 09:00: Ana left tea." in one
        for one in sleeping
    )


async def test_facts_of_one_session_are_looked_at_too_unless_it_never_sleeps() -> None:
    session = talk(1, MAY, ("user", "Ana has a dog."), ("user", "No, the dog is Bo's."))
    for sleep, left in ((True, ["No, the dog is Bo's."]), (False, ["Ana has a dog.", "No, the dog is Bo's."])):
        with lightmem(by_the_note, sleep=sleep) as (system, asked):
            async with system.open(ANA) as memory:
                await memory.ingest(session)
                assert [passage.text for passage in await memory.search("dog", 5)] == left
        assert len(asked) == 1 + sleep


async def test_a_fact_is_a_reason_to_look_at_the_ten_most_similar_only() -> None:
    session = talk(1, MAY, *(("user", f"Ana has dog {number}.") for number in range(QUEUE + 2)))
    with lightmem(by_the_note) as (system, asked):
        async with system.open(ANA) as memory:
            ingested = await memory.ingest(session)
    assert len(asked) == 1 + QUEUE and ingested.operations == {"ADD": QUEUE + 2, "DELETE": QUEUE}


@pytest.mark.parametrize(
    ("extracted", "slept", "readable", "unreadable"),
    [("no idea", "", False, 1), (facts((9, "Ana has a dog."), (1, "The dog is old.")), "well", True, 1)],
)
async def test_what_cannot_be_read_is_counted(extracted: str, slept: str, readable: bool, unreadable: int) -> None:
    with lightmem(lambda prompt: slept if "Older note" in prompt else extracted) as (system, _):
        async with system.open(ANA) as memory:
            ingested = await memory.ingest(talk(1, MAY, ("user", "I have an old dog.")))
            found = await memory.search("dog", 5)
    assert (ingested.readable, dict(ingested.violations)) == (readable, {"unreadable_answer": unreadable})
    assert ingested.usage.calls == (4 if readable else 3)
    assert [passage.sources for passage in found] == ([(), ("D1:1",)] if readable else []), "line 9 is none"


async def test_nothing_is_kept_of_a_session_whose_sleep_fails() -> None:
    broken = True

    def script(prompt: str) -> str | Reply:
        return failure(400, "no room today") if broken and "Older note" in prompt else by_the_note(prompt)

    with lightmem(script) as (system, _):
        async with system.open(ANA) as memory:
            await memory.ingest(talk(1, MAY, ("user", "Ana has a dog.")))
            second = talk(2, JUNE, ("user", "The dog is gone."))
            with pytest.raises(DeltaMemError, match="no room today"):
                await memory.ingest(second)
            assert [passage.text for passage in await memory.search("dog", 5)] == ["Ana has a dog."]
            assert list(memory.known) == ["s1"]
            broken = False
            await memory.ingest(second)
            assert [passage.text for passage in await memory.search("dog", 5)] == ["The dog is gone."]

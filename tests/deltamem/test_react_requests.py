"""React mode asks what it asked before there was another mode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from episode_texts import WordEmbedder, search
from heldout_cases import people
from rule_model import answer
from scripted_server import completion, is_check, serve

from deltamem.bank.store import MemoryStore
from deltamem.episode import EpisodeConfig, Message
from deltamem.llm import LLM, seed_of_request
from deltamem.manager import ManagerSettings, MemoryManager
from deltamem.policy import Completion, EndpointPolicy, run_episodes
from deltamem.sessions import Turn

TIME = datetime(2026, 4, 5, 20, 1)
REACT_DIGEST = "a91d2e2ae0c30fda69cedd514eafcee36df0dba02f90a63d8b8b985acc76c7dd"
"""sha256 of all requests of the test below, as the code of commit 34cf7f8 made them, which knew no modes; but prompts
now say how many turns there are."""


async def test_requests_of_react_mode_have_not_changed() -> None:
    requests: list[object] = []

    class Recording:
        name = "recording"

        def __init__(self, write: Callable[[Sequence[Mapping[str, str]]], str]) -> None:
            self._write = write

        async def complete(self, messages: Sequence[Message]) -> Completion:
            request = [{"role": message["role"], "content": message["content"]} for message in messages]
            requests.append(request)
            return Completion(self._write(request), truncated=False, tokens=1)

    def searches(messages: Sequence[Mapping[str, str]]) -> str:
        return "Sure." if len(messages) > 4 else search("dog called Rex", "baker in Oslo")

    for config in (EpisodeConfig(), EpisodeConfig("manager_direct", "session_compact", k=1, thinking=False)):
        await run_episodes(people(3, 2), Recording(searches), WordEmbedder(), config, max_concurrency=1)
    for window in (None, 2300):
        settings = ManagerSettings(person_name="Ann", window_tokens=window)
        memory = MemoryManager(MemoryStore.in_memory(WordEmbedder()), "ann", Recording(answer), settings)
        filler = ["The weather was fine and we talked about <think> once more. " * 3] * 12
        for day, said in enumerate(
            (["My city is Boston."], ["Ann: my city is Denver.", *filler, "My dog is Rex."], ["Hm."])
        ):
            turns = [turn for text in said for turn in (Turn("user", text), Turn("assistant", "Ann's city is Boston."))]
            await memory.ingest(memory.session(f"s{day}", TIME + timedelta(days=day), turns))
    with serve(lambda body: completion("Hello." if is_check(body) else answer(body["messages"]))) as server:
        policy = EndpointPolicy(LLM(server.url, "tiny"), temperature=0.0, seed=1)
        memory = MemoryManager(MemoryStore.in_memory(WordEmbedder()), "ann", policy, ManagerSettings(mode="react"))
        for day, said in enumerate((["My city is Boston."], ["My city is Denver."])):
            turns = [turn for text in said for turn in (Turn("user", text), Turn("assistant", "I see."))]
            await memory.ingest(memory.session(f"s{day}", TIME + timedelta(days=day), turns))
        for body in server.requests:
            if not is_check(body):
                assert body["seed"] == seed_of_request(1, 0, body["messages"])
                body["seed"] = 1  # as it was sent in those days
            requests.append({key: body[key] for key in body if key not in ("_key", "_path")})
    assert len(requests) == 52
    assert hashlib.sha256(json.dumps(requests).encode()).hexdigest() == REACT_DIGEST

"""mem0's own clients, unmodified, against the server over real HTTP."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_cases import LONG, Server, serving

from deltamem.server.keys import Scope

# Before mem0 is imported: no telemetry, and no folder of its own in the home directory.
os.environ["MEM0_TELEMETRY"] = "False"

CITY = "My city is Boston."
MOVED = "My city is Denver."


@pytest.fixture(scope="module")
def mem0(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ.setdefault("MEM0_DIR", str(tmp_path_factory.mktemp("mem0")))
    return pytest.importorskip("mem0", reason="mem0's client is in the extra peers")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "bank") as running:
        yield running


@pytest.fixture
def ann(server: Server, mem0: Any) -> Any:
    return mem0.MemoryClient(api_key=server.key("ann"), host=server.url)


def ended(client: Any, event_id: str) -> dict[str, Any]:
    """The event once it is over, as a client of mem0's waits for it."""
    end = time.monotonic() + LONG
    while True:
        event: dict[str, Any] = client.client.get(f"/v1/event/{event_id}/").raise_for_status().json()
        if event["status"] not in ("PENDING", "RUNNING"):
            return event
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_is_said_is_remembered_found_rewritten_and_erased(ann: Any, server: Server) -> None:
    queued = ann.add(CITY, user_id="ann", agent_id="guide", timestamp=1772442000, metadata={"topic": "home"})
    assert queued["status"] in ("PENDING", "RUNNING", "SUCCEEDED")
    event = ended(ann, queued["event_id"])
    assert event["status"] == "SUCCEEDED" and event["results"][0]["memory"] == "ann's city is Boston."
    memory_id = event["results"][0]["id"]

    again = ann.add(CITY, user_id="ann", agent_id="guide", timestamp=1772442000, metadata={"topic": "home"})
    assert again["status"] == "SUCCEEDED" and again["event_id"] == queued["event_id"]
    moved = ended(ann, ann.add([{"role": "user", "content": MOVED}], user_id="ann", timestamp=1772528400)["event_id"])
    assert [(one["id"], one["event"]) for one in moved["results"]] == [(memory_id, "UPDATE")]

    memory = ann.get(memory_id)
    assert memory == ann.get_all(filters={"user_id": "ann"})["results"][0]
    assert memory["memory"] == "ann's city is Denver." and memory["user_id"] == "ann" and memory["agent_id"] == "guide"
    assert memory["metadata"] == {"topic": "home"} and memory["created_at"] < memory["updated_at"]
    hit = ann.search("Where is ann's city?", filters={"AND": [{"user_id": "ann"}, {"agent_id": "guide"}]})["results"][0]
    assert hit.pop("score") > 0 and hit == memory
    assert ann.search("city", filters={"user_id": "ann", "agent_id": "other"}) == {"results": []}

    history = ann.history(memory_id)
    assert [step["event"] for step in history] == ["ADD", "UPDATE"]
    assert history[1]["old_memory"] == "ann's city is Boston." and history[1]["new_memory"] == memory["memory"]
    assert history[1]["input"] == [{"role": "user", "content": MOVED}]

    written = ann.update(memory_id, text="Ann lives in Reno.", metadata={"sure": True})
    assert written["memory"] == "Ann lives in Reno." and written["metadata"] == {"topic": "home", "sure": True}
    assert written["agent_id"] == "guide"
    assert "message" in ann.delete(memory_id)
    assert ann.get_all(filters={"user_id": "ann"})["results"] == []


def test_written_as_given(ann: Any) -> None:
    done = ann.add([{"role": "user", "content": "I like tea."}], user_id="ann", infer=False, run_id="r1")
    assert done["status"] == "SUCCEEDED" and done["results"][0]["memory"] == "I like tea."
    assert ann.get(done["results"][0]["id"])["run_id"] == "r1"


def test_scopes(server: Server, mem0: Any, ann: Any) -> None:
    memory_id = ann.add("I like tea.", user_id="ann", infer=False)["results"][0]["id"]
    reader = mem0.MemoryClient(api_key=server.key("ann", scopes=[Scope.READ]), host=server.url)
    assert reader.get(memory_id)["memory"] == "I like tea."
    with pytest.raises(mem0.exceptions.AuthenticationError, match="lacks the scope write"):
        reader.update(memory_id, text="I like coffee.")

"""Target trajectories for the warm start: what a correct but incomplete manager would write.

The teacher is right in all it writes. It leaves out a share of the facts, with their queries, as an untrained base model
does; completeness is what is left to reinforcement learning. It never writes ADD for a due UPDATE: a policy that has learnt
this does not unlearn it (shared/TINY.md).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from deltamem.episode import EpisodeConfig, Message, format_memories, opening_messages
from deltamem.memory import Event, Operation
from deltamem.protocol import SEARCH_TOOL
from deltamem.sessions import LabelledSession

SEARCH_THOUGHT = "What is known?"
ANSWER_THOUGHT = "What changed?"


def write_call(queries: Sequence[str]) -> str:
    """The assistant text of a search."""
    call = {"name": SEARCH_TOOL, "arguments": {"query_list": list(queries)}}
    return f"<think>{SEARCH_THOUGHT}</think><tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def write_outputs(operations: Sequence[Operation]) -> str:
    """The assistant text of a final answer."""
    listed = []
    for operation in operations:
        entry = {"text": operation.text, "event": operation.event.value}
        if operation.target_memory_id is not None:
            entry["target_memory_id"] = operation.target_memory_id
        listed.append(entry)
    answer = json.dumps({"operations": listed}, ensure_ascii=False)
    return f"<think>{ANSWER_THOUGHT}</think><outputs>{answer}</outputs>"


def query_for(operation: Operation, person: str) -> str:
    """A short query for the earlier version of a fact: what it is about (its verb) and whom or what it names (its end)."""
    words = operation.text.removeprefix(person).strip(" .").split()
    return " ".join(dict.fromkeys((words[0], words[-1])))


def target_trajectory(labelled: LabelledSession, config: EpisodeConfig, rng: random.Random, *, drop: float) -> list[Message]:
    """Write the messages of one teacher episode.

    The search results are drawn at random so that no embedding is computed: every memory that a written operation targets is
    among them, the others fill up to `k` a query, in an order that says nothing about which is which.

    Args:
        labelled: The session with its target.
        config: Prompts, `k` and the order of fields in the tool's answer.
        rng: Draws what is dropped and what is found.
        drop: Chance that a fact is left out; at least one is kept.

    Returns:
        System, user, assistant (search), tool, assistant (outputs); without the search where there is nothing to remember.
    """
    if not labelled.operations:
        return [*opening_messages(labelled.session, config), Message(role="assistant", content=write_outputs([]))]
    kept = [operation for operation in labelled.operations if rng.random() >= drop]
    kept = kept or [rng.choice(labelled.operations)]
    person = labelled.session.person_name
    needed = {operation.target_memory_id for operation in kept if operation.event is not Event.ADD}
    others = [memory for memory in labelled.prior_state.memories if memory.id not in needed]
    limit = config.k * len(kept)
    found = [memory for memory in labelled.prior_state.memories if memory.id in needed]
    found += rng.sample(others, min(len(others), max(0, limit - len(found))))
    rng.shuffle(found)
    return [
        *opening_messages(labelled.session, config),
        Message(role="assistant", content=write_call([query_for(operation, person) for operation in kept])),
        Message(role="tool", content=format_memories(found, config.memory_fields)),
        Message(role="assistant", content=write_outputs(kept)),
    ]

"""The teacher of the warm start: what an ideal policy would write in a session, as messages and as tokens."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from deltamem.chat_template import turn_format
from deltamem.episode import MAX_QUERIES, SEARCH_TOOL, EpisodeConfig, Message, format_memories, opening_messages
from deltamem.memory import Memory, Operation, alternatives
from deltamem.sessions import LabelledSession

SEARCH_THOUGHT = "What is known?"
ANSWER_THOUGHT = "What changed?"


def write_call(queries: Sequence[str], *, thinking: bool = True) -> str:
    """The assistant text of a search."""
    call = {"name": SEARCH_TOOL, "arguments": {"query_list": list(queries)}}
    return f"{_think(SEARCH_THOUGHT, thinking)}<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def write_outputs(operations: Sequence[Operation], *, thinking: bool = True) -> str:
    """The assistant text of a final answer."""
    listed = []
    for operation in operations:
        entry = {"text": operation.text, "event": operation.event.value}
        if operation.target_memory_id is not None:
            entry["target_memory_id"] = operation.target_memory_id
        listed.append(entry)
    answer = json.dumps({"operations": listed}, ensure_ascii=False)
    return f"{_think(ANSWER_THOUGHT, thinking)}<outputs>{answer}</outputs>"


def _think(thought: str, thinking: bool) -> str:
    return f"<think>{thought}</think>" if thinking else ""


def in_order_of_telling(labelled: LabelledSession) -> list[Operation]:
    """The due operations as the dialogue comes to them, for a model that reads it from the beginning to the end.

    Data list them in an order that says nothing (`synth`), in which a small model finds the next one by luck alone.
    """
    turns = [turn.content for turn in labelled.session.dialogue if turn.role == "user"]

    def place(due: Operation) -> tuple[int, int]:
        for number, said in enumerate(turns):
            found = [[said.index(word) for word in alternatives(keyword) if word in said] for keyword in due.keywords]
            if all(found):
                return number, max(map(min, found), default=0)
        return len(turns), 0

    return sorted(labelled.operations, key=place)


def target_trajectory(labelled: LabelledSession, config: EpisodeConfig, rng: random.Random, *, drop: float) -> list[Message]:
    """The messages of one teacher episode, which leaves out each fact with the chance `drop`; of no facts without a search.

    No embedding is computed: a search finds the memory that is due, then those that share most words with the query, in an
    order that says nothing about which is which. Of more facts than a search may have queries those that are new are not
    searched for; those that change a memory come first, and what is left of them is left out.
    """
    kept = [operation for operation in in_order_of_telling(labelled) if rng.random() >= drop]
    if not kept:
        return [
            *opening_messages(labelled.session, config),
            Message(role="assistant", content=write_outputs([], thinking=config.thinking)),
        ]
    memories = labelled.prior_state.memories
    first = sorted(range(len(kept)), key=lambda place: kept[place].target_memory_id is None)[:MAX_QUERIES]
    sought = [kept[place] for place in sorted(first)]
    kept = [operation for operation in kept if operation.target_memory_id is None or operation in sought]
    queries = [operation.text for operation in sought]
    found: dict[str, Memory] = {}
    for operation, query in zip(sought, queries, strict=True):
        words, name = set(query.split()), query.rstrip(".").rpartition(" ")[2]
        alike = sorted(
            rng.sample(memories, len(memories)),
            key=lambda known: -len(words & set(known.text.split())) - _rhyme(known.text, name),
        )
        due = [memory for memory in memories if memory.id == operation.target_memory_id]
        found |= {memory.id: memory for memory in dict.fromkeys([*due, *alike][: config.k])}
    shown = rng.sample(list(found.values()), len(found))
    return [
        *opening_messages(labelled.session, config),
        Message(role="assistant", content=write_call(queries, thinking=config.thinking)),
        Message(role="tool", content=format_memories(shown, config.memory_fields)),
        Message(role="assistant", content=write_outputs(kept, thinking=config.thinking)),
    ]


def _rhyme(text: str, name: str) -> float:
    """Share of a name that a text ends with: an embedder finds names that look alike when the right one is not there."""
    pairs = zip(reversed(text.rstrip(".")), reversed(name), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) / max(len(name), 1)


KINDS = ("context", "format", "query", "text", "event", "id")
"""What a token is: of somebody else's message, of what the protocol asks for around the values, or of a value."""
_CONTEXT, _FORMAT, _QUERY = (KINDS.index(kind) for kind in ("context", "format", "query"))

_STRING = r'"((?:[^"\\]|\\.)*)"'
_QUERIES = re.compile(r'"query_list": \[(.*?)\]\}', re.DOTALL)
_VALUE = re.compile(rf'"(text|event|target_memory_id)": {_STRING}')
_KEYS = {"text": "text", "event": "event", "target_memory_id": "id"}


class TokenizedTrajectory(NamedTuple):
    """An episode as the trainer sees it."""

    token_ids: list[int]
    kinds: list[int]
    """The kind of each token, its place in `KINDS`; 0 for all that the assistant does not write."""


class TrajectoryTokenizer:
    """Builds an episode token by token as the agent loop does, which may differ from rendering the whole conversation.

    Turns of the assistant are as the model writes them; what comes between is verl's rendering.
    """

    def __init__(self, tokenizer: Any, *, model_type: str, template_kwargs: Mapping[str, Any]) -> None:
        """Prepare for one model with a fast tokenizer; verl knows the habits of some families by `model_type`."""
        from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

        # It warns of families that it has no habits for; the preflight checks any template.
        logging.getLogger(create_continuous_token_builder.__module__).setLevel(logging.ERROR)
        self._tokenizer = tokenizer
        self.frame = turn_format(tokenizer, template_options=template_kwargs)
        self._end = tokenizer.eos_token_id if self.frame.closing is None else self.frame.closing
        self._builder = create_continuous_token_builder(
            tokenizer, hf_model_type=model_type, chat_template_kwargs=dict(template_kwargs)
        )

    def __call__(self, messages: Sequence[Message]) -> TokenizedTrajectory:
        """Tokenize system and user message, then turns of the assistant and answers of the tool."""
        token_ids: list[int] = self._builder.build_initial_tokens(list(messages[:2]))
        kinds = [_CONTEXT] * len(token_ids)
        for number in range(2, len(messages)):
            if messages[number]["role"] == "assistant":
                written, marks = self._turn(messages[number]["content"])
                token_ids = self._builder.merge_assistant_tokens(token_ids, written).token_ids
                kinds += marks
            else:
                before, after = list(messages[:number]), list(messages[: number + 1])
                token_ids = self._builder.merge_context_tokens(before, after, token_ids).token_ids
                kinds += [_CONTEXT] * (len(token_ids) - len(kinds))
        return TokenizedTrajectory(token_ids, kinds)

    def _turn(self, content: str) -> tuple[list[int], list[int]]:
        """Tokens of a turn with its end, and their kinds."""
        # What the template has opened, the model does not write again.
        opening = self.frame.opening
        text = content.removeprefix(opening if content.startswith(opening) else opening.rstrip())
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        values = list(_values(text))
        marks = [
            next((kind for kind, begin, stop in values if start < stop and end > begin), _FORMAT)
            for start, end in encoded["offset_mapping"]
        ]
        return [*encoded["input_ids"], self._end], [*marks, _FORMAT]


def _values(text: str) -> Iterator[tuple[int, int, int]]:
    """Kind, begin and end of the values in a turn."""
    for call in _QUERIES.finditer(text):
        for query in re.compile(_STRING).finditer(text, *call.span(1)):
            yield _QUERY, *query.span(1)
    for value in _VALUE.finditer(text):
        yield KINDS.index(_KEYS[value[1]]), *value.span(2)

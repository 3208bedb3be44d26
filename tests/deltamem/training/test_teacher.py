"""The teacher: right in all it writes, in the order of telling; its trajectories as tokens of the agent loop, by kind."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from chat_cases import qwen_tokenizer
from loop_cases import CHATS, Chat, make_loop, run
from tiny_cases import COMPACT, sessions
from training_cases import labelled_session

from deltamem.embedding import Vectors
from deltamem.episode import MAX_QUERIES, Episode, EpisodeConfig, Finished, Message, Search, Trajectory, read_turn
from deltamem.memory import Event, Memory, MemoryState, Operation
from deltamem.sessions import LabelledSession, Turn
from deltamem.training.teacher import (
    KINDS,
    TrajectoryTokenizer,
    in_order_of_telling,
    target_trajectory,
    write_call,
    write_outputs,
)
from rewards.reward import score

FULL = EpisodeConfig()
SILENT = replace(COMPACT, thinking=False)


def embed(texts: list[str]) -> Vectors:
    """Unit vectors of letter pairs: equal texts are equal, similar texts are close."""
    vectors = np.full((len(texts), 1024), 1e-6, dtype=np.float32)
    for row, text in enumerate(texts):
        for pair in pairwise(text):
            vectors[row, (31 * ord(pair[0]) + ord(pair[1])) % 1024] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def teach(labelled: LabelledSession, drop: float, seed: int = 0, episode: EpisodeConfig = COMPACT) -> list[Message]:
    return target_trajectory(labelled, episode, random.Random(seed), drop=drop)


def drive(labelled: LabelledSession, messages: list[Message], episode: EpisodeConfig) -> Trajectory:
    """Feed the teacher's texts through the episode that training and evaluation drive."""
    run = Episode(labelled.session, labelled.prior_state, episode)
    assert run.messages == messages[:2]
    step = run.read(messages[2]["content"])
    if len(messages) == 3:
        assert isinstance(step, Finished)
        return run.trajectory
    assert isinstance(step, Search)
    found = [labelled.prior_state[record["id"]] for record in json.loads(messages[3]["content"])]
    assert run.answer(found) == messages[3]
    assert isinstance(run.read(messages[4]["content"]), Finished)
    return run.trajectory


@pytest.mark.parametrize("episode", [COMPACT, FULL, SILENT], ids=["compact", "full", "silent"])
@pytest.mark.parametrize("drop", [0.0, 0.4, 1.0])
def test_every_trajectory_is_read_without_violations_and_says_only_what_is_right(episode, drop):
    for number, labelled in enumerate(sessions()):
        messages = teach(labelled, drop, number, episode)
        roles = ["system", "user", "assistant", "tool", "assistant"]
        trajectory = drive(labelled, messages, episode)
        assert trajectory.violations == ()
        targets = {(op.event, op.text, op.target_memory_id) for op in labelled.operations}
        written = trajectory.operations
        assert [message["role"] for message in messages] == roles[: 5 if written else 3]
        assert {(op.event, op.text, op.target_memory_id) for op in written} <= targets
        # Each written operation on a memory is preceded by a search that has found it.
        assert {op.target_memory_id for op in written if op.target_memory_id} <= trajectory.seen_ids
        added = {op.text for op in written if op.event is Event.ADD}
        assert not added & {op.text for op in labelled.operations if op.event is not Event.ADD}


def test_the_complete_teacher_earns_the_full_reward():
    for number, labelled in enumerate(sessions()):
        result = score(drive(labelled, teach(labelled, 0.0, number), COMPACT), labelled, embed)
        assert result.reward == pytest.approx(1.0)


def test_the_teacher_writes_facts_as_the_dialogue_comes_to_them():
    one = sessions()[0]
    said = (
        "You noted that I row with Bo. Now I sail with Bo. I ski with Mu.",
        "Do I cook?",
        "I sail with Dea.",
        "Yes, with Bo.",
    )
    turns = tuple(Turn(role=role, content=text) for text in said for role in ("user", "assistant"))
    due = [("sail", "Bo"), ("ski", "Mu"), ("sail", "Dea")]
    operations = [
        Operation(Event.ADD, f"Ana goes to {verb} with {who}.", keywords=((who, "Zoe"), ("cook", verb))) for verb, who in due
    ]
    for order in permutations(operations):
        labelled = replace(one, session=replace(one.session, dialogue=turns), operations=order)
        assert in_order_of_telling(labelled) == operations


def test_dropping_leaves_out_facts_at_random_and_searches_only_for_those_that_are_kept():
    kept = due = 0
    for number, labelled in enumerate(sessions()):
        half, none = (drive(labelled, teach(labelled, drop, number), COMPACT) for drop in (0.5, 1.0))
        assert len(half.operations) == sum(map(len, half.queries)) and none.operations == none.queries == ()
        kept += len(half.operations)
        due += len(labelled.operations)
    assert 0.4 < kept / due < 0.6
    labelled = max(sessions(), key=lambda item: len(item.operations))
    assert teach(labelled, 0.5, 3) == teach(labelled, 0.5, 3)
    assert len({teach(labelled, 0.5, seed)[-1]["content"] for seed in range(20)}) > 3


@pytest.mark.parametrize(("changed", "new"), [(3, 20), (20, 3), (16, 0), (0, 17)])
def test_more_facts_than_a_search_has_queries(changed: int, new: int) -> None:
    one = sessions()[0]
    known = [Memory(f"m{place}", f"Ana likes number {place}.", one.session.time) for place in range(changed)]
    operations = [Operation(Event.ADD, f"Ana owns thing {place}.") for place in range(new)]
    operations += [Operation(Event.UPDATE, f"Ana hates number {at}.", memory.id) for at, memory in enumerate(known)]
    labelled = replace(one, operations=tuple(operations), prior_state=MemoryState(known))
    trajectory = drive(labelled, teach(labelled, 0.0), COMPACT)
    assert trajectory.violations == () and len(trajectory.queries[0]) == min(changed + new, MAX_QUERIES)
    written = trajectory.operations or ()
    targets = [operation.target_memory_id for operation in written if operation.target_memory_id]
    assert len(targets) == min(changed, MAX_QUERIES) and set(targets) <= trajectory.seen_ids
    assert len(written) - len(targets) == new


def test_the_search_results_hold_k_memories_a_query_and_in_no_telling_order():
    first_is_needed = []
    for number, labelled in enumerate(sessions()):
        if not labelled.operations:
            continue
        found = [record["id"] for record in json.loads(teach(labelled, 0.0, number)[3]["content"])]
        needed = [op.target_memory_id for op in labelled.operations if op.target_memory_id]
        assert len(set(found)) == len(found)
        assert min(len(labelled.prior_state), COMPACT.k) <= len(found) <= COMPACT.k * len(labelled.operations)
        if 0 < len(needed) < len(found):
            first_is_needed.append(found[0] in needed)
    assert 0 < sum(first_is_needed) < len(first_is_needed)


def test_what_is_sought_is_what_is_then_written():
    """A young model copies its queries into its answer, so that has to be right (docs/training.md, "Queries")."""
    for number, labelled in enumerate(sessions()):
        trajectory = drive(labelled, teach(labelled, 0.3, number), COMPACT)
        assert list(sum(trajectory.queries, ())) == [operation.text for operation in trajectory.operations or ()]


def test_queries_find_the_memories_that_are_due():
    found = due = 0
    for labelled in sessions():
        memories = labelled.prior_state.memories
        for operation in labelled.operations:
            if operation.target_memory_id:
                near = embed([memory.text for memory in memories]) @ embed([operation.text])[0]
                first = [memories[place].id for place in np.argsort(-near)[: COMPACT.k]]
                due, found = due + 1, found + (operation.target_memory_id in first)
    assert due > 10 and found >= 0.9 * due


def test_quotes_other_letters_and_an_empty_state_survive_the_wire():
    labelled = sessions()[0]
    text = 'Ana "Zoë" likes ✓ at 東京.'
    operation = replace(labelled.operations[0], event=Event.ADD, text=text, target_memory_id=None)
    strange = replace(labelled, operations=(operation,), prior_state=type(labelled.prior_state)(list[Memory]()))
    messages = teach(strange, 0.0)
    assert messages[3]["content"] == "[]"
    turn = read_turn(messages[4]["content"], ())
    assert turn.violations == () and [written.text for written in turn.operations or ()] == [text]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
async def test_the_tokens_are_those_of_the_agent_loop(chat: Chat) -> None:
    labelled = labelled_session(0)
    episode = EpisodeConfig("manager_compact", "session_compact", k=1, max_turns=3, thinking=chat.thinking)
    messages = target_trajectory(labelled, episode, random.Random(0), drop=0.0)
    # The model begins where the template has stopped.
    opened = chat.opening == "<think>\n"
    texts = [turn["content"].removeprefix("<think>" if opened else "") for turn in messages if turn["role"] == "assistant"]
    tokenizer = chat.tokenizer
    loop, _, scorer = make_loop(chat, texts)
    output = await run(loop)
    searched = [message for message in scorer.seen.messages if message["role"] == "tool"]
    messages = [searched[0] if message["role"] == "tool" else message for message in messages]
    found = TrajectoryTokenizer(tokenizer, model_type="qwen3", template_kwargs=chat.options)(messages)
    assert found.token_ids == output.prompt_ids + output.response_ids
    assert [kind > 0 for kind in found.kinds] == [False] * len(output.prompt_ids) + [
        bool(own) for own in output.response_mask
    ]


def test_every_value_has_its_kind() -> None:
    tokenizer = qwen_tokenizer()
    operations = [
        Operation(Event.UPDATE, 'Ana says "event": "ADD" [1]}.', "m17"),
        Operation(Event.ADD, "Zoë \\ likes 東京."),
    ]
    messages = [
        Message(role="system", content="Manage memory."),
        Message(role="user", content='"text": "no value"'),
        Message(role="assistant", content=write_call(["says Ana]", 'likes "x"'], thinking=False)),
        Message(role="tool", content="[]"),
        Message(role="assistant", content=write_outputs(operations, thinking=False)),
    ]
    ids, kinds = TrajectoryTokenizer(tokenizer, model_type="qwen3", template_kwargs={"enable_thinking": False})(messages)

    def runs(kind: str) -> list[str]:
        """Texts of neighbouring tokens of a kind; a token may hold a mark beside the value."""
        parts, before = [], -1
        for place in (place for place, found in enumerate(kinds) if KINDS[found] == kind):
            parts = [*parts, [ids[place]]] if place != before + 1 else [*parts[:-1], [*parts[-1], ids[place]]]
            before = place
        return [tokenizer.decode(part).strip(' "{}[],') for part in parts]

    assert runs("query") == ["says Ana", 'likes \\"x\\']
    assert runs("text") == ['Ana says \\"event\\": \\"ADD\\" [1]}.', "Zoë \\\\ likes 東京."]
    assert runs("event") == ["UPDATE", "ADD"] and runs("id") == ["m17"]

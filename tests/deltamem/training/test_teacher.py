"""The teacher of the warm start: right in all it writes, perfect where nothing is left out."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tiny_cases import COMPACT, sessions

from deltamem.embedding import Vectors
from deltamem.episode import Episode, EpisodeConfig, Finished, Message, Search, Trajectory, read_turn
from deltamem.memory import Event, Memory
from deltamem.sessions import LabelledSession
from deltamem.training.tiny import query_for, target_trajectory
from rewards.reward import score

FULL = EpisodeConfig()


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
    assert isinstance(step, Search)
    found = [labelled.prior_state[record["id"]] for record in json.loads(messages[3]["content"])]
    assert run.answer(found) == messages[3]
    assert isinstance(run.read(messages[4]["content"]), Finished)
    return run.trajectory


@pytest.mark.parametrize("episode", [COMPACT, FULL], ids=["compact", "full"])
@pytest.mark.parametrize("drop", [0.0, 0.4, 1.0])
def test_every_trajectory_is_read_without_violations_and_says_only_what_is_right(episode, drop):
    for number, labelled in enumerate(sessions()):
        messages = teach(labelled, drop, number, episode)
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
        trajectory = drive(labelled, messages, episode)
        assert trajectory.violations == ()
        targets = {(op.event, op.text, op.target_memory_id) for op in labelled.operations}
        written = trajectory.operations
        assert written
        assert {(op.event, op.text, op.target_memory_id) for op in written} <= targets
        # Each written operation on a memory is preceded by a search that has found it.
        assert {op.target_memory_id for op in written if op.target_memory_id} <= trajectory.seen_ids
        added = {op.text for op in written if op.event is Event.ADD}
        assert not added & {op.text for op in labelled.operations if op.event is not Event.ADD}


def test_the_complete_teacher_earns_the_full_reward():
    for number, labelled in enumerate(sessions()):
        messages = teach(labelled, 0.0, number)
        result = score(drive(labelled, messages, COMPACT), labelled, embed)
        assert result.transition.reward == pytest.approx(1.0)
        assert result.reward == pytest.approx(1.0)


def test_dropping_costs_reward_but_leaves_at_least_one_fact():
    counts = []
    for number, labelled in enumerate(sessions()):
        for drop in (0.5, 1.0):
            trajectory = drive(labelled, teach(labelled, drop, number), COMPACT)
            written = trajectory.operations or ()
            assert 1 <= len(written) <= len(labelled.operations)
            assert len(trajectory.queries[0]) == len(written)
            if drop == 1.0:
                assert len(written) == 1
            else:
                counts.append((len(written), len(labelled.operations)))
    kept = sum(written for written, _ in counts) / sum(due for _, due in counts)
    assert 0.4 < kept < 0.7


def test_the_search_results_hold_k_memories_a_query_and_in_no_telling_order():
    first_is_needed = []
    for number, labelled in enumerate(sessions()):
        messages = teach(labelled, 0.0, number)
        found = [record["id"] for record in json.loads(messages[3]["content"])]
        assert len(found) == len(set(found))
        needed = [op.target_memory_id for op in labelled.operations if op.target_memory_id]
        assert len(found) == min(len(labelled.prior_state), max(COMPACT.k * len(labelled.operations), len(needed)))
        if 0 < len(needed) < len(found):
            first_is_needed.append(found[0] in needed)
    assert 0 < sum(first_is_needed) < len(first_is_needed)


def test_omissions_are_determined_by_the_generator():
    labelled = max(sessions(), key=lambda item: len(item.operations))
    assert teach(labelled, 0.5, 3) == teach(labelled, 0.5, 3)
    assert len({teach(labelled, 0.5, seed)[4]["content"] for seed in range(20)}) > 3


def test_queries_name_the_verb_and_the_anchor():
    for labelled in sessions():
        for operation in labelled.operations:
            verb, anchor = query_for(operation, labelled.session.person_name).split()
            assert operation.text.startswith(f"{labelled.session.person_name} {verb} ")
            assert operation.text.endswith(f" {anchor}.")
            assert anchor in operation.keywords


def test_a_session_with_nothing_to_remember_is_answered_at_once():
    labelled = replace(sessions()[0], operations=(), next_state=sessions()[0].prior_state)
    messages = teach(labelled, 0.0)
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    run = Episode(labelled.session, labelled.prior_state, COMPACT)
    assert isinstance(run.read(messages[2]["content"]), Finished)
    assert run.trajectory.operations == () and run.trajectory.violations == ()
    assert score(run.trajectory, labelled, embed).reward == 1.0


def test_quotes_and_other_letters_survive_the_wire():
    name = 'Ana "Zoë"'
    labelled = sessions()[0]
    operation = replace(labelled.operations[0], event=Event.ADD, text=f"{name} likes ✓ at 東京.", target_memory_id=None)
    strange = replace(labelled, operations=(operation,))
    turn = read_turn(teach(strange, 0.0)[4]["content"], ())
    assert turn.violations == ()
    assert turn.operations is not None and turn.operations[0].text == operation.text


def test_an_empty_state_gives_an_empty_search_result():
    labelled = next(item for item in sessions() if any(op.event is Event.ADD for op in item.operations))
    added = tuple(op for op in labelled.operations if op.event is Event.ADD)
    fresh = replace(labelled, prior_state=type(labelled.prior_state)(list[Memory]()), operations=added)
    assert teach(fresh, 0.0)[3]["content"] == "[]"

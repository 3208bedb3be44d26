"""Rollouts as the agent loop hands them to the trainer: figures of the real scorer, the rest made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from omegaconf import OmegaConf
from training_cases import labelled_session

from deltamem.episode import Message, Trajectory, trajectory_fields
from deltamem.memory import Operation
from deltamem.sessions import LabelledSession, to_json_line
from deltamem.training.metrics import RolloutInfo, RolloutRow
from rewards.scorer import DeltaMemScorer

SCORER = DeltaMemScorer()


def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Texts are alike if they have letters in common."""
    vectors = np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def trajectory_of(operations: Sequence[Operation] | None) -> Trajectory:
    """One search, then the operations."""
    messages = [("system", "s"), ("user", "u"), ("assistant", "<think>a</think>"), ("tool", "[]"), ("assistant", "<i>b</i>")]
    return Trajectory(
        messages=tuple(Message(role=role, content=content) for role, content in messages),
        queries=(("city", "cat"),),
        retrieved_ids=(("m1",),),
        operations=None if operations is None else tuple(operations),
    )


def info(item: LabelledSession, **changes: Any) -> RolloutInfo:
    """An ordinary rollout."""
    seconds = {"generate": 1.0, "search": 0.25, "reward": 0.5}
    plain: dict[str, Any] = {"key": item.key, "heldout": item.split == "heldout", "truncated": False, "seconds": seconds}
    plain |= {"turns": 2, "model_tokens": 100, "tool_tokens": 30, "queries": 2, "retrieved": 1, "generation": None}
    return RolloutInfo(**(plain | changes))  # type: ignore[typeddict-item]


def row(
    group: str,
    number: int,
    item: LabelledSession,
    operations: Sequence[Operation] | None,
    keep: bool = False,
    **changes: Any,
) -> RolloutRow:
    """A rollout that ended with these operations; `keep` keeps the whole episode as the agent loop does."""
    trajectory = trajectory_of(operations)
    figures, score = SCORER(item, trajectory, embed)
    if keep:
        changes["generation"] = {"session": to_json_line(item), **trajectory_fields(trajectory), "score": asdict(score)}
    reward = figures.pop("reward")
    return RolloutRow(f"{group}_{number}_0", reward, figures | {"failure": 0.0}, info(item, **changes), None)


def failed(group: str, number: int, item: LabelledSession) -> RolloutRow:
    """A rollout that broke in our own machinery."""
    return RolloutRow(f"{group}_{number}_0", 0.0, {"failure": 1.0}, info(item, model_tokens=0, seconds={}), "Boom: no")


def extra_fields(entry: RolloutRow) -> dict[str, Any]:
    """What verl keeps of a rollout besides its tensors."""
    return {"reward_extra_info": dict(entry.figures), "rollout_info": entry.info, "failure": entry.failure}


def a_batch() -> list[RolloutRow]:
    """Two prompts with two rollouts each: one group with a signal, one without."""
    one, two = labelled_session(1), labelled_session(2)
    due, new = one.operations
    return [
        row("a", 0, one, [due, new], model_tokens=200),
        row("a", 1, one, [Operation(due.event, due.text, "m2"), new], truncated=True),
        row("b", 0, two, two.operations),
        row("b", 1, two, two.operations),
    ]


def a_trainer(folder: Path, **filter_groups: Any) -> SimpleNamespace:
    """As much of verl's trainer as the replay buffer uses; ``calls`` has what it was asked to do."""
    groups = {"enable": False, "metric": "reward", "max_num_gen_batches": 0, "max_inflight_gen_batches": 1} | filter_groups
    values = {"trainer": {"save_freq": 5, "default_local_dir": str(folder)}, "data": {"train_batch_size": 2}}
    calls: list[Any] = []
    trainer = SimpleNamespace(
        config=OmegaConf.create(values | {"algorithm": {"filter_groups": groups}}),
        calls=calls,
        global_steps=0,
        train_dataloader=SimpleNamespace(state_dict=lambda: {"batches": 0}),
        checkpoint_manager=SimpleNamespace(
            abort_replicas=lambda: calls.append("abort"), resume_generation_replicas=lambda: calls.append("resume")
        ),
        agent_loop_manager=SimpleNamespace(agent_loop_workers=["a worker"]),
    )
    trainer._save_checkpoint = lambda: calls.append((trainer.global_steps, trainer.train_dataloader.state_dict()))
    return trainer

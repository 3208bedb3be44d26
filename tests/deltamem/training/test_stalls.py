"""Rollouts that never come, prompts that teach nothing, and what is saved then: verl's own buffer over a made-up queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
from checkpoint_cases import write_checkpoint
from lazy import lazy, names
from rollout_cases import a_trainer, extra_fields, failed, row
from training_cases import labelled_session

from deltamem.errors import DeltaMemError
from deltamem.training.metrics import RolloutRow

torch = lazy("torch")
replay_buffer = lazy("deltamem.training.replay_buffer")
DeltaMemReplayBuffer = names("deltamem.training.replay_buffer", "DeltaMemReplayBuffer")
GIVEN_UP = names("deltamem.training.agent_loop", "GIVEN_UP")
RayActorError = names("ray.exceptions", "RayActorError")
STALL_MINUTES = 10.0


class Queue:
    """verl's queue in one process: prompts with the state of their groups, and finished rollouts."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.rows: dict[str, RolloutRow] = {}

    def put(self, group: str, rows: Sequence[RolloutRow], status: str = "finished") -> None:
        self.prompts[group] = status
        self.rows |= {entry.key: entry for entry in rows}

    def kv_list(self) -> dict[str, Any]:
        prompts = {name: {"is_prompt": True, "status": status, "global_steps": 1} for name, status in self.prompts.items()}
        return {"train": prompts | {key: {"seq_len": 9} for key in self.rows}}

    def kv_clear(self, keys: Sequence[str], partition_id: str) -> None:
        for key in keys:
            self.prompts.pop(key, None)

    def kv_batch_get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> dict[str, Any]:
        chosen = [self.rows[key] for key in keys]
        scores = torch.nested.nested_tensor([torch.tensor([entry.reward]) for entry in chosen], layout=torch.jagged)
        return {"rm_scores": scores, "extra_fields": [extra_fields(entry) for entry in chosen]}

    def kv_batch_put(self, **_: Any) -> None: ...


def a_group(name: str, *, spread: bool, broken: int = 0) -> list[RolloutRow]:
    """Two rollouts of a prompt; the last ones broke."""
    item = labelled_session(1)
    rows = [row(name, 0, item, item.operations), row(name, 1, item, None if spread else item.operations)]
    return rows[: 2 - broken] + [failed(name, 2 - broken + number, item) for number in range(broken)]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    for module in ("verl.trainer.ppo.v1.replay_buffer", "deltamem.training.replay_buffer"):
        monkeypatch.setattr(f"{module}.tq", made)
    return made


def sampler_of(trainer: SimpleNamespace, folder: Path, refill: Callable[[int], None] = lambda _: None) -> Any:
    options: Mapping[str, Any] = {
        **{"poll_seconds": 0.0, "max_failure_rate": 0.3, "sort_by_length": False, "stall_minutes": STALL_MINUTES},
        **{"train_rollouts": 2, "heldout_rollouts": 2, "pulse_file": str(folder / "pulse")},
        **{"validation_folder": str(folder / "validation"), "stop_file": str(folder / "stop")},
    }
    policy = {"trainer_mode": "sync", "trainer_config": {}, "max_off_policy_threshold": 1}

    method = MethodType(lambda _, prompts: refill(prompts), trainer)
    return DeltaMemReplayBuffer(sampler_kwargs=options, refill_fn=method, max_off_policy_strategy="drop", **policy)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes on by a minute whenever it is looked at; ``then`` is called with the time."""
    made = SimpleNamespace(now=0.0, then=lambda _: None, asked=[])

    def look() -> float:
        made.now += 60.0
        made.then(made.now / 60.0)
        return float(made.now)

    monkeypatch.setattr("deltamem.training.replay_buffer.time", SimpleNamespace(monotonic=look))
    monkeypatch.setattr("deltamem.training.replay_buffer._check_alive", made.asked.extend)
    return made


def test_a_batch_whose_last_rollout_never_comes_ends_with_a_sentence_and_a_checkpoint(tmp_path, queue, clock):
    trainer = a_trainer(tmp_path)
    sampler = sampler_of(trainer, tmp_path)
    state = {"batches": 4}
    trainer.train_dataloader.state_dict = lambda: state
    for group in "ab":
        queue.put(group, a_group(group, spread=True))
    sampler.sample(4, "train", 2)
    state["batches"] = 5
    queue.put("c", a_group("c", spread=True))
    queue.put("d", a_group("d", spread=True)[:1], "running")
    begin = clock.now
    with pytest.raises(DeltaMemError, match=r"no rollout has ended for 9 minutes, and 1 prompts .*step 4 is saved"):
        sampler.sample(5, "train", 2)
    assert clock.now - begin <= 60.0 * (STALL_MINUTES + 1) and set(clock.asked) == {"a worker"}
    assert trainer.calls == [(4, {"batches": 4})], "the step before, and the data that come after it"


def test_rollouts_that_trickle_in_are_waited_for_and_are_signs_of_life(tmp_path, queue, clock):
    sampler, pulse, beats = sampler_of(a_trainer(tmp_path), tmp_path), tmp_path / "pulse", set()
    rows = {name: a_group(name, spread=True) for name in "ab"}
    for name in "ab":
        queue.put(name, [], "running")

    def come(minute: float) -> None:
        if pulse.exists():
            beats.add(pulse.stat().st_mtime_ns)
        if minute % 8 == 0 and minute <= 32:
            name, number = "ab"[int(minute // 8 - 1) // 2], int(minute // 8 - 1) % 2
            queue.put(name, rows[name][number : number + 1], "finished" if number else "running")

    clock.then = come
    batch, _ = sampler.sample(1, "train", 2)
    assert len(batch.keys) == 4 and clock.now >= 32 * 60.0
    assert len(beats) >= 4


def test_nothing_is_saved_where_nothing_was_learned_and_a_failed_save_hides_nothing(tmp_path, queue, clock):
    queue.put("a", [], "running")
    write_checkpoint(tmp_path, 2)
    for step, frequency, end in ((1, 5, ""), (2, -1, ""), (2, 5, ""), (3, 5, "; step 2 is saved, .*")):
        trainer = a_trainer(tmp_path)
        trainer.config.trainer.save_freq = frequency
        if frequency == 5:
            trainer._save_checkpoint = lambda: 1 / 0
        with pytest.raises(DeltaMemError, match=rf"no rollout has ended .*\(deltamem.stall_minutes\){end}$"):
            sampler_of(trainer, tmp_path).sample(step, "train", 2)
        assert trainer.calls == []


def test_a_worker_that_was_killed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(answer: str) -> None:
        if answer == "dead":
            raise RayActorError._real()()

    worker = {name: SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda name=name: name)) for name in ("ok", "dead")}
    fake = SimpleNamespace(wait=lambda asked, **_: (asked, []), get=get)
    fake.exceptions = SimpleNamespace(RayActorError=RayActorError._real())
    monkeypatch.setattr("deltamem.training.replay_buffer.ray", fake)
    replay_buffer._check_alive([worker["ok"]])
    with pytest.raises(DeltaMemError, match="an agent loop worker has died with its rollouts"):
        replay_buffer._check_alive([worker["ok"], worker["dead"]])


def test_engines_forget_the_requests_of_episodes_that_were_given_up(tmp_path, queue, clock):
    trainer = a_trainer(tmp_path)
    sampler = sampler_of(trainer, tmp_path)
    for reason, calls in (
        ("TimeoutError: of another kind", []),
        (f"{GIVEN_UP._real()} after 8 minutes", ["abort", "resume"]),
    ):
        gone = failed("b", 1, labelled_session(1))
        queue.put("a", a_group("a", spread=True))
        queue.put("b", [a_group("b", spread=True)[0], RolloutRow(gone.key, 0.0, gone.figures, gone.info, reason)])
        sampler.sample(1, "train", 2)
        assert trainer.calls == calls


DAPO = {"enable": True, "max_num_gen_batches": 3}


def test_prompts_without_spread_are_replaced_by_others(tmp_path, queue, clock):
    asked: list[int] = []

    def refill(prompts: int) -> None:
        asked.append(prompts)
        for number in range(prompts):
            queue.put(name := f"more{len(asked)}.{number}", a_group(name, spread=True))

    trainer = a_trainer(tmp_path, **DAPO)
    sampler = sampler_of(trainer, tmp_path, refill)
    # Steps of their own: what one has dropped and sampled beyond its batch counts for no other.
    for step in range(1, 4):
        queue.put("a", [replace(entry, failure=GIVEN_UP._real()) for entry in a_group("a", spread=False)])
        queue.put("b", a_group("b", spread=False))
        batch, metrics = sampler.sample(1, "train", 2)
        assert asked == [2] * step and {key[:4] for key in batch.keys} == {"more"}
        assert metrics["training/filter_groups/evicted_samples"] == 2
        assert metrics["deltamem/train/no_signal"] == 0.0
        assert trainer.calls == ["abort", "resume"] * step
        queue.prompts.clear()
        queue.rows.clear()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [(0, r"5 prompts of a step have no spread .*max_num_gen_batches=3 batches"), (2, r"\d+ of \d+ rollouts .*Boom: no")],
)
def test_dynamic_sampling_ends_with_the_true_reason(tmp_path, queue, clock, broken: int, sentence: str) -> None:
    made = 0

    def refill(prompts: int) -> None:
        nonlocal made
        for _ in range(prompts):
            made += 1
            queue.put(name := f"more{made}", a_group(name, spread=False, broken=broken))

    sampler = sampler_of(a_trainer(tmp_path, **DAPO), tmp_path, refill)
    refill(1)
    with pytest.raises(DeltaMemError, match=sentence):
        sampler.sample(1, "train", 2)
    assert made <= 6

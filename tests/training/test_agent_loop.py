"""The agent loop with a scripted server: masks, search, limits, failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from training_cases import labelled_session
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from deltamem.embedding import Vectors
from deltamem.episode import EpisodeConfig, Trajectory
from deltamem.protocol import Violation
from deltamem.sessions import LabelledSession, to_json_line
from deltamem.training.embeddings.actor import EmbeddingClient, TextVectors
from deltamem.training.rollout.agent_loop import DeltaMemAgentLoop, Services

SEARCH = '<think>look</think><tool_call>{"name": "search_memory", "arguments": {"query_list": ["home"]}}</tool_call>'
EPISODE = EpisodeConfig(system_prompt="manager_compact", session_prompt="session_compact", k=1, max_turns=3)


def answer(*operations: dict[str, str]) -> str:
    return f"<think>so</think><outputs>{json.dumps({'operations': list(operations)})}</outputs>"


class ScriptedServer:
    """Plays given assistant texts and remembers what it was asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.script = list(script)
        self.prompts: list[list[int]] = []
        self.answers: list[list[int]] = []

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        text = self.script[len(self.answers)]
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids = ids[: sampling_params["max_tokens"]]
        self.prompts.append(list(prompt_ids))
        self.answers.append(ids)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 6})


class RecordingScorer:
    """Embeds what a reward would and keeps the trajectory."""

    def __init__(self) -> None:
        self.trajectory: Trajectory | None = None

    def __call__(
        self, labelled: LabelledSession, trajectory: Trajectory, embed: Callable[[Sequence[str]], Any]
    ) -> dict[str, float]:
        self.trajectory = trajectory
        texts = [memory.text for memory in labelled.prior_state.memories]
        texts += [operation.text for operation in (*labelled.operations, *(trajectory.operations or ()))]
        assert embed(texts).shape == (len(texts), 8)
        return {"reward": 0.25, "format": float(not trajectory.violations), "count/episodes": 1.0}


async def toy_vectors(texts: list[str]) -> Vectors:
    """Two directions: what has to do with a home, and the rest."""
    rows = np.zeros((len(texts), 8), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[0 if "lives" in text or "home" in text else 1] = 1.0
    return rows


def make_loop(
    tokenizer: PreTrainedTokenizerFast,
    script: Sequence[str],
    *,
    prompt_length: int = 1024,
    response_length: int = 1024,
    turn_tokens: int = 512,
) -> tuple[DeltaMemAgentLoop, ScriptedServer, RecordingScorer]:
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"prompt_length": prompt_length, "response_length": response_length}},
            "data": {},
        }
    )
    server, scorer = ScriptedServer(tokenizer, script), RecordingScorer()
    loop = DeltaMemAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen3",
        shared=Services(
            episode=EPISODE,
            turn_tokens=turn_tokens,
            scorer=scorer,
            embeddings=EmbeddingClient(documents=TextVectors(toy_vectors), queries=TextVectors(toy_vectors)),
        ),
    )
    return loop, server, scorer


async def run(loop: DeltaMemAgentLoop, session: str | None = None) -> AgentLoopOutput:
    row = {"extra_info": {"session": session or to_json_line(labelled_session(0)), "key": "p0/0"}, "global_steps": 7}
    return await loop.run({"temperature": 1.0}, **row)


async def test_mask_covers_exactly_what_the_model_wrote(tokenizer: PreTrainedTokenizerFast) -> None:
    final = answer({"text": "Person0 has a cat.", "event": "ADD"})
    loop, server, scorer = make_loop(tokenizer, [SEARCH, final])
    output = await run(loop)

    written = [token for token, own in zip(output.response_ids, output.response_mask, strict=True) if own]
    assert written == [*server.answers[0], *server.answers[1]]
    assert [p for p, own in zip(output.response_logprobs, output.response_mask, strict=True) if own] == [-0.5] * len(written)
    assert all(p == 0.0 for p, own in zip(output.response_logprobs, output.response_mask, strict=True) if not own)
    # Token in, token out: the second request is the first, the model's own tokens, and the rendered answer of the tool.
    assert server.prompts[0] == output.prompt_ids
    assert (output.prompt_ids + output.response_ids)[: len(server.prompts[1])] == server.prompts[1]
    assert output.prompt_ids + output.response_ids == server.prompts[1] + server.answers[1]
    between = tokenizer.decode(server.prompts[1][len(server.prompts[0]) + len(server.answers[0]) :])
    assert between.startswith("\n<|im_start|>user\n<tool_response>") and between.endswith("<|im_start|>assistant\n")
    assert '"id": "m1"' in between and "m2" not in between  # k = 1: only the nearest memory

    assert scorer.trajectory is not None
    assert scorer.trajectory.retrieved_ids == (("m1",),)
    assert [operation.text for operation in scorer.trajectory.operations or ()] == ["Person0 has a cat."]
    assert scorer.trajectory.violations == ()
    assert output.reward_score == 0.25
    assert output.extra_fields["reward_extra_info"] == {"format": 1.0, "count/episodes": 1.0, "failure": 0.0}
    assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 6
    assert output.as_dict()["rm_scores"].sum() == pytest.approx(0.25)


async def test_tool_answer_that_does_not_fit_ends_the_episode(tokenizer: PreTrainedTokenizerFast) -> None:
    search_tokens = len(tokenizer.encode(SEARCH, add_special_tokens=False)) + 1
    loop, server, scorer = make_loop(tokenizer, [SEARCH, "never"], response_length=search_tokens + 5)
    output = await run(loop)
    assert len(server.answers) == 1
    assert output.response_ids == server.answers[0]
    assert output.response_mask == [1] * search_tokens
    assert scorer.trajectory is not None and Violation.TOKEN_LIMIT in scorer.trajectory.violations
    assert scorer.trajectory.operations is None


async def test_turn_cut_at_its_limit(tokenizer: PreTrainedTokenizerFast) -> None:
    loop, server, scorer = make_loop(tokenizer, [SEARCH], turn_tokens=10)
    output = await run(loop)
    assert output.response_ids == server.answers[0] and len(output.response_ids) == 10
    assert scorer.trajectory is not None and Violation.TOKEN_LIMIT in scorer.trajectory.violations


async def test_stray_special_tokens_are_seen_by_the_parser(tokenizer: PreTrainedTokenizerFast) -> None:
    loop, _, scorer = make_loop(tokenizer, [answer() + "<|im_start|>"])
    await run(loop)
    assert scorer.trajectory is not None and Violation.TEXT_OUTSIDE_TAGS in scorer.trajectory.violations


@pytest.mark.parametrize(
    ("script", "options", "session", "reason"),
    [
        ([SEARCH], {}, None, "IndexError"),
        ([SEARCH], {"prompt_length": 20}, None, "max_prompt_length=20"),
        ([SEARCH], {}, "{}", "DeltaMemError"),
    ],
)
async def test_failures_become_counted_trajectories_without_gradient(
    tokenizer: PreTrainedTokenizerFast, script: list[str], options: dict[str, int], session: str | None, reason: str
) -> None:
    loop, _, scorer = make_loop(tokenizer, script, **options)
    output = await run(loop, session)
    assert scorer.trajectory is None
    assert reason in output.extra_fields["failure"]
    assert output.extra_fields["reward_extra_info"] == {"failure": 1.0}
    assert output.reward_score == 0.0
    assert sum(output.response_mask) == 0
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs or []) >= 1
    assert output.prompt_ids
    assert output.extra_fields["max_global_steps"] == 6
    assert output.as_dict()["rm_scores"].shape == output.as_dict()["responses"].shape


async def test_concurrent_rollouts_share_embedding_calls() -> None:
    import asyncio

    calls: list[list[str]] = []

    async def embed(texts: list[str]) -> Vectors:
        calls.append(texts)
        await asyncio.sleep(0.01)
        return await toy_vectors(texts)

    vectors = TextVectors(embed)
    found = await asyncio.gather(*(vectors.get(["a", f"b{number}"]) for number in range(20)))
    assert all(set(entry) == {"a", f"b{number}"} for number, entry in enumerate(found))
    assert len(calls) <= 2
    assert sorted(text for call in calls for text in call) == sorted(["a", *(f"b{number}" for number in range(20))])

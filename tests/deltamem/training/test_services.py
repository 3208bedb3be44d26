"""What the launcher writes for the workers is what the rollouts get, with the reward of the configuration."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from loop_cases import CHATS, make_loop, run
from omegaconf import OmegaConf
from preflight_cases import composed, resolved

from deltamem.config import validated
from deltamem.training import agent_loop as module
from deltamem.training.agent_loop import Services, services
from deltamem.training.config import TrainSettings
from deltamem.training.launch import agent_loop_config
from deltamem.training.rollout_metrics import FACTS
from rewards.scorer import DeltaMemScorer


def sent(monkeypatch: pytest.MonkeyPatch, **values: Any) -> tuple[TrainSettings, Services]:
    config = resolved(composed("+experiment=tiny")).deltamem
    for key, value in values.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    settings = validated(config, TrainSettings)
    monkeypatch.setattr(module, "connect", lambda **asked: asked)
    return settings, services(str(agent_loop_config(settings)[0].settings))


def test_settings_reach_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = {"episode__thinking": False, "episode__max_invalid_calls": 2}
    settings, found = sent(monkeypatch, seed=5, seeded_rollouts=True, shown_sessions=3, turn_tokens=99, **episode)
    assert found.episode == settings.episode.config()
    assert (found.episode.thinking, found.episode.max_invalid_calls) == (False, 2)
    assert (found.turn_tokens, found.seed, found.shown_sessions) == (99, 5, 3)


def test_without_seeded_rollouts_the_server_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, seeded_rollouts=False)[1].seed is None


async def test_the_reward_of_the_configuration_scores_and_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = sent(monkeypatch)[1].scorer
    assert isinstance(scorer, DeltaMemScorer)
    chat = CHATS["qwen3"]
    loop, _, _ = make_loop(chat, [chat.search, chat.final], shown_sessions=1)
    loop._shared = dataclasses.replace(loop._shared, scorer=scorer)
    output = await run(loop, split="heldout")
    assert output.extra_fields["failure"] is None
    # The addition is made, the update is not: its memory was found all the same.
    figures = output.extra_fields["reward_extra_info"]
    assert (figures["format"], figures["retrieval"]) == (1.0, 1.0)
    assert 0.2 < (output.reward_score or 0.0) < 1.0
    shown = json.loads(json.dumps(output.extra_fields[FACTS]["shown"]))
    assert shown["score"]["reward"] == pytest.approx(output.reward_score)

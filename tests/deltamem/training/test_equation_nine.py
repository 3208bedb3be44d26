"""Equation 9 of the paper worked out by hand, against verl's own functions with the configuration of ``qwen8b``."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hydra.utils import instantiate
from lazy import names
from preflight_cases import whole

get_adv_estimator_fn = names("verl.trainer.ppo.core_algos", "get_adv_estimator_fn")
ppo_loss = names("verl.workers.utils.losses", "ppo_loss")
assign_non_tensor = names("verl.utils.tensordict_utils", "assign_non_tensor")
omega_conf_to_dataclass = names("verl.utils.config", "omega_conf_to_dataclass")

SESSIONS, ROLLOUTS, MICRO = 4, 8, 5
"""Sessions and rollouts of each; rollouts of a micro-batch, which groups do not divide into."""


def rewarded() -> list[list[float]]:
    """What rollouts of four random sessions of the paper's shape earn that leave out more or fewer of the due facts."""
    from episode_texts import WordEmbedder
    from offline_people import labelled

    from deltamem.episode import Trajectory

    rng, scorer, embedder = random.Random(9), instantiate(whole("+experiment=qwen8b").deltamem.reward), WordEmbedder()
    groups = []
    for session in rng.sample(labelled(2, 6, sizes="paper"), SESSIONS):
        group = []
        for rollout in range(ROLLOUTS):
            kept = [op for op in session.operations if rng.random() < rollout / ROLLOUTS]
            played = Trajectory((), operations=tuple(kept), retrieved_ids=(tuple(session.prior_state.keys()),))
            group.append(scorer(session, played, embedder.documents)[0]["reward"])
        groups.append(group)
    return groups


def test_advantages_and_loss_weights_of_four_sessions_are_those_of_the_paper() -> None:
    import torch
    from tensordict import TensorDict

    config = whole("+experiment=qwen8b")
    rng, groups = random.Random(99), rewarded()
    assert all(len(set(group)) > 3 for group in groups), "the groups have a spread"
    count, longest = SESSIONS * ROLLOUTS, 40
    lengths = [rng.randint(8, longest) for _ in range(count)]
    # A response is what the model wrote, with the tool's answer in the middle, which is not learned from.
    masks = [[not 3 <= at < 6 for at in range(length)] for length in lengths]
    new, old, reference = ([[rng.uniform(-2, 0) for _ in range(length)] for length in lengths] for _ in range(3))

    # By hand
    epsilon, beta = config.actor_rollout_ref.actor.clip_ratio, config.actor_rollout_ref.actor.kl_loss_coef
    advantages = []
    for group in groups:
        mean = sum(group) / ROLLOUTS
        std = math.sqrt(sum((reward - mean) ** 2 for reward in group) / (ROLLOUTS - 1))
        advantages += [(reward - mean) / std for reward in group]
    objective, slopes = 0.0, []
    for advantage, learned, *log_probs in zip(advantages, masks, new, old, reference, strict=True):
        weight = 1 / SESSIONS / ROLLOUTS / sum(learned)  # E over x, 1/G, 1/|y|
        for written, now, before, base in zip(learned, *log_probs, strict=True):
            ratio, apart = math.exp(now - before), base - now
            clipped = min(max(ratio, 1 - epsilon), 1 + epsilon)
            divergence = math.exp(apart) - apart - 1
            gain = min(ratio * advantage, clipped * advantage)
            # What verl adds: above a ratio of 3 the loss of a bad rollout grows no further.
            gain = max(gain, 3.0 * advantage) if advantage < 0 else gain
            objective += written * weight * (gain - beta * divergence)
        slopes.append(weight * advantage)

    # By verl
    rewards = torch.zeros(count, longest, dtype=torch.float64)
    mask = torch.zeros(count, longest, dtype=torch.float64)
    for row, (reward, of) in enumerate(zip(chain(*groups), masks, strict=True)):
        rewards[row, len(of) - 1] = reward
        mask[row, : len(of)] = torch.tensor(of)
    index = [f"session {row // ROLLOUTS}" for row in range(count)]
    made, _ = get_adv_estimator_fn(config.algorithm.adv_estimator)(
        token_level_rewards=rewards,
        response_mask=mask,
        index=index,
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
    )
    for row, advantage in enumerate(advantages):
        assert made[row][mask[row] > 0].tolist() == pytest.approx([advantage] * sum(masks[row]), rel=1e-4)

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    ranks = 2

    def loss(now: list[list[float]]) -> tuple[float, list[list[float]]]:
        """The loss of the batch in micro-batches on two ranks, and its gradient for the tokens of each rollout."""
        total = 0.0
        gradient: list[tuple[int, list[float]]] = []
        for rank in range(ranks):
            rows = range(rank, count, ranks)
            for start in range(0, len(rows), MICRO):
                chosen = list(rows)[start : start + MICRO]

                def nested(values: Sequence[Sequence[float]], chosen: list[int] = chosen, prompt: int = 0) -> Any:
                    of = [torch.tensor([*values[row], *[0.0] * prompt], dtype=torch.float64) for row in chosen]
                    return torch.nested.as_nested_tensor(of, layout=torch.jagged)

                written = nested(now, prompt=1).detach().requires_grad_()
                fields = {"responses": nested(now), "response_mask": nested(masks), "old_log_probs": nested(old)}
                fields |= {"prompts": nested([[0.0]] * count), "ref_log_prob": nested(reference)}
                fields |= {"advantages": nested([made[row, : lengths[row]].tolist() for row in range(count)])}
                data = TensorDict(fields, batch_size=len(chosen))
                whole_batch = {"batch_num_tokens": int(mask.sum()), "global_batch_size": count}
                assign_non_tensor(data, dp_size=ranks, **whole_batch)
                found, _ = ppo_loss(actor, {"log_probs": written}, data)
                found.backward()
                # FSDP takes the mean of the gradients over its ranks.
                total += found.item() / ranks
                gradient += zip(chosen, [one[:-1].tolist() for one in written.grad.unbind()], strict=True)
        return total, [[value / ranks for value in row] for _, row in sorted(gradient)]

    assert loss(new)[0] == pytest.approx(-objective, rel=1e-4)
    # Strictly on-policy, as trained, and at the reference: every token of a rollout pulls with its weight.
    reference = new
    old = new
    _, pulls = loss(new)
    for pull, of, slope in zip(pulls, masks, slopes, strict=True):
        assert pull == pytest.approx([-slope if written else 0.0 for written in of], rel=1e-4)

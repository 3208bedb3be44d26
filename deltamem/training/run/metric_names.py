"""Every metric of ``metrics.jsonl`` and what it means; ``docs/metrics.md`` shows this table."""

from __future__ import annotations

import re

METRICS = {
    "step": "training steps done; the line of step 0 holds the validation before training",
    "train/reward": "mean reward of the rollouts; one that failed counts 0",
    "train/format": "format reward",
    "train/retrieval": "retrieval reward",
    "train/transition": "transition reward",
    "train/precision": "soft precision of the transition",
    "train/recall": "soft recall of the transition",
    "train/positive_distance": "what is in the policy's state and not in the target's",
    "train/negative_distance": "what is in the target's state and not in the policy's",
    "train/count/<name>": "mean per session of a count of `rewards/diagnostics.py`, for example `predicted_adds`",
    "train/count/violations/<kind>": "how often a session breaks a rule of the protocol, by kind",
    "train/wrong_target": "share of the UPDATEs whose memory is not due one",
    "train/add_for_update": "share of the due UPDATEs done as an ADD while the old text stays: how this reward is gamed",
    "train/add_precision": "share of the ADDs that match a target ADD",
    "train/add_recall": "share of the target ADDs that an ADD matches",
    "train/update_precision": "share of the UPDATEs that rewrite a memory that is due one",
    "train/update_recall": "share of the due UPDATEs whose memory is rewritten",
    "train/update_matched_recall": "the same, where the new text matches too",
    "train/none_precision": "share of the NONEs that name a memory of a target NONE",
    "train/none_recall": "share of the target NONEs whose memory is named in a NONE",
    "train/queries_per_memory": "search queries for each target operation",
    "train/operations_per_memory": "operations of the policy for each target operation",
    "train/failure": "share of the rollouts that broke in our own machinery, or were lost",
    "train/group_std": "standard deviation of the rewards of one prompt's rollouts, mean over prompts",
    "train/no_signal": "share of the prompts whose rollouts all have the same reward: GRPO learns nothing from them",
    "train/truncated": "share of the episodes that a token limit ended",
    "train/turns": "assistant turns of an episode",
    "train/model_tokens_mean": "tokens that the model wrote in an episode",
    "train/model_tokens_p50": "their median",
    "train/model_tokens_p95": "their 95th percentile",
    "train/model_tokens_max": "the longest",
    "train/tool_tokens": "tokens of the search results in an episode",
    "train/retrieved_per_query": "memories that the searches returned for each query",
    "train/response_tokens": "tokens after the prompt, the model's and the tool's",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/lr": "learning rate",
    "train/policy_loss": "the clipped policy loss",
    "train/entropy": "entropy of the policy, where the actor computes the log-probs again",
    "train/clip_fraction": "share of the tokens whose ratio is clipped",
    "train/kl_to_sampler": "mean log-prob of the sampler minus that of the actor; far from 0 the two are different policies",
    "train/kl_to_start": "KL loss towards the policy before training, where it is used",
    "train/sampler_gap_max": "largest difference of a token's probability between sampler and actor",
    "heldout/<name>": "the same of the held-out sessions, for the figures of the reward, the counts and their shares",
    "data/order": "a checksum of the step's sessions; equal for runs that take the data in the same order",
    "seconds/step": "a training step, without validation",
    "seconds/gen": "until the last rollout of the step is there",
    "seconds/reward": "verl's own reward stage, where there is one",
    "seconds/old_log_prob": "log-probs of the actor before the update",
    "seconds/ref": "log-probs of the reference policy",
    "seconds/values": "values of a critic, where there is one",
    "seconds/adv": "advantages",
    "seconds/update_actor": "the update",
    "seconds/update_critic": "the update of a critic, where there is one",
    "seconds/update_weights": "new weights for the sampler",
    "seconds/save_checkpoint": "a checkpoint",
    "seconds/other": "what is left of the step",
    "seconds/testing": "validation, which is not part of the step",
    "seconds/rollout_<phase>_mean": "wall time of a phase of one rollout: generate, search, reward",
    "seconds/rollout_<phase>_sum": "its sum over the step's rollouts, which run at the same time",
    "speed/tokens": "tokens of the step, prompts included",
    "speed/tokens_per_second_per_gpu": "by the time of the whole step",
    "speed/mfu": "share of the devices' peak FLOP/s that the update uses",
    "memory/rss_gb": "resident memory of the run's processes on the trainer's node; shared pages count for each",
    "memory/pss_gb": "the same with shared pages counted once",
    "memory/processes": "how many processes these are",
    "memory/node_used_gb": "memory in use on the node, whoever uses it",
    "memory/gpu_allocated_gb": "most GPU memory that tensors of the trainer's process took",
    "memory/gpu_reserved_gb": "most GPU memory that the trainer's process held",
}
"""Name to meaning; a part in angle brackets stands for several names."""

_PATTERNS = [re.compile(re.sub(r"<\w+>", ".+", name)) for name in METRICS]


def described(name: str) -> bool:
    """Whether a metric is in `METRICS`."""
    return any(pattern.fullmatch(name) for pattern in _PATTERNS)

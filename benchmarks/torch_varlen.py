"""Attention over packed sequences and log-probs for verl's FSDP engine where flash-attn is not installed.

With this folder on ``PYTHONPATH``: ``actor_rollout_ref.model.external_lib=torch_varlen`` and
``++actor_rollout_ref.model.override_config.attn_implementation=torch_varlen``.

The attention is the flash attention that torch brings (`torch.nn.attention.varlen`, torch 2.10 or later, 16 bits, on a GPU).
The log-probs take the place of verl's own fallback, which computes one row at a time and rounds to 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
import verl.utils.torch_functional as verl_functional
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

NAME = "torch_varlen"


def lengths(position_ids: Tensor) -> tuple[Tensor, int]:
    """Where packed sequences begin and end, and how long the longest is; computed once for all layers."""
    found: tuple[Tensor, int] | None = getattr(position_ids, "_packed", None)
    if found is None:
        flat = position_ids.flatten()
        starts = (flat == 0).nonzero().flatten().to(torch.int32)
        ends = torch.cat([starts, starts.new_tensor([flat.numel()])])
        found = ends, int(ends.diff().max())
        position_ids._packed = found  # type: ignore[attr-defined]
    return found


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Causal attention within each of the packed sequences, as transformers calls it."""
    from torch.nn.attention.varlen import varlen_attn

    if attention_mask is not None or query.shape[0] != 1:
        raise ValueError(f"{NAME} is for packed sequences: set actor_rollout_ref.model.use_remove_padding=true")
    ends, longest = lengths(kwargs["position_ids"])
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    out = varlen_attn(query, key, value, ends, ends, longest, longest, scale=kwargs.get("scaling"), window_size=(-1, 0))
    return out[None], None


class LogProbs(torch.autograd.Function):
    """Log-probs of labels in float32, from logits of any type, some rows at a time."""

    rows = 2048

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Log-probs of logits of shape ``(tokens, vocabulary)``."""
        total = torch.cat([piece.float().logsumexp(-1) for piece in logits.split(LogProbs.rows)])
        ctx.save_for_backward(logits, labels, total)
        return logits.gather(-1, labels[:, None])[:, 0].float() - total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Gradient of the logits."""
        logits, labels, total = ctx.saved_tensors
        out = torch.empty_like(logits)
        for begin in range(0, len(logits), LogProbs.rows):
            rows = slice(begin, begin + LogProbs.rows)
            piece = (logits[rows].float() - total[rows, None]).exp_().mul_(-grad[rows, None])
            out[rows] = piece.scatter_add_(1, labels[rows, None], grad[rows, None].float())
        return out, None


def logprobs(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probs of labels; `logits` have one dimension more."""
    found: Tensor = LogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return found.view(labels.shape)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, flash_attention_mask)
verl_functional.logprobs_from_logits_v2 = logprobs

"""Initial weights with which a tiny transformer can copy from its context from the first step.

A small model started at random spends most of a CPU's training time on discovering that it may copy a name it has never
seen. Here four heads start as the two-layer circuit that does this: in layer 0 one head looks at the previous token and one
at the token before that; in layer 1 two heads look for the place where the present context occurred before and raise the
token that followed there. Everything stays trainable.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

_SHARED = 0.2
"""Value of embedding dimension 0 in every token: a constant from which position-only queries and keys can be made."""
_SHARPNESS = 2.3
"""Weight of the query and key norms in the two layers; their product scales the attention logits."""
_WRITE_SCALE = 0.35
_OFFSET_FREQUENCIES = 4
"""The fastest rotary frequencies tell neighbouring positions apart."""
_SLOW_FREQUENCY = 0.006
"""Content is matched in rotary dimensions slower than this, which distance leaves nearly untouched."""


@torch.no_grad()
def structured_start(model: Qwen3ForCausalLM, *, seed: int) -> None:
    """Write the copying circuit into the first two layers of a model.

    Args:
        model: A Qwen3 model with at least 2 layers, 4 query heads, 2 key-value heads and tied embeddings.
        seed: Seed of the random projections.

    Raises:
        ValueError: If the model is too small for the circuit.
    """
    config = model.config
    hidden, dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if config.num_hidden_layers < 2 or heads < 4 or kv_heads < 2 or hidden < 4 * dim:
        raise ValueError("the structured start needs 2 layers, 4 heads, 2 key-value heads and hidden_size >= 4 head_dim")
    half = dim // 2
    frequencies = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(half) / half)
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = _SHARED
    token, previous, before_previous, copied = _orthogonal_subspaces(hidden, dim, seed)

    first = model.model.layers[0].self_attn
    query, key, value, output = _by_head(first, heads, kv_heads, dim)
    key[0] *= 0.1
    key[0, :_OFFSET_FREQUENCIES, 0] = 1.0
    for head, offset in ((0, 1), (1, 2)):
        query[head] *= 0.1
        angle = -offset * frequencies[:_OFFSET_FREQUENCIES]
        query[head, :_OFFSET_FREQUENCIES, 0] = angle.cos()
        query[head, half : half + _OFFSET_FREQUENCIES, 0] = angle.sin()
    value[0] = token * embedding.norm(dim=1).mean() / hidden**0.5
    scale = _WRITE_SCALE / (embedding[:, 1:].norm(dim=1).mean() * (dim / hidden) ** 0.5)
    output[:, 0] = previous.T * scale
    output[:, 1] = before_previous.T * scale

    slow = [index for index in range(half) if frequencies[index] < _SLOW_FREQUENCY]
    content = [*slow, *(index + half for index in slow)]
    second = model.model.layers[1].self_attn
    query, key, value, output = _by_head(second, heads, kv_heads, dim)
    for kv_head, head, stored, sought in (
        (0, 0, previous, token),
        (1, heads // kv_heads, before_previous, previous),
    ):
        key[kv_head] *= 0.05
        query[head] *= 0.05
        key[kv_head, content] = stored[: len(content)]
        query[head, content] = sought[: len(content)]
        value[kv_head] = copied * 0.5
        output[:, head] = copied.T * 0.5
    for attention in (first, second):
        attention.q_norm.weight.fill_(_SHARPNESS)
        attention.k_norm.weight.fill_(_SHARPNESS)


def _orthogonal_subspaces(hidden: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four orthogonal projections ``(dim, hidden)``, blind to the shared dimension."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.linalg.qr(torch.randn(hidden, min(4 * dim, hidden - 1), generator=rng))[0].T
    padded = torch.zeros(4 * dim, hidden)
    padded[: len(rows)] = rows
    padded[:, 0] = 0
    token, previous, before_previous, copied = padded.split(dim)
    return token, previous, before_previous, copied


def _by_head(attention: Qwen3Attention, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the projections, split by head."""
    query = attention.q_proj.weight
    key = attention.k_proj.weight
    value = attention.v_proj.weight
    output = attention.o_proj.weight
    return (
        query.view(heads, dim, -1),
        key.view(kv_heads, dim, -1),
        value.view(kv_heads, dim, -1),
        output.view(output.shape[0], heads, dim),
    )

"""Batched sampling from a small Qwen3 model on a CPU, several times faster than the general loop of transformers.

Used where a policy of about a million parameters is trained and measured without a GPU: by verl's rollout on a CPU and by
the evaluation of a checkpoint. What makes it fast is a key-value cache of fixed size, one prefill for identical prompts,
fused projections, and dropping finished rows. The arithmetic is that of `Qwen3ForCausalLM`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM

_PREFILL_ROWS = 32
"""Rows of one prefill pass; prompts are sorted by length, so short passes waste little on padding."""
_COMPACT_BELOW = 0.75
"""Finished rows are dropped from the cache once less than this share of its rows is alive."""


class Generated(NamedTuple):
    """One sampled continuation.

    Attributes:
        token_ids: The sampled tokens, the end-of-sequence token included.
        log_probs: Natural log-probability of each token at the sampling temperature (at 1 for greedy rows).
        stopped: Whether an end-of-sequence token was sampled (else the limit was reached).
    """

    token_ids: list[int]
    log_probs: list[float]
    stopped: bool


class _Layer(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    query_norm: Tensor
    key_norm: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class _Cache:
    """Keys and values, shape ``(rows, kv_heads, width, head_dim)`` a layer; `valid` marks what may be attended to."""

    keys: list[Tensor]
    values: list[Tensor]
    valid: Tensor
    length: int

    def keep(self, rows: Tensor) -> None:
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.valid = self.valid[rows]


class BatchGenerator:
    """Samples from a `Qwen3ForCausalLM`, whose weights it reads anew in every call."""

    def __init__(self, model: Qwen3ForCausalLM, *, eos_ids: Collection[int], seed: int) -> None:
        """Prepare a sampler.

        Args:
            model: A dense Qwen3 model in float32 on the CPU.
            eos_ids: Tokens that end a continuation.
            seed: Seed of the sampling.
        """
        self._model = model
        self._config = model.config
        self._eos_ids = frozenset(eos_ids)
        self._rng = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        temperatures: Sequence[float],
        seeds: Sequence[int | None] | None = None,
    ) -> list[Generated]:
        """Continue every prompt.

        A continuation with a seed of its own depends on weights, prompt and seed, not on what else is sampled with it. What
        remains is rounding: the batch decides the order of some sums, so that logits differ in their last bits, which
        changes about one token in a million.

        Args:
            prompts: Token ids, at least one each.
            max_new_tokens: Limit for each prompt, at least 1.
            temperatures: Sampling temperature for each prompt; 0 is greedy.
            seeds: Seed for each prompt, at least 0 and less than 2**63; None draws one from the sampler's own seed.

        Returns:
            One continuation a prompt, in order.
        """
        self._weights = _read_weights(self._model)
        limits = list(max_new_tokens)
        streams = self._streams(seeds or [None] * len(prompts))
        cache, logits = self._prefill(prompts, max(limits))
        positions = torch.tensor([len(prompt) for prompt in prompts])
        temperature = torch.tensor(temperatures, dtype=torch.float32)
        tokens: list[list[int]] = [[] for _ in prompts]
        log_probs: list[list[float]] = [[] for _ in prompts]
        stopped = [False] * len(prompts)
        rows = list(range(len(prompts)))
        drawn = 0
        while True:
            sampled, sampled_log_probs = _sample(logits, temperature[rows], _uniform(streams[rows], drawn))
            drawn += 1
            alive = []
            for place, (row, token, log_prob) in enumerate(
                zip(rows, sampled.tolist(), sampled_log_probs.tolist(), strict=True)
            ):
                if stopped[row] or len(tokens[row]) >= limits[row]:
                    continue
                tokens[row].append(token)
                log_probs[row].append(log_prob)
                stopped[row] = token in self._eos_ids
                if not stopped[row] and len(tokens[row]) < limits[row]:
                    alive.append(place)
            if not alive:
                break
            if len(alive) < _COMPACT_BELOW * len(rows):
                kept = torch.tensor(alive)
                cache.keep(kept)
                sampled, positions = sampled[kept], positions[kept]
                rows = [rows[place] for place in alive]
            logits = self._step(sampled, positions, cache)
            positions = positions + 1
        return [Generated(*columns) for columns in zip(tokens, log_probs, stopped, strict=True)]

    def _streams(self, seeds: Sequence[int | None]) -> _Words:
        """The start of each row's random numbers, shape ``(rows,)``."""
        own = torch.randint(2**63 - 1, (len(seeds),), generator=self._rng).tolist()
        return _mix(np.array([new if seed is None else seed for seed, new in zip(seeds, own, strict=True)], dtype=np.uint64))

    def _prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[_Cache, Tensor]:
        """Run the unique prompts, shortest first, and spread them right-aligned over the rows of one cache."""
        unique = sorted({tuple(prompt) for prompt in prompts}, key=len)
        place = {prompt: index for index, prompt in enumerate(unique)}
        width = len(unique[-1])
        cache = self._empty_cache(len(unique), width)
        logits = []
        for start in range(0, len(unique), _PREFILL_ROWS):
            chunk = unique[start : start + _PREFILL_ROWS]
            longest = len(chunk[-1])
            ids = torch.zeros((len(chunk), longest), dtype=torch.long)
            valid = torch.zeros((len(chunk), longest), dtype=torch.bool)
            for row, prompt in enumerate(chunk):
                ids[row, longest - len(prompt) :] = torch.tensor(prompt)
                valid[row, longest - len(prompt) :] = True
            small = self._empty_cache(len(chunk), longest)
            small.valid[:] = valid
            small.length = longest
            positions = (valid.cumsum(1) - 1).clamp(min=0)
            causal = torch.ones((longest, longest), dtype=torch.bool).tril()
            # A padding row would attend to nothing and give NaN: let every position see itself.
            mask = (valid[:, None, None, :] & causal) | torch.eye(longest, dtype=torch.bool)
            logits.append(self._forward(ids, positions, small, mask, at=0))
            stop = start + len(chunk)
            for layer in range(len(cache.keys)):
                cache.keys[layer][start:stop, :, width - longest :] = small.keys[layer]
                cache.values[layer][start:stop, :, width - longest :] = small.values[layer]
            cache.valid[start:stop, width - longest :] = valid
        rows = torch.tensor([place[tuple(prompt)] for prompt in prompts])
        wide = self._empty_cache(len(prompts), width + new_tokens)
        for layer in range(len(cache.keys)):
            wide.keys[layer][:, :, :width] = cache.keys[layer][rows]
            wide.values[layer][:, :, :width] = cache.values[layer][rows]
        wide.valid[:, :width] = cache.valid[rows]
        wide.length = width
        return wide, torch.cat(logits)[rows]

    def _empty_cache(self, rows: int, width: int) -> _Cache:
        config = self._config
        shape = (rows, config.num_key_value_heads, width, config.head_dim)
        return _Cache(
            keys=[torch.zeros(shape) for _ in range(config.num_hidden_layers)],
            values=[torch.zeros(shape) for _ in range(config.num_hidden_layers)],
            valid=torch.zeros((rows, width), dtype=torch.bool),
            length=0,
        )

    def _step(self, tokens: Tensor, positions: Tensor, cache: _Cache) -> Tensor:
        """Append one token to every row and return the next logits, shape ``(rows, vocabulary)``."""
        at = cache.length
        cache.valid[:, at] = True
        cache.length = at + 1
        mask = cache.valid[:, None, None, : at + 1]
        return self._forward(tokens[:, None], positions[:, None], cache, mask, at=at)

    def _forward(self, ids: Tensor, positions: Tensor, cache: _Cache, mask: Tensor, *, at: int) -> Tensor:
        config, weights = self._config, self._weights
        rows, width = ids.shape
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        eps = config.rms_norm_eps
        angles = positions[..., None].float() * weights.frequencies
        cos, sin = angles.cos().repeat(1, 1, 2)[:, None], angles.sin().repeat(1, 1, 2)[:, None]
        hidden = weights.embedding[ids]
        for index, layer in enumerate(weights.layers):
            normed = F.rms_norm(hidden, (hidden.shape[-1],), layer.input_norm, eps) @ layer.qkv.T
            query, key, value = (
                part.view(rows, width, -1, dim) for part in normed.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
            )
            query = _rotate(F.rms_norm(query, (dim,), layer.query_norm, eps).transpose(1, 2), cos, sin)
            key = _rotate(F.rms_norm(key, (dim,), layer.key_norm, eps).transpose(1, 2), cos, sin)
            cache.keys[index][:, :, at : at + width] = key
            cache.values[index][:, :, at : at + width] = value.transpose(1, 2)
            keys = cache.keys[index][:, :, : at + width]
            values = cache.values[index][:, :, : at + width]
            if width == 1:
                # The query heads of one key-value head become query positions: no copy of the cache is made.
                grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
                attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).reshape(rows, 1, -1)
            else:
                attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
                attended = attended.transpose(1, 2).reshape(rows, width, -1)
            hidden = hidden + attended @ layer.output.T
            normed = F.rms_norm(hidden, (hidden.shape[-1],), layer.mlp_norm, eps)
            gate, up = (normed @ layer.gate_up.T).chunk(2, -1)
            hidden = hidden + (F.silu(gate) * up) @ layer.down.T
        last = F.rms_norm(hidden[:, -1], (hidden.shape[-1],), weights.final_norm, eps)
        return last @ weights.head.T


class _Weights(NamedTuple):
    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    layers: list[_Layer]
    frequencies: Tensor


def _read_weights(model: Qwen3ForCausalLM) -> _Weights:
    config = model.config
    layers = []
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        layers.append(
            _Layer(
                input_norm=block.input_layernorm.weight,
                qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
                query_norm=attention.q_norm.weight,
                key_norm=attention.k_norm.weight,
                output=attention.o_proj.weight,
                mlp_norm=block.post_attention_layernorm.weight,
                gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                down=mlp.down_proj.weight,
            )
        )
    half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    return _Weights(
        embedding=model.model.embed_tokens.weight,
        head=model.lm_head.weight,
        final_norm=model.model.norm.weight,
        layers=layers,
        frequencies=1.0 / config.rope_parameters["rope_theta"] ** half,
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


_Words = npt.NDArray[np.uint64]


def _mix(words: _Words) -> _Words:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014), which makes random words of counters."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _uniform(streams: _Words, drawn: int) -> Tensor:
    """The random number of each row after `drawn` others, in [0, 1), float64 of shape ``(rows, 1)``."""
    words = _mix(streams + np.uint64((drawn + 1) * 0x9E3779B97F4A7C15 % 2**64))
    return torch.from_numpy((words >> np.uint64(11)) * 2.0**-53)[:, None]


def _sample(logits: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row by inverting the distribution; rows at temperature 0 take the most likely one."""
    greedy = temperature == 0
    log_probs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], -1)
    cumulated = log_probs.exp().cumsum(-1, dtype=torch.float64)
    drawn = torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True).squeeze(1)
    tokens = torch.where(greedy, log_probs.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)

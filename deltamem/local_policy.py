"""A small Qwen or Llama checkpoint on this machine as a policy: chat template, batched sampling."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from deltamem.chat_template import turn_format
from deltamem.episode import EPISODE_FILE, Message
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.policy import Batcher, Completion

_PREFILL_ROWS = 32  # Rows of one prefill pass; prompts are sorted by length, so short passes waste little on padding
_COMPACT_BELOW = 0.75  # Finished rows are dropped from the cache once less than this share of its rows is alive


ARCHITECTURES = ("qwen3", "qwen2", "llama")
"""Model types that are sampled from: dense, with rotary positions that are not stretched; of biases only those of Qwen2."""


def check_architecture(config: Any, name: str) -> None:
    """Refuse what the sampler would compute wrongly.

    Raises:
        DeltaMemError: If the configuration is of another type, or has other biases, stretched positions or a sliding
            window; begins with `name`.
    """
    if config.model_type not in ARCHITECTURES:
        raise DeltaMemError(
            f"{name}: expected a dense checkpoint of {', '.join(ARCHITECTURES)}, not one of type {config.model_type!r}"
        )
    if (kind := config.rope_parameters["rope_type"]) != "default":
        raise DeltaMemError(f"{name}: positions are of type {kind!r}, which the sampler does not support")
    # Not every type has all of these; the biases that Qwen2 has are no option of its configuration.
    options = [getattr(config, option, False) for option in ("attention_bias", "mlp_bias", "use_sliding_window")]
    if any(options) or config.hidden_act != "silu":
        raise DeltaMemError(
            f"{name}: biases, a sliding window, or an activation other than silu, are not supported by the sampler"
        )


class Generated(NamedTuple):
    """One sampled continuation."""

    token_ids: list[int]  # The end-of-sequence token included
    log_probs: list[float]  # Natural log-probability of each token at the sampling temperature (at 1 for greedy rows)
    stopped: bool  # Whether an end-of-sequence token was sampled (else the limit was reached)


class _LayerWeights(NamedTuple):
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
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
    """Samples from a model of one of `ARCHITECTURES`, whose weights it reads anew in every call."""

    def __init__(self, model: PreTrainedModel, *, eos_ids: Collection[int], seed: int) -> None:
        """Prepare a sampler with a model in float32, whose device samples; `eos_ids` end a continuation."""
        self._model = model
        self._config = model.config
        self._eos_ids = frozenset(eos_ids)
        self._rng = torch.Generator().manual_seed(seed)
        self._closed = False

    def close(self) -> None:
        """Make every continuation end at its next token, also one under way in another thread."""
        self._closed = True

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
        # The context slows every operation a little, so the CPU goes without.
        device = self._model.device
        with nullcontext() if device.type == "cpu" else device:
            return self._generate(prompts, max_new_tokens, temperatures, seeds or [None] * len(prompts))

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        temperatures: Sequence[float],
        seeds: Sequence[int | None],
    ) -> list[Generated]:
        self._weights = _read_weights(self._model)
        streams = self._streams(seeds)
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
            if not alive or self._closed:
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
        own = torch.randint(2**63 - 1, (len(seeds),), generator=self._rng, device="cpu").tolist()
        return _mix(np.array([new if seed is None else seed for seed, new in zip(seeds, own, strict=True)], dtype=np.uint64))

    def _prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[_Cache, Tensor]:
        """Run the unique prompts, shortest first, and spread them right-aligned over the rows of one cache."""
        unique = sorted({tuple(prompt) for prompt in prompts}, key=len)
        place = {prompt: index for index, prompt in enumerate(unique)}
        places = [place[tuple(prompt)] for prompt in prompts]
        width = len(unique[-1])
        cache = self._empty_cache(len(prompts), width + new_tokens)
        cache.length = width
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
            rows = [row for row, number in enumerate(places) if start <= number < start + len(chunk)]
            target, source = torch.tensor(rows), torch.tensor([places[row] - start for row in rows])
            for wide, part in zip((*cache.keys, *cache.values), (*small.keys, *small.values), strict=True):
                wide[target, :, width - longest : width] = part[source]
            cache.valid[target, width - longest : width] = valid[source]
        return cache, torch.cat(logits)[torch.tensor(places)]

    def _empty_cache(self, rows: int, width: int) -> _Cache:
        config = self._config
        shape = (rows, config.num_key_value_heads, width, _head_dim(config))
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
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, _head_dim(config)
        eps = config.rms_norm_eps
        angles = positions[..., None].float() * weights.frequencies
        cos, sin = angles.cos().repeat(1, 1, 2)[:, None], angles.sin().repeat(1, 1, 2)[:, None]
        hidden = weights.embedding[ids]
        for index, layer in enumerate(weights.layers):
            normed = F.rms_norm(hidden, (hidden.shape[-1],), layer.input_norm, eps)
            projected = F.linear(normed, layer.qkv, layer.qkv_bias).view(rows, width, -1, dim)
            query, key, value = projected.split([heads, kv_heads, kv_heads], 2)
            if layer.query_norm is not None and layer.key_norm is not None:
                query = F.rms_norm(query, (dim,), layer.query_norm, eps)
                key = F.rms_norm(key, (dim,), layer.key_norm, eps)
            query, key = _rotate(query.transpose(1, 2), cos, sin), _rotate(key.transpose(1, 2), cos, sin)
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
    layers: list[_LayerWeights]
    frequencies: Tensor


def _head_dim(config: Any) -> int:
    # Qwen2 does not name it.
    return int(getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))


def _read_weights(model: Any) -> _Weights:
    config, head_dim = model.config, _head_dim(model.config)
    layers = []
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        joined = attention.q_proj, attention.k_proj, attention.v_proj
        biases = [projection.bias for projection in joined if projection.bias is not None]
        layers.append(
            _LayerWeights(
                input_norm=block.input_layernorm.weight,
                qkv=torch.cat([projection.weight for projection in joined]),
                qkv_bias=torch.cat(biases) if biases else None,
                query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
                key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
                output=attention.o_proj.weight,
                mlp_norm=block.post_attention_layernorm.weight,
                gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                down=mlp.down_proj.weight,
            )
        )
    half = torch.arange(0, head_dim, 2).float() / head_dim
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
    drawn = torch.searchsorted(cumulated, uniform.to(cumulated.device) * cumulated[:, -1:], right=True).squeeze(1)
    tokens = torch.where(greedy, log_probs.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)


_QUIET_SECONDS = 0.05  # So that episodes in step share a batch


class CheckpointPolicy:
    """Samples from a checkpoint folder.

    With a fixed seed and the same episodes in the same order the texts are the same, as long as all episodes run at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        max_new_tokens: int = 512,
        threads: int | None = None,
        thinking: bool = True,
        use_gpu: bool = False,
        strict_window: bool = False,
    ) -> None:
        """Load model and tokenizer.

        Args:
            folder: Hugging Face folder of a dense Qwen3, Qwen2 or Llama model with a chat template.
            temperature: Of the sampling; 0 is greedy.
            seed: Of the sampling.
            max_new_tokens: Of one assistant text.
            threads: Of torch; by default one for each core.
            thinking: As in `deltamem.episode.EpisodeConfig`; the chat template is told.
            use_gpu: Sample on the GPU, if there is one.
            strict_window: Refuse what leaves no room for `max_new_tokens`, as endpoints do; else the answer is cut.

        Raises:
            DeltaMemError: If the folder holds no such model, or its chat template does not fit.
        """
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self._tokenizer, model = load_checkpoint(folder)
        self.name = str(folder)
        self.trained = (folder / EPISODE_FILE).is_file()
        """For the turns of episodes, see `deltamem.policy.choose_mode`."""
        self._template_options = {} if thinking else {"enable_thinking": False}
        self._format = turn_format(
            self._tokenizer,
            template_options=self._template_options,
            eos_ids=model.generation_config.eos_token_id,
        )
        try:
            self._format.check(thinking=thinking)
        except DeltaMemError as error:
            raise DeltaMemError(f"{folder}: {error}") from error
        if use_gpu and torch.cuda.is_available():
            model.to("cuda")
        self._generator = BatchGenerator(model.eval(), eos_ids=set(self._format.ends), seed=seed)
        self.window = int(model.config.max_position_embeddings)
        """In tokens."""
        self._strict_window = strict_window
        self._temperature = temperature
        self.max_new_tokens = max_new_tokens
        self._requests = Batcher(self._sample, quiet_seconds=_QUIET_SECONDS)

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text.

        Raises:
            ContextLengthError: If the conversation leaves too little room, with `strict_window`.
        """
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self._template_options
        )
        token_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._strict_window and len(token_ids) + self.max_new_tokens > self.window:
            raise ContextLengthError(
                f"{self.name}: {len(token_ids)} tokens and {self.max_new_tokens} of the answer exceed {self.window}"
            )
        if len(token_ids) >= self.window:
            return Completion("", truncated=True, tokens=0)
        generated = await self._requests.ask(token_ids)
        own = self._tokenizer.decode(generated.token_ids[:-1] if generated.stopped else generated.token_ids)
        return Completion(self._format.opening + own, not generated.stopped, len(generated.token_ids), len(token_ids))

    def close(self) -> None:
        """Make what is being written end at its next token, so that the process can exit."""
        self._generator.close()

    def _sample(self, prompts: list[list[int]]) -> list[Generated]:
        limits = [min(self.max_new_tokens, self.window - len(prompt)) for prompt in prompts]
        return self._generator.generate(prompts, limits, [self._temperature] * len(prompts))


def load_checkpoint(folder: Path, *, dtype: torch.dtype | Literal["auto"] = torch.float32) -> tuple[Any, Any]:
    """Load tokenizer and model of a Hugging Face folder; ``dtype="auto"`` leaves the weights as they are there.

    Raises:
        DeltaMemError: If the folder holds no whole model of one of `ARCHITECTURES` with a chat template and its tokenizer.
    """
    if not (folder / "config.json").is_file():
        raise DeltaMemError(f"{folder}: no checkpoint there (config.json is missing)")
    transformers_logging.disable_progress_bar()
    # What is wrong with the folder is told in one sentence below, not in a report of many lines.
    transformers_logging.set_verbosity_error()
    try:
        check_architecture(AutoConfig.from_pretrained(folder, local_files_only=True), str(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=dtype, output_loading_info=True
        )
    except DeltaMemError:
        raise
    except Exception as error:  # a damaged file shows as a different exception in every library
        reason = str(error).partition("\n")[0]
        raise DeltaMemError(f"{folder}: cannot be loaded as a checkpoint ({reason})") from error
    if loading["missing_keys"]:
        # transformers would go on with random weights in their place.
        raise DeltaMemError(f"{folder}: the weights lack {min(loading['missing_keys'])}")
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
        raise DeltaMemError(f"{folder}: the tokenizer needs a chat template and an end-of-turn token")
    if (needed := max(tokenizer.get_vocab().values()) + 1) > model.config.vocab_size:
        raise DeltaMemError(
            f"{folder}: the tokenizer has {needed} tokens and the weights {model.config.vocab_size}; it is of another model"
        )
    return tokenizer, model

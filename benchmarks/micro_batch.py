"""One packed micro-batch on a GPU, each way of attention and log-probs: ``python benchmarks/micro_batch.py [--json FILE]``.

Milliseconds of the forward pass and of forward and backward, peak memory, and the errors of `torch_varlen` against float32.
Models have random weights. ``fused_*`` are verl's fused kernels, ``rowwise`` is what its fallback without flash-attn does.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch_varlen
from torch import Tensor
from training_runs import made_on
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, Qwen3Config, Qwen3ForCausalLM
from verl.utils.experimental.torch_functional import FusedLinearForPPO
from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

DEVICE = "cuda"
WAYS = [
    ("sdpa", "rowwise"),
    ("sdpa", "fused_torch"),
    ("sdpa", "fused_triton"),
    ("sdpa", "chunked"),
    ("torch_varlen", "chunked"),
    ("torch_varlen", "fused_torch"),
]


def positions(total: int, each: int) -> Tensor:
    """Position ids of packed sequences, shape ``(1, total)``."""
    return torch.cat([torch.arange(min(each, total - start)) for start in range(0, total, each)])[None].to(DEVICE)


def rowwise(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([torch.log_softmax(row, -1)[label] for row, label in zip(logits, labels, strict=True)])


def milliseconds(call: Callable[[], object], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return round(median(times), 2)


def difference(found: Tensor | None, exact: Tensor | None) -> float:
    """Relative to the exact values, by Frobenius' norm."""
    assert found is not None and exact is not None
    return float((found.float() - exact).norm() / exact.norm())


def attention_errors(heads: int, kv_heads: int, dim: int, *, total: int = 1500, each: int = 400) -> dict[str, float]:
    place = positions(total, each)
    shapes = [(1, count, total, dim) for count in (heads, kv_heads, kv_heads)]
    parts = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    exact = [part.detach().float().requires_grad_() for part in parts]
    found, _ = torch_varlen.attention(None, *parts, None, position_ids=place, scaling=dim**-0.5)
    sequence = (place[0] == 0).cumsum(0)
    mask = (sequence[:, None] == sequence[None]) & torch.ones(total, total, device=DEVICE, dtype=torch.bool).tril()
    query, key, value = exact[0], *(part.repeat_interleave(heads // kv_heads, 1) for part in exact[1:])
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
    gradient = torch.randn_like(found)
    found.backward(gradient)
    wanted.backward(gradient.float())
    gradients = {name: difference(a.grad, b.grad) for name, a, b in zip(("dq", "dk", "dv"), parts, exact, strict=True)}
    return {"out": difference(found, wanted), **gradients}


def log_prob_errors(tokens: int = 1000, vocabulary: int = 49_152) -> dict[str, float]:
    logits = (3 * torch.randn(tokens, vocabulary, device=DEVICE)).bfloat16()
    labels = torch.randint(0, vocabulary, (tokens,), device=DEVICE)
    wanted = torch.log_softmax(logits.float(), -1).gather(-1, labels[:, None])[:, 0]
    ways = {"chunked": torch_varlen.logprobs(logits, labels), "rowwise": rowwise(logits, labels)}
    return {name: float((found.float() - wanted).abs().max()) for name, found in ways.items()}


def log_probs(way: str, hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Log-probs of labels of shape ``(1, tokens)`` by one of the ways."""
    if way == "fused_triton":
        found: Tensor = linear_cross_entropy(hidden, head, labels, 1.0, "none")[0]
        return found
    if way.startswith("fused_"):
        fused: Tensor = FusedLinearForPPO(impl_backend=way.removeprefix("fused_"))(hidden, head, labels, 1.0)[0]
        return fused
    logits = hidden[0] @ head.T
    return rowwise(logits, labels[0]) if way == "rowwise" else torch_varlen.logprobs(logits, labels[0])


def measure(kind: Any, config: PreTrainedConfig, total: int, each: int, ways: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Times and GiB of one micro-batch of `total` tokens in sequences of `each`; a sentence where a way fails."""
    gc.collect()  # the model before
    torch.cuda.empty_cache()
    labels, token_ids = torch.randint(0, config.vocab_size, (2, 1, total), device=DEVICE)
    place = positions(total, each)
    with torch.device(DEVICE):
        model = kind._from_config(config, dtype=torch.bfloat16).train()
    if kind is Qwen3ForCausalLM:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def forward(way: str) -> Tensor:
        hidden = model.model(input_ids=token_ids, position_ids=place.clone(), use_cache=False).last_hidden_state
        return log_probs(way, hidden, model.lm_head.weight, labels)

    def train(way: str) -> None:
        forward(way).float().mean().backward()
        model.zero_grad(set_to_none=True)

    results: dict[str, Any] = {}
    for attention, way in ways:
        rounds = 2 if way == "rowwise" else 5
        model.set_attn_implementation(attention)
        torch.cuda.reset_peak_memory_stats()
        try:
            with torch.no_grad():
                ahead = milliseconds(lambda way=way: forward(way), rounds)  # type: ignore[misc]
            both = milliseconds(lambda way=way: train(way), rounds)  # type: ignore[misc]
        except Exception as error:
            results[f"{attention}+{way}"] = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            memory = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            results[f"{attention}+{way}"] = {"forward": ahead, "forward_backward": both, "GiB": memory}
        print(type(config).__name__, total, attention, way, results[f"{attention}+{way}"], flush=True)
    return results


def smollm2() -> LlamaConfig:
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    return LlamaConfig(**sizes, num_attention_heads=9, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True)


def qwen3(layers: int, hidden: int, heads: int, inner: int, *, tied: bool) -> Qwen3Config:
    sizes = {"vocab_size": 151_936, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    return Qwen3Config(**sizes, num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    figures: dict[str, Any] = made_on()
    figures["errors"] = {
        "attention_9_3_64": attention_errors(9, 3, 64),
        "attention_32_8_128": attention_errors(32, 8, 128),
        "log_probs": log_prob_errors(),
    }
    print(json.dumps(figures["errors"], indent=1), flush=True)
    figures["milliseconds"] = {
        "smollm2_135m_4096": measure(LlamaForCausalLM, smollm2(), 4096, 450, WAYS),
        "smollm2_135m_16384": measure(LlamaForCausalLM, smollm2(), 16_384, 450, WAYS[1:]),
        "qwen3_0.6b_8192": measure(Qwen3ForCausalLM, qwen3(28, 1024, 16, 3072, tied=True), 8192, 2264, WAYS[1:]),
        "qwen3_8b_4_layers_8192": measure(Qwen3ForCausalLM, qwen3(4, 4096, 32, 12_288, tied=False), 8192, 2264, WAYS[1:]),
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

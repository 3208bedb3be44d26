"""The batched sampler against transformers' own Qwen3: same tokens, same log-probabilities."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chi2
from transformers import Qwen3Config, Qwen3ForCausalLM

from deltamem.local_policy import BatchGenerator

VOCABULARY = 61
EOS = 2
PROMPTS = [
    [5, 6, 7, 8, 9],
    [11],
    [5, 6, 7, 8, 9],
    [7, 7, 7],
    list(range(10, 50)),
    [5, 6, 7, 8, 10],
    [11],
    [3, 4] * 9,
]


def make_model(seed: int = 0, **changes: object) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**{**sizes, **changes})).eval()
    with torch.no_grad():
        # Norms of one would hide a norm that is left out.
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.7, 1.3)
    return model


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return make_model()


def reference_log_probs(
    model: Qwen3ForCausalLM, prompt: list[int], token_ids: list[int], temperature: float
) -> torch.Tensor:
    """Log-probabilities of a continuation by one full forward pass; shape ``(len(token_ids), vocabulary)``."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / (temperature or 1.0), -1)


@pytest.mark.parametrize(
    "changes", [{}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1, "tie_word_embeddings": False}]
)
def test_greedy_tokens_are_those_of_transformers(changes):
    model = make_model(3, **changes)
    results = BatchGenerator(model, eos_ids=[], seed=0).generate(PROMPTS, [12] * len(PROMPTS), [0.0] * len(PROMPTS))
    for prompt, result in zip(PROMPTS, results, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert result.token_ids == expected[0, len(prompt) :].tolist()
        assert not result.stopped


def test_rows_that_finish_at_many_different_times_do_not_disturb_the_others(model):
    prompts = [[5 + row % 50, *range(3, 4 + row % 9)] for row in range(70)]
    limits = [1 + (7 * row) % 40 for row in range(70)]
    temperatures = [(0.6, 1.0, 1.4, 0.0)[row % 4] for row in range(70)]
    results = BatchGenerator(model, eos_ids=[EOS], seed=6).generate(prompts, limits, temperatures)
    assert len({len(result.token_ids) for result in results}) > 20
    assert any(result.stopped for result in results)
    for prompt, limit, temperature, result in zip(prompts, limits, temperatures, results, strict=True):
        assert result.stopped == (result.token_ids[-1] == EOS)
        assert result.stopped or len(result.token_ids) == limit
        assert EOS not in result.token_ids[:-1]
        expected = reference_log_probs(model, prompt, result.token_ids, temperature)
        chosen = expected.gather(1, torch.tensor(result.token_ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(result.log_probs), chosen, rtol=0, atol=1e-5)


def test_an_end_at_the_limit_counts_as_stopped(model):
    [free] = BatchGenerator(model, eos_ids=[], seed=0).generate([[5, 6, 7]], [1], [0.0])
    [ended] = BatchGenerator(model, eos_ids=free.token_ids, seed=0).generate([[5, 6, 7]], [1], [0.0])
    assert not free.stopped and ended.stopped


def test_the_seed_determines_the_samples(model):
    def sample(seed: int) -> list[list[int]]:
        generator = BatchGenerator(model, eos_ids=[EOS], seed=seed)
        calls = [generator.generate(PROMPTS, [9] * len(PROMPTS), [1.0] * len(PROMPTS)) for _ in range(2)]
        return [result.token_ids for call in calls for result in call]

    first = sample(5)
    assert first == sample(5)
    assert first != sample(6)
    # The second call goes on with the random numbers, and identical prompts get samples of their own.
    assert first[:8] != first[8:]
    assert first[0] != first[2]


def test_a_request_with_a_seed_depends_on_nothing_else(model):
    prompts = [[5 + row % 50, *range(3, 4 + row % 9)] for row in range(60)]
    limits = [1 + (7 * row) % 40 for row in range(60)]
    seeds = [row * row * 10**15 for row in range(60)]
    together = BatchGenerator(model, eos_ids=[EOS], seed=0).generate(prompts, limits, [1.0] * 60, seeds)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3)).tolist()
    for size in (1, 7, 23):
        generator = BatchGenerator(model, eos_ids=[EOS], seed=size)
        for start in range(0, 60, size):
            rows = order[start : start + size]
            parts = [[column[row] for row in rows] for column in (prompts, limits, [1.0] * 60, seeds)]
            for row, result in zip(rows, generator.generate(*parts), strict=True):
                assert result.token_ids == together[row].token_ids
    other = BatchGenerator(model, eos_ids=[EOS], seed=0).generate(prompts, limits, [1.0] * 60, [seed + 1 for seed in seeds])
    assert sum(one.token_ids == two.token_ids for one, two in zip(together, other, strict=True)) < 15


@pytest.mark.parametrize(("temperature", "step"), [(1.0, 1), (0.6, 2**40), (1.7, 12345677)])
def test_seeded_samples_follow_the_distribution(model, temperature, step):
    count = 6000
    seeds = [number * step for number in range(count)]
    results = BatchGenerator(model, eos_ids=[], seed=2).generate(
        [[5, 6, 7]] * count, [2] * count, [temperature] * count, seeds
    )
    expected = reference_log_probs(model, [5, 6, 7], [0], temperature)[0].double().exp()
    drawn = torch.bincount(torch.tensor([result.token_ids[0] for result in results]), minlength=VOCABULARY)
    # Rare tokens are taken together, as the test wants at least five of a kind.
    often = expected * count >= 5
    observed = torch.cat([drawn[often], drawn[~often].sum()[None]]).double()
    wanted = torch.cat([expected[often], expected[~often].sum()[None]]) * count
    freedom = len(observed) - 1
    assert chi2.sf(float(((observed - wanted) ** 2 / wanted).sum()), freedom) > 1e-4
    # What comes second does not follow from what came first.
    [likely] = drawn.topk(1).indices.tolist()
    second = [result.token_ids[1] for result in results if result.token_ids[0] == likely]
    after = reference_log_probs(model, [5, 6, 7, likely], [0], temperature)[0].double().exp()
    counted = torch.bincount(torch.tensor(second), minlength=VOCABULARY) / len(second)
    assert float((counted - after).abs().sum() / 2) < 1.5 * float((after * (1 - after) / len(second)).sqrt().sum())


def test_samples_follow_the_distribution(model):
    count = 6000
    results = BatchGenerator(model, eos_ids=[], seed=2).generate([[5, 6, 7]] * count, [1] * count, [1.0] * count)
    drawn = Counter(result.token_ids[0] for result in results)
    expected = reference_log_probs(model, [5, 6, 7], [0], 1.0)[0].exp()
    observed = torch.tensor([drawn[token] / count for token in range(VOCABULARY)])
    # Total variation: about 0.03 by chance for this many draws.
    assert float((observed - expected).abs().sum() / 2) < 0.06
    assert float(expected.max()) < 0.9


def test_weights_that_change_in_place_are_seen():
    model, other = make_model(0), make_model(1)
    generator = BatchGenerator(model, eos_ids=[], seed=0)
    before = [result.token_ids for result in generator.generate(PROMPTS, [8] * 8, [0.0] * 8)]
    with torch.no_grad():
        for weight, new in zip(model.parameters(), other.parameters(), strict=True):
            weight.copy_(new)
    after = [result.token_ids for result in generator.generate(PROMPTS, [8] * 8, [0.0] * 8)]
    fresh = BatchGenerator(other, eos_ids=[], seed=0).generate(PROMPTS, [8] * 8, [0.0] * 8)
    assert after == [result.token_ids for result in fresh]
    assert after != before

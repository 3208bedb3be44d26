"""A checkpoint folder as a policy, and the batched sampler against transformers' own models."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lazy import Lazy
from offline_people import labelled

from deltamem.episode import EpisodeConfig, Message, opening_messages
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.policy import Completion
from deltamem.sessions import LabelledSession
from deltamem.training.config import TinyModelConfig

torch = Lazy("torch")
stats = Lazy("scipy.stats")
transformers = Lazy("transformers")
local_policy = Lazy("deltamem.local_policy")
tiny = Lazy("deltamem.training.tiny")

VOCABULARY = 61
EOS = 2
PROMPTS = [[5, 6, 7, 8, 9], [11], [5, 6, 7, 8, 9], [7, 7, 7], list(range(10, 50)), [5, 6, 7, 8, 10], [11], [3, 4] * 9]
MANY = [[5 + row % 50, *range(3, 4 + row % 9)] for row in range(70)]
LIMITS = [1 + (7 * row) % 40 for row in range(70)]


def make_model(seed: int = 0, kind: str = "qwen3", **changes: object) -> Any:
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": True}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "qwen2":
        del sizes["head_dim"]  # its heads divide the hidden size
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **heads, **rope, **tokens, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        # Norms of one would hide a norm that is left out, and biases of zero a bias.
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.uniform_(0.7, 1.3)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


def reference_log_probs(model: Any, prompt: list[int], token_ids: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities of a continuation by one full forward pass; shape ``(len(token_ids), vocabulary)``."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / (temperature or 1.0), -1)


def sampled(generator: local_policy.BatchGenerator, temperature: float, limit: int = 9) -> list[list[int]]:
    results = generator.generate(PROMPTS, [limit] * len(PROMPTS), [temperature] * len(PROMPTS))
    return [result.token_ids for result in results]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "tie_word_embeddings": False},
        {"kind": "llama"},
        {"kind": "qwen2"},
    ],
)
def test_greedy_tokens_are_those_of_transformers(changes):
    model = make_model(3, **changes)
    for prompt, found in zip(PROMPTS, sampled(local_policy.BatchGenerator(model, eos_ids=[], seed=0), 0.0, 12), strict=True):
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert found == expected[0, len(prompt) :].tolist()


def test_rows_that_finish_at_many_different_times_do_not_disturb_the_others(model):
    temperatures = [(0.6, 1.0, 1.4, 0.0)[row % 4] for row in range(70)]
    results = local_policy.BatchGenerator(model, eos_ids=[EOS], seed=6).generate(MANY, LIMITS, temperatures)
    assert len({len(result.token_ids) for result in results}) > 20
    assert any(result.stopped for result in results)
    for prompt, limit, temperature, result in zip(MANY, LIMITS, temperatures, results, strict=True):
        assert result.stopped == (result.token_ids[-1] == EOS)
        assert result.stopped or len(result.token_ids) == limit
        assert EOS not in result.token_ids[:-1]
        expected = reference_log_probs(model, prompt, result.token_ids, temperature)
        chosen = expected.gather(1, torch.tensor(result.token_ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(result.log_probs), chosen, rtol=0, atol=1e-5)


def test_an_end_at_the_limit_counts_as_stopped(model):
    [free] = local_policy.BatchGenerator(model, eos_ids=[], seed=0).generate([[5, 6, 7]], [1], [0.0])
    [ended] = local_policy.BatchGenerator(model, eos_ids=free.token_ids, seed=0).generate([[5, 6, 7]], [1], [0.0])
    assert not free.stopped and ended.stopped


def test_the_seed_determines_the_samples(model):
    first, same, other = (local_policy.BatchGenerator(model, eos_ids=[EOS], seed=seed) for seed in (5, 5, 6))
    samples = sampled(first, 1.0)
    assert samples == sampled(same, 1.0) != sampled(other, 1.0)
    # The second call goes on with the random numbers, and identical prompts get samples of their own.
    assert samples != sampled(first, 1.0) == sampled(same, 1.0)
    assert samples[0] != samples[2]


def test_a_request_with_a_seed_depends_on_nothing_else(model):
    seeds = [row * row * 10**15 for row in range(30)]
    columns = (MANY[:30], LIMITS[:30], [1.0] * 30, seeds)
    together = local_policy.BatchGenerator(model, eos_ids=[EOS], seed=0).generate(*columns)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3)).tolist()
    for size in (1, 7):
        generator = local_policy.BatchGenerator(model, eos_ids=[EOS], seed=size)
        for start in range(0, 30, size):
            rows = order[start : start + size]
            results = generator.generate(*([column[row] for row in rows] for column in columns))
            for row, result in zip(rows, results, strict=True):
                assert result.token_ids == together[row].token_ids
    other = local_policy.BatchGenerator(model, eos_ids=[EOS], seed=0).generate(*columns[:3], [seed + 1 for seed in seeds])
    assert sum(one.token_ids == two.token_ids for one, two in zip(together, other, strict=True)) < 10


def test_everything_is_computed_where_the_model_is(monkeypatch):
    # Tensors of the device "meta" have shapes only, and refuse to meet those of the CPU, as those of a GPU do.
    generator = local_policy.BatchGenerator(make_model().to("meta"), eos_ids=[EOS], seed=0)
    devices: list[str] = []

    def steps(prompts, limits, temperatures, seeds):
        generator._weights = local_policy._read_weights(generator._model)
        cache, logits = generator._prefill(prompts, max(limits))
        drawn = local_policy._uniform(generator._streams(seeds), 0)
        sampled, log_probs = local_policy._sample(logits, torch.tensor(temperatures), drawn)
        after = generator._step(sampled, torch.tensor([len(prompt) for prompt in prompts]), cache)
        devices.extend(tensor.device.type for tensor in (logits, sampled, log_probs, after, cache.valid))
        return []

    monkeypatch.setattr(generator, "_generate", steps)
    with torch.inference_mode():
        generator.generate(PROMPTS, [3] * len(PROMPTS), [0.0, 1.0] * 4)
    assert set(devices) == {"meta"}


@pytest.mark.parametrize(("temperature", "step"), [(1.0, None), (0.6, 2**40), (1.7, 1)])
def test_samples_follow_the_distribution(model, temperature, step):
    count = 3000
    seeds = None if step is None else [number * step for number in range(count)]
    generator = local_policy.BatchGenerator(model, eos_ids=[], seed=2)
    results = generator.generate([[5, 6, 7]] * count, [2] * count, [temperature] * count, seeds)
    expected = reference_log_probs(model, [5, 6, 7], [0], temperature)[0].double().exp()
    drawn = torch.bincount(torch.tensor([result.token_ids[0] for result in results]), minlength=VOCABULARY)
    # Rare tokens are taken together, as the test wants at least five of a kind.
    often = expected * count >= 5
    observed = torch.cat([drawn[often], drawn[~often].sum()[None]]).double()
    wanted = torch.cat([expected[often], expected[~often].sum()[None]]) * count
    freedom = len(observed) - 1
    assert stats.chi2.sf(float(((observed - wanted) ** 2 / wanted).sum()), freedom) > 1e-4
    # What comes second does not follow from what came first.
    [likely] = drawn.topk(1).indices.tolist()
    second = [result.token_ids[1] for result in results if result.token_ids[0] == likely]
    after = reference_log_probs(model, [5, 6, 7, likely], [0], temperature)[0].double().exp()
    counted = torch.bincount(torch.tensor(second), minlength=VOCABULARY) / len(second)
    assert float((counted - after).abs().sum() / 2) < 1.5 * float((after * (1 - after) / len(second)).sqrt().sum())


def test_weights_that_change_in_place_are_seen():
    model, other = make_model(0), make_model(1)
    generator = local_policy.BatchGenerator(model, eos_ids=[], seed=0)
    before = sampled(generator, 0.0)
    with torch.no_grad():
        for weight, new in zip(model.parameters(), other.parameters(), strict=True):
            weight.copy_(new)
    assert before != sampled(generator, 0.0) == sampled(local_policy.BatchGenerator(other, eos_ids=[], seed=0), 0.0)


EPISODE = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
CONTEXT = 512


@pytest.fixture(scope="module")
def sessions() -> list[LabelledSession]:
    return labelled(4, 3, seed=3)


@pytest.fixture(scope="module")
def folder(sessions, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("tiny") / "model"
    sizes = TinyModelConfig(hidden_size=64, layers=2, head_dim=16, mlp_size=96, vocabulary=400, context=CONTEXT)
    tiny.build(target, sessions, EPISODE, sizes, seed=0)
    return target


@pytest.fixture
def conversations(sessions) -> list[list[Message]]:
    return [opening_messages(labelled.session, EPISODE) for labelled in sessions]


def load(folder: Path, **options: object) -> local_policy.CheckpointPolicy:
    return local_policy.CheckpointPolicy(folder, threads=torch.get_num_threads(), **{"max_new_tokens": 12, **options})  # type: ignore[arg-type]


def complete(policy: local_policy.CheckpointPolicy, *conversations: list[Message]) -> list[Completion]:
    """The answers to requests that come at once."""

    async def all_of_them() -> list[Completion]:
        return list(await asyncio.gather(*map(policy.complete, conversations)))

    return asyncio.run(all_of_them())


def test_concurrent_requests_share_one_batch_and_its_ends_are_not_text(folder, conversations, monkeypatch):
    policy = load(folder, temperature=5.0, max_new_tokens=40)
    batches: list[list[local_policy.Generated]] = []
    generate = policy._generator.generate
    monkeypatch.setattr(policy._generator, "generate", lambda *given: batches.append(generate(*given)) or batches[-1])
    answers = complete(policy, *conversations * 10)
    (results,) = batches
    assert {answer.truncated for answer in answers} == {True, False}
    end = policy._tokenizer.eos_token_id
    for answer, generated in zip(answers, results, strict=True):
        assert answer.truncated == (end not in generated.token_ids)
        assert answer.tokens == len(generated.token_ids)
        assert answer.text == policy._tokenizer.decode([token for token in generated.token_ids if token != end])


def test_greedy_is_deterministic_and_does_not_depend_on_the_batch(folder, conversations):
    together = complete(load(folder, temperature=0.0, seed=1), *conversations)
    policy = load(folder, temperature=0.0, seed=2)
    assert together[:4] == [complete(policy, messages)[0] for messages in conversations[:4]]
    assert all(0 < answer.tokens <= 12 for answer in together)


def test_a_conversation_that_fills_the_context_is_truncated_and_a_strict_window_leaves_room(folder, conversations):
    policy = load(folder, temperature=0.0, max_new_tokens=10_000)
    fits = policy._tokenizer.apply_chat_template(conversations[0], add_generation_prompt=True, return_dict=False)
    full = [*conversations[0], Message(role="tool", content="x y " * CONTEXT)]
    answer, refused = complete(policy, conversations[0], full)
    assert answer.tokens <= CONTEXT - len(fits)
    assert refused == Completion("", truncated=True, tokens=0)
    policy = load(folder, temperature=0.0, strict_window=True)
    policy.max_new_tokens = CONTEXT - len(fits)
    assert complete(policy, conversations[0])[0].prompt_tokens == len(fits)
    policy.max_new_tokens += 1
    with pytest.raises(ContextLengthError, match=str(len(fits))):
        complete(policy, conversations[0])


def test_a_closed_policy_ends_what_it_is_writing(folder, conversations):
    policy = load(folder, temperature=0.0)
    assert complete(policy, conversations[0])[0].tokens > 1
    policy.close()
    assert complete(policy, conversations[0])[0].tokens == 1


@pytest.fixture
def switched(folder, tmp_path) -> Path:
    """The model with Qwen3's switch in its template, and one more end of a turn."""
    target = tmp_path / "switched"
    shutil.copytree(folder, target)
    with (target / "chat_template.jinja").open("a") as template:
        template.write("{% if not enable_thinking | default(true) %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}")
    values = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps({**values, "eos_token_id": [0, 2]}))
    return target


def test_a_model_that_must_not_think_is_not_asked_to_and_its_turn_is_whole(switched, conversations, monkeypatch):
    policy = load(switched, thinking=False)
    assert policy._format.ends == {0, 2}
    prompts: list[list[int]] = []

    def answered(given, limits, temperatures):
        prompts.extend(given)
        return [local_policy.Generated(policy._tokenizer.encode("done"), [0.0], True)]

    monkeypatch.setattr(policy._generator, "generate", answered)
    assert complete(policy, conversations[0])[0].text.startswith("<think>\n\n</think>\n\n")
    assert policy._tokenizer.decode(prompts[0]).endswith("assistant\n<think>\n\n</think>\n\n")
    assert not complete(load(switched), conversations[0])[0].text.startswith("<think>\n\n</think>")


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new)


@pytest.mark.parametrize(
    ("file", "damaged", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", lambda content: b"{nope", "not a valid JSON"),
        ("config.json", swap(b'"qwen3"', b'"gemma"'), "'gemma'"),
        ("config.json", swap(b'"default"', b'"linear", "factor": 2.0'), "positions are of type 'linear'"),
        ("config.json", swap(b'"use_sliding_window": false', b'"use_sliding_window": true'), "a sliding window"),
        ("config.json", swap(b'"attention_bias": false', b'"attention_bias": true'), "biases"),
        ("model.safetensors", lambda content: content[:3000], "cannot be loaded"),
        ("model.safetensors", swap(b"model.norm.weight", b"model.nurm.weight"), "model.norm.weight"),
        ("tokenizer.json", lambda content: b"{}", "cannot be loaded"),
        ("chat_template.jinja", None, "chat template"),
        ("chat_template.jinja", lambda content: content + b"{{ '<think>' }}", "the chat template opens a think block"),
        ("tokenizer_config.json", swap(b'"eos_token"', b'"eos"'), "end-of-turn token"),
    ],
)
def test_a_bad_folder_is_one_sentence(folder, tmp_path, file, damaged, sentence, capfd):
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    content = (target / file).read_bytes()
    (target / file).unlink()
    if damaged is not None:
        (target / file).write_bytes(damaged(content))
    with pytest.raises(DeltaMemError) as caught:
        load(target, thinking=False)
    message = str(caught.value)
    assert message.startswith(f"{target}: ") and sentence in message and "\n" not in message
    assert capfd.readouterr().err == ""

"""The warm start: the loss covers what the assistant writes, falls, and is determined by the seed."""

from __future__ import annotations

import random
from typing import Any

from lazy import lazy, names
from tiny_cases import COMPACT, SMALL, sessions, tokenizer_for

from deltamem.training.config import WarmStartConfig
from deltamem.training.teacher import target_trajectory

torch = lazy("torch")
Qwen3ForCausalLM = names("transformers", "Qwen3ForCausalLM")
tiny = lazy("deltamem.training.tiny")
Muon, Weigher, chat_text, new_model = names("deltamem.training.tiny", "Muon Weigher chat_text new_model")

FEW_STEPS = WarmStartConfig(copy_steps=3, steps=27, batch_size=4, matrix_lr=0.06, other_lr=0.012, decay_share=0.1)
"""Faster than the defaults, because the rate still rises for thirty steps."""


def train(config: WarmStartConfig, seed: int) -> tuple[Qwen3ForCausalLM, list[dict[str, Any]]]:
    model = new_model(SMALL, tokenizer_for(), seed=0)
    steps: list[dict[str, Any]] = []
    tiny.train(model, tokenizer_for(), sessions(), COMPACT, config, seed=seed, report=steps.append)
    return model, steps


def test_the_weights_cover_what_the_assistant_writes_and_favour_what_decides():
    tokenizer = tokenizer_for()
    config = WarmStartConfig(context_weight=0.25, decision_weight=3.0)
    weigh = Weigher(tokenizer, config)
    turns = set()
    for number in range(0, len(sessions()), 7):
        messages = target_trajectory(sessions()[number], COMPACT, random.Random(number), drop=0.0)
        token_ids = tokenizer(chat_text(messages, tokenizer), add_special_tokens=False)["input_ids"]
        # Rendering message by message tells which tokens each message is made of.
        expected = []
        for count, message in enumerate(messages):
            rendered = chat_text(messages[: count + 1], tokenizer)
            own = [False] * (len(tokenizer(rendered, add_special_tokens=False)["input_ids"]) - len(expected))
            if message["role"] == "assistant":
                # Between the three tokens of "<|im_start|>assistant\n" and the final line end.
                own[3:-1] = [True] * (len(own) - 4)
            expected += own
        weights = weigh(token_ids)
        assert [weight >= 1.0 for weight in weights] == expected
        assert {weight for weight, own in zip(weights, expected, strict=True) if not own} == {0.25}
        ends = [place for place, token in enumerate(token_ids) if token == tokenizer.eos_token_id]
        assert [weights[place] for place in ends] == [0.25, 0.25, 1.0, 0.25, 1.0][: len(messages)]
        turns.add(len(messages))
    assert turns == {3, 5}, "with a search and without one"
    # Events and targets weigh more, and besides them only what follows directly on an ADD.
    labelled = next(item for item in sessions() if {op.event for op in item.operations} == {"ADD", "UPDATE", "NONE"})
    text = chat_text(target_trajectory(labelled, COMPACT, random.Random(0), drop=0.0), tokenizer)
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = zip(tokenizer.convert_ids_to_tokens(token_ids), weigh(token_ids), strict=True)
    heavy = {token for token, weight in pairs if weight == 3.0}
    targets = {operation.target_memory_id for operation in labelled.operations if operation.target_memory_id}
    assert targets | {'.", "event": "ADD"}', '.", "event": "UPDATE", "target_memory_id": "'} <= heavy
    assert all('"event"' in token or token in targets or token in (', {"text": "', "]}</outputs>") for token in heavy)


def test_the_loss_falls():
    model, steps = train(FEW_STEPS, seed=1)
    assert [step["step"] for step in steps] == list(range(1, 31))
    assert [step["phase"] for step in steps] == ["copy"] * 3 + ["trajectories"] * 27
    losses = [step["loss"] for step in steps if step["phase"] == "trajectories"]
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]
    accuracies = [step["accuracy"] for step in steps if step["phase"] == "trajectories"]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    assert sum(accuracies[-5:]) / 5 > accuracies[0] + 0.1
    assert not model.training
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_the_same_seed_gives_the_same_weights():
    config = WarmStartConfig(copy_steps=1, steps=2, batch_size=2)

    def weights(seed: int) -> list[torch.Tensor]:
        return [weight.detach() for weight in train(config, seed)[0].parameters()]

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert not all(torch.equal(left, right) for left, right in zip(first, other, strict=True))


def test_either_phase_may_be_left_out():
    for copy_steps, steps in ((0, 1), (1, 0)):
        _, reported = train(WarmStartConfig(copy_steps=copy_steps, steps=steps, batch_size=2), seed=0)
        assert [step["phase"] for step in reported] == ["copy"] * copy_steps + ["trajectories"] * steps


def test_the_teacher_is_complete_first_and_careless_afterwards(monkeypatch):
    real, phases = tiny.trajectory_batches, list[tuple[float, float]]()
    written: list[float] = []

    def batches(*args, careless, **kwargs):
        phases.append(careless)
        for batch in real(*args, careless=careless, **kwargs):
            written.append(float((batch.marks >= 1).sum(1).float().mean()))
            yield batch

    monkeypatch.setattr("deltamem.training.tiny.trajectory_batches", batches)
    config = WarmStartConfig(copy_steps=1, steps=8, batch_size=4, complete_share=0.5, careless=(1.0, 1.0))
    _, reported = train(config, seed=0)
    assert phases == [(0.0, 0.0), (1.0, 1.0)]
    assert [step["phase"] for step in reported] == ["copy"] + ["trajectories"] * 8
    # A careless teacher writes one fact where the complete one writes two or more.
    assert sum(written[4:]) < 0.75 * sum(written[:4])


def test_muon_takes_the_steps_of_torch_muon():
    # Theirs works in bfloat16, so single entries differ in the third digit.
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((96, 32), (32, 96), (32, 32), (96, 32))]
    ours, theirs = ([torch.nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    optimizers = (Muon(ours, lr=0.1), torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0, momentum=0.95))
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        moved, expected = (one - before).detach(), (other - before).detach()
        assert torch.linalg.matrix_norm(moved - expected) < 0.02 * torch.linalg.matrix_norm(expected)

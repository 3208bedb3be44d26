"""Warm start of a model made from scratch: copying, then target trajectories, so that GRPO begins above zero."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from deltamem.episode import EpisodeConfig
from deltamem.sessions import LabelledSession
from deltamem.training.config import WarmStartConfig
from deltamem.training.supervised import Batch, next_token_losses, pad, rate
from deltamem.training.teacher import target_trajectory
from deltamem.training.tiny import TURN_END, TURN_START, chat_text


class WarmStartStep(NamedTuple):
    """Progress after one step; `accuracy` is that of the assistant's tokens."""

    phase: str
    step: int
    loss: float
    accuracy: float


class _Example(NamedTuple):
    token_ids: list[int]
    weights: list[float]


def warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    config: WarmStartConfig,
    *,
    seed: int,
    report: Callable[[WarmStartStep], None] = lambda step: None,
) -> None:
    """Train the model in place; it stays on the device of the configuration.

    Args:
        model: The tiny model.
        tokenizer: Its tokenizer.
        sessions: Each is used once a pass, with new omissions of the teacher.
        episode: Prompts and limits of the policy.
        config: Hyperparameters.
        seed: Of the order of sessions and the omissions of the teacher.
        report: Called after every step.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model.to(torch.device(config.device)).train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=config.matrix_lr),
        torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    total = config.copy_steps + config.steps
    copying = islice(_copy_batches(len(tokenizer), config.batch_size, rng), config.copy_steps)
    complete = round(config.complete_share * config.steps)
    trajectories = itertools.chain(
        islice(_trajectory_batches(tokenizer, sessions, episode, config, rng, careless=(0.0, 0.0)), complete),
        islice(
            _trajectory_batches(tokenizer, sessions, episode, config, rng, careless=config.careless), config.steps - complete
        ),
    )
    phases = itertools.chain((("copy", batch) for batch in copying), (("trajectories", batch) for batch in trajectories))
    for step, (phase, batch) in enumerate(phases, start=1):
        scale = rate(step, total, warm_up=30, decay_share=config.decay_share)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * scale
        loss, accuracy = _loss(model, batch.to(config.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report(WarmStartStep(phase, step, float(loss.detach()), accuracy))
    model.eval()


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised (Muon), in the precision of the weights and for all matrices of a shape at once.

    `torch.optim.Muon` takes the same steps matrix by matrix in bfloat16, which a CPU without bfloat16 units emulates: there
    it took as long as the whole backward pass of the tiny model.
    """

    def __init__(self, matrices: Sequence[Tensor], lr: float, momentum: float = 0.95) -> None:
        """Take the matrices to train, each of shape ``(rows, columns)``."""
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; every matrix needs a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for (rows, columns), matrices in by_shape.items():
                gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
                state = self.state[matrices[0]]
                average = state.setdefault("average", torch.zeros_like(gradient))
                average.lerp_(gradient, 1 - group["momentum"])
                direction = orthogonalised(gradient.lerp(average, group["momentum"]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_add_(matrices, list(direction.unbind()), alpha=-scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Bring all singular values of each matrix of a stack ``(n, rows, columns)`` near 1 (.7 to 1.2).

    Five Newton-Schulz steps with the polynomial that Muon uses, which rises steeply near 0 instead of converging.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    found: Tensor = matrices.mT if tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = found @ found.mT
        found = 3.4445 * found + (2.0315 * gram @ gram - 4.7750 * gram) @ found
    return found.mT if tall else found


def _loss(model: Qwen3ForCausalLM, batch: Batch) -> tuple[Tensor, float]:
    """Weighted cross-entropy of the next token, and the accuracy where the weight is at least 1."""
    losses, right, weights = next_token_losses(model, batch)
    return (losses * weights).sum() / weights.sum(), float(right[weights >= 1].float().mean())


def _copy_batches(vocabulary: int, batch_size: int, rng: random.Random) -> Iterator[Batch]:
    """Random tokens, repeated after a random period; only the repetition is predictable."""
    width, rows = 96, batch_size * 3 // 2
    while True:
        ids = torch.zeros((rows, width), dtype=torch.long)
        weights = torch.zeros((rows, width))
        for row in range(rows):
            period = rng.randint(6, width // 2)
            once = torch.tensor([rng.randrange(3, vocabulary) for _ in range(period)])
            ids[row] = once.repeat(width // period + 1)[:width]
            weights[row, period + 1 :] = 1.0
        yield Batch(ids, weights)


def _trajectory_batches(
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    config: WarmStartConfig,
    rng: random.Random,
    *,
    careless: tuple[float, float],
) -> Iterator[Batch]:
    """Batches of similar length: a few batches are drawn, sorted and cut, so that little is padded."""
    weigh = _Weigher(tokenizer, config)
    examples = _examples(tokenizer, sessions, episode, careless, rng, weigh)
    while True:
        drawn = sorted(islice(examples, 8 * config.batch_size), key=lambda example: len(example.token_ids))
        batches = [drawn[start : start + config.batch_size] for start in range(0, len(drawn), config.batch_size)]
        rng.shuffle(batches)
        for batch in batches:
            yield pad(batch, torch.float32)


def _examples(
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    careless: tuple[float, float],
    rng: random.Random,
    weigh: _Weigher,
) -> Iterator[_Example]:
    order = list(range(len(sessions)))
    while True:
        rng.shuffle(order)
        for index in order:
            messages = target_trajectory(sessions[index], episode, rng, drop=rng.uniform(*careless))
            token_ids = tokenizer(chat_text(messages, tokenizer), add_special_tokens=False)["input_ids"]
            yield _Example(token_ids, weigh(token_ids))


class _Weigher:
    """Loss weights of a tokenised conversation: what the assistant writes, what decides, and the rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: WarmStartConfig) -> None:
        self._start = tokenizer.convert_tokens_to_ids(TURN_START)
        self._end = tokenizer.convert_tokens_to_ids(TURN_END)
        self._assistant = tokenizer.convert_tokens_to_ids("assistant")
        self._config = config
        vocabulary = tokenizer.get_vocab()
        self._events = {index for token, index in vocabulary.items() if '"event"' in token}

    def __call__(self, token_ids: Sequence[int]) -> list[float]:
        weights = []
        own = False
        for place, token in enumerate(token_ids):
            # An assistant turn begins after "<start> assistant newline" and includes its end token.
            if place >= 3 and token_ids[place - 3] == self._start:
                own = token_ids[place - 2] == self._assistant
            decides = token in self._events or token_ids[place - 1] in self._events
            weights.append((self._config.decision_weight if decides else 1.0) if own else self._config.context_weight)
            if token == self._end:
                own = False
        return weights

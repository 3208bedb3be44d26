"""The warm start: supervised training on the teacher's trajectories, on one device; of a pretrained model resumable.

Trajectories of similar length are padded to the same width and read together; they are not packed into one row, because
attention that is kept apart within a row needs a dense mask or kernels that a CPU lacks. Rows are padded behind, so the
causal mask alone keeps the padding out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import Tensor

from deltamem.episode import EpisodeConfig, Message
from deltamem.errors import DeltaMemError
from deltamem.runs import partial_file, remove_partial
from deltamem.sessions import LabelledSession, read_sessions
from deltamem.training import data, models, token_limits
from deltamem.training.config import SupervisedConfig, TrainSettings
from deltamem.training.teacher import KINDS, TrajectoryTokenizer, target_trajectory
from deltamem.training.token_limits import Limits

CHECKPOINT = "checkpoint.pt"
"""Trained weights, optimiser and step of an unfinished fine-tuning, in its folder."""

_POOL = 16
"""Passes' worth of trajectories that are sorted by length together."""


class Example(NamedTuple):
    """A trajectory with a name for messages."""

    key: str
    token_ids: npt.NDArray[np.int32]
    marks: npt.NDArray[Any]  # of each token its place in `KINDS`, or the weight of its loss

    @property
    def own(self) -> int:
        """How many tokens are marked: where these are kinds, those that the assistant writes."""
        return int((self.marks > 0).sum())


def examples(
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    tokenize: Callable[[list[Message]], tuple[Sequence[int], Sequence[float]]],
    *,
    careless: tuple[float, float],
    rng: random.Random,
) -> Iterator[Example]:
    """Target trajectories without end: every session once a pass, in another order and with other memories found.

    `tokenize` gives ids and marks of the messages of a trajectory. `careless` is the range from which the teacher's chance
    to leave a fact out is drawn for each.
    """
    order = list(range(len(sessions)))
    while True:
        rng.shuffle(order)
        for index in order:
            ids, marks = tokenize(target_trajectory(sessions[index], episode, rng, drop=rng.uniform(*careless)))
            yield Example(sessions[index].key, np.array(ids, dtype=np.int32), np.array(marks))


def plan(
    drawn: Iterator[Example], *, passes: int, tokens: int, limits: Limits | None, window: int, rng: random.Random
) -> list[list[Example]]:
    """The examples of every pass of the whole training: similar in length, and at most `tokens` when padded.

    The passes are shuffled, so that short and long ones alternate. A trajectory that does not fit is an error.
    """
    planned: list[list[Example]] = []
    while len(planned) < passes:
        pool: list[Example] = []
        while sum(len(one.token_ids) for one in pool) < _POOL * tokens:
            pool.append(next(drawn))
            check(pool[-1], tokens=tokens, limits=limits, window=window)
        pool.sort(key=lambda one: len(one.token_ids))
        cut: list[list[Example]] = [[]]
        for one in pool:
            if (len(cut[-1]) + 1) * len(one.token_ids) > tokens:
                cut.append([])
            cut[-1].append(one)
        rng.shuffle(cut)
        planned += cut
    return planned[:passes]


def check(example: Example, *, tokens: int, limits: Limits | None, window: int) -> None:
    """Refuse a trajectory that training could not read, or that no rollout could write, by session, need and limit."""
    own = example.marks > 0
    prompt = int(own.argmax())
    edges = np.flatnonzero(np.diff(np.concatenate([[False], own, [False]]).astype(np.int8)))
    needs = [(len(own), window, "in all", "the model's window"), (len(own), tokens, "in all", "deltamem.warm_start.tokens")]
    if limits is not None:
        needs += [
            (prompt + 1, limits.prompt, "for the prompt", "data.max_prompt_length"),
            (len(own) - prompt, limits.response, "after the prompt", "data.max_response_length"),
            (int((edges[1::2] - edges[::2]).max()), limits.turn, "for a turn", "deltamem.turn_tokens"),
        ]
    for need, limit, what, name in needs:
        if need > limit:
            raise DeltaMemError(
                f"session {example.key}: the target trajectory needs {need} tokens {what}, {name} has {limit}; take shorter "
                "sessions or a higher limit"
            )


def supervised_data(config: DictConfig, settings: TrainSettings, *, steps: int) -> tuple[list[list[Example]], list[Example]]:
    """The passes of so many steps of supervised fine-tuning, and its held-out examples."""
    options, model = cast(SupervisedConfig, settings.warm_start), config.actor_rollout_ref.model
    shape, episode = models.load_model_config(model), settings.episode.config()
    tokenize = TrajectoryTokenizer(
        models.load_tokenizer(model), model_type=shape.model_type, template_kwargs=models.template_kwargs(config)
    )
    tokenize.frame.check(thinking=episode.thinking)
    rng = random.Random(settings.seed)
    sessions = data.early_sessions(settings)
    if not sessions:
        raise DeltaMemError(f"{settings.sessions}: no training sessions for the warm start")
    passes = plan(
        examples(sessions, episode, tokenize, careless=options.careless, rng=rng),
        passes=steps * options.passes,
        tokens=options.tokens,
        limits=token_limits.rollout_limits(config, settings),
        window=int(shape.max_position_embeddings),
        rng=rng,
    )
    rng = random.Random(settings.seed)
    unseen = list(read_sessions(settings.sessions, split="heldout"))
    unseen = rng.sample(unseen, min(options.heldout_sessions, len(unseen)))
    complete = examples(unseen, episode, tokenize, careless=(0.0, 0.0), rng=rng)
    return passes, list(islice(complete, len(unseen)))


class Batch(NamedTuple):
    """Rows padded behind to one width, both of shape ``(rows, width)``."""

    token_ids: Tensor
    marks: Tensor  # as of an `Example`; 0 for padding

    def to(self, device: str) -> Batch:
        """The batch on a device."""
        return Batch(self.token_ids.to(device), self.marks.to(device))


def pad(rows: Sequence[Example], dtype: torch.dtype = torch.float32) -> Batch:
    """Make a batch; `dtype` is that of the marks."""
    shape = len(rows), max(len(one.token_ids) for one in rows)
    token_ids, marks = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=dtype)
    for row, one in enumerate(rows):
        token_ids[row, : len(one.token_ids)] = torch.as_tensor(one.token_ids)
        marks[row, : len(one.marks)] = torch.as_tensor(one.marks)
    return Batch(token_ids, marks)


def next_token_losses(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Predict the tokens of a batch that are marked, with a decoder of transformers that has a head.

    Returns:
        Of every marked token its cross-entropy (with a gradient), whether it was the most likely one, and its mark, each
        of shape ``(marked,)``.
    """
    hidden = model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state[:, :-1]
    targets, marks = batch.token_ids[:, 1:], batch.marks[:, 1:]
    chosen = marks > 0
    # Only of marked tokens: the logits of all would take most of the memory.
    logits = model.get_output_embeddings()(hidden[chosen]).float()
    losses = F.cross_entropy(logits, targets[chosen], reduction="none")
    return losses, logits.detach().argmax(-1) == targets[chosen], marks[chosen]


@dataclass
class Descent:
    """Steps of a model down the weighted loss of its next tokens, on one schedule of the learning rates.

    The rates of all optimisers rise over `warm_up` steps and fall to zero over the last `decay_share` of `steps`.
    """

    model: Any
    optimizers: Sequence[torch.optim.Optimizer]
    steps: int
    warm_up: int
    decay_share: float
    max_grad_norm: float = 1.0
    autocast: str | None = None  # device that computes in bfloat16

    def __post_init__(self) -> None:
        self._peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]

    def take(self, step: int, batches: Sequence[Batch], usual: float | None = None) -> dict[str, float]:
        """Take a step on batches whose marks are weights; returns its figures, the accuracy where a weight is at least 1.

        Every token of the step counts alike, whichever batch it is in. With `usual`, the weights of a step on average, it
        counts as much as one of any other step: steps of short answers, such as silence, would else teach most.
        """
        scale = min(1.0, step / max(self.warm_up, 1)) * min(1.0, (1 - step / (self.steps + 1)) / self.decay_share)
        # Looked up each time: an optimiser that loads its state replaces its groups.
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self._peaks, strict=True):
            group["lr"] = peak * scale
        total = sum(batch.marks[:, 1:][batch.marks[:, 1:] > 0].sum() for batch in batches)
        lost, right, own = 0.0, 0, 0
        for batch in batches:
            with torch.autocast(self.autocast, dtype=torch.bfloat16) if self.autocast else nullcontext():
                losses, hits, weights = next_token_losses(self.model, batch)
            loss = (losses * weights).sum() / (usual or total)
            loss.backward()
            lost += float((losses.detach() * weights).sum() / total)
            right, own = right + int(hits[weights >= 1].sum()), own + int((weights >= 1).sum())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"loss": lost, "accuracy": right / own if own else 0.0, "grad_norm": float(norm), "lr": groups[0]["lr"]}


@dataclass
class Tuning:
    """A fine-tuning of a pretrained model under way."""

    model: Any  # a decoder of transformers, which is changed in place
    config: SupervisedConfig
    device: str
    folder: Path  # where its checkpoint is kept
    identity: str  # of all that the result depends on; a checkpoint of another one is not used

    def __post_init__(self) -> None:
        config = self.config
        torch.manual_seed(0)
        self._adapted = _choose_trained(self.model, config)
        self.model.to(self.device).eval()
        _check_head(self.model, self.device)
        self.model.train()
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        self._autocast = self.device if faster_in_bfloat16(self.device) else None
        schedule = (config.steps, config.warm_up, config.decay_share, config.max_grad_norm)
        self._descent = Descent(self.model, [self._optimizer], *schedule, self._autocast)
        self.step = self._resume()
        """The last step that was taken."""

    def run(
        self,
        passes: Sequence[Sequence[Example]],
        heldout: Sequence[Example],
        *,
        report: Callable[[dict[str, float]], None],
        stop: Callable[[], bool],
    ) -> None:
        """Train to the last step, or until `stop` says so before a step: then a checkpoint is saved.

        `heldout` is measured before the first step, every `test_every` steps and at the end.
        """
        config = self.config
        # Passes are of one length, and what is short is silent: a mean over each step would teach silence most.
        usual = sum(int((one.marks > 0).sum()) for rows in passes for one in rows) / config.steps
        if self.step == 0 and not stop():
            report({"step": 0, **self.measure(heldout)})
        for step in range(self.step + 1, config.steps + 1):
            if stop():
                self._save()
                break
            begin = time.perf_counter()
            chosen = passes[(step - 1) * config.passes : step * config.passes]
            # What a model drops must not depend on where a tuning was resumed.
            torch.manual_seed(step)
            weighed = ([one._replace(marks=one.marks > 0) for one in rows] for rows in chosen)
            figures = self._descent.take(step, [pad(rows).to(self.device) for rows in weighed], usual)
            seconds = time.perf_counter() - begin
            tokens = sum(len(one.token_ids) for rows in chosen for one in rows)
            figures |= {"tokens": tokens, "tokens_per_second": round(tokens / seconds, 1), "seconds": round(seconds, 3)}
            if step % config.test_every == 0 or step == config.steps:
                figures |= self.measure(heldout)
            self.step = step
            report({"step": step, **figures})
            if step < config.steps and step % config.save_every == 0:
                self._save()

    @torch.no_grad()
    def measure(self, heldout: Sequence[Example]) -> dict[str, float]:
        """Share of the assistant's tokens that are the most likely ones after the teacher's, in all and by kind."""
        right, total = torch.zeros(len(KINDS)), torch.zeros(len(KINDS))
        self.model.eval()
        ordered = sorted(heldout, key=lambda one: len(one.token_ids))
        while ordered:
            size = max(1, self.config.tokens // len(ordered[-1].token_ids))
            with torch.autocast(self._autocast, dtype=torch.bfloat16) if self._autocast else nullcontext():
                _, hits, kinds = next_token_losses(self.model, pad(ordered[-size:], torch.int8).to(self.device))
            right += torch.bincount(kinds.long().cpu(), hits.float().cpu(), minlength=len(KINDS))
            total += torch.bincount(kinds.long().cpu(), minlength=len(KINDS))
            del ordered[-size:]
        self.model.train()
        if not total.sum():
            return {}
        by_kind = {kind: float(right[place] / total[place]) for place, kind in enumerate(KINDS) if total[place]}
        shares = {"heldout/accuracy": float(right.sum() / total.sum())}
        return shares | {f"heldout/accuracy/{kind}": share for kind, share in by_kind.items()}

    def _save(self) -> None:
        state = {
            "identity": self.identity,
            "step": self.step,
            "weights": {name: weight.detach() for name, weight in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
        }
        with partial_file(self.folder / CHECKPOINT) as partial:
            torch.save(state, partial)

    def _resume(self) -> int:
        path = self.folder / CHECKPOINT
        remove_partial(self.folder)
        if not path.is_file():
            return 0
        try:
            state: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises what its unpickler, its archive or the file system do
            raise DeltaMemError(f"{path}: no checkpoint that can be read; remove it to begin again") from error
        if state["identity"] != self.identity:
            return 0
        with torch.no_grad():
            for name, weight in self._trained.items():
                weight.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def finish(self) -> Any:
        """The model in evaluation mode, adapters added to its weights."""
        model = self.model if self._adapted is None else self._adapted.merge_and_unload()
        return model.requires_grad_(True).eval()


def faster_in_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 faster than float32.

    Known from the name and not timed, so that a run goes on as it began. AMD's CPUs with AVX512_BF16 are 1.4 times as fast,
    those with AMX 2.4 times, and Intel's with AVX512_BF16 alone, as virtual machines show them, half as fast.
    """
    if device != "cpu":
        return True
    cpu = torch.cpu.get_capabilities()
    return bool(cpu.get("amx_bf16")) or (bool(cpu.get("avx512_bf16")) and not str(cpu.get("cpu_name")).startswith("Intel"))


@torch.no_grad()
def _check_head(model: Any, device: str) -> None:
    """Refuse a model that scales or caps what its last matrix gives: `next_token_losses` would train another one."""
    token_ids = torch.tensor([[0, 1]], device=device)
    hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
    logits = model(input_ids=token_ids, use_cache=False).logits
    if not torch.allclose(model.get_output_embeddings()(hidden), logits, atol=1e-3):
        raise DeltaMemError(f"{type(model).__name__}: a warm start cannot train a model that scales or caps its logits")


def _choose_trained(model: Any, config: SupervisedConfig) -> Any:
    """Mark the weights that are trained; with adapters, returns peft's wrapper of the model."""
    if config.lora_rank is not None:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules="all-linear")
        return get_peft_model(model, lora)
    if config.layers is not None:
        layers = model.base_model.layers
        if config.layers > len(layers):
            raise DeltaMemError(f"deltamem.warm_start.layers is {config.layers}, the model has {len(layers)}")
        model.requires_grad_(False)
        for layer in layers[len(layers) - config.layers :]:
            layer.requires_grad_(True)
    return None

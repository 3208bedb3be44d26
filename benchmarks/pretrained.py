"""A small pretrained chat model on one GPU: a short supervised start on target trajectories, then GRPO against the clock.

    python benchmarks/pretrained.py OUT MODEL                     # MODEL: a Hugging Face folder with ChatML's tokens
    python benchmarks/pretrained.py OUT MODEL --minutes 20        # the same command continues from the last checkpoint
    python benchmarks/pretrained.py OUT MODEL --only-supervised   # stop before GRPO

The data are tiny sessions of the offline writer, the rollouts are sampled by vLLM. GRPO ends when the time is over (its last
step is saved) or when the held-out reward has not risen for ``--patience`` validations. ``OUT/result.json`` holds the
machine, versions, overrides and the curve of the held-out reward; ``OUT/supervised.jsonl`` the loss of supervised steps.
Arguments after ``--`` are overrides of ``train.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu import Plateau, curve, draw
from gpu_plan import Run, on_one_gpu
from torch import Tensor
from training_runs import ROOT, made_on, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from deltamem.episode import EpisodeConfig
from deltamem.sessions import LabelledSession, read_sessions
from deltamem.training import data
from deltamem.training.tiny import target_trajectory

EPISODE = EpisodeConfig(
    system_prompt="manager_compact", session_prompt="session_compact", memory_fields=("time", "text", "id")
)
CHATML = (
    "{%- for message in messages -%}{{- '' if loop.first else '\n' -}}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '\n<|im_start|>assistant\n' -}}{%- endif -%}"
)
"""ChatML whose line ends precede a message. After the assistant's end token verl appends what the template writes for the
next message; a line end that the template counts to the turn before would be lost."""
TURN = re.compile(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", re.DOTALL)
"""What the assistant writes of a ChatML conversation, the end of its turn included."""


def tokens_and_mask(tokenizer: Any, messages: Sequence[Any]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the assistant writes."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    turns = [match.span() for match in TURN.finditer(text)]
    own = [any(begin <= start and end <= stop for begin, stop in turns) for start, end in encoded["offset_mapping"]]
    return encoded["input_ids"], own


def batches(
    tokenizer: Any, sessions: Sequence[LabelledSession], size: int, rng: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """Padded token ids and masks of complete target trajectories, without end."""
    while True:
        drawn = [target_trajectory(item, EPISODE, rng, drop=0.0) for item in rng.sample(list(sessions), size)]
        encoded = [tokens_and_mask(tokenizer, messages) for messages in drawn]
        width = max(len(ids) for ids, _ in encoded)
        token_ids, own = torch.zeros((size, width), dtype=torch.long), torch.zeros((size, width), dtype=torch.bool)
        for row, (ids, mask) in enumerate(encoded):
            token_ids[row, : len(ids)], own[row, : len(ids)] = torch.tensor(ids), torch.tensor(mask)
        yield token_ids, own


def supervise(
    folder: Path, sessions: Sequence[LabelledSession], out: Path, *, steps: int, size: int, lr: float, device: str
) -> None:
    """Fine-tune on target trajectories with AdamW; the learning rate decays to zero over the second half."""
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHATML
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    drawn = batches(tokenizer, sessions, size, random.Random(1))
    begin, records = time.monotonic(), []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / 10, 2 * (1 - step / (steps + 1)))
        token_ids, own = (part.to(device) for part in next(drawn))
        # Rows are padded on the right, so the causal mask alone keeps the padding out.
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden = model.model(input_ids=token_ids).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[own[:, 1:]]).float()
        targets = token_ids[:, 1:][own[:, 1:]]
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        accuracy, lost = float((logits.detach().argmax(-1) == targets).float().mean()), float(loss.detach())
        seconds = round(time.monotonic() - begin, 2)
        records.append({"step": step, "loss": lost, "accuracy": accuracy, "seconds": seconds})
        if step % 10 == 0 or step == steps:
            print(f"supervised {step}/{steps}: loss {lost:.3f}, accuracy {accuracy:.3f}, {seconds} s", flush=True)
    partial = out.with_name(f".{out.name}.partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    out.with_suffix(".jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    partial.replace(out)


def plan(run: Run, model: Path, *, skip_people: int, lr: float, max_steps: int, every: int) -> list[str]:
    """Overrides of ``train.py`` for GRPO from the supervised model: settings of the GPU experiments, tiny sessions."""
    return [
        "+experiment=qwen0_6b",
        *on_one_gpu("sdpa"),
        f"deltamem.sessions={run.out}/synth/sessions.jsonl",
        f"deltamem.data.skip_people={skip_people}",
        "deltamem.data.heldout_sessions=256",
        f"deltamem.episode.system_prompt={EPISODE.system_prompt}",
        f"deltamem.episode.session_prompt={EPISODE.session_prompt}",
        f"deltamem.episode.memory_fields=[{','.join(EPISODE.memory_fields)}]",
        "deltamem.embedder.name=all-MiniLM-L6-v2",
        "deltamem.limits.thinking_tokens=128",
        "deltamem.poll_seconds=0.2",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        # Without flash-attn verl computes log-probs token by token otherwise: a step takes three times as long.
        "actor_rollout_ref.model.use_fused_kernels=true",
        "actor_rollout_ref.actor.use_kl_loss=false",
        f"actor_rollout_ref.actor.optim.lr={lr}",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=4",
        # sdpa masks a packed micro-batch densely: its cost grows with the square of this.
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "actor_rollout_ref.rollout.max_num_seqs=512",
        "actor_rollout_ref.rollout.agent.num_workers=8",
        f"trainer.total_training_steps={max_steps}",
        "trainer.total_epochs=1000",
        "trainer.val_before_train=true",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={every}",
        *run.ending(),
    ]


class Clock:
    """Lets a run save its step and end after so many minutes."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes
        self._asked = False

    def up(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._end

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the run to end, once, if it is time."""
        if self.up() and not self._asked:
            self._asked = True
            process.send_signal(signal.SIGUSR1)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    out = options.out.absolute()
    sessions, model = out / "synth" / "sessions.jsonl", out / "supervised"
    if not sessions.is_file():
        command = [sys.executable, "-m", "synth", f"people={options.people}", "sessions=3", "shape=tiny"]
        command += ["shape.plan.facts.max=3", f"out={sessions.parent}", "embedder=null"]
        subprocess.run(command, cwd=ROOT, check=True)
    items = list(read_sessions(sessions, split="train"))
    people = data.people(items, "train")
    early = set(people[: len(people) // 3])
    if not model.is_dir():
        first = [item for item in items if item.session.person_id in early]
        supervise(
            options.model, first, model, steps=options.steps, size=options.batch, lr=options.warm_lr, device=options.device
        )
    if options.only_supervised:
        return
    run = Run(out, options.device, "tiny", options.embedder, tuple(options.overrides))
    made, begin = made_on(), time.monotonic()
    clock, plateau = Clock(options.minutes), Plateau(out, options.patience, options.rise)

    def watch(process: subprocess.Popen[bytes]) -> None:
        clock(process)
        plateau(process)

    overrides = plan(run, model, skip_people=len(early), lr=options.lr, max_steps=options.max_steps, every=options.every)
    train(out, overrides, watch=watch, enough=lambda: clock.up() or plateau.reached())
    points = curve(out)
    minutes = round((time.monotonic() - begin) / 60, 2)
    record = {**made, "model": options.model.name, "minutes": minutes, "overrides": overrides}
    record |= {"stopped_rising": plateau.reached(), "curve": points}
    (out / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw(points, run, f"{options.model.name}, supervised start")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    own, overrides = list(arguments), []
    if "--" in own:
        place = own.index("--")
        own, overrides = own[:place], own[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="of the supervised start")
    parser.add_argument("--embedder", help="model that embeds; by default all-MiniLM-L6-v2")
    parser.add_argument("--people", type=int, default=2000, help="of the data set; a third is for the supervised start")
    parser.add_argument("--steps", type=int, default=24, help="supervised steps")
    parser.add_argument("--batch", type=int, default=16, help="trajectories of a supervised step")
    parser.add_argument("--warm-lr", type=float, default=2e-4, help="peak learning rate of the supervised start")
    parser.add_argument("--lr", type=float, default=2e-5, help="learning rate of GRPO")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for GRPO, its start included")
    parser.add_argument("--max-steps", type=int, default=2000, help="most steps of GRPO")
    parser.add_argument("--every", type=int, default=10, help="steps from one validation and checkpoint to the next")
    parser.add_argument("--patience", type=int, default=6, help="validations without a rise that end the run")
    parser.add_argument("--rise", type=float, default=0.005, help="what counts as a rise of the held-out reward")
    parser.add_argument("--only-supervised", action="store_true")
    return parser.parse_args(own, argparse.Namespace(overrides=overrides))


if __name__ == "__main__":
    main()

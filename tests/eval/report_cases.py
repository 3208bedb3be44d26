"""A run folder as the demo leaves it: curves by formula, evaluations by really running scripted policies."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

from episode_texts import WordEmbedder, add, none, outputs, search, update
from heldout_cases import ScriptedPolicy, oracle, people, silent

from deltamem.episode import EpisodeConfig
from deltamem.sessions import LabelledSession
from eval.heldout import HeldoutResult, evaluate

CONFIG = EpisodeConfig(k=2)


def mixed(item: LabelledSession, turn: int) -> str:
    """Right, nearly right and wrong in turn, so that every kind of trajectory occurs."""
    due, new = item.operations
    kind = (int(item.session.person_id.removeprefix("person")) + item.session_index) % 7
    if kind == 0:
        return oracle(item, turn)
    if kind == 1:
        return outputs(add(due.text), new)
    if kind == 2:
        return search(due.text) if turn == 0 else outputs(update("m2", due.text), new)
    if kind == 3:
        return "I remember: <script>alert('policy')</script>"
    if kind == 4:
        return (
            search(due.text, "a <b>bold</b> query") if turn == 0 else outputs(due, add(new.text.replace("violin", "piano")))
        )
    if kind == 5:
        return silent(item, turn)
    return search(due.text) if turn == 0 else outputs(due, none("m2", item.prior_state["m2"].text))


def run_policy(script: object, sessions: list[LabelledSession]) -> HeldoutResult:
    policy = ScriptedPolicy(sessions, script, CONFIG)  # type: ignore[arg-type]
    return asyncio.run(evaluate(policy, sessions, WordEmbedder(), CONFIG, resamples=200, provenance={"seed": 7}))


def write_validation(folder: Path, sessions: list[LabelledSession], steps: tuple[int, ...]) -> None:
    """The same sessions at several steps: silent at first, then mixed."""
    (folder / "validation").mkdir(parents=True, exist_ok=True)
    for step in steps:
        records = [record | {"rollout": 0} for record in run_policy(mixed if step else silent, sessions).records]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "validation" / f"step_{step:06d}.jsonl").write_text(lines, encoding="utf-8")


def make_run(folder: Path, sessions: list[LabelledSession] | None = None) -> Path:
    """Write all that the report reads."""
    sessions = sessions or people(6, 4)
    for phase, script in (("before", silent), ("after", mixed)):
        result = run_policy(script, sessions)
        for mode in ("sampled", "greedy"):
            result.write(folder / "eval" / f"{phase}_{mode}")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(61):
            level = 0.45 + 0.25 * (1 - math.exp(-step / 25))
            wobble = 0.05 * math.sin(step * 2.7)
            train = {"reward": level + wobble, "format": 0.9 + wobble, "retrieval": level, "transition": level}
            train |= {"add_for_update": 0.1 + step / 600, "update_recall": 0.3 + wobble, "failure": 0.0}
            train |= {"precision": level, "recall": level - wobble, "wrong_target": 0.6 - level / 2, "no_signal": 0.1}
            train |= {"group_std": 0.2 + wobble, "truncated": 0.05, "queries_per_memory": 1 + wobble}
            train |= {"retrieved_per_query": 4.5, "tool_tokens": 90.0, "model_tokens_mean": 200 + 9 * wobble}
            train |= {"count/violations/bad_json": 0.2 - step / 400, "count/violations/turn_limit": 0.0}
            train |= {"count/predicted_adds": 1 + wobble, "count/target_adds": 1.5, "count/predicted_updates": 0.5}
            line = {"step": step} | {f"train/{name}": value for name, value in train.items()}
            line |= {"seconds/step": 6.0 + wobble, "seconds/gen": 2.5, "seconds/update_actor": 3.0 + wobble}
            line |= {"seconds/rollout_generate_mean": 1.5, "speed/tokens_per_second_per_gpu": 800.0, "speed/mfu": 0.3}
            line |= {"memory/rss_gb": 4.0 + step / 600, "memory/gpu_reserved_gb": 60.0}
            if step % 20 == 0:
                line |= {"seconds/save_checkpoint": 1.0, "heldout/add_recall": level, "heldout/none_precision": 0.3}
                line |= {f"heldout/{name}": train[name] - 0.03 for name in ("reward", "transition", "update_recall")}
            file.write(json.dumps(line) + "\n")
    write_validation(folder, sessions[:2], (0, 20, 40, 60))
    with (folder / "warm_start.jsonl").open("w", encoding="utf-8") as file:
        for step in range(0, 500, 10):
            loss = 6 * math.exp(-step / 90) + 0.4
            file.write(json.dumps({"step": step, "loss": loss, "accuracy": 1 / (1 + loss), "seconds": step * 0.6}) + "\n")
    (folder / "summary.json").write_text(
        json.dumps({"git_commit": "0123abcd", "seed": 7, "seconds": {"warm_start": 300.0, "grpo": 420.0, "total": 732.0}}),
        encoding="utf-8",
    )
    return folder

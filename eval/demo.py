"""``python -m eval.demo``: from nothing to a trained and measured memory manager, in one run folder.

Every stage is the public command or function that a user would call; this file strings them together, measures the policy
before and after GRPO on the same sessions, and writes ``summary.json``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Console
from rich.table import Table

from deltamem.config import StrictModel, run_hydra, validated
from deltamem.embedding import CachedEmbedder, load_embedder
from deltamem.episode import load_episode_config
from deltamem.errors import DeltaMemError
from deltamem.intervals import interval_text
from deltamem.runs import Stage, file_sha256, git_commit, run_stages, versions
from deltamem.sessions import read_sessions
from eval.data import LOCOMO, find, missing
from eval.heldout import evaluate, label, select
from eval.probes import not_better, probe_table, rows, score_probes
from eval.summary import write_summary
from eval.training_report.page import write_report

if TYPE_CHECKING:
    from omegaconf import DictConfig

CHECKPOINTS = {"before": Path("warm_start/model"), "after": Path("policy")}
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}
MODES = {"sampled": "", "greedy": "_greedy"}  # With what their keys in the summary end in
METRICS = {
    "heldout_reward": "reward",
    "update_recall": "update_recall",
    "add_for_update": "add_for_update_rate",
    "wrong_target": "wrong_target_rate",
}
_LEAST_RISE = 0.05
"""A run whose sampled reward rises less has not learned; one that has rises by .15 or more."""
_MAX_NEW_TOKENS = 192
_RETRIEVAL = ["categories=[1,2,3,4]", "answer.kind=none"]


class DemoSettings(StrictModel):
    """``configs/demo.yaml``."""

    seed: int
    out: Path
    n: int = Field(ge=1)
    train: list[str]


def main(config: DictConfig) -> None:
    """Run all stages that are not done yet and print the summary."""
    settings = validated(config, DemoSettings)
    console = Console(stderr=True)
    out = settings.out
    sessions = out / "synth" / "sessions.jsonl"
    train = ["+experiment=tiny", f"deltamem.seed={settings.seed}", *settings.train]
    locomo = find(LOCOMO)
    root = Path(__file__).resolve().parents[1]
    stages = [
        Stage(
            "train",
            {"overrides": train, "config": file_sha256(root / "configs" / "experiment" / "tiny.yaml")},
            lambda: _command(str(root / "train.py"), *train, f"deltamem.out={out}"),
            out / CHECKPOINTS["after"],
        ),
        Stage(
            "evaluate",
            {"n": settings.n, "temperatures": TEMPERATURES, "probes": True},
            lambda: _evaluate(settings, sessions, console),
            out / "eval" / "after_greedy" / "summary.json",
        ),
    ]
    if locomo is not None:
        command = ["-m", "eval.locomo", f"out={out / 'locomo'}", f"data={locomo}", *_RETRIEVAL]
        made_with = {"sha256": file_sha256(locomo), "overrides": _RETRIEVAL}
        stages.append(Stage("locomo", made_with, lambda: _command(*command), out / "locomo" / "summary.json"))
    seconds = run_stages(stages, out / "stages" / "demo", lambda line: console.print(line, markup=False, highlight=False))
    summary = _summary(settings, seconds, locomo)
    written, report = write_summary(out, summary), write_report(out)
    Console().print(_table(summary))
    beside = rows(
        {f"{phase} GRPO, {mode}": _evaluation(settings, phase, mode) for phase in CHECKPOINTS for mode in TEMPERATURES}
    )
    Console().print(probe_table(beside))
    for sentence in not_better(beside):
        print(sentence)
    print(f"{written}\n{report}")


def _command(*arguments: str) -> None:
    """Run one of our own commands.

    Raises:
        DeltaMemError: If it fails; it has said why itself.
    """
    done = subprocess.run([sys.executable, *arguments], check=False)
    if done.returncode:
        raise DeltaMemError(f"python {' '.join(arguments)} ended with exit code {done.returncode}")


def _evaluate(settings: DemoSettings, sessions: Path, console: Console) -> None:
    """Measure the warm start and the trained policy, sampled and greedy, on the same sessions of unseen people."""
    from deltamem.local_policy import CheckpointPolicy  # brings torch

    chosen = select(read_sessions(sessions, split="heldout"), settings.n, settings.seed)
    embedder: CachedEmbedder = load_embedder()
    probes = score_probes(sessions, chosen, embedder, seed=settings.seed)
    for phase, folder in CHECKPOINTS.items():
        episode = load_episode_config(settings.out / folder)
        for mode, temperature in TEMPERATURES.items():
            policy = CheckpointPolicy(
                settings.out / folder, temperature=temperature, seed=settings.seed, max_new_tokens=_MAX_NEW_TOKENS
            )
            provenance = {"seed": settings.seed, "sessions_sha256": file_sha256(sessions), "temperature": temperature}
            options: dict[str, Any] = {"max_concurrency": len(chosen), "seed": settings.seed, "provenance": provenance}
            result = asyncio.run(evaluate(policy, chosen, embedder, episode, **options))
            result.summary["probes"] = probes
            result.write(settings.out / "eval" / f"{phase}_{mode}")
            reward = interval_text(result.summary["metrics"]["reward"])
            console.print(f"{phase} GRPO, {mode}: reward {reward}", markup=False, highlight=False)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _evaluation(settings: DemoSettings, phase: str, mode: str) -> dict[str, Any]:
    return _read(settings.out / "eval" / f"{phase}_{mode}" / "summary.json")


def _summary(settings: DemoSettings, seconds: Mapping[str, float], locomo: Path | None) -> dict[str, Any]:
    out = settings.out
    results = {
        f"{phase}{suffix}": _evaluation(settings, phase, mode) for phase in CHECKPOINTS for mode, suffix in MODES.items()
    }
    summary: dict[str, Any] = {}
    for name, metric in METRICS.items():
        for when, result in results.items():
            summary |= _figure(f"{name}_{when}", result["metrics"][metric])
    probes = {name: probe["parts"]["reward"] for name, probe in results["before"].get("probes", {}).items()}
    before, after = (summary[f"heldout_reward_{phase}"] for phase in CHECKPOINTS)
    training = {f"train/{path.stem}": _read(path)["seconds"] for path in sorted((out / "stages").glob("*.json"))}
    return summary | {
        "probes": probes,
        "failed_to_learn": _failed_to_learn(before, after, probes),
        "heldout_sessions": results["before"]["sessions"],
        "heldout_people": results["before"]["people"],
        "failed_episodes": sum(result["failed"] for result in results.values()),
        "seconds": {**seconds, **training, "total": sum(seconds.values())},
        **_locomo(out, locomo),
        "versions": versions(),
        "git_commit": git_commit(),
        "seed": settings.seed,
        "config": settings.model_dump(mode="json", exclude={"out"}),
    }


def _failed_to_learn(before: float, after: float, probes: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Why a run counts as failed, by its sampled rewards before and after GRPO; nothing if it has learned."""
    found = []
    if after - before < _LEAST_RISE:
        found.append(f"the reward went from {before:.3f} to {after:.3f}, a rise of less than {_LEAST_RISE}")
    if "copy_all" in probes and after <= (copied := probes["copy_all"]["estimate"]):
        found.append(f"{after:.3f} is no more than copying every sentence earns ({copied:.3f})")
    return found


def _figure(name: str, figure: Mapping[str, float]) -> dict[str, Any]:
    return {name: figure["estimate"], f"{name}_interval": [figure["low"], figure["high"]]}


def _locomo(out: Path, path: Path | None) -> dict[str, Any]:
    """Evidence recall of LoCoMo's questions, pooled over categories 1 to 4; null and why, without the data."""
    if path is None:
        return {"locomo_recall_at_20": None, "locomo_note": missing(LOCOMO)}
    summary = _read(out / "locomo" / "summary.json")
    figure = summary["scores"]["recall@20"]["all"]
    return _figure("locomo_recall_at_20", figure) | {
        "locomo_questions": sum(summary["questions"]["by_category"].values()),
        "locomo_questions_scored": figure["count"],
    }


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table("held-out people", "before GRPO", "after GRPO", title="95% intervals by person")
    for name, metric in METRICS.items():
        for mode, suffix in MODES.items():
            keys = (f"{name}_{phase}{suffix}" for phase in CHECKPOINTS)
            figures = ((summary[key], *summary[f"{key}_interval"]) for key in keys)
            cells = (interval_text(dict(zip(("estimate", "low", "high"), figure, strict=True))) for figure in figures)
            table.add_row(f"{label(metric).strip()}, {mode}", *cells)
    if why := summary["failed_to_learn"]:
        table.caption = f"This run FAILED TO LEARN: {'; '.join(why)}."
    return table


if __name__ == "__main__":
    run_hydra(main, "demo")

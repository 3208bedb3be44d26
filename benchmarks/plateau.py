"""What GRPO reaches with the tiny model at its plateau: several long demos, beside what shallow policies earn.

```bash
for seed in 1 2 3; do
  python -m eval.demo seed=$seed out=runs/plateau$seed "train=['trainer.total_training_steps=150','trainer.test_freq=10']"
done
python benchmarks/plateau.py runs/plateau1 runs/plateau2 runs/plateau3 --svg docs/tiny_plateau.svg
```
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot

COUNTED = {
    "reward": "train/reward",
    "UPDATE recall": "train/update_recall",
    "wrong target": "train/wrong_target",
    "ADD for UPDATE": "train/add_for_update",
    "ADD recall": "train/add_recall",
    "NONE recall": "train/none_recall",
    "no signal": "train/no_signal",
    "held-out": "heldout/reward",
}
"""Columns of the table of steps."""
PROBES = ("copy_all", "bag_of_words", "gold_as_add", "gold_nearest_target")
"""Shallow policies whose rewards are drawn as lines; the perfect policy earns 1 by definition."""
STEPS_A_ROW = 15


def curve(run: Path) -> list[dict[str, Any]]:
    """The records of the steps of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def evaluation(run: Path, name: str) -> dict[str, Any]:
    """One evaluation of the demo on held-out people."""
    found: dict[str, Any] = json.loads((run / "eval" / name / "summary.json").read_text(encoding="utf-8"))
    return found


def mean(records: list[dict[str, Any]], key: str) -> str:
    """The mean of a figure over some steps; a dash where none has it."""
    values = [record[key] for record in records if record.get(key) is not None]
    return f"{np.mean(values):.3f}" if values else "-"


def table_of_steps(run: Path) -> None:
    """Print means over blocks of steps."""
    records = [record for record in curve(run) if record["step"] > 0]
    print(f"\n| {run.name}: steps | {' | '.join(COUNTED)} |\n|{'---|' * (len(COUNTED) + 1)}")
    for first in range(0, len(records), STEPS_A_ROW):
        block = records[first : first + STEPS_A_ROW]
        cells = " | ".join(mean(block, key) for key in COUNTED.values())
        print(f"| {block[0]['step']}-{block[-1]['step']} | {cells} |")


def table_of_results(runs: list[Path]) -> None:
    """Print what each run measured before and after GRPO."""
    columns = ("update_recall", "wrong_target_rate", "add_for_update_rate", "add_recall", "none_recall")
    print(f"\n| run | evaluation | reward | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 3)}")
    for run in runs:
        for name in ("before_sampled", "after_sampled", "before_greedy", "after_greedy"):
            metrics = evaluation(run, name)["metrics"]
            reward = "{estimate:.3f} [{low:.3f}, {high:.3f}]".format(**metrics["reward"])
            cells = [f"{metrics[key]['estimate']:.3f}" if metrics.get(key) else "-" for key in columns]
            print(f"| {run.name} | {name} | {reward} | {' | '.join(cells)} |")
    for run in runs:
        probes = evaluation(run, "after_sampled")["probes"]
        earned = (f"{name} {probe['parts']['reward']['estimate']:.3f}" for name, probe in probes.items())
        print(f"\n{run.name}, shallow policies: {', '.join(earned)}")


def draw(runs: list[Path], path: Path) -> None:
    """Draw the sampled rewards of rollouts (smoothed) and of held-out people by step, with the shallow policies as lines."""
    pyplot.rcParams["svg.hashsalt"] = "plateau"  # the same runs give the same bytes
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2))
    for number, run in enumerate(runs):
        records = curve(run)
        colour = f"C{number}"
        steps = [(record["step"], record["train/reward"]) for record in records if "train/reward" in record]
        values = np.convolve([value for _, value in steps], np.ones(9) / 9, mode="valid")
        axes.plot([step for step, _ in steps][4:-4], values, color=colour, linewidth=1.4, label=f"{run.name}: rollouts")
        held = [(record["step"], record["heldout/reward"]) for record in records if "heldout/reward" in record]
        axes.plot(
            *zip(*held, strict=True), color=colour, marker="o", markersize=3, linestyle="--", linewidth=0.8, label="held-out"
        )
    scores = [evaluation(run, "after_sampled")["probes"] for run in runs]
    for name in PROBES:
        height = float(np.mean([score[name]["parts"]["reward"]["estimate"] for score in scores]))
        axes.axhline(height, color="grey", linestyle=":", linewidth=1)
        axes.annotate(
            name, (0.99, height), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7, color="grey"
        )
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xlabel="step of GRPO", ylabel="reward (paper's), sampled", ylim=(0.4, 1.02))
    axes.legend(fontsize=7, ncols=3, loc="lower right")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of python -m eval.demo")
    parser.add_argument("--svg", type=Path, required=True, help="where the chart goes")
    arguments = parser.parse_args()
    table_of_results(arguments.runs)
    for folder in arguments.runs:
        table_of_steps(folder)
    draw(arguments.runs, arguments.svg)

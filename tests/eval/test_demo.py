"""The summary of the demo, from the files that its stages leave."""

import json
from pathlib import Path

import pytest

from eval.data import LOCOMO
from eval.demo import METRICS, DemoSettings, _locomo, _summary, _table


def figure(estimate: float) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - 0.02, "high": estimate + 0.02}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for number, name in enumerate(("before_sampled", "before_greedy", "after_sampled", "after_greedy")):
        folder = tmp_path / "eval" / name
        folder.mkdir(parents=True)
        metrics = {metric: figure(round(0.4 + number / 10, 1)) for metric in METRICS.values()}
        probes = {"copy_all": {"parts": {"reward": figure(0.5)}}}
        content = {"metrics": metrics, "sessions": 300, "people": 180, "failed": number, "probes": probes}
        (folder / "summary.json").write_text(json.dumps(content))
    stages = tmp_path / "stages"
    stages.mkdir()
    (stages / "grpo.json").write_text(json.dumps({"seconds": 123.0}))
    return tmp_path


def settings(out: Path) -> DemoSettings:
    return DemoSettings(seed=3, out=out, n=300, train=[])


def test_the_summary_names_before_and_after_with_intervals(run: Path) -> None:
    summary = _summary(settings(run), {"train": 200.0, "evaluate": 50.0}, None)
    names = ("before", "before_greedy", "after", "after_greedy")
    assert [summary[f"heldout_reward_{name}"] for name in names] == [0.4, 0.5, 0.6, 0.7]
    assert summary["heldout_reward_after_interval"] == pytest.approx([0.58, 0.62])
    assert summary["update_recall_after"] == 0.6
    assert summary["failed_episodes"] == 6
    assert summary["seconds"] == {"train": 200.0, "evaluate": 50.0, "train/grpo": 123.0, "total": 250.0}
    assert summary["probes"] == {"copy_all": figure(0.5)}
    assert summary["seed"] == 3 and summary["versions"]["python"]
    table = _table(summary)
    assert table.row_count == 8, "sampled and greedy of four metrics"
    assert next(iter(table.columns[1].cells)) == "0.400 [0.380, 0.420]"


@pytest.mark.parametrize(
    ("after", "copied", "reasons"),
    [
        (0.55, 0.5, []),
        (0.449, 0.3, ["the reward went from 0.400 to 0.449, a rise of less than 0.05"]),
        (0.6, 0.6, ["0.600 is no more than copying every sentence earns (0.600)"]),
        (0.39, 0.5, ["the reward went from 0.400 to 0.390, a rise of less than 0.05", "0.390 is no more than"]),
    ],
)
def test_the_table_says_when_a_run_failed_to_learn(run: Path, after: float, copied: float, reasons: list[str]) -> None:
    for name, reward in (("before_sampled", 0.4), ("after_sampled", after)):
        path = run / "eval" / name / "summary.json"
        content = json.loads(path.read_text())
        content["metrics"]["reward"] = figure(reward)
        content["probes"]["copy_all"]["parts"]["reward"] = figure(copied)
        path.write_text(json.dumps(content))
    summary = _summary(settings(run), {"train": 1.0}, None)
    assert len(summary["failed_to_learn"]) == len(reasons)
    assert all(said.startswith(reason) for said, reason in zip(summary["failed_to_learn"], reasons, strict=True))
    caption = _table(summary).caption
    assert caption == (f"This run FAILED TO LEARN: {'; '.join(summary['failed_to_learn'])}." if reasons else None)


def test_recall_of_locomo_is_taken_from_its_summary_and_without_it_the_summary_says_what_to_fetch(run: Path) -> None:
    (run / "locomo").mkdir()
    content = {
        "questions": {"by_category": {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321}},
        "scores": {"recall@20": {"all": figure(0.57) | {"count": 1536}}},
    }
    (run / "locomo" / "summary.json").write_text(json.dumps(content))
    figures = _locomo(run, run / "locomo10.json")
    assert figures["locomo_recall_at_20"] == 0.57
    assert (figures["locomo_questions"], figures["locomo_questions_scored"]) == (1540, 1536)
    figures = _locomo(run, None)
    assert figures["locomo_recall_at_20"] is None
    assert LOCOMO.source in figures["locomo_note"] and LOCOMO.licence in figures["locomo_note"]

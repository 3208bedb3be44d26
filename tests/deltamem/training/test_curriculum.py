"""What the curriculum draws: its score, its mixture, and the same draws after a resume, through verl's own loader."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from training_cases import write_sessions
from transformers import AutoTokenizer
from verl.trainer.ppo.utils import create_rl_sampler
from verl.utils.dataset.rl_dataset import collate_fn

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.sessions import AXES
from deltamem.training.config import CurriculumSettings
from deltamem.training.curriculum import Curriculum, CurriculumDataset
from deltamem.training.data import export

KINDS = ("explicit", "value", "implied")
CELLS = [(f"signal={KINDS[row % 3]}", "bank=0" if row % 2 else "bank=1-20") for row in range(300)]
BATCH = 20


def curriculum(**changes: Any) -> Curriculum:
    return Curriculum(CELLS, CurriculumSettings(**({"warm_up": 0} | changes)), seed=1)


def kind_of(row: int) -> str:
    return KINDS[row % 3]


def run(drawer: Curriculum, steps: int, reward: Callable[[int, str], float], spread: float = 0.2) -> list[list[int]]:
    """Draw and learn; `reward` is the mean of a group by step and kind, and its rollouts are spread around it."""
    batches = []
    for step in range(steps):
        rows = drawer.draw(range(BATCH))
        means = {row: reward(step, kind_of(row)) for row in rows}
        drawer.learn(
            {row: [mean - spread * mean * (1 - mean), mean + spread * mean * (1 - mean)] for row, mean in means.items()}
        )
        batches.append(rows)
    return batches


def shares(batches: Iterable[list[int]]) -> dict[str, float]:
    kinds = [kind_of(row) for rows in batches for row in rows]
    return {kind: kinds.count(kind) / len(kinds) for kind in KINDS}


@pytest.mark.parametrize(
    ("mean", "band"), [(0.0, 0.0), (0.1, 0.5), (0.2, 1.0), (0.5, 1.0), (0.8, 1.0), (0.9, 0.5), (1.0, 0.0)]
)
def test_a_cell_is_worth_its_deviation_within_the_band(mean: float, band: float) -> None:
    drawer = Curriculum([("signal=value",)], CurriculumSettings(), seed=1)
    drawer.learn({0: [mean - 0.1, mean + 0.1]})
    assert drawer.scores()[0] == pytest.approx(band * np.sqrt(0.02))


def test_a_session_scores_the_mean_worth_of_its_cells() -> None:
    cells = [("signal=value", "bank=0"), ("signal=implied", "bank=0"), ("signal=explicit", "bank=81+")]
    drawer = Curriculum(cells, CurriculumSettings(smoothing=0.5), seed=1)
    assert not drawer.easy().any() and len(set(drawer.scores())) == 1, "nothing is known"
    drawer.learn({0: [0.4, 0.6], 1: [0.9, 1.0]})
    of_value, of_implied = np.std([0.4, 0.6], ddof=1), np.std([0.9, 1.0], ddof=1)
    of_empty = (of_value + of_implied) / 2  # whose mean reward is .725
    implied = 0.05 / 0.2 * of_implied
    # What was never seen counts as the best cell.
    assert drawer.scores() == pytest.approx([(of_value + of_empty) / 2, (implied + of_empty) / 2, of_value])
    assert drawer.easy().tolist() == [False, True, False], "of a cell of .95"
    # After a step the groups before it count half; groups of one rollout tell nothing.
    drawer.learn({0: [0.1, 0.1], 1: [0.3]})
    assert dict(zip(drawer.cells, drawer.means()[0], strict=True))["signal=value"] == pytest.approx((0.5 * 0.5 + 0.1) / 1.5)


def test_sessions_of_few_cells_do_not_fill_the_batches() -> None:
    # One in ten is idle: two cells where the others have seven, and rollouts that differ most.
    full = [f"{axis}={values[0]}" for axis, values in AXES.items()]
    banks = ("bank=1-20", "bank=81+")
    cells = [("noise=high", "bank=0") if row % 10 == 0 else (*full, banks[row % 2]) for row in range(400)]
    drawer = Curriculum(cells, CurriculumSettings(warm_up=0), seed=1)
    idle = []
    for _ in range(20):
        rows = drawer.draw(range(BATCH))
        idle.append(sum(row % 10 == 0 for row in rows) / BATCH)
        drawer.learn({row: [0.0, 1.0] if row % 10 == 0 else [0.45, 0.55] for row in rows})
    assert np.mean(idle) < 0.3


def test_a_batch_is_mixed_as_configured() -> None:
    drawer = curriculum()
    # One kind is known, one can be learned, one is beyond reach.
    means = {"explicit": 0.95, "value": 0.5, "implied": 0.01}
    batches = run(drawer, 60, lambda _, kind: means[kind])
    for rows in batches:
        assert len(rows) == BATCH == len(set(rows))
    late = batches[10:]
    assert all(sum(kind_of(row) == "explicit" for row in rows) >= 0.2 * BATCH for rows in late)
    found = shares(late)
    assert found["value"] > 0.45 > found["explicit"] > found["implied"] > 0.05, "and no kind is starved"
    assert len({row for rows in batches for row in rows}) > 250, "not always the same sessions"
    uniform = shares(run(curriculum(uniform_share=1.0, easy_share=0.0), 60, lambda _, kind: means[kind]))
    assert all(share == pytest.approx(1 / 3, abs=0.06) for share in uniform.values())


def test_a_policy_that_gets_better_moves_the_weight_to_harder_cells() -> None:
    ahead = {"explicit": 0.0, "value": -0.45, "implied": -0.9}
    batches = run(curriculum(), 90, lambda step, kind: float(np.clip(0.3 + step / 60 + ahead[kind], 0.01, 0.99)))
    early, late = shares(batches[3:13]), shares(batches[-10:])
    assert early["explicit"] > late["explicit"] and late["implied"] > early["implied"] + 0.2
    assert early["explicit"] > 0.5 < late["implied"]
    assert late["explicit"] + late["value"] >= 0.2


def test_the_warm_up_takes_what_verl_proposes() -> None:
    drawer = curriculum(warm_up=2)
    proposed = [7, 3, 5]
    assert drawer.draw(proposed) == drawer.draw(proposed) == proposed
    assert drawer.draw(proposed) != proposed


def test_figures_of_a_batch_are_by_cell() -> None:
    drawer = curriculum()
    drawer.learn({0: [0.9, 1.0]})
    figures = drawer.learn({0: [0.9, 1.0], 1: [0.0, 0.2], 2: []})
    assert figures["easy"] == 0.5, "of the sessions that were answered"
    assert figures["share/signal/explicit"] == 0.5 and figures["share/bank/0"] == 0.5
    assert figures["reward/signal/value"] == pytest.approx(0.1)
    assert figures["share/signal/implied"] == 0.0 and "reward/signal/implied" not in figures
    assert drawer.learn({}) == {}


rewards = st.lists(st.dictionaries(st.integers(0, 11), st.lists(st.floats(0, 1), max_size=4), max_size=8), max_size=6)


@settings(max_examples=30)
@given(rewards, rewards)
def test_the_state_is_plain_and_gives_the_same_draws(before: list[dict[int, list[float]]], after: list[Any]) -> None:
    first, second = (Curriculum(CELLS[:12], CurriculumSettings(warm_up=1), seed=1) for _ in range(2))
    for batch in before:
        first.draw(range(5))
        first.learn(batch)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    for batch in [*after, {}]:
        assert first.draw(range(5)) == second.draw(range(5))
        assert first.learn(batch) == second.learn(batch)


def test_a_state_of_other_sessions_is_refused() -> None:
    other = Curriculum(CELLS[:9], CurriculumSettings(), seed=1)
    with pytest.raises(DeltaMemError, match="that of other sessions"):
        other.load_state_dict(curriculum().state_dict())


def loader(file: Path, model: Path) -> StatefulDataLoader:
    """As verl makes it of a configuration of `deltamem.training.launch`."""
    options = {"shuffle": True, "seed": 1, "return_raw_chat": True, "filter_overlong_prompts": False, "prompt_key": "prompt"}
    config = OmegaConf.create(options | {"curriculum": CurriculumSettings(warm_up=1).model_dump()})
    rows = CurriculumDataset(str(file), AutoTokenizer.from_pretrained(model), config)
    return StatefulDataLoader(
        rows, batch_size=4, drop_last=True, collate_fn=collate_fn, sampler=create_rl_sampler(config, rows), num_workers=0
    )


def take(batches: StatefulDataLoader, steps: int, save_after: int = 0) -> tuple[list[list[str]], bytes]:
    """The keys of so many batches, over epochs as verl goes on, with rewards after each; and the state after some."""
    iterator, keys, saved = iter(batches), [], b""
    for step in range(steps):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(batches)
            batch = next(iterator)
        keys.append([info["key"] for info in batch["extra_info"]])
        batches.dataset.learn({key: [len(key) / 9, int(key[1]) / 9] for key in keys[-1]})
        if step + 1 == save_after:
            torch.save(batches.state_dict(), buffer := io.BytesIO())
            saved = buffer.getvalue()
    return keys, saved


@pytest.mark.parametrize("save_after", [1, 2, 3])
def test_verls_loader_draws_the_same_batches_after_a_resume(tmp_path: Path, model_folder: Path, save_after: int) -> None:
    # Two batches an epoch.
    sessions = write_sessions(tmp_path / "sessions.jsonl", 9, 4, difficulty=True)
    files = export(sessions, tmp_path, EpisodeConfig(), train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    whole, saved = take(loader(files.train, model_folder), 6, save_after)
    resumed = loader(files.train, model_folder)
    resumed.load_state_dict(torch.load(io.BytesIO(saved), weights_only=False))
    assert take(resumed, 6 - save_after)[0] == whole[save_after:]
    heldout = loader(files.heldout, model_folder)
    assert heldout.dataset.curriculum is None and sorted(take(heldout, 1)[0][0]) == ["p10/0", "p11/0", "p12/0", "p9/0"]


def test_rows_without_a_difficulty_are_refused(tmp_path: Path, model_folder: Path) -> None:
    sessions = write_sessions(tmp_path / "sessions.jsonl", 4, 1)
    files = export(sessions, tmp_path, EpisodeConfig(), train_sessions=None, heldout_sessions=None, skip_people=0, seed=1)
    with pytest.raises(DeltaMemError, match=r"has no difficulty, which deltamem\.curriculum needs"):
        loader(files.train, model_folder)

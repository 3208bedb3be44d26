"""A curriculum for GRPO: sessions are drawn by how much there is to learn from their cells of difficulty.

verl 0.9.1 has no hook for a sampler (an earlier one is gone). What it has is a data set class of one's own
(``data.custom_cls``), which its loader asks for whole batches and whose state it saves with every checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from deltamem.errors import DeltaMemError
from deltamem.sessions import from_json_line, sessions_by_cell
from deltamem.training.config import CurriculumSettings
from deltamem.training.data import NO_DIFFICULTY

Values = npt.NDArray[np.float64]

_EQUAL = 1e-9
"""Scores that spread by less are equal."""


class Curriculum:
    """Which sessions are drawn next, given the rewards so far.

    For each cell it keeps the mean reward of its groups and the mean standard deviation within them, both smoothed: at every
    step older groups lose weight. A cell is worth ``band x deviation``; the band is 1 between `low` and `high` and falls to
    0 at rewards of 0 and 1. A session scores the mean worth of its cells, axis by axis, and is drawn with a weight that
    grows exponentially with the score.

    The deviation is what GRPO learns from, as in sampling for learnability (arXiv 2502.12272). That categories are judged
    rather than sessions, by the advantages of their rollouts, and drawn with Boltzmann weights, is the idea of SEC (arXiv
    2505.14970): most sessions come once.
    """

    def __init__(self, cells: Sequence[Sequence[str]], settings: CurriculumSettings, *, seed: int) -> None:
        """Begin without any reward.

        Args:
            cells: Of each session, at least one.
            settings: ``deltamem.curriculum``.
            seed: Of the draws.
        """
        self._settings = settings
        self._seed = seed
        members = sessions_by_cell(cells)
        self.cells = tuple(members)
        """Names of all cells that occur."""
        self._member = np.zeros((len(cells), len(members)), dtype=bool)
        for column, rows in enumerate(members.values()):
            self._member[rows, column] = True
        axes = [cell.partition("=")[0] for cell in self.cells]
        self._axes = [np.flatnonzero(np.array(axes) == axis) for axis in dict.fromkeys(axes)]
        # Of each cell: groups, and the sums of their mean rewards and of their deviations.
        self._sums = np.zeros((3, len(members)))
        self._drawn = np.zeros(len(cells), dtype=np.int64)
        self._batches = 0

    def means(self) -> tuple[Values, Values]:
        """Mean reward and mean deviation of each cell, NaN where no group was seen; each of shape ``(cells,)``."""
        groups, rewards, deviations = self._sums
        with np.errstate(invalid="ignore"):
            return rewards / groups, deviations / groups

    def scores(self) -> Values:
        """How much there is to learn from each session, of shape ``(sessions,)``."""
        rewards, deviations = self.means()
        band = np.clip(np.minimum(rewards / self._settings.low, (1.0 - rewards) / (1.0 - self._settings.high)), 0.0, 1.0)
        worth = band * deviations
        # What was never seen may be worth as much as the best.
        worth = np.where(np.isnan(worth), np.nanmax(worth, initial=0.0), worth)
        # An axis that an idle session has no cell on is worth the average: with few cells it would stand out.
        scores = np.zeros(len(self._member))
        for columns in self._axes:
            member = self._member[:, columns]
            found = member.sum(axis=1)
            scores += np.where(found > 0, member @ worth[columns] / np.maximum(found, 1), worth.mean())
        return scores / len(self._axes)

    def easy(self) -> npt.NDArray[np.bool_]:
        """Which sessions are easy: those of a cell whose mean reward is above `high`, of shape ``(sessions,)``."""
        rewards, _ = self.means()
        found: npt.NDArray[np.bool_] = self._member @ (np.nan_to_num(rewards) > self._settings.high)
        return found

    def draw(self, proposed: Sequence[int]) -> list[int]:
        """The sessions of the next batch, as many as are proposed and none twice.

        During the warm-up they are the proposed ones. Then come easy ones, as many as `easy_share` demands or there are;
        any, as `uniform_share` demands, so that no cell is without samples; and the rest by their scores. Sessions that were
        drawn before weigh less, so that as many batches as an epoch has still see most of them.
        """
        chosen = list(proposed)
        if self._batches >= self._settings.warm_up:
            rng = np.random.default_rng((self._seed, self._batches))
            chosen = []
            shares = (
                (self._settings.easy_share, self.easy().astype(np.float64)),
                (self._settings.uniform_share, np.ones(len(self._drawn))),
                (1.0, _weights(self.scores())),
            )
            for share, weights in shares:
                weights = weights / (1 + self._drawn)
                weights[chosen] = 0.0
                # Whole sessions: 0.2 of 64 are 13. Rounded first, or 0.1 of 30 would be 4.
                wanted = math.ceil(round(share * len(proposed), 6))
                count = min(wanted, len(proposed) - len(chosen), int((weights > 0.0).sum()))
                if count:
                    chosen += rng.choice(len(weights), count, replace=False, p=weights / weights.sum()).tolist()
        self._batches += 1
        self._drawn[chosen] += 1
        return chosen

    def learn(self, rewards: Mapping[int, Sequence[float]]) -> dict[str, float]:
        """Take the rewards of a batch.

        Args:
            rewards: By session, one for each of its rollouts. Those with fewer than two tell nothing and are left out.

        Returns:
            ``easy``, the share of sessions that were easy before this batch; by cell ``share/<axis>/<value>``, the share of
            sessions that belong to it, and ``reward/<axis>/<value>``, its mean reward now.
        """
        groups = {row: values for row, values in rewards.items() if len(values) > 1}
        easy = self.easy()[list(groups)]
        self._sums *= self._settings.smoothing
        for row, values in groups.items():
            self._sums[:, self._member[row]] += np.array([[1.0], [np.mean(values)], [np.std(values, ddof=1)]])
        if not groups:
            return {}
        shares, means = self._member[list(groups)].mean(axis=0), self.means()[0]
        figures = {"easy": float(easy.mean())}
        for cell, share, mean in zip(self.cells, shares, means, strict=True):
            name = cell.replace("=", "/")
            figures[f"share/{name}"] = float(share)
            if not np.isnan(mean):
                figures[f"reward/{name}"] = float(mean)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next draws depend on, as plain values."""
        return {
            "cells": list(self.cells),
            "sums": self._sums.tolist(),
            "drawn": self._drawn.tolist(),
            "batches": self._batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            DeltaMemError: If it is that of other sessions.
        """
        if tuple(state["cells"]) != self.cells or len(state["drawn"]) != len(self._drawn):
            raise DeltaMemError(
                "the checkpoint's curriculum is that of other sessions; choose another deltamem.out, or remove the folder "
                "to start over"
            )
        self._sums = np.array(state["sums"], dtype=np.float64).reshape(3, -1)
        self._drawn = np.array(state["drawn"], dtype=np.int64)
        self._batches = int(state["batches"])


def _weights(scores: Values) -> Values:
    """Boltzmann weights of standardised scores: only differences count, which the mean over many cells makes small.

    None is more than one deviation from the mean, so that a small group of outliers does not fill the batches.
    """
    spread = scores.std()
    weights: Values = np.exp(np.clip((scores - scores.mean()) / spread, -1, 1)) if spread > _EQUAL else np.ones_like(scores)
    return weights


class CurriculumDataset(RLHFDataset):  # type: ignore[misc]
    """verl's data set of the rows of `deltamem.training.data`; training rows are drawn by a curriculum.

    The loader must run in the trainer's own process (``data.dataloader_num_workers=0``): a worker's copy would draw batches
    ahead, and would never see a reward.
    """

    def __init__(self, data_files: Any, tokenizer: Any, config: DictConfig, processor: Any = None, **kwargs: Any) -> None:
        """Read the rows; verl calls this, for the validation rows too. ``config.curriculum`` holds the settings.

        Raises:
            DeltaMemError: If a training session has no difficulty.
        """
        super().__init__(data_files, tokenizer, config, processor, **kwargs)
        self._rows: dict[str, int] = {}
        self.curriculum: Curriculum | None = None
        cells = []
        for row, info in enumerate(self.dataframe["extra_info"]):
            if info["split"] != "train":
                return
            if (difficulty := from_json_line(info["session"]).difficulty) is None:
                raise DeltaMemError(NO_DIFFICULTY.format(key=info["key"]))
            cells.append(difficulty.cells())
            self._rows[info["key"]] = row
        options: Any = OmegaConf.to_container(config.curriculum)
        self.curriculum = Curriculum(cells, CurriculumSettings(**options), seed=config.seed)

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        """A batch; `rows` are what verl's own sampler proposes."""
        chosen = rows if self.curriculum is None else self.curriculum.draw(rows)
        return [self[row] for row in chosen]

    def learn(self, rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Take the rewards of a batch by the keys of its sessions; returns figures (see `Curriculum.learn`)."""
        if self.curriculum is None:
            return {}
        return self.curriculum.learn({self._rows[key]: values for key, values in rewards.items()})

    def state_dict(self) -> dict[str, Any]:
        """For verl's checkpoints."""
        return {} if self.curriculum is None else self.curriculum.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            DeltaMemError: If it is that of other sessions.
        """
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state)

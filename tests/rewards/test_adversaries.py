"""Sloppy and cheating policies: what each makes of a session, and what the rewards in configs/reward make of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from adversaries import ADVERSARIES, SLOPPY, kept_values, wrong_targets
from episode_texts import WordEmbedder
from omegaconf import OmegaConf
from probe_cases import START, session

from deltamem.config import CONFIGS
from deltamem.embedding import CachedEmbedder
from deltamem.episode import Trajectory
from deltamem.memory import Event, Memory, MemoryState, Operation
from rewards.cues import ranked_by_vectors
from rewards.probes import PROBES, Surface, play
from rewards.reward import RewardOptions, score

BANK = MemoryState(
    Memory(f"m{number}", f"{who} works as a {trade} in {town} on {day}s.", START)
    for number, (who, trade, town, day) in enumerate(
        [
            ("Eve", "baker", "Oslo", "Monday"),
            ("Eve", "baker", "Oslo", "Friday"),
            ("Eve", "nurse", "Turku", "Sunday"),
            ("Ole", "welder", "Riga", "Tuesday"),
        ],
        start=1,
    )
)


def moved(target: str, old: str, new: str, *kept: str) -> Operation:
    text = BANK[target].text.replace(old, new)
    return Operation(Event.UPDATE, text, target, (new, *kept), (old,))


SESSIONS = [
    session("eve", 0, ["Hello.", "Bergen it is."], BANK, [moved("m1", "Oslo", "Bergen", "baker", "Monday")]),
    session(
        "eve",
        1,
        ["I keep bees now.", "And I weld, no, I bake in Riga."],
        BANK,
        [
            moved("m2", "Friday", "Saturday", "baker", "Oslo"),
            moved("m4", "welder", "painter", "Ole", "Riga"),
            Operation(Event.ADD, "Eve keeps seven bees in the garden behind her house.", None, ("bees", "seven")),
            Operation(Event.NONE, BANK["m3"].text, "m3", ("nurse",)),
        ],
    ),
    session("eve", 2, ["Nice weather."], BANK, []),
]
ALL = {**PROBES, **SLOPPY, **{name: found.probe for name, found in ADVERSARIES.items()}}


def answered(policy, labelled):
    return policy(labelled, Surface([], ranked_by_vectors(EMBEDDER))).operations


EMBEDDER = CachedEmbedder(WordEmbedder())


@cache
def played() -> dict[str, list[Trajectory]]:
    return play([], SESSIONS, EMBEDDER, ALL)


@cache
def means(options: RewardOptions) -> dict[str, float]:
    def mean(trajectories: list[Trajectory]) -> float:
        scores = [score(*pair, EMBEDDER.documents, options) for pair in zip(trajectories, SESSIONS, strict=True)]
        return float(np.mean([found.transition.reward for found in scores]))

    return {name: mean(trajectories) for name, trajectories in played().items()}


def configured(name: str) -> RewardOptions:
    """Options of a file in configs/reward over those that it begins with, as Hydra puts them together."""
    below = {"paper": (), "repaired": ("paper",), "demanding": ("paper", "repaired")}[name]
    found = OmegaConf.merge(*(OmegaConf.load(CONFIGS / "reward" / f"{one}.yaml") for one in (*below, name)))
    return RewardOptions(**{str(key): value for key, value in found.items() if key not in ("_target_", "defaults")})


def test_no_cheat_pays_under_the_demanding_reward():
    found = means(configured("demanding"))
    for name, adversary in ADVERSARIES.items():
        assert found[name] <= found[adversary.honest] + 1e-9, name
    flawed = ("over_updater", "touch_and_add", "append", "hedge", "twice", "merged", "add_and_restore", "rotated")
    assert found["gold"] == 1.0 > max(found[name] for name in flawed)


def test_the_repaired_reward_pays_cheats():
    """Why there is another one; docs/rewards.md has the figures of real data."""
    assert configured("repaired") == RewardOptions()
    found = means(configured("repaired"))
    assert found["touch"] > found["gold_without_updates"]
    assert found["restore"] > 0.3 > 0.05 > means(configured("demanding"))["restore"]
    assert found["append"] == found["hedge"] == found["rotated"] == found["gold"] == 1.0


def test_the_papers_letter_pays_for_doing_nothing_and_not_for_perfect_updates():
    """Why there is a repaired one."""
    letter, repaired = configured("paper"), configured("repaired")
    assert letter == replace(repaired, paper_literal=True)
    found = means(letter)
    assert found["gold"] == pytest.approx(1 / 3) and found["gold_as_add"] > 0.4, "equal states leave nothing to divide"
    assert found["do_nothing"] > 0.2, "memories left alone stand for what they should have become"
    assert means(repaired)["do_nothing"] == 1 / 3, "the session in which nothing is due"


def test_shares_of_wrong_targets_hold_each_other_and_spare_memories_that_are_due():
    due = {op.target_memory_id for op in SESSIONS[1].operations if op.event is Event.UPDATE}
    taken = [
        {op.target_memory_id for op in answered(wrong_targets(share), SESSIONS[1]) if op.event is Event.UPDATE}
        for share in (0.0, 0.5, 1.0)
    ]
    assert taken[0] == due and not taken[2] & due
    assert len(taken[0] & due) >= len(taken[1] & due) >= len(taken[2] & due)
    texts = Counter(op.text for op in answered(wrong_targets(1.0), SESSIONS[1]))
    assert texts == Counter(op.text for op in SESSIONS[1].operations), "the texts are right"


def test_kept_values_leave_the_sentence_as_it_was():
    (op,) = answered(kept_values(1.0), SESSIONS[0])
    assert (op.target_memory_id, op.text) == ("m1", "Eve works as a baker in Oslo on Mondays now.")
    assert answered(kept_values(0.0), SESSIONS[0])[0].text == SESSIONS[0].operations[0].text


def test_no_policy_hands_on_keywords_and_none_acts_on_an_empty_session_but_by_restoring():
    for name in {*SLOPPY, *ADVERSARIES}:
        for trajectory in played()[name]:
            assert all(not op.keywords and not op.outdated for op in trajectory.operations), name
        assert answered(ALL[name].answer, replace(SESSIONS[2], prior_state=MemoryState())) == [], name
        assert bool(played()[name][2].operations) == (name == "restore"), name

"""What scripted policies earn under options of the reward: ``python benchmarks/reward_options.py DATA ... [--json FILE]``.

DATA are folders that ``python -m synth`` wrote. All policies answer the same sessions once, and each setting of the reward
scores their answers. Printed for each folder: the mean transition of every policy under every setting; whether the wanted
order holds and its smallest gap; the share of wrong targets at which an updater earns no more than one who only adds; the
cheats that beat the honest policy they are named with; what doing nothing and copying earn by kind of session.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from deltamem.embedding import OFFLINE_MODEL, CachedEmbedder, load_embedder
from deltamem.episode import Trajectory
from deltamem.memory import Event
from deltamem.sessions import LabelledSession, read_sessions
from rewards.probes import PROBES, Probe, play
from rewards.reward import RewardOptions, score

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "rewards"))

from adversaries import ADVERSARIES, SLOPPY, wrong_targets

ORDER = ("do_nothing", "copy_all", "gold_as_add", "sloppy", "gold")
"""What each policy must earn less than the next."""
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of wrong targets between which the break-even is interpolated."""
TOLERANCE = 1e-9

REPAIRED = RewardOptions()
STRICT = replace(REPAIRED, match_overwritten=False, match_other_targets=False, weigh_new_keywords=True)


def settings() -> dict[str, RewardOptions]:
    """The settings by a short name.

    w is the stale weight, o that overwritten texts are matched, t that only own targets are, n that new keywords are
    weighed, x the weight of outdated values.
    """
    found = {
        f"w{weight}{' o' if match else ''}": replace(REPAIRED, stale_weight=float(weight), match_overwritten=match)
        for match, weight in product((True, False), (1, 2, 3))
    }
    found["w3 t"] = replace(REPAIRED, stale_weight=3.0, match_overwritten=False, match_other_targets=False)
    found |= {f"w{weight} t n": replace(STRICT, stale_weight=float(weight)) for weight in (1, 2, 3)}
    found |= {
        f"w{weight} t n x{wrong}": replace(STRICT, stale_weight=float(weight), outdated_weight=float(wrong))
        for weight, wrong in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (3, 2))
    }
    found["w1 o, similarity"] = replace(REPAIRED, lexical_fidelity=False)
    found["w1 o, literal"] = replace(REPAIRED, paper_literal=True)
    found["w1 o, tau .6"] = replace(REPAIRED, tau=0.6)
    found["w1 o, tau .9"] = replace(REPAIRED, tau=0.9)
    return found


KINDS: Mapping[str, Callable[[set[Event]], bool]] = {
    "idle": lambda events: not events,
    "NONE only": lambda events: events == {Event.NONE},
    "ADD, no UPDATE": lambda events: Event.ADD in events and Event.UPDATE not in events,
    "UPDATE": lambda events: Event.UPDATE in events,
}


@dataclass(frozen=True)
class Played:
    """Sessions and what the policies answered."""

    sessions: list[LabelledSession]
    trajectories: Mapping[str, Sequence[Trajectory]]
    embedder: CachedEmbedder

    def earned(self, name: str, options: RewardOptions) -> tuple[np.ndarray, np.ndarray]:
        """Transition and total reward of a policy, a number a session each."""
        totals = [
            score(trajectory, labelled, self.embedder.documents, options)
            for labelled, trajectory in zip(self.sessions, self.trajectories[name], strict=True)
        ]
        return np.array([total.transition.reward for total in totals]), np.array([total.reward for total in totals])


def played(folder: Path, learn: int, score: int, embedder: CachedEmbedder) -> Played:
    """Let all policies answer the sessions of some people; some of the policies learn words from the `learn` before them."""
    sessions = list(read_sessions(folder / "sessions.jsonl"))
    people = sorted({labelled.session.person_id for labelled in sessions})
    if len(people) <= learn:
        raise SystemExit(f"error: {folder} has {len(people)} people, and {learn} are to learn from")
    known = set(people[:learn])
    train = [labelled for labelled in sessions if labelled.session.person_id in known]
    judged = set(people[learn : learn + score])
    rest = [labelled for labelled in sessions if labelled.session.person_id in judged]
    policies: dict[str, Probe] = {**PROBES, **SLOPPY, **{name: found.probe for name, found in ADVERSARIES.items()}}
    policies |= {_at(share): Probe("", wrong_targets(share)) for share in SHARES}
    return Played(rest, play(train, rest, embedder, policies), embedder)


def _at(share: float) -> str:
    return f"wrong targets {share}"


def break_even(means: Mapping[str, float]) -> float:
    """The share of wrong targets at which an updater with perfect texts earns what one who only adds earns."""
    shares = (0.0, *SHARES)
    earned = [means["gold"], *(means[_at(share)] for share in SHARES)]
    wanted = means["gold_as_add"]
    for (low, above), (high, below) in pairwise(zip(shares, earned, strict=True)):
        if below <= wanted:
            return low + (high - low) * (above - wanted) / (above - below) if above > below else low
    return 1.0


def measure(found: Played) -> dict[str, Any]:
    """The figures of one data set."""
    chosen = settings()
    earned = {
        name: {policy: found.earned(policy, options) for policy in found.trajectories} for name, options in chosen.items()
    }
    events = [{op.event for op in labelled.operations} for labelled in found.sessions]
    kinds = {name: np.array([belongs(of) for of in events]) for name, belongs in KINDS.items()}
    figures: dict[str, Any] = {"sessions": {name: int(which.sum()) for name, which in kinds.items()}, "settings": {}}
    for name, of_policies in earned.items():
        means = {policy: float(transition.mean()) for policy, (transition, _) in of_policies.items()}
        gaps = [means[better] - means[worse] for worse, better in pairwise(ORDER)]
        figures["settings"][name] = {
            "transition": {policy: mean for policy, mean in means.items() if policy not in map(_at, SHARES)},
            "gaps": gaps,
            "smallest_gap": min(gaps),
            "break_even": break_even(means),
            "cheats_that_pay": [
                cheat for cheat, (_, honest) in ADVERSARIES.items() if means[cheat] > means[honest] + TOLERANCE
            ],
            "by_kind": {
                policy: {
                    kind: {
                        "transition": float(of_policies[policy][0][which].mean()),
                        "reward": float(of_policies[policy][1][which].mean()),
                    }
                    for kind, which in kinds.items()
                    if which.any()
                }
                for policy in ("do_nothing", "copy_all", "gold_without_updates", "gold")
            },
        }
    return figures


def tables(folder: Path, figures: dict[str, Any]) -> list[Table]:
    """The figures for the terminal."""
    of_settings = figures["settings"]
    names = list(of_settings)
    policies = list(of_settings[names[0]]["transition"])
    earned = Table("policy", title=f"{folder.name}: mean transition, {sum(figures['sessions'].values())} sessions")
    for name in names:
        earned.add_column(name, justify="right", no_wrap=True)
    for policy in policies:
        earned.add_row(policy, *(f"{of_settings[name]['transition'][policy]:.3f}" for name in names))
    judged = Table("setting", title=" < ".join(ORDER))
    for heading in ("gaps", "smallest", "break-even share of wrong targets", "cheats that pay"):
        judged.add_column(heading)
    for name in names:
        row = of_settings[name]
        gaps = " ".join(f"{gap:.3f}" for gap in row["gaps"])
        smallest = f"{row['smallest_gap']:.3f}" if row["smallest_gap"] > 0 else f"[bold]{row['smallest_gap']:.3f}[/bold]"
        judged.add_row(name, gaps, smallest, f"{row['break_even']:.2f}", ", ".join(row["cheats_that_pay"]) or "none")
    kinds = Table("policy", title="By kind of session, first setting: transition (total reward)")
    by_kind = of_settings[names[0]]["by_kind"]
    for kind in by_kind["gold"]:
        kinds.add_column(f"{kind} ({figures['sessions'][kind]})", justify="right")
    for policy, values in by_kind.items():
        kinds.add_row(policy, *(f"{value['transition']:.3f} ({value['reward']:.3f})" for value in values.values()))
    return [earned, judged, kinds]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders of python -m synth")
    parser.add_argument("--learn", type=int, default=4, help="people that policies learn from and are not scored on")
    parser.add_argument("--score", type=int, default=16, help="people to score on at most")
    parser.add_argument("--embedder", default=OFFLINE_MODEL)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    embedder = load_embedder(options.embedder)
    cached = embedder if isinstance(embedder, CachedEmbedder) else CachedEmbedder(embedder)
    figures = {}
    for folder in options.data:
        figures[folder.name] = measure(played(folder, options.learn, options.score, cached))
        for table in tables(folder, figures[folder.name]):
            Console(width=220).print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

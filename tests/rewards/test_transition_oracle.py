"""transition_score against an independent brute-force oracle."""

import itertools
import random

import numpy as np
import pytest
from reward_cases import PlaneEmbedder, random_case
from reward_oracle import oracle

from rewards.reward import RewardOptions, transition_score

CASES = 3000
CHOICES = {
    "tau": (0.75, 0.9, 0.5, 0.0),
    "lexical_fidelity": (True, False),
    "paper_literal": (True, False),
    "stale_weight": (1.0, 2.0),
    "match_overwritten": (True, True, False),
    "match_other_targets": (True, True, False),
    "weigh_new_keywords": (True, False),
    "outdated_weight": (0.0, 1.0, 2.5),
}


def plain(operations):
    return [(op.event.value, op.target_memory_id, op.text, op.keywords, op.outdated) for op in operations]


def figures(score):
    return score.reward, score.precision, score.recall, score.positive_distance, score.negative_distance


def test_agrees_with_the_oracle_in_cases_that_reach_every_rule():
    reached, matched = set(), 0
    for seed in range(CASES):
        case, rng = random_case(seed), random.Random(f"options {seed}")
        prior = {key: memory.text for key, memory in case.prior.items()}
        options = {name: rng.choice(values) for name, values in CHOICES.items()}

        def cosine(a: str, b: str, embed: PlaneEmbedder = case.embed) -> float:
            return float(np.dot(embed.vector(a), embed.vector(b)))

        predicted = None if seed % 50 == 0 else case.predicted
        score = transition_score(case.prior, predicted, case.target, case.embed, RewardOptions(**options))
        wanted = oracle(prior, None if predicted is None else plain(predicted), plain(case.target), cosine, **options)
        assert any(figures(score) == pytest.approx(one, abs=1e-9) for one in wanted), (seed, score)
        matched += len(score.pairs)
        entries = itertools.chain(score.unmatched_predicted, score.unmatched_target)
        reached |= {entry.origin.value for entry in entries} | {pair.kind.value for pair in score.pairs}
        reached |= {(pair.predicted.origin.value, pair.target.origin.value) for pair in score.pairs}
    assert matched > CASES / 4  # the cases are not empty ones
    assert reached >= {"stale", "unexpected_update", "overwritten", "matched", "agreed_update"}
    assert reached >= {("added", "updated"), ("updated", "added"), ("added", "overwritten")}

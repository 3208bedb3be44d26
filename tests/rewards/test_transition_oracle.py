"""transition_score against an independent brute-force oracle."""

import itertools

import numpy as np
import pytest
from reward_cases import PlaneEmbedder, random_case
from reward_oracle import oracle

from rewards.reward import RewardOptions, transition_score

CASES = 3000
CHUNKS = 4


def plain(operations):
    return [(op.event.value, op.target_memory_id, op.text, op.keywords, op.outdated) for op in operations]


def figures(score):
    return score.reward, score.precision, score.recall, score.positive_distance, score.negative_distance


@pytest.mark.parametrize("lexical_fidelity", [True, False])
@pytest.mark.parametrize("paper_literal", [True, False])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_agrees_with_the_oracle(chunk, paper_literal, lexical_fidelity):
    matched = 0
    for seed in range(chunk, CASES, CHUNKS):
        case = random_case(seed)
        prior = {key: memory.text for key, memory in case.prior.items()}
        options = {
            "tau": (0.75, 0.9, 0.5, 0.0)[seed // CHUNKS % 4],
            "lexical_fidelity": lexical_fidelity,
            "paper_literal": paper_literal,
            "stale_weight": (1.0, 2.0)[seed % 2],
            "match_overwritten": seed % 7 != 0,
            "match_other_targets": seed % 5 != 0,
            "weigh_new_keywords": seed % 3 == 0,
            "outdated_weight": (0.0, 1.0, 2.5)[seed // 2 % 3],
        }

        def cosine(a: str, b: str, embed: PlaneEmbedder = case.embed) -> float:
            return float(np.dot(embed.vector(a), embed.vector(b)))

        predicted = None if seed % 50 == 0 else case.predicted
        score = transition_score(case.prior, predicted, case.target, case.embed, RewardOptions(**options))
        wanted = oracle(prior, None if predicted is None else plain(predicted), plain(case.target), cosine, **options)
        assert any(figures(score) == pytest.approx(one, abs=1e-9) for one in wanted), (seed, score)
        matched += len(score.pairs)
    assert matched > CASES / CHUNKS / 4  # the cases are not empty ones


def test_the_random_cases_reach_every_rule():
    reached = set()
    for seed in range(CASES):
        case = random_case(seed)
        score = transition_score(case.prior, case.predicted, case.target, case.embed)
        entries = itertools.chain(score.unmatched_predicted, score.unmatched_target)
        reached |= {entry.origin.value for entry in entries} | {pair.kind.value for pair in score.pairs}
        reached |= {(pair.predicted.origin.value, pair.target.origin.value) for pair in score.pairs}
    assert reached >= {"stale", "unexpected_update", "overwritten", "matched", "agreed_update"}
    assert reached >= {("added", "updated"), ("updated", "added"), ("added", "overwritten")}

"""What must hold of the transition reward for any case."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import TIME, add, random_case, random_text, state

from deltamem.memory import Event, Operation, alternatives, apply
from rewards.reward import RewardOptions, transition_score

seeds = st.integers(0, 10**9)
modes = st.fixed_dictionaries(
    {
        "lexical_fidelity": st.booleans(),
        "paper_literal": st.booleans(),
        "stale_weight": st.sampled_from([1.0, 1.5, 4.0]),
        "match_overwritten": st.booleans(),
        "match_other_targets": st.booleans(),
        "weigh_new_keywords": st.booleans(),
        "outdated_weight": st.sampled_from([0.0, 1.0, 2.5]),
        "tau": st.sampled_from([0.0, 0.3, 0.75, 1.0]),
    }
)


def scored(case, predicted, target=None, **mode):
    target = case.target if target is None else target
    return transition_score(case.prior, predicted, target, case.embed, RewardOptions(**mode))


@given(seeds, modes)
def test_a_perfect_prediction_earns_one(seed, mode):
    case = random_case(seed, faithful_keywords=True)
    predicted = [Operation(op.event, op.text, op.target_memory_id) for op in case.target]
    score = scored(case, predicted, **mode | {"paper_literal": False})
    assert score.reward == score.precision == score.recall == 1.0
    assert score.positive_distance == score.negative_distance == 0.0


@given(seeds, modes)
def test_what_changes_nothing_earns_nothing_when_something_is_due_and_else_everything(seed, mode):
    case, mode = random_case(seed), mode | {"paper_literal": False}
    something_is_due = apply(case.prior, case.target, TIME) != case.prior
    assert scored(case, [], **mode).reward == (0.0 if something_is_due else 1.0)
    same = [Operation(Event.UPDATE, memory.text, memory.id) for memory in case.prior.memories]
    repeated = [Operation(Event.NONE, "in other words", memory.id) for memory in case.prior.memories]
    for predicted in ([], same, repeated):
        for target in ([], same, repeated):
            assert scored(case, predicted, target, **mode).reward == 1.0
    assert scored(case, [add("New.")], repeated, **mode).reward == scored(case, None, repeated, **mode).reward == 0.0


@given(seeds, st.booleans(), st.booleans())
def test_overwriting_never_beats_adding(seed, lexical_fidelity, paper_literal):
    case, rng = random_case(seed), random.Random(seed)
    text = rng.choice([random_text(rng), *(op.text for op in case.target if op.text)])
    # By similarity: keywords may rank two candidates for one target the other way round than similarity does.
    beside = {"lexical_fidelity": False, "paper_literal": paper_literal, "match_overwritten": False}
    for memory_id in sorted(case.prior.keys() - {op.target_memory_id for op in (*case.predicted, *case.target)}):
        if case.prior[memory_id].text != text:
            overwritten = Operation(Event.UPDATE, text, memory_id)
            if not any(op.event is Event.UPDATE for op in case.target):
                assert scored(case, [overwritten], **beside).reward == 0.0
            assert scored(case, [overwritten], lexical_fidelity=lexical_fidelity).reward == 0.0
            overwriting, adding = ([*case.predicted, last] for last in (overwritten, add(text)))
            assert scored(case, overwriting, **beside).reward <= scored(case, adding, **beside).reward + 1e-12


@given(seeds, modes, st.randoms(use_true_random=False))
def test_the_order_of_operations_does_not_matter(seed, mode, shuffler):
    case = random_case(seed)
    score = scored(case, case.predicted, **mode)
    predicted, target = list(case.predicted), list(case.target)
    shuffler.shuffle(predicted)
    shuffler.shuffle(target)
    assert scored(case, predicted, target, **mode) == score


@given(seeds, st.integers(1, 4), st.booleans(), st.booleans())
def test_more_invented_additions_never_help(seed, invented, lexical_fidelity, match_overwritten):
    case = random_case(seed)
    names = [f"Invented {number}." for number in range(invented)]
    case.embed.fixed |= dict.fromkeys(names, (0.0, 0.0, 1.0))  # at right angles to everything else
    mode = {"lexical_fidelity": lexical_fidelity, "match_overwritten": match_overwritten}
    more = [[*case.predicted, *map(add, names[:count])] for count in range(invented + 1)]
    rewards = [scored(case, predicted, **mode).reward for predicted in more]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[-1] < rewards[0] or rewards[0] == 0.0


@given(seeds, modes)
def test_everything_stays_in_its_range_and_stricter_options_never_help(seed, mode):
    case = random_case(seed)
    score = scored(case, case.predicted, **mode)
    values = [score.reward, score.precision, score.recall]
    values += [value for pair in score.pairs for value in (pair.similarity, pair.score)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert score.positive_distance >= 0.0 <= score.negative_distance
    for option, stricter in (
        ("stale_weight", (1.0, 1.5, 10.0)),
        ("outdated_weight", (0.0, 0.5, 10.0)),
        ("weigh_new_keywords", (False, True)),
    ):
        scores = [scored(case, case.predicted, **mode | {option: value}) for value in stricter]
        recalls = [score.recall for score in scores]
        assert all(after <= before + 1e-12 for before, after in pairwise(recalls))
        if option == "stale_weight":  # leaves recall and distances alone
            assert len({(score.recall, score.positive_distance) for score in scores}) == 1
            assert [score.reward for score in scores] == sorted((score.reward for score in scores), reverse=True)


@given(seeds, st.sampled_from([1.0, 3.0]), st.sampled_from([0.0, 1.0]), st.booleans())
def test_the_old_text_once_more_never_helps(seed, stale_weight, outdated_weight, touched):
    """A copy of a memory that is due an update, as it stands or with a word behind it, beside anything else."""
    case = random_case(seed, faithful_keywords=True)
    mode = {"match_overwritten": False, "weigh_new_keywords": True}
    mode |= {"stale_weight": stale_weight, "outdated_weight": outdated_weight}
    for op in case.target:
        old = case.prior[op.target_memory_id].text if op.event is Event.UPDATE else op.text
        # Without a new keyword nothing tells the old text from the new.
        if op.text != old and any(
            not any(word and word in old for word in alternatives(keyword)) for keyword in op.keywords
        ):
            copy = add(f"{old} still" if touched else old)
            before, after = (
                scored(case, predicted, [op], **mode).reward for predicted in (case.predicted, [*case.predicted, copy])
            )
            assert after <= before + 1e-12


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.5])
def test_add_for_a_single_due_update_earns_two_over_two_plus_w(weight):
    case = random_case(0)
    case.prior = state({"m1": "Ash birch cedar"})
    target = [Operation(Event.UPDATE, "Elm elm elm", "m1", ("elm",))]
    assert scored(case, [add("Elm elm elm")], target, stale_weight=weight).reward == pytest.approx(2 / (2 + weight))

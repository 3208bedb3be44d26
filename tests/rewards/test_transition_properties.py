"""What must hold of the transition reward for any case."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import add, random_case, random_text

from deltamem.memory import Event, Operation, apply
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


def changes(prior, operations):
    return apply(prior, operations, prior[next(iter(prior))].time if prior else None).entries != prior.entries


@given(seeds, modes.filter(lambda mode: not mode["paper_literal"]))
def test_a_perfect_prediction_earns_one(seed, mode):
    case = random_case(seed, faithful_keywords=True)
    predicted = [Operation(op.event, op.text, op.target_memory_id) for op in case.target]
    score = transition_score(
        case.prior,
        predicted,
        case.target,
        case.embed,
        RewardOptions(**mode),
    )
    assert (score.reward, score.precision, score.recall) == (1.0, 1.0, 1.0)
    assert (score.positive_distance, score.negative_distance) == (0.0, 0.0)


@given(seeds, modes)
def test_doing_nothing_earns_nothing_when_something_is_due(seed, mode):
    case = random_case(seed)
    score = transition_score(case.prior, [], case.target, case.embed, RewardOptions(**mode))
    assert score.reward == (0.0 if changes(case.prior, case.target) else 1.0)


@given(seeds, modes)
def test_nothing_due_and_nothing_done_earns_one_however_it_is_written(seed, mode):
    case = random_case(seed)
    same = [Operation(Event.UPDATE, memory.text, memory.id) for memory in case.prior.memories]
    repeated = [Operation(Event.NONE, "in other words", memory.id) for memory in case.prior.memories]
    for predicted in ([], same, repeated):
        for target in ([], same, repeated):
            assert transition_score(case.prior, predicted, target, case.embed, RewardOptions(**mode)).reward == 1.0
    assert transition_score(case.prior, [add("New.")], repeated, case.embed, RewardOptions(**mode)).reward == 0.0
    assert transition_score(case.prior, None, repeated, case.embed, RewardOptions(**mode)).reward == 0.0


def unrelated_ids(case):
    used = {op.target_memory_id for op in (*case.predicted, *case.target)}
    return sorted(case.prior.keys() - used)


@given(seeds, st.booleans())
def test_overwriting_alone_never_beats_adding_alone(seed, lexical_fidelity):
    case, rng = random_case(seed), random.Random(seed)
    text = rng.choice([random_text(rng), *(op.text for op in case.target if op.text)])
    for memory_id in unrelated_ids(case):
        if case.prior[memory_id].text != text:
            overwritten = [Operation(Event.UPDATE, text, memory_id)]
            scores = [
                transition_score(
                    case.prior, predicted, case.target, case.embed, RewardOptions(lexical_fidelity=lexical_fidelity)
                ).reward
                for predicted in (overwritten, [add(text)])
            ]
            assert scores[0] == 0.0 <= scores[1]


@given(seeds, st.booleans())
def test_overwriting_never_beats_adding_beside_other_operations(seed, paper_literal):
    # By similarity alone: keywords may rank two candidates for one target the other way round than similarity does.
    case, rng = random_case(seed), random.Random(seed)
    text = rng.choice([random_text(rng), *(op.text for op in case.target if op.text)])
    mode = {"lexical_fidelity": False, "paper_literal": paper_literal, "match_overwritten": False}
    for memory_id in unrelated_ids(case):
        if case.prior[memory_id].text != text:
            overwriting = [*case.predicted, Operation(Event.UPDATE, text, memory_id)]
            adding = [*case.predicted, add(text)]
            first = transition_score(case.prior, overwriting, case.target, case.embed, RewardOptions(**mode)).reward
            second = transition_score(case.prior, adding, case.target, case.embed, RewardOptions(**mode)).reward
            assert first <= second + 1e-12


@given(seeds, modes, st.randoms(use_true_random=False))
def test_the_order_of_operations_does_not_matter(seed, mode, shuffler):
    case = random_case(seed)
    score = transition_score(case.prior, case.predicted, case.target, case.embed, RewardOptions(**mode))
    predicted, target = list(case.predicted), list(case.target)
    shuffler.shuffle(predicted)
    shuffler.shuffle(target)
    assert transition_score(case.prior, predicted, target, case.embed, RewardOptions(**mode)) == score


@given(seeds, st.integers(1, 4), st.booleans(), st.booleans())
def test_more_invented_additions_never_help(seed, invented, lexical_fidelity, match_overwritten):
    case = random_case(seed)
    names = [f"Invented {number}." for number in range(invented)]
    case.embed.fixed |= dict.fromkeys(names, (0.0, 0.0, 1.0))  # at right angles to everything else
    rewards = [
        transition_score(
            case.prior,
            [*case.predicted, *(add(name) for name in names[:count])],
            case.target,
            case.embed,
            RewardOptions(lexical_fidelity=lexical_fidelity, match_overwritten=match_overwritten),
        ).reward
        for count in range(invented + 1)
    ]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[-1] < rewards[0] or rewards[0] == 0.0


@given(seeds, modes)
def test_everything_stays_in_its_range(seed, mode):
    case = random_case(seed)
    score = transition_score(case.prior, case.predicted, case.target, case.embed, RewardOptions(**mode))
    values = [score.reward, score.precision, score.recall, *(pair.score for pair in score.pairs)]
    values += [pair.similarity for pair in score.pairs]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert score.positive_distance >= 0.0 <= score.negative_distance


@given(seeds, st.booleans(), st.booleans())
def test_a_heavier_stale_weight_never_helps_and_leaves_recall_alone(seed, lexical_fidelity, paper_literal):
    case = random_case(seed)
    mode = {"lexical_fidelity": lexical_fidelity, "paper_literal": paper_literal}
    scores = [
        transition_score(case.prior, case.predicted, case.target, case.embed, RewardOptions(stale_weight=weight, **mode))
        for weight in (1.0, 1.5, 2.0, 10.0)
    ]
    assert [score.reward for score in scores] == sorted((score.reward for score in scores), reverse=True)
    assert len({score.recall for score in scores}) == 1
    assert len({score.positive_distance for score in scores}) == 1


@given(seeds, modes)
def test_a_heavier_weight_of_outdated_values_never_helps(seed, mode):
    case = random_case(seed)
    rewards = [
        transition_score(
            case.prior, case.predicted, case.target, case.embed, RewardOptions(**mode | {"outdated_weight": weight})
        ).recall
        for weight in (0.0, 0.5, 1.0, 10.0)
    ]
    assert rewards == sorted(rewards, reverse=True)


@given(seeds, modes)
def test_asking_for_what_is_new_never_helps(seed, mode):
    case = random_case(seed)
    lenient, strict = (
        transition_score(
            case.prior, case.predicted, case.target, case.embed, RewardOptions(**mode | {"weigh_new_keywords": new})
        ).recall
        for new in (False, True)
    )
    assert strict <= lenient + 1e-12


@given(seeds, st.sampled_from([1.0, 3.0]), st.sampled_from([0.0, 1.0]), st.booleans())
def test_the_old_text_once_more_never_helps(seed, stale_weight, outdated_weight, touched):
    """A copy of a memory that is due an update, as it stands or with a word behind it, beside anything else."""
    case = random_case(seed, faithful_keywords=True)
    due = [op for op in case.target if op.event is Event.UPDATE and op.text != case.prior[op.target_memory_id].text]
    options = RewardOptions(
        stale_weight=stale_weight, match_overwritten=False, weigh_new_keywords=True, outdated_weight=outdated_weight
    )
    for op in due:
        old = case.prior[op.target_memory_id].text
        if not any(keyword not in old for keyword in op.keywords):
            continue  # without a new keyword nothing tells the old text from the new
        copy = add(f"{old} still" if touched else old)
        before, after = (
            transition_score(case.prior, predicted, [op], case.embed, options).reward
            for predicted in (case.predicted, [*case.predicted, copy])
        )
        assert after <= before + 1e-12


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.5])
def test_add_for_a_single_due_update_earns_two_over_two_plus_w(weight):
    case = random_case(0)
    prior = apply(type(case.prior)(), [add("Ash birch cedar")], next(iter(random_case(1).prior.memories)).time)
    target = [Operation(Event.UPDATE, "Elm elm elm", "m1", ("elm",))]
    score = transition_score(prior, [add("Elm elm elm")], target, case.embed, RewardOptions(stale_weight=weight))
    assert score.reward == pytest.approx(2 / (2 + weight))

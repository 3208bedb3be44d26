"""Format, retrieval, total, diagnostics and the scorer, from whole trajectories."""

import json
from dataclasses import asdict, replace

import pytest
from reward_cases import TIME, PlaneEmbedder, add, none, random_case, state, update

from deltamem.episode import Episode, EpisodeConfig, Scorer, Search, Trajectory, Violation
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Operation, apply
from deltamem.sessions import LabelledSession, Session
from rewards.diagnostics import COUNTS, count, rates, total_counts
from rewards.reward import RewardOptions, format_score, retrieval_score, score, transition_score
from rewards.scorer import DeltaMemScorer

PRIOR = state({"m1": "Anna lives in Oslo.", "m2": "Anna has a cat.", "m3": "Anna swims."})
TARGET = [update("m1", "Anna lives in Bergen.", "Bergen"), add("Anna paints.", "paints"), none("m2", "Anna has a cat.")]
ACROSS = {"Anna lives in Bergen.": (1, 0, 0), "Anna paints.": (0, 1, 0), "Anna runs.": (0, 0, 1), "anna SWIMS": (0, 0, -1)}
SEARCH = '<think>t</think><tool_call>{"name": "search_memory", "arguments": {"query_list": ["home", "cat"]}}</tool_call>'
ANSWER = (
    '<think>t</think><outputs>{"operations": ['
    '{"event": "UPDATE", "text": "Anna lives in Bergen.", "target_memory_id": "m1"},'
    '{"event": "ADD", "text": "Anna paints."}]}</outputs>'
)


def labelled(target=TARGET, prior=PRIOR):
    session = Session("anna", "Anna", TIME, ())
    return LabelledSession(session, 0, "train", prior, tuple(target), apply(prior, target, TIME))


def trajectory(*operations, **more):
    return Trajectory(messages=(), operations=operations, **more)


def played(*turns, found=("m1", "m2")):
    episode = Episode(labelled().session, PRIOR.keys(), EpisodeConfig())
    for text in turns:
        if isinstance(episode.read(text), Search):
            episode.answer([PRIOR[key] for key in found])
    return episode.trajectory


def counted(*operations, target=TARGET, prior=PRIOR, **more):
    row, done = labelled(target, prior), trajectory(*operations, **more)
    embed = PlaneEmbedder(fixed=ACROSS | {"Anna has a cat.": (0.6, 0.8, 0), "Anna lives in Oslo.": (-1, 0, 0)})
    return count(row, done, transition_score(prior, done.operations, target, embed))


def test_format_is_lost_by_any_violation_and_by_missing_outputs():
    assert format_score(played(SEARCH, ANSWER)) == 1.0
    assert format_score(played(ANSWER.replace("<think>t</think>", ""))) == 0.0
    assert format_score(played(SEARCH)) == 0.0
    assert format_score(trajectory(violations=(Violation.TURN_LIMIT,))) == 0.0


def test_retrieval_needs_every_updated_and_repeated_memory():
    assert retrieval_score(trajectory(retrieved_ids=(("m1",), ("m3", "m2"))), TARGET) == 1.0
    assert retrieval_score(trajectory(retrieved_ids=(("m1", "m3"),)), TARGET) == 0.0
    assert retrieval_score(trajectory(retrieved_ids=(("m2",),)), TARGET) == 0.0
    assert retrieval_score(trajectory(), [add("Anna paints.")]) == 1.0
    letter = RewardOptions(paper_literal=True)  # "in operation update and add": only the memory of the UPDATE exists
    assert retrieval_score(trajectory(retrieved_ids=(("m1", "m3"),)), TARGET, letter) == 1.0
    assert retrieval_score(trajectory(retrieved_ids=(("m2",),)), TARGET, letter) == 0.0


def test_the_parts_are_weighted():
    done = trajectory(add("Anna paints."), retrieved_ids=(("m1", "m2"),), violations=(Violation.BAD_OPERATION,))
    embed = PlaneEmbedder(fixed=ACROSS)
    assert score(done, labelled(), embed).reward == pytest.approx(0.1 + 0.8 * 0.5)
    weighted = score(
        done,
        labelled(),
        embed,
        RewardOptions(format_weight=0.0, retrieval_weight=0.25, transition_weight=0.75, stale_weight=3.0),
    )
    assert weighted.transition.precision == pytest.approx(1 / 4)
    assert weighted.reward == pytest.approx(0.25 + 0.75 * 2 * 0.25 * 0.5 / 0.75)


def test_a_flawless_episode_earns_one_and_a_failed_one_zero_everywhere_and_counts_only_as_failure():
    done = played(SEARCH, ANSWER)
    total = score(done, labelled(), PlaneEmbedder())
    assert (total.reward, total.format, total.retrieval, total.transition.reward) == (1.0, 1.0, 1.0, 1.0)
    done = replace(done, failure="the engine died")
    total = score(done, labelled(), PlaneEmbedder())
    assert (total.reward, total.format, total.retrieval, total.transition.reward) == (0.0, 0.0, 0.0, 0.0)
    figures, _ = DeltaMemScorer()(labelled(), done, PlaneEmbedder())
    assert {name for name, value in figures.items() if value} == {
        "positive_distance",
        "negative_distance",
        "count/episodes",
        "count/failures",
    }
    idle = replace(trajectory(), failure="the engine died")
    assert score(idle, labelled([none("m2")]), PlaneEmbedder()).reward == 0.0


@pytest.mark.parametrize("weights", [(0.5, 0.5, 0.5), (-0.1, 0.3, 0.8), (float("nan"), 0.5, 0.5)])
def test_weights_must_add_up_to_one(weights):
    with pytest.raises(DeltaMemError, match="must add up to 1"):
        RewardOptions(format_weight=weights[0], retrieval_weight=weights[1], transition_weight=weights[2])


def test_counts_of_a_right_answer():
    counts = counted(
        update("m1", "Anna lives in Bergen."),
        add("Anna paints."),
        none("m2", "whatever"),
        queries=(("home", "cat"), ("hobby",)),
    )
    expected = {
        "episodes": 1,
        "target_operations": 3,
        "predicted_operations": 3,
        "queries": 3,
        "due_sessions": 1,
        "due_updates": 1,
        "right_target_updates": 1,
        "matched_updates": 1,
        "predicted_updates": 1,
        "target_adds": 1,
        "matched_adds": 1,
        "predicted_adds": 1,
        "due_nones": 1,
        "predicted_nones": 1,
        "right_nones": 1,
    }
    assert {name: value for name, value in counts.items() if value} == expected


def test_counts_tell_add_for_update_from_a_wrong_target():
    added = counted(add("Anna lives in Bergen."))
    assert (added["add_for_update"], added["right_target_updates"], added["matched_adds"]) == (1, 0, 0)
    beside = counted(add("Anna lives in Bergen."), update("m1", "Anna runs."))
    assert (beside["add_for_update"], beside["right_target_updates"], beside["matched_updates"]) == (0, 1, 0)
    wrong = counted(update("m3", "Anna lives in Bergen."))
    assert (wrong["wrong_target_updates"], wrong["right_target_updates"], wrong["predicted_updates"]) == (1, 0, 1)
    # Writing the old text again is not an update.
    idle = counted(update("m1", "Anna lives in Oslo."))
    assert (idle["right_target_updates"], idle["wrong_target_updates"], idle["predicted_updates"]) == (0, 0, 1)


def test_counts_of_sessions_left_alone():
    named, ran = none("m2", "Anna has a cat."), add("Anna runs.")
    answers = ((), (named,), (ran,), (update("m1", "Anna runs."),))
    idle = [counted(*answer, target=(named,)) for answer in answers]
    assert [one["idle_left_alone"] for one in idle] == [1, 1, 0, 0]
    due = [counted(*answer) for answer in answers]
    assert [one["due_left_alone"] for one in due] == [1, 1, 0, 0]
    assert {(one["idle_sessions"], one["due_sessions"]) for one in idle} == {(1, 0)}
    assert {(one["idle_sessions"], one["due_sessions"]) for one in due} == {(0, 1)}
    unreadable = Trajectory(messages=(), operations=None, violations=(Violation.BAD_JSON,))
    nothing = transition_score(PRIOR, None, (named,), PlaneEmbedder())
    counts = count(labelled((named,)), unreadable, nothing)
    assert (counts["idle_sessions"], counts["idle_left_alone"]) == (1, 0), "saying nothing that can be read is no silence"
    shares = rates(total_counts([*idle, *due, counts]))
    assert (shares["idle_left_alone_rate"], shares["due_left_alone_rate"]) == (2 / 5, 2 / 4)


def test_counts_of_duplicates_and_restored_overwrites():
    counts = counted(add("anna SWIMS"), add("Anna runs."), add("Anna runs"), add("Anna paints."), add("Anna has a cat. "))
    assert (counts["duplicate_adds"], counts["predicted_adds"]) == (3, 5)
    restored = counted(update("m2", "Anna runs."), add("Anna has a cat."))
    assert restored["restored_overwrites"] == 1


def test_counts_of_outdated_values_that_are_written_all_the_same():
    target = [
        Operation(Event.UPDATE, "Anna lives in Bergen since 14 May.", "m1", ("Bergen",), ("Oslo", "4 May")),
        Operation(Event.ADD, "Anna's sister lives in Rome.", None, ("Rome",), ("Bergen",)),
    ]

    def outdated(*operations):
        done = trajectory(*operations)
        counts = count(labelled(target), done, transition_score(PRIOR, operations, target, PlaneEmbedder()))
        return counts["outdated_values"], counts["said_outdated"]

    # Bergen is wrong of the sister, but right of Anna; 4 May does not stand in 14 May.
    assert outdated(update("m1", "Anna lives in Bergen since 14 May.")) == (2, 0)
    assert outdated(update("m1", "Anna moved from OSLO to Bergen."), add("She came on 4 May.")) == (2, 2)
    assert outdated(none("m1", "Anna lives in Oslo.")) == (2, 0)


def test_counts_of_violations_and_unreadable_outputs():
    done = Trajectory(messages=(), operations=None, violations=(Violation.BAD_JSON, Violation.MISSING_THINK))
    assert score(replace(done, retrieved_ids=(("m1", "m2"),)), labelled(), PlaneEmbedder()).reward == pytest.approx(0.1)
    counts = count(labelled(), done, transition_score(PRIOR, None, TARGET, PlaneEmbedder()))
    assert counts["unreadable"] == counts["violations/bad_json"] == counts["violations/missing_think"] == 1
    assert counts["violations/no_action"] == counts["predicted_operations"] == 0
    assert counts["due_updates"] == 1  # an unreadable answer misses what was due


def test_rates_come_from_summed_counts():
    answers = [
        (update("m1", "Anna lives in Bergen."), add("Anna paints.")),
        (add("Anna lives in Bergen."), add("Anna paints.")),
        (update("m3", "Anna runs."),),
    ]
    summed = total_counts(counted(*answer, queries=(("a",),)) for answer in answers)
    failed = count(labelled(), Trajectory((), failure="x"), transition_score(PRIOR, None, TARGET, PlaneEmbedder()))
    summed = total_counts([summed, failed])
    values = rates(summed)
    assert values["update_recall"] == pytest.approx(1 / 3)
    assert values["update_precision"] == values["wrong_target_rate"] == 1 / 2
    assert values["add_for_update_rate"] == pytest.approx(1 / 3)
    assert values["add_recall"] == values["add_precision"] == pytest.approx(2 / 3)
    assert values["queries_per_memory"] == pytest.approx(3 / 9)
    assert values["queries_per_episode"] == 1.0
    assert values["none_recall"] == 0.0
    assert values["none_precision"] is None
    assert values["failure_rate"] == 1 / 4
    assert values["violations_per_episode/bad_json"] == 0.0
    means = {name: value / 4 for name, value in summed.items()}
    assert rates(means) == pytest.approx(values)


def test_counts_always_have_the_same_keys_and_never_exceed_their_denominators():
    keys = set(COUNTS) | {f"violations/{kind}" for kind in Violation}
    for seed in range(200):
        case = random_case(seed)
        done = trajectory(*case.predicted)
        counts = count(
            labelled(case.target, case.prior),
            done,
            transition_score(case.prior, done.operations, case.target, case.embed),
        )
        assert set(counts) == keys
        assert counts["matched_updates"] <= counts["right_target_updates"] <= counts["due_updates"]
        assert counts["matched_updates"] + counts["add_for_update"] <= counts["due_updates"]
        assert counts["matched_adds"] <= min(counts["target_adds"], counts["predicted_adds"])
        assert counts["right_nones"] <= counts["due_nones"]


def test_the_scorer_returns_flat_floats_and_fits_the_protocol():
    scorer: Scorer = DeltaMemScorer(stale_weight=2.0, lexical_fidelity=False)
    figures, total = scorer(labelled(), trajectory(add("Anna paints.")), PlaneEmbedder(fixed=ACROSS))
    names = ["reward", "format", "retrieval", "transition", "precision", "recall", "positive_distance"]
    assert list(figures)[:8] == [*names, "negative_distance"]
    assert all(type(value) is float for value in figures.values())
    assert figures["precision"] == pytest.approx(1 / 3)
    assert figures["reward"] == pytest.approx(0.1 + 0.8 * figures["transition"])
    assert figures["count/predicted_adds"] == 1.0
    assert json.loads(json.dumps(asdict(total)))["reward"] == figures["reward"]


def test_hydra_makes_the_scorer_which_checks_its_settings():
    from hydra.utils import instantiate

    made = instantiate({"_target_": "rewards.scorer.DeltaMemScorer", "tau": 0.5, "paper_literal": True})
    assert isinstance(made, DeltaMemScorer)
    with pytest.raises(DeltaMemError, match="tau"):
        DeltaMemScorer(tau=1.5)

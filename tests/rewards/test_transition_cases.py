"""Single cases of the transition reward, each with its expected figure worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from reward_cases import PlaneEmbedder, add, none, state, update

from deltamem.errors import DeltaMemError
from rewards.fidelity import keyword_coverage
from rewards.reward import EntryOrigin, PairKind, RewardOptions, transition_score

PRIOR = state({"m1": "Anna lives in Oslo.", "m2": "Anna has a cat.", "m3": "Anna swims."})


def scored(predicted, target, embed, **options):
    return transition_score(PRIOR, predicted, target, embed, RewardOptions(**options))


def unit(degrees):
    return (float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees))))


def test_update_on_the_right_memory_in_other_words_is_scored_by_its_keywords():
    embed = PlaneEmbedder(fixed={"Anna moved to Bergen.": unit(0), "Anna lives in Bergen with Ole.": unit(20)})
    target = [update("m1", "Anna lives in Bergen with Ole.", "Bergen", "Ole")]
    score = scored([update("m1", "Anna moved to Bergen.")], target, embed)
    assert score.reward == score.precision == score.recall == 0.5
    assert score.pairs[0].kind is PairKind.MATCHED
    assert score.pairs[0].similarity == pytest.approx(np.cos(np.radians(20)))
    by_similarity = scored([update("m1", "Anna moved to Bergen.")], target, embed, lexical_fidelity=False)
    assert by_similarity.reward == pytest.approx(np.cos(np.radians(20)))
    assert scored([update("m1", "Anna moved to Bergen.")], target, embed, tau=0.95).reward == 0.0


def test_agreed_updates_count_in_numerator_and_denominators_unless_paper_literal():
    embed = PlaneEmbedder(fixed={"Anna runs.": unit(0), "Anna paints.": unit(90)})
    target = [update("m1", "Anna lives in Bergen.", "bergen"), add("Anna paints.", "paints")]
    predicted = [update("m1", "Anna lives in Bergen."), add("Anna runs.")]
    score = scored(predicted, target, embed)
    assert (score.precision, score.recall, score.reward) == (0.5, 0.5, 0.5)
    assert [pair.kind for pair in score.pairs] == [PairKind.AGREED_UPDATE]
    assert scored(predicted, target, embed, paper_literal=True).reward == 0.0
    assert scored(predicted[:1], target[:1], embed).reward == 1.0
    assert scored(predicted[:1], target[:1], embed, paper_literal=True).reward == 0.0


def test_stale_entries_cannot_be_matched_unless_paper_literal():
    embed = PlaneEmbedder(fixed={"Anna has a cat.": unit(0), "Anna has a black cat.": unit(10), "Anna paints.": unit(90)})
    target = [update("m2", "Anna has a black cat.", "cat"), add("Anna paints.", "paints")]
    score = scored([add("Anna paints.")], target, embed)
    assert score.reward == 0.5
    assert [(entry.id, entry.origin) for entry in score.unmatched_predicted] == [("m2", EntryOrigin.STALE)]
    assert scored([add("Anna paints.")], target, embed, paper_literal=True).reward == 1.0
    assert scored([add("Anna paints.")], target, embed, stale_weight=3.0).precision == 0.25


@pytest.mark.parametrize(
    ("predicted", "target", "reward"),
    [
        ([], [update("m1", "Anna lives in Bergen.", "Anna", "Bergen", "Norway")], 1 / 3),
        ([], [update("m1", "Anna lives in Bergen.", "Anna", "Bergen", "Norway"), add("Anna paints.", "paints")], 2 / 9),
        ([update("m3", "Junk."), add("Anna swims.")], [], 2 * 0.5 / 1.5),  # the target's text without keywords: similarity 1
        ([add("Anna paints.")], [], 0.0),
        ([], [add("Anna paints.", "paints")], 0.0),
        ([], [], 0.0),
    ],
)
def test_to_the_letter_of_the_paper_a_state_that_did_not_change_is_no_case_of_its_own(predicted, target, reward):
    embed = PlaneEmbedder(
        fixed={"Anna lives in Oslo.": unit(0), "Anna lives in Bergen.": unit(10), "Anna paints.": unit(90)}
        | {"Anna swims.": (0, 0, 1), "Junk.": (0, 0, -1)}
    )
    assert scored(predicted, target, embed, paper_literal=True).reward == pytest.approx(reward)
    assert scored(predicted, target, embed).reward == (0.0 if predicted or target else 1.0)


def test_an_update_that_says_nothing_new_is_worth_what_it_keeps_or_nothing():
    embed = PlaneEmbedder(fixed={"Anna lives in Oslo now.": unit(10), "Anna lives in Bergen.": unit(0)})
    target = [update("m1", "Anna lives in Bergen.", "Anna", "lives in", "Bergen")]
    new = {"weigh_new_keywords": True, "stale_weight": 3.0}
    touched, due = update("m1", "Anna lives in Oslo now."), add("Anna lives in Bergen.")
    assert scored([touched], target, embed).reward == pytest.approx(2 / 3)
    assert scored([touched], target, embed, **new).reward == 0.0
    # Beside the new text as ADD it is no better than the memory left alone.
    alone = scored([due], target, embed, **new)
    assert alone.reward == pytest.approx(2 / 5)
    assert scored([touched, due], target, embed, **new).reward == alone.reward
    # A keyword one of whose alternatives the old text has is not new, whichever of them the label says.
    either = [update("m1", "Anna lives in Bergen.", "Anna", ("is at home in", "lives in"), ("Norway", "Bergen"))]
    assert scored([touched], either, embed).reward == pytest.approx(2 / 3)
    assert scored([touched], either, embed, **new).reward == 0.0
    # An ADD that replaces nothing has no old text: all its keywords are new.
    assert scored([due], [add("Anna lives in Bergen.", "Anna", "Bergen")], embed, **new).reward == 1.0


def test_the_text_of_a_due_memory_may_be_compared_with_its_own_target_alone():
    target = [
        update("m1", "Anna lives in Bergen.", "Bergen"),
        update("m2", "Anna has a dog.", "dog"),
        add("Anna runs.", "runs"),
    ]
    embed = PlaneEmbedder(fixed={"Anna lives in Bergen.": (1, 0, 0), "Anna has a dog.": (0, 1, 0), "Anna runs.": (0, 0, 1)})
    own = {"match_other_targets": False}
    swapped = [update("m1", "Anna has a dog."), update("m2", "Anna lives in Bergen."), add("Anna runs.")]
    assert scored(swapped, target, embed).reward == 1.0
    assert scored(swapped, target, embed, **own).reward == pytest.approx(1 / 3)
    onto_a_due_one = [update("m1", "Anna runs.")]
    assert scored(onto_a_due_one, target, embed).reward == pytest.approx(2 / (2 + 3))
    assert scored(onto_a_due_one, target, embed, **own).reward == 0.0
    added = [add("Anna has a dog.")]  # a new memory may still stand for any target
    assert scored(added, target, embed, **own) == scored(added, target, embed)


def test_outdated_values_in_a_text_cost_by_their_number_as_whole_words():
    texts = (
        "Anna moved from OSLO to Bergen on 14 May.",
        "Not Oslo, not 4 May: Bergen.",
        "Anna lives in Bergen since 14 May.",
    )
    embed = PlaneEmbedder(fixed={text: unit(0) for text in texts})
    target = [replace(update("m1", texts[2], "Bergen"), outdated=("Oslo", "4 May", "14 May", " "))]
    for text, weight, reward in (
        (texts[0], 0.0, 1.0),
        (texts[0], 1.0, 1 / 2),
        (texts[1], 1.0, 1 / 3),
        (texts[1], 0.5, 1 / 2),
        (texts[2], 1.0, 1.0),  # what the target says itself is not outdated
    ):
        assert scored([update("m1", text)], target, embed, outdated_weight=weight).reward == pytest.approx(reward)


def test_old_text_added_again_after_overwriting_is_the_known_hole_and_can_be_closed():
    embed = PlaneEmbedder(
        fixed={"Anna swims.": (1, 0, 0), "Anna paints.": (0, 1, 0), "Junk.": (0, 0, 1), "Anna lives in Oslo.": (0, 0, -1)}
    )
    target = [add("Anna paints.", "paints")]
    predicted = [update("m3", "Junk."), add("Anna swims.")]
    assert scored(predicted, target, embed).reward == 0.5
    assert scored(predicted, target, embed, match_overwritten=False).reward == 0.0


def test_targets_without_keywords_and_equal_texts():
    def blurred(texts):
        return np.full((len(texts), 4), 0.49999, dtype=np.float32)

    score = transition_score(state({}), [add("A fact.")], [add("A fact.")], blurred)
    assert score.reward == score.pairs[0].similarity == 1.0  # rounding of the embedder costs nothing


@pytest.mark.parametrize("target", [[update("m9", "x")], [add("x"), add("x")], [update("m1", "a"), update("m1", "b")]])
def test_target_operations_must_fit(target):
    with pytest.raises(DeltaMemError, match="target operations"):
        scored([], target, PlaneEmbedder())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tau", -0.1),
        ("tau", 1.1),
        ("tau", float("nan")),
        ("stale_weight", 0.9),
        ("stale_weight", float("inf")),
        ("outdated_weight", -0.1),
        ("outdated_weight", float("nan")),
    ],
)
def test_options_out_of_range(option, value):
    with pytest.raises(DeltaMemError, match=option):
        RewardOptions(**{option: value})


def test_one_call_of_the_embedder_with_distinct_texts_of_what_can_be_matched():
    embed = PlaneEmbedder()
    predicted = [add("X."), update("m1", "X."), update("m2", "unexpected")]
    target = [add("X.", "x"), update("m1", "Y."), update("m3", "Z."), none("m2")]
    scored(predicted, target, embed)
    assert len(embed.calls) == 1
    assert sorted(embed.calls[0]) == ["Anna has a cat.", "X.", "Y.", "Z."]


@pytest.mark.parametrize(
    ("predicted", "target"),
    [
        ([], [add("X.")]),
        ([add("X.")], []),
        (None, [add("X.")]),
        ([update("m1", "X.")], [add("X.")]),
        ([update("m2", "Y.")], [update("m1", "X."), update("m2", "Y.")]),
        ([none("m1", "other words")], [none("m1")]),
    ],
)
def test_the_embedder_is_not_called_where_nothing_can_be_matched(predicted, target):
    embed = PlaneEmbedder()
    scored(predicted, target, embed)
    assert embed.calls == []


@pytest.mark.parametrize(
    ("text", "keywords", "coverage"),
    [
        ("Anna  moved to\nNew York.", ("new york", "ANNA"), 1.0),
        ("Straße in Bonn", ("STRASSE", "Köln"), 0.5),
        ("anything", (), None),
        ("anything", (" ", ""), None),
        ("tea", ("Tea", "tea", "milk"), 0.5),
        ("She was hurt and  upset.", (("sad", "UPSET"), ("hurt", "upset"), "angry", ("cross", "mad")), 0.5),
        ("tea", (("Tea", "milk"), ("milk", "tea "), ("tea",), "tea", ("milk", ""), (" ", "")), 2 / 3),
    ],
)
def test_keyword_coverage(text, keywords, coverage):
    assert keyword_coverage(text, keywords) == coverage


def test_tau_zero_allows_all_pairs_that_do_not_point_away_from_each_other():
    embed = PlaneEmbedder(fixed={"A": (1, 0, 0), "near": (0.1, 0, 1), "across": (0, 1, 0), "away": (-0.1, 1, 0)})
    target = [add("A", "a")]
    for text, similarity in (("near", 0.1), ("across", 0.0)):
        score = transition_score(state({}), [add(text)], target, embed, RewardOptions(tau=0.0))
        assert [pair.similarity for pair in score.pairs] == [pytest.approx(similarity)]
        assert score.reward == 1.0, "by its keyword"
        by_similarity = transition_score(
            state({}), [add(text)], target, embed, RewardOptions(tau=0.0, lexical_fidelity=False)
        )
        assert by_similarity.reward == pytest.approx(similarity)
        assert not transition_score(state({}), [add(text)], target, embed, RewardOptions(tau=0.11)).pairs
    assert not transition_score(state({}), [add("away")], target, embed, RewardOptions(tau=0.0)).pairs

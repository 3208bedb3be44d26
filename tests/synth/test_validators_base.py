import numpy as np
import pytest

from synth.validators.base import EmbedderSimilarity


class Letters:
    """Counts of letters as vectors, on purpose not of unit length."""

    name = "letters"

    def __init__(self):
        self.calls = []

    def documents(self, texts):
        self.calls.append(list(texts))
        return np.asarray([[text.count(letter) for letter in "abcdefghij"] for text in texts], dtype=np.float32)

    def queries(self, texts):
        raise AssertionError("neither side is a query")


def test_a_row_a_text_with_the_cosine_to_each_other_text():
    rows = EmbedderSimilarity(Letters()).between(["aa", "ab"], ["a", "b", "bbbb"])
    assert rows == [
        pytest.approx([1, 0, 0]),
        pytest.approx([0.5**0.5, 0.5**0.5, 0.5**0.5]),
    ]
    assert all(type(value) is float for row in rows for value in row)


def test_both_sides_are_embedded_in_one_call():
    embedder = Letters()
    EmbedderSimilarity(embedder).between(["a"], ["b", "c"])
    assert embedder.calls == [["a", "b", "c"]]


def test_rounding_never_leaves_the_range():
    values = EmbedderSimilarity(Letters()).between(["abc" * 7, "abcdefghij"], ["abc", "abcdefghij"])
    assert all(-1 <= value <= 1 for row in values for value in row)


def test_a_text_without_a_direction_is_similar_to_nothing():
    assert EmbedderSimilarity(Letters()).between(["xyz", "a"], ["a", "xyz"]) == [[0, 0], [pytest.approx(1), 0]]


@pytest.mark.parametrize(("texts", "others", "rows"), [([], ["a"], []), (["a", "b"], [], [[], []]), ([], [], [])])
def test_nothing_is_embedded_for_no_comparison(texts, others, rows):
    embedder = Letters()
    assert EmbedderSimilarity(embedder).between(texts, others) == rows
    assert embedder.calls == []

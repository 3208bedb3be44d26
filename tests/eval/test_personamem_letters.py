"""Which letter an answer names: hand-made cases for the newest rule of the benchmark."""

import pytest

from eval.personamem.scores import chosen_letters, is_correct


@pytest.mark.parametrize(
    ("text", "letters", "right"),
    [
        ("<final_answer> (c)", "c", True),
        ("<final_answer>(c)</final_answer>", "c", True),
        ("<final_answer>c</final_answer>\n", "c", True),
        ("(c)</final_answer>", "c", True),
        ("  (C) ", "c", True),
        ("C", "c", True),
        ("Option c.", "c", True),
        ("I weigh (a), (b) and (d). <final_answer>(c)", "c", True),
        ("<final_answer>(a)</final_answer> No: <final_answer>(c)</final_answer>", "c", True),
        # Letters in parentheses count before letters that stand alone: here the article does no harm ...
        ("It is a clear case: (c)", "c", True),
        # ... and here it does.
        ("It is a clear case: c", "ac", False),
        ("<final_answer> a good fit is c", "ac", False),
        ("A dog would suit you.", "a", False),
        # Two letters are never right, whichever they are.
        ("(c) or (d)", "cd", False),
        ("<final_answer>(c) or (a)</final_answer>", "ac", False),
        # The same letter twice is one.
        ("(c), that is (c)", "c", True),
        # The whole answer is looked at again if what follows the tag is not right.
        ("(c) <final_answer>", "", True),
        ("(c) <final_answer> as above", "", True),
        ("(b) <final_answer>(c)", "c", True),
        ("(c) <final_answer>(b)", "b", False),
        # The tag is looked for as it is written; the letter is found all the same.
        ("<FINAL_ANSWER>(c)", "c", True),
        ("<final_answer>(c)</final_answer> Have fun!", "c", True),
        ("", "", False),
        ("I cannot tell.", "", False),
        ("(e)", "", False),
        ("abcd", "", False),
        ("c'est la vie", "c", True),
        ("<final_answer>**(c)**", "c", True),
        ("(c", "c", True),
    ],
)
def test_letters(text: str, letters: str, right: bool) -> None:
    assert chosen_letters(text) == frozenset(letters)
    assert is_correct(text, "c") is right
    assert is_correct(text, "(c)") is right


def test_an_article_can_be_right() -> None:
    assert is_correct("A dog would suit you.", "a")  # a trap of the rule, kept as it is

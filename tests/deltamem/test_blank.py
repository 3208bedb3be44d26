"""What counts as blank, in Python as in the description of the server."""

import re

import pytest
from jsonschema import Draft202012Validator

from deltamem.blank import SEEN, is_blank
from deltamem.errors import DeltaMemError
from deltamem.filters import check_queries

INVISIBLE = (
    *(
        "",
        " ",
        "\n\t \r\x0b\x0c\x1c\x1f\x85",
        "\u00a0\u2003\u3000\u1680\u202f",
        "\u200b\u200c\u200d\u2060\ufeff",
        "\u00ad\u180e",
    ),
    *(
        "\u2028\u2029\u202e\u2066\u2069",
        "\u115f\u1160\u3164\uffa0",
        "\u2800",
        "\ufe0f\u034f\u061c",
        "\x00\x7f\x9f",
        " \u200b \n",
    ),
)
VISIBLE = (
    *("a", "?", "0", "-", "\u200bx\u200b", "\u4eba", "\u0627\u064b", "\u0915\u094d\u200d", "\ue000"),
    *("\U0001f6a4", "\U0001f468\u200d\U0001f33e"),
)


@pytest.mark.parametrize("text", INVISIBLE)
def test_what_nobody_can_see_is_blank(text: str) -> None:
    assert is_blank(text) and not Draft202012Validator({"pattern": SEEN}).is_valid(text)
    with pytest.raises(DeltaMemError, match="the query is blank; say what to look for"):
        check_queries(["tea", text])


@pytest.mark.parametrize("text", VISIBLE)
def test_what_can_be_seen_is_not(text: str) -> None:
    assert not is_blank(text) and Draft202012Validator({"pattern": SEEN}).is_valid(text)
    check_queries([text, f"\u200b{text}"])


def test_characters_that_no_expression_of_javascript_can_name() -> None:
    assert is_blank("\U000e0001\U000e0061\U000e0100\U0001d173") and not re.search(r"\\U", SEEN)

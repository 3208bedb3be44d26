"""Word forms, stems, salient items, and the source turns of a memory text."""

# ruff: noqa: RUF001 - typographic marks are what is read here

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamem.sessions import Turn
from deltamem.text import (
    Item,
    Kind,
    SourceFinder,
    contains,
    content_stems,
    content_words,
    negations,
    normalised,
    salient,
    salient_items,
    stem,
    words,
)


@pytest.mark.parametrize(
    "text",
    [
        "Ana lives in Rome.",
        "  ana LIVES\n in\trome",
        '"Ana lives in Rome!"',
        "(Ana lives in Rome…)",
        "\uff21na lives in Rome",
    ],
)
def test_equal_texts_have_one_normal_form(text: str) -> None:
    assert normalised(text) == "ana lives in rome"


def test_different_facts_have_different_normal_forms() -> None:
    assert normalised("Ana owes 3.5 euros.") != normalised("Ana owes 35 euros.")
    assert normalised("?") != normalised("!")
    assert normalised("") == normalised(" \n") == ""


@pytest.mark.parametrize("mark", [chr(code) for code in range(ord("!"), 0x7F)])
def test_only_marks_that_end_sentences_and_quotes_fold_in_ascii_and_beyond(mark: str) -> None:
    around = "" if mark in "\"'" else mark.lower()
    behind = "" if mark in ".!,:;" else around
    for text in ("1", "é"):
        assert normalised(f"{mark}{text}{mark}") == f"{around}{text}{behind}"
        assert normalised(f"x{text}{mark}") == f"x{text}{mark.lower() if around == '' else behind}"  # A lone quote stays


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('Ana calls it "home."', 'ana calls it "home"'),
        ("Ana calls it ‘home’.", "ana calls it 'home'"),
        ("Ana asks “why?”.", 'ana asks "why?"'),
        ("Really?!", "really?"),
        ("Ana's key is '.'", "ana's key is '.'"),
        ("Ana separates by ;", "ana separates by ;"),
        ("The folder is ..", "the folder is .."),
        ("¡Ana vive en Roma!", "ana vive en roma"),
        ("...and Ana runs…", "and ana runs"),
        ("Ana codes in C#.", "ana codes in c#"),
        ("They moved us to the US.", "they moved us to the US"),
        ("THEY MOVED US TO THE US.", "they moved us to the us"),
        ("Κώστας ΟΔΟΣ", "κώστας οδος"),
    ],
)
def test_what_ends_a_sentence_is_told_from_what_it_says(text: str, key: str) -> None:
    assert normalised(text) == key


@pytest.mark.parametrize(
    ("text", "part", "there"),
    [
        ("I know: Ana runs. Fine.", "ana runs", True),
        ('I know: "Ana runs", fine.', "ana runs", True),
        ("**Ana runs** and <b>Ana swims</b>", "ana runs", True),
        ("<b>Ana runs</b>", "ana runs", True),
        ("- Ana runs-in", "ana runs", False),
        ("Susana runs.", "ana runs", False),
        ("Ana runs. Susana runs. Ana runs!", "ana runs", True),
        ("我知道安娜喜欢茶对吗", "安娜喜欢茶", True),
        ("安娜喜欢茶（绿茶），对吗", "安娜喜欢茶", True),
        ("", "", False),
    ],
)
def test_a_text_is_found_in_another_one_but_not_as_a_piece_of_words(text: str, part: str, there: bool) -> None:
    assert contains(normalised(text), part) == there


def test_content_words_drop_grammar_and_keep_negations_and_numbers() -> None:
    text = "Ana's dog isn't 3,000 grams but 4.5 kg, since 2026/04/05; she will NEVER sell it."
    assert " ".join(content_words(text)) == "ana dog isn't 3,000 grams 4.5 kg since 2026/04/05 never sell"


@pytest.mark.parametrize(
    "text", ["我在北京工作", "東京に住んでいます", "ฉันอยู่กรุงเทพ", "나는 서울에 산다", "मैं हिन्दी बोलता हूँ", "Я живу в Москве"]
)
def test_other_scripts_have_content_words(text: str) -> None:
    assert len(content_words(text)) >= 2
    assert "".join(words(text)).count("\u094d") == text.count("\u094d")  # combining marks stay in their word
    assert "北京" in content_stems("我在北京工作") & content_stems("安娜住在北京。")


@pytest.mark.parametrize(
    "forms",
    ["work works worked working", "live lives lived living", "study studies studied studying", "run runs running",
     "teach teaches teaching", "class classes", "3,000 3000", "5 5th five", "goes go"],
)  # fmt: skip
def test_forms_of_a_word_meet(forms: str) -> None:
    assert len({stem(word) for word in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["sing song", "bus busy", "1,500 15", "4.5 45", "king ring", "red reading", "3,50 350"])
def test_different_words_do_not_meet(pair: str) -> None:
    first, second = pair.split()
    assert stem(first) != stem(second)


@pytest.mark.parametrize(
    "date", ["2026/04/05", "2026-4-5", "April 5, 2026", "5 April 2026", "5th of April 2026", "Apr. 5th, 2026", "2026.04.05"]
)
def test_spellings_of_a_date_are_one_item(date: str) -> None:
    assert salient_items(f"Ana moved on {date} at last.") == (Item(Kind.DATE, "2026-04-05"),)


def test_salient_items_are_numbers_dates_and_names_in_order() -> None:
    text = "Ana paid 1,200 euros to Tom Miller in New York on Monday. Later she left in May 2027 with two cats."
    assert salient_items(text) == (
        Item(Kind.NUMBER, "1200"),
        Item(Kind.NAME, "tom miller"),
        Item(Kind.NAME, "new york"),
        Item(Kind.DATE, "monday"),
        Item(Kind.DATE, "2027-05"),
        Item(Kind.NUMBER, "2"),
    )
    assert salient('Ana runs. Swimming bores her. "Running is fun!" She may stop.') == frozenset()  # no names
    assert salient(text) == {"1200", "tom", "miller", "new", "york", "monday", "2027-05", "2"}


def test_negations_are_found() -> None:
    assert negations("Ana doesn't eat meat") == negations("Ana cannot eat meat") == {"not"}
    assert negations("Ana never eats meat") == {"never"}
    assert negations("Ana eats notable knots") == frozenset()
    assert negations("安娜不喜欢茶") == {"不"}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)
    assert (
        normalised(unicodedata.normalize("NFC", text)) == normalised(unicodedata.normalize("NFD", text)) == normalised(text)
    )
    assert contains(normalised(f"a {text} b"), normalised(text)) or not normalised(text).isalnum()
    assert all(words(text))
    assert "" not in content_stems(text)
    assert all(item.text for item in salient_items(text))
    assert negations(text) <= negations(text + " not")


def dialogue(*contents: str) -> list[Turn]:
    """Turns by turns: user, assistant, user, ..."""
    return [Turn("assistant" if number % 2 else "user", content) for number, content in enumerate(contents)]


MOVE = dialogue(
    "Hi there, how are you?",
    "Fine! What is new?",
    "I finally moved from Boston to Denver, and I work at Oakwood Clinic now.",
    "Denver is lovely. Are you settling in?",
    "Yes! My sister Clara is visiting, she turned 34 on Monday.",
    "Happy birthday to Clara!",
)


@pytest.mark.parametrize(
    ("text", "before", "expected"),
    [
        ("Ana lives in Denver.", "Ana lives in Boston.", (3,)),
        ("Ana works at Oakwood Clinic.", "", (3,)),
        ("Ana has a sister Clara who is 34.", "", (5,)),
        ("Ana moved to Denver, where her sister Clara visits her.", "", (3, 5)),
        ("Ana plays the cello in an orchestra.", "", ()),
        ("Ana.", "", ()),
        ("", "", ()),
    ],
)
def test_turns_that_say_it(text: str, before: str, expected: tuple[int, ...]) -> None:
    assert SourceFinder(MOVE, "Ana").turns(text, before) == expected


def test_only_new_words_count_unless_none_is_new() -> None:
    turns = dialogue("I have a dog.", "And his name?", "Rex.", "Good name for a dog.")
    assert SourceFinder(turns, "Ana").turns("Ana has a dog called Rex.", "Ana has a dog.") == (3,)
    assert 1 in SourceFinder(turns, "Ana").turns("Ana has a dog.", "Ana has a dog.")


def test_user_goes_before_an_echoing_assistant_who_alone_can_be_the_source() -> None:
    turns = [Turn("assistant", "So you play the cello?"), Turn("user", "I play the cello."), Turn("assistant", "Cello!")]
    assert SourceFinder(turns, "Ana").turns("Ana plays the cello.", "") == (2,)
    turns = dialogue("Where do I live again?", "You told me that you live in Boston with Tom.")
    assert SourceFinder(turns, "Ana").turns("Ana lives in Boston with Tom.", "") == (2,)


def test_name_of_the_person_does_not_count_in_any_script() -> None:
    turns = dialogue("Ana Lopez speaking, hello!", "Hello Ana.", "I bake bread.")
    assert SourceFinder(turns, "Ana Lopez").turns("Ana Lopez bakes bread.", "") == (3,)
    turns = dialogue("你好", "你好!", "我上个月搬到了北京。")
    assert SourceFinder(turns, "安娜").turns("安娜住在北京。", "") == (3,)


def test_limit_keeps_the_turns_that_cover_most() -> None:
    turns = dialogue("red", "ok", "green blue", "ok", "yellow violet", "ok", "brown")
    text = "red green blue yellow violet brown"
    assert SourceFinder(turns, "Ana").turns(text, "") == (1, 3, 5)
    assert SourceFinder(turns, "Ana").turns(text, "", limit=2) == (3, 5)


@given(st.text(), st.text(), st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text())), st.integers(0, 4))
def test_numbers_are_turns(text: str, before: str, spoken: list, limit: int) -> None:
    turns = [Turn(*turn) for turn in spoken]
    found = SourceFinder(turns, "Ana").turns(text, before, limit=limit)
    assert list(found) == sorted(set(found)) and len(found) <= limit
    assert all(1 <= number <= len(turns) for number in found)

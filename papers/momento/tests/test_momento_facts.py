"""What the scripted agent understands of remembered texts, whatever wrote them, and what it does not guess."""

from __future__ import annotations

import pytest

from papers.momento.facts import FactReader
from papers.momento.mini import FORMS, mini_catalogue, mini_tasks

READER = FactReader(mini_catalogue())

USUAL = {"place": "Copper Oven"}
PROVIDER = {"dish": "Larb Salad", "place": "Copper Oven"}
PARTY = {"place": "Copper Oven", "date": "2026-03-20", "time": "19:30"}
TIME = {"place": "Copper Oven"}
OCCASION = {"occasion": "our first date", "date": "2026-03-20"}
FAVOURITE = {"who": "my aunt", "place": "Copper Oven"}
SOUP = {"dish": "Tom Kha Soup", "count": "3"}
GOLD = {"tier": "gold", "end": "2027-03-02"}

ASKED = {
    "usual": USUAL,
    "provider": PROVIDER,
    "party": PARTY,
    "time": TIME,
    "occasion": OCCASION,
    "tier": {},
    "favourite": FAVOURITE,
}


def known(topic: str, *memory: str) -> dict[str, str] | None:
    return READER.known(topic, ASKED[topic], memory)


@pytest.mark.parametrize(
    "text",
    [
        "My usual at Copper Oven is Tom Kha Soup, 3 of it.",
        "The user usually orders three Tom Kha Soup from Copper Oven.",
        "User's usual order at copper oven is Tom Kha soup x3.",
        "Usual at Copper Oven: Tom Kha Soup (quantity: 3)",
        "Mara's usual at **Copper Oven** is *Tom Kha Soup*, and she orders 3 of it",
        "The user always has three portions of the Tom Kha Soup at Copper Oven.",
        "- 2026-03-02T10:00:00: Her go-to at Copper Oven is Tom Kha Soup; it is ordered 3 times a month\n"
        "- 2026-03-03T10:00:00: Her go-to at Copper Oven is Tom Kha Soup, 3 of it",
        "The user's usual at Copper Oven is no longer 2 Larb Salad but 3 Tom Kha Soup.",
        "The usual at Copper Oven is now 3 Tom Kha Soup instead of 2 Larb Salad.",
        "The usual at Copper Oven: 2 Larb Salad → 3 Tom Kha Soup",
        "Notes. He likes wifi. His usual at Copper Oven is Tom Kha Soup. It is always 3 of it that he takes. 4 stars.",
        "The user usually orders 3 Tom Kha Soup at Copper Oven, at table 12.",
        "user: Hello\nuser: My usual at Copper Oven is Tom Kha Soup, 3 of it.\nassistant: Always 4 Pozole at Copper Oven.",
    ],
)
def test_a_usual_in_many_words(text: str) -> None:
    assert known("usual", text) == SOUP


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The user's usual at Copper Oven is Tom Kha Soup.",  # of which nobody says how many
        "On floor 2 of Copper Oven the user usually orders Tom Kha Soup.",
        "The user usually orders 3 Tom Kha Soup from Silver Corner.",
        "A man at the next table ordered 3 of the Tom Kha Soup at Copper Oven. It is often ordered.",
        "Does the user usually order 3 Tom Kha Soup at Copper Oven?",
        "The user usually orders 3 Tom Kha Soup or 2 Larb Salad from Copper Oven.",
        "The user does not usually order 3 Tom Kha Soup from Copper Oven.",
        "The user's usual Tom Kha Soup at Copper Oven costs $12 and has 4 stars.",
        "assistant: I see that your usual at Copper Oven is 3 Tom Kha Soup.",
    ],
)
def test_a_usual_is_not_guessed(text: str) -> None:
    assert known("usual", text) is None


@pytest.mark.parametrize(
    ("topic", "text", "value"),
    [
        ("provider", "Whenever something is delivered to me, let foodfly bring it.", "foodfly"),
        ("provider", "Delivery provider: foodfly", "foodfly"),
        ("provider", "The user always has deliveries brought by FoodFly, never by MealDash.", "foodfly"),
        ("provider", "A MealDash courier brought the user's lunch on Monday.", None),
        ("provider", "The user never wants MealDash to deliver.", None),
        ("party", "When I book a table for all of us, count 5 people.", "5"),
        ("party", "Group size for reservations: 5", "5"),
        ("party", "When booking for everyone, the user means 5 guests, with friends.", "5"),
        ("party", "The user changed the party size from 4 to 5 people.", "5"),
        ("party", "The user's neighbours always book a table for 4 people.", None),
        ("party", "There were 20 guests at the user's wedding party.", None),
        ("party", "User always books for 90 minutes for the whole group", None),
        ("party", "The user always books on floor 2 for the whole family.", None),
        ("time", "The user prefers to be seated at 7:30 pm, regardless of the booking.", "19:30"),
        ("time", "User prefers sitting down at 19:30 rather than 18:45.", "19:30"),
        ("time", "Last week we sat down at 19:30, which was too late for the children.", None),
        ("time", "The user likes Copper Oven and has a table at 12:30.", None),
        ("time", "The user's brother likes to sit down at 19:30.", None),
        ("occasion", "User's first date was at Copper Oven", "Copper Oven"),
        ("occasion", "Copper Oven is where the user and his wife had their first date.", None),
        ("occasion", "Somebody had our first date at Copper Oven while we were there.", None),
        ("occasion", "The user plans to have a first date at Copper Oven.", None),
        ("favourite", "The user's aunt loves the Tom Kha Soup at Copper Oven most.", "Tom Kha Soup"),
        ("favourite", "At Copper Oven the user's aunt likes the Tom Kha Soup best, not the Larb Salad.", "Tom Kha Soup"),
        ("favourite", "The user's aunt loves the Tom Kha Soup at Silver Corner most.", None),
        ("favourite", "The user's aunt-in-law loves the Tom Kha Soup at Copper Oven most.", None),
        ("favourite", "The user's aunt loves the Tom Kha Soup and the Larb Salad at Copper Oven most.", None),
    ],
)
def test_one_value_in_many_words(topic: str, text: str, value: str | None) -> None:
    found = known(topic, text)
    assert (found and next(iter(found.values()))) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The user has settled on a gold membership, ending on 2 March 2027.", GOLD),
        ("[5 January 2026] Membership: gold tier, end date 2027-03-02", GOLD),
        ("On 2026-01-05 the user decided on a gold membership that expires on 2027-03-02 rather than a silver one", GOLD),
        ("The user has settled on a gold membership.", None),
        ("The user has settled on a gold membership, and it shall end on 2027-02-30.", None),
        ("The user's friend has a gold membership until 2027-03-02.", None),
        ("The user's gold watch was repaired, the warranty ends on 2027-03-02.", None),
    ],
)
def test_a_tier_and_its_end(text: str, expected: dict[str, str] | None) -> None:
    assert known("tier", text) == expected


def test_of_two_the_later_one_holds() -> None:
    old, new = "The user's party size is 4", "The user's party size is 5"
    assert known("party", old, new) == {"count": "5"}
    assert known("party", f"2026-02-01: {new}", f"2026-01-01: {old}") == {"count": "5"}  # by date, whatever the order
    assert known("party", f"[1 February 2026] {new}", f"[1 January 2026] {old}") == {"count": "5"}
    one = f"2026-02-01: {new}\n2026-01-20: User likes wifi\n2026-01-01: {old}"
    assert known("party", one) == {"count": "5"}
    assert known("party", f"[1 February 2026] 2026-02-01: {new}", old) == {"count": "5"}


def test_what_no_longer_holds_is_not_known() -> None:
    said = "The user's party is of 4 people whenever all come"
    assert known("party", said, "The user's party is no longer 4 people") is None
    assert known("party", said, "The user's party is not 6 people") == {"count": "4"}
    assert known("party", said, "The user's party is no longer 4 people", "The party is 7 people") == {"count": "7"}


def test_the_forms_are_read_and_openings_are_no_facts() -> None:
    for task in mini_tasks().tasks:
        topic = task.kind.removesuffix(" corrected")
        assert READER.known(topic, ASKED[topic], [task.opening]) is None
    filled = {"place": "Copper Oven", "dish": "Pozole", "count": "4", "provider": "mealdash", "time": "18:15"}
    filled |= {"occasion": "our first date", "tier": "silver", "end": "2027-01-01", "who": "My aunt"}
    for topic, form in FORMS.items():
        found = known(topic, form.format(**filled))
        assert found is not None and all(filled[slot] == value for slot, value in found.items())

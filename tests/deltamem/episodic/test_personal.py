"""What the rule about data of users finds, and what it must let pass, lest nothing can be learned."""

import json

import pytest
from episodic_cases import BOOKING, TIME, booking

from deltamem.episodic import AgentTrajectory
from deltamem.episodic.personal import MASK, PersonalData

USER = PersonalData(booking())


def said(*messages: str, **data: object) -> PersonalData:
    given = [{"role": "user", "content": text} for text in messages]
    result = {"role": "tool", "content": json.dumps(data)}
    done = {"role": "assistant", "content": "I searched for a table and booked it."}
    return PersonalData(AgentTrajectory.of("t", TIME, [*given, result, done]))


@pytest.mark.parametrize(
    "lesson",
    [
        "Call search_restaurants with cuisines=['Italian'] before create_reservation, because the id is needed.",
        "Retry an order at most 3 times, and wait 30 seconds in between; 2 of 3 failures are closed kitchens.",
        "Gold members have 10 % discount (15 % with platinum), so read the membership before the total.",
        "Check opening hours for the day in question: most places close at 22:30 on Sundays in 2026.",
        "A table is held for 90 minutes. If the party is larger than 8, call check_restaurant_availability twice.",
        "Ask for the street and the postcode of the delivery address before create_order; never guess an e-mail.",
        "When the API answers 429 or 503, use exponential backoff: 1, 2, 4, 8 seconds.",
        "Versions such as 3.11.7 or v2.0 differ; look at the changelog, chapter 4, section 2.",
        "Prices between 20 and 50 are mid range. Compare delivery fees (1.99, 3.99, 5.99) first.",
        "The user's name belongs into special_requests only if they ask for it.",
    ],
)
def test_lessons_pass(lesson: str) -> None:
    assert USER.find(lesson) == []
    assert USER.mask(lesson) == (lesson, 0)


@pytest.mark.parametrize(
    ("known", "leak"),
    [
        (said("my name is maria lopez and I am hungry"), "Greet maria."),
        (said("my name is maria lopez and I am hungry"), "Lopez likes it."),
        (said("It is for my wife Maria."), "Maria wants a window."),
        (said("Maria wants a window."), "Ask MARIA."),
        (said("Jean-Luc Picard here."), "As for Jean-Luc Picard."),
        (said("Hi", customer={"full_name": "Ana Silva", "vip": True}), "Ana Silva is important."),
        (said("Hi", customer={"full_name": "Ana Silva"}), "Silva is important."),
        (said("Hi", rows=[{"user_id": "u-77", "name": "Bob Ash", "email": "b@x.org"}]), "Bob Ash called."),
        (said("Hi", rows=[{"user_id": "u-77", "city": "X"}]), "Use u-77 as the id."),
        (said("Hi", order_id="A1B2-77"), "Cancel A1B2-77 first."),
        (said("Hi", userName="neo_anderson"), "Log in as neo_anderson."),
        (said("Hi", payment={"card": {"number": 4242}}), "Charge 4242."),
        (said("My pin is 48213"), "Enter 4-8-2-1-3."),
        (said("Booking QX7781 please"), "Look up qx7781."),
        (said("Weiß is my surname, Herr Weiß."), "Greet Weiß."),
        (said("Hi", deep={"a": [{"b": {"passenger": ["Tom Riddle"]}}]}), "Seat Tom Riddle."),
    ],
)
def test_data_of_the_user_is_found_and_masked(known: PersonalData, leak: str) -> None:
    assert known.find(leak)
    masked, count = known.mask(leak)
    assert count and MASK in masked and known.find(masked) == []


def test_words_of_the_work_can_be_named() -> None:
    messages = [{"role": "user", "content": "Send it with SwiftDrop or Quickdish."}, *BOOKING[2:7]]
    trajectory = AgentTrajectory.of("t", TIME, messages)
    lesson = "SwiftDrop is the cheapest after Quickdish."
    assert len(PersonalData(trajectory).find(lesson)) == 2
    assert PersonalData(trajectory, ["SwiftDrop", "quickdish"]).find(lesson) == []


def test_much_data_is_no_trouble() -> None:
    rows = [{"user_id": f"u-{number}", "email": f"u{number}@example.org"} for number in range(1000)]
    known = said("a" * 100_000 + " " + "A-" * 20_000, rows=rows)
    assert known.find("ask u-999 now") == ["u-999"] and known.find("-" * 2000 + "1 " * 400) != ["u-1"]

"""What the rule about data of users finds, and what it must let pass, lest nothing can be learned."""
# ruff: noqa: RUF001 - letters and dashes of other scripts are meant

import json

import pytest
from episodic_cases import BOOKING, TIME, booking

from papers.episodic import AgentTrajectory
from papers.episodic.personal import MASK, PersonalData

USER = PersonalData(booking())


def said(*messages: str, **data: object) -> PersonalData:
    given = [{"role": "user", "content": text} for text in messages]
    result = {"role": "tool", "content": json.dumps(data)}
    done = {"role": "assistant", "content": "I searched for a table and booked it."}
    return PersonalData(AgentTrajectory.of("t", TIME, [*given, result, done]))


def heard(*messages: str, system: str = "", result: str = "", done: str = "I searched for a table.") -> PersonalData:
    """As `said`, with texts of other roles as they stand."""
    given = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in messages)]
    rest = [{"role": "tool", "content": result}, {"role": "assistant", "content": done}]
    return PersonalData(AgentTrajectory.of("t", TIME, [*given, *rest]))


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
        "For example, look at the documentation at docs.python.org, or ask again if two pizzas cost 9 @ 4.50.",
        "It is a mistake to read and reply at once; std::vector::push or 10:30:45 is no address.",
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


@pytest.mark.parametrize(
    "result",
    [
        '{"payload": "{\\"user_id\\": \\"u-7788\\", \\"first_name\\": \\"Kunegunda\\"}"}',
        'Result: {"first_name": "Kunegunda", "user_id": "u-7788"}.',
        "{'first_name': 'Kunegunda', 'user_id': 'u-7788'}",
        '{"first_name": "Adelgund"}\n{"first_name": "Kunegunda", "user_id": "u-7788"}',
        "Customer: Kunegunda Mai, user id: u-7788, phone: not found",
        "first_name=Kunegunda; user_id=u-7788",
    ],
)
def test_data_is_found_however_a_tool_writes_it(result: str) -> None:
    known = heard("Hi", result=result)
    assert len(known.find("Greet Kunegunda, then look up u-7788.")) == 2
    assert known.find("The phone was not found.") == []


@pytest.mark.parametrize(
    ("known", "leak"),
    [
        (heard("I am Zor\u200bblax"), "Zorblax"),
        (heard("I am José Núñez"), "Jose Nunez"),
        (heard("I am Jose Nunez"), "José Núñez"),
        (heard("I am Marco"), "Mаrco"),  # with a Cyrillic letter
        (heard("I am İlkay"), "ilkay"),
        (heard("I am Mark.", done="I mark it as done."), "Mark"),
        (heard("this is kuno brandt speaking"), "brandt"),
        (heard("Ich heiße kuno"), "Kuno"),
        (heard("меня зовут иван"), "Иван"),
        (heard("我叫田中太"), "田中太"),
        (heard("my password is qxzvbn"), "qxzvbn"),
        (heard("Hi", done="Hello Kunegunda, it is done."), "Kunegunda"),
        (heard("Hi", system="The user is Kunegunda Mai."), "Kunegunda"),
        (heard("Hi", system="user_id: kuno_77"), "kuno_77"),
        *((heard("I am Kunegunda"), leak) for leak in (
            "K u n e g u n d a", "K.u.n.e.g.u.n.d.a", "Kune-gunda", "**Kune**gunda", "Kune&amp;#103;unda", "%4Bunegunda",
        )),
        *((heard("Hi"), leak) for leak in (
            "kuno.brandt@ example.org", "kuno.brandt @ example . org", "kuno AT example DOT org", "kuno{at}example{dot}org",
            "kuno_at_example.org", "kuno-at-example-dot-org", "k @ b . de", "0176–555–1234", "0176_555_1234",
            "plus four nine one seven six five five", "3f2b8c1e-aaaa-4bbb-8ccc-1234567890ab", "2001:db8::ff00:42:8329",
            "https://x.org/u?token=abc", "https://kuno:secret@x.org",
        )),
    ],
)  # fmt: skip
def test_data_is_found_however_it_is_spelled(known: PersonalData, leak: str) -> None:
    masked, count = known.mask(f"So greet {leak} first.")
    assert count and masked.startswith("So ") and masked.endswith(f"{MASK} first.")


def test_the_host_of_an_address_is_no_data_and_short_words_do_not_make_a_name() -> None:
    known = said("I am Isa", email="isa.b@example.org")
    assert known.find("For example, it is a mistake to guess.") == [] and known.find("Ask I.s.a first.") == ["I.s.a"]


def test_words_of_the_work_can_be_named() -> None:
    messages = [{"role": "user", "content": "Send it with SwiftDrop or Quickdish."}, *BOOKING[2:7]]
    trajectory = AgentTrajectory.of("t", TIME, messages)
    lesson = "SwiftDrop is the cheapest after Quickdish."
    assert len(PersonalData(trajectory).find(lesson)) == 2
    assert PersonalData(trajectory, ["SwiftDrop", "quickdish"]).find(lesson) == []


def test_much_data_is_no_trouble() -> None:
    rows = [{"user_id": f"u-{number}", "email": f"u{number}@example.org"} for number in range(200)]
    known = said("a" * 20_000 + " " + "A-" * 5_000, rows=rows)
    assert known.find("ask u-199 now") == ["u-199"] and known.find("-" * 2000 + "1 " * 400) != ["u-1"]

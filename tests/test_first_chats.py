"""The table of chats holds together, and `missing` finds what a bank lacks."""

import io
import json
import re
from dataclasses import replace

import pytest
from first_chats import CHATS, Chat, missing

from deltamem.sessions import read_dialogues

ANA = CHATS[0]
RIGHT = {
    "Ana": """Ana moved from Boston to Denver for her company.
        Ana has a dog called Olive.
        Ana drinks tea instead of coffee.
        Ana's sister is visiting her on the weekend of 13 June 2026.""",
    "Ben": """Ben drives a school bus and quit his job as a line cook at a steakhouse.
        Ben has two children, Mia and Leo.
        Ben is vegetarian.
        Ben likes being home by four.""",
    "Carmen": """Carmen is learning Italian because her husband's family is from Bari.
        Carmen flies to Bari on 2 August 2026, moved from 10 July.
        Carmen will stay with her husband's aunt Rosaria.""",
    "Dev": """Dev's bike was stolen on 8 March 2026 outside the library, and the police found it on 21 March.
        Dev had his bike for nine years; it was a present from his father.
        Dev is getting a better lock.""",
    "Elena": """Elena will run the half marathon in October 2026 instead of a 10K.
        Elena has asthma.
        Elena runs four times a week.""",
    "Frank": """Frank is retired and was a pilot for thirty years.
        Frank finished the dollhouse that he was building for his granddaughter Ivy.
        Frank wants to build a canoe if his wife Helen lets him have the garage.""",
    "Grace": """Grace is allergic to peanuts.
        Grace lives alone since her roommate Priya moved out.
        Grace's roommate Priya hated fish.
        Grace is thinking of getting a cat to keep her company.""",
    "Hiro": """Hiro's novel about his grandmother comes out with Kestrel Press in spring 2027.
        Hiro writes at night because he has a baby.
        Hiro is a dentist.""",
    "Ivana": """Ivana sold her first car, a used Volvo, because it kept breaking down.
        Ivana visits her mother in Split on Sundays.
        Ivana takes the bus because it is cheaper and she can read.""",
    "Jamal": """Jamal left teaching math at a middle school because he was burned out.
        Jamal is opening a record store called Side B in September 2026.
        Jamal's brother Malik is his partner in the record store.""",
    "Klara": """Klara found a flat on the third floor for 1,150 euros with a balcony.
        Klara moves in on September 1st, 2026.
        Klara is engaged to Jonas.
        Klara grows chili peppers.""",
    "Liam": """Liam has played the drums since high school.
        Liam's band The Wet Socks broke up in May 2026, which made him sad.
        Liam gives drum lessons to six children.""",
    "Meera": """Meera's daughter Tara was born on 11 October 2026.
        Meera's mother is staying with her until December 2026.""",
    "Niko": """Niko bought a ThinkPad.
        Niko hates Macs.
        Niko changed his major from architecture to landscape design because he would rather be outdoors.""",
    "Olga": """Olga is divorced and kept the house after the divorce.
        Olga's friend Dana called her every night, which helped.
        Olga sleeps well without melatonin.""",
    "Pedro": """Pedro weighs 86 kilos, down from 94, and would like to lose ten kilos by summer.
        Pedro goes to the gym on Tuesdays and Fridays.
        Pedro has a bad knee and sees a specialist on June 9th.""",
    "Quinn": """Quinn does tattoos in color.
        Quinn lived in Lima for a year.
        Quinn turned 30 on 14 July 2026.
        Quinn's favorite color is dark green.""",
    "Rosa": """Rosa finished Middlemarch and loved Dorothea.
        Rosa's book club is reading Beloved and meets on Saturdays.
        Rosa sees her father in the nursing home on Sundays.""",
    "Stefan": """Stefan is a nurse at St. Mary's in pediatrics, which he likes better than the emergency room.
        Stefan likes to fish.
        Stefan's cabin by the lake burned down in March 2026.""",
    "Tess": """Tess hates phone calls because she does not like talking without seeing a face.
        Tess loves parties and is not an introvert.
        Tess started a weekly podcast about bad movies with her cousin Bea, from August 2026 twice a week.""",
    "Umar": """Umar has a beagle puppy called Maple; the children wanted to call it Waffles.
        Umar had a beagle called Captain as a boy.""",
    "Vera": """Vera and her best friend Lucy will go to Japan in April 2027 because Lucy broke her leg.
        Vera has saved 3,400 dollars.
        Vera does not eat raw fish.""",
}
"""A bank that is right, by the chat's name; a memory a line."""


def right(chat: Chat) -> list[str]:
    return [line.strip() for line in RIGHT[chat.name].splitlines()]


def test_there_are_22_chats_of_different_people() -> None:
    assert len({chat.name for chat in CHATS}) == len(CHATS) == 22


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.name)
def test_a_chat_is_a_session_file_and_says_what_is_asked_of_it(chat: Chat) -> None:
    lines = io.BytesIO("\n".join(map(json.dumps, chat.sessions)).encode())
    first, second = sessions = list(read_dialogues(lines, chat.name.casefold(), chat.name))
    assert first.time < second.time and first.id != second.id
    assert all(2 <= len(session.dialogue) <= 6 for session in sessions)
    user, assistant = (
        " ".join(turn.content for session in sessions for turn in session.dialogue if turn.role == role)
        for role in ("user", "assistant")
    )
    assert [pattern for fact in chat.facts for pattern in fact if not re.search(pattern, user, re.IGNORECASE)] == []
    assert [pattern for pattern in chat.unsaid if re.search(pattern, user, re.IGNORECASE)] == []
    assert [pattern for pattern in chat.unsaid if not re.search(pattern, assistant, re.IGNORECASE)] == []


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.name)
def test_an_empty_bank_lacks_every_fact_and_nothing_else_is_wrong(chat: Chat) -> None:
    assert missing([], chat) == [f"not kept: {' + '.join(fact)}" for fact in chat.facts]


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.name)
def test_nothing_is_wrong_with_a_right_bank(chat: Chat) -> None:
    assert missing(right(chat), chat) == []


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.name)
def test_a_bank_of_the_first_session_alone_is_wrong(chat: Chat) -> None:
    first = [turn["content"] for turn in chat.sessions[0]["turns"] if turn["role"] == "user"]
    assert any(line.startswith("not kept") for line in missing(first, chat))


@pytest.mark.parametrize("text", ["Ana used to live in Boston.", "Ana lived in Boston until she moved to Denver."])
def test_an_old_value_may_stand_where_it_is_called_past(text: str) -> None:
    assert missing([*right(ANA), text], ANA) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Ana lives in Boston.", "still there: Ana lives in Boston."),
        ("Ana drinks five cups a day.", "still there: Ana drinks five cups a day."),
        ("Ana likes Hiking.", "said by the assistant alone: Ana likes Hiking."),
        ("ana has a dog, called Olive", "kept twice: ana has a dog, called Olive"),
    ],
)
def test_what_should_not_be_there_is_found(text: str, wrong: str) -> None:
    assert missing([*right(ANA), text], ANA) == [wrong]


def test_the_patterns_of_a_fact_have_to_be_in_one_memory() -> None:
    chat = replace(ANA, facts=(("denver", "company"), ("sister", "olive")))
    assert missing(right(chat), chat) == ["not kept: sister + olive"]

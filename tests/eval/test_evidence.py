"""Which turns a passage holds: what counts, what does not, and what must not pay."""
# ruff: noqa: RUF001 - punctuation of another script is meant

import itertools
import json
import random
import re
from statistics import fmean

import pytest

from eval.data import LOCOMO, find
from eval.evidence import EvidenceFinder
from eval.locomo.data import load_locomo
from eval.systems.base import Passage

TURNS = {
    "D1:1": "Hey Mel! Good to see you! How have you been?",
    "D1:2": "Hey Ana! I'm swamped with the kids and work. What's up with you? Anything new?",
    "D1:3": "I went to a pottery workshop yesterday and it was so powerful. We made bowls with our own hands!",
    "D1:4": "Wow, that's cool! Did the teacher help you with the glazing?",
    "D1:5": "Yes, she showed us a blue glaze from Japan. I'd love to have a kiln at home one day.",
    "D1:6": "Thanks, Ana!",
    "D2:1": "The kids and I went camping in the mountains last weekend. We saw a meteor shower and roasted marshmallows.",
    "D2:2": "That sounds great! My kids love camping too. We went to the beach last weekend.",
    "D2:3": "I signed up for a second pottery workshop. The teacher says that my bowls are good!",
    "D2:4": "你好，我昨天去了东京的寿司店，吃了很多金枪鱼。",
}


@pytest.fixture(scope="module")
def finder() -> EvidenceFinder:
    return EvidenceFinder(TURNS, ["Ana", "Mel"])


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_holds_itself(finder: EvidenceFinder, turn: str) -> None:
    assert finder.held(f"Ana: {TURNS[turn]}") == {turn}


def test_a_whole_session_holds_all_of_its_turns_and_no_others(finder: EvidenceFinder) -> None:
    session = "\n".join(f"Ana: {text}" for id, text in TURNS.items() if id.startswith("D1"))
    assert finder.held(session) == {id for id in TURNS if id.startswith("D1")}


@pytest.mark.parametrize(
    "memory, turns",
    [
        ("Ana attended a pottery workshop, which she found powerful.", {"D1:3"}),
        ("Ana would like to own a kiln.", set()),  # one rare word is not enough
        ("Ana dreams of having a kiln at her home.", {"D1:5"}),
        ("Mel saw a meteor shower while camping with the kids in the mountains.", {"D2:1"}),
        ("Ana found a pottery workshop powerful. Mel saw a meteor shower in the mountains.", {"D1:3", "D2:1"}),
        ("Ana has enrolled in a second pottery workshop; her teacher praised her bowls.", {"D2:3"}),
        ("Ana在东京的寿司店吃了金枪鱼。", {"D2:4"}),
    ],
)
def test_an_extracted_memory_holds_the_turns_that_it_comes_from(
    finder: EvidenceFinder, memory: str, turns: set[str]
) -> None:
    assert finder.held(memory) == turns


@pytest.mark.parametrize("text", ["", " ", "hm", "Hm.", "...", "Ana", "Ana and Mel talked.", "pottery", "the kids"])
def test_emptied_memories_hold_nothing(finder: EvidenceFinder, text: str) -> None:
    assert finder.held(text) == set()


def test_an_overwritten_memory_holds_only_what_it_says_now(finder: EvidenceFinder) -> None:
    """The attack: an update kept the sources of everything that the memory had ever said."""
    overwritten = Passage("Ana dreams of having a kiln at her home.", sources=tuple(TURNS))
    assert finder.ranks((["D1:3"], ["D1:5", "D1:6"]), [Passage("hm", sources=tuple(TURNS)), overwritten]) == (None, 2)


def test_systems_without_sources_get_the_same_ranks(finder: EvidenceFinder) -> None:
    texts = [TURNS["D2:2"], "Mel saw a meteor shower while camping in the mountains.", TURNS["D2:1"]]
    told = [Passage(text, sources=("D2:1",)) for text in texts]
    pieces = (["D2:1"], ["D1:3"])
    assert finder.ranks(pieces, list(map(Passage, texts))) == finder.ranks(pieces, told) == (2, None)


def test_all_words_of_the_evidence_are_looked_for_in_all_passages(finder: EvidenceFinder) -> None:
    said = [Passage(f"Ana: {TURNS['D1:6']}"), Passage("WOW, thanks to the teacher.")]
    assert finder.words_shown(["D1:6"], said) == 1.0
    assert finder.words_shown(["D1:4", "D1:6"], said) == 5 / 12  # wow, the, teacher, thanks, Ana
    assert finder.words_shown(["D1:4"], []) == 0.0


def test_frequent_words_are_no_evidence() -> None:
    """The attack of a hoarder: the 50 words that most turns have, in one line and in lines of two and three."""
    draw = random.Random(0)
    frequent, rare = [word("co", number) for number in range(50)], [word("ra", number) for number in range(800)]
    turns = {f"t{n}": " ".join([*draw.sample(frequent, 6), *rare[2 * n : 2 * n + 2]]) for n in range(400)}
    finder = EvidenceFinder(turns)
    assert not finder.held(" ".join(frequent))
    for size in (2, 3):
        assert not finder.held(". ".join(map(" ".join, itertools.combinations(frequent[:20], size))))
    assert finder.held(f"{rare[14]} and {rare[15]} and {frequent[0]}.") == {"t7"}


def word(begin: str, number: int) -> str:
    return begin + "".join("bcdfghjklm"[int(digit)] + "o" for digit in str(number))


def test_on_the_real_conversations() -> None:
    """The operating point of docs/evaluation.md, on the facts that LoCoMo's file has of one conversation."""
    path = find(LOCOMO)
    if path is None:
        pytest.skip("LoCoMo is not in a data folder")
    conversation = load_locomo(path)[0]
    finder = EvidenceFinder({turn.id: turn.text for turn in conversation.turns}, conversation.speakers)
    by_session = json.loads(path.read_bytes())[0]["observation"].values()
    facts = [fact for by_speaker in by_session for facts in by_speaker.values() for fact in facts]
    own, others, turns = [], [], []
    for text, ids in facts:
        held, source = finder.held(text), set(re.findall(r"D\d+:\d+", str(ids)))
        own.append(bool(held & source))
        others.append(len(held - source) / len(conversation.turns))
    for turn in conversation.turns:
        held = finder.held(f"{turn.speaker}: {turn.text}")
        assert turn.id in held
        turns.append(len(held - {turn.id}) / len(conversation.turns))
    assert fmean(own) > 0.75 and fmean(others) < 0.0015 and fmean(turns) < 0.0003

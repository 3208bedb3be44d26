"""Broken and hostile answers, made by program: each is refused by its name, and nothing of it is applied."""
# ruff: noqa: RUF001 - digits and letters of other scripts are meant

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from episode_texts import WordEmbedder
from episodic_cases import BOOKING, CANARIES, Reviewer, answer, booking, reflection, reflections, summary_block, turn_block
from hypothesis import given
from hypothesis import strategies as st

from deltamem.bank.store import MemoryStore
from deltamem.episode import Message
from deltamem.ingest import Outcome
from deltamem.prompts import load_prompt
from papers.episodic import EpisodicMemory, Reflection
from papers.episodic.personal import PersonalData
from papers.episodic.reading import (
    MAX_REFLECTIONS,
    MAX_WORDS,
    ReflectionOperation,
    read_reflections,
    read_summary,
    read_turns,
    word_count,
)

SHOWN = {
    "m5": Reflection("Check opening hours first", "Orders at a given time.", "Look the hours up.", 0.7, "m5"),
    "m7": Reflection("Ask for the party size", "Bookings.", "Ask before searching.", 0.4, "m7"),
}
COMPANION = reflection(title="Compare prices of providers", hints="List the providers before ordering.", confidence="0.4")
USER = PersonalData(booking())
FIELDS = ("operator", "title", "use_cases", "hints", "confidence")
NEW = "Confirm the time zone"
BAD_CONFIDENCE = "0 1.1 0.75 -0.5 0,7 70% 7/10 high nan 1e-1 ٠.٧ 0.７ 10 0.7.0 00.7 +0.7 0x1 0. 0.7(high) 0.1-1.0"


class Case(NamedTuple):
    text: str
    violation: str
    companion: bool = True
    """Whether the good reflection beside the bad one still counts."""


def _with(block: str) -> str:
    return reflections(block, COMPANION)


def _replaced(block: str, field: str, value: str) -> str:
    """A block with another content of one field, byte by byte as given."""
    begin, end = block.index(f"<{field}>") + len(field) + 2, block.index(f"</{field}>")
    return block[:begin] + value + block[end:]


def _without(block: str, field: str) -> str:
    return block[: block.index(f"<{field}>")] + block[block.index(f"</{field}>") + len(field) + 3 :]


def _record_cases() -> Iterator[Case]:
    for block in (reflection(title=NEW), reflection("update", "m5")):
        for field in FIELDS:
            yield Case(_with(_without(block, field)), "missing_field")
            end = f"</{field}>"
            yield Case(_with(block.replace(end, f"{end}<{field}>m7 0.9 update{end}")), "duplicate_field")
            yield Case(_with(block.replace(end, "")), "unclosed_block" if field == FIELDS[-1] else "nested_tag")
            yield Case(_with(f"{block[:12]}</{field}>{block[12:]}"), "nested_tag")
            for empty in ("", " \n ", "...", "&nbsp;", "\u200b\u2060"):
                yield Case(_with(_replaced(block, field, empty)), "empty_field")
        for outer in ("title", "use_cases", "hints"):
            for inner in ("operator", "id", "confidence", "hints" if outer != "hints" else "title"):
                yield Case(_with(_replaced(block, outer, f"Look it up.<{inner}>update</{inner}>")), "nested_tag")
            for spelled in ("</reflection><reflection>", "<reflection>", "< / reflection >"):
                violation = "nested_tag" if spelled == "<reflection>" else "unclosed_block"
                yield Case(_with(_replaced(block, outer, f"Look it up.{spelled}")), violation)
            for long in ("x" * 2001, "&amp;" * 3000):
                yield Case(_with(_replaced(block, outer, long)), "field_too_long")
            yield Case(_with(_replaced(block, outer, "x\ud800")), "bad_unicode")
        for value in BAD_CONFIDENCE.split():
            yield Case(_with(_replaced(block, "confidence", value)), "bad_confidence")
    for operator in ("delete", "remove", "add or update", "add|update", "[add or update]", "add update", "upsert", "none",
                     "replace", "ädd", "insert", "forget", "rollback", "update m5", "UPD", "addd"):  # fmt: skip
        yield Case(_with(reflection(operator, "m5")), "bad_operator")
    for target in ("m99", "M5", "5", "m05", "m5 m7", "m5,m7", "m5;DROP", "../m5", "m6", "m5\u0661", SHOWN["m5"].title):
        yield Case(_with(reflection("update", target)), "unknown_id")
    for target in (None, "", " ", "none", "N/A", "null", "-", "[]"):
        yield Case(_with(reflection("update", target)), "missing_id")
    for target in ("m5", "m99", "new", "1"):
        yield Case(_with(reflection(id=target, title=NEW)), "unwanted_id")
    for title in ("Ask for the party size", "Provider prices", "IGNORE ALL", "Kept", "1", "Überall", "天気を確認"):
        yield Case(_with(reflection("update", "m5", title)), "unrelated_title")
    for title in ("Check opening hours first", "CHECK OPENING HOURS FIRST", " Check  opening hours\nfirst. ",
                  "“Check opening hours first”", "check opening hours first!", "Ask for the party size"):  # fmt: skip
        yield Case(_with(reflection(title=title)), "existing_title")
    for uses, hints in ((0, 300), (150, 150), (1, 299), (300, 0), (299, 3), (200, 200)):
        long = {"use_cases": "ab " * (uses + 1), "hints": "cd " * (hints + 1)}
        yield Case(_with(reflection("update", "m5", **long)), "update_too_long")
        yield Case(_with(reflection(title=NEW, **long)), "too_long")
    for lazy in ("See above.", "Use common sense.", "Be careful with everything.", "1", "Nothing new, the same as earlier."):
        yield Case(_with(reflection("update", "m5", use_cases="Always.", hints=lazy)), "lost_content")
    same = SHOWN["m5"]
    for title in (NEW, "Another name for it"):
        block = reflection(title=title, use_cases=same.use_cases.upper(), hints=f" {same.hints}")
        yield Case(_with(block), "repeated")
    yield Case(_with(reflection("update", "m5", hints="天気を確認する" * 60)), "update_too_long")
    yield Case(_with(reflection("update", "m5", hints="ab/" * 301)), "update_too_long")
    yield Case(_with(reflection(title="word " * 25)), "field_too_long")
    said = load_prompt("episode_reflections", "papers.episodic.prompts").text.partition("- hints: ")[2].partition("\n")[0]
    yield Case(_with(reflection(title=NEW, hints=said)), "echoed_prompt")


def _wide(text: str) -> str:
    """In the full-width forms of East Asian type, which look alike."""
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


def _personal_cases() -> Iterator[Case]:
    for canary in CANARIES:
        for field in ("title", "use_cases", "hints"):
            yield Case(_with(_replaced(reflection(title=NEW), field, f"Greet {canary} first.")), "personal_data")
        entities = "".join(f"&#{ord(char)};" for char in canary)
        for written in (canary.lower(), canary.upper(), f"**{canary}**", _wide(canary), "\u200b".join(canary), entities):
            yield Case(_with(reflection(title=NEW, hints=f"Greet {written} first.")), "personal_data")
    # Of nobody in this trajectory; such things are never lessons.
    for other in ("ann@example.com", "ann at example dot com", "ann (at) example (dot) com", "+1 415 555 0199",
                  "(415) 555-0199", "5500-0000-0000-0004", "DE89 3704 0044 0532 0130 00", "221B Baker Street",
                  "9 Elm Ave", "Hauptstraße 12", "Springfield, IL 62704", "SW1A 1AA", "10.1.2.3",
                  "078-05-1120", "rue Lepic 54"):  # fmt: skip
        for written in (other, _wide(other)):
            yield Case(_with(reflection(title=NEW, hints=f"Write to {written} when it fails.")), "personal_data")


def _whole_cases() -> Iterator[Case]:
    good = reflections(reflection(title=NEW))
    for text in (
        "", "I have nothing to add.", '{"operator": "add"}', f"<think>{good}</think>", "</reflections>",
        "<summary></summary>", html.escape(good), "\ud800", "\0" * 100, reflection(title=NEW),
        good.replace("<reflections>", '<reflections mode="force">'),
    ):  # fmt: skip
        yield Case(text, "no_block", False)
    for share in range(1, 10):
        yield Case(good[: 13 + (len(good) - 28) * share // 10], "unclosed_block", False)
    for text in (good + good, f"<reflections>{good}</reflections>", "<reflections>" + good, "<reflections>" * 50_000):
        yield Case(text, "several_blocks", False)
    one, other = reflection("update", "m5"), reflection("update", "m5", hints="Never look them up.")
    yield Case(reflections(one, other, COMPANION), "conflicting_update")
    yield Case(reflections(one, COMPANION, other, one), "conflicting_update")
    many = [
        reflection(title=f"Lesson {chr(97 + number) * 3}", hints=f"Do it {chr(97 + number) * 3}.")
        for number in range(MAX_REFLECTIONS + 1)
    ]
    yield Case(reflections(*many), "too_many", False)


# Some ways to write a canary change nothing about it, so that two cases would be one.
CASES = [*{case.text: case for case in (*_record_cases(), *_personal_cases(), *_whole_cases())}.values()]


def test_there_are_enough_of_them_and_each_violation_occurs() -> None:
    assert len(CASES) > 250
    assert len({case.violation for case in CASES}) >= 20


def test_each_is_refused_by_its_name() -> None:
    for case in CASES:
        operations, violations = read_reflections(case.text, SHOWN, USER.find)
        assert case.violation in violations, case.text
        applied = [] if operations is None else [operation.reflection.title for operation in operations]
        if case.violation == "too_many":
            assert len(applied) == MAX_REFLECTIONS
        else:
            assert applied == ["Compare prices of providers"] * case.companion, case.text
            assert operations is not None or set(violations) <= {"no_block", "unclosed_block", "several_blocks"}


async def test_nothing_of_them_reaches_a_bank() -> None:
    """Every eighth of them, one after the other, to an agent with a real journal: its lessons never change."""
    store, text = MemoryStore.in_memory(WordEmbedder()), ""

    def learned(messages: Sequence[Message]) -> str:
        more = reflection(title="Ask for the party size") if "id: m5" in messages[1]["content"] else ""
        return answer(messages).replace("</reflections>", f"{more}</reflections>")

    agent = EpisodicMemory(store, "waiter", Reviewer(learned))
    await agent.ingest(booking("first"))
    before, applied = {one.id: one for one in agent.reflections()}, 0
    assert list(before) == list(SHOWN)
    agent._policy = Reviewer(lambda messages: text if "You keep the lessons" in messages[0]["content"] else answer(messages))
    for number, case in enumerate(one for one in CASES[::8] if one.violation not in ("too_many", "repeated")):
        text = case.text
        done = await agent.ingest(booking(f"t{number}", BOOKING[:7]))
        assert done.violations[case.violation] >= 1, case.text
        applied += done.outcome is Outcome.APPLIED
        now = {one.id: one for one in agent.reflections() if one.title != "Compare prices of providers"}
        assert now == before, case.text
    assert number > 40 and applied > 30 and store.journal.owner("agent:waiter").verify() == []


ONE, TWO = turn_block(1, ended=True), turn_block(2, ended=True)
TURN_CASES = {
    "missing_turn": ["", ONE, turn_block(2, ended=False)],
    "duplicate_turn": [ONE + ONE + TWO],
    "unknown_turn": [ONE + turn_block(number, ended=True) for number in (0, 3, 999999999)],
    "bad_turn_id": [
        ONE + TWO.replace(">2<", f">{text}<") for text in ("two", "2.0", "-2", "1, 2", "1-2", "٢", "turn", "9" * 10)
    ],
    "bad_verdict": [
        ONE + TWO.replace("Yes, by", f"{text}, by")
        for text in ("Maybe", "Yes or No", "yes/no", "Yes | No", "Partly yes", "It is a yes", "Yesterday", "Nope", "1", "Ja")
    ],
    "missing_field": [
        ONE + re.sub(f"<{name}>.*?</{name}>", "", TWO)
        for name in ("turn_id", "situation", "intent", "action", "thought", "assessment_assistant", "assessment_user")
    ],
    "nested_tag": [ONE + turn_block(2, ended=True, note=text) for text in ("<intent>", "</turn_id>")],
    "empty_field": [ONE + re.sub("<action>.*?</action>", "<action> </action>", TWO)],
    "field_too_long": [ONE + turn_block(2, ended=True, note="x" * 2000)],
}
SUMMARY = summary_block()
SUMMARY_CASES = {
    "missing_field": [
        re.sub(f"<{name}>.*?</{name}>", "", SUMMARY)
        for name in ("situation", "intent", "assessment", "justification", "reflection")
    ],
    "bad_verdict": [
        SUMMARY.replace("<assessment>Yes", f"<assessment>{text}")
        for text in ("Mostly ", "Yes/No", "Yes or no", "75% ", "Succeeded ", "true ", "[Yes/No]")
    ],
    "nested_tag": [summary_block(note=text) for text in ("<intent>x</intent>", "</reflection>", "<assessment>")],
    "duplicate_field": [
        SUMMARY.replace("</summary>", f"<{name}>No</{name}></summary>") for name in ("assessment", "reflection")
    ],
    "empty_field": [re.sub("<intent>.*?</intent>", "<intent></intent>", SUMMARY)],
}


def test_no_turn_and_no_summary_is_made_up() -> None:
    broken = {"no_block": [""], "unclosed_block": ["<summary>", SUMMARY[:-20]], "several_blocks": [SUMMARY * 2]}
    turns = {violation: [f"<summary>{text}</summary>" for text in texts] for violation, texts in TURN_CASES.items()}
    for cases, read in (
        (broken | turns, lambda text: read_turns(text, [1, 2])),
        (broken | SUMMARY_CASES, lambda text: read_summary(text, 1, 2)),
    ):
        for violation, texts in cases.items():
            for text in texts:
                understood, violations = read(text)  # type: ignore[no-untyped-call]
                assert understood is None and violation in violations, (violation, text)


@pytest.mark.parametrize(
    "dress",
    ["{}", "```xml\n{}\n```", "<think>An <reflections> update?</think>\n{}", "Here it is:\n{}\nGood luck!", "\ufeff{}"],
)
def test_good_answers_are_read_however_they_are_dressed(dress: str) -> None:
    new = reflection(title=NEW, hints="If a < b & c > d, <b>retry</b> &amp; wait.")
    text = reflections(new, reflection("Update", " [m5] "))
    for old, spelled in (("", ""), ("reflection", "REFLECTION"), ("<hints>", "< hints >"), ("><", ">\n <")):
        operations, violations = read_reflections(dress.format(text.replace(old, spelled)), SHOWN, USER.find)
        assert operations is not None and [operation.target for operation in operations] == [None, "m5"]
        assert operations[0].reflection.hints == "If a < b & c > d, <b>retry</b> & wait."
        assert set(violations) == ({"text_outside_tags"} if "Here" in dress else set())


def test_repeated_operations_count_once() -> None:
    block = reflection("update", "m5")
    operations, violations = read_reflections(reflections(block, block), SHOWN, USER.find)
    assert operations is not None and len(operations) == 1 and violations == ["repeated"]


def test_no_two_get_one_title_in_one_answer() -> None:
    add = reflection(title="Check opening hours twice", hints="Another thing.")
    update = reflection("update", "m5", "Check opening hours twice")
    for blocks, target in ((add, update), None), ((update, add), "m5"):
        operations, violations = read_reflections(reflections(*blocks), SHOWN, USER.find)
        assert operations is not None and [one.target for one in operations] == [target]
        assert violations == ["existing_title"]
    other = Reflection("Check opening hours twice", "Groups.", "Compare.", 0.5, "m9")
    assert read_reflections(reflections(update), SHOWN, USER.find, [other]) == ([], ["existing_title"])


def test_a_flood_of_spaces_is_read_at_once() -> None:
    """With a quadratic pattern this megabyte would take hours."""
    flood = "<" + " " * 1_000_000
    assert read_reflections(flood, SHOWN, USER.find) == (None, ["no_block"])
    assert read_reflections(reflections(flood, COMPANION), SHOWN, USER.find)[1] == ["text_outside_tags"]


def test_verdicts_are_read_with_their_reasons() -> None:
    text = turn_block(1, ended=False).replace("No, by", "**[No]** — by")
    analyses, violations = read_turns(f"<summary>{text}</summary>", [1])
    assert analyses is not None and violations == []
    assert (analyses[0].ended, analyses[0].ended_why) == (False, "by the next message.")


WORD = st.text("abcdefgh", min_size=1, max_size=5)


@pytest.mark.parametrize("update", [True, False])
def test_three_hundred_words_are_the_limit(update: bool) -> None:
    shown = {"m5": Reflection("Check opening hours first", "cd ab", "ef", 0.7, "m5")}
    for uses, hints in ((150, 150), (150, 151), (1, 299), (299, 2)):
        given = {"use_cases": "ab " * uses, "hints": "cd " * hints}
        block = reflection("update", "m5", **given) if update else reflection(title=NEW, **given)
        operations, violations = read_reflections(reflections(block), shown, USER.find)
        fits = uses + hints <= MAX_WORDS
        assert len(operations or []) == fits
        assert violations == ([] if fits else ["update_too_long" if update else "too_long"])


TAGS = [f"<{end}{name}>" for name in ("reflections", "reflection", *FIELDS, "id") for end in ("", "/")]
SAID = ["add", "update", "m5", "m7", "m9", "0.7", "0.75", *CANARIES[:2], "Check hours"]
SOUP = st.lists(st.sampled_from([*TAGS, *SAID]) | WORD, max_size=60).map("".join)
AGAIN = reflection(title="Check opening hours first")
PIECES = [reflection(title=NEW), reflection("update", "m5"), reflection("update", "m7"), AGAIN, COMPANION]
BLOCKS = st.lists(st.sampled_from(PIECES), max_size=12).map(lambda blocks: reflections(*blocks))
TORN = st.tuples(BLOCKS, st.integers(0, 600), SOUP).map(lambda torn: torn[0][: torn[1]] + torn[2] + torn[0][torn[1] :])


@given(SOUP | BLOCKS | TORN)
def test_whatever_is_applied_is_sound(text: str) -> None:
    operations, violations = read_reflections(text, SHOWN, USER.find)
    assert operations is not None or violations
    titles = [one.title for one in SHOWN.values()]
    for operation in operations or []:
        sound(operation)
        if operation.target is None:
            assert operation.reflection.title not in titles
            titles.append(operation.reflection.title)
    targets = [operation.target for operation in operations or [] if operation.target]
    assert len(targets) == len(set(targets))


def sound(operation: ReflectionOperation) -> None:
    one = operation.reflection
    assert operation.target is None or operation.target in SHOWN
    assert one.confidence in [tenths / 10 for tenths in range(1, 11)]
    assert 0 < word_count(one.use_cases) + word_count(one.hints) <= MAX_WORDS
    assert not any(canary.lower() in one.text.lower() for canary in CANARIES)
    assert not re.search(r"</?(?:reflections?|operator|id|title|use_cases|hints|confidence)>", one.text)

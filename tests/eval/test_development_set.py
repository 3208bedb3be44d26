"""The sessions on which the assisted mode is developed."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from deltamem.memory import Event, apply, check
from deltamem.sessions import LabelledSession, read_sessions, to_json_line
from deltamem.text import MONTHS, content_words, stem
from rewards.fidelity import bare_words, keyword_coverage

SESSIONS = Path(__file__).parents[2] / "eval" / "development" / "sessions.jsonl"
ABSTRACT = 8  # Labels that may say less than half in the session's own words


@pytest.fixture(scope="module")
def sessions() -> list[LabelledSession]:
    return list(read_sessions(SESSIONS))


def of_two_people(labelled: LabelledSession) -> bool:
    """Whether every turn begins with its speaker's name, as in LoCoMo."""
    return all(re.match(r"\w+: ", turn.content) for turn in labelled.session.dialogue)


def _stems(text: str) -> set[str]:
    """Stems of a text without what a label reckons from the session's time."""
    return {stem(word) for word in content_words(text) if word not in MONTHS and not word.isdecimal()}


def test_the_file_is_read_and_written_by_the_projects_own_format(sessions: list[LabelledSession]) -> None:
    written = SESSIONS.read_text(encoding="utf-8").splitlines()
    assert [to_json_line(labelled) for labelled in sessions] == written
    assert {labelled.split for labelled in sessions} == {"heldout"}
    assert len({labelled.key for labelled in sessions}) == len(sessions)


def test_the_mix_is_the_one_that_the_readme_gives(sessions: list[LabelledSession]) -> None:
    assert len(sessions) == 60
    assert sum(of_two_people(labelled) for labelled in sessions) == 15
    assert sum(not labelled.operations for labelled in sessions) == 10
    assert sorted(len(labelled.prior_state) for labelled in sessions if labelled.prior_state)[0] == 3
    assert max(len(labelled.prior_state) for labelled in sessions) == 12
    assert sum(bool(labelled.prior_state) for labelled in sessions) == 24
    events = [operation.event for labelled in sessions for operation in labelled.operations]
    assert (events.count(Event.ADD), events.count(Event.UPDATE), events.count(Event.NONE)) == (116, 37, 9)


def test_dialogues_alternate_between_two_speakers(sessions: list[LabelledSession]) -> None:
    for labelled in sessions:
        roles = [turn.role for turn in labelled.session.dialogue]
        assert 6 <= len(roles) <= 14, labelled.key
        assert all(role != following for role, following in pairwise(roles)), labelled.key
        if of_two_people(labelled):
            owner = labelled.session.person_name
            assert all(
                turn.content.startswith(f"{owner}: ") == (turn.role == "user") for turn in labelled.session.dialogue
            ), labelled.key


def test_operations_apply_and_give_the_next_state(sessions: list[LabelledSession]) -> None:
    for labelled in sessions:
        assert len(labelled.operations) <= 6, labelled.key
        assert not check(labelled.prior_state, labelled.operations).problems, labelled.key
        after = apply(labelled.prior_state, labelled.operations, labelled.session.time)
        assert after == labelled.next_state, labelled.key


def test_labels_are_sentences_about_the_person_that_contain_their_keywords(sessions: list[LabelledSession]) -> None:
    for labelled in sessions:
        for operation in labelled.operations:
            text = operation.text
            assert re.match(rf"{labelled.session.person_name}\b.*\.$", text), text
            assert 1 <= len(operation.keywords) <= 3, text
            assert all(keyword == keyword.casefold() for keyword in operation.keywords), text
            assert keyword_coverage(text, operation.keywords) == 1, text


def test_only_a_none_repeats_what_is_known(sessions: list[LabelledSession]) -> None:
    for labelled in sessions:
        known = {bare_words(memory.text) for memory in labelled.prior_state.memories}
        for operation in labelled.operations:
            assert (bare_words(operation.text) in known) == (operation.event is Event.NONE), operation.text
            if operation.event is Event.NONE:
                assert operation.text == labelled.prior_state[operation.target_memory_id or ""].text


def test_what_labels_say_is_in_the_session_or_in_the_memory_that_they_rewrite(sessions: list[LabelledSession]) -> None:
    abstract = []
    for labelled in sessions:
        turns = " ".join(turn.content for turn in labelled.session.dialogue)
        for operation in labelled.operations:
            target = labelled.prior_state.get(operation.target_memory_id or "")
            wanted = _stems(operation.text) - _stems(labelled.session.person_name)
            support = len(wanted & _stems(f"{turns} {target.text if target else ''}")) / len(wanted)
            if support < 0.5:
                abstract.append((operation.text, round(support, 2)))
    assert len(abstract) <= ABSTRACT, abstract

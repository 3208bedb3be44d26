from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from eval.records import AnswerRecord, Cost, IngestRecord, PassageRecord, QuestionRecord, Verdict
from eval.systems.base import Ingested, Passage, Usage

COUNTS = st.integers(0, 10**6)
COSTS = st.builds(Cost, calls=COUNTS, cached=COUNTS, prompt_tokens=COUNTS, completion_tokens=COUNTS, searches=COUNTS)


@given(COSTS, COSTS)
def test_costs_add_field_by_field(one: Cost, two: Cost) -> None:
    total = one + two
    assert total == two + one
    assert total.model_dump() == {name: getattr(one, name) + getattr(two, name) for name in Cost.model_fields}
    assert one + Cost() == one


def test_ingest_record_of_what_a_system_did() -> None:
    usage = Usage(calls=2, cached=1, prompt_tokens=30, completion_tokens=4, searches=3)
    ingested = Ingested(memories=("a",), operations={"ADD": 1}, usage=usage, readable=False)
    record = IngestRecord.of("store", "Ana", "S1", 4, ingested, 1.23456, late=True)
    assert record.key == "store/S1"
    assert record.outcome == "unreadable"
    assert record.cost == Cost(calls=2, cached=1, prompt_tokens=30, completion_tokens=4, searches=3, seconds=1.2346)
    assert record.late
    assert IngestRecord.model_validate_json(record.model_dump_json(exclude_defaults=True)) == record


def test_passages_have_the_same_id_only_if_they_are_the_same() -> None:
    passage = Passage("text", datetime(2023, 5, 8), ("D1:1",), 0.9)
    same = Passage("text", datetime(2023, 5, 8), ("D1:1",), 0.1)
    others = [
        Passage("text.", passage.time, passage.sources),
        Passage("text", None, passage.sources),
        Passage("text", passage.time, ("D1:2",)),
    ]
    ids = {PassageRecord.of(one, "store").id for one in (passage, same)}
    assert len(ids) == 1, "how similar it was to one question does not matter"
    assert len(ids | {PassageRecord.of(one, "store").id for one in others}) == 4
    assert PassageRecord.of(passage, "another").id not in ids


def test_a_question_is_complete_unless_something_failed() -> None:
    fields = {"key": "a/1", "group": "a", "category": "c", "question": "q"}
    right = AnswerRecord(text="x", verdicts={"lenient": Verdict(label="correct")})
    assert QuestionRecord(**fields).complete
    assert QuestionRecord(**fields, answers=(right,)).complete
    assert not QuestionRecord(**fields, error="no memory").complete
    assert not QuestionRecord(**fields, answers=(right, AnswerRecord(text=None, error="nothing"))).complete
    prose = AnswerRecord(
        text="x", verdicts={"lenient": Verdict(label="correct"), "strict": Verdict(label=None, error="prose")}
    )
    assert not QuestionRecord(**fields, answers=(prose,)).complete

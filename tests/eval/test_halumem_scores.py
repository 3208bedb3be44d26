"""The formulas of PROTOCOLS 2.6: the worked numbers, each formula by hand, and a second implementation on random records."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.halumem.scores import JudgeRecord, aggregate


def integrity(label, source="secondary", importance=1.0, kind="Persona Memory") -> JudgeRecord:
    return JudgeRecord("integrity", label, memory_type=kind, source=source, importance=importance)


def accuracy(label, included) -> JudgeRecord:
    return JudgeRecord("accuracy", label, included=included)


def test_the_worked_numbers() -> None:
    # 9/185, (9 + 130/2)/185, 10/39 and (300 + 1/2)/301 give the published decimals.
    records = [integrity("2")] * 9 + [integrity("1")] * 130 + [integrity("0")] * 46
    records += [integrity("0", "interference")] * 10 + [integrity("1", "interference")] * 9
    records += [integrity("2", "interference")] * 20
    records += [accuracy("2", True)] * 40 + [accuracy("2", False)] * 260 + [accuracy("1", False)]
    result = aggregate(records)
    for scope in ("all", "valid"):
        assert round(result["memory_integrity"][f"recall({scope})"], 5) == 0.04865
        assert round(result["memory_integrity"][f"weighted_recall({scope})"], 5) == 0.4
        assert round(result["memory_accuracy"][f"interference_accuracy({scope})"], 5) == 0.25641
        assert result["memory_accuracy"][f"target_accuracy({scope})"] == 1
        assert round(result["memory_accuracy"][f"weighted_accuracy({scope})"], 5) == 0.99834
    assert round(result["memory_extraction_f1"], 5) == 0.09278


SCORES = st.sampled_from(["2", "1", "0", None])
RECORDS = st.lists(
    st.one_of(
        st.builds(
            integrity,
            SCORES,
            st.sampled_from(["system", "secondary", "interference"]),
            st.sampled_from([0.25, 0.5, 0.75, 1.0]),
            st.sampled_from(["Persona Memory", "Event Memory", "Relationship Memory"]),
        ),
        st.builds(accuracy, SCORES, st.sampled_from([True, False, None])),
        st.builds(
            JudgeRecord,
            st.just("update"),
            st.sampled_from(["correct", "hallucination", "omission", "other", None]),
            st.sampled_from(["Persona Memory", "Event Memory"]),
        ),
        st.builds(JudgeRecord, st.just("qa"), st.sampled_from(["correct", "hallucination", "omission", None])),
    ),
    max_size=30,
)


def by_loops(records, valid: bool) -> dict[str, Fraction | None]:
    """The same numbers, written out plainly and exactly."""
    sums = {}

    def add(name, top, bottom):
        tops, bottoms = sums.get(name, (Fraction(0), Fraction(0)))
        sums[name] = (tops + Fraction(top), bottoms + Fraction(bottom))

    for record in records:
        failed = record.label is None
        if failed and valid:
            continue
        if record.kind == "integrity":
            score = 0 if failed else int(record.label)
            if record.source == "interference":
                add("interference_accuracy", 1 if not failed and score == 0 else 0, 1)
            else:
                add("recall", 1 if score == 2 else 0, 1)
                add("weighted_recall", Fraction(score, 2) * Fraction(record.importance), record.importance)
            add(record.memory_type, 1 if score == 2 else 0, 1)
        elif record.kind == "accuracy":
            score = 0 if failed else int(record.label)
            add("weighted_accuracy", Fraction(score, 2), 1)
            if record.included:
                add("target_accuracy", Fraction(score, 2), 1)
        elif record.kind == "update":
            for label in ("correct", "hallucination", "omission", "other"):
                add(f"{label}_update_memory_ratio", 1 if record.label == label else 0, 1)
            add(record.memory_type, 1 if record.label == "correct" else 0, 1)
        else:
            for label in ("correct", "hallucination", "omission"):
                add(f"{label}_qa_ratio", 1 if record.label == label else 0, 1)
    return {name: top / bottom for name, (top, bottom) in sums.items()}


@given(RECORDS)
def test_agrees_with_loops(records) -> None:
    result = aggregate(records)
    for scope in ("all", "valid"):
        expected = by_loops(records, scope == "valid")
        groups = ("memory_integrity", "memory_accuracy", "memory_update", "question_answering", "memory_type_accuracy")
        found = {
            name.removesuffix(f"({scope})"): value
            for group in groups
            for name, value in result[group].items()
            if name.endswith(f"({scope})")
        }
        for name, value in found.items():
            assert value == (pytest.approx(float(expected[name])) if name in expected else None), name
    for kind, counts in result["counts"].items():
        of_kind = [record for record in records if record.kind == kind or (kind, record.included) == ("target", True)]
        if kind == "interference":
            of_kind = [record for record in records if record.source == kind]
        assert counts == {"all": len(of_kind), "valid": sum(record.label is not None for record in of_kind)}
    exact = by_loops(records, False)
    p, r = exact.get("target_accuracy"), exact.get("recall")
    if p is None or r is None:
        assert result["memory_extraction_f1"] is None
    else:
        assert result["memory_extraction_f1"] == pytest.approx(float(2 * p * r / (p + r)) if p + r else 0.0)

"""Presets of published protocols, and what is said of departures from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_cases import HALUMEM, LOCOMO, PERSONAMEM, Case, prepare

from deltamem.errors import DeltaMemError
from eval.summary import Summary, closing_lines


@pytest.mark.parametrize(
    ("case", "protocol", "values"),
    [
        (LOCOMO, "default", ("none", "hour", 20, [1, 2, 3, 4, 5], ["lenient", "strict"], 1, 1)),
        (LOCOMO, "mem0", ("none", "hour", 30, [1, 2, 3, 4], ["lenient"], 1, 1)),
        (LOCOMO, "memos", ("none", "hour", 20, [1, 2, 3, 4], ["lenient"], 3, 1)),
        (PERSONAMEM, "default", ("keep", False, 20, None, None, 1, 3)),
        (PERSONAMEM, "memos", ("keep", False, 20, None, None, 1, 3)),
    ],
)
def test_a_protocol_gives_its_values(case: Case, protocol: str, values: tuple[object, ...], tmp_path: Path) -> None:
    config = case.configured(tmp_path, f"protocol={protocol}")
    text = config.captions if case is LOCOMO else config.system_messages
    lists = (config.categories, config.judges) if case is LOCOMO else (None, None)
    assert (text, config.with_time, config.k, *lists, config.judge.runs, config.answer.runs) == values
    assert bool(config.departures()) == (protocol != "default")
    assert not any("where the protocol has" in sentence for sentence in config.departures())


def test_a_value_that_is_given_wins_and_is_told(tmp_path: Path) -> None:
    given = ["protocol=mem0", "k=20", "captions=all", "categories=[1,5]", "judge.runs=3", "answer.temperature=0.7"]
    config = LOCOMO.configured(tmp_path, *given, "system=mem0", "answer.model=qwen", "embedder.name=words")
    assert (config.k, config.captions, config.judge.runs) == (20, "all", 3)
    told = config.departures()
    assert told[:5] == [
        "k=20, where the protocol has 30",
        "categories=[1,5], where the protocol has [1,2,3,4]",
        "captions=all, where the protocol has none",
        "judge.runs=3, where the protocol has 1",
        "answer.temperature=0.7, where the protocol has 0.0",
    ]
    assert told[5:7] == [f"{part}.model=qwen, where published scores are of gpt-4o-mini" for part in ("answer", "judge")]
    assert any("only adds memories" in sentence for sentence in told) and any("(words)" in sentence for sentence in told)
    assert not any("qwen" in one for one in LOCOMO.configured(tmp_path, "protocol=mem0", "answer.kind=none").departures())


@pytest.mark.parametrize(("case", "protocol"), [(LOCOMO, "zep"), (HALUMEM, "mem0"), (PERSONAMEM, "mem0")])
def test_a_protocol_that_a_benchmark_has_not_is_refused(case: Case, protocol: str, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=f"config key 'protocol': Input should be 'default'.*, got '{protocol}'"):
        case.configured(tmp_path, f"protocol={protocol}")


def test_departures_are_in_the_summary_and_on_the_screen(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LOCOMO)
    summary = LOCOMO.run(tmp_path, "k=5", "cutoffs=[5,10]", "protocol=memos")
    assert (summary["protocol"]["name"], summary["protocol"]["divergences"][0]) == (
        "memos",
        "k=5, where the protocol has 20",
    )
    first, *_ = closing_lines(Summary.model_validate(summary), ())
    said = "protocol memos, from which this run departs: k=5, where the protocol has 20; the prompts are our own"
    assert first.startswith(said)

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
        (LOCOMO, "paper", ("none", "hour", 20, [1, 2, 3, 4], ["lenient"], 1, 1)),
        (LOCOMO, "mem0", ("none", "hour", 30, [1, 2, 3, 4], ["lenient"], 1, 1)),
        (LOCOMO, "memos", ("none", "hour", 20, [1, 2, 3, 4], ["lenient"], 3, 1)),
        (PERSONAMEM, "default", ("keep", False, 20, None, None, 1, 3)),
        (PERSONAMEM, "paper", ("keep", False, 20, None, None, 1, 3)),
        (PERSONAMEM, "memos", ("keep", False, 20, None, None, 1, 3)),
    ],
)
def test_a_protocol_gives_its_values(case: Case, protocol: str, values: tuple[object, ...], tmp_path: Path) -> None:
    config = case.configured(tmp_path, f"protocol={protocol}")
    text = config.captions if case is LOCOMO else config.system_messages
    lists = (config.categories, config.judges) if case is LOCOMO else (None, None)
    assert (text, config.with_time, config.k, *lists, config.judge.runs, config.answer.runs) == values
    assert bool(config.departures()) == (protocol in ("mem0", "memos") or (case, protocol) == (PERSONAMEM, "paper"))
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
    said = "protocol memos, from which this run departs: k=5, where the protocol has 20; every system has the same"
    assert first.startswith(said)


@pytest.mark.parametrize(
    ("case", "k", "judges", "runs"),
    [(LOCOMO, 20, ["lenient"], 1), (HALUMEM, 20, ["qa"], 1), (PERSONAMEM, 20, None, 3)],
)
def test_the_papers_protocol_is_one_switch(case: Case, k: int, judges: list[str] | None, runs: int, tmp_path: Path) -> None:
    config = case.configured(tmp_path, "protocol=paper", "system=deltamem", "attempts=null")
    assert config.embedder.name == "Qwen/Qwen3-Embedding-0.6B"
    settings = config.manager_settings()
    assert (settings.mode, settings.safeguards, settings.tries, settings.episode.k) == ("react", False, 1, 5)
    assert (getattr(config, config.depth), getattr(config, "judges", None), config.answer.runs) == (k, judges, runs)
    assert (config.answer.temperature, config.judge.temperature, config.judge.runs) == (0.0, 0.0, 1)
    assert not any("where the protocol has" in sentence for sentence in config.departures())


def test_what_departs_from_the_papers_protocol_is_told(tmp_path: Path) -> None:
    def told(case: Case, *overrides: str) -> list[str]:
        return list(
            case.configured(tmp_path, "protocol=paper", "judge.model=gpt-4o", "answer.model=gpt-4o", *overrides).departures()
        )

    ours = "is our own words for the same instructions"
    answers = f"the answerer's prompt {ours} (answer.prompt=FILE takes another)"
    every = f"the prompt of integrity, accuracy, update, qa {ours} (judge.prompt=FILE: another)"
    assert told(HALUMEM) == [answers, every]
    assert told(HALUMEM, "judge.prompt=own.txt")[-1] == every.replace(", qa", ""), "one file is for the judge of answers"
    # The model that published another one's scores is not it, whatever its name begins with.
    assert told(HALUMEM, "answer.model=openai/gpt-4o-2024-08-06", "judge.model=gpt-4o-mini", "version=long")[:2] == [
        "version=long, where the protocol has medium",
        "judge.model=gpt-4o-mini, where published scores are of gpt-4o",
    ]
    assert told(HALUMEM, "judge.prompt=eval_tools.py", "answer.prompt=a.md") == []
    assert told(HALUMEM, "judge.prompt=eval_tools.py", "answer.prompt=answer_locomo") == [answers], "one of ours, by name"
    assert told(HALUMEM, "judge.prompt.qa=a.md", "answer.prompt=a.md") == [every.replace(", qa", "")]
    for name, departs in (("/models/Qwen3-Embedding-0.6B", False), ("all-MiniLM-L6-v2", True)):
        assert any("embedder.name=" in one for one in told(PERSONAMEM, f"embedder.name={name}")) is departs
    assert "manager.safeguards=true, where the protocol has false" in told(LOCOMO, "manager.safeguards=true")

"""Answers at several budgets of context tokens, from one search."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import LOCOMO, Notebook, files, prepare, records, sent, served
from locomo_cases import JUDGED, write
from scripted_server import Reply, completion, serve

from deltamem.errors import DeltaMemError
from eval.summary import Summary, budget_lines

TURNS = 40
BUDGETS = "budgets=[1000,40,100,5000]"


def data(folder: Path) -> str:
    """Forty turns, found in their order; each question is about one of them."""
    turns = [{"speaker": "Ana", "dia_id": f"D1:{number}", "text": f"The word is {number}x."} for number in range(TURNS)]
    day = {"speaker_a": "Ana", "speaker_b": "Bo", "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": turns}
    asked = [
        {"question": f"What is {number}?", "answer": f"{number}x", "evidence": [f"D1:{number}"], "category": 4}
        for number in range(0, TURNS, 4)
    ]
    return f"data={write(folder / 'data.json', [{'sample_id': 'conv-1', 'conversation': day, 'qa': asked}])}"


def script(body: dict[str, Any]) -> Reply:
    """Answers what it is shown."""
    asked = body["messages"][0]["content"]
    if asked.startswith(JUDGED):
        same = re.search(r"Reference answer: (.*)\nAnswer to grade: \1\n", asked)
        return completion(f'{{"reason": "r", "label": "{"correct" if same else "wrong"}"}}')
    found = re.search(r"What is (\d+)\?", asked)
    return completion(f"{found[1]}x" if found and f"The word is {found[1]}x." in asked else "no idea")


def test_every_budget_is_filled_from_one_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = Notebook()
    prepare(monkeypatch, LOCOMO, system)
    overrides = [data(tmp_path), "judges=[lenient]", "k=2", "cutoffs=[2]", "cache=null"]
    with serve(script) as server:
        chosen = [*served(server), *overrides]
        plain = LOCOMO.run(tmp_path, *chosen, f"out={tmp_path / 'plain'}")
        searches, asked = len(system.searches), len(sent(server))
        summary = LOCOMO.run(tmp_path, *chosen, BUDGETS)
        assert len(system.searches) - searches == searches == 10, "one search a question"
        assert summary["headline"] == plain["headline"] and summary["scores"] == plain["scores"], "which k decides"
        by_budget = {one["budget"]: one for one in summary["budgets"]}
        assert list(by_budget) == [40, 100, 1000, 5000]
        shares = [one["scores"]["lenient"]["estimate"] for one in by_budget.values()]
        assert shares == sorted(shares) and shares[0] < 0.5 and shares[2:] == [1.0, 1.0]
        assert all(one["context_tokens"] <= budget for budget, one in by_budget.items())
        record = records(tmp_path)["conv-1/0"]
        assert [len(record["retrieved"]), len(record["deeper"])] == [4, TURNS - 4]
        assert record["budgets"][2]["shown"] == record["budgets"][3]["shown"] == TURNS
        # All forty turns fit 1,000 tokens, so 5,000 ask for nothing.
        assert len(sent(server)) - asked == 4 * asked
        assert summary["cost"]["budgets"]["calls"] == 3 * 10 * 2
        before, asked = files(tmp_path), len(sent(server))
        again = LOCOMO.run(tmp_path, *chosen, BUDGETS)
        assert (files(tmp_path), len(sent(server))) == (before, asked) and again["budgets"] == summary["budgets"]
        more = LOCOMO.run(tmp_path, *chosen, "budgets=[40,100,200,1000]")
        assert len(sent(server)) - asked == 2 * 10, "only the new budget is asked for"
        assert [one["budget"] for one in more["budgets"]] == [40, 100, 200, 1000]
        with pytest.raises(DeltaMemError, match="made with budget_k = 400, not None"):
            LOCOMO.run(tmp_path, *chosen)
    *_, shown, _ = budget_lines(Summary.model_validate(summary))
    assert "with 1,000 context tokens (" in shown and "shown): lenient 100.0" in shown


def test_a_budget_that_failed_is_asked_for_again_and_only_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = Notebook(break_search={"What is 0?"})
    prepare(monkeypatch, LOCOMO, notebook)
    broken = True

    def fails(body: dict[str, Any]) -> Reply:
        asked = body["messages"][0]["content"]
        answers = not asked.startswith(JUDGED) and "What is 8?" in asked
        return completion("") if broken and answers and "The word is 39x." in asked else script(body)

    with serve(fails) as server:
        chosen = [*served(server), data(tmp_path), "judges=[lenient]", "k=2", "cutoffs=[2]", "cache=null", BUDGETS]
        summary = LOCOMO.run(tmp_path, *chosen)
        shares = [one["scores"]["lenient"]["estimate"] for one in summary["budgets"]]
        assert shares[2:] == [0.8, 0.8], "silence is wrong at any budget, and so is a search that failed"
        assert summary["questions"]["failed"] == 2 and summary["headline"]["silent"] == 0
        largest = summary["budgets"][-1]
        assert largest["scores"]["lenient"]["failed"] == 1
        assert largest["withheld"]["lenient"].startswith("judge or machinery failed at 1 of 10")
        broken, asked, notebook.break_search = False, Counter(sent(server)), ()
        summary = LOCOMO.run(tmp_path, *chosen)
        again = Counter(sent(server)) - asked
        assert sum(count for text, count in again.items() if "What is 8?" in text) == 2, "an answer and its judge"
    assert [one["scores"]["lenient"]["estimate"] for one in summary["budgets"]][2:] == [1.0, 1.0]

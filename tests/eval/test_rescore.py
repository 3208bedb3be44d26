"""Finished runs are judged anew without asking for answers again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import BEAM, HALUMEM, LOCOMO, Case, on, prepare, records, served
from scripted_server import Reply, completion, failure, is_check, serve

from deltamem.errors import DeltaMemError


def texts(folder: Path) -> dict[str, list[Any]]:
    found = records(folder)
    return {key: [answer.get("text") for answer in found[key].get("answers", ())] for key in sorted(found)}


@on(LOCOMO, HALUMEM, BEAM)
def test_only_judges_are_asked(case: Case, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    with serve(case.script) as server, serve(case.script) as other:
        before = case.run(first, *served(server))
        asked = len(server.requests)
        given = [*served(server), f"answers_from={first / 'out'}", f"judge.base_url={other.url}", "judge.model=stern"]
        after = case.run(again, *given)
        assert len(server.requests) == asked, "neither the answerer nor the manager"
        judged = [body for body in other.requests if not is_check(body)]
        assert {body["model"] for body in judged} == {"stern"} and not any(case.is_answer(body) for body in judged)
        assert len(judged) == sum(not is_check(body) and not case.is_answer(body) for body in server.requests)
        assert case.run(again, *given)["scores"] == after["scores"] and len(other.requests) == len(judged) + 1
    assert texts(again) == texts(first) and after["scores"] == before["scores"]
    assert sum("answers are taken over from a finished run" in text for text in after["warnings"]) == 1
    source = after["making"]["fingerprint"]["answers_from"]
    assert [one["made"] for one in source] == before["making"]["made"]
    assert len(after["making"]["made"]) == 2 and not any("mixed" in text for text in after["warnings"])
    with pytest.raises(DeltaMemError, match="made with answers_from = '"):
        case.run(again, *given[:-3], *given[-2:])


def test_another_judge_has_the_say_at_every_budget(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LOCOMO)
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    keys = ("budgets=[1,5000]", "judges=[lenient]", "limit=2")
    with serve(LOCOMO.script) as server, serve(lambda body: completion('{"reason": "r", "label": "wrong"}')) as stern:
        runs = [LOCOMO.run(first, *served(server), *keys)]
        taken = [f"answers_from={first / 'out'}", f"judge.base_url={stern.url}"]
        runs.append(LOCOMO.run(again, *served(server), *keys, *taken))
    found = [[one["scores"]["lenient"]["estimate"] for one in run["budgets"]] for run in runs]
    assert found == [[1.0, 1.0], [0.0, 0.0]] and runs[1]["scores"]["lenient"]["all"]["estimate"] == 0


def test_what_is_not_a_judge_must_agree(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LOCOMO)
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    with serve(LOCOMO.script) as server:
        LOCOMO.run(first, *served(server), "limit=2")
        taken = [*served(server), f"answers_from={first / 'out'}"]
        for override, said in (
            ("k=30", "was made with k = 20, not 30; only the judges may differ"),
            ("system=naive_rag", "was made with system = 'full_context', not 'naive_rag'"),
            ("limit=null", r"lacks answers to 7 of 9 questions, for example conv-\d/\d; finish that run first"),
            (f"answers_from={tmp_path}", "is not the folder of a run"),
        ):
            with pytest.raises(DeltaMemError, match=said):
                LOCOMO.run(again, *taken, "limit=2", override)
        assert not (again / "out" / "manifest.json").exists()
        assert LOCOMO.run(again, *taken, "limit=2", "judges=[strict]")["protocol"]["judges"] == ["strict"]


def test_answers_to_a_search_that_became_void_are_not_taken_over(tmp_path: Path, monkeypatch) -> None:
    """A session was ingested after all, and the run was killed before its questions were searched for again."""
    prepare(monkeypatch, LOCOMO)
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    with serve(LOCOMO.script) as server:
        LOCOMO.run(first, *served(server))
        file = first / "out" / "retrieved.jsonl"
        *rest, last = file.read_text().splitlines()
        file.write_text("\n".join([*rest, json.dumps(json.loads(last) | {"error": "a session came later"})]) + "\n")
        with pytest.raises(DeltaMemError, match="lacks sessions or searches; finish that run first"):
            LOCOMO.run(again, *served(server), f"answers_from={first / 'out'}")


def test_failures_must_be_mended_first_and_silence_stays_silence(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LOCOMO)
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir(), again.mkdir()
    broken = True

    def script(body: dict[str, Any]) -> Reply:
        asked = body["messages"][-1]["content"]
        if LOCOMO.is_answer(body) and "why?" in asked:
            return completion("")
        return failure(400) if broken and LOCOMO.is_answer(body) and "lost?" in asked else LOCOMO.script(body)

    with serve(script) as server:
        LOCOMO.run(first, *served(server))
        with pytest.raises(DeltaMemError, match="lacks answers to 1 of 9 questions, for example conv-1/3; "):
            LOCOMO.run(again, *served(server), f"answers_from={first / 'out'}")
        broken = False
        before = LOCOMO.run(first, *served(server))
        asked = len(server.requests)
        after = LOCOMO.run(again, *served(server), f"answers_from={first / 'out'}", "judges=[lenient]")
        assert not any(LOCOMO.is_answer(body) for body in server.requests[asked:] if not is_check(body))
    silent = json.loads((again / "out" / "summary.json").read_text())["headline"]["silent"]
    assert silent == before["headline"]["silent"] == 1
    assert after["scores"]["lenient"] == before["scores"]["lenient"]

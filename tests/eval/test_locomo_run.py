"""Whole runs of the small LoCoMo file: what is counted, shown to whom, and never asked for twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmark_cases import LOCOMO, Notebook, command, finish, prepare, records, sent, served
from locomo_cases import TRICK, audit, benchmark, script, write
from rule_model import rules
from scripted_server import Served, is_check, serve

from deltamem.errors import DeltaMemError
from eval import data as published
from eval.locomo.__main__ import table
from eval.summary import Summary


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)


def prompts(server: Served) -> list[str]:
    """What was asked, without the checks whether the server is there."""
    return [json.loads(request)[0][-1]["content"] for request in sent(server)]


def test_offline_recall_by_hand(tmp_path: Path) -> None:
    summary = LOCOMO.run(tmp_path, "k=2", "cutoffs=[2,1]", "answer.kind=none", "captions=all", "with_time=true")
    found = records(tmp_path)
    ranks = {key: record.get("ranks") for key, record in found.items()}
    # "sister dog?" is equally close to D2:1 and D10:1; the earlier one comes first. One store, so 2 k are searched.
    expected = [[1], [1, 2, 3], None, None, [1], [1], [1], [1]]
    assert ranks == {f"conv-1/{number}": found for number, found in enumerate(expected)} | {"conv-2/0": [1]}
    assert list(summary["scores"]) == ["recall@1", "recall@2", "mrr", "gold_words_shown"]
    # All four passages of conv-1 are shown; "lost?" and "why?" have no evidence.
    shown = [record.get("gold_words_shown") for record in found.values()]
    assert (shown.count(1.0), shown.count(None)) == (7, 2)
    at_one = summary["scores"]["recall@1"]
    assert at_one["all"]["estimate"] == pytest.approx((1 + 1 / 3 + 1 + 1 + 1) / 5)
    assert (at_one["all"]["count"], at_one["all"]["groups"]) == (5, 2)
    assert at_one["multi-hop"]["estimate"] == pytest.approx(1 / 3)
    assert at_one["open-domain"] is None
    assert at_one["adversarial"]["estimate"] == 1.0


def test_every_question_of_the_file_is_accounted_for(tmp_path: Path) -> None:
    summary = LOCOMO.run(tmp_path, "categories=[1,4]", "limit=2", "answer.kind=none", "conversations=[conv-1]")
    left_out = {"conversations": 1, "category": 4, "limit": 2}
    assert summary["accounting"] == {"total": 9, "asked": 2, "failed": 0, "not_asked": left_out}
    assert summary["questions"]["by_category"] == {"single-hop": 1, "multi-hop": 1}
    assert summary["version"].startswith("unknown version (2 conversations, 9 questions), a sample: ")
    assert "intervals: over questions, all of one" in str(table(Summary.model_validate(summary)).caption)
    summary = LOCOMO.run(tmp_path, "answer.kind=none")
    assert "intervals: bootstrap over conversations" in str(table(Summary.model_validate(summary)).caption)
    assert summary["accounting"]["asked"] == summary["accounting"]["total"] == 9
    assert summary["data"]["questions_that_occur_again"] == 1
    found = records(tmp_path)
    assert found["conv-1/6"]["notes"] == ["suggests the wrong answer 'a cat'"]
    unusable = [f"evidence '{name}' names no turn" for name in ("D", "D9:9")]
    assert found["conv-1/3"]["notes"] == [*unusable, "no usable evidence"]


def test_answers_are_judged_by_both_and_category_5_stands_apart(tmp_path: Path) -> None:
    audited = [f"audit={write(tmp_path / 'a.json', audit())}", "gold=audited"]
    with serve(script) as server:
        summary = LOCOMO.run(tmp_path, *served(server, "naive_rag"), *audited)
        with pytest.raises(DeltaMemError, match="made with audit_sha256 = "):
            LOCOMO.run(tmp_path, *served(server, "naive_rag"))
    assert summary["ceiling"]["all"] == pytest.approx(6 / 7)
    judged = "\n".join(prompts(server))
    assert "Reference answer: 2023\n" in judged and "Reference answer: 2022\n" not in judged
    scores = summary["scores"]
    assert summary["mode"] == "judged"
    assert scores["lenient"]["all"]["estimate"] == 1.0
    assert scores["strict"]["all"]["estimate"] == pytest.approx(2 / 7)  # both bicycles
    assert scores["strict"]["single-hop"]["estimate"] == pytest.approx(2 / 4)
    assert scores["strict"]["all"]["count"] == scores["locomo_f1"]["all"]["count"] == 7
    assert scores["locomo_f1"]["all"]["estimate"] == pytest.approx(2 / 7)
    for name in ("abstention", "abstention_judge"):
        assert scores[name]["adversarial"]["estimate"] == 0.0 and scores[name]["all"] is None
    assert scores["lenient"]["adversarial"] is None
    asked = prompts(server)
    # 9 answers, 2 judges on 7, 1 judge on 2; one question occurs twice, and the cache has the answers of the first.
    assert len(asked) == len(set(asked)) == 9 + 2 * 7 + 2 - 3
    cost = summary["cost"]
    assert (cost["answer"]["calls"], cost["answer"]["cached"], cost["answer"]["prompt_tokens"]) == (9, 1, 9000)
    assert (cost["judge"]["calls"], cost["judge"]["cached"]) == (16, 2)
    assert cost["judge"]["prompt_tokens"] == 14 * 100 + 2 * 10
    assert sum(usage["requests"] for usage in summary["this_run"].values()) == len(server.requests)
    # The wrong answer that category 5 suggests is shown to its own judge alone.
    trick = [text for text in asked if text.startswith(TRICK)]
    assert sorted(re.findall(r"Suggested answer \(wrong\): (.*)", "\n".join(trick))) == ["a cat", "yes"]
    assert not any("a cat" in text for text in asked if not text.startswith(TRICK))


def test_the_oracle_is_shown_the_evidence_and_has_no_recall(tmp_path: Path) -> None:
    data = benchmark()
    data[0]["qa"][5]["evidence"] = ["D2:1"]  # of a question that occurs twice: both are shown what either names
    summary = LOCOMO.run(tmp_path, "system=oracle", f"data={write(tmp_path / 'twice.json', data)}")
    assert not any(name.startswith("recall") for name in summary["scores"])
    shown = [len(record.get("retrieved", [])) for _, record in sorted(records(tmp_path).items())]
    assert shown == [1, 3, 0, 0, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("mode", ["react", "assisted"])
def test_deltamem_keeps_two_memories(tmp_path: Path, mode: str) -> None:
    with serve(rules) as server:
        overrides = [f"base_url={server.url}", "manager.model=tiny", "answer.kind=none", "system=deltamem"]
        summary = LOCOMO.run(tmp_path, *overrides, f"manager.mode={mode}")
    assert summary["system_facts"]["mode"] == mode
    assert all(("response_format" in body) == (mode == "assisted") for body in server.requests if not is_check(body))
    assert (summary["failures"]["count"], summary["sessions"]["applied"], summary["memories"]["stores"]) == (0, 6, 4)
    folders = sorted(path.name for path in (tmp_path / "out" / "memory").iterdir() if path.is_dir())
    assert folders == ["conv-1.Ana", "conv-1.Bo", "conv-2.Cy", "conv-2.Di"]


def test_questions_are_searched_again_once_a_missing_session_came_in(tmp_path: Path, monkeypatch) -> None:
    system = Notebook(per_speaker=True, break_ingest={"conv-1.Ana/session_10", "conv-1.Bo/session_10"})
    prepare(monkeypatch, LOCOMO, system)
    with serve(script) as server:
        overrides = [*served(server, "naive_rag"), "cache=null"]
        summary = LOCOMO.run(tmp_path, *overrides)
        assert summary["sessions"] == {"total": 6, "applied": 4, "unreadable": 0, "failed": 2, "late": 0}
        assert summary["failures"]["by_stage"] == {"ingest": 2}
        assert len(records(tmp_path)["conv-1/0"]["retrieved"]) == 4
        asked = len(prompts(server))
        summary = LOCOMO.run(tmp_path, *overrides)  # still missing: what was found stays, and is not answered again
        assert (len(prompts(server)), summary["failures"]["count"]) == (asked, 2)
        system.break_ingest = ()
        assert LOCOMO.run(tmp_path, *overrides)["failures"]["count"] == 0
        assert len(records(tmp_path)["conv-1/0"]["retrieved"]) == 6
        # All of conv-1 is answered and judged anew, conv-2 is not: 6 with two judges, 2 with one.
        assert len(prompts(server)) == asked + 6 * 3 + 2 * 2


def test_columns_are_in_the_order_of_papers_with_their_counts(tmp_path: Path, monkeypatch, capsys) -> None:
    overrides = [*LOCOMO.write(tmp_path), f"audit={write(tmp_path / 'a.json', audit())}", f"out={tmp_path / 'out'}"]
    shown = command(LOCOMO, monkeypatch, capsys)(*overrides, "resamples=20", "answer.kind=none").out
    rows = [line.split() for line in shown.splitlines()]
    names = rows.index(["single-hop", "multi-hop", "open-domain", "temporal", "overall"])
    assert rows[names + 1] == ["4", "1", "1", "1", "7"]
    assert ["recall@5", "100.0", "100.0", "-", "100.0", "100.0"] in rows
    assert ["ceiling", "100.0", "100.0", "100.0", "0.0", "85.7"] in rows
    assert "Questions: 9 = 9 asked + 0 failed." in " ".join(shown.split())
    assert any(row[:2] == ["adversarial", "2"] for row in rows)


@pytest.mark.slow
def test_the_real_file_offline(tmp_path: Path) -> None:
    if (path := published.find(published.LOCOMO)) is None:
        pytest.skip("LoCoMo is not in a data folder")
    done = finish(LOCOMO, tmp_path, f"data={path}", "out=out")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["version"] == "LoCoMo-10 (1,986 questions)"
    assert summary["accounting"]["asked"] == summary["accounting"]["total"] == 1986
    assert list(summary["questions"]["by_category"].values()) == [841, 282, 96, 321, 446]
    assert summary["data"]["questions_that_occur_again"] == 11
    recall = summary["scores"]["recall@20"]
    assert recall["all"]["count"] == 1536  # four have no usable evidence
    assert all(interval["estimate"] > 0.2 for interval in recall.values())
    lexical = [summary["scores"][name]["all"] for name in ("locomo_f1", "set_f1", "token_set_f1", "bleu1")]
    assert [interval["count"] for interval in lexical] == [1540] * 4
    assert all(0.05 < interval["estimate"] < 0.2 for interval in lexical)  # the extractive answerer is a floor

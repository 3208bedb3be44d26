"""What a run may claim when its answerer, its judge or its search fails just where the answer would be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import LOCOMO, Notebook, command, prepare, records, served
from locomo_cases import JUDGED, TRICK, write
from scripted_server import Reply, Script, completion, serve

from deltamem.errors import DeltaMemError
from eval.summary import Summary, headline_line, warning_lines

ASKED, RIGHT = 50, 20


def data(folder: Path, conversations: int = 1) -> str:
    """A LoCoMo file of conversations with 50 questions each: which question is easy, only the answerer knows."""
    day = {"speaker_a": "Ana", "speaker_b": "Bo", "session_1_date_time": "1:56 pm on 8 May, 2023"}
    turns = [{"speaker": "Ana", "dia_id": f"D1:{number}", "text": f"The word is dog {number}."} for number in range(50)]
    samples = [
        {
            "sample_id": f"conv-{name}",
            "conversation": day | {"session_1": turns},
            "qa": [
                {
                    "question": f"{'easy' if number % 5 < 2 else 'hard'} {name}.{number}?",
                    "answer": f"word {name}.{number}",
                    "evidence": [f"D1:{number}"],
                    "category": 4,
                }
                for number in range(ASKED)
            ],
        }
        for name in range(conversations)
    ]
    return f"data={write(folder / 'data.json', samples)}"


def models(hard: Reply, judged_wrong: Reply | None = None) -> Script:
    """An answerer that knows the easy ones, says `hard` otherwise, and a judge that is honest or says something else."""

    def script(body: dict[str, Any]) -> Reply:
        asked = body["messages"][0]["content"]
        if asked.startswith((JUDGED, TRICK)):
            if re.search(r"Reference answer: (.*)\nAnswer to grade: \1\n", asked):
                return completion('{"reason": "r", "label": "correct"}')
            return judged_wrong or completion('{"reason": "r", "label": "wrong"}')
        found = re.search(r"easy (\d\.\d+)\?", asked)
        return completion(f"word {found[1]}") if found else hard

    return script


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(script: Script, *overrides: str, conversations: int = 1) -> dict[str, Any]:
        prepare(monkeypatch, LOCOMO, Notebook())
        with serve(script) as server:
            chosen = [*served(server), data(tmp_path, conversations), "judges=[lenient]", "judge.attempts=1", *overrides]
            return LOCOMO.run(tmp_path, *chosen)

    return run


WRONG = completion("no idea")
CUT = completion(None, finish="length", reasoning_content="So many words")


@pytest.mark.parametrize(
    "reply", [completion(""), CUT, completion("<think>So", finish="length")], ids=["empty", "cut", "tag"]
)
def test_silence_is_as_wrong_as_a_wrong_answer(attack: Callable[..., dict[str, Any]], reply: Reply, tmp_path: Path) -> None:
    honest = attack(models(WRONG), f"out={tmp_path / 'honest'}")
    assert (honest["headline"]["score"]["estimate"], honest["headline"]["silent"]) == (RIGHT / ASKED, 0)
    assert not any(name.endswith("(valid)") for name in honest["scores"])
    summary = attack(models(reply))
    head = summary["headline"]
    assert (head["metric"], head["score"]["estimate"], head["n"], head["of"]) == ("lenient", RIGHT / ASKED, ASKED, ASKED)
    assert head["score"] == honest["headline"]["score"]
    assert (head["silent"], head["failures"], head["withheld"]) == (ASKED - RIGHT, 0, None)
    assert summary["withheld"] == {}
    valid = summary["scores"]["lenient(valid)"]["all"]
    assert (valid["estimate"], valid["count"]) == (1.0, RIGHT), "what was printed before"
    assert summary["failures"]["by_stage"] == {"silent": ASKED - RIGHT}, "and not once more for each judge"
    assert f"{ASKED - RIGHT:,} silent" in headline_line(Summary.model_validate(summary))
    cut = [line for line in warning_lines(Summary.model_validate(summary)) if "answer.max_tokens=" in line]
    assert len(cut) == (reply.body != completion("").body)
    assert not cut or "enable_thinking=false" in cut[0]


def test_answers_that_are_cut_while_they_speak_need_a_larger_limit_and_not_less_thinking(attack) -> None:
    summary = attack(models(completion("It was in the", finish="length")))
    (cut,) = [line for line in warning_lines(Summary.model_validate(summary)) if "answer.max_tokens=" in line]
    assert f"{ASKED - RIGHT:,} of " in cut and cut.endswith("; raise answer.max_tokens")


def test_a_judge_that_writes_prose_when_the_answer_is_wrong_has_no_headline(
    attack, tmp_path: Path, monkeypatch, capsys
) -> None:
    summary = attack(models(WRONG, completion("It is hard to say.")))
    head = summary["headline"]
    assert (head["score"]["estimate"], head["n"], head["failures"]) == (RIGHT / ASKED, ASKED, ASKED - RIGHT)
    assert head["withheld"] == "judge or machinery failed at 30 of 50 (60.0%, at most 1% may)"
    assert summary["withheld"].keys() == {"lenient", "lenient(valid)"}, "words are compared without a judge"
    with serve(models(WRONG, completion("It is hard to say."))) as server:
        shown = command(LOCOMO, monkeypatch, capsys)(
            data(tmp_path), *served(server), "judges=[lenient]", "resamples=20", f"out={tmp_path / 'shown'}"
        )
    assert "lenient withheld, judge or machinery failed at 30 of 50" in shown.out
    row = next(line.split() for line in shown.out.splitlines() if line.split()[:1] == ["lenient"])
    assert set(row[1:]) == {"withheld", "-"}
    assert json.loads((tmp_path / "shown" / "summary.json").read_text())["scores"]["lenient(valid)"]["all"]["estimate"] == 1


def test_one_failure_in_a_hundred_is_shown_and_more_are_not(attack: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for failing, withheld in ((2, False), (3, True)):
        left = failing

        def script(body: dict[str, Any]) -> Reply:
            nonlocal left
            judged = body["messages"][0]["content"].startswith(JUDGED)
            left -= judged
            return completion("prose") if judged and left >= 0 else models(WRONG)(body)

        head = attack(script, f"out={tmp_path / str(failing)}", conversations=4)["headline"]
        assert (head["n"], head["failures"], head["withheld"] is not None) == (200, failing, withheld)


def test_a_search_that_raises_on_hard_questions_finds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hard = [f"hard 0.{number}?" for number in range(20, ASKED) if number % 5 >= 2]
    found = {}
    for name, broken in (("honest", ()), ("raises", hard)):
        prepare(monkeypatch, LOCOMO, Notebook(break_search=broken))
        with serve(models(WRONG)) as server:
            chosen = [*served(server), data(tmp_path), "judges=[lenient]", "k=10", "cutoffs=[10]", f"out={tmp_path / name}"]
            found[name] = LOCOMO.run(tmp_path, *chosen)["scores"]
    honest, raises = (found[name]["recall@10"]["all"] for name in ("honest", "raises"))
    assert (raises["estimate"], raises["count"]) == (honest["estimate"], ASKED) == (0.2, ASKED)
    assert raises["failed"] == len(hard)
    assert found["raises"]["recall@10(valid)"]["all"]["estimate"] > 0.2, "what was printed before"
    assert found["raises"]["lenient"]["all"]["estimate"] == RIGHT / ASKED


def test_questions_whose_search_failed_have_failed_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare(monkeypatch, LOCOMO, Notebook(break_search={"hard 0.2?"}))
    with serve(models(WRONG)) as server:
        overrides = [*served(server), data(tmp_path), "answer.runs=2", "judge.runs=2"]
        summary = LOCOMO.run(tmp_path, *overrides)
        assert summary["failures"]["by_stage"] == {"search": 1}, "counted once"
        record = records(tmp_path)["conv-0/2"]
        assert [answer["error"] for answer in record["answers"]] == ["search: RuntimeError: no index"] * 2
        assert record["answers"][0]["verdicts"].keys() == {"lenient", "lenient#2", "strict", "strict#2"}
        assert set(record["answers"][0]["scores"].values()) == {0.0}
        prepare(monkeypatch, LOCOMO, Notebook())
        summary = LOCOMO.run(tmp_path, *overrides)
    assert summary["failures"]["count"] == 0 and "error" not in records(tmp_path)["conv-0/2"]
    assert summary["scores"]["lenient"]["all"]["estimate"] == RIGHT / ASKED


def test_runs_of_a_judge_are_averaged_and_their_spread_is_told(attack: Callable[..., dict[str, Any]]) -> None:
    def script(body: dict[str, Any]) -> Reply:
        asked = body["messages"][0]["content"]
        wavers = asked.startswith(JUDGED) and body["seed"] > 0 and re.search(r"hard \d\.\d*2\?", asked)
        return completion('{"reason": "r", "label": "correct"}') if wavers else models(WRONG)(body)

    summary = attack(script, "judge.runs=3")
    head = summary["headline"]
    assert head["judge_runs"] == pytest.approx([0.4, 0.5, 0.5])  # one hard question in six ends in 2
    assert (head["score"]["estimate"], head["n"]) == (pytest.approx(1.4 / 3), ASKED)
    assert "3 runs of the judge: 40.0 to 50.0" in headline_line(Summary.model_validate(summary))
    assert summary["cost"]["judge"]["calls"] == 3 * ASKED


def test_thinking_is_turned_off_by_fields_of_the_request(attack: Callable[..., dict[str, Any]]) -> None:
    """As an ordinary Qwen3 on vLLM, whose thoughts fill the limit of tokens."""

    def thinks(body: dict[str, Any]) -> Reply:
        direct = body.get("chat_template_kwargs") == {"enable_thinking": False}
        return models(WRONG)(body) if direct else completion("<think>So many", finish="length")

    off = "extra_body.chat_template_kwargs.enable_thinking=false"
    summary = attack(thinks, f"answer.{off}", f"judge.{off}")
    assert (summary["headline"]["score"]["estimate"], summary["failures"]["count"]) == (RIGHT / ASKED, 0)
    with pytest.raises(DeltaMemError, match="made with answer = "):
        attack(thinks)

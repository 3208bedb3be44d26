"""``python -m eval.personamem`` with a model that answers, and with what people get wrong."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from personamem_cases import asked, records, rows, write_data
from scripted_server import Reply, Served, completion, serve

from deltamem.config import CONFIGS
from deltamem.errors import DeltaMemError
from eval import summary as summaries
from eval.personamem.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _quick_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "git_commit", lambda: None)  # asks git
    monkeypatch.setattr(summaries, "versions", lambda packages: {})  # looks through all packages


def config(tmp_path: Path, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("personamem", [*write_data(tmp_path), f"out={tmp_path}/out", "resamples=20", *overrides])


def calls(server: Served) -> Counter[tuple[str, str, int]]:
    """How often each prompt was sent in each answer run, without the checks of the endpoint."""
    bodies = [body for body in server.requests if asked(body)]
    return Counter((asked(body), body["messages"][-1]["content"], body["seed"]) for body in bodies)


def script(body: dict[str, Any]) -> Reply:
    """Seven questions, three runs each, the right letter is (b)."""
    run = body.get("seed", 0) % 1000
    replies = {
        "tea?": "<final_answer>(b)</final_answer>",
        "User: tea or coffee?": ("<final_answer>(b)", "<final_answer>(c)", "<final_answer>(c)")[run % 3],
        "dog?": "It depends on the mood.",  # prose
        "coffee?": "<final_answer>(b) or (c)",  # two letters
        "bicycle?": "",  # nothing
        "boat?": "<think>(a)? (d)?</think>b" if run else "(a)",
        "the boat?": "Surely (b)",
    }
    return completion(replies.get(asked(body), "yes"), prompt_tokens=100, tokens=5)


def model(server: Served) -> list[str]:
    return ["system=full_context", f"base_url={server.url}", "answer.model=tiny"]


def test_answers_of_a_model_are_scored_by_letter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(script) as server:
        assert main(config(tmp_path, *model(server))) == 1  # one question has no answer
        sent = calls(server)
        assert sum(sent.values()) == 7 * 3 + 3  # the empty answer is drawn a second time
        printed = capsys.readouterr()
        assert "PersonaMem of unknown size, full_context (answered)" in printed.out
        assert "6 of 7 questions answered" in printed.out
        assert "3 failures (3 in answer)" in printed.err
        assert "the answerer returned nothing" in printed.err
        check_summary(json.loads((tmp_path / "out" / "summary.json").read_text()))
        before = len(server.requests)
        assert main(config(tmp_path, *model(server))) == 1
        # Only the endpoint is checked: the empty answers, too, are in the cache.
        assert [asked(body) for body in server.requests[before:]] == [""]


def check_summary(summary: dict[str, Any]) -> None:
    scores = summary["scores"]
    # Right in each of three runs: tea 3, tea or coffee 1, dog 0, coffee 0, boat 2, the boat 3; the bicycle does not count.
    assert scores["accuracy"]["all"]["estimate"] == pytest.approx(9 / 18)
    assert scores["accuracy"]["all"]["count"] == 6
    assert [scores[f"accuracy_run_{run}"]["all"]["estimate"] for run in (1, 2, 3)] == pytest.approx([3 / 6] * 3)
    assert scores["pass@1"]["all"]["estimate"] == pytest.approx(9 / 18)
    assert scores["pass@2"]["all"]["estimate"] == pytest.approx((1 + 2 / 3 + 0 + 0 + 1 + 1) / 6)
    assert scores["pass@3"]["all"]["estimate"] == pytest.approx(4 / 6)
    assert scores["accuracy"]["track_full_preference_evolution"]["estimate"] == pytest.approx(4 / 6)
    over_runs = summary["accuracy_over_runs"]
    assert over_runs["all"] == {"per_run": [0.5, 0.5, 0.5], "mean": 0.5, "std": 0.0}
    assert over_runs["track_full_preference_evolution"]["per_run"] == [1.0, 0.5, 0.5]
    assert over_runs["track_full_preference_evolution"]["std"] == pytest.approx((1 / 18) ** 0.5)
    assert summary["letters_named"] == {"one": 12, "several": 3, "none": 3}
    assert summary["questions"] | {"by_category": {}} == {
        "total": 7,
        "asked": 7,
        "answered": 6,
        "failed": 1,
        "by_category": {},
    }
    assert summary["failures"]["by_stage"] == {"answer": 3}
    assert "recall@5" not in scores  # the whole context has no order
    assert summary["mode"] == "answered"
    assert summary["making"]["models"]["judge"] is None
    assert list(summary["making"]["prompt_hashes"]) == ["answer_personamem"]
    assert summary["cost"]["answer"]["calls"] == 24


def test_each_question_is_shown_its_own_history_and_options(tmp_path: Path) -> None:
    with serve(lambda body: completion("(b)")) as server:
        assert main(config(tmp_path, *model(server), "answer.runs=1")) == 0
        prompts = {asked(body): body["messages"][-1]["content"] for body in server.requests}
    assert "(b) Have what you like." in prompts["tea?"]
    assert "That makes sense." not in prompts["tea?"]  # the last message, which comes after the question
    assert "The old drink upset my stomach." in prompts["tea?"]
    assert "The old drink upset my stomach." not in prompts["User: tea or coffee?"]
    assert "User: These days I prefer coffee" in prompts["User: tea or coffee?"]
    assert "I sold the boat." in prompts["boat?"]
    assert "I sold the boat." not in prompts["the boat?"]
    assert "2024" not in prompts["tea?"]  # made-up dates are not shown


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system_messages=maybe"], "config key 'system_messages'"),
        (["answer.model=tiny", "base_url=http://localhost:1/v1", "answer.prompt=none_such"], "prompt 'none_such' does not"),
        (["questions=absent.csv"], r"absent.csv: No such file"),
        (["data=absent", "questions=null"], "data=absent is not a folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(DeltaMemError, match=re.escape(message)):
        main(config(tmp_path, *overrides))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.json*"))


def test_a_folder_names_both_files(tmp_path: Path) -> None:
    questions, shared = (override.partition("=")[2] for override in write_data(tmp_path))
    Path(questions).rename(tmp_path / "questions_32k.csv")
    Path(shared).rename(tmp_path / "shared_contexts_32k.jsonl")
    with serve(lambda body: completion("(b)")) as server:
        overrides = [f"data={tmp_path}", f"out={tmp_path}/out", *model(server), "answer.runs=1"]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            assert main(compose("personamem", overrides)) == 0
    assert len(records(tmp_path / "out" / "questions.jsonl")) == len(rows())

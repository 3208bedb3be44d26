"""``python -m eval.locomo`` as a person runs it: results on disk, and one sentence for what is wrong."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from benchmark_command import finish, in_process, start
from locomo_cases import WordEmbedder, audit, benchmark, write
from scripted_server import completion, serve

import eval.runner as evaluation
from eval.data import LOCOMO, find
from eval.judge import load_calibration
from eval.locomo.__main__ import main


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The command in this process, with an embedder that needs no weights."""
    monkeypatch.chdir(tmp_path)
    return in_process("locomo", main, evaluation, WordEmbedder, monkeypatch, capsys)


def test_writes_records_and_summary_and_nothing_else(command, tmp_path: Path) -> None:
    data = write(tmp_path / "l.json", benchmark())
    path = write(tmp_path / "a.json", audit())
    done = command(f"data={data}", f"audit={path}", "cutoffs=[2,1]", "out=result", "resamples=50")
    assert (done.code, done.err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "l.json", "result"]
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [
        "making.json",
        "passages.jsonl",
        "questions.jsonl",
        "report.html",
        "retrieved.jsonl",
        "sessions.jsonl",
        "summary.json",
    ]
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert summary["version"] == "unknown version (2 conversations, 9 questions)"
    assert {"recall@1", "recall@2", "mrr", "locomo_f1", "abstention"} <= set(summary["scores"])
    assert summary["data"]["evidence_strings_unusable"] == 2
    assert len(summary["data"]["sha256"]) == 64
    assert {"git_commit", "versions", "config", "config_sha256"} <= set(summary["making"])
    assert str(tmp_path) not in json.dumps(summary)
    making = json.loads((tmp_path / "result" / "making.json").read_text())
    assert {"data_sha256", "gold", "audit_sha256", "k", "captions", "judges", "prompts"} <= set(making)


def test_columns_are_in_the_order_of_papers_with_their_counts(command, tmp_path: Path) -> None:
    data = write(tmp_path / "l.json", benchmark())
    path = write(tmp_path / "a.json", audit())
    shown = command(f"data={data}", f"audit={path}", "resamples=50", "answer.kind=none").out
    lines = shown.splitlines()
    names = next(number for number, line in enumerate(lines) if "single-hop" in line)
    assert lines[names].split() == ["single-hop", "multi-hop", "open-domain", "temporal", "overall"]
    assert lines[names + 1].split() == ["4", "1", "1", "1", "7"]
    recall = next(line for line in lines if line.strip().startswith("recall@5"))
    assert recall.split() == ["recall@5", "100.0", "100.0", "-", "100.0", "100.0"]
    ceiling = next(line for line in lines if line.strip().startswith("ceiling"))
    assert ceiling.split() == ["ceiling", "100.0", "100.0", "100.0", "0.0", "85.7"]
    assert "Questions: 9 = 9 asked + 0 failed." in " ".join(shown.split())
    assert any(line.strip().startswith("adversarial 2") for line in lines)


def test_what_failed_is_counted_on_stderr(command, tmp_path: Path) -> None:
    data = write(tmp_path / "l.json", benchmark())

    def prose(body):
        return completion("Nice." if "grade" in body["messages"][0]["content"] else "red")

    with serve(prose) as server:
        done = command(f"data={data}", f"base_url={server.url}", "answer.model=tiny", "resamples=50", "system=full_context")
    assert done.code == 1
    # 7 answers by two judges; the judge of category 5, whose prompt grades nothing, answers "red".
    told, first = done.err.splitlines()
    assert told.startswith("16 failures (16 in judge); the same command tries again")
    assert first.startswith("judge: conv-1/0, lenient: ")
    assert "lenient judge on probes: accepts an unknown share" in done.out
    # The probes of both judges, each asked three times in vain.
    probes = 3 * 2 * len(load_calibration())
    assert f"probes: {probes:,} calls (0 cached), {probes:,} + {7 * probes:,} tokens" in done.out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system=mem9"], "system 'mem9' does not exist; there are: deltamem, full_context, naive_rag"),
        (["system=deltamem"], "manager.model=<name>"),
        (["answer.model=x"], "answer needs both base_url=<url>"),
        (["manager.modl=x"], "unknown config key 'manager.modl'"),
        (["+extra=1"], "unknown config key 'extra'"),
        (["cutoffs=[0]"], "config key 'cutoffs.0'"),
        (["cutoffs=[5,21]"], "cutoffs has 21, but only k=20"),
        (["categories=[6]"], "config key 'categories.0'"),
        (["captions=some"], "config key 'captions'"),
        (["judges=[mild]"], "config key 'judges.0'"),
        (["data=absent.json"], "absent.json: No such file"),
        (["data=cut.json"], "cut.json is not LoCoMo's locomo10.json: Invalid JSON"),
        (["data=old.zip"], "old.zip: an archive"),
        (["data=one.json", "categories=[3,5]"], "one.json: has no question of the categories [3, 5]"),
        (["data=l.json", "gold=audited", "audit=l.json"], "l.json: 0.question_id"),
        (
            ["answer.prompt=nothing.md", "answer.model=x", "base_url=http://localhost:1/v1"],
            "prompt nothing.md cannot be read",
        ),
        (["cutoffs=["], "no viable alternative"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(command, tmp_path: Path, overrides: list[str], message: str) -> None:
    text = write(tmp_path / "l.json", benchmark()).read_text()
    write(tmp_path / "one.json", benchmark()[1:])
    (tmp_path / "cut.json").write_text(text[:-40])
    (tmp_path / "old.zip").write_bytes(b"PK\x03\x04")
    done = command("data=l.json", *overrides)
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.jsonl"))


def test_data_folder_that_is_no_folder(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMEM_DATA", str(tmp_path / "absent"))
    done = command("data=null")
    assert done.code == 2
    assert "$DELTAMEM_DATA" in done.err


@pytest.mark.slow
def test_killed_and_resumed_without_asking_twice(tmp_path: Path) -> None:
    data = benchmark()
    # Enough different questions that a kill finds some answered, some in flight and some waiting.
    data[0]["qa"] = []
    data[1]["qa"] = [{"question": f"dog {n}?", "answer": "Cy", "evidence": ["D1:1"], "category": 4} for n in range(60)]
    write(tmp_path / "l.json", data)

    def slow(body):
        text = body["messages"][0]["content"]
        return completion('{"reason": "r", "label": "correct"}' if "grade" in text else "Cy", delay=0.1)

    with serve(slow) as server:
        overrides = ["data=l.json", "out=out", "system=full_context", f"base_url={server.url}", "answer.model=tiny"]
        overrides += ["answer.slots=4", "judge.slots=4", "categories=[4]", "judge.probes=false"]
        first = start("locomo", tmp_path, *overrides)
        while len(server.requests) < 60 and first.poll() is None:
            time.sleep(0.02)
        first.kill()
        first.wait()
        killed = len(server.requests)
        done = finish("locomo", tmp_path, *overrides)
        assert done.code == 0, done.err
        asked = Counter(body["messages"][0]["content"] for body in server.requests if body.get("max_tokens") != 1)
        twice = [text for text, count in asked.items() if count > 1]
        assert 60 <= killed < 150
        assert len(asked) == 3 * 60
        assert len(twice) <= 8  # 4 in flight when it was killed, and 4 whose answers were not in the cache yet
        assert max(asked.values()) <= 2
        last = len(server.requests)
        again = finish("locomo", tmp_path, *overrides)
        assert (again.code, len(server.requests)) == (0, last)
        assert "this run: 0 requests" in again.out


@pytest.mark.slow
def test_the_real_file_offline(tmp_path: Path) -> None:
    path = find(LOCOMO)
    if path is None:
        pytest.skip("LoCoMo is not in a data folder")

    def run() -> dict:
        done = finish("locomo", tmp_path, f"data={path}", "out=out")
        assert done.code == 0, done.err
        return json.loads((tmp_path / "out" / "summary.json").read_text())

    summary = run()
    assert summary["version"] == "LoCoMo-10 (1,986 questions)"
    assert summary["accounting"]["asked"] == summary["accounting"]["total"] == 1986
    assert summary["questions"]["by_category"] == {
        "single-hop": 841,
        "multi-hop": 282,
        "open-domain": 96,
        "temporal": 321,
        "adversarial": 446,
    }
    assert summary["data"]["questions_that_occur_again"] == 11
    recall = summary["scores"]["recall@20"]
    assert recall["all"]["count"] == 1536  # four have no usable evidence
    assert all(interval["estimate"] > 0.2 for interval in recall.values())
    lexical = [summary["scores"][name]["all"] for name in ("locomo_f1", "set_f1", "token_set_f1", "bleu1")]
    assert [interval["count"] for interval in lexical] == [1540] * 4
    assert all(0.05 < interval["estimate"] < 0.2 for interval in lexical)  # the extractive answerer is a floor
    size = {file.name: file.stat().st_size for file in (tmp_path / "out").glob("*.jsonl")}
    again = run()
    assert again["scores"] == summary["scores"]
    assert {file.name: file.stat().st_size for file in (tmp_path / "out").glob("*.jsonl")} == size

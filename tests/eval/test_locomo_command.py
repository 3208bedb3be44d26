"""``python -m eval.locomo`` as a person runs it: results on disk, and one sentence for what is wrong."""

import json
from pathlib import Path

import pytest
from benchmark_command import finish, in_process
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
        done = command(
            f"data={data}",
            f"base_url={server.url}",
            "answer.model=tiny",
            "resamples=50",
            "system=full_context",
            "judge.attempts=1",
        )
    assert done.code == 1
    # 7 answers by two judges; the judge of category 5, whose prompt grades nothing, answers "red".
    told, first = done.err.splitlines()
    assert told.startswith("16 failures (16 in judge); the same command tries again")
    assert first.startswith("judge: conv-1/0, lenient: ")
    assert "lenient judge on probes: accepts an unknown share" in done.out
    # The calibration items of both judges.
    probes = 2 * len(load_calibration())
    assert f"probes: {probes:,} calls (0 cached), {probes:,} + {7 * probes:,} tokens" in done.out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["categories=[6]"], "config key 'categories.0'"),
        (["captions=some"], "config key 'captions'"),
        (["judges=[mild]"], "config key 'judges.0'"),
        (["data=cut.json"], "cut.json is not LoCoMo's locomo10.json: Invalid JSON"),
        (["data=old.zip"], "old.zip: an archive"),
        (["data=one.json", "categories=[3,5]"], "one.json: has no question of the categories [3, 5]"),
        (["data=l.json", "gold=audited", "audit=l.json"], "l.json: 0.question_id"),
        (
            ["answer.prompt=nothing.md", "answer.model=x", "base_url=http://localhost:1/v1"],
            "prompt nothing.md cannot be read",
        ),
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

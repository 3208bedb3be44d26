"""python -m rewards case.json."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deltamem.errors import DeltaMemError
from rewards import __main__ as command
from rewards.__main__ import read_case

CASE = {
    "prior_state": {
        "m1": {"text": "Anna lives in Oslo.", "time": "2026-03-01T10:00:00"},
        "m2": {"text": "Anna has a cat named Miso.", "time": "2026-03-01T10:00:00"},
    },
    "predicted": [
        {"event": "UPDATE", "target_memory_id": "m1", "text": "Anna lives in Bergen now."},
        {"event": "ADD", "text": "Anna started to learn the cello."},
        {"event": "UPDATE", "target_memory_id": "m7", "text": "nobody"},
    ],
    "target": [
        {"event": "UPDATE", "target_memory_id": "m1", "text": "Anna lives in Bergen.", "keywords": ["Bergen"]},
        {"event": "ADD", "text": "Anna is learning to play the cello.", "keywords": [["learning", "lessons"], ["cello"]]},
        {"event": "NONE", "target_memory_id": "m2", "text": "Anna has a cat named Miso."},
    ],
}
SEARCH = '<think>t</think><tool_call>{"name": "search_memory", "arguments": {"query_list": ["home"]}}</tool_call>'
ANSWER = (
    '<think>t</think><outputs>{"operations": [{"event": "ADD", "text": "Anna is learning to play the cello."}]}</outputs>'
)


def write(tmp_path, **changes):
    case = {key: value for key, value in (CASE | changes).items() if value is not ...}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case), encoding="utf-8")
    return path


def scored(path, *options):
    result = CliRunner().invoke(command.app, [str(path), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class TwoTopics:
    """Directions for two topics; what says "now" or "started" has a cosine of 0.9 with the other texts of its topic."""

    @staticmethod
    def documents(texts):
        length = [0.9 if "now" in text or "started" in text else 1.0 for text in texts]
        topic = ["Bergen" in text for text in texts]
        return np.array([[x * t, x * (not t), (1 - x * x) ** 0.5] for x, t in zip(length, topic, strict=True)])


@pytest.fixture(autouse=True)
def embedder(monkeypatch):
    monkeypatch.setattr(command, "load_embedder", lambda name: TwoTopics)


def test_a_case_is_scored_as_its_options_say(tmp_path):
    result = scored(write(tmp_path))
    transition = result["transition"]
    assert transition["precision"] == transition["recall"] == transition["reward"] == pytest.approx(0.75)
    assert [pair["score"] for pair in transition["pairs"]] == [1.0, 0.5]
    assert [pair["similarity"] for pair in transition["pairs"]] == pytest.approx([0.9, 0.9])
    assert result["refused_operations"] == ["unknown_target"]
    assert result["total"] is result["format"] is result["retrieval"] is None
    assert scored(write(tmp_path), "--tau", "0.95")["transition"]["recall"] == 0.0
    assert scored(write(tmp_path), "--no-lexical-fidelity")["transition"]["recall"] == pytest.approx(0.9)


def test_the_documented_example_scores_as_documented(tmp_path):
    documentation = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
    path = tmp_path / "case.json"
    path.write_text(documentation.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    result = scored(path)
    assert "This one scores 0.75" in documentation
    assert (result["transition"]["reward"], result["retrieval"]) == (0.75, 1.0)


def test_turns_and_retrieved_ids_add_the_other_parts(tmp_path):
    path = write(tmp_path, predicted=..., assistant_turns=[SEARCH, ANSWER], retrieved_ids=["m1", "m2"])
    result = scored(path)
    assert (result["format"], result["retrieval"], result["transition"]["reward"]) == (1.0, 1.0, 0.5)
    assert result["total"] == pytest.approx(0.1 + 0.1 + 0.8 * 0.5)
    assert scored(path, "--stale-weight", "3")["transition"]["precision"] == pytest.approx(1 / 4)
    assert scored(path, "--paper-literal")["transition"]["precision"] == pytest.approx(1 / 2)  # the stale one is matched
    late = scored(write(tmp_path, assistant_turns=[SEARCH, "hm"], retrieved_ids=["m1"]))
    assert (late["format"], late["retrieval"]) == (0.0, 0.0)
    assert late["violations"] == ["missing_think", "no_action"]
    assert scored(write(tmp_path, predicted=None))["transition"]["reward"] == 0.0


def test_tables_show_the_pairs_and_take_no_markup_from_texts(tmp_path):
    predicted = [{"event": "ADD", "text": "[bold]Anna[/bold]"}, {"event": "UPDATE", "target_memory_id": "m2", "text": "x"}]
    result = CliRunner().invoke(command.app, [str(write(tmp_path, predicted=predicted))])
    assert result.exit_code == 0
    for piece in ("transition", "precision", "similarity", "[bold]Anna[/bold]", "matched", "unmatched", "unexpected"):
        assert piece in result.stdout


TARGET = CASE["target"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": [TARGET | {"target_memory_id": "m9"}]}, r"target\.0\.target_memory_id: .*'m9'"),
        ({"target": [TARGET | {"target_memory_id": None}]}, r"target\.0\.target_memory_id: required for UPDATE"),
        ({"target": [TARGET | {"text": ""}]}, r"target\.0\.text: required for UPDATE"),
        ({"target": [TARGET, TARGET | {"text": "other"}]}, "target: .*conflicting_update"),
        ({"target": [TARGET | {"event": "DELETE"}]}, r"target\.0\.event"),
        ({"target": ...}, "target: Field required"),
        ({"colour": 1}, "colour: Extra inputs"),
        ({"predicted": [{"event": "ADD", "text": "x", "keywords": []}]}, r"predicted\.0\.keywords: Extra inputs"),
        ({"predicted": ...}, "predicted: required"),
        ({"prior_state": {"m1": {"text": "x", "time": "soon"}}}, r"prior_state\.m1\.time"),
        ({"retrieved_ids": ["m1", "m8"]}, r"retrieved_ids\.1: .*'m8'"),
        ({"assistant_turns": [ANSWER, ANSWER]}, r"assistant_turns\.1: the episode was over"),
    ],
)
def test_bad_cases_name_the_key(tmp_path, changes, message):
    with pytest.raises(DeltaMemError, match=message) as caught:
        read_case(write(tmp_path, **changes), max_turns=4)
    assert "\n" not in str(caught.value)
    assert "case.json: " in str(caught.value)


def test_a_file_that_is_not_json(tmp_path):
    path = tmp_path / "case.json"
    for content, said in ((b"{", "the file: Invalid JSON"), (b"\xff\xfe", "not UTF-8"), (b"", "the file: Invalid JSON")):
        path.write_bytes(content)
        with pytest.raises(DeltaMemError, match=rf"case\.json: {said}"):
            read_case(path, max_turns=4)


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    fine = write(tmp_path)
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps(CASE | {"target": [TARGET | {"target_memory_id": "m9"}]}), encoding="utf-8")
    for arguments, message in [
        ([str(unknown)], "unknown.json: target.0.target_memory_id: there is no memory 'm9'"),
        ([str(fine), "--tau", "2"], "tau must be at least 0"),
    ]:
        monkeypatch.setattr(sys, "argv", ["rewards", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(command.__file__, run_name="__main__")
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_a_process_of_its_own_ends_with_the_same(tmp_path):
    ran = [sys.executable, "-m", "rewards", str(tmp_path / "absent.json")]
    done = subprocess.run(ran, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "absent.json: the case file cannot be read" in done.stderr


def test_help_describes_the_file_and_an_unknown_option_is_a_usage_error():
    result = CliRunner().invoke(command.app, ["--help"])
    for key in ("prior_state", "predicted", "target", "assistant_turns", "retrieved_ids", "--tau"):
        assert key in result.stdout
    assert CliRunner().invoke(command.app, ["case.json", "--colour"]).exit_code == 2

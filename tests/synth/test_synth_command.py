"""``python -m synth`` in a process of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from deltamem.cli import validated
from deltamem.errors import DeltaMemError
from deltamem.sessions import from_json_line, read_sessions
from synth.settings import SynthSettings

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synth", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_four_people_from_nothing_to_parquet(tmp_path):
    out = tmp_path / "data"
    done = run("people=4", "sessions=3", "seed=5", f"out={out}")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout.startswith("train: 3 people, 9 sessions, ")
    assert "\nheldout: 1 people, 3 sessions, " in done.stdout
    names = {"people.jsonl", "sessions.jsonl", "dataset.json", "train.parquet", "heldout.parquet"}
    assert {path.name for path in out.iterdir()} == names
    sessions = list(read_sessions(out / "sessions.jsonl"))
    assert len(sessions) == 12 and len({item.session.person_id for item in sessions}) == 4
    assert json.loads((out / "dataset.json").read_text("utf-8"))["config"]["seed"] == 5
    for split, count in (("train", 9), ("heldout", 3)):
        rows = pq.read_table(out / f"{split}.parquet").to_pylist()
        assert len(rows) == count
        read = {item.key: item for item in map(from_json_line, (row["extra_info"]["session"] for row in rows))}
        assert read == {item.key: item for item in sessions if item.split == split}
        assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["peple=4"], "peple"),
        (["people=none"], "people"),
        (["offline.min_facts=5", "offline.max_facts=2"], "min_facts must not be larger than max_facts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, told):
    out = tmp_path / "data"
    done = run(f"out={out}", *arguments)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and told in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ({"writer": "magic"}, "config key 'writer'"),
        ({"people": 0}, "config key 'people'"),
        ({"heldout_share": 1.0}, "config key 'heldout_share'"),
        ({"offline": {"extra": 1}}, "unknown config key 'offline.extra'"),
        ({"offline": {"max_facts": 13}}, "config key 'offline.max_facts'"),
        ({"offline": {"update_share": 0.8, "repeat_share": 0.3}}, "must not add up to more than 1"),
    ],
)
def test_settings_name_the_key_that_is_wrong(override, told):
    config = OmegaConf.merge(OmegaConf.load(ROOT / "configs" / "synth.yaml"), {"out": "somewhere"}, override)
    del config["defaults"], config["hydra"]
    with pytest.raises(DeltaMemError, match=re.escape(told)):
        validated(config, SynthSettings)


def test_a_missing_folder_name_is_told():
    done = run("people=4")
    assert done.returncode == 2
    assert done.stderr == "error: config key 'out' has no value; give one with out=...\n"


def test_an_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    done = run("people=2", "sessions=1", f"out={tmp_path / 'file'}")
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and str(tmp_path / "file") in line
    assert (tmp_path / "file").read_text("utf-8") == "mine"

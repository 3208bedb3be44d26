"""Shards put together: the bytes of an unsharded run, or one sentence about what is missing."""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from synth_runs import files, settings

from deltamem.errors import DeltaMemError
from deltamem.runs import JsonLinesStore
from deltamem.sessions import read_sessions
from synth.config import Shard
from synth.pipeline import generate, merge


def run(out, shard, *overrides):
    # Not as an override, since Hydra would compose a configuration for every shard.
    part = Shard(*map(int, shard.split("/")))
    assert generate(settings(out, *overrides).model_copy(update={"shard": part})) == 0


@cache
def halves():
    """Both shards of two, written once; the folder goes with the object."""
    folder = TemporaryDirectory()
    run(Path(folder.name), "0/2")
    run(Path(folder.name), "1/2")
    return folder


def both(out):
    shutil.copytree(halves().name, out, dirs_exist_ok=True)


def forget(out, shard, person_id):
    """Take a person out of a shard's store."""
    path = out / "shards" / shard / "work" / "people.jsonl"
    lines = [line for line in path.read_text("utf-8").splitlines(keepends=True) if f'"key": "{person_id}"' not in line]
    path.write_text("".join(lines), "utf-8")


@pytest.mark.parametrize("count", [2, 6])
def test_shards_put_together_are_the_unsharded_run_byte_for_byte(tmp_path, count):
    for number in reversed(range(count)):
        run(tmp_path / "parts", f"{number}/{count}")
    merged = merge(tmp_path / "parts")
    assert merged.missing == ()
    assert generate(settings(tmp_path / "whole")) == 0
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def two_of_three(out):
    run(out, "0/2")
    run(out, "1/3")


def copied_person(out):
    both(out)
    path = out / "shards" / "1-of-2" / "work" / "run.json"
    described = json.loads(path.read_text("utf-8"))
    described["people"]["p000004"] = "copied"
    path.write_text(json.dumps(described), "utf-8")


def person_of_another_recipe(out):
    both(out)
    with JsonLinesStore(out / "shards" / "0-of-2" / "work" / "people.jsonl") as store:
        store.put("p000002", {**store.get("p000002"), "fingerprint": "another"})


def beside_an_unsharded_run(out):
    run(out, "0/2")
    generate(settings(out))
    (out / "dataset.json").unlink()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda out: [run(out, "0/4"), run(out, "2/4")], r"2 of 4 shards are missing \(1/4, 3/4\)"),
        (lambda out: [both(out), forget(out, "1-of-2", "p000003")], r"1 of 6 people are not finished \(p000003\)"),
        (person_of_another_recipe, "p000002"),
        (two_of_three, r"one of 3 shards and .* one of 2"),
        (copied_person, r"^p000004 is in .*0-of-2/work and in .*1-of-2/work"),
        (beside_an_unsharded_run, "remove one of them"),
        *(
            (lambda out, override=override: [run(out, "0/2"), run(out, "1/2", override)], rf"made differently.*\b{key}\b")
            for override, key in (("seed=4", "seed"), ("people=7", "people"), ("heldout_share=0.3", "heldout_share"))
        ),
    ],
)
def test_parts_that_do_not_make_a_whole_are_refused(tmp_path, prepare, message):
    prepare(tmp_path)
    with pytest.raises(DeltaMemError, match=message):
        merge(tmp_path)
    assert not (tmp_path / "dataset.json").exists()


def test_a_partial_data_set_says_what_is_missing(tmp_path):
    run(tmp_path, "0/3")
    run(tmp_path, "2/3")
    forget(tmp_path, "2-of-3", "p000005")
    merged = merge(tmp_path, partial=True)
    assert merged.missing == ("p000001", "p000004", "p000005")
    partial = {"missing_people": list(merged.missing), "missing_shards": ["1/3"]}
    assert json.loads((tmp_path / "dataset.json").read_text("utf-8"))["making"]["partial"] == partial
    people = {item.session.person_id for item in read_sessions(tmp_path / "sessions.jsonl")}
    assert people == {"p000000", "p000002", "p000003"}


def test_a_shard_that_is_still_in_work_is_told(tmp_path):
    both(tmp_path)
    with (
        JsonLinesStore(tmp_path / "shards" / "1-of-2" / "work" / "people.jsonl"),
        pytest.raises(DeltaMemError, match=r"1-of-2/work/people\.jsonl: in use by another process"),
    ):
        merge(tmp_path)


def test_the_command(tmp_path, command):
    run(tmp_path, "0/2")
    done = command("merge", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path}: 1 of 2 shards are missing (1/2)")
    done = command("merge", str(tmp_path), "--partial")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("train: ") and done.stdout.endswith(f"written to {tmp_path}\n")
    assert (tmp_path / "dataset.json").is_file()


@pytest.mark.parametrize("folder", ["nothing", "shards/0-of-2/work"])
def test_a_folder_without_a_run_is_told(tmp_path, folder, command):
    (tmp_path / folder).mkdir(parents=True)
    done = command("merge", str(tmp_path))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path}")

"""Shards put together: the bytes of an unsharded run, or one sentence about what is missing."""

import json
import shutil

import pytest
from synth_runs import files, settings

from deltamem.errors import DeltaMemError
from deltamem.runs import JsonLinesStore
from deltamem.sessions import read_sessions
from synth.config import Shard
from synth.pipeline import generate, merge


@pytest.fixture(scope="module")
def thirds(tmp_path_factory):
    """All three shards, written once."""
    out = tmp_path_factory.mktemp("thirds")
    for number in range(3):
        assert generate(settings(out, shard=Shard(number, 3))) == 0
    return out


@pytest.fixture
def out(tmp_path, thirds):
    """A copy of the shards, to be spoiled."""
    return shutil.copytree(thirds, tmp_path / "out")


def forget(out, shard, person_id):
    """Take a person out of a shard's store."""
    path = out / "shards" / f"{shard}-of-3" / "work" / "people.jsonl"
    lines = [line for line in path.read_text("utf-8").splitlines(keepends=True) if f'"key": "{person_id}"' not in line]
    path.write_text("".join(lines), "utf-8")


def described(out, number, *, recipe=(), people=(), **changes):
    """Change what a shard's run says of itself."""
    path = out / "shards" / f"{number}-of-3" / "work" / "run.json"
    run = json.loads(path.read_text("utf-8"))
    run["recipe"].update(recipe)
    run["people"].update(people)
    path.write_text(json.dumps(run | changes), "utf-8")


def remove(out, *shards):
    for shard in shards:
        shutil.rmtree(out / "shards" / f"{shard}-of-3")


def test_shards_put_together_are_the_unsharded_run_byte_for_byte(tmp_path, out):
    assert "partial" not in merge(out)["making"]
    assert generate(settings(tmp_path / "whole")) == 0
    assert files(out) == files(tmp_path / "whole")


def of_another_recipe(out):
    with JsonLinesStore(out / "shards" / "0-of-3" / "work" / "people.jsonl") as store:
        store.put("p000003", {**store.get("p000003"), "fingerprint": "another"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda out: remove(out, 0, 2), r"2 of 3 shards are missing \(0/3, 2/3\)"),
        (lambda out: forget(out, 1, "p000004"), r"1 of 6 people are not finished \(p000004\)"),
        (of_another_recipe, r"not finished \(p000003\)"),
        (lambda out: described(out, 1, shard="1/2"), r"one of 2 shards and .* one of 3"),
        (lambda out: described(out, 1, people={"p000003": "x"}), r"^p000003 is in .*0-of-3/work and in .*1-of-3/work"),
        (lambda out: shutil.copytree(out / "shards" / "0-of-3" / "work", out / "work"), "remove one of them"),
        (lambda out: described(out, 1, recipe={"seed": 4}), r"made differently.*\bseed\b"),
        (lambda out: described(out, 1, everybody=["p000000"]), r"made differently.*\beverybody\b"),
        (lambda out: [remove(out, 1, 2), forget(out, 0, "p000000"), forget(out, 0, "p000003")], "nobody is finished yet"),
        (lambda out: (out / "shards/0-of-3/work/run.json").unlink(), r"run\.json: no such file"),
        (lambda out: (out / "shards/0-of-3/work/run.json").write_text("{}"), r"run\.json: not a run description"),
        (lambda out: remove(out, 0, 1, 2), "no shards to merge"),
    ],
)
def test_parts_that_do_not_make_a_whole_are_refused(out, spoil, message):
    spoil(out)
    with pytest.raises(DeltaMemError, match=message):
        merge(out, partial="nobody" in message)
    assert not (out / "dataset.json").exists()


def test_a_partial_data_set_says_what_is_missing(out, command):
    remove(out, 1)
    forget(out, 2, "p000005")
    done = command("merge", str(out))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {out}: 1 of 3 shards are missing (1/3)")
    done = command("merge", str(out), "--partial")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 people are missing\n" in done.stdout and done.stdout.endswith(f"written to {out}\n")
    partial = {"missing_people": ["p000001", "p000004", "p000005"], "missing_shards": ["1/3"]}
    assert json.loads((out / "dataset.json").read_text("utf-8"))["making"]["partial"] == partial
    people = {item.session.person_id for item in read_sessions(out / "sessions.jsonl")}
    assert people == {"p000000", "p000002", "p000003"}


def test_a_shard_that_is_still_in_work_is_told(out):
    with (
        JsonLinesStore(out / "shards" / "1-of-3" / "work" / "people.jsonl"),
        pytest.raises(DeltaMemError, match=r"1-of-3/work/people\.jsonl: in use by another process"),
    ):
        merge(out)

"""Runs over people: going on where they stopped, errors of single people, signals, and the same bytes whatever happens."""

import asyncio
import json
import re
import shutil
import signal

import pytest
import synth_runs
from synth_runs import files, settings, slow

import synth.pipeline
from deltamem.errors import DeltaMemError, EmbedderUnavailableError, LLMError
from deltamem.runs import JsonLinesStore
from deltamem.sessions import read_sessions
from synth.config import Shard
from synth.pipeline import code_hash, generate, is_finished, read_run, work_folder
from synth.records import Person


@pytest.fixture
def asked(monkeypatch):
    """Numbers of the people that are written, in the order in which they are begun."""
    numbers, write_person = [], synth.pipeline.write_person

    async def noting(number, *arguments, **named):
        numbers.append(number)
        return await write_person(number, *arguments, **named)

    monkeypatch.setattr(synth.pipeline, "write_person", noting)
    return numbers


@pytest.fixture
def failing(monkeypatch):
    """People by number whose writing ends in an error, as long as they are in it."""
    errors, write_person = {}, synth.pipeline.write_person

    async def sometimes(number, *arguments, **named):
        if number in errors:
            raise errors[number]
        return await write_person(number, *arguments, **named)

    monkeypatch.setattr(synth.pipeline, "write_person", sometimes)
    return errors


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one run writes that nothing stops; tests only read it."""
    out = tmp_path_factory.mktemp("whole")
    assert generate(settings(out)) == 0
    return out


def stored(out):
    with JsonLinesStore(out / "work" / "people.jsonl") as store:
        return {key: store.get(key) for key in store.keys()}  # noqa: SIM118


def test_everybody_is_kept_and_the_files_are_written_and_nobody_is_written_again(tmp_path, capsys, asked):
    assert generate(settings(tmp_path)) == 0
    people = stored(tmp_path)
    assert list(people) == [f"p{number:06d}" for number in range(6)]
    records = [Person.model_validate(value["person"]) for value in people.values()]
    lines = (tmp_path / "people.jsonl").read_text("utf-8").splitlines()
    assert [Person.model_validate_json(line) for line in lines] == records
    sessions = list(read_sessions(tmp_path / "sessions.jsonl"))
    assert len(sessions) == 12 and {item.split for item in sessions} == {"train", "heldout"}
    told = capsys.readouterr()
    assert re.search(r"^people +6 finished$", told.out, re.MULTILINE)
    assert re.search(r"^sessions +12 written$", told.out, re.MULTILINE)
    assert told.out.endswith(f"written to {tmp_path}\n")
    assert told.err == ""
    before = files(tmp_path)
    asked.clear()
    assert generate(settings(tmp_path)) == 0
    assert asked == [] and files(tmp_path) == before


def test_what_records_depend_on_is_done_again_when_it_changes_and_settings_of_the_machine_are_not(
    tmp_path, asked, whole, capsys
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert generate(settings(tmp_path, people_at_once=3, progress_seconds=1.0, estimate__gpus=3, llm__slots=7)) == 0
    assert asked == [] and files(tmp_path) == files(whole)
    capsys.readouterr()
    assert generate(settings(tmp_path, seed=4, progress_seconds=1e-9)) == 0
    assert sorted(asked) == list(range(6))
    assert re.search(r"^profile \d+/\d+, .*, people [1-6]/6, 0 tokens, .*\b0 repairs", capsys.readouterr().err, re.MULTILINE)


def test_a_failing_person_is_kept_as_an_error_and_the_rest_goes_on(tmp_path, failing, asked, capsys, whole):
    failing[2] = DeltaMemError("no answer for this one")
    assert generate(settings(tmp_path)) == 1
    assert sorted(stored(tmp_path)) == [f"p{number:06d}" for number in (0, 1, 3, 4, 5)]
    assert not (tmp_path / "dataset.json").exists()
    errors = (tmp_path / "work" / "errors.jsonl").read_text("utf-8")
    assert json.loads(errors) == {"person_id": "p000002", "error": "no answer for this one"}
    told = capsys.readouterr()
    assert "p000002: no answer for this one\nerror: 1 of 6 people are missing" in told.err
    assert re.search(r"^people +5 finished$", told.out, re.MULTILINE)
    failing.clear()
    asked.clear()
    assert generate(settings(tmp_path, people_at_once=6)) == 0
    assert asked == [2] and not (tmp_path / "work" / "errors.jsonl").exists()
    assert files(tmp_path) == files(whole)


def test_a_dead_endpoint_ends_the_run_early(tmp_path, failing, capsys):
    failing.update({number: LLMError("endpoint http://x/v1 does not answer") for number in range(2, 20)})
    assert generate(settings(tmp_path, people=20, sessions=1)) == 1
    assert len(stored(tmp_path)) == 2
    assert (tmp_path / "work" / "errors.jsonl").read_text("utf-8").count("\n") == 3
    assert "given up after 3 people in a row: endpoint http://x/v1 does not answer" in capsys.readouterr().err


def test_a_missing_embedding_model_concerns_everybody(tmp_path, failing, asked):
    failing[1] = EmbedderUnavailableError("embedder 'x' is not installed")
    with pytest.raises(EmbedderUnavailableError):
        generate(settings(tmp_path))
    assert list(stored(tmp_path)) == ["p000000"]


def test_a_signal_ends_the_run_at_once_and_it_goes_on_to_the_same_bytes_in_any_process(tmp_path, whole, asked):
    process = slow(tmp_path, "people_at_once=2", "progress_seconds=600", seconds=600, first=2)
    assert "person 3\n" in iter(process.stdout.readline, ""), process.stderr.read()
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=300)
    assert (process.returncode, told) == (143, "stopped by SIGTERM; the same command goes on from here\n")
    # It did not wait for the two who were being written.
    assert list(stored(tmp_path)) == ["p000000", "p000001"] and not (tmp_path / "dataset.json").exists()
    assert generate(settings(tmp_path)) == 0
    assert len(asked) == 4 and files(tmp_path) == files(whole)


def test_ctrl_c_ends_it_too(tmp_path, monkeypatch, capsys):
    async def interrupted(number, *arguments, **named):
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(synth.pipeline, "write_person", interrupted)
    assert generate(settings(tmp_path)) == 130
    assert capsys.readouterr().err.endswith("stopped by SIGINT; the same command goes on from here\n")


def test_two_runs_in_one_folder_are_told(tmp_path):
    with (
        JsonLinesStore(tmp_path / "work" / "people.jsonl"),
        pytest.raises(DeltaMemError, match=r"work/people\.jsonl: in use by another process"),
    ):
        generate(settings(tmp_path))


def test_shards_share_the_people_evenly(tmp_path):
    found = []
    for number in range(4):
        own = settings(tmp_path, sessions=1, shard=Shard(number, 4))
        assert generate(own) == 0
        run = read_run(work_folder(own))
        with JsonLinesStore(work_folder(own) / "people.jsonl") as store:
            assert all(is_finished(store, *item) for item in run.people.items())
            assert list(run.people) == list(store.keys())
        found.append(list(run.people))
    assert found == [["p000000", "p000004"], ["p000001", "p000005"], ["p000002"], ["p000003"]]
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_changed_code_and_sentences_change_fingerprints_and_changed_commands_do_not(tmp_path):
    root = synth_runs.ROOT / "synth"
    package = tmp_path / "synth"
    shutil.copytree(root, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert code_hash(package) == code_hash()
    # Fingerprints have the whole persona in them.
    same = ("__main__.py", "output/dataset.py", "progress.py", "personas.yaml")
    sentences = [str(path.relative_to(root)) for path in root.rglob("*.yaml") if path.name != "personas.yaml"]
    for name in (*same, *sentences, "validators/dialogue.py", "planning.py", "tasks.py", "person.py"):
        before = code_hash(package)
        with (package / name).open("a") as file:
            file.write("\n# changed\n")
        assert (code_hash(package) == before) == (name in same), name

"""``python -m synth``: what it writes, says and ends with; in a process of its own where that matters."""

import json

import pytest
from synth_runs import files, settings

from deltamem.sessions import read_sessions
from synth.config import PersonaSettings
from synth.personas import draw_personas
from synth.pipeline import generate


def test_four_people_from_nothing_to_parquet(tmp_path, command):
    out = tmp_path / "data"
    done = command("people=4", "sessions=2", "seed=5", "shape=demanding_tiny", "embedder=null", f"out={out}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"written to {out}\n")
    names = {"people.jsonl", "sessions.jsonl", "rejected.jsonl", "dataset.json", "train.parquet", "heldout.parquet"}
    assert set(files(out)) == names | {"README.md", "probe.json"}
    sessions = list(read_sessions(out / "sessions.jsonl"))
    assert len(sessions) == 8 and len({item.session.person_id for item in sessions}) == 4
    assert json.loads((out / "dataset.json").read_text("utf-8"))["making"]["seed"] == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["peple=4"], "peple"),
        (["people=0"], "config key 'people'"),
        (["shape=huge"], "huge"),
        (["personas.source=file", "personas.path=/nowhere/people.txt"], "/nowhere/people.txt"),
        (
            ["llm.base_urls=[http://127.0.0.1:9/v1]", "writer=llm", "llm.max_retries=0", "people=1", "embedder=null"],
            "127.0.0.1:9",
        ),
        (["estimat"], "unknown command 'estimat'; there are estimate, merge, inspect"),
        (["people=4"], "config key 'out' has no value; give one with out=..."),
        (["merge"], "Missing argument 'out'"),
        (["inspect", "/nowhere"], "/nowhere"),
        (["personas", "many"], "Invalid value for 'count'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, told, command):
    named = "=" not in arguments[0] or "config key 'out'" in told
    done = command(*arguments, *([] if named else [f"out={tmp_path / 'data'}"]))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and told in line
    assert not (tmp_path / "data" / "dataset.json").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape__initial__total__min": 5}, r"min \(5\) must not be larger than max \(4\)"),
        ({"shard": "2/2"}, "must be i/n with 0 <= i < n"),
        ({"shard": "0/500"}, r"more shards \(500\) than people \(6\)"),
        ({"writer": "llm", "llm": None}, "writer=llm needs the group llm"),
        ({"personas__source": "file"}, "source=file needs a path"),
        ({"personas__path": "x"}, "source=generated reads no path"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(tmp_path, changes, told):
    with pytest.raises(ValueError, match=told):
        settings(tmp_path, **changes)


def test_copied_passages_are_found_and_a_person_is_shown(tmp_path, command):
    out, benchmark = tmp_path / "data", tmp_path / "benchmark.txt"
    assert generate(settings(out, people=2)) == 0
    shown = command("inspect", str(out), "p000001")
    assert (shown.returncode, shown.stderr) == (0, "") and "p000001" in shown.stdout
    benchmark.write_text("Purple zeppelins navigate treacherous Carpathian valleys carrying marzipan trombones.", "utf-8")
    done = command("contamination", str(out), str(benchmark))
    assert done.returncode == 0 and "sessions with an overlap: 0" in done.stdout
    session = next(read_sessions(out / "sessions.jsonl"))
    benchmark.write_text(" ".join(turn.content for turn in session.session.dialogue), "utf-8")
    done = command("contamination", str(out), str(benchmark), "--words", "5")
    assert done.returncode == 1 and "people with an overlap: " in done.stdout


def test_personas_are_written_and_read_back(tmp_path, command):
    seeds = tmp_path / "seeds.jsonl"
    done = command("personas", "9", "--out", str(seeds))
    assert (done.returncode, done.stdout) == (0, f"written to {seeds}\n")
    assert len({json.loads(line)["persona"] for line in seeds.open("rb")}) == 9
    drawn = draw_personas(PersonaSettings(source="file", path=str(seeds)), people=9, heldout_share=0.1, seed=1)
    assert {persona.seed for persona in drawn} == {json.loads(line)["persona"] for line in seeds.open("rb")}


def test_names_are_invented_offline_and_real_for_a_language_model(tmp_path):
    kinds = [
        settings(tmp_path, writer=writer, names=names).real_names
        for writer in ("offline", "llm")
        for names in ("auto", "invented", "real")
    ]
    assert kinds == [False, False, True, True, False, True]

"""The data card: readable by the hub, and honest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from output_cases import MAKING, person, some_people, write

from synth.config import LICENCES

pytestmark = pytest.mark.usefixtures("undrawn")

OFFLINE = {**MAKING, "writer": "offline", "personas": {"source": "generated"}, "making": {"writer": "offline", "seed": 7}}


def card(out: Path) -> tuple[dict, str]:
    """The header and the text after it."""
    _, header, text = (out / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that tests only read."""
    folder = tmp_path_factory.mktemp("data")
    write(folder)
    return folder


def test_the_header_names_licence_tags_and_files(out):
    header, _ = card(out)
    assert header["license"] == "cc-by-nc-sa-4.0"
    assert "synthetic" in header["tags"]
    [config] = header["configs"]
    assert {(item["split"], item["path"]) for item in config["data_files"]} == {
        ("train", "train.parquet"),
        ("heldout", "heldout.parquet"),
    }
    assert all((out / item["path"]).is_file() for item in config["data_files"])
    assert header["size_categories"] == ["n<1K"]


@pytest.mark.parametrize(
    ("source", "licence"), [("generated", "apache-2.0"), ("file", "unknown"), ("personahub", "cc-by-nc-sa-4.0")]
)
def test_the_terms_are_those_of_the_persona_seeds(tmp_path, source, licence):
    write(tmp_path, making={**MAKING, "personas": {"source": source}})
    header, text = card(tmp_path)
    assert header["license"] == licence
    assert LICENCES[source] in text


def test_it_says_that_all_people_are_synthetic_and_who_wrote_them(tmp_path):
    write(tmp_path / "llm")
    write(tmp_path / "offline", making=OFFLINE)
    _, llm = card(tmp_path / "llm")
    _, offline = card(tmp_path / "offline")
    assert "**All of this is synthetic.** No person in this data set exists." in llm
    assert "A language model wrote" in llm and "| model | gpt-oss-120b |" in llm
    assert "| sampling: temperature | 1.0 |" in llm and "| events | `0123456789abcdef` |" in llm
    assert "A program wrote, from templates" in offline and "gpt-oss" not in offline and "Prompts" not in offline


def test_its_numbers_are_those_of_the_manifest(tmp_path):
    manifest = write(tmp_path)
    _, text = card(tmp_path)
    counts = manifest["counts"]
    for split, name in (("train", "training"), ("heldout", "held out")):
        row = [str(counts[f"{split}/{key}"]) for key in ("people", "sessions", "ADD", "UPDATE", "NONE")]
        assert f"| {name} | {' | '.join(row)} |" in text
    assert "| rejected | 1 | 1 | | | |" in text
    assert r"| dialogue.user\_first | 10 | 2 | 1 | 1 |" in text
    assert "13 units of work took 16 answers; 2 units were rejected." in text
    assert "The user says 100.0% of the keywords" in text


def test_rules_that_were_never_checked_are_named_as_such(out):
    _, text = card(out)
    [never] = re.findall(r"Never checked, because nothing in this data set asked for it: (.*)\.\n", text)
    assert "`links.groups_disjoint`" in never and "`session.ids`" not in never and "`dialogue.user_first`" not in never


def test_one_split_alone_names_no_parquet(tmp_path):
    write(tmp_path, [person(0)])
    header, text = card(tmp_path)
    assert "configs" not in header and "parquet" not in text


def test_an_incomplete_data_set_says_who_is_missing(tmp_path):
    write(tmp_path, making={**MAKING, "partial": {"missing_people": ["p000004", "p000005"], "missing_shards": ["1/3"]}})
    _, text = card(tmp_path)
    assert "**This data set is not complete.** 2 people of the plan are missing (missing shards: 1/3)." in text


def test_values_cannot_break_a_table_or_the_header(tmp_path):
    evil = "x | y\n---\n# <b>mine</b> `z`"
    making = {**MAKING, "making": {**MAKING["making"], "model": evil}}
    write(tmp_path, some_people(), making=making)
    header, text = card(tmp_path)
    assert header["license"] == "cc-by-nc-sa-4.0"
    assert r"| model | x \| y --- # \<b\>mine\</b\> \`z\` |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)

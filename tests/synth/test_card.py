"""The data card of a data set: complete, honest, and no value breaks its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from offline_people import people
from output_cases import MAKING, write

from synth.config import LICENCES
from synth.output.files import cell_rows


def card(out: Path) -> tuple[dict, str]:
    """The header and the text after it."""
    _, header, text = (out / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_header_of_the_card_names_licence_tags_and_files(data_set):
    header, _ = card(data_set)
    assert "synthetic" in header["tags"] and header["size_categories"] == ["n<1K"]
    [config] = header["configs"]
    files = {item["split"]: item["path"] for item in config["data_files"]}
    assert files == {"train": "train.parquet", "heldout": "heldout.parquet"}
    assert all((data_set / path).is_file() for path in files.values())


@pytest.mark.parametrize(
    ("source", "licence"), [("generated", "apache-2.0"), ("file", "unknown"), ("personahub", "cc-by-nc-sa-4.0")]
)
def test_the_terms_are_those_of_the_persona_seeds(tmp_path, source, licence):
    write(tmp_path, making={**MAKING, "personas": {"source": source}})
    header, text = card(tmp_path)
    assert header["license"] == licence
    assert LICENCES[source] in text


def test_the_card_says_that_all_people_are_synthetic_and_who_wrote_them(tmp_path, data_set):
    write(tmp_path, making={**MAKING, "writer": "offline", "making": {"writer": "offline", "seed": 7}})
    (_, llm), (_, offline) = card(data_set), card(tmp_path)
    assert "**All of this is synthetic.** No person in this data set exists." in llm
    assert "A language model wrote" in llm and "| model | gpt-oss-120b |" in llm
    assert "| sampling: temperature | 1.0 |" in llm and "| events | `0123456789abcdef` |" in llm
    assert "A program wrote, from templates" in offline and "gpt-oss" not in offline and "Prompts" not in offline


def test_the_card_of_lives_from_scenes_says_what_they_are(tmp_path):
    shape = {"everyday": {"newcomers": 0.2}}
    write(tmp_path, making={**MAKING, "writer": "offline", "shape": shape, "making": {"writer": "offline", "seed": 7}})
    _, text = card(tmp_path)
    assert "from scenes that language models have written" in text and "draws scenes by the quotas" in text
    assert "templates" not in text and "every session is about one event" not in text


def test_the_numbers_of_the_card_are_those_of_the_data_set(data_set):
    _, text = card(data_set)
    assert "| training | 2 | 5 | 4 | 3 | 1 |" in text and "| held out | 1 | 3 | 2 | 2 | 1 |" in text
    assert "| rejected | 1 | 1 | | | |" in text
    assert r"| dialogue.supported | 10 | 2 | 1 | 1 |" in text
    assert "13 units of work took 16 answers; 2 units were rejected." in text
    assert "The user says 100.0% of the keywords" in text
    [never] = re.findall(r"Never checked, because nothing in this data set asked for it: (.*)\.\n", text)
    assert "`links.groups_disjoint`" in never and "`session.ids`" not in never and "`dialogue.supported`" not in never


def test_operations_and_sessions_are_counted_by_cell_of_difficulty(tmp_path, data_set):
    manifest = write(tmp_path, people(3, 3, sizes="demanding_tiny", heldout_share=0.34))
    for axis, rows in cell_rows(manifest).items():
        for number, row in enumerate(rows):
            (sessions, share), by_operation = row.sessions, row.operations is not None
            counted = f"{row.operations[0]:,} | {row.operations[1]:.1%}" if by_operation else "| "
            assert (
                f"| {axis if not number else ''} | {row.value} | {counted} | {sessions:,} | {share:.1%} |"
                in card(tmp_path)[1]
            )
    assert "What makes sessions hard" not in card(data_set)[1]


def test_values_cannot_break_a_table_or_the_header_of_the_card(tmp_path):
    evil = "x | y\n---\n# <b>mine</b> `z`"
    write(tmp_path, making={**MAKING, "making": {**MAKING["making"], "model": evil}})
    header, text = card(tmp_path)
    assert header["license"] == "cc-by-nc-sa-4.0"
    assert r"| model | x \| y --- # \<b\>mine\</b\> \`z\` |" in text
    assert all(line.endswith("|") for line in text.splitlines() if line.startswith("|"))

"""The report of a data set and its data card: complete, honest, nothing from outside, everything escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from offline_people import people
from output_cases import MAKING, contents, person, rejected_person, some_people, write
from page_cases import Page

from deltamem.errors import DeltaMemError
from synth.config import LICENCES
from synth.output.files import cell_rows
from synth.output.report import life, shown_person, write_report
from synth.validators import RULES

EVIL = "<script>alert('x')</script> & \"quoted\""


def page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


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


# --- the page --------------------------------------------------------------------------------------------------------------


def test_every_chart_and_every_rule_is_there_and_nothing_comes_from_outside(out):
    report = page(out / "report.html")
    report.check_self_contained()
    assert report.count("figure") == report.count("svg") == 10
    for rule in RULES:
        assert rule.name in report.text and rule.description in report.text
    assert re.search(r"dialogue\.user_first .{0,120}? 10 2 20\.00 % 1 1 ", report.text)
    assert re.search(r"links\.groups_disjoint .{0,120}? never checked", report.text)
    assert not re.search(r"session\.ids [^.]{0,160}\. never checked", report.text)


def test_everything_that_was_read_is_escaped(tmp_path):
    write(tmp_path, [person(0, text=EVIL, lost=(1,)), person(3, "heldout")], making={"note": EVIL})
    report = page(write_report(tmp_path, "p000000"))
    assert report.count("script") == 0
    assert report.text.count(EVIL) >= 5  # narratives, utterances, the reason of the rejection


def test_the_life_is_told_in_order_with_all_versions_of_its_memories(out):
    text = page(out / "report.html").text
    parts = ("Timeline", "2026-01-10", "2026-02-09", "2026-03-11", "Memories that change m1")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    memories = text[places[-1] :]
    assert "before Ana Ruiz works as a baker in Town0. 2026-02-09 session 2 Ana Ruiz works as a chef in Town0." in memories
    assert "m2 , repeated in session 2" in memories
    assert "1 that stays as it was first written m4 Ana Ruiz adopted a cat." in memories


def test_it_can_be_drawn_again_also_of_another_person_and_leaves_the_data_set_alone(tmp_path):
    write(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "report.html").unlink()
    assert write_report(tmp_path) == tmp_path / "report.html"
    other = write_report(tmp_path, "p000002")
    assert other.name == "report-p000002.html"
    assert "dialogue 1 rejected : dialogue.user_first" in page(other).text
    other.unlink()
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, r"dataset\.json: no such file; the data set in this folder is not finished"),
        ("[1]", "not the manifest of a data set"),
    ],
)
def test_a_folder_without_a_finished_data_set_has_no_report(tmp_path, manifest, message):
    if manifest:
        (tmp_path / "dataset.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(DeltaMemError, match=message):
        write_report(tmp_path)


def test_an_unknown_person_is_answered_with_who_there_is(out):
    with pytest.raises(DeltaMemError, match=r"^no person 'p9'; there are 4, p000000 to p000003$"):
        write_report(out, "p9")


def test_without_tokens_there_is_no_chart_of_them_and_a_rejected_person_is_shown_if_there_is_nobody_else(tmp_path):
    write(tmp_path, [rejected_person(0).model_copy(update={"usage": {}})])
    report = page(tmp_path / "report.html")
    assert "No tokens were counted" in report.text and "fixed rejected : fixed.identity" in report.text


def test_the_person_shown_is_a_whole_one_where_there_is_one():
    whole, torn, gone = person(0), person(2, lost=(1,)), rejected_person(1)
    assert shown_person([gone, torn, whole]) == whole
    assert shown_person([gone, torn]) == torn
    assert shown_person([gone]) == gone
    assert shown_person([]) is None


def test_a_life_follows_each_memory_through_the_sessions():
    seen = life(some_people()[2])
    assert [memory.id for memory in seen.memories] == ["m1", "m2", "m3", "m4"]
    assert [version.session for version in seen.memories[0].versions] == [None, 1]
    assert seen.memories[1].repeated == [1]
    assert [[fact.memory_id for fact in view.facts] for view in seen.sessions] == [["m3"], ["m1", "m2"], ["m3", "m4"]]
    assert [view.memories for view in seen.sessions] == [3, 3, 4]
    lost, later = seen.sessions[1], seen.sessions[2]
    assert {keyword.said for fact in lost.facts for keyword in fact.keywords} == {None}
    assert {keyword.said for fact in later.facts for keyword in fact.keywords} == {True}
    assert [fact.fact.id for fact in later.said_in(2)] == ["f1"] and later.said_in(1) == []
    assert [item.unit for item in lost.rejections] == ["dialogue"] and seen.rejections == []


# --- the data card ---------------------------------------------------------------------------------------------------------


def test_the_header_of_the_card_names_licence_tags_and_files(out):
    header, _ = card(out)
    assert "synthetic" in header["tags"] and header["size_categories"] == ["n<1K"]
    [config] = header["configs"]
    files = {item["split"]: item["path"] for item in config["data_files"]}
    assert files == {"train": "train.parquet", "heldout": "heldout.parquet"}
    assert all((out / path).is_file() for path in files.values())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("source", "licence"), [("generated", "apache-2.0"), ("file", "unknown"), ("personahub", "cc-by-nc-sa-4.0")]
)
def test_the_terms_are_those_of_the_persona_seeds(tmp_path, source, licence):
    write(tmp_path, making={**MAKING, "personas": {"source": source}})
    header, text = card(tmp_path)
    assert header["license"] == licence
    assert LICENCES[source] in text


@pytest.mark.usefixtures("undrawn")
def test_the_card_says_that_all_people_are_synthetic_and_who_wrote_them(tmp_path, out):
    write(tmp_path, making={**MAKING, "writer": "offline", "making": {"writer": "offline", "seed": 7}})
    (_, llm), (_, offline) = card(out), card(tmp_path)
    assert "**All of this is synthetic.** No person in this data set exists." in llm
    assert "A language model wrote" in llm and "| model | gpt-oss-120b |" in llm
    assert "| sampling: temperature | 1.0 |" in llm and "| events | `0123456789abcdef` |" in llm
    assert "A program wrote, from templates" in offline and "gpt-oss" not in offline and "Prompts" not in offline


def test_the_numbers_of_the_card_are_those_of_the_data_set(out):
    _, text = card(out)
    assert "| training | 2 | 5 | 4 | 3 | 1 |" in text and "| held out | 1 | 3 | 2 | 2 | 1 |" in text
    assert "| rejected | 1 | 1 | | | |" in text
    assert r"| dialogue.user\_first | 10 | 2 | 1 | 1 |" in text
    assert "13 units of work took 16 answers; 2 units were rejected." in text
    assert "The user says 100.0% of the keywords" in text
    [never] = re.findall(r"Never checked, because nothing in this data set asked for it: (.*)\.\n", text)
    assert "`links.groups_disjoint`" in never and "`session.ids`" not in never and "`dialogue.user_first`" not in never


def test_card_and_report_count_operations_and_sessions_by_cell_of_difficulty(tmp_path, out):
    manifest = write(tmp_path, people(3, 3, sizes="demanding_tiny", heldout_share=0.34))
    for axis, rows in cell_rows(manifest).items():
        for number, row in enumerate(rows):
            (sessions, share), by_operation = row.sessions, row.operations is not None
            counted = f"{row.operations[0]:,} | {row.operations[1]:.1%}" if by_operation else "| "
            assert (
                f"| {axis if not number else ''} | {row.value} | {counted} | {sessions:,} | {share:.1%} |"
                in card(tmp_path)[1]
            )
    report = page(tmp_path / "report.html")
    signal = cell_rows(manifest)["signal"][0]
    assert f"signal {signal.value} {signal.operations[0]:,} {100 * signal.operations[1]:.1f} % " in report.text
    assert "What makes sessions hard" not in card(out)[1] and "Difficulty" not in page(out / "report.html").text


@pytest.mark.usefixtures("undrawn")
def test_an_incomplete_data_set_says_who_is_missing_and_one_split_alone_names_no_parquet(tmp_path):
    partial = {"missing_people": ["p000004", "p000005"], "missing_shards": ["1/3"]}
    write(tmp_path, [person(0)], making={**MAKING, "partial": partial})
    header, text = card(tmp_path)
    assert "**This data set is not complete.** 2 people of the plan are missing (missing shards: 1/3)." in text
    assert "configs" not in header and "parquet" not in text


@pytest.mark.usefixtures("undrawn")
def test_values_cannot_break_a_table_or_the_header_of_the_card(tmp_path):
    evil = "x | y\n---\n# <b>mine</b> `z`"
    write(tmp_path, making={**MAKING, "making": {**MAKING["making"], "model": evil}})
    header, text = card(tmp_path)
    assert header["license"] == "cc-by-nc-sa-4.0"
    assert r"| model | x \| y --- # \<b\>mine\</b\> \`z\` |" in text
    assert all(line.endswith("|") for line in text.splitlines() if line.startswith("|"))

"""The report of a data set: one page, nothing from outside, everything escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from output_cases import contents, person, rejected_person, some_people, write

from deltamem.errors import DeltaMemError
from synth.output.report import life, shown_person, write_report
from synth.validators import RULES

EVIL = "<script>alert('x')</script> & \"quoted\""


class Page(HTMLParser):
    """Tags and visible text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data

    def figures(self) -> int:
        return sum(tag == "figure" for tag, _ in self.tags)


def spaced(page: Page) -> str:
    return " ".join(page.text.split())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that tests only read."""
    folder = tmp_path_factory.mktemp("data")
    write(folder)
    return folder


def test_every_chart_is_there(out):
    page = Page(out / "report.html")
    titles = ("Operations by kind and session", "Memories by session", "Turns of a session", "Words of the user")
    for title in (
        *titles,
        "Keyword coverage",
        "Where facts are said",
        "Tokens by unit",
        "Memories that change or are repeated",
    ):
        assert title in page.text
    assert page.figures() == 10
    assert sum(tag == "svg" for tag, _ in page.tags) == 10


def test_nothing_comes_from_outside(out):
    text = (out / "report.html").read_text("utf-8")
    for tag, attributes in Page(out / "report.html").tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base"}
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    assert "@import" not in text and set(re.findall(r"url\((.)", text)) == {"#"}
    assert "prefers-color-scheme: dark" in text and "currentColor" in text


def test_ids_inside_charts_are_unique_and_resolve(out):
    page = Page(out / "report.html")
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    wanted = {
        (attributes["xlink:href"] or "").removeprefix("#") for _, attributes in page.tags if "xlink:href" in attributes
    }
    assert wanted and wanted <= set(ids)


def test_everything_that_was_read_is_escaped(tmp_path):
    write(tmp_path, [person(0, text=EVIL, lost=(1,)), person(3, "heldout")], making={"note": EVIL})
    write_report(tmp_path, "p000000")
    page = Page(tmp_path / "report-p000000.html")
    assert not any(tag == "script" for tag, _ in page.tags)
    assert page.text.count(EVIL) >= 5  # narratives, utterances, the reason of the rejection


@pytest.mark.parametrize("rule", [RULES[0], RULES[-1]], ids=lambda rule: rule.name)
def test_every_rule_is_told(out, rule):
    page = Page(out / "report.html")
    assert rule.name in page.text and rule.description in page.text


def test_rules_show_their_counts_and_those_never_checked_are_marked(out):
    text = spaced(Page(out / "report.html"))
    assert re.search(r"dialogue\.user_first .{0,120}? 10 2 20\.00 % 1 1 ", text)
    assert re.search(r"links\.groups_disjoint .{0,120}? never checked", text)
    assert not re.search(r"session\.ids [^.]{0,160}\. never checked", text)


def test_the_life_is_told_in_order_with_all_versions_of_its_memories(out):
    text = spaced(Page(out / "report.html"))
    places = [text.index(part) for part in ("Timeline", "2026-01-10", "2026-02-09", "2026-03-11", "Memories that change m1")]
    assert places == sorted(places)
    memories = text[places[-1] :]
    assert (
        "m1 2026-01-01 before Ana Ruiz works as a baker in Town0. "
        "2026-02-09 session 2 Ana Ruiz works as a chef in Town0." in memories
    )
    assert "m2, repeated in session 2" in memories
    assert (
        "session 1 Ana Ruiz is worried about the new kitchen in Town0. "
        "2026-03-11 session 3 Ana Ruiz is proud of the new kitchen in Town0." in memories
    )
    assert "1 that stays as it was first written m4 Ana Ruiz adopted a cat." in memories


def test_a_rejected_session_is_shown_with_its_reason(tmp_path):
    write(tmp_path)
    page = spaced(Page(write_report(tmp_path, "p000002")))
    assert "dialogue 1 rejected: dialogue.user_first" in page


def test_it_can_be_drawn_again_and_is_the_same(tmp_path):
    write(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "report.html").unlink()
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert contents(tmp_path) == before


def test_a_page_of_another_person_leaves_the_data_set_alone(tmp_path):
    write(tmp_path)
    before = contents(tmp_path)
    path = write_report(tmp_path, "p000003")
    assert path.name == "report-p000003.html" and "Dara Voss" in path.read_text("utf-8")
    path.unlink()
    assert contents(tmp_path) == before


def test_an_unknown_person_is_answered_with_who_there_is(tmp_path):
    write(tmp_path)
    with pytest.raises(DeltaMemError, match=r"^no person 'p9'; there are 4, p000000 to p000003$"):
        write_report(tmp_path, "p9")


def test_an_unfinished_data_set_has_no_report(tmp_path):
    write(tmp_path)
    (tmp_path / "dataset.json").unlink()
    with pytest.raises(DeltaMemError, match=r"dataset\.json: no such file; the data set in this folder is not finished"):
        write_report(tmp_path)


def test_a_manifest_of_something_else_is_refused(tmp_path):
    (tmp_path / "dataset.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(DeltaMemError, match="not the manifest of a data set"):
        write_report(tmp_path)


def test_without_tokens_there_is_no_chart_of_them(tmp_path):
    silent = person(0).model_copy(update={"usage": {}})
    write(tmp_path, [silent, person(3, "heldout").model_copy(update={"usage": {}})])
    page = Page(tmp_path / "report.html")
    assert page.figures() == 9 and "No tokens were counted" in page.text


def test_a_rejected_person_is_shown_if_there_is_nobody_else(tmp_path):
    write(tmp_path, [rejected_person(0)])
    assert "fixed rejected: fixed.identity" in spaced(Page(tmp_path / "report.html"))


def test_the_person_shown_is_a_whole_one_where_there_is_one():
    whole, torn, gone = person(0), person(2, lost=(1,)), rejected_person(1)
    assert shown_person([gone, torn, whole]) == whole
    assert shown_person([gone, torn]) == torn
    assert shown_person([gone]) == gone
    assert shown_person([]) is None


def test_a_life_follows_each_memory_through_the_sessions():
    seen = life(some_people()[2])
    assert [memory.id for memory in seen.memories] == ["m1", "m2", "m3", "m4"]
    first = seen.memories[0]
    assert [version.session for version in first.versions] == [None, 1]
    assert seen.memories[1].repeated == [1]
    assert [[fact.memory_id for fact in view.facts] for view in seen.sessions] == [["m3"], ["m1", "m2"], ["m3", "m4"]]
    assert [view.memories for view in seen.sessions] == [3, 3, 4]
    lost, later = seen.sessions[1], seen.sessions[2]
    assert {keyword.said for fact in lost.facts for keyword in fact.keywords} == {None}
    assert {keyword.said for fact in later.facts for keyword in fact.keywords} == {True}
    assert [fact.fact.id for fact in later.said_in(2)] == ["f1"] and later.said_in(1) == []
    assert [item.unit for item in lost.rejections] == ["dialogue"] and seen.rejections == []

"""`deltamem view`: the page is written whole or not at all, and holds the export."""

from pathlib import Path

from command_cases import MONDAY, lines_of, one_sentence, run, run_json, write
from page_cases import Page, embedded_data
from scripted_server import Served

HOSTILE = "Ann's note: </script><script>hacked = 1</script><!-- <img src=x onerror=hacked=1> \u2028 $script ${data}"


def test_the_page_holds_the_export_of_the_owner(bank: Path, rules: Served, tmp_path: Path) -> None:
    assert run("add", "-", given=lines_of(MONDAY)).exit_code == 0
    out = tmp_path / "page.html"
    assert run_json("view", "--out", str(out)) == {"owner": "ann", "file": str(out)}
    page = Page(out.read_text(encoding="utf-8"))
    assert embedded_data(page) == run("export").stdout
    page.check_self_contained()


def test_a_hostile_memory_does_not_leave_its_place(bank: Path, tmp_path: Path) -> None:
    write(bank, ("</script>", "2026-03-02T09:00", HOSTILE))
    out = tmp_path / "page.html"
    assert run("view", "--out", str(out)).exit_code == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.count("script") == 2 and not page.count("img")
    assert embedded_data(page) == run("export").stdout
    assert "hacked" not in page.text and "hacked" not in page.scripts[1]


def test_what_cannot_be_shown_is_one_sentence_and_leaves_the_file(bank: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("before")
    assert "no memory bank" in one_sentence(run("view", "--out", str(out)))
    write(bank, ("first", "2026-03-02T09:00", "Ann likes tea."))
    assert one_sentence(run("view", "--out", str(out), "--owner", "bob")).endswith("holds nothing of 'bob'")
    assert "--out" in one_sentence(run("view"))
    assert out.read_text() == "before"
    nowhere = tmp_path / "nowhere" / "page.html"
    assert "nowhere" in one_sentence(run("view", "--out", str(nowhere)))
    assert run("view", "--out", str(out)).exit_code == 0 and out.read_text() != "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank", "page.html"], "no partial file is left"

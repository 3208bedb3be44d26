"""What a comparison prints, and what it writes for other programs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from compare_cases import ORDER, edited, headline, ingest, interval, question, records, write_run
from rich.console import Console

from deltamem.errors import DeltaMemError
from eval.compare.export import print_comparison, write_csv
from eval.compare.page import colour, mark, spread_apart
from eval.compare.runs import FinishedRun, load_runs

SYSTEMS = ("none", "full_context", "naive_rag", "deltamem", "mem0", "langmem", "oracle")


def seven(tmp_path: Path) -> list[FinishedRun]:
    """A run of each system, with everything in which runs can differ."""
    folders = []
    for number, system in enumerate(SYSTEMS):
        asked = records([n for n in range(20) if n % 7 > number])
        broken = [question("c0/99", "temporal", text=None)] * (number == 5)
        facts = {"keyword_search": False} if system == "mem0" else {}
        config = {"system": system, "answer.max_tokens": 100 + number, "judge.model": f"judge {number}", "seed": number}
        folder = write_run(
            tmp_path / f"locomo_{system}",
            [*asked, *broken],
            sessions=[ingest("c0", 0, outcome="unreadable"), ingest("c0", 1)],
            config=config,
            protocol={"k": number, "pooled": list(ORDER[:4])},
            system_facts=facts,
        )
        tokens = 100.0 * 3**number
        said = {"headline": headline(0.1 * number, context_tokens=tokens), "making__git_commit": f"commit {number}"}
        warning = f"a warning of {system} that is so long that no line of a terminal holds it " * 2
        folders.append(edited(folder, warnings=[warning], **said))
    why = "the lenient judge accepts 98% of the wrong answers"
    edited(folders[4], withheld={"lenient": why}, headline=headline(1.0, withheld=why))
    return load_runs(folders)


def test_seven_runs_take_forty_lines_and_csv_has_every_score_that_is_not_withheld(tmp_path: Path) -> None:
    runs = seven(tmp_path)
    for width in (80, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        print_comparison(runs, console, page=Path("page.html"))
        text = console.export_text()
        assert len(text.splitlines()) <= 40
        flat = " ".join(text.split())
        said = ("withheld: the lenient judge", "more warnings are on the page", "page.html")
        assert all(expected in flat for expected in (*said, *(run.name for run in runs)))
        assert "keyword" in flat and "100.0" not in flat
    budget = {"budget": 1024, "context_tokens": 900.0, "scores": {"lenient": interval(0.3), "strict": interval(0.2)}}
    budget["withheld"] = {"strict": "the judge failed"}
    runs[3] = load_runs([edited(runs[3].folder, budgets=[budget])])[0]
    write_csv(runs, tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    keys = {(row["run"], row["metric"], row["category"], row["budget"]): row for row in rows}
    assert len(keys) == len(rows) == 2 + sum(len(scores) for run in runs for scores in run.summary.scores.values())
    lenient = runs[2].summary.scores["lenient"]["all"]
    row = keys["locomo_naive_rag", "lenient", "all", ""]
    assert lenient and float(row["score"]) == lenient.estimate and int(row["n"]) == lenient.count
    assert (row["judge_model"], row["commit"], float(row["context_tokens"])) == ("judge 2", "commit 2", 900.0)
    withheld = keys["locomo_mem0", "lenient", "all", ""]
    assert (withheld["score"], withheld["low"], withheld["without"]) == ("", "", "keyword search")
    assert withheld["withheld"].startswith("the lenient judge accepts 98%")
    assert float(keys["locomo_mem0", "strict", "all", ""]["score"]) >= 0
    assert float(keys["locomo_deltamem", "lenient", "all", "1024"]["context_tokens"]) == 900.0
    assert keys["locomo_deltamem", "strict", "all", "1024"]["score"] == ""


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    runs = load_runs([write_run(tmp_path / "run", [question("c0/1", "temporal")])])
    for path in (tmp_path / "nowhere" / "file", tmp_path):
        with pytest.raises(DeltaMemError, match="cannot be written"):
            write_csv(runs, path)


def test_marks_and_colours_tell_ten_runs_apart_and_points_never_lie_on_each_other() -> None:
    assert len({mark(number) for number in range(10)}) == len({colour(number) for number in range(10)}) == 10
    assert len({(mark(number), colour(number)) for number in range(100)}) == 100
    moved = spread_apart([2000, 2000, None, 2010, 0, 20000])
    assert moved[2] is moved[4] is None and moved[5] == pytest.approx(20000)
    one, two, three = sorted(place for place in (moved[0], moved[1], moved[3]) if place is not None)
    assert two / one > 1.05 and three / two > 1.05 and two == pytest.approx(2000, rel=0.01)

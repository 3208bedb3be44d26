from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from browser_cases import READY, Opened
from episode_texts import WordEmbedder, add, none, outputs, search, update
from heldout_cases import ScriptedPolicy, graded, labelled, oracle, people, silent
from page_cases import Page

from deltamem.episode import EpisodeConfig
from deltamem.errors import DeltaMemError
from deltamem.sessions import LabelledSession, to_json_line
from eval.heldout import HeldoutResult, evaluate
from eval.probes import score_probes
from eval.training_report.charts import Curve, line_chart, running_mean
from eval.training_report.page import comparison, shown, write_report

CONFIG = EpisodeConfig(k=2)
EVIL = "Eve owns <script>alert('memory')</script> & \"more\""
RAW = "I remember: <script>alert('policy')</script>"


def mixed(item: LabelledSession, turn: int) -> str:
    """Right, nearly right and wrong in turn, so that every kind of trajectory occurs."""
    due, new = item.operations
    kind = (int(item.session.person_id.removeprefix("person")) + item.session_index) % 6
    if kind == 0:
        return oracle(item, turn)
    if kind == 1:
        return outputs(add(due.text), new)
    if kind == 2:
        return RAW
    if turn == 0:
        return search(due.text, "a <b>bold</b> query")
    final = [[update("m2", due.text), new], [due, add(new.text.replace("violin", "piano"))], [due, none("m2", EVIL)]]
    return outputs(*final[kind - 3])


def run_policy(script: object, sessions: list[LabelledSession]) -> HeldoutResult:
    policy = ScriptedPolicy(sessions, script, CONFIG)  # type: ignore[arg-type]
    return asyncio.run(evaluate(policy, sessions, WordEmbedder(), CONFIG, resamples=20, provenance={"seed": 7}))


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_validation(folder: Path, sessions: list[LabelledSession], steps: Iterable[int]) -> None:
    """The same sessions at several steps: silent at first, then mixed."""
    for step in steps:
        records = run_policy(mixed if step else silent, sessions).records
        write_lines(folder / "validation" / f"step_{step:06d}.jsonl", [record | {"rollout": 0} for record in records])


def metrics_of(step: int) -> dict[str, float]:
    """A line of ``metrics.jsonl``."""
    level = 0.45 + step / 240
    names = "reward format retrieval transition precision recall update_recall wrong_target add_for_update no_signal"
    names += " group_std truncated failure queries_per_memory retrieved_per_query tool_tokens model_tokens_mean"
    names += " count/violations/bad_json count/predicted_adds count/target_adds count/predicted_updates"
    line = {"step": step} | {f"train/{name}": level for name in names.split()} | {"train/count/violations/turn_limit": 0.0}
    line |= {"seconds/step": 6.0, "seconds/gen": 2.5, "seconds/update_actor": 3.0, "seconds/rollout_generate_mean": 1.5}
    line |= {"speed/tokens_per_second_per_gpu": 800.0, "speed/mfu": 0.3}
    line |= {"memory/rss_gb": 4.0, "memory/gpu_reserved_gb": 60.0}
    if step % 20 == 0:
        measured = ("reward", "transition", "update_recall", "add_recall", "none_precision")
        line |= {"seconds/save_checkpoint": 1.0} | {f"heldout/{name}": level - 0.03 for name in measured}
    return line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the report reads, with marks of HTML in a memory, in keys and in violations."""
    folder = tmp_path_factory.mktemp("runs") / "seed7"
    sessions = graded(people(6, 4))
    folder.mkdir()
    write_lines(folder / "sessions.jsonl", map(json.loads, map(to_json_line, people(2, 2, "train"))))
    probes = score_probes(folder / "sessions.jsonl", sessions, WordEmbedder(), resamples=20)
    for phase, script in (("before", silent), ("after", mixed)):
        result = run_policy(script, sessions)
        result.summary["probes"] = probes
        for mode in ("sampled", "greedy"):
            result.write(folder / "eval" / f"{phase}_{mode}")
    write_lines(folder / "metrics.jsonl", map(metrics_of, range(61)))
    write_lines(folder / "warm_start.jsonl", ({"step": step, "loss": 1.0, "accuracy": 0.5} for step in range(0, 500, 10)))
    summary = {"git_commit": "0123abcd", "seed": 7, "seconds": {"warm_start": 300.0, "total": 732.0}}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_validation(folder, sessions[:2], (0, 20, 40, 60))
    evil = labelled("eve", 0, {"m1": EVIL}, [update("m1", EVIL.replace("owns", "sold"), "<script>"), none("m1", EVIL)])
    (shown,) = run_policy(oracle, [evil]).records
    for file, changes in (
        ("eval/after_sampled/trajectories.jsonl", {"key": "<i>eve</i>/0"}),
        ("validation/step_000040.jsonl", {"key": "<i>eve</i>/1", "violations": ["<u>"]}),
    ):
        with (folder / file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(shown | changes) + "\n")
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def viewer(run: Path, page: Page) -> Page:
    return Page((run / "report-trajectories.html").read_text(encoding="utf-8"))


def test_it_shows_header_table_and_charts(page: Page) -> None:
    assert page.count("svg") == page.count("figcaption") == 18
    assert not page.count("p", "missing")
    for said in ("seed7", "0123abcd", "12.2", "due UPDATEs done as ADD", "24 sessions of 6 people"):
        assert said in page.text, said
    for legend in ("bad json", "ADD due", "checkpoint", "rollouts", "gpu reserved gb", "none precision"):
        assert f">{legend}<" in page.source, legend
    for legend in ("turn limit", "weight sync"):
        assert f">{legend}<" not in page.source, "it never happened"
    # Shallow policies stand beside the trained one.
    assert "after GRPO, sampled" in page.text and "every sentence of the user as ADD" in page.text
    assert "before GRPO, sampled earns 0.100, no more than" in page.text
    assert page.text.index("copy all") < page.text.index("perfect texts, all as ADD; knows the target")


def test_all_trajectories_are_in_the_viewer(page: Page, viewer: Page) -> None:
    assert "report-trajectories.html" in [tag.get("href") for name, tag in page.tags if name == "a"]
    header, *lines = map(json.loads, viewer.scripts[0].strip().split("\n"))
    assert header == {"run": "seed7"}
    steps = [line["step"] for line in lines]
    assert [steps.count(step) for step in (None, 0, 20, 40, 60)] == [25, 2, 2, 3, 2]
    updates = [line for line in lines for target in line["targets"] if target["operation"]["event"] == "UPDATE"]
    assert updates and all(line["prior"] for line in updates), "what an operation replaces"


def test_rewards_by_difficulty_are_shown_where_it_was_planned(page: Page, tmp_path: Path) -> None:
    heading, _, table = page.text.partition("By difficulty")[2].partition("signal")
    for policy in ("after GRPO, greedy", "before GRPO, sampled", "copy all", "gold nearest target"):
        assert policy in heading, policy
    implied = table.partition("implied")[2].partition("rivals")[0].split()
    assert implied[0] == "18" and implied.count("0.100") >= 6, "of both silent policies and of one that does nothing"
    plain = run_policy(oracle, people(1, 1))
    plain.write(tmp_path / "eval" / "after_greedy")
    assert "By difficulty" not in Page(write_report(tmp_path).read_text(encoding="utf-8")).text


def test_nothing_comes_from_outside_and_everything_is_escaped(page: Page, viewer: Page) -> None:
    for one in (page, viewer):
        one.check_self_contained()
        outside = set(re.findall(r"https?://[^\"'\s<]+", one.source.replace(viewer.scripts[0], "")))
        assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert one.count("i") == one.count("u") == 0
    assert not page.scripts and viewer.count("script") == 2
    texts = json.dumps([json.loads(line) for line in viewer.scripts[0].strip().split("\n")], ensure_ascii=False)
    assert all(json.dumps(text)[1:-1] in texts for text in (EVIL, "<i>eve</i>/0", "<i>eve</i>/1", RAW))


def test_keywords_are_marked_and_targets_without_a_counterpart_have_a_remark() -> None:
    (item,) = people(1, 1)
    due, _ = item.operations
    written = outputs(due, add("Person0 plays trumpet every  EVENING0 evening"))
    (record,) = run_policy(lambda item, turn: written, [item]).records
    due_shown, new = shown(record)["targets"]
    marked = [(piece["text"], piece["found"]) for piece in new["pieces"]]
    assert marked == [("Person0 plays ", None), ("violin", False), (" every ", None), ("evening", True), ("0", None)]
    assert [(keyword["text"], keyword["found"]) for keyword in new["keywords"]] == [("violin", False), ("evening", True)]
    assert due_shown["remark"] == new["remark"] == "", "both were matched"

    known = {"m1": "Ann owns a dog", "m2": "Ann sings"}
    item = labelled("ann", 0, known, [none("m1", "Ann owns a dog"), add("Ann is six", ("6", "six"), "six")])
    (record,) = run_policy(lambda _, turn: outputs(none("m1", "")) if turn else search("dog"), [item]).records
    record = json.loads(json.dumps(record))  # as the viewer reads it: alternatives are a list
    nothing, six = shown(record)["targets"]
    assert nothing["remark"] == "named by a NONE, found by a search"
    assert six["remark"] == "no counterpart"
    assert six["keywords"] == [{"text": "6 / six", "found": False}, {"text": "six", "found": False}]


def test_turns_are_taken_apart_and_what_cannot_be_is_shown_raw() -> None:
    def script(item: LabelledSession, turn: int) -> str:
        return search("a", "b") if turn == 0 else "<think>x</think><tool_call>{}</tool_call>"

    record = run_policy(script, people(1, 1)).records[0]
    asked, answered, broken = shown(record)["turns"]
    assert (asked["think"], asked["queries"], asked["rest"]) == ("What is known?", ["a", "b"], "")
    assert [memory["id"] for memory in answered["memories"]] == record["retrieved_ids"][0]
    assert (broken["think"], broken["queries"], broken["rest"]) == ("x", [], "<tool_call>{}</tool_call>")


def test_the_table_tells_better_from_worse() -> None:
    def summary(*values: float) -> dict[str, object]:
        names = ("reward", "add_for_update_rate", "format", "queries_per_memory")
        intervals = ({"estimate": value, "low": value - 0.05, "high": value + 0.05} for value in values)
        return {"metrics": dict(zip(names, intervals, strict=True))}

    rows = comparison({"before_sampled": summary(0.5, 0.1, 0.9, 0.1), "after_sampled": summary(0.7, 0.4, 0.91, 0.9)})
    verdicts = {name: sampled.verdict for name, (sampled, _) in rows.items()}
    assert verdicts == {"reward": "better", "due UPDATEs done as ADD": "worse", "format": "", "queries per memory": ""}
    assert all(greedy.difference is None for _, greedy in rows.values()), "not measured"


def test_what_is_missing_or_damaged_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert not (tmp_path / "report-trajectories.html").exists()
    for name in ("metrics.jsonl", "warm_start.jsonl", "summary.json", "eval/after_sampled/trajectories.jsonl"):
        assert f"{name} is not in the run folder." in page.text
    assert "validation/ holds no trajectories." in page.text
    files = {
        "metrics.jsonl": '{"step": 0, "train/reward": 0.1}\n{"step": 1, "train/reward": NaN, "train/format": null}\n'
        '{"step": 2, "train/reward": 0.2}\n{"step"',
        "warm_start.jsonl": "",
        "summary.json": "[]",
        "eval/after_sampled/trajectories.jsonl": '{"key": "a"}\n',
        "validation/step_000004.jsonl": '{"key": "a"}\n[',
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    page = Page(write_report(tmp_path, out=tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.count("svg") == 1
    for said in (
        "metrics.jsonl, line 4: not a JSON object; skipped.",
        "warm_start.jsonl holds no records.",
        "summary.json is not a JSON object.",
        "after_sampled/trajectories.jsonl: 1 records of another format; skipped.",
        "validation/step_000004.jsonl: 1 records of another format; skipped.",
    ):
        assert said in page.text, said
    with pytest.raises(DeltaMemError, match="cannot be written"):
        write_report(tmp_path, out=tmp_path / "no" / "folder.html")


@pytest.mark.parametrize(("folder", "code"), [(".", 0), ("nothing", 2)])
def test_the_command_prints_the_page_or_one_line(
    folder: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["eval.training_report", str(tmp_path / folder)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("eval.training_report", run_name="__main__")
    printed = capsys.readouterr()
    assert (stopped.value.code or 0) == code
    text = printed.err if code else printed.out
    assert text.count("\n") == 1 and ("no such run folder" in text) == bool(code)
    assert (tmp_path / "report.html").is_file() != bool(code)


def test_charts_follow_the_colours_of_the_page() -> None:
    curve = Curve("a & b", range(30), [x / 30 for x in range(30)], "#3b82f6")
    (chart,) = line_chart("", "one", [curve], "y")
    svg = chart.svg
    assert "currentColor" in svg and "#010203" not in svg and "a &amp; b" in svg
    assert line_chart("", "one", [curve], "y") == [chart] and line_chart("", "none", [], "y") == []
    assert running_mean([0, 3, 6, 9]) == [1.5, 3, 6, 7.5], "narrower at the ends"


@pytest.mark.slow
@pytest.mark.skipif(not READY, reason="no Chromium")
@pytest.mark.parametrize("width", [400, 1400])
def test_the_viewer_in_chromium(browser: Opened, viewer: Page, width: int) -> None:
    browser.show(viewer.source, width=width)
    assert browser.texts("#count") == ["34 trajectories"] and browser.texts(".chip") == ["Evaluation 25", "In training 9"]
    browser.search("<i>eve")
    browser.until(lambda: "2 of 34 trajectories" in browser.texts("#count"))
    browser.click("#row-0")
    browser.until(lambda: "<i>eve</i>/" in browser.title())
    headings = browser.texts("#detail h3")
    assert headings[:4] == ["Operations of the policy", "Target operations", "How it went", "Session"]
    assert EVIL.replace("owns", "sold") in browser.texts(".sides p.text") and browser.texts("mark.found")[-1:] == [
        "<script>"
    ]
    assert browser.script("return document.querySelectorAll('i, img, script').length") == 2
    for css in ("html", ".browse", "#detail", ".top"):
        assert (
            browser.script("const one = document.querySelector(arguments[0]); return one.scrollWidth - one.clientWidth", css)
            <= 0
        )
    browser.script("document.getElementById('list').focus()")

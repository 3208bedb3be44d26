"""What a memory keeps of a session, counted by hand, and runs of ``python -m eval.transfer`` on invented data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import halumem_cases
import numpy as np
import pytest
from benchmark_cases import Notebook, without_versions
from halumem_cases import ANA, StemEmbedder
from rich.console import Console
from rule_model import rules
from scripted_server import Served, is_check, serve
from system_cases import talk

from deltamem.config import composed, validated
from deltamem.embedding import CachedEmbedder
from deltamem.errors import DeltaMemError
from deltamem.runs import run_tasks, weights_sha256
from deltamem.training.measured import read_measured
from eval.data import HALUMEM_USER, LOCOMO, find
from eval.evidence import EvidenceFinder
from eval.systems.base import DialogueSession, DialogueTurn, Passage
from eval.transfer import __main__ as command
from eval.transfer import report
from eval.transfer.data import PointUpdate, TransferConfig, TransferQuestion, TransferSession, read_people
from eval.transfer.measures import Ruler, foreign_found, matched, nameless, points_found, question_counts
from eval.transfer.report import markdown_table, read_summary, summary_table
from rewards.cues import EventWords

RULER = Ruler(CachedEmbedder(StemEmbedder()), threshold=0.65, draws=50, seed=0)


SESSION = TransferSession(
    talk(
        1,
        datetime(2025, 9, 1),
        ("user", "Hello there! My city is Boston."),
        ("assistant", "My boat is the Otter."),
        ("user", "My job is nursing."),
    ),
    ("Ana's city is Boston.", "Ana's job is nursing."),
    ("Bo's boat is the Otter.",),
)


def test_a_session_counted_by_hand() -> None:
    memories = ["Ana's city is Boston.", "Ana's city is Boston.", "Ana's boat is the Otter."]
    counts = RULER.session(SESSION, "Ana", memories, ["Ana's city is Boston.", "Ana's cat is grey."])
    assert counts["system/found"] == (1, 2)
    assert counts["system/precision"] == (1, 3)  # the second copy has no point left
    assert counts["system/recall"] == (1, 2)
    assert counts["system/f1"] == (2, 5)
    assert counts["system/foreign"] == (1, 1)  # what Bo said is taken for Ana's
    assert counts["system/by_chance"] == (1, 2)
    assert counts["first_k/found"] == (2, 2)  # of three sentences
    assert counts["random_k/found"] == (2, 2)
    assert (counts["bar/found"], counts["bar/f1"]) == ((1, 2), (2, 4))  # of two, one of them a greeting
    assert (counts["copy_all/found"], counts["copy_all/f1"]) == ((2, 2), (4, 5))
    assert (counts["support/mean"], counts["support/half"]) == ((2, 3), (2, 3))


def test_sentences_at_equal_numbers_and_at_equal_tokens() -> None:
    held = np.array([[True, False, False], [False] * 3] * 2)
    words = EventWords(["My job is mining.", "Hello there!", "My town is Ulm.", "Hi!"], held)
    ruler = Ruler(CachedEmbedder(StemEmbedder()), threshold=0.65, draws=50, seed=0, words=words)
    one = ruler.session(SESSION, "Ana", ["Nothing."])
    assert one["bag_k/found"] == (1, 2)  # not the greeting, which comes first
    assert (one["bag/found"], one["bar/found"]) == ((2, 2), (1, 2))  # two sentences each
    assert one["first_k/found"] == (0, 2)
    assert one["first_tokens/found"] == (0, 2)  # eight bytes are not even the greeting
    assert ruler.session(SESSION, "Ana", ["Hello there, my city: Boston."])["first_tokens/found"] == (0, 2)
    assert ruler.session(SESSION, "Ana", ["Hello there, my city is Boston"])["first_tokens/found"] == (1, 2)  # 12 + 18 bytes
    assert "bag_k/found" not in RULER.session(SESSION, "Ana", ["Nothing."])


def test_random_sentences_are_drawn_with_the_seed_and_averaged() -> None:
    one = RULER.session(SESSION, "Ana", ["Ana's city is Boston."])
    assert one == RULER.session(SESSION, "Ana", ["Ana's city is Boston."])
    found, points = one["random_k/found"]
    assert 0.4 < found < 0.95 and points == 2  # two of three sentences are a point
    assert 1.0 < one["random/found"][0] < 1.7  # two of them are drawn
    assert one["random/f1"] == (2 * one["random/found"][0], 4)
    assert one["first_k/found"] == (0, 2)


def test_a_failed_session_found_nothing_and_a_system_that_extracts_nothing_has_no_row() -> None:
    failed = RULER.session(SESSION, "Ana", ())
    assert (failed["system/found"], failed["system/f1"], failed["first_k/found"]) == ((0, 2), (0, 2), (0, 2))
    assert {name.split("/")[0] for name in RULER.session(SESSION, "Ana", None)} == {"copy_all", "bar", "random"}
    empty = TransferSession(SESSION.dialogue, (), ())
    assert RULER.session(empty, "Ana", ["Ana's city is Boston."])["system/f1"] == (0, 1)


def test_matching_takes_each_point_and_memory_once_and_only_above_the_threshold() -> None:
    near = np.array([[0.9, 0.8], [0.85, 0.1]])
    assert matched(near, 0.65) == 2  # .8 + .85 is more than .9 + .1
    assert (matched(near, 0.87), points_found(near, 0.87)) == (1, 1)
    assert points_found(near[:1], 0.65) == 2  # one memory may say two points
    assert matched(np.zeros((3, 0)), 0.65) == 0


def test_a_foreign_point_is_matched_only_by_what_is_nearer_to_it_than_to_all_points() -> None:
    assert foreign_found(np.array([[0.8]]), np.array([[0.9]]), 0.65) == 0
    assert foreign_found(np.array([[0.8]]), np.array([[0.7]]), 0.65) == 1
    assert foreign_found(np.array([[0.8]]), np.zeros((1, 0)), 0.65) == 1
    assert foreign_found(np.array([[0.6]]), np.array([[0.1]]), 0.65) == 0


def test_what_is_kept_of_the_other_speaker_is_seen_under_the_name_of_the_owner_too() -> None:
    said = (("user", "Ana", "And you?"), ("assistant", "Bo Derek", "I sail."))
    turns = tuple(DialogueTurn(f"D1:{number}", *turn) for number, turn in enumerate(said))
    session = TransferSession(DialogueSession("s1", datetime(2025, 9, 1), turns), (), ("Bo Derek sails.",))
    for memory in ("Ana sails.", "Bo Derek sails.", "Bo sails."):
        assert RULER.session(session, "Ana", [memory])["system/foreign"] == (1, 1)
    assert RULER.session(session, "Ana", ["Bo Derek is there."])["system/foreign"] == (0, 1)


def test_the_name_of_the_owner_makes_no_two_texts_near() -> None:
    texts = ["Ana Lee's city is Boston.", "User: Ana: Hello", "The user met Anatole.", "Ana", "A user of trains met Bo"]
    assert nameless(texts, "Ana Lee") == ["city is Boston.", "Hello", "met Anatole.", "Ana", "A user of trains met Bo"]


UPDATE = PointUpdate("u", "Ana's city is Denver.", ("Ana's city is Boston.",))


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        (["Ana's city is Denver."], (1, 1, 1)),
        (["Ana's city is Denver.", "Ana's city is Boston."], (1, 0, 0)),
        (["Ana's city is Boston."], (0, 0, 0)),
        (["Ana's pet is a cat."], (0, 1, 0)),
        ([], (0, 1, 0)),
    ],
)
def test_an_update_is_found_and_the_old_text_gone(hits: list[str], expected: tuple[int, int, int]) -> None:
    counts = RULER.update(UPDATE, "Ana", hits)
    assert tuple(counts[f"update/{name}"][0] for name in ("found", "old_gone", "both")) == expected


def test_evidence_and_its_words_by_budget() -> None:
    finder = EvidenceFinder.of([SESSION.dialogue], ["Ana"])
    question = TransferQuestion("q", "What is Ana's job?", (("D1:3",), ("D1:2",)), "s1")
    passages = [Passage("Ana's job is nursing."), Passage("The boat of Bo is the Otter.")]
    counts = question_counts(question, passages, finder, [2, 8, 100], by_time=False, with_time=True)
    assert [counts[f"evidence@{budget}"] for budget in (2, 8, 100)] == [(0, 2), (1, 2), (2, 2)]
    assert counts["words@2"] == (0, 1) and 0 < counts["words@8"][0] < counts["words@100"][0] < 1


def locomo() -> list[dict[str, Any]]:
    """Ana and Bo in three sessions; what is noted of them comes in every shape."""

    def line(id: str, speaker: str, text: str) -> dict[str, str]:
        return {"speaker": speaker, "dia_id": id, "text": text}

    def question(text: str, *evidence: str, category: int = 4) -> dict[str, Any]:
        return {"question": text, "answer": "x", "evidence": list(evidence), "category": category}

    dates = {f"session_{number}_date_time": f"1:00 pm on {number} May, 2023" for number in (1, 2, 3)}
    return [
        {
            "sample_id": "conv-1",
            "conversation": {
                "speaker_a": "Ana",
                "speaker_b": "Bo",
                **dates,
                "session_1": [line("D1:1", "Ana", "Hi! My city is Boston."), line("D1:2", "Bo", "My boat is the Otter.")],
                "session_2": [line("D2:1", "Ana", "I moved. My city is Denver."), line("D2:2", "Bo", "Nice!")],
                "session_3": [line("D3:1", "Ana", "My job is nursing.")],
            },
            "observation": {
                "session_1_observation": {
                    "Ana": [["Ana's city is Boston.", "D1:1"], ["Ana greets Bo.", ["D1:1", "D1:2"]], "Ana is there.", [], 7],
                    "Bo": [["Bo's boat is the Otter.", "D1:2; D1:1"]],
                },
                "session_2_observation": {"Ana": [["Ana's city is Denver.", "D2:1, D2:2"]], "Bo": None},
                "session_3_observation": "none",
            },
            "qa": [
                question("What is Ana's city?", "D2:1", "D1:1"),
                question("What is Ana's job?", "D3:1"),
                question("What is Bo's boat?", "D1:2"),
                question("What does Ana say to Bo?", "D1:1"),
                question("What is ANA's cat?", "D1:1", category=5),
                question("What does Anatole do?", "D1:1"),
                question("What does Ana miss?"),
            ],
        }
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with both files."""
    folder = tmp_path / "data"
    for dataset in (LOCOMO, HALUMEM_USER):
        (folder / dataset.path).parent.mkdir(parents=True)
    (folder / LOCOMO.path).write_text(json.dumps(locomo()))
    halumem_cases.write(folder / HALUMEM_USER.path, halumem_cases.ana())
    return folder


def settings(*overrides: str) -> TransferConfig:
    given = ["suites=[locomo,halumem]", "conversations=null", "resamples=20", "manager.max_retries=0", *overrides]
    return validated(composed("transfer", given), TransferConfig)


def test_points_and_questions_of_the_first_speaker_and_of_the_user(data: Path) -> None:
    ana, user = read_people(settings(f"data={data}", "sessions=2")).people
    assert (ana.store.id, ana.store.owner, ana.store.batch_turns) == ("conv-1.Ana", "Ana", None)
    assert [session.dialogue.id for session in ana.sessions] == ["session_1", "session_2"]
    assert ana.sessions[0].points == ("Ana's city is Boston.", "Ana greets Bo.", "Ana is there.")
    assert [session.foreign for session in ana.sessions] == [("Bo's boat is the Otter.",), ()]
    (question,) = ana.questions
    assert (question.evidence, question.session) == ((("D2:1",), ("D1:1",)), "session_2")
    assert (user.store.id, user.store.owner, len(user.sessions)) == (ANA, "Ana Lee", 2)
    assert user.sessions[0].points == ("Ana Lee's city is Boston.", "Ana Lee's job is nursing.")
    assert user.sessions[0].foreign == ("Ana Lee's pet is a parrot.",)
    (_, user) = read_people(settings(f"data={data}")).people
    (update,) = user.sessions[2].updates
    assert (update.text, update.originals) == ("Ana Lee's city is Denver.", ("Ana Lee's city is Boston.",))
    assert [question.session for question in user.questions] == ["S1", "S3"]


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The command's work with an embedder without weights."""
    monkeypatch.setattr(command, "make_embedder", lambda settings: CachedEmbedder(StemEmbedder()))
    without_versions(monkeypatch)
    monkeypatch.setattr(report, "versions", dict)

    def evaluate(*overrides: str, out: str = "out") -> dict[str, Any]:
        config = settings(f"data={data}", f"out={tmp_path / out}", *overrides)
        return run_tasks(lambda: command.evaluate(config, Console(quiet=True)))

    return evaluate


def scores(summary: dict[str, Any], suite: str) -> dict[str, float]:
    return {name: of["estimate"] for name, of in summary["suites"][suite]["scores"].items() if of is not None}


def asked(server: Served) -> int:
    return sum(not is_check(body) for body in server.requests)


def test_a_model_that_is_right_finds_all_points_and_updates_and_nothing_is_done_twice(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with serve(rules) as server:
        given = ["system=deltamem", f"base_url={server.url}", "manager.model=tiny"]
        first = run(*given)
        calls = asked(server)
        again = run(*given)
        assert asked(server) == calls > 0
        fresh = run(*given, f"cache={tmp_path / 'out' / 'responses.sqlite'}", out="fresh")
        assert asked(server) == calls  # the same requests, so the cache answers
    assert first["suites"] == again["suites"]
    found = scores(first, "halumem")
    assert (found["system/found"], found["system/precision"], found["support/mean"]) == (0.75, 0.75, 1.0)  # "sum is four"
    assert (found["update/both"], found["system/foreign"], found["evidence@250"]) == (1.0, 0.0, 1.0)
    cost = fresh["suites"]["halumem"]["cost"]
    assert cost["cached"] == cost["calls"] == first["suites"]["halumem"]["cost"]["calls"] > 0
    assert first["suites"]["halumem"]["sessions"] == {
        "number": 4, "read": 4, "failed": 0, "unreadable": 0, "searches_missing": 0
    }  # fmt: skip
    assert first["provenance"]["data"]["locomo"]["file"] == "locomo10.json"


def test_scores_can_be_pooled_from_what_was_counted_of_each_session(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    summary = run("system=copy_all")
    rows = [json.loads(line) for line in (tmp_path / "out" / "counts.jsonl").read_text("utf-8").splitlines()]
    read = {suite: of["sessions"]["number"] for suite, of in summary["suites"].items()}
    assert {suite: len({row["session"] for row in rows if row["suite"] == suite}) for suite in read} == read
    for suite in read:
        for name, score in scores(summary, suite).items():
            of = [row["counts"][name] for row in rows if row["suite"] == suite and name in row["counts"]]
            assert sum(top for top, _ in of) / sum(bottom for _, bottom in of) == pytest.approx(score)


def test_the_card_of_a_policy_shows_what_carries_over_by_exactly_its_weights(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"trained")
    with serve(rules, [{"id": "tiny", "root": str(policy), "max_model_len": 16384}]) as server:
        summary = run("system=deltamem", f"base_url={server.url}", "manager.model=tiny")
    measured = read_measured([tmp_path / "out"])
    measured.check(weights_sha256(policy))
    (section,) = measured.sections()
    for name, suite in summary["suites"].items():
        assert f"\n\n{name}, {suite['sessions']['number']} sessions (0 failed, 0 unreadable):\n\n" in section
    assert "\n| this policy | 75.0 [" in section and "\n| every sentence | " in section and "bag of words" not in section
    assert not any("eval.transfer" in line for line in measured.missing()) and read_measured([]).missing()[1].startswith(
        "What"
    )
    (policy / "model.safetensors").write_bytes(b"trained on")
    with pytest.raises(DeltaMemError, match="measured another model"):
        measured.check(weights_sha256(policy))


def test_a_failed_session_is_told_and_tried_again_and_searches_are_made_anew(
    run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Notebook(break_ingest={f"{ANA}/S3"}, break_search={"Which city does Ana live in now?"})
    monkeypatch.setattr(command, "make_system", lambda *arguments: system)
    first = run("suites=[halumem]")["suites"]["halumem"]["sessions"]
    assert (first["failed"], first["searches_missing"]) == (1, 1)
    system.break_ingest = system.break_search = ()
    before = len(system.searches)
    second = run("suites=[halumem]")
    sessions = second["suites"]["halumem"]["sessions"]
    assert (sessions["failed"], sessions["searches_missing"]) == (0, 0)
    assert len(system.searches) == before + 3  # the update and both questions, in a memory that has more now
    assert "1 sessions were read after later ones" in second["warnings"][0]
    run("suites=[halumem]")
    assert len(system.searches) == before + 3


def test_a_store_that_did_not_last_is_filled_again_and_only_what_is_missing_is_searched_for(
    run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Notebook(break_search={"Which city does Ana live in now?"})
    monkeypatch.setattr(command, "make_system", lambda *arguments: system)
    run("suites=[halumem]")
    sessions = (tmp_path / "out" / "sessions.jsonl").read_text()
    before = len(system.searches)
    system.break_search = ()
    system.stores.clear()
    summary = run("suites=[halumem]")
    assert len(system.ingested) == 2 * len(sessions.splitlines())
    assert (tmp_path / "out" / "sessions.jsonl").read_text() == sessions
    ((_, query, turns),) = system.searches[before:]
    assert query == "Which city does Ana live in now?" and turns[-1] == "S4:1"
    assert summary["suites"]["halumem"]["sessions"]["searches_missing"] == 0


def test_systems_without_a_model_and_the_markdown_table_of_several(
    run: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = scores(run("system=copy_all", out="copier"), "locomo")
    assert copied["system/f1"] == copied["copy_all/f1"] and copied["system/found"] == copied["first_k/found"]
    assert copied["evidence@250"] == copied["first_k/evidence@250"] == copied["random_k/evidence@250"] > 0
    assert copied["idle/silent"] == 0.0  # the last session has no point, and is copied all the same
    searched = scores(run("system=naive_rag", out="rag"), "locomo")
    assert "idle/silent" not in searched and "first_k/evidence@250" not in searched and searched["evidence@250"] > 0
    assert command.table([tmp_path / "copier", tmp_path / "rag"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if "**" in line] == [
        "| locomo: **copier**", "| locomo: **rag**", "| halumem: **copier**", "| halumem: **rag**"
    ]  # fmt: skip
    assert len({line.count(" | ") for line in lines if line.startswith("|")}) == 1
    assert not any("comparable" in line for line in lines)
    run("system=naive_rag", "sessions=1", out="short")
    names = ("copier", "short")
    shown = markdown_table({name: read_summary(tmp_path / name) for name in names})
    assert "**Not comparable**: other sessions in copier and short." in shown
    assert "copier: halumem is a single person, whose figures say nothing of others." in shown


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"model": "tiny", "mode": "assisted"}, ("(tiny, assisted)", "(assisted)")),
        ({"package": "mem0ai 2.2.1", "entity_links": True}, ("(mem0ai 2.2.1, with entity links)",) * 2),
        (None, ("", "")),
    ],
)
def test_both_tables_name_mode_and_version(
    run: Callable[..., dict[str, Any]], facts: dict[str, Any] | None, said: tuple[str, str]
) -> None:
    summary = run("system=naive_rag", "sessions=1")
    del summary["provenance"]["system"]
    summary["provenance"] |= {} if facts is None else {"system": facts}
    assert f"| locomo: {f'**one** {said[0]}'.strip()} |" in markdown_table({"one": summary})
    assert summary_table(summary).title == f"{f'naive_rag {said[1]}'.strip()}: what it keeps"


def test_what_cannot_be_run_or_compared_is_said_in_a_sentence(
    run: Callable[..., dict[str, Any]], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeltaMemError, match="name a single suite"):
        read_people(settings(f"data={data / LOCOMO.path}"))
    with pytest.raises(DeltaMemError, match="is not here"):
        read_people(settings(f"data={tmp_path}"))
    with pytest.raises(DeltaMemError, match="no estimate"):
        settings("estimate=true").check()
    with pytest.raises(DeltaMemError, match="no finished run"):
        read_summary(tmp_path)
    run("system=naive_rag", "sessions=1")
    with pytest.raises(DeltaMemError, match="sessions = 1"):
        run("system=naive_rag")
    monkeypatch.setattr(sys, "argv", ["eval.transfer", "table"])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2


@pytest.mark.skipif(None in (find(LOCOMO), find(HALUMEM_USER)), reason="LoCoMo or the HaluMem user is not here")
def test_the_released_files_have_points_updates_and_questions() -> None:
    config = validated(composed("transfer", ["suites=[locomo,halumem]", "sessions=8"]), TransferConfig)
    caroline, jon, user = read_people(config).people
    assert [person.store.id for person in (caroline, jon)] == ["conv-26.Caroline", "conv-30.Jon"]
    for person in (caroline, jon):
        assert all(session.points and session.foreign for session in person.sessions)
        assert len(person.questions) > 10
    assert sum(len(session.updates) for session in user.sessions) == 13
    assert user.questions and len(user.sessions) == 8

"""LongMemEval: its file, which is read piece by piece, its evidence, judges and scores."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from benchmark_cases import DELETED, LONGMEMEVAL, Notebook, changed, prepare, records, sent, served
from longmemeval_cases import DATES, benchmark, write
from scripted_server import serve

from deltamem.errors import DeltaMemError
from eval.compare.layout import published_tables
from eval.longmemeval import data
from eval.longmemeval.__main__ import LongMemEval
from eval.longmemeval.data import LongMemEvalData, read_data


def read(folder: Path, *overrides: str, content: object = None) -> LongMemEvalData:
    config = LONGMEMEVAL.configured(folder, *overrides)
    if content is not None:
        write(folder / "lme.json", content)
    return read_data(config)


def test_a_haystack_is_in_order_and_its_answer_turns_are_known(tmp_path: Path) -> None:
    found = {question.record.key: question for question in read(tmp_path).questions}
    update = found["q-update"]
    assert [(session.id, session.time.day) for session in update.sessions] == [
        ("f1", 20),
        ("answer_b#2", 21),
        ("answer_b", 22),
    ]
    assert [turn.text for turn in update.sessions[1].turns] == ["My bicycle is blue."]
    assert found["q-both"].record.gold == "3"
    assert found["q-time"].record.time == datetime(2023, 5, 30, 23, 40)
    evidence = {name: question.record.evidence for name, question in found.items()}
    assert evidence["q-both"] == ("answer_dog_1", "answer_boat_1", "answer_boat_2"), "turns of the user"
    assert evidence["q-said"] == ("answer_tea_2",), "only the assistant says it"
    assert evidence["q-none_abs"] == ()
    assert found["q-none_abs"].answers == ("answer_dog_1", "answer_dog_2")


@pytest.mark.parametrize(("chunk", "indent"), [(7, 4), (100, None), (1 << 25, 4)])
def test_the_file_is_read_in_pieces_of_any_size(monkeypatch, tmp_path: Path, chunk: int, indent: int | None) -> None:
    records = benchmark()
    records[2]["haystack_sessions"][1][0]["content"] = 'Größe "€" \\ 🐕 ]}, [{'
    config = LONGMEMEVAL.configured(tmp_path, "stores_at_once=1")
    (tmp_path / "lme.json").write_text(json.dumps(records, indent=indent, ensure_ascii=indent is None), encoding="utf-8")
    monkeypatch.setattr(data, "_CHUNK", chunk)
    parsed: list[object] = []
    monkeypatch.setattr(data.json, "loads", lambda text: parsed.append(0) or json.JSONDecoder().decode(text.decode()))
    found = read_data(config)
    assert parsed == [], "turns stay in the file"
    for question, one in zip(found.questions, records, strict=True):
        texts = [[turn.text for turn in session.turns] for session in question.sessions]
        assert sorted(texts) == sorted([turn["content"] for turn in session] for session in one["haystack_sessions"])
    assert len(parsed) == len(records), "the last haystack is kept"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("0.question", DELETED, "question"),
        ("0.question_type", "riddle", "question_type: Input should be 'single-session-user', "),
        ("0.question_id", "a/b", "question_id"),
        ("0.question_id", "q-time", "question_id q-time occurs twice"),
        ("0.haystack_dates", DATES, "2 session ids, 3 dates and 2 sessions"),
        ("0.question_date", "30 May", "the date '30 May' is not like"),
        ("0.haystack_sessions.0.0.role", "tool", "haystack_sessions.0.0.role"),
        ("0", "text", "record 1"),
    ],
)
def test_a_broken_record_is_counted_and_the_others_are_read(tmp_path: Path, path: str, value: object, message: str) -> None:
    found = read(tmp_path, content=changed(benchmark(), path, value))
    assert len(found.problems) == found.description()["unreadable_records"] == 1 and message in found.problems[0]
    assert len(found.questions) == 6


BENCHMARK = benchmark()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "does not hold a JSON array"),
        (json.dumps(BENCHMARK)[:-30], "ends within record 7; fetch it again"),
        (json.dumps(BENCHMARK).replace('"answer": "a dog"', '"answer": a dog') + " " * 99, "record 1 is not valid JSON"),
        ("[]", "no record is a question of LongMemEval"),
    ],
)
def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    config = LONGMEMEVAL.configured(tmp_path)
    (tmp_path / "lme.json").write_text(content)
    with pytest.raises(DeltaMemError, match=message):
        read_data(config)


def test_a_judge_by_type_and_scores_by_hand(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, LONGMEMEVAL)
    with serve(LONGMEMEVAL.script) as server:
        summary = LONGMEMEVAL.run(tmp_path, *served(server))
        prompts = [json.loads(text)[0][0]["content"] for text in sent(server)]
    assert all("# Today\nTuesday, 30 May 2023\n" in prompt for prompt in prompts if prompt.startswith("You are"))
    judges = {name: set(record["answers"][0]["verdicts"]) for name, record in records(tmp_path).items()}
    assert judges == {
        "q-user": {"generic"},
        "q-both": {"generic"},
        "q-said": {"generic"},
        "q-update": {"update"},
        "q-time": {"temporal"},
        "q-like": {"preference"},
        "q-none_abs": {"unanswerable"},
    }
    scores = {
        metric: {name: of["estimate"] for name, of in rows.items() if of} for metric, rows in summary["scores"].items()
    }
    assert scores["accuracy"]["all"] == pytest.approx(2 / 7)
    assert scores["accuracy"]["multi-session"] == 0.5, "an abstention question counts for its type"
    assert scores["task_average"] == {"all": pytest.approx((1 + 0.5) / 6)}
    assert scores["abstention_accuracy"]["all"] == 1.0
    assert scores["set_f1"]["single-session-user"] == 1.0 and "single-session-preference" not in scores["set_f1"]
    assert summary["headline"]["metric"] == "accuracy" and summary["data"]["published"] is False


def test_recall_of_turns_and_of_sessions_by_hand(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, LONGMEMEVAL, system := Notebook(with_sources=False))  # which finds turns in their order
    summary = LONGMEMEVAL.run(tmp_path, "answer.kind=none", "cutoffs=[3,6]")
    assert records(tmp_path)["q-both"]["ranks"] == [3, 6, 7]
    scores = {metric: rows["multi-session"] for metric, rows in summary["scores"].items()}
    assert {metric: round(of["estimate"], 3) for metric, of in scores.items()} == {
        "recall@3": 0.333,
        "recall@6": 0.667,
        "mrr": 0.333,
        "gold_words_shown": 1.0,
        "session_recall@3": 0.5,
        "all_sessions@3": 0.0,
        "session_recall@6": 1.0,
        "all_sessions@6": 1.0,
    }
    assert all(of["count"] == 1 for of in scores.values()), "the abstention question has no recall"
    assert {query for _, query, _ in system.searches} == {record["question"] for record in BENCHMARK}, "without the date"


def test_the_oracle_shows_all_answer_turns_and_nothing_else_is_ingested(monkeypatch, tmp_path: Path) -> None:
    prepare(monkeypatch, LONGMEMEVAL)
    LONGMEMEVAL.run(tmp_path, "system=oracle", "answer.kind=none")
    passages = records(tmp_path, "passages")
    shown = {
        name: [passages[one["passage"]]["text"] for one in found["retrieved"]] for name, found in records(tmp_path).items()
    }
    assert shown["q-both"] == ["I adopted a dog.", "A dog, how lovely!", "The boat is mine.", "I have a second boat."]
    assert shown["q-none_abs"] == shown["q-user"]
    prepare(monkeypatch, LONGMEMEVAL, system := Notebook())
    summary = LONGMEMEVAL.run(tmp_path, "answer.kind=none", "limit=2", f"out={tmp_path / 'sample'}")
    assert len(system.opened) == sum(summary["questions"]["by_category"].values()) == 2
    assert "a sample: 2 of 7 questions (limit=2)" in summary["version"]


@pytest.mark.parametrize(("version", "asked"), [("oracle", 50), ("s", 50), ("m", 15)])
def test_the_protocol_of_stitch_has_its_budget_and_samples(version: str, asked: int, tmp_path: Path) -> None:
    config = LONGMEMEVAL.configured(tmp_path, "protocol=stitch", f"version={version}")
    assert (config.k, config.limit, config.answer.context_tokens, config.answer.cut) == (40, asked, 4096, "sentence")
    assert (config.answer.tokenizer, config.judge.extra_body) == ("auto", {"top_p": 0.9})
    assert not any("where" in one for one in config.departures()), "nothing that is set departs"
    plain = LONGMEMEVAL.configured(tmp_path, f"version={version}")
    assert (plain.k, plain.limit, plain.answer.context_tokens, plain.answer.cut) == (20, None, 200_000, "passage")
    assert plain.departures() == [] and plain.judge.extra_body == {} and plain.answer.tokenizer is None
    given = ["k=20", "limit=500", "answer.model=gpt-5-mini-2025", "judge.model=tiny"]
    told = LONGMEMEVAL.configured(tmp_path, "protocol=stitch", f"version={version}", *given).departures()
    assert told[:3] == [
        f"limit=500, where the protocol has {asked}",
        "k=20, where the protocol has 40",
        "judge.model=tiny, where published scores are of gpt-4.1-mini",
    ]


def test_under_the_protocol_of_stitch_one_judge_reads_all_questions(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LONGMEMEVAL)
    with serve(LONGMEMEVAL.script) as server:
        summary = LONGMEMEVAL.run(tmp_path, *served(server, "naive_rag"), "protocol=stitch", "version=oracle")
        judged = [body for body in server.requests if body["messages"][0]["content"].startswith("You grade")]
    assert len(judged) == 7 and all(body["top_p"] == 0.9 for body in judged)
    assert {name for one in records(tmp_path).values() for name in one["answers"][0]["verdicts"]} == {"lenient"}
    assert summary["headline"]["metric"] == "accuracy" and summary["protocol"]["name"] == "stitch"
    published = [one for one in published_tables(LongMemEval.published_file()) if "STITCH" in one.source]
    assert [one.rows["STITCH"] for one in published] == [[86.0], [86.0], [80.0]]

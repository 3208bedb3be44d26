"""PersonaMem over invented data: letters count, and each question sees its own history with nothing of the future in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import PERSONAMEM, Notebook, command, prepare, records, served
from personamem_cases import ANA, asked, contexts, row, rows, write_contexts, write_data, write_questions
from scripted_server import Reply, completion, serve

from deltamem.errors import DeltaMemError
from deltamem.llm import seed_of_request
from eval.data import PERSONAMEM_CONTEXTS, PERSONAMEM_QUESTIONS

STORE = "a1" * 6


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    prepare(monkeypatch, PERSONAMEM, notebook)
    return notebook


def run(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    return PERSONAMEM.run(tmp_path, "answer.kind=none", "cutoffs=[2,1]", *overrides)


ENDS = {
    (values["shared_context_id"][:12], values["user_question_or_message"]): int(values["end_index_in_shared_context"])
    for values in rows()
}


def check_searches(system: Notebook, count: int = 7) -> None:
    """At each search the store held the messages before the question, in order, and no others."""
    assert len(system.searches) == count
    for store, query, turns in system.searches:
        assert turns == [str(index) for index in range(ENDS[store, query])], (store, query)


def test_each_question_is_searched_for_in_its_own_history(tmp_path: Path, system: Notebook) -> None:
    summary = run(tmp_path)
    check_searches(system)
    # Every message is taken in once, whatever the number of questions that it comes before.
    assert len(system.ingested) == len(set(system.ingested)) == 10
    assert summary["failures"]["count"] == 0
    assert summary["sessions"] == {"total": 10, "applied": 10, "unreadable": 0, "failed": 0, "late": 0}
    assert list(summary["questions"]["by_category"]) == [
        "recalling_the_reasons_behind_previous_updates",
        "suggest_new_ideas",
        "track_full_preference_evolution",
        "recall_user_shared_facts",
    ]
    assert summary["referenced_block"] == {"both_distances_agree": 7, "they_do_not": 0, "none": 0}


def test_a_wider_run_does_not_search_a_store_that_knows_the_future(tmp_path: Path, system: Notebook) -> None:
    narrow = run(tmp_path, "limit=1")
    assert [query for _, query, _ in system.searches] == ["dog?"]  # other questions come before it
    assert run(tmp_path)["sessions"]["total"] > narrow["sessions"]["total"]
    check_searches(system)
    assert system.resets == [STORE]
    assert run(tmp_path, "limit=1")["sessions"] == narrow["sessions"], "it counts its own sessions"


def test_a_narrow_run_takes_in_no_more_than_it_needs(tmp_path: Path, system: Notebook) -> None:
    summary = run(tmp_path, "users=[1]", "limit=1")
    ((store, query, _),) = system.searches
    last = ENDS[store, query]
    assert store != STORE and {name.partition("/")[0] for name in system.ingested} == {store}
    assert max(int(name.rpartition("-")[2]) for name in system.ingested) == last - 1
    sample = "(a sample: 1 of 7 questions (users=[1], limit=1)): "
    assert summary["version"].startswith(f"PersonaMem of unknown size, not the published file {sample}")
    with pytest.raises(DeltaMemError, match=r"users names '7', which the data does not have; there are: 0, 1$"):
        run(tmp_path, "users=[7]")


def test_questions_after_a_session_that_failed_wait_for_it(tmp_path: Path, system: Notebook) -> None:
    system.break_ingest = {f"{STORE}/7-8"}
    assert run(tmp_path)["failures"]["by_stage"] == {"ingest": 1, "search": 4}
    assert f"{STORE}/9-10" not in system.ingested
    check_searches(system, 3)
    system.break_ingest = ()
    assert run(tmp_path)["failures"]["count"] == 0
    assert system.resets == []  # what was in the store is a beginning of what is needed
    check_searches(system)


def test_a_store_with_a_gap_begins_anew(tmp_path: Path, system: Notebook) -> None:
    system.break_search = {"User: tea or coffee?"}
    run(tmp_path, "limit=2")
    del system.stores[STORE]["9-10"], system.stores[STORE]["3-6"]
    system.break_search = ()
    run(tmp_path)
    assert STORE in system.resets
    check_searches(system)


def test_unreadable_sessions_are_no_gap(tmp_path: Path, system: Notebook) -> None:
    system.unreadable = {f"{STORE}/3-6"}
    system.break_search = {"User: tea or coffee?"}
    assert run(tmp_path, "limit=2")["sessions"]["unreadable"] == 1
    del system.stores[STORE]["9-10"]  # as if the run had been killed before
    system.break_search = ()
    run(tmp_path, "limit=2")
    assert system.resets == []
    assert system.ingested.count(f"{STORE}/3-6") == 1


def test_ranks_and_chance_of_the_referenced_block(tmp_path: Path, system: Notebook) -> None:
    # The system returns the oldest turns in order; of the seven questions the block of three is the first session.
    scores = run(tmp_path, "k=3", "cutoffs=[2,3]")["scores"]
    by_question = {record["question"]: record for record in records(tmp_path).values()}
    assert by_question["tea?"]["ranks"] == [2]  # the first turn is the persona text
    assert by_question["tea?"]["evidence"] == ["messages 0-2"]
    assert by_question["dog?"]["ranks"] == [None]
    assert scores["recall@2"]["all"]["estimate"] == pytest.approx(3 / 7)
    assert scores["mrr"]["all"]["estimate"] == pytest.approx(3 / 7 / 2)
    assert by_question["tea?"]["gold_words_shown"] == 1.0 > by_question["dog?"]["gold_words_shown"] > 0
    assert scores["precision@3"]["all"]["estimate"] == pytest.approx(3 * 2 / 3 / 7)
    # By hand, tea: two of eleven turns; none of two drawn with 9/11 * 8/10.
    assert scores["random_recall@2"]["recall_user_shared_facts"]["estimate"] == pytest.approx(1 - 72 / 110)
    assert scores["random_precision"]["recall_user_shared_facts"]["estimate"] == pytest.approx(2 / 11)


def test_questions_without_history_are_accounted_for(tmp_path: Path, system: Notebook) -> None:
    late, early = (row(ANA, 11, 1, 3, name, end_index_in_shared_context=end) for name, end in (("l?", "13"), ("e?", "-1")))
    values = [*rows(), late, early, row(ANA, 11, 1, 3, "broken?", correct_answer="c")]
    shared = {name: messages for name, messages in contexts().items() if name != "c3" * 32}
    questions, known = write_questions(tmp_path / "more.csv", values), write_contexts(tmp_path / "less.jsonl", shared)
    summary = run(tmp_path, f"questions={questions}", f"contexts={known}")
    check_searches(system, 5)
    assert summary["questions"]["total"] == 10
    assert summary["data"]["questions_without_history"] == {"context_missing": 2, "end_out_of_range": 2}
    assert summary["failures"]["by_stage"] == {"data": 1, "search": 4}
    found = records(tmp_path).values()
    assert len(found) == 9
    told = [record["error"] for record in found if "error" in record]
    ends = [f"its end index {end} is not within its context, which has 12 messages" for end in (13, -1)]
    assert sorted(told) == sorted([*["its context c3c3c3c3c3c3 is not in less.jsonl"] * 2, *ends])


def script(body: dict[str, Any]) -> Reply:
    """Seven questions, three runs each, the right letter is (b)."""
    seeds = [seed_of_request(0, run, body["messages"]) for run in range(3)]
    number = seeds.index(body["seed"]) if body.get("seed") in seeds else 0
    replies = {
        "tea?": "<final_answer>(b)</final_answer>",
        "User: tea or coffee?": ("<final_answer>(b)", "<final_answer>(c)", "<final_answer>(c)")[number],
        "dog?": "It depends on the mood.",  # prose
        "coffee?": "<final_answer>(b) or (c)",  # two letters
        "bicycle?": "",  # nothing
        "boat?": "<think>(a)? (d)?</think>b" if number else "(a)",
        "the boat?": "Surely (b)",
    }
    return completion(replies.get(asked(body), "yes"), prompt_tokens=100, tokens=5)


def test_answers_of_a_model_are_scored_by_letter(tmp_path: Path, monkeypatch, capsys) -> None:
    prepare(monkeypatch, PERSONAMEM)
    with serve(script) as server:
        summary = PERSONAMEM.run(tmp_path, *served(server))
        assert sum(bool(asked(body)) for body in server.requests) == 7 * 3 + 3  # an empty answer is drawn a second time
        overrides = [*PERSONAMEM.write(tmp_path), f"out={tmp_path / 'out'}", "resamples=20", "judge.probes=false"]
        done = command(PERSONAMEM, monkeypatch, capsys)(*overrides, *served(server))
        assert sum(bool(asked(body)) for body in server.requests) == 7 * 3 + 3  # the empty answers, too, are in the cache
    assert done.code == 1  # one question has no answer
    assert "PersonaMem of unknown size, not the published file, full_context: accuracy_final 28.6 (" in done.out
    assert "6 of 7 questions answered" in done.out
    assert "3 failures (3 silent answers)" in done.err and "the answerer returned nothing" in done.err
    # Right in each of three runs: tea 3, tea or coffee 1, dog 0, coffee 0, boat 2, the boat 3; the bicycle 0, of silence.
    scores = summary["scores"]
    assert (scores["accuracy"]["all"]["estimate"], scores["accuracy"]["all"]["count"]) == (pytest.approx(9 / 21), 7)
    assert (scores["accuracy(valid)"]["all"]["estimate"], scores["accuracy(valid)"]["all"]["count"]) == (0.5, 6)
    assert summary["withheld"] == {} and summary["headline"]["silent"] == 1
    assert [scores[f"accuracy_run_{number}"]["all"]["estimate"] for number in (1, 2, 3)] == pytest.approx([3 / 7] * 3)
    passes = [scores[f"pass@{k}"]["all"]["estimate"] for k in (1, 2, 3)]
    assert passes == pytest.approx([9 / 21, (1 + 2 / 3 + 0 + 0 + 1 + 1 + 0) / 7, 4 / 7])
    kind = "track_full_preference_evolution"
    assert scores["accuracy"][kind]["estimate"] == pytest.approx(4 / 6)
    over_runs = summary["accuracy_over_runs"]
    assert over_runs["all"] == {"per_run": [3 / 7, 3 / 7, 3 / 7], "mean": 3 / 7, "std": 0.0}
    assert over_runs[kind]["per_run"] == [1.0, 0.5, 0.5]
    assert over_runs[kind]["std"] == pytest.approx((1 / 18) ** 0.5)
    assert summary["letters_named"] == {"one": 12, "several": 3, "none": 3}
    counts = summary["questions"]
    assert (counts["total"], counts["asked"], counts["answered"], counts["failed"]) == (7, 7, 6, 1)
    assert "recall@5" not in scores  # the whole context has no order
    assert summary["mode"] == "answered"
    assert summary["making"]["models"]["judge"] is None
    assert list(summary["making"]["prompt_hashes"]) == ["answer_personamem"]
    assert summary["cost"]["answer"]["calls"] == 24
    # Each question is shown its own history and options
    prompts = {asked(body): body["messages"][-1]["content"] for body in server.requests}
    assert "(b) Have what you like." in prompts["tea?"]
    assert "That makes sense." not in prompts["tea?"]  # the last message, which comes after the question
    assert "The old drink upset my stomach." in prompts["tea?"]
    assert "The old drink upset my stomach." not in prompts["User: tea or coffee?"]
    assert "User: These days I prefer coffee" in prompts["User: tea or coffee?"]
    assert "I sold the boat." in prompts["boat?"] and "I sold the boat." not in prompts["the boat?"]
    assert "2024" not in prompts["tea?"]  # made-up dates are not shown


def test_a_folder_names_both_files(tmp_path: Path) -> None:
    for override, dataset in zip(write_data(tmp_path), (PERSONAMEM_QUESTIONS, PERSONAMEM_CONTEXTS), strict=True):
        Path(override.partition("=")[2]).rename(tmp_path / Path(dataset.path).name)
    config = PERSONAMEM.configured(tmp_path, f"data={tmp_path}", "questions=null", "contexts=null")
    assert config.files() == (tmp_path / "questions_32k.csv", tmp_path / "shared_contexts_32k.jsonl")
    with pytest.raises(DeltaMemError, match="data=absent is not a folder"):
        PERSONAMEM.configured(tmp_path, "data=absent", "questions=null").check()

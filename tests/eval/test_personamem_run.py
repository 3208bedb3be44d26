"""PersonaMem over invented data: each question is searched for in its own history, with nothing of the future in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import PERSONAMEM, Notebook, NotebookStore, prepare
from personamem_cases import ANA, contexts, records, row, rows, write_contexts, write_questions

from eval import runner
from eval.answer import AnswerRequest
from eval.records import AnswerRecord
from eval.systems.base import Passage
from eval.systems.baselines import FullContext


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    prepare(monkeypatch, PERSONAMEM, notebook)
    return notebook


def run(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    return PERSONAMEM.run(tmp_path, "answer.kind=none", "cutoffs=[2,1]", *overrides)


HISTORIES = {(values["shared_context_id"][:12], values["user_question_or_message"]): values for values in rows()}


def check_searches(system: Notebook) -> None:
    """At each search the store held the messages before the question, in order, and no others."""
    for store, query, turns in system.searches:
        end = int(HISTORIES[store, query]["end_index_in_shared_context"])
        assert turns == [str(index) for index in range(end)], (store, query)


def test_each_question_is_searched_for_in_its_own_history(tmp_path: Path, system: Notebook) -> None:
    summary = run(tmp_path)
    assert len(system.searches) == 7
    check_searches(system)
    # Every message is taken in once, whatever the number of questions that it comes before.
    assert len(system.ingested) == len(set(system.ingested)) == 10
    assert summary["failures"]["count"] == 0
    assert summary["sessions"] == {"total": 10, "applied": 10, "unreadable": 0, "failed": 0, "late": 0}
    assert summary["questions"]["total"] == 7
    assert list(summary["questions"]["by_category"]) == [
        "recalling_the_reasons_behind_previous_updates",
        "suggest_new_ideas",
        "track_full_preference_evolution",
        "recall_user_shared_facts",
    ]
    assert summary["referenced_block"] == {"both_distances_agree": 7, "they_do_not": 0, "none": 0}


def test_a_wider_run_does_not_search_a_store_that_knows_the_future(tmp_path: Path, system: Notebook) -> None:
    run(tmp_path, "limit=1")  # asks the first question of each persona, after which the stores are full
    assert [query for _, query, _ in system.searches] == ["tea?", "bicycle?"]
    run(tmp_path)
    assert len(system.searches) == 7
    check_searches(system)
    assert system.resets == ["a1" * 6]  # only there a question came before the one that had been asked


def test_a_narrow_run_takes_in_no_more_than_it_needs(tmp_path: Path, system: Notebook) -> None:
    values = rows()
    values.insert(0, values.pop(1))
    overrides = [
        f"questions={write_questions(tmp_path / 'q.csv', values)}",
        f"contexts={write_contexts(tmp_path / 'c.jsonl')}",
        f"out={tmp_path}/out",
        "answer.kind=none",
        "limit=1",
    ]
    run(tmp_path, *overrides)
    assert sorted(system.ingested) == [
        "a1a1a1a1a1a1/0-2",
        "a1a1a1a1a1a1/3-6",
        "a1a1a1a1a1a1/7-8",
        "b2b2b2b2b2b2/0-2",
        "b2b2b2b2b2b2/3-4",
    ]


def test_a_narrower_run_in_the_same_folder_counts_its_own_sessions(tmp_path: Path, system: Notebook) -> None:
    narrow = run(tmp_path, "limit=1", f"out={tmp_path}/narrow")
    system.stores.clear()  # those of another folder
    assert run(tmp_path)["sessions"]["total"] > narrow["sessions"]["total"]
    assert run(tmp_path, "limit=1")["sessions"] == narrow["sessions"]


def test_a_failed_search_is_repeated_in_the_right_history(tmp_path: Path, system: Notebook) -> None:
    system.break_search = {"User: tea or coffee?"}
    summary = run(tmp_path)
    assert summary["failures"]["by_stage"] == {"search": 1}
    assert "no index" in summary["failures"]["first"][0]
    assert len(system.searches) == 6
    system.break_search = ()
    assert run(tmp_path)["failures"]["count"] == 0
    assert system.resets == ["a1" * 6]
    assert len(system.searches) == 7
    check_searches(system)


def test_questions_after_a_session_that_failed_wait_for_it(tmp_path: Path, system: Notebook) -> None:
    system.break_ingest = {"a1a1a1a1a1a1/7-8"}
    summary = run(tmp_path)
    assert summary["failures"]["by_stage"] == {"ingest": 1, "search": 4}
    errors = [record["error"] for record in records(tmp_path / "out" / "questions.jsonl") if "error" in record]
    assert errors == ["session 7-8 could not be ingested: out of order"] * 4
    assert "a1a1a1a1a1a1/9-10" not in system.ingested
    assert len(system.searches) == 3
    system.break_ingest = ()
    assert run(tmp_path)["failures"]["count"] == 0
    assert system.resets == []  # what was in the store is a beginning of what is needed
    assert len(system.searches) == 7
    check_searches(system)


def test_a_store_with_a_gap_begins_anew(tmp_path: Path, system: Notebook) -> None:
    system.break_search = {"User: tea or coffee?"}
    run(tmp_path, "limit=2")
    del system.stores["a1" * 6]["9-10"], system.stores["a1" * 6]["3-6"]
    system.break_search = ()
    run(tmp_path)
    assert "a1" * 6 in system.resets
    check_searches(system)


def test_unreadable_sessions_are_no_gap(tmp_path: Path, system: Notebook) -> None:
    system.unreadable = {"a1a1a1a1a1a1/3-6"}
    system.break_search = {"User: tea or coffee?"}
    summary = run(tmp_path, "limit=2")
    assert summary["sessions"]["unreadable"] == 1
    del system.stores["a1" * 6]["9-10"]  # as if the run had been killed before
    system.break_search = ()
    run(tmp_path, "limit=2")
    assert system.resets == []
    assert system.ingested.count("a1a1a1a1a1a1/3-6") == 1


def test_ranks_and_chance_of_the_referenced_block(tmp_path: Path, system: Notebook) -> None:
    # The system returns the oldest turns in order; of the seven questions the block of three is the first session.
    summary = run(tmp_path, "k=3", "cutoffs=[2,3]")
    by_question = {record["question"]: record for record in records(tmp_path / "out" / "questions.jsonl")}
    assert by_question["tea?"]["ranks"] == [2]  # the first turn is the persona text
    assert by_question["tea?"]["evidence"] == ["messages 0-2"]
    assert by_question["dog?"]["ranks"] == [None]
    scores = summary["scores"]
    assert scores["recall@2"]["all"]["estimate"] == pytest.approx(3 / 7)
    assert scores["mrr"]["all"]["estimate"] == pytest.approx(3 / 7 / 2)
    assert scores["precision@3"]["all"]["estimate"] == pytest.approx(3 * 2 / 3 / 7)
    # By hand, tea: two of eleven turns; none of two drawn with 9/11 * 8/10.
    assert scores["random_recall@2"]["recall_user_shared_facts"]["estimate"] == pytest.approx(1 - 72 / 110)
    assert scores["random_precision"]["recall_user_shared_facts"]["estimate"] == pytest.approx(2 / 11)


def test_systems_without_sources_or_order_have_no_recall(tmp_path: Path, system: Notebook) -> None:
    system.ranked = False
    summary = run(tmp_path)
    assert summary["scores"] == {}


def test_systems_that_tell_no_sources_have_no_recall_where_they_find_nothing(
    tmp_path: Path, system: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def search(self: NotebookStore, query: str, k: int) -> list[Passage]:
        return [] if query == "bicycle?" else [Passage("Ana likes tea.")]

    monkeypatch.setattr(NotebookStore, "search", search)
    assert run(tmp_path)["scores"] == {}


def test_whole_contexts_are_shown_in_the_order_of_time(
    tmp_path: Path, system: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[str]] = {}

    class Noting:
        name = "noting"

        async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
            shown[request.question] = [passage.text for block in request.context for passage in block.passages]
            return AnswerRecord(text="(b)")

    @asynccontextmanager
    async def opened(*arguments: Any, **named: Any) -> AsyncIterator[FullContext]:
        yield FullContext()

    monkeypatch.setattr(runner, "open_system", opened)
    monkeypatch.setattr(runner, "make_answerer", lambda *arguments: Noting())
    run(tmp_path, "answer.kind=extractive")
    said = ["stolen yesterday", "sorry", "bought a boat", "lovely", "sold the boat"]
    places = ["\n".join(shown["boat?"]).find(words) for words in said]
    assert -1 not in places and places == sorted(places)
    # A budget that is too small still leaves out the oldest.
    summary = run(tmp_path, "answer.kind=extractive", "answer.context_tokens=80", f"out={tmp_path}/small")
    assert summary["failures"]["count"] == 0
    assert "sold the boat" in shown["boat?"][-1]
    assert "stolen yesterday" not in "".join(shown["boat?"])


def test_questions_without_history_are_accounted_for(tmp_path: Path, system: Notebook) -> None:
    values = [*rows(), row(ANA, 11, 1, 3, "late?", end_index_in_shared_context="13"), row(ANA, 11, 1, 3, "early?")]
    values[-1]["end_index_in_shared_context"] = "-1"
    values.append(row(ANA, 11, 1, 3, "broken?", correct_answer="c"))
    shared = {name: messages for name, messages in contexts().items() if name != "c3" * 32}
    overrides = [
        f"questions={write_questions(tmp_path / 'q.csv', values)}",
        f"contexts={write_contexts(tmp_path / 'c.jsonl', shared)}",
        f"out={tmp_path}/out",
        "answer.kind=none",
    ]
    summary = run(tmp_path, *overrides)
    assert len(system.searches) == 5
    check_searches(system)
    assert summary["questions"]["total"] == 10
    assert summary["data"]["questions_without_history"] == {"context_missing": 2, "end_out_of_range": 2}
    assert summary["failures"]["by_stage"] == {"data": 1, "search": 4}
    found = records(tmp_path / "out" / "questions.jsonl")
    assert len(found) == 9
    assert sum("error" in record for record in found) == 4


def test_all_published_questions_are_accounted_for(tmp_path: Path, system: Notebook) -> None:
    from eval.data import PERSONAMEM_EXCERPT, PERSONAMEM_QUESTIONS, find

    questions, excerpt = find(PERSONAMEM_QUESTIONS), find(PERSONAMEM_EXCERPT)
    if questions is None or excerpt is None:
        pytest.skip("PersonaMem's questions or the excerpt of its contexts are not here")
    overrides = [f"questions={questions}", f"contexts={excerpt}"]
    summary = run(tmp_path, *overrides)
    assert summary["benchmark"] == "PersonaMem 32k"
    assert summary["questions"]["total"] == summary["questions"]["failed"] == 589
    assert list(summary["questions"]["by_category"].values()) == [55, 99, 93, 139, 129, 57, 17]
    lost = summary["data"]["questions_without_history"]
    assert sum(lost.values()) == 589
    assert set(lost) == {"context_missing", "end_out_of_range"}
    assert len(records(tmp_path / "out" / "questions.jsonl")) == 589
    assert "589 questions, 7 types, 20 personas, 37 contexts, 222 histories" in summary["version"]

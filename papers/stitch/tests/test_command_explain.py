"""`deltamem search --explain`: ranked by contextual intent, with the reasons."""

from pathlib import Path

import pytest
from command_cases import one_sentence, run, run_json
from episode_texts import WordEmbedder

from deltamem.errors import EmbedderUnavailableError
from deltamem.journal.journal import Journal
from papers.stitch.store import IntentLog


def test_a_search_explains_itself(bank: Path) -> None:
    assert run("remember", "Ann's city is Boston.").exit_code == 0
    [why] = run_json("search", "Which city?", "-k", "1", "--explain")["results"]
    assert [(hit["id"], hit["explanation"][:10]) for hit in why["memories"]] == [("m1", "similarity")]
    assert run("search", "Which city?", "--explain").stdout.splitlines()[1].strip().startswith("similarity 0.")


def test_a_search_that_cannot_explain_says_so_in_a_sentence(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("remember", "Ann's city is Boston.").exit_code == 0
    with Journal.open(bank / "journal.sqlite3") as journal:
        IntentLog(journal.owner("ann"), "memories").begin("llm-large")  # as a manager with a model does
    refused = one_sentence(run("search", "Which city?", "--explain"))
    assert refused.startswith("'memories' is labelled by 'llm-large', not by 'embedding-")
    assert "Boston" in run("search", "Which city?").stdout
    with Journal.open(bank / "journal.sqlite3") as journal:
        IntentLog(journal.owner("ann"), "memories").clear()

    def broken(self: WordEmbedder, texts: list[str]) -> None:
        raise EmbedderUnavailableError("the model is missing")

    with monkeypatch.context() as patch:
        patch.setattr(WordEmbedder, "documents", broken)
        assert one_sentence(run("search", "Which city?", "--explain")) == "the model is missing"
    nobody = run_json("search", "Which city?", "--explain", "--filter", '{"topic": "tea"}')["results"]
    assert nobody == [{"query": "Which city?", "memories": []}]

"""What counts the budget of context tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import LOCOMO, prepare
from system_cases import benchmark_config
from tokenizers import Tokenizer, models, pre_tokenizers

from deltamem.errors import DeltaMemError
from eval.answer import QAGrader
from eval.config import AnswerModel
from eval.tokens import ESTIMATED


def folder_of(path: Path) -> Path:
    """A model's folder whose tokenizer makes a token of each word, and is told to cut texts after two."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "tea": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def answer(tmp_path: Path, *overrides: str) -> AnswerModel:
    return benchmark_config(tmp_path, *overrides).answer


def test_without_a_tokenizer_tokens_are_estimated(tmp_path: Path) -> None:
    for overrides in ([], ["answer.tokenizer=auto"], ["answer.tokenizer=auto", "answer.model=gpt-4.1-mini"]):
        assert answer(tmp_path, *overrides).counted is ESTIMATED
    assert [ESTIMATED.tokens(text) for text in ("", "a", "abcd", "\ud800")] == [0, 1, 2, 1]
    assert benchmark_config(tmp_path).cutting() == {}


def test_the_tokenizer_of_the_model_counts_whole_texts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "policy")
    for overrides in (
        [f"answer.model={folder}", "answer.tokenizer=auto"],
        [f"answer.tokenizer={folder / 'tokenizer.json'}"],
    ):
        counted = answer(tmp_path, *overrides).counted
        assert counted.tokens("tea and more tea, \ud800") == 6 and counted.name.startswith("policy/tokenizer.json ")
    config = benchmark_config(tmp_path, f"answer.tokenizer={folder}", "answer.cut=sentence")
    assert config.run_config()["answer"]["tokens"] == config.cutting()["tokens"] == counted.name
    assert config.cutting()["cut"] == "sentence"


def test_a_model_of_the_hub_that_is_here_has_its_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "snapshot")
    asked = []

    def cached(name: str, file: str) -> str | None:
        asked.append(name)
        return str(folder / file) if name == "Qwen/Qwen3-8B" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    assert answer(tmp_path, "answer.tokenizer=auto", "answer.model=Qwen/Qwen3-8B").counted.tokens("a b c") == 3
    assert answer(tmp_path, "answer.tokenizer=auto", "answer.model=Qwen/Other").counted is ESTIMATED
    assert asked == ["Qwen/Qwen3-8B", "Qwen/Other"]


def test_an_encoding_of_tiktoken_goes_by_its_name_or_that_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    own = tiktoken.Encoding("o200k_base", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 256})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: own)
    monkeypatch.setattr(tiktoken.model, "get_encoding", lambda name: own)
    for name in ("o200k_base", "gpt-4o"):
        counted = answer(tmp_path, f"answer.tokenizer={name}").counted
        assert (counted.name, counted.tokens("<|end|>")) == ("tiktoken o200k_base", 7), "what is said is text"


@pytest.mark.parametrize("content", [None, "{}"], ids=["nothing", "another file"])
def test_no_tokenizer_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DeltaMemError, match=r"is (not a file, a folder|no tokenizer)") as raised:
        assert answer(tmp_path, f"answer.tokenizer={path}").counted
    assert "\n" not in str(raised.value)


def test_a_run_says_how_it_counted_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, LOCOMO)
    folder = folder_of(tmp_path / "policy")
    cuts: list[bool] = []

    def grader(*parts: Any) -> QAGrader:
        made = QAGrader(*parts)
        cuts.append(made.sentences)
        return made

    monkeypatch.setattr("eval.run.QAGrader", grader)
    shown: dict[str, Any] = {}
    for name, overrides in (("plain", []), ("counted", [f"answer.tokenizer={folder}", "answer.cut=sentence"])):
        (tmp_path / name).mkdir()
        summary = LOCOMO.run(tmp_path / name, "system=naive_rag", "answer.context_tokens=30", *overrides)
        shown[name] = summary["protocol"].get("tokens"), summary["context_tokens"]["mean"]
    assert shown["plain"][0] is None and shown["counted"][0].startswith("policy/") and cuts == [False, True]
    assert shown["plain"][1] < shown["counted"][1] <= 30, "bytes / 3 are more than words"

"""No run mixes what different models, commits or versions made without saying so, and no cache does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import HALUMEM, LOCOMO, Case, files, on, prepare, records, sent, served
from scripted_server import Reply, completion, is_check, serve

from deltamem.errors import DeltaMemError
from eval import fingerprint

BEGUN = ("limit=1", "answer.runs=1")


def made_under(folder: Path) -> set[str]:
    """What the records of the run bear."""
    found = [record["made"] for record in records(folder, "sessions").values()]
    for record in records(folder).values():
        found += [record["made"], *(answer["made"] for answer in record["answers"])]
        found += [verdict["made"] for answer in record["answers"] for verdict in answer.get("verdicts", {}).values()]
    return set(found)


@on(LOCOMO)
def test_a_run_is_not_resumed_with_another_server_of_the_same_model_name(case: Case, tmp_path: Path) -> None:
    with serve(case.script) as first, serve(case.script) as second:
        case.run(tmp_path, *served(first), *BEGUN)
        before = files(tmp_path)
        expected = f"endpoints.answer = '{first.url}', not '{second.url}'; choose another out=..., or go on with mixed=true"
        with pytest.raises(DeltaMemError, match=expected):
            case.run(tmp_path, *served(second), "answer.runs=1")
        assert files(tmp_path) == before and not second.requests
        summary = case.run(tmp_path, *served(second), "answer.runs=1", "mixed=true")
    assert made_under(tmp_path) == set(summary["making"]["made"]) and len(made_under(tmp_path)) == 2
    both = [making["endpoints"]["answer"] for making in summary["making"]["fingerprint"]["all"]]
    assert both == [first.url, second.url] and summary["making"]["fingerprint"]["endpoints"]["answer"] == second.url
    (warning,) = [text for text in summary["warnings"] if "mixed" in text]
    assert f"endpoints.answer ({first.url!r}, then {second.url!r})" in warning


def test_a_run_is_not_resumed_with_another_model_at_the_same_place(tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, LOCOMO)
    model = {"id": "tiny", "root": "org/policy-step-100", "max_model_len": 16384, "owned_by": "vllm", "created": 1}
    listed = [model]
    with serve(LOCOMO.script, listed) as server:
        LOCOMO.run(tmp_path, *served(server), *BEGUN)
        for entry, said in (
            ({"max_model_len": 32768}, "served.answer.max_model_len = 16384, not 32768"),
            ({"owned_by": "sglang"}, "served.answer.owned_by = 'vllm', not 'sglang'"),
            ({"root": "org/policy-step-200"}, "served.answer.root = 'org/policy-step-100', not 'org/policy-step-200'"),
        ):
            listed[0] = model | entry
            with pytest.raises(DeltaMemError, match=said):
                LOCOMO.run(tmp_path, *served(server), "answer.runs=1")
        listed[0] = model | {"created": 1_700_000_000}
        assert len(LOCOMO.run(tmp_path, *served(server), "answer.runs=1", "limit=2")["making"]["made"]) == 1
        listed[0] = model | {"root": "org/policy-step-200"}
        mixed = LOCOMO.run(tmp_path, *served(server), "answer.runs=1", "mixed=true")
        assert any("served.answer.root" in text for text in mixed["warnings"])


@pytest.mark.parametrize(
    ("name", "first", "then", "said"),
    [
        ("git_commit", "a" * 40, "a" * 40 + "-dirty", "made with commit = 'a{40}', not 'a{40}-dirty'"),
        ("versions", {"mem0ai": "2.2.1"}, {"mem0ai": "2.3.0"}, "made with versions.mem0ai = '2.2.1', not '2.3.0'"),
        ("versions", {}, {"langmem": "1"}, "made with versions.langmem = None, not '1'"),
    ],
)
def test_offline_too_commit_and_versions_must_stay(name: str, first: Any, then: Any, said: str, tmp_path: Path, monkeypatch):
    prepare(monkeypatch, LOCOMO)
    monkeypatch.setattr(fingerprint, name, lambda *arguments: first)
    LOCOMO.run(tmp_path, *BEGUN)
    monkeypatch.setattr(fingerprint, name, lambda *arguments: then)
    LOCOMO.run(tmp_path, *BEGUN)  # nothing is left to do, so nothing is mixed
    with pytest.raises(DeltaMemError, match=said):
        LOCOMO.run(tmp_path)
    assert sum("mixed" in text for text in LOCOMO.run(tmp_path, "mixed=true")["warnings"]) == 1


@on(LOCOMO)
def test_another_reply_to_the_canary_is_a_warning(case: Case, tmp_path: Path) -> None:
    said = "The cat sees ships."

    def script(body: dict[str, Any]) -> Reply:
        return completion(said) if is_check(body) else case.script(body)

    with serve(script) as server:
        assert not any("exchanged" in text for text in case.run(tmp_path, *served(server), *BEGUN)["warnings"])
        said = "She keeps a light."
        summary = case.run(tmp_path, *served(server), "answer.runs=1")
    assert len(summary["making"]["made"]) == 1
    assert any(text.startswith("the model of answer has given 2 different answers") for text in summary["warnings"])


@on(HALUMEM)
def test_a_shared_cache_never_gives_the_answers_of_another_model(case: Case, tmp_path: Path) -> None:
    weights = tmp_path / "policy" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"old")
    listed = [{"id": "tiny", "root": str(weights.parent), "max_model_len": 16384}]
    with serve(case.script, listed) as server:
        overrides = [*served(server), f"cache={tmp_path / 'shared.sqlite'}"]

        def asked(name: str, *more: str) -> int:
            before = len(sent(server))
            (tmp_path / name).mkdir(exist_ok=True)
            assert case.run(tmp_path / name, *overrides, *more)["failures"]["count"] == 0
            return len(sent(server)) - before

        fresh = asked("first")
        listed[0]["max_model_len"] = 9999  # the same model
        assert fresh > 0 and asked("same") == 0
        weights.write_bytes(b"retrained")
        assert 0 < asked("retrained", "limit=1") < fresh
        weights.write_bytes(b"trained once more")
        with pytest.raises(DeltaMemError, match=r"served\.answer\.weights = "):
            asked("retrained")

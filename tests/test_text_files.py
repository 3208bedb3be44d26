"""Files that people make: a byte order mark and Windows' line ends change nothing, another encoding is one sentence."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import halumem_cases
import locomo_cases
import longmemeval_cases
import pytest
from benchmark_cases import LONGMEMEVAL
from hypothesis import given
from hypothesis import strategies as st
from personamem_cases import write_contexts, write_questions

from deltamem.episode import load_episode_config
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.journal.transfer import export_owner, import_owner
from deltamem.memory import Memory
from deltamem.runs import read_records
from deltamem.sessions import read_dialogues, read_sessions, to_json_line
from deltamem.text_files import decoded, read_text, text_lines
from eval.answer import load_prompt
from eval.halumem.data import load_halumem
from eval.locomo.data import load_audit, load_locomo
from eval.longmemeval.data import read_data
from eval.personamem.data import load_contexts, load_questions
from eval.records import QuestionRecord
from rewards.__main__ import read_case
from synth.config import PersonaSettings
from synth.contamination import file_texts
from synth.personas import draw_personas

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("deltamem", "rewards", "synth", "eval", "papers", "integrations")
MARK = b"\xef\xbb\xbf"
TURNS = [{"role": "user", "content": "Zo\u00eb keeps bees.\u2028Really."}]
SESSION = {"id": "s", "time": "2026-03-02T09:00", "turns": TURNS}
STATE = {"m0": {"text": "Zo\u00eb sails.", "time": "2026-01-01T00:00:00"}}
LABELLED = {"person_id": "p", "person_name": "Zo\u00eb", "session_index": 0, "time": "2026-03-02T09:00:00", "split": "train"}
LABELLED |= {"dialogue": TURNS, "prior_state": STATE, "operations": [], "next_state": STATE}
CASE = {"prior_state": STATE, "predicted": [], "target": [{"event": "ADD", "text": "Zo\u00eb rows."}]}
QUESTION = {"key": "q\u00e9", "group": "g", "category": "c", "question": "?"}


def lines(*values: Any, indent: int | None = None) -> Callable[[Path], object]:
    text = "".join(json.dumps(value, ensure_ascii=False, indent=indent) + "\n" for value in values)
    return lambda path: path.write_bytes(text.encode())


def exported(path: Path) -> None:
    with Journal.open(None) as journal, path.open("w", encoding="utf-8") as stream:
        ann = journal.owner("ann")
        memory = Memory("m1", "Ann sails to \u00c5land.", datetime(2026, 3, 2))
        ann.append(EntryKind.IMPORT, [Change(ChangeEvent.ADD, "m1", None, memory)])
        export_owner(ann, stream)


def imported(path: Path) -> object:
    with Journal.open(None) as journal, path.open("rb") as stream:
        import_owner(journal.owner("ann"), stream)
        return journal.owner("ann").state()


def audited(path: Path) -> object:
    return load_audit(path, load_locomo(locomo_cases.write(path.with_name("l.json"), locomo_cases.benchmark())))


def personas(path: Path) -> object:
    return draw_personas(PersonaSettings(source="file", path=str(path)), people=2, heldout_share=0.5, seed=1)


def haystacks(path: Path) -> object:
    config = LONGMEMEVAL.configured(path.parent)
    path.replace(path.with_name("lme.json"))
    questions = read_data(config).questions
    return [(question.record, [session.turns for session in question.sessions]) for question in questions]


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "sessions.jsonl": (lines(SESSION, SESSION | {"id": "t"}), lambda path: list(read_dialogues(path, "zoe", "Zo\u00eb"))),
    "sessions.json": (lines([SESSION], indent=1), lambda path: list(read_dialogues(path, "zoe", "Zo\u00eb"))),
    "export.jsonl": (exported, imported),
    "labelled.jsonl": (lines(LABELLED, LABELLED), lambda path: list(map(to_json_line, read_sessions(path)))),
    "episode.json": (lines({"max_turns": 3}, indent=1), lambda path: load_episode_config(path.parent)),
    "prompt.md": (
        lambda path: path.write_text("Say $question\nin \u00c5land.\n"),
        lambda path: load_prompt(str(path), ["question"]),
    ),
    "case.json": (lines(CASE, indent=1), lambda path: read_case(path, max_turns=4)),
    "records.jsonl": (lines(QUESTION), lambda path: read_records(path, QuestionRecord, lambda record: record.key)),
    "personas.jsonl": (lines({"persona": "A \u2028 pilot."}, {"persona": "A nurse."}), personas),
    "personas.txt": (lambda path: path.write_text("A pilot.\nA nurse.\n"), personas),
    "reference.jsonl": (lines({"a": "\u00e9"}, {"b": "c"}), lambda path: [text for _, text in file_texts(path)]),
    "reference.json": (lines({"a": "\u00e9"}, indent=1), lambda path: [text for _, text in file_texts(path)]),
    "locomo.json": (lambda path: locomo_cases.write(path, locomo_cases.benchmark()), load_locomo),
    "errors.json": (lambda path: locomo_cases.write(path, locomo_cases.audit()), audited),
    "halumem.jsonl": (lambda path: halumem_cases.write(path, halumem_cases.ana(), halumem_cases.ben()), load_halumem),
    "longmemeval.json": (lambda path: longmemeval_cases.write(path, longmemeval_cases.benchmark()), haystacks),
    "questions.csv": (write_questions, load_questions),
    "contexts.jsonl": (write_contexts, load_contexts),
}


@pytest.mark.parametrize("name", READERS)
def test_a_mark_and_other_line_ends_change_nothing_and_another_encoding_is_one_sentence(tmp_path: Path, name: str) -> None:
    write, read = READERS[name]
    path = tmp_path / name
    write(path)
    plain = path.read_bytes()

    def content(data: bytes) -> str:
        path.write_bytes(data)
        return re.sub(r"\b[0-9a-f]{64}\b|0x[0-9a-f]+", "", repr(read(path)))

    expected, windows = content(plain), plain.replace(b"\n", b"\r\n")
    assert content(MARK + plain) == content(MARK + MARK + windows) == content(windows) == expected
    if name.endswith((".jsonl", ".txt")):
        assert content(b"".join(MARK + line for line in plain.splitlines(keepends=True))) == expected, "files put together"
    for encoding in ("utf-16", "utf-16-be", "utf-32", "latin-1"):
        with pytest.raises(DeltaMemError, match="not UTF-8 text") as caught:
            content((plain.decode() + "\u00e9").replace("\u2028", "").encode(encoding, "replace"))
        said = str(caught.value)
        assert "\n" not in said and (name in ("export.jsonl", "longmemeval.json") or name in said)


def test_marks_of_texts_that_were_put_together_are_no_part_of_them(tmp_path: Path) -> None:
    path = tmp_path / "both.md"
    path.write_bytes(MARK + b"one\r\n" + MARK + b"two \xef\xbb\xbf.\r" + MARK)
    assert read_text(path) == "one\ntwo \ufeff.\n"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")))
def test_any_text_is_read_as_it_was_written(text: str) -> None:
    data = text.encode()
    assert decoded(MARK + data, "a") == decoded(data, "a") == text
    assert "".join(text_lines(io.BytesIO(MARK + data))) == text
    assert "".join(text_lines(io.StringIO("\ufeff" + text, newline="\n"))) == text


GOES_AROUND = {
    "deltamem/assisted.py": "a file of the package",
    "deltamem/bank/chroma_files.py": "a note of ours in the index",
    "deltamem/bank/store.py": "the process that holds the lock",
    "deltamem/cli/commands.py": "`import` hands the bytes to the journal, which reads them by `text_lines`",
    "deltamem/page/__init__.py": "a file of the package",
    "deltamem/prompts/__init__.py": "a file of the package",
    "deltamem/runs.py": "bytes for sums; lines of records go through `decoded`; markers of stages are ours",
    "deltamem/training/checkpoints.py": "manifests that training writes",
    "deltamem/training/cluster.py": "bytes of the code, for a sum",
    "deltamem/training/config.py": "a file of verl's",
    "deltamem/training/data.py": "finds lines by their bytes, once `read_sessions` has read them; takes the mark off itself",
    "deltamem/training/embedding_store.py": "a manifest that lies with arrays of ours",
    "deltamem/training/export.py": "what verl writes with a checkpoint",
    "deltamem/training/launch.py": "what an earlier start of the run wrote, and its log",
    "deltamem/training/metrics.py": "figures that a run appends",
    "deltamem/training/models.py": "weights and the index that belongs to them",
    "deltamem/training/pretrained.py": "the note beside a model that we downloaded",
    "deltamem/training/rehearsal.py": "a configuration of the package",
    "deltamem/training/token_limits.py": "limits that a run has measured",
    "deltamem/training/trainer_process.py": "the configuration that the launcher wrote",
    "synth/output/files.py": "the store of a run that is under way",
    "synth/pipeline.py": "bytes of the code, for a sum, and the note of a run",
    "eval/compare/layout.py": "a file of the package",
    "eval/sweep/study.py": "a file of the package",
    "eval/compare/page.py": "a file of the package",
    "eval/data.py": "the list of data sets, of the package; bytes of a download",
    "eval/demo.py": "summaries of the run itself",
    "eval/fingerprint.py": "the note of a run",
    "eval/heldout.py": "what an evaluation wrote",
    "eval/judge.py": "a file of the package",
    "eval/locomo/data.py": "bytes, to tell archives apart; then `decoded`",
    "eval/longmemeval/data.py": "2.7 GB in pieces with the places of records; takes the mark off itself",
    "eval/personamem/data.py": "bytes, for a sum; then `decoded`",
    "eval/training_report/page.py": "what a run wrote, damaged or not",
    "papers/momento/agent.py": "pictures",
    "papers/momento/tasks.py": "bytes, for a sum and to tell parquet apart; then `json_objects`",
    "papers/stitch/embedding_labeller.py": "a file of the package",
    "papers/stitch/writer/__main__.py": "the note of a run",
}
"""Modules that read files without `deltamem.text_files`, and why; what a person may have edited goes through it."""


def reads(call: ast.Call) -> bool:
    """Whether a call reads a file by itself."""
    function, mode = call.func, call.args[0] if call.args else None
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "open":
        encoded = mode is None and any(keyword.arg == "encoding" for keyword in call.keywords)
        return encoded or (isinstance(mode, ast.Constant) and str(mode.value).startswith("r"))
    of = function.value.id if isinstance(function.value, ast.Name) else ""
    return function.attr in ("read_text", "read_bytes") or (of, function.attr) in (("OmegaConf", "load"), ("json", "load"))


def test_what_goes_around_the_one_opener_has_a_reason() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "tests" not in path.parts and path.name != "text_files.py"
        if any(reads(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    }
    assert found == {name for name in GOES_AROUND if (ROOT / name).exists()}

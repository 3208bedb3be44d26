"""What a user sees first: two sessions of a plain chat, a real instruct model behind a real server, the command.

    make models && pytest tests/real_model                        # six chats, three quiet minutes
    DELTAMEM_CHATS=all pytest -s tests/real_model                 # all 22, twelve minutes
    DELTAMEM_GGUF=models/x.gguf DELTAMEM_CHATS=all pytest ...     # by another model, which shows what it misses

Each chat prints a line: how many memories there are, how long it took, and what is wrong. A model of this size does not get
all right (docs/models.md has what it gets), and processors differ in the last bits and so in greedy answers. So what is
asserted leaves room: half of the facts, and one slip in six chats of the assistant's words or of a fact that is kept twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from first_chats import CHATS, Chat, missing
from llama_server import PYTHON, ROOT, serve
from process_cases import environment

MODEL = Path(os.environ.get("DELTAMEM_GGUF", ROOT / "models" / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"))
CHOSEN = CHATS if os.environ.get("DELTAMEM_CHATS") == "all" else CHATS[:6]
LEAST_KEPT = 0.5
"""Share of the facts; docs/models.md has what was measured."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (MODEL.is_file() and PYTHON.is_file()), reason=f"no {MODEL.name} or no server: `make models`"),
]


def deltamem(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is installed, with the embedder that it has by default."""
    command = [sys.executable, "-m", "deltamem.cli", *arguments, "--json"]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


def wrong_after(chat: Chat, url: str, folder: Path) -> list[str]:
    """What is wrong with the bank after the sessions of a chat, all of which could be read."""
    folder.mkdir()
    (folder / "chats.jsonl").write_text("".join(json.dumps(session) + "\n" for session in chat.sessions))
    began = time.monotonic()
    added = deltamem(folder, "add", "--mode", "assisted", "--base-url", url, "--owner", chat.name, "chats.jsonl")
    assert (added.returncode, added.stderr) == (0, ""), added.stdout
    seconds = time.monotonic() - began
    texts = [memory["text"] for memory in json.loads(deltamem(folder, "show", "--owner", chat.name).stdout)["memories"]]
    wrong = missing(texts, chat)
    print(f"{chat.name:8} {len(texts):2} memories {seconds:5.0f} s  {'; '.join(wrong) or 'all right'}", flush=True)
    return wrong


def test_chats_leave_what_the_person_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled(), serve(MODEL, tmp_path / "server.log", window=8192) as url:
        wrong = [problem for chat in CHOSEN for problem in wrong_after(chat, url, tmp_path / chat.name)]
        facts = sum(len(chat.facts) for chat in CHOSEN)
        lost = sum(problem.startswith("not kept: ") for problem in wrong)
        print(f"{facts - lost} of {facts} facts kept, {sum('still there' in problem for problem in wrong)} old values left")
    foreign = [problem for problem in wrong if problem.startswith(("said by the assistant", "kept twice"))]
    assert len(foreign) <= len(CHOSEN) // 6, foreign
    assert facts - lost >= LEAST_KEPT * facts, wrong

"""README's first two minutes, run as they stand but for the address, and the settings that docs/models.md names."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from first_chats import CHATS
from process_cases import COMMAND, environment
from scripted_server import Reply, completion, is_check, serve
from server_cases import block

from deltamem.assisted import AssistedConfig

ROOT = Path(__file__).resolve().parents[1]


def model(body: dict[str, Any]) -> Reply:
    """Says where Ana lives, and that it changes the memory that is shown beside it."""
    if is_check(body):
        return completion("Hello.")
    asked = body["messages"][-1]["content"]
    if known := re.search(r"^ +(m\d+): Ana lives in", asked, re.MULTILINE):
        return completion(json.dumps({"1": {"relation": "change", "note": known[1]}}))
    city = "Denver" if "Denver" in asked else "Boston"
    return completion(json.dumps({"facts": [{"line": 1, "fact": f"Ana lives in {city}."}]}))


def test_the_chats_of_the_readme_are_those_that_real_models_are_tested_with() -> None:
    assert json.loads((ROOT / "docs" / "chats.json").read_text(encoding="utf-8")) == list(CHATS[0].sessions)


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    program = block((ROOT / "README.md").read_text(encoding="utf-8"), "bash", "docs/chats.json")
    lines = [line for line in program.splitlines() if not line.startswith(("pip ", "deltamem serve"))]
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    command = tmp_path / "deltamem"
    command.write_text(f"#!/bin/sh\nexec {COMMAND[0]} -c '{COMMAND[2]}' \"$@\"\n", encoding="utf-8")
    command.chmod(0o700)
    variables = {"DELTAMEM_MODE": "auto", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with serve(model) as server:
        script = "\n".join(lines).replace("http://localhost:11434/v1", server.url)
        done = subprocess.run(
            ["bash", "-ec", script], cwd=tmp_path, env=environment(variables), capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    assert "2 applied" in done.stdout and "mode assisted" in done.stderr
    assert "\nm1  2026-06-08 19:10  Ana lives in Denver.\n" in done.stdout


def test_the_page_names_the_settings_with_their_defaults() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", page, re.MULTILINE)
    assert [row for row in rows if row[0] in AssistedConfig.model_fields] == [
        (name, str(value)) for name, value in AssistedConfig()
    ]

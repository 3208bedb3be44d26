"""docs/synthesis.md against the code: rules, units, files and the example of a writer."""

import re
import subprocess
import sys
from pathlib import Path

from synth.output.files import FILES, rule_rows
from synth.tasks import Unit
from synth.validators import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "synthesis.md").read_text(encoding="utf-8")
ALL_RULES = PAGE.partition("## All rules\n")[2].partition("\n## ")[0]
NAME = re.compile(r"`(\w+\.\w+)`")


def told() -> dict[str, str]:
    """The sentence of each rule in the page's tables."""
    rows = (line.strip("| ").split(" | ") for line in ALL_RULES.splitlines() if line.startswith("| `"))
    return {name: says for names, says in rows for name in NAME.findall(names)}


def test_the_page_has_every_rule_with_its_sentence_and_no_other():
    assert told() == {row.name: row.description for row in rule_rows({"statistics": {"rules": {}}})}
    assert {rule.name for rule in RULES} <= told().keys()


def test_the_page_has_every_unit_with_its_stage():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(unit.stage, unit.value) for unit in Unit]


def test_the_page_has_every_file():
    folder = PAGE.partition("## What is in the folder\n")[2].partition("\n## ")[0]
    assert {name for name in FILES if f"`{name}`" not in folder} == set()


def test_the_writer_of_the_page_prints_what_the_page_says():
    code = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    ran = subprocess.run([sys.executable, "-c", code[1]], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.returncode) == (code[2], 0), ran.stderr

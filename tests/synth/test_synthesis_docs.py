"""docs/synthesis.md against the code: rules, units, files and the example of a writer."""

import io
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path

from synth.output.files import FILES, rule_rows
from synth.tasks import Unit
from synth.validators import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "synthesis.md").read_text(encoding="utf-8")
ALL_RULES = PAGE.partition("## All rules\n")[2].partition("\n## ")[0]


def printed(code: str) -> str:
    with redirect_stdout(io.StringIO()) as found, chdir(ROOT):
        exec(code, {"__name__": "__main__"})
    return found.getvalue()


def test_the_page_names_every_rule_and_no_other():
    rows = re.findall(r"^\| ((?:`\w+\.\*` )+)\| [^|]+ \| (.+) \|$", ALL_RULES, re.MULTILINE)
    subjects = [(re.findall(r"`(\w+)\.", subjects), re.findall(r"`(\w+)`", names)) for subjects, names in rows]
    named = {f"{subject}.{name}" for row, names in subjects for subject in row for name in names}
    assert named == {row.name for row in rule_rows({"statistics": {"rules": {}}})}


def test_the_command_of_the_page_prints_the_sentence_of_each_rule():
    [code] = re.findall(r'^python -c "(.*)"$', ALL_RULES, re.MULTILINE)
    assert printed(code).splitlines() == [f"{rule.name}: {rule.description}" for rule in RULES]


def test_the_page_has_every_unit_with_its_stage():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(unit.stage, unit.value) for unit in Unit]


def test_the_page_has_every_file():
    folder = PAGE.partition("## What is in the folder\n")[2].partition("\n## ")[0]
    assert {name for name in FILES if f"`{name}`" not in folder} == set()


def test_the_writer_of_the_page_prints_what_the_page_says():
    code = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    assert printed(code[1]) == code[2]

"""The example of docs/serving.md, run as it stands."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from episode_texts import add, outputs, search, update
from scripted_server import Reply, completion, serve

DOCS = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
CITIES = {"I live in Boston.": "Boston", "I moved to Denver.": "Denver", "it was Boulder": "Boulder"}


def model(body: dict[str, Any]) -> Reply:
    """Searches once, then adds where Ann lives or updates the memory that was found."""
    messages = body["messages"]
    city = next(city for said, city in CITIES.items() if said in messages[1]["content"])
    if len(messages) == 2:
        return completion(search("Where does Ann live?"))
    known = re.search(r'"id": "(m\d+)"', messages[-1]["content"])
    text = f"Ann lives in {city}."
    return completion(outputs(update(known[1], text) if known else add(text)))


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    page = DOCS.read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.search(r"it prints.*?```\n(.*?)```", page, re.DOTALL)
    assert code is not None and printed is not None
    with serve(model) as server:
        program = code[1].replace("http://localhost:8000/v1", server.url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.stdout == printed[1], done.stderr

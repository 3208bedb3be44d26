"""Prompts of judges that users give: the benchmark's own, from its program or a copy, and files of their own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import HALUMEM, LOCOMO, prepare
from locomo_cases import script
from scripted_server import completion, serve

from deltamem.errors import DeltaMemError
from eval.halumem.__main__ import Halumem
from eval.locomo.__main__ import OFFICIAL, Locomo
from eval.parts import given_prompts

LENIENT = 'Costs $5 {{sic}}. Q {question} G {gold_answer} A {generated_answer}\nSay CORRECT or WRONG as {{"label": ...}}'
PROGRAM = f'''"""A program that is read, never run."""
import nothing_of_that_name
ACCURACY_PROMPT = """{LENIENT}"""
raise SystemExit(1)
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (file := tmp_path / "llm_judge.py").write_text(PROGRAM, encoding="utf-8")
    return file


def test_the_official_program_gives_the_judges_that_it_knows_their_prompt(program: Path, tmp_path: Path) -> None:
    specs = Locomo.judges(LOCOMO.configured(tmp_path))
    found, official = given_prompts(str(program), specs)
    assert set(found) == set(official) == {"lenient"}, "the strict judge is our own"
    filled = found["lenient"].fill(question="{why}?", gold="$x", answer="${question}")
    assert filled == 'Costs $5 {sic}. Q {why}? G $x A ${question}\nSay CORRECT or WRONG as {"label": ...}'


def test_a_copy_of_the_prompt_and_own_words_are_files_by_judge(tmp_path: Path) -> None:
    specs = Locomo.judges(LOCOMO.configured(tmp_path))
    (copy := tmp_path / "prompt.txt").write_text(LENIENT, encoding="utf-8")
    (own := tmp_path / "own.txt").write_text("Grade $answer to $question by $gold; {braces} stay.", encoding="utf-8")
    found, official = given_prompts({"lenient": str(copy), "strict": str(own)}, specs)
    assert official == {"lenient"} and len({prompt.name for prompt in found.values()}) == 2
    assert found["strict"].fill(answer="a", question="q", gold="g") == "Grade a to q by g; {braces} stay."
    only = {name: spec for name, spec in specs.items() if name != "strict"}
    assert given_prompts(str(copy), only)[0] == {"lenient": found["lenient"]}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("nowhere.txt", "for no judge of this run, or for several.*lenient, strict, abstention_judge"),
        ({"lenient": "nowhere.txt"}, "nowhere.txt cannot be read"),
        ({"kind": "a.txt"}, "names kind; this run has the judges lenient, strict"),
        ("other.py", "other.py holds no prompt of lenient; looked for ACCURACY_PROMPT"),
        ("broken.py", "prompt .*broken.py"),
        ({"lenient": "fields.txt"}, r"has \$gold, \$question, \$score; expected exactly \$answer, \$gold, \$question"),
        ({"lenient": "braces.txt"}, "prompt .*braces.txt"),
    ],
)
def test_what_is_no_prompt_of_a_judge_is_refused(
    files: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = Locomo.judges(LOCOMO.configured(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("other.py").write_text("X = 1\n")
    Path("broken.py").write_text("X = \n")
    Path("fields.txt").write_text("{question} {gold_answer} {score}")
    Path("braces.txt").write_text("{question} {gold_answer} {generated_answer} }{")
    with pytest.raises(DeltaMemError, match=said):
        given_prompts(files, specs)


def test_a_judge_is_asked_in_the_official_words_and_read_by_the_official_keys(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch, LOCOMO)
    (run := tmp_path / "run").mkdir()
    asked: list[str] = []

    def models(body: dict[str, Any]) -> Any:
        content = body["messages"][0]["content"]
        if not content.startswith("Costs $5 {sic}."):
            return script(body)
        asked.append(content)
        return completion('One sentence. ```json\n{"label": "CORRECT"}\n```')

    with serve(models) as server:
        given = ("system=naive_rag", f"base_url={server.url}", "answer.model=tiny", "judges=[lenient]", "categories=[4]")
        more = ("judge.max_false_accept=1", "protocol=paper", "embedder.name=words", f"judge.prompt={program}")
        summary = LOCOMO.run(run, *given, *more)
    assert asked and summary["scores"]["lenient"]["all"]["estimate"] == 1.0
    assert "lenient (ACCURACY_PROMPT)" in summary["making"]["prompt_hashes"]
    assert not any("the prompt of lenient" in one for one in summary["protocol"]["divergences"])
    assert "prompt" not in summary["making"]["config"]["judge"], "no path of this machine"


async def test_halumems_keys_are_those_of_its_program(tmp_path: Path) -> None:
    specs = Halumem.judges(HALUMEM.configured(tmp_path))
    lines = []
    for name in ("integrity", "accuracy", "update", "qa"):
        spec = specs[name]
        assert spec.official is not None
        names = {ours: theirs for theirs, ours in spec.official.fields.items()}
        marks = " ".join(f"{{{names.get(field, field)}}}" for field in spec.fields)
        lines.append(f"{spec.official.constant} = '{marks}'\n")
        assert set(spec.official.keys) <= {"label", *spec.flags}
    (file := tmp_path / "eval_tools.py").write_text("".join(lines))
    found, official = given_prompts(str(file), specs)
    assert set(found) == set(official) == {"integrity", "accuracy", "update", "qa"}
    assert OFFICIAL.keys == {}

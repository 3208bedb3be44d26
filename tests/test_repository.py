"""The tree itself: nothing of one machine in it, a page that names what there is, imports that point one way and are few.

Imports of tests are read from the source: to load everything in a process of its own would cost what this saves.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from house import House

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("deltamem", "rewards", "synth", "eval", "papers", "integrations")
NOT_OURS = {".git", ".venv", ".venv-vllm", ".venv-llama", ".venv-verifiers", ".clients", "__pycache__", "build", "dist"}
NOT_OURS |= {"runs", "data", "models", "outputs", "multirun"}

MACHINE_PATH = re.compile(r"(?<![\w.}\])])/(?:root|tmp|opt|mnt|(?:home|Users)/[\w.-]+)(?![\w-])")
REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.(?:org|com)|registry\.npmjs|hf-mirro[r]|"
    r"(?:mirrors?|pypi|artifactory|nexus|devpi)\.[\w-]+\.[a-z]{2,}|\bghcr\.io|docker\.io",
    re.IGNORECASE,
)


@cache
def house() -> House:
    return House(ROOT)


@cache
def tree_files() -> list[Path]:
    """Files that git tracks; in a copy without git, all that no tool made."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached"]
    inside = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--show-toplevel"], capture_output=True, text=True)
    if inside.returncode == 0 and Path(inside.stdout.strip()).resolve() == ROOT:
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return list(walk(ROOT))


def walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in NOT_OURS or path.name.endswith("_cache"):
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path


def hits(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tree_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if pattern.search(text):
            lines = enumerate(text.splitlines(), start=1)
            found += [f"{path}:{number}: {line.strip()[:120]}" for number, line in lines if pattern.search(line)]
    return found


def test_the_tree_is_found_and_no_two_test_files_have_one_name() -> None:
    names = {str(path.relative_to(ROOT)) for path in tree_files()}
    assert {"pyproject.toml", "LICENSE", "Makefile", "deltamem/memory.py", "deltamem/py.typed"} <= names
    assert {"deltamem/memory.py", "Makefile"} <= {str(path.relative_to(ROOT)) for path in walk(ROOT)}
    # Without packages in `tests`, pytest would refuse to collect the second.
    tests = [path.name for path in tree_files() if path.name.startswith("test_") and path.suffix == ".py"]
    assert len(tests) == len(set(tests)), sorted(name for name in set(tests) if tests.count(name) > 1)


def test_no_path_of_a_machine_and_no_host_of_a_registry() -> None:
    # Nothing general can be said about a checkout that lies at the top of the file system.
    outside = [] if ROOT.parent == Path("/") else [rf"(?<![\w.}}]){re.escape(str(ROOT.parent))}/"]
    found = [hit for pattern in (MACHINE_PATH, REGISTRY, *map(re.compile, outside)) for hit in hits(pattern)]
    assert not found, "\n".join(found)


def test_nothing_forks() -> None:
    """A fork of a process with threads may wait for ever for a lock that one of them held, which cost a run of CI."""
    forking = re.compile(r"""\bos\.for[k]\(|["']for[k]["']|\bmultiprocessing\.(?:Process|Pool)\(""")
    found = [hit for hit in hits(forking) if hit.split(":")[0].endswith(".py")]
    assert not found, "\n".join(found)


def test_the_patterns_catch_what_they_are_for() -> None:
    parts = [("", "root", "x"), ("", "home", "ana", "x"), ("", "tmp", "x"), ("", "opt", "wheels"), ("", "Users", "ana")]
    for path in map("/".join, parts):
        assert MACHINE_PATH.search(f"cd {path}")
        assert not MACHINE_PATH.search(f"${{HOME}}{path}")
    for host in (("pypi", "org"), ("mirror", "example", "com"), ("download", "pytorch", "org")):
        assert REGISTRY.search("https://" + ".".join(host) + "/simple")


def test_ci_runs_tests_and_lint() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert {"set -euo pipefail", "make test-all", "make lint"} <= set(script.read_text(encoding="utf-8").splitlines())


def test_the_figures_of_the_house_and_what_its_page_names() -> None:
    tree = house()
    assert tree.circles == []
    assert tree.fan_out(15) == {}
    assert len(tree.repeated_classes) <= 5, tree.repeated_classes
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    name = re.compile(r"`((?:deltamem|rewards|synth|eval|papers|integrations)\.[\w.]+)`")
    groups = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"])
    assert [dotted for dotted in set(name.findall(page)) - groups if not tree.defines(dotted)] == []
    paths = re.findall(r"`([a-z][\w/]*(?:\.py|/))`", page)
    assert len(paths) > 10 and [path for path in paths if not (ROOT / path).exists()] == []
    assert tree.defines("deltamem.episode.Episode.read") and not tree.defines("deltamem.memory.nothing")
    walks = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:] if ": " in part.partition("\n")[0]}
    assert [title.partition(":")[0] for title in walks] == ["Training", "Serving", "Evaluation"]
    for title, text in walks.items():
        assert 5 <= len(set(name.findall(text))) <= 12, title


def test_memory_states_need_only_the_standard_library() -> None:
    for module in ("memory", "text"):
        nodes = list(ast.walk(house().trees[Path("deltamem", f"{module}.py")]))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        for name in names:
            assert name == "deltamem.text" or name.partition(".")[0] in sys.stdlib_module_names, name


# By process: modules that are loaded one after the other, and what must not have come with them.
LOADS = [
    [
        ("deltamem", {"pydantic", "numpy"}),
        ("rewards.scorer", {"openai", "torch", "rich"}),
        ("deltamem.bank.base", {"openai", "chromadb", "torch"}),
        ("train", {"torch", "transformers", "verl", "ray", "openai"}),
        ("synth.__main__", {"torch", "transformers", "chromadb"}),
        ("synth.pipeline", {"torch", "transformers", "chromadb", "matplotlib"}),
        ("eval.locomo.__main__", {"torch", "transformers", "chromadb", "matplotlib"}),
    ],
    [("deltamem.bank.chroma", {"openai", "torch"})],
]


@pytest.mark.parametrize("modules", LOADS, ids=lambda modules: modules[0][0])
def test_a_command_loads_only_what_it_needs(modules: list[tuple[str, set[str]]]) -> None:
    steps = [f"import sys, {name}; print({name!r}, sorted({heavy!r} & sys.modules.keys()))" for name, heavy in modules]
    script = "\n".join(steps)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == [f"{module} []" for module, _ in modules]


def test_collecting_the_tests_loads_nothing_that_takes_seconds(loaded_by: dict[str, str]) -> None:
    """Each worker of pytest collects them all; what is heavy is imported in a fixture or a function."""
    assert loaded_by == {}


def run_contracts(folder: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )


def test_each_wrong_import_breaks_a_contract(tmp_path: Path) -> None:
    done = run_contracts(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = [
        ("deltamem/memory.py", "rewards"),
        ("deltamem/episode.py", "eval.metrics"),
        ("deltamem/episode.py", "deltamem.training"),
        ("deltamem/episode.py", "verl"),
        ("deltamem/bank/base.py", "chromadb"),
        ("deltamem/bank/base.py", "langgraph"),
        ("deltamem/journal/owner.py", "integrations.openai_proxy"),
        ("rewards/__init__.py", "synth"),
        ("rewards/__init__.py", "eval.metrics"),
        ("synth/__init__.py", "eval.metrics"),
        ("eval/metrics.py", "synth"),
        ("eval/metrics.py", "ray"),
        ("eval/metrics.py", "papers.stitch"),
        ("papers/episodic/records.py", "papers.stitch"),
    ]
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, name in wrong:
        with (tmp_path / module).open("a", encoding="utf-8") as file:
            file.write(f"\nimport {name}\n")
    done = run_contracts(tmp_path)
    assert done.returncode == 1 and "KEPT" not in done.stdout
    for module, name in wrong:
        importer = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        said = rf"{re.escape(importer)}\s+->\s+{re.escape(name)}\s+\(l\.\d+\)"
        assert re.search(said, done.stdout), (module, name)

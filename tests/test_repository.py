"""The tree itself: nothing of one machine in it, imports point one way, the package is complete."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("deltamem", "rewards", "synth", "eval", "papers", "integrations")
NOT_OURS = {".git", ".venv", ".venv-vllm", ".clients", "__pycache__", "build", "dist"}
NOT_OURS |= {"runs", "data", "models", "outputs", "multirun"}

MACHINE_PATH = re.compile(r"(?<![\w.}\])])/(?:root|tmp|opt|mnt|(?:home|Users)/[\w.-]+)(?![\w-])")
REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.(?:org|com)|registry\.npmjs|hf-mirro[r]|"
    r"(?:mirrors?|pypi|artifactory|nexus|devpi)\.[\w-]+\.[a-z]{2,}|\bghcr\.io|docker\.io",
    re.IGNORECASE,
)


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


def texts() -> Iterator[tuple[Path, str]]:
    for path in tree_files():
        try:
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def hits(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def run_contracts(folder: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )


def test_the_tree_is_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in tree_files()}
    assert {"pyproject.toml", "LICENSE", "Makefile", "deltamem/memory.py", "tests/test_repository.py"} <= names
    assert {"deltamem/memory.py", "Makefile"} <= {str(path.relative_to(ROOT)) for path in walk(ROOT)}


def test_no_path_of_a_machine() -> None:
    # Nothing general can be said about a checkout that lies at the top of the file system.
    outside = [] if ROOT.parent == Path("/") else [rf"(?<![\w.}}]){re.escape(str(ROOT.parent))}/"]
    found = [hit for pattern in (MACHINE_PATH, *map(re.compile, outside)) for hit in hits(pattern)]
    assert not found, "\n".join(found)


def test_no_registry_host() -> None:
    found = hits(REGISTRY)
    assert not found, "\n".join(found)


def test_the_patterns_catch_what_they_are_for() -> None:
    parts = [("", "root", "x"), ("", "home", "ana", "x"), ("", "tmp", "x"), ("", "opt", "wheels"), ("", "Users", "ana")]
    for path in map("/".join, parts):
        assert MACHINE_PATH.search(f"cd {path}")
        assert not MACHINE_PATH.search(f"${{HOME}}{path}")
    for host in (("pypi", "org"), ("mirror", "example", "com"), ("download", "pytorch", "org")):
        assert REGISTRY.search("https://" + ".".join(host) + "/simple")


def test_no_two_test_files_have_one_name() -> None:
    """Without packages in `tests`, pytest would refuse to collect the second."""
    names = [path.name for path in tree_files() if path.name.startswith("test_") and path.suffix == ".py"]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_imports_point_one_way() -> None:
    done = run_contracts(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_wrong_import_breaks_a_contract(tmp_path: Path) -> None:
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
    for module, imported in wrong:
        with (tmp_path / module).open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")
    done = run_contracts(tmp_path)
    assert done.returncode == 1
    assert "KEPT" not in done.stdout
    for module, imported in wrong:
        importer = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert re.search(rf"{re.escape(importer)}\s+->\s+{re.escape(imported)}\s+\(l\.\d+\)", done.stdout), (
            module,
            imported,
        )


def test_memory_states_need_only_the_standard_library() -> None:
    for module in ("memory", "text"):
        for node in ast.walk(ast.parse((ROOT / "deltamem" / f"{module}.py").read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert all(name == "deltamem.text" or name.partition(".")[0] in sys.stdlib_module_names for name in names), names


def test_types_are_published() -> None:
    assert (ROOT / "deltamem" / "py.typed").is_file()


def test_ci_runs_tests_and_lint() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert {"make test-all", "make lint"} <= set(text.splitlines())

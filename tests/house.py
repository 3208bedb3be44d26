"""The figures of the house (docs/architecture.md): ``python tests/house.py [CHECKOUT]`` prints them for any checkout.

Lines are those of ``.py`` files outside tests and benchmarks, without ``__init__.py``. Imports count where they stand at
module level, those for type checkers included; one within a function is a choice to load late.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

PARTS = {
    "core": ("deltamem", "rewards", "synth", "eval", "train.py"),
    "papers": ("papers",),
    "integrations": ("integrations",),
}


class House:
    """A checkout, read as text."""

    def __init__(self, root: Path) -> None:
        tops = [root / top for part in PARTS.values() for top in part]
        files = [file for top in tops for file in ([top] if top.suffix else sorted(top.rglob("*.py")))]
        self.tests = [file for top in (*tops, root / "tests") for file in top.rglob("*.py") if _is_test(file, root)]
        self.files = {file.relative_to(root): file.read_text("utf-8") for file in files if not _is_test(file, root)}
        self.bodies = {path: text for path, text in self.files.items() if path.name != "__init__.py"}
        self.trees = {path: ast.parse(text) for path, text in self.files.items()}

    def lines(self, part: str) -> int:
        """Lines of a part."""
        return sum(text.count("\n") for path, text in self.bodies.items() if path.parts[0] in PARTS[part])

    @property
    def test_lines(self) -> int:
        """Lines of all tests and of what they share."""
        return sum(file.read_text("utf-8").count("\n") for file in set(self.tests))

    @property
    def used_once(self) -> list[str]:
        """Private functions that one place mentions besides their definition, or none."""
        words = Counter(re.findall(r"\w+", "\n".join(self.bodies.values())))
        return [name for name in self._names("def") if re.match("_[^_]", name) and words[name] <= 2]

    @property
    def repeated_classes(self) -> dict[str, int]:
        """Names that more than one class bears."""
        counts = Counter(self._names("class"))
        return {name: count for name, count in sorted(counts.items()) if count > 1}

    def _names(self, kind: str) -> Iterator[str]:
        pattern = re.compile(rf"^ *(?:async )?{kind} (\w+)[\[(:]", re.MULTILINE)
        return (name for text in self.bodies.values() for name in pattern.findall(text))

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The trees by the names of their modules."""
        return {_module(path): tree for path, tree in self.trees.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """By module, the modules of ours that it imports."""
        modules = self.modules
        return {module: {one for one in _imported(tree, modules) if one != module} for module, tree in modules.items()}

    def defines(self, dotted: str) -> bool:
        """Whether there is a module of that name, or one that defines what the rest of the name says."""
        if dotted in self.modules:
            return True
        owner, _, name = dotted.rpartition(".")
        body: list[ast.stmt] = self.modules[owner].body if owner in self.modules else []
        if not body and "." in owner:
            module, _, outer = owner.rpartition(".")
            tree = self.modules.get(module, ast.Module([], []))
            body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == outer), [])
        return any(name == getattr(node, "name", None) for node in body)

    @property
    def circles(self) -> list[set[str]]:
        """Groups of modules that import each other (Tarjan's strongly connected components)."""
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        circles: list[set[str]] = []

        def visit(module: str) -> None:
            index[module] = low[module] = len(index)
            stack.append(module)
            for other in self.imports[module]:
                if other not in index:
                    visit(other)
                if other in stack:
                    low[module] = min(low[module], low[other])
            if low[module] == index[module]:
                group = set(stack[stack.index(module) :])
                del stack[stack.index(module) :]
                if len(group) > 1:
                    circles.append(group)

        for module in self.imports:
            if module not in index:
                visit(module)
        return circles

    def fan_out(self, most: int) -> dict[str, int]:
        """Modules that import more than `most` of ours."""
        return {module: len(others) for module, others in self.imports.items() if len(others) > most}


def _is_test(file: Path, root: Path) -> bool:
    return "tests" in file.relative_to(root).parts


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: dict[str, ast.Module]) -> Iterator[str]:
    for node in _at_module_level(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (submodule := f"{node.module}.{alias.name}") in modules:
                    yield submodule
                elif node.module in modules:
                    yield node.module


def _at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _at_module_level(child)


def main() -> None:
    """Print the figures."""
    house = House(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    print(f"modules: {len(house.bodies)}")
    for part in PARTS:
        print(f"lines of {part}: {house.lines(part):,}")
    for top in PARTS["core"]:
        print(f"  {top}: {sum(text.count(chr(10)) for path, text in house.bodies.items() if path.parts[0] == top):,}")
    print(f"lines of tests: {house.test_lines:,}")
    print(f"private functions with one caller: {len(house.used_once)}")
    repeated = house.repeated_classes
    print(f"class names used more than once: {len(repeated)}: {', '.join(f'{name} x {n}' for name, n in repeated.items())}")
    print(f"circles: {len(house.circles)}", *(f"\n  {', '.join(sorted(circle))}" for circle in house.circles))
    print(f"modules that import more than 15 of ours: {house.fan_out(15)}")


if __name__ == "__main__":
    main()

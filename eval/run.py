"""Several memory systems on one benchmark by one command, and how they compare.

``python -m eval run benchmark=locomo systems=[none,naive_rag,deltamem] base_url=... answer.model=...`` runs
``python -m eval.locomo`` with the same keys once for each system, one after the other, each in a folder of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from deltamem.config import composed, validated
from deltamem.errors import DeltaMemError
from eval import runner
from eval.benchmark import Benchmark
from eval.compare.page import write_report
from eval.compare.runs import load_runs
from eval.compare.terminal import print_comparison
from eval.config import BenchmarkConfig
from eval.estimate import estimate, estimate_table
from eval.models import SYSTEMS, check_system

BENCHMARKS = {
    "locomo": "Locomo",
    "halumem": "Halumem",
    "personamem": "PersonaMem",
    "longmemeval": "LongMemEval",
    "beam": "Beam",
}
"""The class of each benchmark in its ``__main__``, by the name of its command."""


def run_systems(arguments: Sequence[str], console: Console) -> int:
    """Run what the arguments name and show the comparison.

    A system that cannot run at all does not keep the others from running.

    Args:
        arguments: ``benchmark=NAME``, ``systems=[...]``, and overrides of the benchmark's command.
        console: Where progress and the comparison are shown.

    Returns:
        The exit code: 0, or 1 if something failed.

    Raises:
        DeltaMemError: If the arguments are wrong, which is found before anything is run.
    """
    name, systems, overrides = _parsed(arguments)
    kind: type[Benchmark[Any]] = getattr(importlib.import_module(f"eval.{name}.__main__"), BENCHMARKS[name])
    out = next((one.partition("=")[2] for one in overrides if one.startswith("out=")), f"runs/{name}")
    configs: list[BenchmarkConfig] = []
    for system in systems:
        check_system(system)
        chosen = [one for one in overrides if not one.startswith("out=")]
        config = validated(composed(name, [*chosen, f"system={system}", f"out={Path(out) / system}"]), kind.config_type)
        config.check()
        configs.append(config)
    if configs[0].estimate:
        console.print(estimate_table([estimate(kind, config) for config in configs], configs[0]))
        return 0
    code, finished = 0, []
    errors = Console(stderr=True)
    for number, config in enumerate(configs, start=1):
        console.print(f"{config.system} ({number} of {len(configs)}), records in {config.out}", highlight=False)
        try:
            code |= bool(runner.evaluate(kind, config, console)["failures"]["count"])
            finished.append(config.out)
        except DeltaMemError as error:
            code = runner.FAILED
            errors.print(f"{config.system} could not run: {error}", markup=False, highlight=False, soft_wrap=True)
    if finished:
        page = write_report(finished, Path(out) / runner.REPORT_FILE)
        print_comparison(load_runs(finished), console)
        console.print(f"every question: {page}", markup=False, highlight=False, soft_wrap=True)
    return code


def _parsed(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The benchmark, the systems without repeats, and the other overrides."""
    given = {one.partition("=")[0]: one.partition("=")[2] for one in arguments}
    overrides = [one for one in arguments if one.partition("=")[0] not in ("benchmark", "systems")]
    name = given.get("benchmark", "")
    if name not in BENCHMARKS:
        raise DeltaMemError(f"benchmark={name} does not exist; there are: {', '.join(BENCHMARKS)}")
    systems = [part.strip() for part in given.get("systems", "").strip("[] ").split(",") if part.strip()]
    if not systems:
        raise DeltaMemError(f"name the systems, for example systems=[none,naive_rag]; there are: {', '.join(SYSTEMS)}")
    if "system" in given:
        raise DeltaMemError("say systems=[...] in place of system=...")
    return name, list(dict.fromkeys(systems)), overrides

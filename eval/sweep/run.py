"""Runs a study: evaluates each point that is not done yet, then shows the table and draws the charts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem import plugins
from deltamem.config import composed, validated
from deltamem.episode import load_trained
from deltamem.errors import DeltaMemError
from deltamem.runs import weights_sha256
from deltamem.text_files import read_text
from eval import runner
from eval.compare.page import write_report
from eval.compare.runs import cards, differences, load_runs
from eval.config import BenchmarkConfig
from eval.summary import SUMMARY_FILE, Summary
from eval.sweep.result import result_of
from eval.sweep.serving import served
from eval.sweep.study import Study, SweepSettings, parsed


def sweep(name: str, given: Sequence[str], console: Console) -> int:
    """Run a study of `eval.sweep.study.studies`; `given` are ``key=value`` of `SweepSettings` and of its benchmark.

    Points are evaluated one after the other; one that cannot be does not keep the others from it. The same command again
    goes on where it stopped.

    Returns:
        0; or 1 if a point has no result, or something failed in one.

    Raises:
        DeltaMemError: If a setting is wrong, which is found before anything is run; or if no point has a result.
    """
    study, settings, overrides = parsed(name, given)
    code = 0 if settings.draw else _evaluate_all(name, study, settings, overrides, console)
    done = [label for label in study.points if (settings.out / label / SUMMARY_FILE).is_file()]
    if not done:
        raise DeltaMemError(f"{settings.out} has no result of any point yet: {', '.join(study.points)}")
    runs = dict(zip(done, load_runs([settings.out / label for label in done]), strict=True))
    result, remarks = result_of(study, runs), _remarks(study, list(runs.values()))
    files = result.write(settings.out, name, remarks)
    write_report(list(runs.values()), settings.out / runner.REPORT_FILE)
    heading, *lines = result.lines()
    table = Table(*heading, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=study.title)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)
    for remark in filter(None, (study.note, *remarks)):
        console.print(Text(remark, style="yellow"), soft_wrap=True)
    console.print(Text(f"{', '.join(map(str, files))}; every table and question: {settings.out / runner.REPORT_FILE}"))
    whole = {label for label, run in runs.items() if run.summary.partial is None}
    return code or int(not whole >= set(settings.points or study.points))


def _evaluate_all(name: str, study: Study, settings: SweepSettings, overrides: Sequence[str], console: Console) -> int:
    """Evaluate the points; returns 1 if something failed."""
    kind = plugins.load("benchmarks", study.benchmark)
    elsewhere = any(one.partition("=")[0] == "manager.base_url" for one in overrides)
    url = f"http://127.0.0.1:{settings.port}/v1"
    evaluations: list[tuple[str, str, BenchmarkConfig, bool]] = []
    for label in settings.points or study.points:
        point = study.points[label]
        if (model := point.manager(settings.runs)) is None:
            console.print(
                Text(f"{label} has to be trained first: python train.py {point.train}", style="yellow"), soft_wrap=True
            )
            continue
        here = not (point.hosted or elsewhere)
        own = [f"system={point.system}", f"manager.model={model}", f"out={settings.out / label}"]
        own += [f"manager.base_url={url}"] if here else []  # a policy's folder says how it was trained to be asked
        turn = load_trained(Path(model)).turn_tokens if point.policies else None
        trained = [f"manager.max_tokens={turn}"] * (turn is not None)
        config = validated(
            composed(study.benchmark, ["protocol=paper", *trained, *overrides, *own], kind.config_dir), kind.config_type
        )
        config.check()
        if config.answer.answerer != "llm" or (study.judged and not config.judged):
            needs = "answer.model and judge.model" if study.judged else "answer.model"
            raise DeltaMemError(f"{name} is of a model's answers: it needs {needs} beside base_url")
        evaluations.append((label, model, config, here))
    if evaluations:  # what all points need: serving a model takes minutes
        runner.check_ready(kind, evaluations[0][2])
    code = 0
    for number, (label, model, config, here) in enumerate(evaluations, start=1):
        console.print(f"{name}, {label} ({number} of {len(evaluations)}): {model}, records in {config.out}")
        log = settings.out / f"{label}.server.log"
        try:
            with served(model, settings, log) if here and not _done(config) else nullcontext():
                code |= bool(runner.evaluate(kind, config, console).failures.count)
        except DeltaMemError as error:
            code = runner.FAILED
            console.print(Text(f"{label} could not be evaluated: {error}", style="red"), soft_wrap=True)
    return code


def _done(config: BenchmarkConfig) -> bool:
    """Whether nothing is left to ask the model of a run, so that it need not be served.

    Raises:
        DeltaMemError: If the model's folder holds other weights by now.
    """
    if not (path := config.out / SUMMARY_FILE).is_file():
        return False
    try:
        summary = Summary.model_validate_json(read_text(path))
    except ValidationError:  # of another version; the run itself decides what it can go on with
        return False
    settled = summary.partial is None and not summary.failures.count
    if not settled or summary.making.config != config.reported():
        return False
    known = summary.making.fingerprint.get("served", {}).get("manager", {}).get("weights")
    if known is not None and known != weights_sha256(Path(str(config.manager.model))):
        raise DeltaMemError(
            f"{config.manager.model} has been trained anew since; remove {config.out}, or choose another out=..."
        )
    return True


def _remarks(study: Study, runs: Sequence[Any]) -> list[str]:
    """What must be known of the table: conditions that differ, and warnings of each run."""
    of_runs, shared = cards(runs)
    what_varies = ("manager model", "manager endpoint", "manager served model", "prompt ")
    found = [f"all: {sentence}" for sentence in shared]
    found += [sentence for sentence in differences(runs) if not sentence.startswith(what_varies)]
    return found + [f"{card.run.name}: {sentence}" for card in of_runs for sentence in card.warnings]

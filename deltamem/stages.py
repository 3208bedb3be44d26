"""Stages of a run that are done once: a finished stage leaves a marker with the hash of its inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamem.errors import DeltaMemError
from deltamem.files import atomic_writer
from deltamem.provenance import config_hash


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Shown in the progress, and the name of the marker.
        inputs: What the result depends on, as JSON values.
        run: Does the work; must itself go on where an interrupted attempt stopped, or begin anew.
        output: What must exist for the stage to count as done.
    """

    name: str
    inputs: Mapping[str, Any]
    run: Callable[[], None]
    output: Path


def run_stages(stages: Sequence[Stage], folder: Path, report: Callable[[str], None]) -> dict[str, float]:
    """Run the stages that are not done yet, in order.

    A stage is done if its marker carries the hash of its own inputs and of those of all stages before it, and its output
    exists.

    Args:
        stages: The stages.
        folder: Where the markers are kept.
        report: Shows a line to the person who waits.

    Returns:
        Seconds of each stage, as measured when it ran.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seconds = {}
    chain: list[Any] = []
    for number, stage in enumerate(stages, start=1):
        chain.append({stage.name: dict(stage.inputs)})
        marker = folder / f"{stage.name}.json"
        expected = config_hash({"inputs": chain})
        title = f"stage {number}/{len(stages)} {stage.name}"
        done = _read(marker)
        if done.get("inputs_sha256") == expected and stage.output.exists():
            report(f"{title}: done before")
        else:
            marker.unlink(missing_ok=True)
            report(title)
            begin = time.perf_counter()
            stage.run()
            done = {"inputs_sha256": expected, "seconds": round(time.perf_counter() - begin, 1)}
            with atomic_writer(marker) as file:
                json.dump(done, file)
            report(f"{title}: {done['seconds']:.0f} s")
        seconds[stage.name] = float(done["seconds"])
    return seconds


def _read(marker: Path) -> dict[str, Any]:
    if not marker.exists():
        return {}
    try:
        return dict(json.loads(marker.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DeltaMemError(f"{marker}: not a completion marker of a stage; remove it to run the stage again") from error

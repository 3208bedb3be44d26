"""Studies: what the paper varies, as ``studies.yaml`` has it, and the evaluations that they consist of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from deltamem.config import StrictModel, first_error
from deltamem.errors import DeltaMemError
from eval.systems.base import FolderName


class Point(StrictModel):
    """One evaluation of a study."""

    system: str = "deltamem"
    policies: tuple[str, ...] = ()  # Folders of training runs; the policy of the first that has one is evaluated
    train: str = ""  # Arguments of train.py that make the first of them
    model: str | None = None  # What is evaluated where no training run is
    hosted: bool = False  # Whether the model is found at `base_url`, and is not served here
    published: str | None = None  # The paper's row
    x: float | None = None  # What is varied

    def manager(self, runs: Path) -> str | None:
        """The folder or name of the model; None if it has to be trained first."""
        folders = [runs / name / "policy" for name in self.policies]
        return self.model or next((str(folder) for folder in folders if (folder / "config.json").is_file()), None)


class Study(StrictModel):
    """A table or figure of the paper."""

    title: str
    benchmark: str
    layout: str | None = None  # The paper's table whose columns it has; None for accuracy over sessions
    columns: tuple[str, ...] = ()  # Keys of those that it shows; all if empty
    # `line`: every column over `Point.x`. `columns`: every point over the columns. `plane`: the second column over the
    # first. `curves`: accuracy over sessions
    chart: Literal["line", "columns", "plane", "curves"]
    x: str = ""  # What `Point.x` is
    points: dict[FolderName, Point]
    note: str = ""
    judged: bool = False  # Whether it shows what a judge says


def studies() -> dict[str, Study]:
    """By the name that the command has for each."""
    content: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).parent / "studies.yaml"))
    return {name: Study.model_validate(study) for name, study in content.items()}


class SweepSettings(StrictModel):
    """The keys of a sweep; those of the benchmark stand beside them."""

    out: Path  # Each point gets a folder there
    runs: Path = Path("runs")  # Where the training runs are
    points: list[str] | None = None  # Some of the study's; None means all
    draw: bool = False  # Evaluate nothing: show what lies in `out`
    serve: str = "vllm"  # Program that serves a model as `vllm serve` does
    serve_args: list[str] = Field(default=[])  # Its further arguments
    # Of the server. Always the same, as records are not mixed with those of another endpoint
    port: PositiveInt = 8971
    start_minutes: PositiveFloat = 60.0  # How long the server may take to start


def parsed(name: str, given: Sequence[str]) -> tuple[Study, SweepSettings, list[str]]:
    """A study, the keys of the sweep, and the overrides that are left to the benchmark.

    Raises:
        DeltaMemError: If there is no such study or point, or a key of the sweep has the wrong type.
    """
    known = studies()
    if name not in known:
        raise DeltaMemError(f"there is no sweep {name!r}; there are: {', '.join(known)}")
    study = known[name]
    own = [one for one in given if one.partition("=")[0] in SweepSettings.model_fields]
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"out=runs/{name}", *own]))
        settings = SweepSettings.model_validate(values)
    except ValidationError as error:
        raise DeltaMemError(f"config key {first_error(error)}") from error
    except OmegaConfBaseException as error:
        raise DeltaMemError(f"{' '.join(own)}: {error}") from error
    for label in settings.points or ():
        if label not in study.points:
            raise DeltaMemError(f"{name} has no point {label!r}; it has: {', '.join(study.points)}")
    for key in ("system", "manager.model"):
        if any(one.partition("=")[0] == key for one in given):
            raise DeltaMemError(f"{key} is what the points of {name} differ in; choose among them with points=[...]")
    return study, settings, [one for one in given if one not in own]

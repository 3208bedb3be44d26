"""The base of all validated models, and the entry of the Hydra commands: bad input is one sentence and exit code 2.

A command is a function of its configuration and one call::

    if __name__ == "__main__":
        run_hydra(main, "locomo")

Its file in ``configs/`` keeps Hydra from making folders and log files of its own::

    defaults:
      - _self_
      - override hydra/hydra_logging: none
      - override hydra/job_logging: none
    hydra:
      output_subdir: null
      run: {dir: .}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from deltamem.errors import DeltaMemError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIGS = Path(__file__).resolve().parents[1] / "configs"  # The configuration files of the checkout

USAGE_ERROR = 2  # Exit code for wrong usage and bad data

Config = TypeVar("Config", bound=BaseModel)


class StrictModel(BaseModel):
    """Refuses unknown keys, and does not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def first_error(error: ValidationError, whole: str = "", *, messages: Mapping[str, str] = {}) -> str:
    """Pydantic's first complaint in one line, ``key: message``.

    `whole` stands for the key where it is about the input as a whole; `messages` replace pydantic's, by the error's type.
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or whole
    message = messages.get(first["type"], first["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def run_hydra(task: Callable[[DictConfig], int | None], config_name: str, config_dir: Path = CONFIGS) -> NoReturn:
    """Run a command with its composed configuration, the file ``config_name.yaml`` of a folder or `CONFIGS`, and exit.

    Exit code: what the task returns (None is 0); 2 for an unknown key, an unreadable override, a `DeltaMemError` or what
    the operating system refuses (no permission, no space); 130 when interrupted. Any other exception is a defect of ours
    and keeps its stack trace. With ``HYDRA_FULL_ERROR=1`` in the environment nothing is shortened.
    """
    try:
        import hydra
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        _fail("this command needs Hydra; install it with: pip install 'deltamem[hydra]'")

    shorten = os.environ.get("HYDRA_FULL_ERROR") != "1"
    sys.argv[1:1] = _search_path(config_dir)

    @wraps(task)
    def guarded(config: DictConfig) -> None:
        # Hydra would announce a failed job with lines of its own, so the task ends the process itself.
        if shorten:
            del os.environ["HYDRA_FULL_ERROR"]  # commands that the task starts end with one sentence too
        try:
            code = task(config)
        except (DeltaMemError, OmegaConfBaseException, OSError) as error:
            if not shorten:
                raise
            _fail(_sentence(error))
        finally:
            os.environ["HYDRA_FULL_ERROR"] = "1"
        if code:
            sys.exit(code)

    # Hydra's own report would be several lines and exit code 1; this makes it hand the exception on.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir), config_name=config_name)(guarded)()
    except (HydraException, OmegaConfBaseException, DeltaMemError, UnicodeDecodeError) as error:
        if not shorten:
            raise
        _fail(_sentence(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def run_plain(task: Callable[[], int | None]) -> NoReturn:
    """Run a command that is not configured by Hydra, with the same treatment of bad input."""
    try:
        sys.exit(task() or 0)
    except (DeltaMemError, OSError) as error:
        _fail(_sentence(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def composed(config_name: str, overrides: Sequence[str], config_dir: Path = CONFIGS) -> DictConfig:
    """Compose a configuration as a command does, for commands that run others.

    Raises:
        DeltaMemError: If a key is unknown or an override cannot be read.
    """
    try:
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise DeltaMemError("this command needs Hydra; install it with: pip install 'deltamem[hydra]'") from error
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            config: DictConfig = compose(config_name, [*_search_path(config_dir), *overrides])
    except (HydraException, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise DeltaMemError(_sentence(error)) from error
    return config


def _search_path(config_dir: Path) -> list[str]:
    """The override by which a folder of a plug-in finds the configuration files that all share."""
    return [] if config_dir == CONFIGS else [f"hydra.searchpath=[file://{CONFIGS}]"]


def validated(config: DictConfig, model: type[Config]) -> Config:
    """Turn a composed configuration into a `StrictModel`, so that keys added with ``+`` are refused too.

    Raises:
        DeltaMemError: If a value is missing, unknown or of the wrong type; names the key.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.is_missing(config, "out") and config.get("out") == "":  # a path of no name is the current folder
        raise DeltaMemError("config key 'out' is empty; give the folder to write to")
    values: Any = {}
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, _written(first["loc"], values))) or "(whole configuration)"
        if first["type"] == "extra_forbidden":
            known = (
                f"there are: {', '.join(model.model_fields)}" if len(first["loc"]) == 1 else "--cfg job shows what there is"
            )
            raise DeltaMemError(f"unknown config key {key!r}; {known}") from error
        raise DeltaMemError(f"config key {key!r}: {first['msg']}, got {first['input']!r}") from error
    except OmegaConfBaseException as error:
        raise DeltaMemError(_sentence(error)) from error


def _written(location: Sequence[int | str], values: Any) -> Iterator[int | str]:
    """Where pydantic found an error, without the tags of unions, which it puts between the keys."""
    for place, part in enumerate(location):
        if isinstance(values, Mapping) and part not in values and place + 1 < len(location):
            continue
        yield part
        values = values.get(part) if isinstance(values, Mapping) else None


def _sentence(error: BaseException) -> str:
    """Say in one sentence what Hydra or OmegaConf say in several lines."""
    if isinstance(error, DeltaMemError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):  # from Hydra, which does not say of which
        return "a configuration file is not UTF-8 text; save it as UTF-8"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    try:
        from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue
    except ImportError:  # a command without Hydra in the base installation
        return str(error)
    cause = error.__cause__
    for candidate in (cause, error):
        if isinstance(candidate, MissingMandatoryValue):
            return f"config key {candidate.full_key!r} has no value; give one with {candidate.full_key}=..."
        if isinstance(candidate, (ConfigAttributeError, ConfigKeyError)):
            return f"unknown config key {candidate.full_key!r}; --cfg job shows the keys that there are"
    text = str(error) if cause is None else f"{error}\n{cause}"
    text = text.partition("Config search path:")[0]
    return "; ".join(line.strip().rstrip(".") for line in text.splitlines() if line.strip())


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USAGE_ERROR)

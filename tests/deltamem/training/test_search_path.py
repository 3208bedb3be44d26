"""verl's configuration is found without importing verl."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from deltamem.errors import DeltaMemError
from deltamem.training.config import folder_of_package


def test_the_folder_of_an_installed_package() -> None:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    assert Path(folder_of_package("verl")) == Path(spec.origin).parent
    assert (Path(folder_of_package("verl")) / "trainer" / "config" / "ppo_trainer.yaml").is_file()


def test_nothing_heavy_is_imported() -> None:
    asked = (
        "import sys; from deltamem.training.config import folder_of_package; folder_of_package('verl'); "
        "sys.exit(bool({'verl', 'torch', 'ray'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(DeltaMemError, match="needs the package no_such_engine; install it with"):
        folder_of_package("no_such_engine")

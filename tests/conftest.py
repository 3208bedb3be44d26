"""Settings of all tests, and the browser of those that use one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_cases import Opened, opened, started
from hypothesis import settings

if TYPE_CHECKING:
    from selenium import webdriver

# Machines that run tests are noisy: a slow example says nothing about the code.
settings.register_profile("deltamem", deadline=None)
settings.load_profile("deltamem")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    yield from started()


@pytest.fixture
def browser(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Opened]:
    yield from opened(driver, tmp_path)

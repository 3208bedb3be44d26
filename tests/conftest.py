"""Settings of all tests."""

import pytest
from hypothesis import settings

# Machines that run tests are noisy: a slow example says nothing about the code.
settings.register_profile("deltamem", deadline=None)
settings.load_profile("deltamem")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)

"""Settings of all tests, the limit of a session, and the browser of those that use one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from browser_cases import Opened, opened, started
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from selenium import webdriver

    from deltamem.embedding import Embedder

# Threads that spin while they wait for each other's turn on a core cost these small models most of their time. Other
# conftests load OpenMP, which reads this only then, before the first hook of this one is called.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Machines that run tests are noisy: a slow example says nothing about the code. `make test-all` is
# thorough.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "end the session after so many minutes; what each worker was running is shown as failed, with its threads"
    parser.addoption("--minutes", type=float, help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    minutes = config.getoption("--minutes")
    if minutes is not None and not hasattr(config, "workerinput"):
        limit = threading.Timer(60 * minutes, _end_session, [minutes, config.getoption("dist", "no") != "no"])
        limit.daemon = True
        limit.start()
        config.add_cleanup(limit.cancel)


def _end_session(minutes: float, distributed: bool) -> None:
    """Abort the workers of pytest-xdist, which then reports what they were running, or else this process."""
    print(f"\nThe limit of {minutes:g} minutes is over (--minutes).", flush=True)
    session = psutil.Process()
    tested = session.children() if distributed else [session]
    started = [child for process in tested for child in process.children(recursive=True)]
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in tested:
        process.send_signal(signal.SIGABRT)  # pytest has faulthandler print what every thread was doing


# Libraries that take seconds to load, and which file was the first to do so as tests were collected.
HEAVY = {"torch", "transformers", "sentence_transformers", "verl", "ray", "vllm", "chromadb"}
LOADED_BY = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    loaded = collector.config.stash.setdefault(LOADED_BY, {})
    for name in HEAVY & sys.modules.keys():
        loaded.setdefault(name, collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Without garbage collection, which would go through a million objects of libraries and tests that stay for good."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class TrainingInOneWorker(LoadFileScheduling):
    """Each file to whichever worker is free, but those of training to one: to load verl and ray takes it 10 seconds."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder, _, name = file.rpartition("/")
        return folder if folder == "tests/deltamem/training" and name != "test_end_to_end.py" else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """As `TrainingInOneWorker` where slow tests are left out; with them that worker would be the last by far."""
    return TrainingInOneWorker(config, log) if "not slow" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def loaded_by(pytestconfig: pytest.Config) -> dict[str, str]:
    """The heavy libraries that collecting the tests has loaded, each with the file that did."""
    return pytestconfig.stash[LOADED_BY]


@pytest.fixture(scope="session")
def minilm() -> Any:
    """The offline model itself, as sentence-transformers loads it; loaded once, and not to be changed."""
    from deltamem.embedding import OFFLINE_MODEL, load_model

    return load_model(OFFLINE_MODEL, "cpu")


@pytest.fixture(scope="session")
def real_embedder() -> Embedder:
    """The offline embedder, for what words alone do not show."""
    from deltamem.embedding import OFFLINE_MODEL, SentenceTransformerEmbedder

    return SentenceTransformerEmbedder(OFFLINE_MODEL)


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    yield from started()


@pytest.fixture
def browser(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Opened]:
    yield from opened(driver, tmp_path)

"""One PostgreSQL for the session, and what runs need to be quick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from momento_cases import CATALOGUE, Finished, finish, quick, reset

from papers.momento.world import World

if TYPE_CHECKING:
    from papers.momento.database import ServiceDatabase


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    pytest.importorskip("pgserver", reason="pgserver, which brings PostgreSQL, is not installed")
    pytest.importorskip("psycopg")
    from papers.momento.database import private_postgres

    with private_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def databases(server_url: str) -> Iterator[list[ServiceDatabase]]:
    from papers.momento.database import open_databases

    with open_databases(server_url, 3) as opened:
        yield opened


@pytest.fixture(scope="session")
def session_world(databases: list[ServiceDatabase]) -> World:
    return World(databases[0], CATALOGUE)


@pytest.fixture
def world(session_world: World) -> World:
    return reset(session_world)


@pytest.fixture
def quick_runs(databases: list[ServiceDatabase]) -> Iterator[pytest.MonkeyPatch]:
    with quick(databases[1:]) as patched:
        yield patched


@pytest.fixture(scope="session")
def ran(databases: list[ServiceDatabase], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """A run of a system with a scripted agent over a task of each kind, to be read by many tests."""

    @cache
    def finished(system: str) -> Finished:
        trials = 2 if system == "naive_rag" else 1
        with quick(databases[1:]):
            return finish(tmp_path_factory.mktemp(system), f"system={system}", f"trials={trials}", "limit=9", "k=1")

    return finished


@pytest.fixture(scope="session")
def run(ran: Callable[[str], Finished]) -> Finished:
    return ran("naive_rag")

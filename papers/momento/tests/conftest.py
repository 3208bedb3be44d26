"""The service on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from momento_cases import CATALOGUE, both_databases, reset

from papers.momento.database import SQLiteDatabase
from papers.momento.world import World


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[World]]:
    with both_databases() as databases:
        yield [World(database, CATALOGUE) for database in databases]


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "sqlite":
        return reset(World(SQLiteDatabase(), CATALOGUE))
    return reset(request.getfixturevalue("worlds")[1])

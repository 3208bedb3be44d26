"""The SQL of agents and of recall: attacks are refused, bounds hold, columns have the names of PostgreSQL."""

from __future__ import annotations

import json

import pytest
from momento_cases import MARA, OREN, SESSIONS, TODAY, new_id

from papers.momento.policies import CallError, PolicyViolationError
from papers.momento.tools import ERROR, call, failed
from papers.momento.world import World

ATTACKS = [
    "DELETE FROM orders",
    "UPDATE orders SET total_price = 0",
    "DROP TABLE orders",
    "CREATE TABLE x (y int)",
    "SELECT 1; DELETE FROM orders",
    "SELECT 1; SELECT 2",
    "SELECT 1 /* ; */; UPDATE orders SET status = 'cancelled' --",
    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
    "WITH new AS (UPDATE orders SET status = 'cancelled' RETURNING *) SELECT count(*) FROM new",
    "SELECT * INTO stolen FROM users",
    "SELECT * FROM orders FOR UPDATE",
    "COPY (SELECT * FROM users) TO PROGRAM 'cat'",
    "SELECT * FROM sessions",
    "SELECT * FROM SESSIONS",
    "SELECT (SELECT summary FROM sessions LIMIT 1) AS leak",
    "SELECT 1 UNION ALL SELECT count(*) FROM sessions",
    "WITH users AS (SELECT * FROM sessions) SELECT * FROM users",
    "SELECT u.id FROM users u JOIN LATERAL (SELECT * FROM sessions) s ON true",
    "TABLE sessions",
    "SELECT pg_sleep(5)",
    "SELECT count(*) FROM generate_series(1, 1000000000)",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM information_schema.tables",
    "SELECT 'sessions'::regclass",
    "SELECT current_setting('momento.user_id')",
    "SELECT set_config('statement_timeout', '0', false)",
    "SELECT pg_read_file('/x')",
    "SELECT query_to_xml('SELECT * FROM sessions', true, false, '')",
    "SELECT version()",
    "SELECT now()",
    "SELECT current_user",
    "SELECT pg_terminate_backend(1)",
    "SET statement_timeout = 0",
    "RESET ROLE",
    "DO $$ BEGIN PERFORM 1; END $$",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "VALUES (1)",
    "SELECT",
    "not SQL at all",
    "SELECT '" + "a" * 30_000 + "'",
    # A subquery's name must not open the table of that name to the rest of the query.
    "SELECT s.* FROM sessions s, (WITH sessions AS (SELECT 1 AS one) SELECT * FROM sessions) x",
    "WITH sessions AS (SELECT 1 AS one) SELECT * FROM public.sessions",
    "SELECT * FROM pg_tables, (WITH pg_tables AS (SELECT 1 AS one) SELECT * FROM pg_tables) x",
    "SELECT * FROM (WITH gone AS (DELETE FROM orders RETURNING id) SELECT * FROM gone) x",
    "SELECT * FROM (SELECT * FROM orders FOR UPDATE) x",
    "SELECT length(repeat('a', 1000000000))",
    'SELECT * FROM U&"s\\0065ssions"',
    "SELECT $x$ ' $x$ FROM sessions",
    'SELECT "pg_sleep"(3)',
    "SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t(a int)",
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_attacks_by_sql_are_refused(world: World, attack: str) -> None:
    before = {user: world.hashes(user) for user in (MARA, OREN)}
    result = call(world, "execute_sql", {"query": attack})
    assert failed(result), result
    assert "CANARY" not in result
    assert {user: world.hashes(user) for user in (MARA, OREN)} == before
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))  # nothing is left broken


PAST_THE_GATE = [
    "DELETE FROM orders",
    "SELECT * FROM sessions",
    "INSERT INTO orders SELECT * FROM orders",
    "CREATE TABLE x (y int)",
    "SELECT 1 UNION ALL SELECT count(*) FROM sessions",
    "SELECT 1; DELETE FROM orders",
    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
    "SELECT pg_sleep(3)",
    "SELECT set_config('statement_timeout', '0', false)",
    "SELECT current_setting('momento.user_id')",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM information_schema.tables",
    "SELECT query_to_xml('SELECT * FROM sessions', true, false, '')",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT version()",
    "SELECT now()",
    "SELECT * FROM orders FOR UPDATE",
    "COPY users TO '/x'",
]


def test_the_database_refuses_what_gets_past_the_gate(world: World) -> None:
    for query in PAST_THE_GATE:
        with pytest.raises((PolicyViolationError, CallError)):
            world.database.guarded(query, 10)
    assert world.database.guarded("SELECT count(*) FROM orders", 10) == (["count"], [{"count": 3}])


def test_a_query_that_takes_too_long_is_stopped(world: World) -> None:
    tables = ", ".join(f"menu_items m{number}" for number in range(8))
    result = call(world, "execute_sql", {"query": f"SELECT count(*) AS n FROM {tables}"})
    assert result.startswith(ERROR) and "longer than 2 s" in result


MANY = "(SELECT string_agg('aaaaaaaaaa', '') AS s FROM menu_items a, menu_items b) t"
TWICE = ", ".join(f"t{number} AS (SELECT s || s AS s FROM t{number - 1})" for number in range(1, 12))
HEAVY = [  # whoever only looks at the clock is kept busy by these for minutes, or runs out of memory
    f"SELECT trim(both replace(s, 'a', 'b') || 'a' from s) AS x FROM {MANY}",
    f"SELECT s LIKE '%' || left(s, 160000) || '_b' AS x FROM {MANY}",
    f"SELECT s ILIKE ANY(ARRAY[left(s, 160000) || '_b']) AS x FROM {MANY}",
    "SELECT array_agg(a.id::text || b.id::text) && array_agg(b.name) AS x FROM menu_items a, menu_items b",
    f"WITH t0 AS (SELECT '{'a' * 1000}' AS s), {TWICE} SELECT s FROM t11",
    "SELECT length(" + "replace(" * 8 + f"'{'a' * 100}'" + ", 'a', 'aaaaaaaaaa')" * 8 + ") AS x",
    "SELECT count(*) AS x FROM " + ", ".join(f"users u{number}" for number in range(1500)),
    "SELECT a.*, b.*, c.* FROM menu_items a, menu_items b, menu_items c",
    "SELECT " + ", ".join(f"strpos(name, '{number}')" for number in range(51)) + " FROM users",
    "SELECT " + "9" * 5000 + " AS x",
    "SELECT 9e99::float * 9e99 * 9e99 * 9e99 AS x",
]


@pytest.mark.parametrize("query", HEAVY, ids=range(len(HEAVY)))
def test_a_query_that_grows_without_bound_is_refused(world: World, query: str) -> None:
    result = call(world, "execute_sql", {"query": query, "max_rows": 2**31 - 1})
    assert failed(result), result[:300]
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))


def test_a_result_may_not_flood_the_agent(world: World) -> None:
    result = call(world, "execute_sql", {"query": "SELECT a.*, b.* FROM menu_items a, menu_items b", "max_rows": 10_000})
    assert result.startswith(ERROR) and "select less" in result
    assert call(world, "execute_sql", {"query": """SELECT '{"a": 1e5000}'::jsonb AS x"""})  # more digits than Python prints


ANSWERS = [  # columns without a name are called as PostgreSQL calls them, also where a bound stands around them
    (
        "SELECT count(*), count(*), max(capacity), 'x', 2 * capacity, city || 'x' FROM restaurants GROUP BY capacity, city "
        "ORDER BY 1, 3 LIMIT 1",
        ["count", "count_2", "max", "?column?", "?column?_2", "?column?_3"],
    ),
    (
        "SELECT string_agg(name, ',') FILTER (WHERE name = 'x'), min(name) || 'x', (SELECT max(id::text) FROM users), "
        "max(city)::text, array_agg(name), (min(name) || 'x')::varchar FROM restaurants",
        ["string_agg", "?column?", "max", "max_2", "array_agg", "varchar"],
    ),
    (
        "SELECT lower(city)::text, city::text, CASE WHEN true THEN city ELSE city || 'x' END, replace(city, 'a', 'b'), "
        "1.5::decimal, to_char(capacity, '999'), array['a', name], coalesce(name || 'x', '') FROM restaurants LIMIT 1",
        ["lower", "city", "case", "replace", "numeric", "to_char", "array", "coalesce"],
    ),
    ("SELECT id, id FROM users WHERE id = 'nobody'", ["id", "id_2"]),
    ("SELECT '2026-05-18'::date - INTERVAL '20 days' AS x, '2026-05-18'::date - 7 AS y FROM users LIMIT 1", ["x", "y"]),
]


@pytest.mark.parametrize(("query", "columns"), ANSWERS)
def test_columns_without_a_name(world: World, query: str, columns: list[str]) -> None:
    assert json.loads(call(world, "execute_sql", {"query": query}))["columns"] == columns


def test_no_two_columns_have_one_name(world: World) -> None:
    query = "SELECT o.id, u.id, o.user_id AS id_2, u.first_name AS id FROM orders o JOIN users u ON u.id = o.user_id"
    shown = json.loads(call(world, "execute_sql", {"query": f"{query} WHERE u.id = '{OREN}'"}))
    assert shown["columns"] == ["id", "id_3", "id_2", "id_4"]
    assert shown["rows"] == [{"id": new_id("order", "his"), "id_3": OREN, "id_2": OREN, "id_4": "Oren"}]


RECALLS = [
    "SELECT summary FROM sessions WHERE summary <> '' AND 1 / (CASE WHEN summary LIKE 'OREN%' THEN 0 ELSE 1 END) = 1",
    "SELECT summary FROM sessions WHERE user_id IS NOT DISTINCT FROM 'oren_tadic'",
    "SELECT id, user_id, summary FROM sessions",
    "SELECT summary FROM sessions WHERE user_id <> :user_id OR 1 = 1",
    "SELECT string_agg(summary, ' ') AS summary FROM sessions",
    "SELECT 'mara_quist' AS user_id, summary FROM sessions WHERE user_id = 'oren_tadic'",
    "SELECT (SELECT summary FROM sessions WHERE user_id = 'oren_tadic') AS summary FROM sessions",
]


@pytest.mark.parametrize("query", RECALLS)
def test_recall_never_sees_the_sessions_of_others(world: World, query: str) -> None:
    rows = world.database.recall(query, MARA, [1.0, 0.0, 0.0])
    assert "CANARY" not in json.dumps(rows, default=str)
    theirs = world.database.recall("SELECT summary FROM sessions", OREN, [1.0, 0.0, 0.0])
    assert [row["summary"] for row in theirs] == ["OREN-CANARY"]


@pytest.mark.parametrize(
    "query", ["SELECT * FROM users", "SELECT * FROM session_messages", "DELETE FROM sessions", "SELECT 1; SELECT 2"]
)
def test_recall_reads_nothing_but_sessions(world: World, query: str) -> None:
    with pytest.raises(PolicyViolationError):
        world.database.recall(query, MARA, [1.0, 0.0, 0.0])


def test_recall_by_meaning_and_by_time(world: World) -> None:
    nearest = "SELECT summary, 1 - (embedding <=> :query_embedding::vector) AS similarity FROM sessions "
    nearest += "WHERE user_id = :user_id ORDER BY embedding <=> :query_embedding::vector LIMIT 1"
    assert world.database.recall(nearest, MARA, [0.1, 1.0, 0.0])[0]["summary"] == "Mara dines late"
    recent = "SELECT summary FROM sessions WHERE started_at >= '2026-05-18'::date - INTERVAL '7 days'"
    assert [row["summary"] for row in world.database.recall(recent, MARA, [1.0, 0.0, 0.0])] == ["Mara dines late"]
    near = "SELECT summary FROM sessions WHERE embedding <=> :query_embedding::vector < 0.5"
    assert [row["summary"] for row in world.database.recall(near, MARA, [1.0, 0.1, 0.0])] == ["Mara likes pasta"]
    words = world.database.recall("SELECT 'a IS NOT DISTINCT FROM b' AS said FROM sessions LIMIT 1", MARA, [1.0, 0.0, 0.0])
    assert words == [{"said": "a IS NOT DISTINCT FROM b"}]
    friday = "SELECT summary FROM sessions WHERE EXTRACT(DOW FROM started_at) = 5 AND started_at > '2026-05-10'"
    assert len(world.database.recall(friday, MARA, [1.0, 0.0, 0.0])) == 1


def test_recall_is_bounded(world: World) -> None:
    many = "SELECT a.summary FROM sessions a" + "".join(f", sessions t{number}" for number in range(14))
    assert len(world.database.recall(many, MARA, [1.0, 0.0, 0.0])) == 1000
    with pytest.raises(CallError, match="select less"):
        world.database.recall(many.replace("a.summary", "'" + "x" * 300 + "' AS s"), MARA, [1.0, 0.0, 0.0])


def test_a_user_whose_name_is_sql_stays_a_user(world: World) -> None:
    name = "x'; DROP TABLE sessions; --"
    assert world.database.recall("SELECT summary FROM sessions", name, [1.0, 0.0, 0.0]) == []
    world.reset(TODAY, {}, SESSIONS)


def test_a_pattern_of_many_percent_signs_takes_no_time(world: World) -> None:
    assert call(world, "search_restaurants", {"name": "%o" * 40 + "%#"}) == "[]"


@pytest.mark.parametrize(
    "query",
    ["SELECT " + "(" * 4000 + "1" + ")" * 4000, "SELECT " + "+".join(["1"] * 6000), "SELECT " + "NOT " * 4000 + "true"],
    ids=["brackets", "sums", "negations"],
)
def test_what_is_nested_deeply_is_refused_and_breaks_nothing(world: World, query: str) -> None:
    assert failed(call(world, "execute_sql", {"query": query}))
    with pytest.raises((PolicyViolationError, CallError)):
        world.database.recall(query, MARA, [1.0, 0.0, 0.0])
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))

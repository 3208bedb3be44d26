"""The SQL of agents and of recall: attacks are refused, bounds hold, columns have the names of PostgreSQL."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from momento_cases import MARA, OREN, SEED, SESSIONS, TODAY, new_id, reset

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


def test_attacks_by_sql_are_refused(world: World) -> None:
    before = {user: world.hashes(user) for user in (MARA, OREN)}
    for attack in ATTACKS:
        result = call(world, "execute_sql", {"query": attack})
        assert failed(result) and "CANARY" not in result, attack
    assert {user: world.hashes(user) for user in (MARA, OREN)} == before
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))  # nothing is left broken


PAST_THE_GATE = [attack for attack in ATTACKS if attack.split()[0] in ("DELETE", "UPDATE", "CREATE", "COPY")] + [
    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
    "SELECT * FROM sessions",
    "INSERT INTO orders SELECT * FROM orders",
    "SELECT 1 UNION ALL SELECT count(*) FROM sessions",
    "SELECT 1; DELETE FROM orders",
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
]


def test_the_database_refuses_what_gets_past_the_gate(world: World) -> None:
    for query in PAST_THE_GATE:
        with pytest.raises((PolicyViolationError, CallError)):
            world.database.guarded("reader", query, query, 10)
    count = "SELECT count(*) FROM orders"
    assert world.database.guarded("reader", count, count, 10) == (["count"], [{"count": 3}])


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


def test_a_query_that_grows_without_bound_is_refused(world: World) -> None:
    for query in HEAVY:
        result = call(world, "execute_sql", {"query": query, "max_rows": 2**31 - 1})
        assert failed(result), (query, result[:300])
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))


def test_a_result_may_not_flood_the_agent(world: World) -> None:
    result = call(world, "execute_sql", {"query": "SELECT a.*, b.* FROM menu_items a, menu_items b", "max_rows": 10_000})
    assert result.startswith(ERROR) and "select less" in result
    assert call(world, "execute_sql", {"query": """SELECT '{"a": 1e5000}'::jsonb AS x"""})  # more digits than Python prints


COLUMNS = {  # as PostgreSQL calls them, also where a bound stands around a value
    "count(*), count(*), 'x', 2 * capacity, city || 'x', string_agg(name, ',') FILTER (WHERE name = 'x'), city::text": [
        "count", "count_2", "?column?", "?column?_2", "?column?_3", "string_agg", "city",
    ],
    "max(id::text), 1.5::decimal, CASE WHEN true THEN city ELSE city || 'x' END, array['a', city], to_char(capacity, '9')": [
        "max", "numeric", "case", "array", "to_char",
    ],
}  # fmt: skip


@pytest.mark.parametrize("selected", COLUMNS)
def test_columns_without_a_name(world: World, selected: str) -> None:
    for query in (
        f"SELECT {selected} FROM restaurants GROUP BY city, capacity",
        f"SELECT {selected} FROM restaurants WHERE false GROUP BY city, capacity",
        f"SELECT * FROM (SELECT {selected} FROM restaurants GROUP BY city, capacity) q",
    ):
        assert json.loads(call(world, "execute_sql", {"query": query}))["columns"] == COLUMNS[selected]
    inner = "SELECT city FROM (SELECT city::text FROM restaurants) q WHERE city LIKE 'Lin%' LIMIT 1"
    assert json.loads(call(world, "execute_sql", {"query": inner}))["rows"] == [{"city": "Lindau"}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT string_agg FROM (SELECT string_agg(name, ',') FROM restaurants) q",
        "SELECT array_agg(name) FROM restaurants GROUP BY city ORDER BY array_agg",
        "WITH a AS (SELECT lower(city)::text FROM restaurants) SELECT lower FROM a",
        "SELECT replace, to_char FROM (SELECT replace(name, 'a', 'b'), to_char(lat, '9')::text FROM restaurants) q",
    ],
)
def test_a_column_keeps_its_name_within_a_query(world: World, query: str) -> None:
    assert json.loads(call(world, "execute_sql", {"query": query}))["rows"]


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


def test_recall_never_sees_the_sessions_of_others_nor_anything_else(world: World) -> None:
    for query in RECALLS:
        assert "CANARY" not in json.dumps(world.database.recall(query, MARA, [1.0, 0.0, 0.0]), default=str), query
    theirs = world.database.recall("SELECT summary FROM sessions", OREN, [1.0, 0.0, 0.0])
    assert [row["summary"] for row in theirs] == ["OREN-CANARY"]
    assert world.database.recall("SELECT summary FROM sessions", "x'; DROP TABLE sessions; --", [1.0, 0.0, 0.0]) == []
    for query in ("SELECT * FROM users", "SELECT * FROM session_messages", "DELETE FROM sessions", "SELECT 1; SELECT 2"):
        with pytest.raises(PolicyViolationError):
            world.database.recall(query, MARA, [1.0, 0.0, 0.0])


def test_execute_sql_shows_the_sessions_of_the_user_alone_and_only_where_they_may_be_seen(world: World) -> None:
    joined = {"query": "SELECT first_name, summary FROM sessions s JOIN users u ON u.id = s.user_id ORDER BY started_at"}
    assert failed(call(world, "execute_sql", joined)) and "sessions" not in call(world, "get_database_schema", {})
    world.reset(TODAY, SEED, SESSIONS, sessions_of=MARA)
    rows = json.loads(call(world, "execute_sql", joined))["rows"]
    assert [row["summary"] for row in rows] == ["Mara likes pasta", "Mara dines late"] and rows[0]["first_name"] == "Mara"
    assert "messages" in json.loads(call(world, "get_database_schema", {}))["tables"]["sessions"]["columns"]
    for query in [*RECALLS, *ATTACKS]:
        assert "CANARY" not in call(world, "execute_sql", {"query": query.replace(":user_id", f"'{OREN}'")}), query
    for query in PAST_THE_GATE:
        with suppress(PolicyViolationError, CallError):
            assert "CANARY" not in json.dumps(world.database.guarded("user", query, query, 10), default=str), query
    reset(world)
    assert failed(call(world, "execute_sql", joined))  # the next trial begins without them


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


def test_a_pattern_of_many_percent_signs_takes_no_time(world: World) -> None:
    assert call(world, "search_restaurants", {"name": "%o" * 40 + "%#"}) == "[]"


def test_what_is_nested_deeply_is_refused_and_breaks_nothing(world: World) -> None:
    assert failed(call(world, "execute_sql", {"query": f"SELECT {'+'.join(['1'] * 6000)}"}))
    for nested in ("(" * 4000 + "1" + ")" * 4000, "NOT " * 4000 + "true"):
        assert failed(call(world, "execute_sql", {"query": f"SELECT {nested}"}))
        with pytest.raises((PolicyViolationError, CallError)):
            world.database.recall(f"SELECT {nested}", MARA, [1.0, 0.0, 0.0])
    assert not failed(call(world, "execute_sql", {"query": "SELECT id FROM orders"}))

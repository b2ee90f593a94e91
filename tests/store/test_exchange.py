"""Statements on connections of our own: prepared on the third use, and right however the connection changes under them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from skiplock.core.errors import DatabaseUnavailableError
from skiplock.core.job import NewJob
from skiplock.produce.enqueue import enqueue_call
from skiplock.store import pool
from skiplock.store.call import Call, nothing
from skiplock.store.exchange import PREPARE_AT, Exchange
from skiplock.store.pool import AsyncDatabase, SyncDatabase, aconnect, connect

TWICE = "SELECT $1::text::integer * 2, NULL::text, 'ü'"


@pytest.fixture
def exchange(dsn: str) -> Iterator[Exchange]:
    found = Exchange(connect(dsn))
    yield found
    found.close()


def many(exchange: Exchange, sql: str = TWICE, params: tuple[str | None, ...] = ("21",)) -> list[Any]:
    return [exchange.run(sql, params) for _ in range(PREPARE_AT + 1)]


def prepared(exchange: Exchange) -> list[str]:
    connection: Any = exchange.connection
    return [row[0] for row in connection.execute("SELECT name FROM pg_prepared_statements ORDER BY name")]


def backend(exchange: Exchange) -> str:
    return str(exchange.connection.info.backend_pid)


def test_the_answer_is_the_same_prepared_or_not(exchange: Exchange) -> None:
    assert many(exchange) == [[(42, None, "ü")]] * (PREPARE_AT + 1)
    assert len(prepared(exchange)) == 1


def test_a_statement_used_seldom_is_not_prepared(exchange: Exchange) -> None:
    for _ in range(PREPARE_AT - 1):
        exchange.run(TWICE, ("1",))
    assert prepared(exchange) == []


def test_a_name_belongs_to_one_text_only(exchange: Exchange, dsn: str) -> None:
    """Behind a pooler two workers' statements meet on one connection: neither may run the other's."""
    many(exchange)
    other = Exchange(connect(dsn))
    many(other, TWICE.replace("* 2", "* 3"))
    many(other)
    assert set(prepared(exchange)) < set(prepared(other))
    assert len(prepared(other)) == 2
    other.close()


def test_a_prepared_statement_that_is_gone_is_sent_as_it_is(exchange: Exchange, dsn: str) -> None:
    call = enqueue_call([NewJob("gone", "{}")], "skiplock")
    many(exchange, call.sql, call.params)
    connection: Any = exchange.connection
    connection.execute("DEALLOCATE ALL")  # as a pooler does that lends another server connection
    assert len(many(exchange, call.sql, call.params)) == PREPARE_AT + 1
    assert prepared(exchange) == []
    with psycopg.connect(dsn) as look:
        row = look.execute("SELECT count(*) FROM skiplock.jobs_ready WHERE task = 'gone'").fetchone()
    assert row == (2 * (PREPARE_AT + 1),)


def test_a_statement_prepared_by_whoever_had_the_connection_before_is_used(exchange: Exchange) -> None:
    many(exchange)
    again = Exchange(exchange.connection)
    assert many(again) == [[(42, None, "ü")]] * (PREPARE_AT + 1)
    assert len(prepared(exchange)) == 1


def test_a_migration_that_changes_a_functions_result_goes_unnoticed(exchange: Exchange, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE FUNCTION changing() RETURNS TABLE (a integer) LANGUAGE sql AS 'SELECT 1'")
        sql = "SELECT * FROM changing()"
        assert many(exchange, sql, ())[-1] == [(1,)]
        other.execute("DROP FUNCTION changing()")
        other.execute("CREATE FUNCTION changing() RETURNS TABLE (a integer, b text) LANGUAGE sql AS $$SELECT 1, 'b'$$")
        assert many(exchange, sql, ())[-1] == [(1, "b")]


def test_a_statements_own_error_leaves_the_connection_sound(exchange: Exchange) -> None:
    for _ in range(PREPARE_AT + 2):
        with pytest.raises(errors.DivisionByZero):
            exchange.run("SELECT 1 / $1::text::integer", ("0",))
        assert not exchange.in_doubt
    assert exchange.run(TWICE, ("4",))[0][0] == 8


def test_a_parameter_larger_than_any_buffer_arrives_whole(exchange: Exchange) -> None:
    text = "é" * 12_000_000
    for rows in many(exchange, "SELECT length($1::text), $1::text", (text,)):
        assert rows == [(12_000_000, text)]


def test_a_connection_cut_by_the_server_is_in_doubt(exchange: Exchange, dsn: str) -> None:
    many(exchange)
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [int(backend(exchange))])
    with pytest.raises(errors.OperationalError):
        exchange.run(TWICE, ("1",))
    assert exchange.in_doubt


async def test_it_works_the_same_from_a_coroutine(dsn: str) -> None:
    exchange = Exchange(await aconnect(dsn))
    for _ in range(PREPARE_AT + 1):
        assert await exchange.arun(TWICE, ("21",)) == [(42, None, "ü")]
    text = "x" * 8_000_000
    assert await exchange.arun("SELECT $1::text", (text,)) == [(text,)]
    with pytest.raises(errors.DivisionByZero):
        await exchange.arun("SELECT 1 / $1::text::integer", ("0",))
    assert not exchange.in_doubt
    waiting = asyncio.create_task(exchange.arun("SELECT pg_sleep($1::text::float8)", ("30",)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert exchange.in_doubt
    await exchange.aclose()


# --- the pools that use it --------------------------------------------------------------------------------------------


def number(n: int) -> Call[int]:
    return Call("SELECT $1::text::integer, pg_sleep(0.01)", (str(n),), lambda rows: int(rows[0][0]))


def whose() -> Call[int]:
    return Call("SELECT pg_backend_pid()", (), lambda rows: int(rows[0][0]))


def test_calls_one_after_the_other_keep_their_connection(dsn: str) -> None:
    database = SyncDatabase(dsn, max_size=5)
    assert len({database.run(whose()) for _ in range(20)}) == 1
    database.close()


async def test_a_pool_of_one_serves_many_at_once(dsn: str) -> None:
    database = AsyncDatabase(dsn, max_size=1)
    for _ in range(3):
        assert await asyncio.gather(*[database.run(number(n)) for n in range(20)]) == list(range(20))
        async with database.connection() as lent:
            assert (await (await lent.execute("SELECT 1")).fetchone()) == (1,)
    await database.close()


async def test_a_cancelled_call_never_gives_its_answer_to_the_next(dsn: str) -> None:
    database = AsyncDatabase(dsn, max_size=1)
    await database.run(number(1))
    slow: Call[str] = Call("SELECT 'late', pg_sleep(30)", (), lambda rows: str(rows[0][0]))
    calling = asyncio.create_task(database.run(slow))
    async with asyncio.timeout(20):
        while not await _is_running(dsn, "'late'"):
            await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert await database.run(number(7)) == 7
    await database.close()


async def _is_running(dsn: str, text: str) -> bool:
    connection = await aconnect(dsn)
    found = await connection.execute(
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND state = 'active' AND pid <> pg_backend_pid()",
        [text],
    )
    rows = await found.fetchall()
    await connection.close()
    return bool(rows)


def test_a_kept_connection_that_was_cut_meanwhile_is_replaced(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = SyncDatabase(dsn, max_size=1)
    cut = database.run(whose())
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [cut])
    monkeypatch.setattr(pool, "FRESH", 0.0)  # as if it had lain unused for long
    assert database.run(whose()) != cut
    database.close()


def test_a_kept_connection_that_was_cut_a_moment_ago_is_replaced(dsn: str) -> None:
    """Nothing was sent on it, so nobody need be told."""
    database = SyncDatabase(dsn, max_size=1)
    for _ in range(3):
        cut = database.run(whose())
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [cut])
        assert database.run(whose()) != cut
    database.close()


def test_one_that_is_cut_while_in_use_says_so_and_the_next_call_works(dsn: str) -> None:
    database = SyncDatabase(dsn, max_size=1)
    cut = database.run(whose())
    suicide: Call[None] = Call("SELECT pg_terminate_backend(pg_backend_pid())", (), nothing)
    with pytest.raises(DatabaseUnavailableError, match="may or may not"):
        database.run(suicide)
    assert database.run(whose()) != cut
    database.close()


def test_an_idle_connection_knows_whether_it_was_cut(exchange: Exchange, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        assert not exchange.is_cut()
        exchange.run("LISTEN news", ())
        other.execute("NOTIFY news")  # something to read is not the end
        assert not exchange.is_cut()
        assert exchange.run(TWICE, ("4",))[0][0] == 8
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [int(backend(exchange))])
    assert exchange.is_cut()


def test_a_connection_goes_back_to_its_pool_now_and_then(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool renews connections by age, which it can do only when it sees them."""
    monkeypatch.setattr(pool, "KEPT_FOR", 0.0)
    database = SyncDatabase(dsn, max_size=1)
    database._pool.max_lifetime = 0.05
    first = database.run(whose())
    deadline = time.monotonic() + 20
    while database.run(whose()) == first:
        assert time.monotonic() < deadline
    database.close()

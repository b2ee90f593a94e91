"""Sessions whose defaults are not PostgreSQL's: every statement of ours works in READ COMMITTED and reads what it wrote.

Kinds: default isolation of a role or database (DB-56, DB-57, DB-59; case 15), settings that change how answers are
written (dates, floats), and that a session with the usual ones pays nothing.

To see them fail: let `_find_out` (store/exchange.py) answer True always.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import errors

from skiplock.core.errors import DatabaseUnavailableError
from skiplock.core.job import NewJob
from skiplock.core.outcome import Outcome, Verdict
from skiplock.produce.enqueue import enqueue_call
from skiplock.store import exchange as exchange_module
from skiplock.store.again import PAUSES
from skiplock.store.call import Call, Row
from skiplock.store.exchange import Exchange
from skiplock.store.link import Link
from skiplock.store.pool import AsyncDatabase, SyncDatabase, aconnect, connect
from skiplock.work.beat import register_call
from skiplock.work.claim import Claimer
from skiplock.work.settle import _SETTLE, settle_call
from tests.support.defaults import change_defaults
from tests.support.tour import tour
from tests.support.verbs import open_verbs

LEVEL = "SELECT current_setting('transaction_isolation')"
TAUGHT = "SELECT setting FROM pg_settings WHERE name = 'transaction_isolation'"
isolations = pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
both_ways = pytest.mark.parametrize("pipelines", [True, False], ids=["one round trip", "an old libpq"])


@pytest.fixture
def strict_dsn(fresh_dsn: str) -> str:
    change_defaults(fresh_dsn, default_transaction_isolation="serializable")
    return fresh_dsn


@pytest.fixture
def strict(strict_dsn: str, pipelines: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    monkeypatch.setattr(exchange_module.Pipeline, "is_supported", lambda: pipelines)
    found = Exchange(connect(strict_dsn))
    yield found
    found.close()


# --- one statement ----------------------------------------------------------------------------------------------------


@isolations
def test_a_statement_of_ours_is_read_committed_whatever_the_default(fresh_dsn: str, isolation: str) -> None:
    change_defaults(fresh_dsn, default_transaction_isolation=isolation)
    connection = connect(fresh_dsn)
    assert connection.execute(LEVEL.encode()).fetchone() == (isolation,), "else this tests nothing"
    assert Exchange(connection).run(LEVEL, ()) == [("read committed",)]
    connection.close()


@both_ways
def test_the_answer_is_the_same(strict: Exchange) -> None:
    text = "é" * 5_000_000
    for _ in range(5):
        assert strict.run("SELECT $1::text::integer * 2, NULL::text, 'ü'", ("21",)) == [(42, None, "ü")]
        assert not strict.in_doubt
    assert strict.run("SELECT $1::text", (text,)) == [(text,)]
    assert strict.run("SELECT 1 WHERE false", ()) == []


@both_ways
def test_an_error_is_rolled_back_and_leaves_the_connection_sound(strict: Exchange, strict_dsn: str) -> None:
    strict.run("CREATE TABLE t (n integer PRIMARY KEY)", ())
    for _ in range(3):
        with pytest.raises(errors.DivisionByZero):
            strict.run("INSERT INTO t SELECT 1 / $1::text::integer", ("0",))
        assert not strict.in_doubt
    with pytest.raises(errors.UndefinedTable):
        strict.run("SELECT * FROM nowhere", ())
    assert strict.run("INSERT INTO t VALUES (7) RETURNING n", ()) == [(7,)]
    with psycopg.connect(strict_dsn) as look:
        assert look.execute("SELECT n FROM t").fetchall() == [(7,)]


@both_ways
def test_an_error_of_the_commit_is_the_statements(strict: Exchange) -> None:
    strict.run("CREATE TABLE t (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)", ())
    with pytest.raises(errors.UniqueViolation):
        strict.run("INSERT INTO t VALUES (1), (1)", ())
    assert not strict.in_doubt
    assert strict.run("SELECT count(*) FROM t", ()) == [(0,)]


@both_ways
def test_a_connection_cut_in_the_middle_is_in_doubt(strict: Exchange) -> None:
    strict.run("SELECT 1", ())
    with pytest.raises(errors.OperationalError):
        strict.run("SELECT pg_terminate_backend(pg_backend_pid())", ())
    assert strict.in_doubt


async def test_a_cancelled_coroutine_leaves_it_in_doubt(strict_dsn: str) -> None:
    exchange = Exchange(await aconnect(strict_dsn))
    assert await exchange.arun(LEVEL, ()) == [("read committed",)]
    waiting = asyncio.create_task(exchange.arun("SELECT pg_sleep(30)", ()))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert exchange.in_doubt
    await exchange.aclose()


def test_an_answer_that_does_not_come_in_time_is_given_up(strict_dsn: str) -> None:
    exchange = Exchange(connect(strict_dsn))
    with pytest.raises(errors.OperationalError, match="no answer in time"):
        exchange.run("SELECT pg_sleep(30)", (), 0.3)
    assert exchange.in_doubt
    exchange.close()


ODD = {
    "DateStyle": ("German", "ISO, DMY"), "extra_float_digits": ("-15", "1"), "array_nulls": ("off", "on"),
    "jit_above_cost": ("0", "off"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_a_setting_that_our_statements_rely_on(fresh_dsn: str, name: str) -> None:
    """Whatever the session has; read by a connection of either kind."""
    odd, good = ODD[name]
    change_defaults(fresh_dsn, **{name: odd})
    shown = "jit" if name == "jit_above_cost" else name
    sql = "SELECT current_setting($1), 1 / 3.0::float8, '{NULL}'::text[], '2026-12-02 16:45:06.5+05:30'::timestamptz"
    sync, not_sync = Exchange(connect(fresh_dsn)), Exchange(await aconnect(fresh_dsn))
    for answer in (sync.run(sql, (shown,)), await not_sync.arun(sql, (shown,))):
        [(value, third, nulls, moment)] = answer
        assert (value, third, nulls) == (good, 1 / 3, [None])
        assert moment == datetime(2026, 12, 2, 11, 15, 6, 500_000, tzinfo=UTC)
    sync.close()
    await not_sync.aclose()


# --- who pays ---------------------------------------------------------------------------------------------------------


class _Counted:
    """Statements that are sent, by what they begin with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        find_out = Exchange._find_out

        def counted(self_: Exchange) -> Any:
            self.asked.append(self_.connection)
            return find_out(self_)

        monkeypatch.setattr(Exchange, "_find_out", counted)


def test_a_usual_session_asks_once_and_begins_no_transaction(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _Counted(monkeypatch)
    monkeypatch.setattr(Exchange, "_in_transaction", None)
    database = SyncDatabase(dsn, max_size=1)
    for _ in range(5):
        assert database.run(Call(LEVEL, (), list)) == [("read committed",)]
    with database.connection():
        pass
    database._kept.empty()
    assert len(counted.asked) == 1
    database.close()


def test_what_a_pools_connection_is_like_is_remembered(strict_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiplock.store.pool.KEPT_FOR", 0.0)  # so that it goes back and forth
    counted = _Counted(monkeypatch)
    database = SyncDatabase(strict_dsn, max_size=1)
    for _ in range(5):
        assert database.run(Call(LEVEL, (), list)) == [("read committed",)]
    assert len(counted.asked) == 1
    database.close()


def test_a_serialization_failure_makes_it_ask_again(fresh_dsn: str) -> None:
    """A pooler may lend another session than the one that was asked."""
    exchange = Exchange(connect(fresh_dsn))
    assert exchange.run(TAUGHT, ()) == [("read committed",)]
    exchange.run("SET default_transaction_isolation = 'serializable'", ())
    assert exchange.run(TAUGHT, ()) == [("serializable",)]
    with pytest.raises(errors.SerializationFailure):
        exchange.run("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$", ())
    assert exchange.run(TAUGHT, ()) == [("read committed",)]
    exchange.close()


# --- the verbs --------------------------------------------------------------------------------------------------------


@isolations
def test_many_workers_at_once_meet_no_serialization_failure(fresh_dsn: str, isolation: str) -> None:
    """Claims, settles, enqueues and desk acts on the same rows, by eight clients: each job once, no error at all."""
    change_defaults(fresh_dsn, default_transaction_isolation=isolation)
    start, ran, lock = threading.Barrier(8, timeout=60), Counter[int](), threading.Lock()

    async def one(n: int) -> None:
        link, schema = Link(fresh_dsn, f"test {n}"), "skiplock"
        worker = await link.run(register_call(f"w{n}", "h", n, {"default": 1}, "0", 60.0, schema))
        claimer = Claimer(link, schema, ["t"])
        await asyncio.to_thread(start.wait)
        for _ in range(5):
            await link.run(enqueue_call([NewJob("t", "{}")] * 20, schema))
            jobs, _whole = await claimer.claim(worker, {"default": 25})
            with lock:
                ran.update(job.id for job in jobs)
            outcomes = [Outcome(job.id, job.lease, Verdict.COMPLETED, 0.1) for job in jobs]
            assert await link.run(settle_call(outcomes, _SETTLE)) == []
            await link.run(Call("SELECT skiplock.arm('{default}'), skiplock.disarm('{default}')", (), list))
            await link.run(Call("SELECT skiplock.pause('other'), skiplock.resume('other')", (), list))
        await link.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: asyncio.run(one(n)), range(8)))
    with open_verbs(fresh_dsn) as db:
        assert db.count("jobs_running") == 0
        assert db.count("jobs_ready") + len(ran) == 800
    assert set(ran.values()) == {1}


@isolations
async def test_the_whole_tour(fresh_dsn: str, isolation: str) -> None:
    change_defaults(fresh_dsn, default_transaction_isolation=isolation)
    worker = await tour(fresh_dsn)
    for event in ("claim_failed", "settle_failed", "beat_failed"):
        assert not worker.heard(event)


# --- a role that may only read ----------------------------------------------------------------------------------------


def test_a_role_that_may_only_read_is_told_so_at_once(fresh_dsn: str) -> None:
    """Not overridden: it is how writes are stopped before a switch-over."""
    change_defaults(fresh_dsn, default_transaction_read_only="on")
    database = SyncDatabase(fresh_dsn, max_size=2)
    with pytest.raises(DatabaseUnavailableError, match=r"takes no writes .* nothing was done: cannot execute"):
        database.run(enqueue_call([NewJob("t", "{}")], "skiplock"))
    database.close()


async def test_connections_to_a_server_turned_read_only_are_left(fresh_dsn: str) -> None:
    """DB-35: the pool of producers and handlers, too, gets away from the server that was demoted under it.

    To see it fail: let `_was_used_before` (store/pool.py) answer False.
    """
    many = len(PAUSES) + 3  # more than there are tries
    database, sync = AsyncDatabase(fresh_dsn, max_size=many), SyncDatabase(fresh_dsn, max_size=many)
    turn: Call[int] = Call(
        "SELECT pg_backend_pid(), set_config('default_transaction_read_only', 'on', false), pg_sleep(0.1)", (), _first
    )
    who: Call[int] = Call("SELECT pg_backend_pid(), pg_sleep(0.1)", (), _first)
    before = await _by_all(database, sync, turn, many)
    assert len(before) == 2 * many
    write = enqueue_call([NewJob("t", "{}")], "skiplock")
    assert len(await database.run(write)) == len(await asyncio.to_thread(sync.run, write)) == 1
    assert not before & await _by_all(database, sync, who, many)
    await database.close()
    sync.close()


async def _by_all(database: AsyncDatabase, sync: SyncDatabase, call: Call[int], many: int) -> set[int]:
    """The call on so many connections of each pool at once."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(many) as threads:
        by_threads = [loop.run_in_executor(threads, sync.run, call) for _ in range(many)]
        return set(await asyncio.gather(*by_threads, *[database.run(call) for _ in range(many)]))


def _first(rows: Sequence[Row]) -> int:
    return int(rows[0][0])

"""Settings of a role in a database, such as administrators and other applications make: a producer and a worker do the same.

Kinds: timeouts of statements, locks, sessions and transactions (DB-52, UPG-06), search_path (DB-19), forms of dates, floats,
arrays and texts, another client_encoding, planner and JIT switches. Each in a real worker, once around (tests/support/tour.py).

To see them fail: let `_find_out` (store/exchange.py) answer True always (dates, arrays); take client_encoding out of
`conninfo` (store/pool.py); write the backslashes in sql/produce/enqueue.sql without E'…' (standard_conforming_strings); undo
what a test's docstring names.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from skiplock import Skiplock
from skiplock.core.errors import OptionError
from skiplock.core.job import NewJob
from skiplock.produce.enqueue import enqueue_call
from skiplock.store.migrate import migrate, verify
from skiplock.store.pool import SyncDatabase
from tests.support.databases import connect
from tests.support.defaults import change_defaults
from tests.support.tour import tour
from tests.support.verbs import open_verbs
from tests.support.workers import running_worker, settled

SETTINGS: dict[str, dict[str, str]] = {
    "short timeouts": {
        "statement_timeout": "1s", "lock_timeout": "500ms", "idle_in_transaction_session_timeout": "1s",
    },
    "idle sessions are cut": {"idle_session_timeout": "700ms"},
    "no search_path": {"search_path": "''"},
    "a search_path to nowhere": {"search_path": "nowhere, pg_temp"},
    "functions of another's": {"search_path": "odd, pg_catalog"},
    "German dates, far away": {"DateStyle": "German", "TimeZone": "Asia/Kathmandu", "IntervalStyle": "iso_8601"},
    "SQL dates, ambiguous zone": {"DateStyle": "SQL, DMY", "TimeZone": "Asia/Kolkata"},
    "Postgres dates, odd offset": {"DateStyle": "Postgres", "TimeZone": "<+05:20>-05:20"},
    "few digits, other texts": {
        "extra_float_digits": "-15", "bytea_output": "escape", "xmlbinary": "hex", "quote_all_identifiers": "on",
    },
    "NULL is a word": {"array_nulls": "off", "transform_null_equals": "on"},
    "Latin-1": {"client_encoding": "LATIN1"},
    "everything is compiled": {
        "jit": "on", "jit_above_cost": "0", "jit_inline_above_cost": "0", "jit_optimize_above_cost": "0",
    },
    "planner switches": {
        "plan_cache_mode": "force_custom_plan", "enable_indexscan": "off", "enable_nestloop": "off",
        "enable_hashjoin": "off", "enable_tidscan": "off", "enable_indexonlyscan": "off",
    },
    "generic plans, parallel": {
        "plan_cache_mode": "force_generic_plan", "parallel_setup_cost": "0", "parallel_tuple_cost": "0",
        "min_parallel_table_scan_size": "0", "max_parallel_workers_per_gather": "4",
    },
    "deferrable": {"default_transaction_deferrable": "on", "default_transaction_isolation": "serializable"},
}  # fmt: skip
TAKEN = ("now()", "clock_timestamp()")


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_producer_and_a_worker_do_the_same(fresh_dsn: str, name: str) -> None:
    with connect(fresh_dsn) as connection:
        connection.execute("CREATE SCHEMA odd")
        for signature in TAKEN:
            connection.execute(f"CREATE FUNCTION odd.{signature} RETURNS text LANGUAGE sql AS 'SELECT 1 / 0 || $$$$'")
    change_defaults(fresh_dsn, **SETTINGS[name])
    worker = await tour(fresh_dsn)
    for event in ("claim_failed", "settle_failed", "beat_failed", "worker_lost"):
        assert not worker.heard(event), worker.heard(event)


async def test_backslashes_are_what_they_are(fresh_dsn: str) -> None:
    """standard_conforming_strings is off: refused and accepted as ever, from psql too."""
    change_defaults(fresh_dsn, standard_conforming_strings="off", escape_string_warning="off", backslash_quote="on")
    await tour(fresh_dsn)
    with open_verbs(fresh_dsn) as db:
        job = db.enqueue(args='{"path": "C:\\\\u0000"}')
        assert db.value("SELECT args ->> 'path' FROM skiplock.jobs WHERE id = %s", job) == "C:\\u0000"
    database = SyncDatabase(fresh_dsn)
    with pytest.raises(OptionError, match="NUL character"):
        database.run(enqueue_call([NewJob("t", '{"path": "\\u0000"}')], "skiplock"))
    database.close()


@pytest.mark.parametrize("name", ["German dates, far away", "SQL dates, ambiguous zone", "Postgres dates, odd offset"])
def test_days_are_those_of_utc_whatever_dates_look_like(empty_dsn: str, name: str) -> None:
    """The bounds of the partitions are texts that PostgreSQL writes and reads again: IST is a zone in Israel, too.

    To see it fail: take `SET datestyle` from make_days (sql/upkeep/days.sql).
    """
    change_defaults(empty_dsn, **SETTINGS[name], default_transaction_isolation="serializable", statement_timeout="10s")
    migrate(empty_dsn)
    assert verify(empty_dsn) == []
    with connect(empty_dsn) as look:
        look.execute("SET TimeZone = 'UTC'")
        look.execute("SET DateStyle = 'ISO'")
        sql = """SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_class c
            WHERE c.relname LIKE 'jobs_finished_2%' AND c.relnamespace = 'skiplock'::regnamespace ORDER BY c.relname LIMIT 1"""
        today = datetime.now(UTC).date()
        [(bounds,)] = look.execute(sql).fetchall()
    assert f"FROM ('{today} 00:00:00+00')" in bounds


async def test_the_ear_is_not_idle(fresh_dsn: str) -> None:
    """A server that cuts idle sessions cuts the one that only listens, too, unless it says something now and then.

    To see it fail: take `touch` out of work/listen.py.
    """
    change_defaults(fresh_dsn, idle_session_timeout="2s")
    app = Skiplock(fresh_dsn)

    @app.task(name="t")
    async def work() -> None: ...

    async with app, running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
        await worker.until(lambda: worker.worker._ear.works)
        began = time.monotonic()
        while time.monotonic() - began < 3.0:  # half as long again as the server allows
            await worker.until(lambda: worker.worker._sleeper.asleep)
            await settled(await work.aenqueue(), limit=10)
        assert not worker.heard("listen_failed")


async def test_the_others_may_be_cut_while_idle(fresh_dsn: str) -> None:
    """Claims, settles, beats and enqueues after a pause longer than the server allows: nobody fails, nobody is told.

    To see it fail: take `is_cut` out of store/link.py, work/beat.py or store/pool.py.
    """
    change_defaults(fresh_dsn, idle_session_timeout="300ms")
    app = Skiplock(fresh_dsn)

    @app.task(name="t")
    async def work() -> None: ...

    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^skiplock' AND datname = current_database()"
    )
    async with app, running_worker(app, beat_every=1.0, lost_after=300.0, poll_every=100.0) as worker:
        with open_verbs(fresh_dsn) as db:
            db.rows("SET idle_session_timeout = 0")
            for _ in range(2):
                await settled(await work.aenqueue())
                await worker.until(lambda: db.value(sessions) <= 1, limit=20)
            await settled(await work.aenqueue())
        for event in ("claim_failed", "settle_failed", "beat_failed"):
            assert not worker.heard(event), worker.heard(event)

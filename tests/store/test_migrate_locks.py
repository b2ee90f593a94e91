"""A migration among others: migrators, long transactions, workers, timeouts of the role, a kill in the middle.

Kinds: migrate under load (case 24, UPG-15), concurrent migrators, role-level timeouts (UPG-06), default isolation (case 15).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from skiplock import MigrationBlockedError
from skiplock.store import migrate as module
from skiplock.store.lockwait import Blocker, lock_name
from skiplock.store.migrate import migrate, status, verify
from skiplock.store.schema import SqlFile, migrations
from tests.support import connect, eventually
from tests.support.catalog import contents, run
from tests.support.embedded import start
from tests.support.fleets import ROOT

# Needs every stage to itself for a moment, as a change of the jobs' columns does.
STEP = "ALTER TABLE skiplock.jobs ALTER COLUMN losses SET DEFAULT 0;"


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> str:
    """A migration that is still to come."""
    return add_step(monkeypatch, STEP)


def add_step(monkeypatch: pytest.MonkeyPatch, sql: str) -> str:
    coming = SqlFile("9000_coming", sql)
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), coming))
    return coming.name


@contextmanager
def open_transaction(dsn: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's, who has left his desk."""
    with psycopg.connect(dsn, application_name="somebody's psql") as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


# --- locks ------------------------------------------------------------------------------------------------------------


def test_a_long_transaction_does_not_make_all_others_wait(fresh_dsn: str, step: str) -> None:
    """It has only read a job, and everybody can work on while the migration tries; which gives up and says who it was.

    To see it fail: set TRY in store/lockwait.py to 5.
    """
    before, slowest, told = contents(fresh_dsn), [0.0], []
    done = threading.Event()

    def works() -> None:
        with connect(fresh_dsn) as connection:
            while not done.is_set():
                began = time.monotonic()
                connection.execute("SELECT skiplock.enqueue('t')")
                connection.execute("SELECT * FROM skiplock.claim(1, 1, '{default}', '{1}', '{t}')")
                slowest[0] = max(slowest[0], time.monotonic() - began)

    worker = threading.Thread(target=works)
    with open_transaction(fresh_dsn, "SELECT count(*) FROM skiplock.jobs") as holder:
        worker.start()
        pid = holder.info.backend_pid
        began = time.monotonic()
        with pytest.raises(MigrationBlockedError) as caught:
            migrate(fresh_dsn, wait=2.0, tell=told.append)
        took = time.monotonic() - began
        done.set()
        worker.join()
    assert 2.0 <= took < 6.0
    assert slowest[0] < 1.5
    for text in (told[0], str(caught.value)):
        assert f'pid {pid} "somebody\'s psql", idle in transaction' in text
        assert "its transaction" in text and "s ago" in text
    assert "gave up after 2 s" in str(caught.value) and "nothing was changed" in str(caught.value)
    assert len(told) == 1, "not again while nothing changes"
    assert contents(fresh_dsn) == before and status(fresh_dsn).pending == (step,)


def test_it_goes_on_when_the_way_is_free(fresh_dsn: str, step: str) -> None:
    told: list[str] = []
    with open_transaction(fresh_dsn, "SELECT count(*) FROM skiplock.jobs") as holder, ThreadPoolExecutor(1) as thread:
        migration = thread.submit(migrate, fresh_dsn, tell=told.append)
        eventually(lambda: told)
        holder.rollback()
        assert migration.result(30) == [step, "functions"]
    assert verify(fresh_dsn) == []


def test_nobody_is_told_of_a_deadlock(fresh_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's transaction needs two tables one after the other, and so does the migration, in the other order.

    To see it fail: set TRY in store/lockwait.py to 5 (longer than the server's deadlock_timeout).
    """
    change = "ALTER TABLE skiplock.{} ALTER COLUMN job_id SET DEFAULT 0;"
    step = add_step(monkeypatch, change.format("attempts") + change.format("steps"))
    waits = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'skiplock.steps'::regclass"
    with open_transaction(fresh_dsn, "SELECT count(*) FROM skiplock.steps") as holder, ThreadPoolExecutor(1) as thread:
        migration = thread.submit(migrate, fresh_dsn)
        with connect(fresh_dsn) as watcher:
            eventually(lambda: watcher.execute(waits).fetchall(), pause=0.001)
        holder.execute("SELECT count(*) FROM skiplock.attempts")
        holder.commit()
        assert migration.result(30) == [step, "functions"]
    database = urlsplit(fresh_dsn).path[1:]
    assert run(fresh_dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = %s", database) == [(0,)]


def test_autovacuum_and_forgotten_prepared_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autovacuum yields, but only to those who wait for longer than a try; a prepared transaction has no session to show.

    On a server of its own, for its settings (some seconds). To see it fail: let `Patience` never raise its lock_timeout.
    """
    add_step(monkeypatch, STEP)
    settings = {
        "autovacuum_naptime": "1s",
        "autovacuum_vacuum_cost_delay": "100ms",
        "autovacuum_vacuum_cost_limit": "1",
    }
    with start(max_prepared_transactions="2", fsync="off", **settings) as server:
        dsn, told = server.dsn(), list[str]()
        monkeypatch.undo()
        migrate(dsn)
        step = add_step(monkeypatch, STEP)
        columns = "id, enqueued_at, max_attempts, state, queue, task, args"
        run(
            dsn,
            "ALTER TABLE skiplock.jobs_dead SET (autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0)",
        )
        run(
            dsn,
            f"INSERT INTO skiplock.jobs_dead ({columns}) SELECT n, now(), 1, 'dead', 'q', repeat('t', 200), '{{}}' "
            "FROM generate_series(1, 20000) n",
        )
        run(dsn, "DELETE FROM skiplock.jobs_dead")
        vacuums = "SELECT pid FROM pg_stat_progress_vacuum WHERE relid = 'skiplock.jobs_dead'::regclass"
        eventually(lambda: run(dsn, vacuums))
        run(dsn, "BEGIN; SELECT count(*) FROM skiplock.jobs_finished; PREPARE TRANSACTION 'forgotten'")
        with pytest.raises(MigrationBlockedError, match="a prepared transaction"):
            migrate(dsn, wait=0)
        run(dsn, "ROLLBACK PREPARED 'forgotten'")
        eventually(lambda: run(dsn, vacuums))
        assert migrate(dsn, wait=20, tell=told.append) == [step, "functions"]
        assert "autovacuum worker" in told[0]


def test_how_a_blocker_is_described() -> None:
    assert str(Blocker(None, "", "", None, None, None, False, 1.0)).startswith("a prepared transaction")
    hidden = Blocker(7, "app", "client backend", None, None, None, False, 1.0)
    assert str(hidden) == "pid 7 'app'", "all that a role without pg_read_all_stats is told"
    busy = Blocker(7, "app", "client backend", "active", 65.4, 2.0, True, 1.0)
    assert str(busy) == "another migration, pid 7 'app', active, its query began 2 s ago, its transaction 65 s ago"


# --- migrators --------------------------------------------------------------------------------------------------------

MIGRATE = "import sys; from skiplock.store.migrate import migrate; print(migrate(sys.argv[1]))"


def start_migrator(dsn: str, program: str = MIGRATE, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", program, dsn, *more], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_of_ten_processes_one_migrates(empty_dsn: str) -> None:
    """To see it fail: take the advisory lock out of `_migrate`."""
    processes = [start_migrator(empty_dsn) for _ in range(10)]
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 10
    assert sorted(said) == sorted([str([*(m.name for m in migrations()), "functions"]), *["[]"] * 9])
    assert verify(empty_dsn) == []


def test_one_that_is_late_sees_what_another_has_done(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the default is to look at the time when the transaction began.

    To see it fail: take the isolation level out of `_transaction`.
    """
    database = urlsplit(empty_dsn).path[1:]
    run(empty_dsn, f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")

    def while_another_migrates(schema: str) -> str:
        monkeypatch.setattr(module, "lock_name", lock_name)
        assert migrate(empty_dsn)[-1] == "functions"
        return lock_name(schema)

    monkeypatch.setattr(module, "lock_name", while_another_migrates)
    assert migrate(empty_dsn) == []


SLOW = """
import sys
from skiplock.store import migrate as module
from skiplock.store.schema import SqlFile, migrations
module.migrations = lambda: (*migrations(), SqlFile("9000_coming", "CREATE TABLE skiplock.half (); SELECT pg_sleep(600)"))
module.migrate(sys.argv[1])
"""


def test_a_migrator_killed_in_the_middle(empty_dsn: str) -> None:
    """Its statement ends soon, not after its ten minutes; meanwhile another one says who is at work; then all is made anew.

    To see it fail: take client_connection_check_interval out of `_transaction`.
    """
    killed = start_migrator(empty_dsn, SLOW)
    sleeping = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    [(backend,)] = eventually(lambda: run(empty_dsn, sleeping))
    with pytest.raises(MigrationBlockedError, match=f"another migration, pid {backend} 'skiplock db'"):
        migrate(empty_dsn, wait=0)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert migrate(empty_dsn)[-1] == "functions"
    assert verify(empty_dsn) == []
    assert run(empty_dsn, "SELECT to_regclass('skiplock.half')") == [(None,)]


def test_the_connection_is_cut_in_the_middle(empty_dsn: str) -> None:
    cut = start_migrator(empty_dsn, SLOW)
    sleeping = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    eventually(lambda: run(empty_dsn, sleeping))
    cut.communicate()
    assert cut.returncode != 0
    assert run(empty_dsn, "SELECT to_regnamespace('skiplock')") == [(None,)]
    assert migrate(empty_dsn)[-1] == "functions"


# --- what the role says -----------------------------------------------------------------------------------------------


def test_limits_of_the_role_do_not_end_it_half_way(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """In long statements, and while the migrator thinks. To see it fail: take one of the names out of _SETTINGS, or
    `read_only` out of `_transaction`."""
    add_step(monkeypatch, "SELECT pg_sleep(0.6)")
    record = module._record
    monkeypatch.setattr(module, "_record", lambda *given: (time.sleep(0.3), record(*given)))
    database = urlsplit(empty_dsn).path[1:]
    role = f"hurried_{database}"
    limits = {
        "statement_timeout": "'200ms'",
        "lock_timeout": "'1ms'",
        "idle_in_transaction_session_timeout": "'200ms'",
        "default_transaction_isolation": "'serializable'",
        "default_transaction_read_only": "on",
        "search_path": "public, pg_catalog",
    }
    [(version,)] = run(server, "SELECT current_setting('server_version_num')::integer")
    if version >= 170000:
        limits["transaction_timeout"] = "'300ms'"
    run(empty_dsn, f"CREATE ROLE {role} LOGIN")
    try:
        for name, value in limits.items():
            run(empty_dsn, f"ALTER ROLE {role} SET {name} = {value}")
        run(empty_dsn, f"GRANT CREATE ON DATABASE {database} TO {role}; CREATE DOMAIN public.timestamptz AS date")
        dsn = empty_dsn.replace("//postgres@", f"//{role}@")
        assert migrate(dsn)[-2:] == ["9000_coming", "functions"]
        assert verify(dsn) == []
        run(
            empty_dsn, "DROP DOMAIN public.timestamptz"
        )  # which would fail if one of our columns or parameters were of it
    finally:
        run(empty_dsn, f"DROP OWNED BY {role}")
        run(empty_dsn, f"DROP ROLE {role}")

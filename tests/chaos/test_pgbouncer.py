"""PgBouncer in transaction mode, with its own defaults: everything works through it, and what cannot is found out and said.

Kinds: startup parameters refused (DB-03), prepared statements of other clients and lost ones (DB-04), LISTEN that hears
nothing and a wake-up that does not come (DB-05, DB-06, DB-30, DB-37; case 13), control state kept in tables (DB-39), idle
clients that are cut (DB-49), default isolation without a session SET (DB-57), a pooler that is killed, a pool that is exhausted
(DB-50, DB-51). Each statement goes to another server connection than the one before (server_round_robin), unless said.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from skiplock import JobContext, Skiplock
from skiplock.core.settings import LISTEN_VARIABLE
from skiplock.store.call import Call
from skiplock.store.exchange import PREPARE_AT, Exchange
from skiplock.store.migrate import migrate, status
from skiplock.store.pool import SyncDatabase, connect
from skiplock.work import listen
from skiplock.work.listen import DeafError
from tests.cli.conftest import run_process
from tests.support.defaults import change_defaults
from tests.support.fleets import add, fleet, states
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.tour import tour
from tests.support.verbs import open_verbs
from tests.support.waiting import eventually
from tests.support.workers import running_worker, settled, until

WHO: Call[int] = Call("SELECT pg_backend_pid()", (), lambda rows: int(rows[0][0]))


@pytest.fixture
def pooler(fresh_dsn: str) -> Iterator[PgBouncer]:
    with pgbouncer(fresh_dsn) as running:
        yield running


# --- everything works -----------------------------------------------------------------------------------------------------


async def test_the_whole_tour(pooler: PgBouncer) -> None:
    """Enqueue in all ways, claim, run, settle, retry, snooze, promote, cancel, pause, transactions, steps, desk."""
    worker = await tour(pooler.dsn)
    for event in ("claim_failed", "settle_failed", "beat_failed", "worker_lost"):
        assert not worker.heard(event), worker.heard(event)
    servers = {row["remote_pid"] for row in pooler.ask("SHOW SERVERS")}
    assert len(servers) > 1, "else nobody ever met another connection"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_whole_tour_where_another_isolation_is_the_default(fresh_dsn: str, isolation: str) -> None:
    """To see it fail: let `_find_out` (store/exchange.py) answer True always."""
    change_defaults(fresh_dsn, default_transaction_isolation=isolation, DateStyle="German")
    with pgbouncer(fresh_dsn) as pooler:
        database = SyncDatabase(pooler.dsn)
        level: Call[str] = Call("SELECT current_setting('transaction_isolation')", (), lambda rows: str(rows[0][0]))
        assert database.run(level) == "read committed"
        database.close()
        worker = await tour(pooler.dsn)
    for event in ("claim_failed", "settle_failed", "beat_failed"):
        assert not worker.heard(event), worker.heard(event)


def test_commands(pooler: PgBouncer, empty_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from skiplock import Skiplock\napp = Skiplock()\n\n@app.task(name='t')\ndef t(n: int) -> int:\n    return n\n"
    )

    def ask(*words: str) -> dict[str, object]:
        answer = run_process(pooler.dsn, tmp_path, *words, "--json")
        assert answer.code == 0, answer
        found: dict[str, object] = json.loads(answer.out)
        return found

    ask("enqueue", "t", "n=1")
    ask("queues", "pause", "default")
    worked = run_process(pooler.dsn, tmp_path, "worker", "shop:app", "--drain", "--no-supervisor")
    assert worked.code == 0, worked
    with open_verbs(pooler.dsn) as db:
        assert db.count("jobs_ready") == 1, "the queue is paused"
    ask("queues", "resume", "default")
    worked = run_process(pooler.dsn, tmp_path, "worker", "shop:app", "--drain", "--no-supervisor")
    assert worked.code == 0, worked
    with open_verbs(pooler.dsn) as db:
        assert [row.state for row in db.rows("SELECT state FROM skiplock.jobs")] == ["completed"]
    with pgbouncer(empty_dsn) as other:
        assert migrate(other.dsn) and migrate(other.dsn) == []
        assert status(other.dsn).pending == ()


def test_a_killed_worker_is_noticed(pooler: PgBouncer, tmp_path: Path) -> None:
    """Heartbeats and rescue; the session of the dead one lives on in the pooler and means nothing."""
    quick = ("--beat-every", "0.3", "--lost-after", "1")
    with fleet(pooler.dsn, tmp_path, processes=None, options=quick) as first:
        first.ready()
        [job] = add(pooler.dsn, "thread", args='{"seconds": 2}')
        eventually(lambda: states(pooler.dsn) == {"running": 1})
        first.process.kill()
        with fleet(pooler.dsn, tmp_path, processes=None, options=quick) as second:
            second.ready()
            eventually(lambda: states(pooler.dsn) == {"completed": 1}, seconds=30)
            assert second.events("worker_rescued")
    with open_verbs(pooler.dsn) as db:
        assert (db.job(job).attempt, db.job(job).losses) == (1, 1)


# --- prepared statements --------------------------------------------------------------------------------------------------


def test_clients_share_prepared_statements_without_harm(pooler: PgBouncer, fresh_dsn: str) -> None:
    """Two texts, one of them common to both clients, over three server connections.

    What is prepared under a name is always the same text (tests/store/test_exchange.py).
    """
    clients = [Exchange(connect(pooler.dsn)) for _ in range(3)]
    for n in range(10 * PREPARE_AT):
        for mine, client in enumerate(clients):
            assert client.run("SELECT $1::text::integer + 1", (str(n),)) == [(n + 1,)]
            assert client.run(f"SELECT $1::text::integer + {mine}", (str(n),)) == [(n + mine,)]
    for client in clients:
        client.close()


def test_prepared_statements_that_vanish(fresh_dsn: str) -> None:
    """A pooler that resets its connections after each transaction, and somebody's DEALLOCATE ALL.

    To see it fail: take 26000 out of `_NOT_HERE` (store/exchange.py).
    """
    with pgbouncer(fresh_dsn, server_reset_query_always=1, default_pool_size=1) as pooler:
        client = Exchange(connect(pooler.dsn))
        for n in range(5 * PREPARE_AT):
            assert client.run("SELECT $1::text::integer + 1", (str(n),)) == [(n + 1,)]
        client.close()
    with (
        pgbouncer(fresh_dsn, default_pool_size=1) as pooler,
        psycopg.connect(pooler.dsn, autocommit=True, prepare_threshold=None) as other,
    ):
        client = Exchange(connect(pooler.dsn))
        for n in range(5 * PREPARE_AT):
            assert client.run("SELECT $1::text::integer + 1", (str(n),)) == [(n + 1,)]
            other.execute("DEALLOCATE ALL")
        client.close()


# --- notifications --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", [1, 3])
async def test_a_worker_finds_out_that_it_hears_nothing(
    fresh_dsn: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, polls twice a second, and does not go on trying. With one server connection, last used first (as PgBouncer
    does by itself), a notification of the listener's own would come back to it with the answer of its own statement.

    To see it fail: let the ear notify itself (work/listen.py, `_listen`): with one connection it believes to hear.
    """
    monkeypatch.setattr(listen, "PROVED_WITHIN", 2.0)
    with pgbouncer(fresh_dsn, default_pool_size=connections, server_round_robin=0) as pooler:
        app = Skiplock(pooler.dsn)

        @app.task(name="t")
        async def work() -> None: ...

        async with app, running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
            failed = await worker.until_heard("listen_failed")
            assert isinstance(failed["error"], DeafError) and LISTEN_VARIABLE in str(failed["error"])
            assert failed["retry_in"] == listen.DEAF[0]
            assert not worker.worker._ear.works
            for _ in range(3):
                await worker.until(lambda: worker.worker._sleeper.asleep)
                began = time.monotonic()
                await settled(await work.aenqueue())
                assert time.monotonic() - began < 3.0
            await until(lambda: not [c for c in pooler.ask("SHOW CLIENTS") if c["application_name"] == "skiplock ear"])
        assert len(worker.heard("listen_failed")) == 1


async def test_notifications_past_the_pooler(pooler: PgBouncer, fresh_dsn: str) -> None:
    """With a direct address for them an idle worker is woken, as without a pooler."""
    app = Skiplock(pooler.dsn, listen_dsn=fresh_dsn)

    @app.task(name="t")
    async def work() -> None: ...

    async with app, running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
        await worker.until(lambda: worker.worker._ear.works)
        for _ in range(5):
            await worker.until(lambda: worker.worker._sleeper.asleep)
            await settled(await work.aenqueue(), limit=10)
        assert not worker.heard("listen_failed")


# --- the pooler cuts, dies, has no room -----------------------------------------------------------------------------------


async def test_idle_clients_are_cut(fresh_dsn: str) -> None:
    """To find oneself cut while idle is no failure: the next statement opens another connection and says nothing.

    To see it fail: take `is_cut` out of store/link.py, work/beat.py (failures are told) or store/pool.py (enqueue raises).
    """
    with pgbouncer(fresh_dsn, client_idle_timeout=1) as pooler:
        app = Skiplock(pooler.dsn)

        @app.task(name="t")
        async def work() -> None: ...

        def clients() -> set[str]:
            return {row["ptr"] for row in pooler.ask("SHOW CLIENTS") if row["database"] != "pgbouncer"}

        async with app, running_worker(app, beat_every=1.5, lost_after=300.0) as worker:
            for _ in range(3):
                await settled(await work.aenqueue())
                before = clients()
                # Between two looks of the poll (half a second) nothing is idle for long but the settles and the producers.
                await until(lambda before=before: before - clients())
                await settled(await work.aenqueue())
            for event in ("claim_failed", "settle_failed", "beat_failed"):
                assert not worker.heard(event), worker.heard(event)


async def test_the_pooler_is_killed_under_load(pooler: PgBouncer, fresh_dsn: str) -> None:
    app, runs = Skiplock(pooler.dsn), Counter[int]()

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        runs[ctx.id] += 1
        await asyncio.sleep(0.02)

    async with app:
        jobs = await app.aenqueue_many([work.job() for _ in range(3000)])
        async with running_worker(app, queues={"default": 50}) as worker:
            for share in (500, 1500):
                await worker.until(lambda share=share: len(runs) > share)
                await asyncio.to_thread(pooler.restart)
            for job in jobs[-10:]:
                assert (await settled(job)).state == "completed"
            with open_verbs(fresh_dsn) as db:
                await until(lambda: db.count("jobs_finished") == len(jobs))
        assert set(runs.values()) == {1}, "outcomes are kept, claims without an answer given back"
        assert worker.heard("claim_failed") or worker.heard("settle_failed"), "else nothing was cut"


async def test_handlers_that_use_up_the_pool(fresh_dsn: str) -> None:
    """Every server connection is in a transaction of a handler's for a while: our own statements wait, and go on."""
    with pgbouncer(fresh_dsn, default_pool_size=2) as pooler:
        app = Skiplock(pooler.dsn)

        @app.task(name="t")
        async def hog(ctx: JobContext) -> None:
            async with ctx.transaction() as connection:
                await connection.execute("SELECT pg_sleep(0.4)")

        async with app, running_worker(app, queues={"default": 8}, lost_after=5.0) as worker:
            jobs = await app.aenqueue_many([hog.job() for _ in range(8)])
            for job in jobs:
                record = await settled(job)
                assert (record.state, record.attempt) == ("completed", 1)
            assert not worker.heard("worker_lost")


async def test_no_room_for_another_client(fresh_dsn: str) -> None:
    """max_client_conn is reached: the worker starts as soon as there is room."""
    with pgbouncer(fresh_dsn, max_client_conn=6) as pooler:
        guests = [psycopg.connect(pooler.dsn) for _ in range(5)]
        app = Skiplock(pooler.dsn)

        @app.task(name="t")
        async def work() -> None: ...

        async def leave() -> None:
            await asyncio.sleep(0.5)
            for guest in guests:
                guest.close()

        async with app:
            leaving = asyncio.create_task(leave())
            async with running_worker(app) as worker:
                await settled(await work.aenqueue())
                await leaving
            assert worker.heard("claim_failed") or worker.heard("settle_failed") or worker.heard("beat_failed")

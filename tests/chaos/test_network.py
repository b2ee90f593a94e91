"""A network that fails without saying so: half-open connections, hosts that swallow everything, refusals, delays.

Kinds: half-open sockets and a host that vanishes while a statement is in flight (case 11), the database out of reach for a
while (DB-01, DB-08), beats that get no answer (LIFE-48), what waits idle on a dead connection (DB-44, DB-49).

Protections to try: `ANSWER_LIMIT` in store/link.py (make it an hour: the claim and the settle hang); the limit of a beat in
`Heart._run` (None: the heart hangs, and the worker is taken for lost); `Heart.silence` asked by `Worker._tidy` (do not:
nothing interrupts the handlers of a worker that nobody hears); `tcp_user_timeout` in store/pool.py; `connect_timeout`;
`_cancel` in store/link.py (do not cancel: statements pile up in a server that is only slow); `Heart._do` keeps an errand whose
connection was cut (drop it: the ear waits a minute for a proof that nobody sends).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from skiplock import JobContext, Skiplock
from skiplock.store.pool import aconnect, connect, conninfo
from tests.support.proxy import FaultProxy, Moment, Way, Weather, fault_proxy
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled

QUICK: dict[str, Any] = {"beat_every": 0.3, "lost_after": 1.5, "poll_every": 0.3}
CONNECTIONS = ["skiplock claim", "skiplock ear", "skiplock heart", "skiplock settle"]


class Ran(Counter[int]):
    """How often each job has run, by a task that does nothing and one that takes `seconds`."""

    def __init__(self, app: Skiplock) -> None:
        super().__init__()

        @app.task(name="t")
        async def quick(ctx: JobContext, seconds: float = 0.0) -> None:
            self[ctx.id] += 1
            await asyncio.sleep(seconds)


# -- what the system is asked to watch -----------------------------------------------------------------------------------


def options_of(connection: Any) -> dict[str, int]:
    """As the kernel has them, of the connection's socket."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as found:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        options = {name: getattr(socket, name) for name in names if hasattr(socket, name)}
        return {name: found.getsockopt(socket.IPPROTO_TCP, option) for name, option in options.items()}


def test_a_server_that_does_not_answer_at_all_is_given_up_after_ten_seconds() -> None:
    assert conninfo_to_dict(conninfo("postgresql://h/d"))["connect_timeout"] == "10"
    assert conninfo_to_dict(conninfo("postgresql://h/d?connect_timeout=3"))["connect_timeout"] == "3"


async def test_every_connection_asks_to_notice_a_dead_host(proxy: FaultProxy) -> None:
    expected = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
    app = Skiplock(proxy.dsn)
    sync, asynchronous = app.faces
    with connect(proxy.dsn) as one, sync.database.connection() as two:
        async with await aconnect(proxy.dsn) as three, asynchronous.database.connection() as four:
            for connection in (one, two, three, four):
                found = options_of(connection)
                assert found
                assert found == {name: expected[name] for name in found}
    await app.aclose()


def test_what_the_dsn_says_wins(proxy: FaultProxy, dsn: str) -> None:
    with connect(proxy.dsn_with(tcp_user_timeout=1500, keepalives_idle=7)) as connection:
        found = options_of(connection)
        assert found.get("TCP_USER_TIMEOUT", 1500) == 1500
        assert found.get("TCP_KEEPIDLE", 7) == 7
    with connect(dsn) as connection:  # a Unix socket, which has none of them
        assert connection.execute("SELECT 1").fetchone() == (1,)


async def test_a_host_that_takes_no_byte_is_noticed_by_the_system(db: Verbs, dsn: str) -> None:
    """Data on its way and never acknowledged: a large settle to a full socket stands for a host that vanished. Our own limit
    for answers (half a minute) plays no part."""
    with fault_proxy(dsn, receive_buffer=4096) as proxy:
        app = Skiplock(proxy.dsn_with(tcp_user_timeout=1200))
        Ran(app)
        free = asyncio.Event()

        @app.task(name="large")
        async def large() -> str:
            await free.wait()
            return "x" * 900_000

        async with running_worker(app, beat_every=2.0, lost_after=20.0) as worker:
            db.enqueue()
            await worker.until(lambda: db.count("jobs_finished") == 1)
            for _ in range(8):
                db.enqueue("large")
            await worker.until(lambda: worker.worker._lines.running == 8)
            assert proxy.cut(Way.STALL, "skiplock settle") == 1
            began = time.monotonic()
            free.set()
            await worker.until_heard("settle_failed")
            assert 1.0 < time.monotonic() - began < 10
            await worker.until(lambda: db.count("jobs_finished") == 9)
        assert db.value("SELECT max(attempt) FROM skiplock.jobs") == 1


# -- half-open while a statement is in flight ------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", Moment, ids=lambda m: m.value)
@pytest.mark.parametrize(
    "text", ["skiplock.claim(", "skiplock.settle(", "skiplock.arm(", "skiplock.beat(", "pg_notify("]
)
async def test_an_answer_that_never_comes_is_not_waited_for(
    proxy: FaultProxy, db: Verbs, monkeypatch: pytest.MonkeyPatch, text: str, moment: Moment
) -> None:
    """The proxy goes on acknowledging, so that no keepalive ever notices. The statement is given up, the connection replaced,
    and nothing is lost or run twice whether the server had done it or not."""
    monkeypatch.setattr("skiplock.store.link.ANSWER_LIMIT", 0.4)
    monkeypatch.setattr("skiplock.store.notify.ANSWER_LIMIT", 0.4)
    app = Skiplock(proxy.dsn)
    ran = Ran(app)
    at_start = [proxy.trap(text, moment, Way.SILENCE)] if text in ("skiplock.arm(", "pg_notify(") else []
    async with running_worker(app, **QUICK) as worker:
        jobs = db.enqueue_some(3)
        await worker.until(lambda: db.count("jobs_finished") == 3)
        [trap] = at_start or [proxy.trap(text, moment, Way.SILENCE)]
        jobs += db.enqueue_some(3)
        await worker.until(trap.sprung.is_set)
        hit = time.monotonic()
        jobs += db.enqueue_some(3)
        await worker.until(lambda: db.count("jobs_finished") == 9)
        assert time.monotonic() - hit < 6
        await worker.until(lambda: proxy.names() == CONNECTIONS)
        await worker.until(lambda: worker.worker._ear.works)  # its proof was sent again
    assert ran == Counter(dict.fromkeys(jobs, 1))
    assert db.value("SELECT max(attempt) FROM skiplock.jobs") == 1
    assert worker.heard("worker_lost") == worker.heard("settle_refused") == []


async def test_a_worker_that_nobody_hears_stops_and_starts_afresh(proxy: FaultProxy, db: Verbs) -> None:
    """Everything half-open at once, for longer than the lease. Its heart waits for an answer, and yet the worker says in time
    that its leases must be thought gone; outcomes that it had are settled, and not run again, when the server is back."""
    app = Skiplock(proxy.dsn_with(connect_timeout=2))
    ran = Ran(app)
    async with running_worker(app, **QUICK) as worker:
        [long] = db.rows("SELECT skiplock.enqueue('t', '{\"seconds\": 60}')")[0]
        await worker.until(lambda: ran[long])
        trap = proxy.trap("skiplock.settle(", Moment.BEFORE, Way.SILENCE)
        job = db.enqueue()
        await worker.until(trap.sprung.is_set)
        proxy.weather = Weather.SILENT
        proxy.cut(Way.SILENCE)
        cut = time.monotonic()
        await worker.until_heard("worker_lost")
        assert time.monotonic() - cut < QUICK["lost_after"] + 3
        await worker.until(lambda: not worker.worker._lines.running)
        proxy.accept()
        await worker.until(lambda: db.state(job) == "completed", limit=15)
        await worker.until(lambda: ran[long] == 2, limit=15)
        assert ran[job] == 1
        # It gave its former leases back itself: that is no loss, and no attempt.
        row = db.job(long)
        assert (row.state, row.attempt, row.losses) == ("running", 1, 0)
        assert db.value("SELECT count(*) FROM skiplock.workers") == 1
        db.rows("SELECT skiplock.cancel(%s)", long)


# -- a server that is only slow ------------------------------------------------------------------------------------------


async def test_statements_that_wait_for_a_lock_are_ended_in_the_server_too(
    proxy: FaultProxy, db: Verbs, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table locked for longer than the limit: the statements given up do not pile up behind the lock, and do not take effect
    after we have asked what became of them. In the end each job has run once."""
    monkeypatch.setattr("skiplock.store.link.ANSWER_LIMIT", 0.3)
    app = Skiplock(proxy.dsn)
    ran = Ran(app)
    waiting = """SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
        AND application_name = 'skiplock claim'"""
    async with running_worker(app, beat_every=1.0, lost_after=30.0) as worker:
        db.enqueue()
        await worker.until(lambda: db.count("jobs_finished") == 1)
        with psycopg.connect(dsn) as other:
            other.execute("LOCK TABLE skiplock.jobs_running")
            db.enqueue_some(5)
            most = 0
            while len(worker.heard("claim_failed")) < 3:  # 0.3, 0.6 and 1.2 s
                most = max(most, db.value(waiting))
                await asyncio.sleep(0.02)
        await worker.until(lambda: db.count("jobs_finished") == 6)
    assert most == 1
    assert len(ran) == 6
    assert set(ran.values()) == {1}
    assert db.value("SELECT max(attempt) FROM skiplock.jobs") == 1


async def test_a_slow_network_is_not_a_dead_one(proxy: FaultProxy, db: Verbs) -> None:
    """50 ms for every step there and back."""
    app = Skiplock(proxy.dsn)
    ran = Ran(app)
    async with running_worker(app, **QUICK) as worker:
        proxy.delay = 0.05
        db.enqueue_some(200)
        await worker.until(lambda: db.count("jobs_finished") == 200)
        proxy.delay = 0.0
    failures = ("claim_failed", "settle_failed", "beat_failed", "listen_failed", "worker_lost")
    assert [worker.heard(name) for name in failures] == [[]] * len(failures)
    assert set(ran.values()) == {1}


# -- no way in -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [True, False], ids=["swallowed", "refused"])
async def test_new_connections_fail_for_a_while(proxy: FaultProxy, db: Verbs, silent: bool) -> None:
    """All connections cut, and no new one to be had: refused at once, or accepted and never answered (`connect_timeout`).
    What was computed meanwhile is settled afterwards and not run again."""
    app = Skiplock(proxy.dsn_with(connect_timeout=2))
    ran = Ran(app)
    async with running_worker(app, beat_every=1.0, lost_after=20.0) as worker:
        [long] = db.rows("SELECT skiplock.enqueue('t', '{\"seconds\": 0.5}')")[0]
        await worker.until(lambda: ran[long])
        if silent:
            proxy.weather = Weather.SILENT
        else:
            proxy.refuse()
        proxy.cut(Way.RESET)
        await worker.until_heard("settle_failed")
        await worker.until(lambda: len(worker.heard("beat_failed")) >= 2)
        if silent:
            assert "timeout" in str(worker.heard("beat_failed")[-1]["error"])
        job = db.enqueue()
        proxy.accept()
        back = time.monotonic()
        await worker.until(lambda: db.count("jobs_finished") == 2)
        assert time.monotonic() - back < 10
    assert ran == {long: 1, job: 1}
    assert db.value("SELECT max(attempt) FROM skiplock.jobs") == 1
    assert worker.heard("worker_lost") == []


async def test_a_worker_that_starts_without_a_database_waits_for_it(proxy: FaultProxy, db: Verbs) -> None:
    app = Skiplock(proxy.dsn)
    Ran(app)
    failed: list[Any] = []
    app.events.subscribe(failed.append, "beat_failed")
    proxy.refuse()
    asyncio.get_running_loop().call_later(0.7, asyncio.ensure_future, asyncio.to_thread(proxy.accept))
    async with running_worker(app, **QUICK):
        assert failed
        [job] = [app.job(db.enqueue())]
        await settled(job)

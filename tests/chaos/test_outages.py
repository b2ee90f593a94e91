"""The database goes away and comes back: the worker works on by itself, and no outcome is lost.

Kinds: server restart and crash (case 11, DB-01, DB-08, DB-17, DB-42), every one of our connections cut at once (DB-34, DB-44,
DB-48), an outage longer than the lease, after which the first worker back must not judge the others (LIFE-48, LIFE-49).

Protections to try: `watched` in rescue.sql (judge at once: living workers are rescued after the outage); `Worker._start_anew`
(give nothing back: interrupted jobs wait for the rescue and count a loss).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skiplock import JobContext, Skiplock
from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from tests.support.chaos_jobs import make_runs
from tests.support.fleets import add, fleet, one, rows, states
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.waiting import eventually
from tests.support.workers import running_worker, until


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """A server of this module's own, since it is going to be mistreated."""
    with start_server(binaries=binaries_under_test(), settings=SETTINGS) as server:
        migrate(server.dsn())
        make_runs(server.dsn())
        yield server


def clean(dsn: str) -> None:
    """Nothing of an earlier test."""
    rows(dsn, "DELETE FROM skiplock.jobs RETURNING 1")
    rows(dsn, "DELETE FROM skiplock.attempts RETURNING 1")
    rows(dsn, "DELETE FROM skiplock.workers RETURNING 1")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_worker_survives_a_restart_of_the_server(own_server: EmbeddedServer, tmp_path: Path, mode: str) -> None:
    """`immediate` is a crash. Jobs go on within seconds, those whose outcome was on its way are settled and not lost."""
    dsn = own_server.dsn()
    clean(dsn)
    with fleet(dsn, tmp_path, processes=1) as worker:
        worker.ready()
        add(dsn, "wait", 40, '{"seconds": 1}')
        add(dsn, "record", 2000)
        eventually(lambda: states(dsn).get("completed", 0) > 100)
        own_server.halt(mode)
        own_server.resume()
        back = time.monotonic()
        add(dsn, "quick", 10)
        eventually(lambda: states(dsn) == {"completed": 2050}, seconds=60)
        assert time.monotonic() - back < 45
        assert worker.process.poll() is None


def test_cut_connections_are_replaced(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """All of the worker's connections are terminated again and again, wherever they happen to be."""
    dsn = own_server.dsn()
    clean(dsn)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'skiplock%%' AND pid <> pg_backend_pid()"
    with fleet(dsn, tmp_path, processes=1) as worker:
        worker.ready()
        add(dsn, "quick", 20_000)
        for share in (2_000, 6_000, 10_000, 14_000):
            eventually(lambda s=share: states(dsn).get("completed", 0) > s, pause=0.005)
            rows(dsn, cut)
        eventually(lambda: states(dsn) == {"completed": 20_000}, seconds=60)
    assert one(dsn, "SELECT count(*) FROM skiplock.attempts") == 0
    assert one(dsn, "SELECT max(attempt) FROM skiplock.jobs WHERE state = 'completed'") == 1


class Tasks:
    """Handlers in this process that no outage touches: how often each job has run."""

    def __init__(self, app: Skiplock) -> None:
        self.ran: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

        @app.task(name="quick")
        async def quick(ctx: JobContext) -> None:
            self.ran[ctx.id] += 1

        @app.task(name="long")
        async def long(ctx: JobContext, seconds: float) -> None:
            self.ran[ctx.id] += 1
            await asyncio.sleep(seconds)
            self.ended[ctx.id] += 1


def first_settled_after_start(dsn: str) -> float | None:
    """Seconds from the start of the server to the first job that was settled then, None before there is one."""
    found: Any = one(
        dsn,
        "SELECT extract(epoch FROM min(finished_at) - pg_postmaster_start_time()) FROM skiplock.jobs_finished "
        "WHERE finished_at > pg_postmaster_start_time()",
    )
    return None if found is None else float(found)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_outcomes_computed_while_the_server_was_away_are_settled(own_server: EmbeddedServer, mode: Any) -> None:
    """Under load. Jobs that ran when it went have run once, in one attempt, and the first is settled in a few seconds."""
    dsn = own_server.dsn()
    clean(dsn)
    app = Skiplock(dsn)
    tasks = Tasks(app)
    async with running_worker(app, queues={"default": 5, "long": 40}, beat_every=1.0, lost_after=20.0) as worker:
        longs = add(dsn, "long", 40, '{"seconds": 1.5}', queue="long")
        await worker.until(lambda: all(tasks.ran[job] for job in longs))
        add(
            dsn, "quick", 3000
        )  # it waits for the disk, and so the claims before it, which do not wait, are safe as well
        await asyncio.to_thread(own_server.halt, mode)
        await worker.until(lambda: len(tasks.ended) == 40)
        await worker.until(lambda: worker.heard("settle_failed") and len(worker.heard("beat_failed")) >= 3)
        await asyncio.to_thread(own_server.resume)
        took = await until(lambda: first_settled_after_start(dsn), limit=20)
        print(f"first job settled {took:.2f} s after the start of the server")
        assert took < 10
        await worker.until(lambda: states(dsn) == {"completed": 3040})
    assert [tasks.ran[job] for job in longs] == [1] * 40
    assert one(dsn, "SELECT max(attempt) FROM skiplock.jobs") == 1
    assert one(dsn, "SELECT count(*) FROM skiplock.attempts") == 0
    assert worker.heard("worker_lost") == []
    if mode == "fast":
        assert set(tasks.ran.values()) == {1}


async def test_an_outage_longer_than_the_lease_costs_no_loss_and_no_outcome(own_server: EmbeddedServer) -> None:
    """Two workers. Each stops what it runs, because others might have it by then; but nobody has: what was computed is settled
    under its old lease, the rest is given back by its owner, and nobody rescues the living."""
    dsn = own_server.dsn()
    clean(dsn)
    quick: dict[str, Any] = {
        "queues": {"default": 20},
        "beat_every": 0.5,
        "lost_after": 1.5,
        "poll_every": 0.5,
        "grace": 0.2,
    }
    one_app, other_app = Skiplock(dsn), Skiplock(dsn)
    tasks = [Tasks(one_app), Tasks(other_app)]

    def ran(job: int) -> int:
        return sum(of.ran[job] for of in tasks)

    async with running_worker(one_app, **quick) as first, running_worker(other_app, **quick) as second:
        computed = add(dsn, "long", 10, '{"seconds": 1.2}')
        interrupted = add(dsn, "long", 10, '{"seconds": 30}')
        await until(lambda: all(ran(job) for job in computed + interrupted))
        await asyncio.to_thread(own_server.halt, "fast")
        await until(lambda: sum(len(of.ended) for of in tasks) == 10)
        await until(lambda: first.heard("worker_lost") and second.heard("worker_lost"))
        await asyncio.to_thread(own_server.resume)
        await until(lambda: states(dsn) == {"completed": 10, "running": 10})
        await until(lambda: all(ran(job) == 2 for job in interrupted), limit=15)
        assert [ran(job) for job in computed] == [1] * 10
        assert one(dsn, "SELECT count(*) FROM skiplock.workers") == 2
        assert rows(dsn, "SELECT DISTINCT attempt, losses FROM skiplock.jobs") == [(1, 0)]
        assert one(dsn, "SELECT count(*) FROM skiplock.attempts") == 0
        assert first.heard("worker_rescued") == second.heard("worker_rescued") == []
        assert first.heard("settle_refused") == second.heard("settle_refused") == []
        rows(dsn, "DELETE FROM skiplock.jobs_running RETURNING 1")

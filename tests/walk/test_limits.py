"""Limits with a real worker: what the code says counts for jobs queued before, changes count at once, queues have slots."""

from __future__ import annotations

import asyncio

from skiplock import Concurrency, Rate, Skiplock
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled, until


class Gauge:
    """How many run, and the most that ever did."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.go = asyncio.Event()

    async def __call__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1


def declare(app: Skiplock, slots: int, gauge: Gauge) -> object:
    @app.task(name="t", limits=[Concurrency("k", slots)])
    async def work() -> None:
        await gauge()

    return work


async def test_a_number_changed_in_the_code_counts_for_jobs_that_are_queued(db: Verbs, dsn: str) -> None:
    """To see it fail: leave the errands out of chores (chores.py)."""
    gauge = Gauge()
    older, newer = Skiplock(dsn), Skiplock(dsn)
    declare(older, 1, gauge)
    declare(newer, 3, gauge)
    jobs = await older.aenqueue_many([older.tasks["t"].job() for _ in range(5)])
    async with running_worker(newer) as worker:
        await worker.until(lambda: gauge.now == 3)
        gauge.go.set()
        for job in jobs:
            await settled(job, state="completed")
    assert gauge.most == 3
    await older.aclose()


async def test_a_limit_set_by_hand_counts_at_once(db: Verbs, dsn: str) -> None:
    gauge = Gauge()
    app = Skiplock(dsn)
    declare(app, 1, gauge)
    await app.aenqueue_many([app.tasks["t"].job() for _ in range(6)])
    async with running_worker(app) as worker:
        await worker.until(lambda: gauge.now == 1)
        await app.limits.aset("k", slots=4)
        await worker.until(lambda: gauge.now == 4)
        [record] = await app.limits.alist()
        assert (record.name, record.slots, record.by_hand, record.held, record.waiting) == ("k", 4, True, 4, 2)
        assert await app.limits.aunset("k")
        [record] = await app.limits.akeys("k")
        assert (record.slots, record.by_hand) == (1, False)
        gauge.go.set()
        await until(lambda: db.count("jobs_finished") == 6)
    assert gauge.most == 4


async def test_a_queue_has_slots_over_all_workers(db: Verbs, dsn: str) -> None:
    """Two workers; each job that ends lets another start although both are asleep then."""
    gauge = Gauge()
    apps = [Skiplock(dsn), Skiplock(dsn)]
    for app in apps:

        @app.task(name="t", queue="mail")
        async def work() -> None:
            await gauge()

    await apps[0].limits.aset_queue("mail", 3)
    await apps[0].aenqueue_many([apps[0].tasks["t"].job() for _ in range(12)])
    async with running_worker(apps[0], queues={"mail": 10}) as worker, running_worker(apps[1], queues={"mail": 10}):
        await worker.until(lambda: gauge.now == 3)
        gauge.go.set()
        await worker.until(lambda: db.count("jobs_finished") == 12)
    assert gauge.most == 3


async def test_a_rate_is_kept(db: Verbs, dsn: str) -> None:
    app = Skiplock(dsn)

    @app.task(name="t", limits=[Rate("r", 20, burst=2)])
    async def work() -> None: ...

    await app.aenqueue_many([app.tasks["t"].job() for _ in range(12)])
    async with running_worker(app) as worker:
        await worker.until(lambda: db.count("jobs_finished") == 12)
    took = db.value("SELECT extract(epoch FROM max(started_at) - min(started_at))::float8 FROM skiplock.jobs_finished")
    assert 0.45 <= took < 2.0

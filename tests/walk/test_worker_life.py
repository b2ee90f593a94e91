"""The walk of a job through a real worker: enqueued, claimed, run, settled."""

from __future__ import annotations

import asyncio

import pytest

from skiplock import Backoff, JobContext, SchemaError, Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.worker import Worker
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled, until

AT_ONCE = Backoff(base=0, floor=0, jitter=False)


# --- the worker's own life --------------------------------------------------------------------------------------------


async def test_drain_ends_when_nothing_is_left(app: Skiplock, db: Verbs) -> None:
    runs: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        await asyncio.sleep(0.01)
        runs.append(n)

    await app.aenqueue_many([work.job(n) for n in range(60)])
    db.enqueue("unknown")
    async with asyncio.timeout(30):
        await Worker(app, WorkerSettings(queues={"default": 5}, drain=True)).run()
    assert sorted(runs) == list(range(60))
    assert db.count("jobs_running") == db.count("workers") == 0
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE state = 'completed'") == 60


async def test_stopping_lets_running_jobs_end_and_gives_the_others_back(app: Skiplock, db: Verbs) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="t", max_attempts=1)
    async def work() -> str:
        started.set()
        await go_on.wait()
        return "done"

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = [job.id for job in await app.aenqueue_many([work.job(), work.job()])]
        await asyncio.wait_for(started.wait(), 30)
        worker.worker.stop()
        await worker.until_heard("worker_stopping")
        go_on.set()
        await worker.run
    assert (db.state(first), db.job(first).result) == ("completed", "done")
    assert (db.state(second), db.job(second).attempt) == ("ready", 0)


@pytest.mark.parametrize("how", ["grace is over", "told twice"])
async def test_what_does_not_end_in_time_is_released_with_its_attempt(app: Skiplock, db: Verbs, how: str) -> None:
    started, broken_off = asyncio.Event(), asyncio.Event()

    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            broken_off.set()
            raise

    async with running_worker(app, grace=0.1 if how == "grace is over" else 100.0) as worker:
        job = await work.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        worker.worker.stop()
        if how == "told twice":
            worker.worker.stop()
        await asyncio.wait_for(asyncio.shield(worker.run), 30)
    assert broken_off.is_set()
    row = db.job(job.id)
    assert (row.state, row.attempt, row.losses) == ("ready", 0, 0)
    assert db.count("attempts") == 0


async def test_a_worker_declared_lost_starts_afresh(app: Skiplock, db: Verbs) -> None:
    attempts: list[int] = []
    started, broken_off = asyncio.Event(), asyncio.Event()

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                broken_off.set()
                raise

    async with running_worker(app, beat_every=0.1, lost_after=1.0) as worker:
        job = await work.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        old = worker.worker.id
        db.rows("SELECT skiplock.report_lost(%s, %s, 'a mistake')", old, [job.id])
        record = await settled(job)
        assert worker.worker.id != old
    assert broken_off.is_set()
    assert (record.state, record.attempt, attempts) == ("completed", 2, [1, 2])
    assert [kept.verdict for kept in record.attempts] == ["lost"]
    assert len(worker.heard("worker_lost")) == 1


async def test_a_cut_connection_is_noticed_and_forgotten(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work(n: int) -> int:
        return n

    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with running_worker(app) as worker:
        for n in range(3):
            assert (await settled(await work.aenqueue(n))).result == n
            db.rows(cut)
            await app.aclose()  # our own pool's connections are gone too
        assert (await settled(await work.aenqueue(9))).result == 9
        await worker.until(lambda: db.value("SELECT count(*) FROM skiplock.workers") == 1)
    assert worker.heard("worker_lost") == []


async def test_jobs_that_were_lost_with_their_worker_run_again(app: Skiplock, db: Verbs) -> None:
    async def work(ctx: JobContext) -> int:
        return ctx.job.losses

    jobs = {}
    for losses in (1, 2):
        name = f"lost {losses} times"
        app.task(name=name)(work)
        jobs[losses] = db.enqueue(name)
        for n in range(losses):
            worker = db.register()
            [claimed] = db.claim_suspects(worker, tasks=(name,)) if n else db.claim(worker, tasks=(name,))
            db.rows("SELECT skiplock.report_lost(%s, %s, 'killed')", worker, [claimed.id])
    async with running_worker(app, beat_every=0.1, lost_after=1.0):
        for losses, job in jobs.items():
            assert (await settled(app.job(job))).result == losses


async def test_two_workers_share_the_work(dsn: str, db: Verbs) -> None:
    runs: list[int] = []
    apps = [Skiplock(dsn), Skiplock(dsn)]
    for app in apps:

        @app.task(name="t")
        async def work(n: int) -> None:
            await asyncio.sleep(0.002)
            runs.append(n)

    task = apps[0].find_task("t")
    async with running_worker(apps[0], name="one"), running_worker(apps[1], name="two"):
        await apps[0].aenqueue_many([task.job(n) for n in range(400)])
        await until(lambda: len(runs) >= 400)
        await until(lambda: db.count("jobs_running") == 0)
    assert sorted(runs) == list(range(400))
    shares = db.rows("SELECT worker, count(*) FROM skiplock.jobs GROUP BY worker")
    assert len(shares) == 2, shares


async def test_an_error_a_handler_makes_of_a_shutdown_is_not_its_failure(app: Skiplock, db: Verbs) -> None:
    """Drivers turn a cancellation into errors of their own; the attempt is given back all the same (RETRY-22)."""
    began = asyncio.Event()

    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("closed under me") from None

    async with running_worker(app, grace=0.0):
        job = await work.aenqueue()
        await began.wait()
    record = await job.aget()
    await app.aclose()
    assert (record.state, record.attempt, record.attempts) == ("ready", 0, ())


@pytest.mark.parametrize("schema", ["skiplock", "Ünï-case"])
async def test_without_its_schema_it_says_so_whatever_the_name(empty_dsn: str, schema: str) -> None:
    app = Skiplock(empty_dsn, schema=schema)

    @app.task(name="t")
    async def work() -> None: ...

    for attempt in (work.aenqueue(), Worker(app, WorkerSettings()).run()):
        with pytest.raises(SchemaError, match="skiplock db migrate"):
            await attempt
    await app.aclose()


async def test_a_worker_that_starts_goes_on_where_the_last_one_stopped_and_misses_nothing(
    app: Skiplock, db: Verbs
) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    early = db.enqueue(priority=3)
    db.rows("SELECT skiplock.pause('default')")
    later = [db.enqueue() for _ in range(20)]
    db.rows("SELECT skiplock.resume('default')")
    # No beat of its own falls between the claims and the end: what it knows it says as it leaves.
    async with running_worker(app, beat_every=100.0, lost_after=300.0):
        for job in [early, *later]:
            await settled(app.job(job))
    assert db.rows("SELECT priority, position FROM skiplock.lanes ORDER BY priority") == [(0, later[-1]), (3, early)]
    # A transaction that drew its place in line before all that, and commits after: behind the cursor.
    db.rows("UPDATE skiplock.lanes SET position = position + 1000")
    late, urgent = db.enqueue(), db.enqueue(priority=3)
    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0):
        await settled(app.job(late), limit=10)
        await settled(app.job(urgent), limit=10)


async def test_a_worker_that_starts_minds_priorities_that_nobody_has_told_of(app: Skiplock, db: Verbs) -> None:
    order: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        order.append(n)

    db.rows("DELETE FROM skiplock.lanes")
    async with running_worker(app):
        await settled(await work.aenqueue(0))
    for priority in (0, 5, -5, 9):
        await work.using(priority=priority).aenqueue(priority)
    async with running_worker(app, queues={"default": 1}) as worker:
        await worker.until(lambda: len(order) == 5)
    assert order == [0, 9, 5, 0, -5]

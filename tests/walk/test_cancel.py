"""Cancelling a job, wherever it is."""

from __future__ import annotations

import asyncio
import threading

import pytest

from skiplock import Backoff, JobContext, JobHandle, Skiplock
from tests.support.handlers import Hold
from tests.support.verbs import Verbs
from tests.support.workers import RunningWorker, running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- cancel -----------------------------------------------------------------------------------------------------------


async def started(worker: RunningWorker, job: JobHandle) -> None:
    await worker.until(lambda: job.id in [event["job"].id for event in worker.heard("attempt_started")])


async def test_cancelling_a_running_job(app: Skiplock) -> None:
    cleaned = asyncio.Event()

    @app.task(name="t")
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with running_worker(app, beat_every=100.0, lost_after=300.0) as worker:  # heard by NOTIFY, not by the beat
        await worker.until(lambda: worker.worker._ear.works)
        job = await work.aenqueue()
        await started(worker, job)
        assert await job.acancel() == "running"
        record = await settled(job, limit=10)
    assert (record.state, record.error) == ("cancelled", "Cancel: cancelled while running")
    assert cleaned.is_set()


async def test_a_cancel_is_heard_at_the_next_beat_when_notifications_fail(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app, beat_every=0.1, lost_after=1.0) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        db.rows("INSERT INTO skiplock.cancellations VALUES (%s, %s, now())", job.id, worker.worker.id)
        assert (await settled(job, limit=10)).state == "cancelled"


async def test_a_thread_hears_of_its_cancel_by_its_context(app: Skiplock) -> None:
    ended = threading.Event()

    @app.task(name="t")
    def work(ctx: JobContext) -> str:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        ended.set()
        return "stopped"

    async with running_worker(app) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        await job.acancel()
        record = await settled(job)
        await worker.until(ended.is_set)
        await worker.until(lambda: worker.worker._lines.running == 0)
    assert record.state == "cancelled"


async def test_a_cancelled_job_that_fails_is_not_retried(app: Skiplock) -> None:
    @app.task(name="t", backoff=AT_ONCE)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("while cleaning up") from None

    async with running_worker(app) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        await job.acancel()
        record = await settled(job)
    assert (record.state, record.attempt) == ("cancelled", 1)


async def test_a_job_claimed_ahead_and_cancelled_never_starts(
    app: Skiplock, db: Verbs, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skiplock.worker.STALLED_AFTER", 60.0)  # what is stalled would be given back, and so cancelled
    ran: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        ran.append(n)
        if n == 0:
            await hold.on_loop()

    async with running_worker(app, queues={"default": 1}) as worker:
        worker.worker._lines.by_name["default"].mean = 1e-5  # as after many fast jobs: it claims ahead
        jobs = await app.aenqueue_many([work.job(n) for n in range(3)])
        await worker.until(lambda: worker.worker._lines.buffered == 2)
        assert await jobs[1].acancel() == "running"
        await settled(jobs[1], limit=10)
        hold.free.set()
        await settled(jobs[2])
    assert ran == [0, 2]
    row = db.job(jobs[1].id)
    assert (row.state, db.attempts(row.id)) == ("cancelled", [])

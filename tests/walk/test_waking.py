"""The walk of a job through a real worker: enqueued, claimed, run, settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from skiplock import Backoff, BlockingCallError, JobContext, Skiplock
from tests.support.guests import ASYNC_GUESTS, SYNC_GUESTS, AsyncKind, SyncKind
from tests.support.verbs import Verbs
from tests.support.workers import RunningWorker, running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)


# --- what it leaves alone ---------------------------------------------------------------------------------------------


async def test_a_task_it_does_not_know_stays_ready_and_stops_nobody(app: Skiplock, db: Verbs) -> None:
    @app.task(name="known")
    async def known() -> None: ...

    unknown = db.enqueue("unknown")
    async with running_worker(app):
        await settled(await known.aenqueue())
    row = db.job(unknown)
    assert (row.state, row.attempt) == ("ready", 0)


BAD_ARGS = {
    "of the wrong type": '{"n": "text"}',
    "one missing": "{}",
    "one too many": '{"n": 1, "m": 2}',
    "null": '{"n": null}',
    "a lone surrogate": r'{"n": "\ud800"}',
    "too deep": '{"n": ' + "[" * 2000 + "]" * 2000 + "}",
    "a huge number": '{"n": 1e999}',
}
BAD_OPTIONS = {
    "no object": '"text"', "a timeout of text": '{"timeout": "soon"}', "a timeout of objects": '{"timeout": {}}',
    "a list": "[1]", "a lone surrogate among them": r'{"timeout": "\ud800"}',
}  # fmt: skip


async def test_jobs_that_cannot_be_read_fail_alone(app: Skiplock, db: Verbs) -> None:
    runs: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        runs.append(n)

    bad = {name: db.enqueue(args=args, max_attempts=1) for name, args in BAD_ARGS.items()}
    bad |= {name: db.enqueue(args='{"n": 0}', options=options, max_attempts=1) for name, options in BAD_OPTIONS.items()}
    good = db.enqueue(args='{"n": 7}')
    sql = (
        "SELECT state, error FROM skiplock.jobs WHERE id = %s"  # not through the desk, which reads args and options too
    )
    async with running_worker(app) as worker:
        await settled(app.job(good))
        for name, job in bad.items():
            [(state, error)] = await worker.until(lambda job=job: [row for row in db.rows(sql, job) if row.error])
            assert state == "dead" and error, name
            if name in BAD_ARGS:
                assert "do not fit its signature" in error, name
    assert runs == [7]


ODD_OPTIONS = {
    "a backoff that is none": '{"backoff": 5}', "a backoff of nonsense": '{"backoff": {"base": -1}}',
    "a backoff with unknown words": '{"backoff": {"bass": 1}}',
}  # fmt: skip


async def test_a_backoff_that_makes_no_sense_is_passed_over(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    jobs = {name: db.enqueue(options=options) for name, options in ODD_OPTIONS.items()}
    async with running_worker(app):
        for name, job in jobs.items():
            assert (await settled(app.job(job))).result == 2, name


async def test_enqueue_inside_a_running_loop_is_refused(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    for call in (work.enqueue, lambda: app.enqueue_many([work.job()]), lambda: app.get(1), lambda: app.job(1).cancel()):
        with pytest.raises(BlockingCallError, match="await"):
            call()
    assert db.count() == 0


# --- waking up --------------------------------------------------------------------------------------------------------


async def asleep(worker: RunningWorker) -> None:
    """Wait until it relies on the bell alone."""
    await worker.until(lambda: worker.worker._ear.works and worker.worker._sleeper.asleep)


@pytest.fixture
def bell_only(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Settings with which nothing but the bell can wake a worker within a test's patience."""
    monkeypatch.setattr("skiplock.work.bell.RECHECKS", ())
    return {"beat_every": 100.0, "lost_after": 300.0, "poll_every": 100.0}


async def test_an_enqueue_wakes_an_idle_worker_at_once(app: Skiplock, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    waits = []
    async with running_worker(app, **bell_only) as worker:
        for _ in range(5):
            await asleep(worker)
            record = await settled(await work.aenqueue())
            waits.append((record.started_at - record.enqueued_at).total_seconds())
    assert sorted(waits)[2] < 0.5, waits


async def test_a_rolled_back_transaction_wakes_nobody_and_a_committed_one_does(
    app: Skiplock, db: Verbs, dsn: str, bell_only: dict[str, float]
) -> None:
    done: list[str] = []

    @app.task(name="t")
    async def work(kind: str) -> None:
        done.append(kind)

    def sync(kind: SyncKind) -> None:
        for end in ("rollback", "commit"):
            with kind(dsn) as guest:
                work.using(connection=guest.connection).enqueue(f"{kind.__name__} {end}")
                getattr(guest, end)()

    async def async_(kind: AsyncKind) -> None:
        for end in ("rollback", "commit"):
            async with kind(dsn) as guest:
                await work.using(connection=guest.connection).aenqueue(f"{kind.__name__} {end}")
                await getattr(guest, end)()

    kinds: list[Callable[[], Any]] = [
        lambda k=kind: asyncio.to_thread(sync, k) for kind in SYNC_GUESTS if "psycopg2" not in kind.__name__
    ]
    kinds += [lambda k=kind: async_(k) for kind in ASYNC_GUESTS]
    async with running_worker(app, **bell_only) as worker:
        for n, enqueue in enumerate(kinds, 1):
            await asleep(worker)
            await enqueue()
            await worker.until(lambda n=n: len(done) == n, limit=10)
    assert [name for name in done if not name.endswith("commit")] == []
    assert len(set(done)) == db.count()


async def test_a_job_enqueued_by_sql_wakes_it_too(app: Skiplock, db: Verbs, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, **bell_only) as worker:
        await asleep(worker)
        await settled(app.job(db.enqueue()), limit=10)


async def test_a_queue_that_is_resumed_wakes_it(app: Skiplock, db: Verbs, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    db.rows("SELECT skiplock.pause('default')")
    async with running_worker(app, **bell_only) as worker:
        await asleep(worker)
        job = await work.aenqueue()
        await asleep(worker)
        assert (await job.aget()).state == "ready"
        db.rows("SELECT skiplock.resume('default')")
        await settled(job, limit=10)


async def test_without_the_bell_polling_finds_it(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=0.1) as worker:
        await asleep(worker)
        db.rows("UPDATE skiplock.bells SET armed_at = NULL")
        job = db.enqueue()
        await settled(app.job(job), limit=10)


async def test_delayed_jobs_run_soon_after_they_are_due_and_never_before(app: Skiplock, db: Verbs) -> None:
    began: dict[int, float] = {}

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        began[ctx.id] = time.time()

    async with running_worker(app, queues={"default": 100}) as worker:
        jobs = await app.aenqueue_many([work.using(delay=n * 0.02).job() for n in range(100)])
        await worker.until(lambda: len(began) == 100)
        for job in jobs:
            await settled(job)
    late = [began[row.id] - row.run_at.timestamp() for row in db.rows("SELECT id, run_at FROM skiplock.jobs")]
    assert len(late) == 100
    assert min(late) >= 0
    assert sorted(late)[50] < 0.5, late
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE started_at < run_at") == 0

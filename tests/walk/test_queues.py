"""Queues and tasks at run time, with real workers: pauses that end in time, waiting for room, ageing, expiry.

Kinds: a pause that is noticed late or never (OPS-), a producer that gives up or spins (SCALE-), a job that starts after its time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from skiplock import OptionError, QueueFullError, Skiplock
from tests.support.verbs import Verbs
from tests.support.waiting import eventually
from tests.support.workers import running_worker, settled, until

LATE = 1.5  # seconds after its moment, at most; polling would take 30


@pytest.mark.parametrize("what", ["queue", "task"])
async def test_a_pause_ends_in_time(app: Skiplock, db: Verbs, what: str) -> None:
    """With a worker that sleeps. Without the bell of tend_queues it would sleep on, without the leader's timer nobody would ring."""

    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, beat_every=20.0, lost_after=60.0):
        await settled(await work.aenqueue(), state="completed")
        pause = app.queues.apause if what == "queue" else app.queues.apause_task
        resumes = await pause("default" if what == "queue" else "t", length=1.0)
        assert resumes is not None
        found = await settled(await work.aenqueue(), state="completed")
        assert found.started_at is not None
        assert 0 <= (found.started_at - resumes).total_seconds() < LATE


async def test_resuming_wakes_whoever_sleeps(app: Skiplock) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    @app.task(name="other")
    async def other() -> None: ...

    async with running_worker(app, beat_every=20.0, lost_after=60.0):
        await app.queues.apause_task("t")
        job = await work.aenqueue()
        await settled(await other.aenqueue(), state="completed")
        assert (await job.aget()).state == "ready"
        await app.queues.aresume_task("t")
        await settled(job, state="completed", limit=5.0)


def test_an_enqueue_waits_for_room(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    def work() -> None: ...

    app.queues.bound("default", 2)
    app.enqueue_many([work.job(), work.job()])
    began = time.monotonic()
    with pytest.raises(QueueFullError):
        work.using(wait="300ms").enqueue()
    assert 0.3 <= time.monotonic() - began < 5
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work.using(wait="20s").enqueue()))
    thread.start()
    worker = db.register()
    db.settle(completed=db.claim(worker, 1))
    thread.join(20)
    assert found and db.state(found[0].id) == "ready"
    assert db.count("jobs_ready") == 2


async def test_a_coroutine_waits_for_room(app: Skiplock, db: Verbs) -> None:
    """Without holding up the loop, nor a connection."""

    @app.task(name="t")
    async def work() -> None: ...

    await app.queues.abound("default", 1)
    first = await work.aenqueue()
    waiting = [asyncio.create_task(work.using(wait="20s").aenqueue()) for _ in range(15)]
    many = asyncio.create_task(app.aenqueue_many([work.job()], wait=20))
    await until(lambda: not any(task.done() for task in waiting))
    async with running_worker(app):
        jobs = [await task for task in waiting] + await many
        for job in (first, *jobs):
            await settled(job, state="completed")
    assert db.count() == 17


def test_waiting_inside_a_transaction_is_refused(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    def work() -> None: ...

    with pytest.raises(OptionError, match="transaction would stay open"):
        work.using(wait="1s", connection=db.connection)
    with pytest.raises(OptionError, match="transaction would stay open"):
        app.enqueue_many([work.job()], connection=db.connection, wait=1)
    with pytest.raises(OptionError, match="wait"):
        work.using(wait="soon")


def test_a_refusal_in_the_callers_transaction(app: Skiplock, db: Verbs) -> None:
    """The error is the driver's there, and the transaction cannot commit."""

    @app.task(name="t")
    def work() -> None: ...

    app.queues.bound("default", 1)
    with pytest.raises(Exception) as caught, db.transaction():
        work.using(connection=db.connection).enqueue()
        work.using(connection=db.connection).enqueue()
    assert getattr(caught.value, "sqlstate", None) == "SK006" or isinstance(caught.value, QueueFullError)
    assert db.count() == 0


async def test_a_job_that_waits_too_long_is_cancelled_in_time(app: Skiplock) -> None:
    """All slots are taken. Nobody has to claim for it."""
    free = asyncio.Event()

    @app.task(name="t")
    async def work(n: int) -> None:
        await free.wait()

    async with running_worker(app, queues={"default": 1}, beat_every=20.0, lost_after=60.0):
        first = await work.aenqueue(1)
        await settled(first, state="running")
        late = await work.using(expires="500ms").aenqueue(2)
        found = await settled(late, state="cancelled", limit=5.0)
        assert found.error == "expired: not started in time" and found.expires_at is not None
        assert found.finished_at is not None and 0 <= (found.finished_at - found.expires_at).total_seconds() < LATE
        free.set()
        await settled(first, state="completed")


async def test_an_old_job_overtakes_newer_ones_of_higher_priority(app: Skiplock, db: Verbs) -> None:
    done: list[int] = []
    held = asyncio.Event()

    @app.task(name="t")
    async def work(n: int) -> None:
        await held.wait()
        done.append(n)

    await app.queues.aage("default", "1s")
    async with running_worker(app, queues={"default": 1}):
        await settled(await work.aenqueue(0), state="running")
        await work.using(priority=1).aenqueue(1)
        old = await work.aenqueue(2)
        await until(lambda: db.job(old.id).priority >= 3)
        last = await work.using(priority=2).aenqueue(3)
        held.set()
        await settled(last, state="completed")
    assert done == [0, 1, 2, 3]


def test_the_bell_reaches_all_queues(db: Verbs) -> None:
    """A paused task may have jobs anywhere."""
    db.rows("SELECT skiplock.arm('{a,b}')")
    db.connection.execute('LISTEN "skiplock.bell"')
    db.rows("SELECT skiplock.resume_task('t')")
    heard = eventually(lambda: sorted(n.payload for n in db.connection.notifies(timeout=2, stop_after=2)))
    assert heard == ["a", "b"]

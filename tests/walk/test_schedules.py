"""Schedules with a worker: prompt, told to the handler, woken for, and never in the way of anything else.

Kinds: sub-minute schedules and late looks (CRON-06, 37), polling storms (CRON-04), one bad duty that stops the others (CRON-31), long
jobs that hold schedules up (CRON-64), queues that the worker does not serve (CRON-63), leadership (CRON-53, 61).
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from skiplock import JobContext, Skiplock
from skiplock.upkeep.schedules import Ticker
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, until

LATE = """SELECT extract(epoch FROM started_at - (meta->>'scheduled_for')::timestamptz)::float8, state
    FROM skiplock.jobs WHERE meta->>'schedule' = %s AND state IN ('running', 'completed') ORDER BY id"""
SOON = {"beat_every": 20.0, "lost_after": 60.0}  # seconds: far longer than these tests wait for anything


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each look at the schedules."""
    found: list[int] = []
    usual = Ticker.tick

    def tick(self: Ticker, *args: Any) -> float | None:
        found.append(1)
        return usual(self, *args)

    monkeypatch.setattr(Ticker, "tick", tick)
    return found


async def test_every_second(app: Skiplock, db: Verbs, ticks: list[int]) -> None:
    """The leader wakes for each fire and for nothing else. To see it fail: leave `_fire_at` out of what Heart.run sleeps for."""
    seen: list[tuple[datetime | None, Any]] = []

    @app.every("1s")
    @app.task(name="second")
    async def second(ctx: JobContext) -> None:
        seen.append((ctx.scheduled_for, ctx.meta["schedule"]))

    async with running_worker(app, **SOON) as worker:
        await worker.until(lambda: len(seen) >= 4)
        lates = [row[0] for row in db.rows(LATE, "second")]
        assert len(ticks) <= 2 * len(seen) + 6
    assert [name for _, name in seen] == ["second"] * len(seen)
    moments = [moment for moment, _ in seen if moment is not None]
    assert len(set(moments)) == len(seen) and all(moment.microsecond == 0 for moment in moments)
    assert min(lates) >= 0.0 and sorted(lates)[len(lates) // 2] < 0.5


async def test_one_made_while_the_leader_sleeps_wakes_it(app: Skiplock, db: Verbs) -> None:
    """To see it fail: let _wake_ticker (sql/upkeep/schedules.sql) tell nobody."""

    @app.task(name="t")
    async def task(ctx: JobContext) -> None: ...

    schedules = app.schedules
    async with running_worker(app, **SOON) as worker:
        await worker.until(lambda: db.rows("SELECT 1 FROM skiplock.duties WHERE worker IS NOT NULL"))
        await app.arun(schedules.add("s", task, every="1s"))
        await worker.until(lambda: len(db.rows(LATE, "s")) >= 2, limit=10)
        await app.arun(schedules.change("s", every="300d"))
        before = len(db.rows(LATE, "s"))
        await app.arun(schedules.add("other", task, cron="* * * * * *"))
        await worker.until(lambda: len(db.rows(LATE, "other")) >= 2, limit=10)
        assert len(db.rows(LATE, "s")) <= before + 1
        await app.arun(schedules.pause("s"))
        await app.arun(schedules.run("s"))
        await worker.until(lambda: db.value("SELECT made FROM skiplock.schedules WHERE name = 's'") >= 3, limit=10)


async def test_without_schedules_nobody_looks(app: Skiplock, db: Verbs, ticks: list[int]) -> None:
    """Nor with paused ones. To see it fail: let Heart tick after each beat."""

    @app.task(name="t")
    async def task(ctx: JobContext) -> None: ...

    async with running_worker(app, beat_every=0.1, lost_after=1.0) as worker:
        beat_at = "SELECT beat_at FROM skiplock.workers"
        for _ in range(5):
            last = db.value(beat_at)
            await worker.until(lambda last=last: db.value(beat_at) != last)
        assert ticks == []
        await app.arun(app.schedules.add("s", task, every="1h"))
        await worker.until(lambda: db.value("SELECT next_fire FROM skiplock.schedules") is not None)
        looked = len(ticks)
        await app.arun(app.schedules.pause("s"))
        for _ in range(5):
            last = db.value(beat_at)
            await worker.until(lambda last=last: db.value(beat_at) != last)
        assert len(ticks) <= looked + 1


async def test_a_tick_that_fails_harms_nobody_else_and_comes_round_again(app: Skiplock, db: Verbs) -> None:
    """To see it fail: take `except` out of Heart._tick: the error then counts as that of a beat."""
    seen: list[int] = []

    @app.every("1s")
    @app.task(name="second")
    async def second(ctx: JobContext) -> None:
        seen.append(ctx.id)

    failed: list[Any] = []
    app.events.subscribe(failed.append, "tick_failed")
    async with running_worker(app, beat_every=0.2, lost_after=2.0) as worker:
        await worker.until(lambda: seen)
        db.rows("ALTER FUNCTION skiplock.due_schedules RENAME TO due_schedules_away")
        try:
            await worker.until(lambda: len(failed) >= 2)
            job = await app.tasks["second"].using(delay=0.2).aenqueue()
            await worker.until(lambda: job.id in seen)
            assert not worker.heard("beat_failed") and not worker.heard("worker_lost")
        finally:
            db.rows("ALTER FUNCTION skiplock.due_schedules_away RENAME TO due_schedules")
        made = len(seen)
        await worker.until(lambda: len(seen) > made + 1)


async def test_a_long_job_holds_up_no_schedule(app: Skiplock, db: Verbs) -> None:
    """Not even one that fills the worker; and a queue without a worker gets its jobs all the same."""

    @app.every("1s", overlap="skip")
    @app.task(name="long")
    async def long(ctx: JobContext) -> None:
        await asyncio.sleep(60)

    @app.every("1s", name="elsewhere")
    @app.task(name="other", queue="unserved")
    async def other(ctx: JobContext) -> None: ...

    async with running_worker(app, queues={"default": 1}, grace=0.0) as worker:
        await worker.until(
            lambda: db.value("SELECT coalesce(max(skipped), 0) FROM skiplock.schedules WHERE name = 'long'") >= 2
        )
        await worker.until(lambda: db.value("SELECT count(*) FROM skiplock.jobs_ready WHERE queue = 'unserved'") >= 2)
    assert db.value("SELECT made FROM skiplock.schedules WHERE name = 'long'") == 1


async def test_whoever_is_not_the_leader_sees_to_what_is_overdue(app: Skiplock, db: Verbs) -> None:
    """A leader of a release without schedules, or one in trouble. To see it fail: take `found.fire_in < -2.0` out of Heart._next_tick."""

    @app.task(name="t")
    async def task(ctx: JobContext) -> None: ...

    db.rows("UPDATE skiplock.duties SET worker = %s, until = 'infinity'", db.register(lost_after=1e6))
    await app.arun(app.schedules.add("s", task, every="1s"))
    async with running_worker(app, beat_every=0.5) as worker:
        await worker.until(lambda: len(db.rows(LATE, "s")) >= 2)


async def test_declared_again_when_the_worker_is_registered_anew(app: Skiplock, db: Verbs) -> None:
    """It was lost, and its declarations with it. To see it fail: let Ticker.must_declare look at no worker's number."""

    @app.every("1s")
    @app.task(name="second")
    async def second(ctx: JobContext) -> None: ...

    declared = "SELECT worker FROM skiplock.schedule_declarations"
    async with running_worker(app, beat_every=0.2, lost_after=2.0) as worker:
        first = await worker.until(lambda: db.value(declared))
        db.rows("DELETE FROM skiplock.workers")
        await worker.until_heard("worker_lost")
        assert await worker.until(lambda: db.value(declared)) != first
        made = len(db.rows(LATE, "second"))
        await until(lambda: len(db.rows(LATE, "second")) > made + 1)


async def test_a_plain_call_and_other_jobs_are_for_no_fire(app: Skiplock) -> None:
    seen: list[datetime | None] = []

    @app.task(name="t")
    async def task(ctx: JobContext) -> None:
        seen.append(ctx.scheduled_for)

    await task()
    async with running_worker(app) as worker:
        await task.aenqueue()
        await task.using(meta={"scheduled_for": "tomorrow"}).aenqueue()
        await worker.until(lambda: len(seen) == 3)
    assert seen == [None] * 3

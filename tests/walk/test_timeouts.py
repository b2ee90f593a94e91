"""Timeouts, of coroutines and of threads; what ignores them."""

from __future__ import annotations

import asyncio

import pytest

from skiplock import Backoff, JobContext, Skiplock
from tests.support.handlers import Hold, wait_of
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- timeouts ---------------------------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_timeout(app: Skiplock) -> None:
    cleaned = asyncio.Event()

    @app.task(name="t", timeout=0.1, max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.error) == ("dead", "TimeoutError: ran longer than its timeout of 0.1 s")
    assert cleaned.is_set()


async def test_a_timeout_is_a_failure_with_its_backoff(app: Skiplock) -> None:
    @app.task(name="t", backoff=STEADY)
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        record = await settled(await work.using(timeout=0.1).aenqueue(), state="retryable")
    assert wait_of(record) == pytest.approx(100, abs=1)
    assert record.attempts[0].error_class == "TimeoutError"


async def test_a_rule_for_timeouts(app: Skiplock) -> None:
    @app.task(name="t", timeout=0.1, retry_on={TimeoutError: None})
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).state == "dead"


async def test_a_thread_is_settled_at_its_timeout_and_keeps_its_slot_until_it_ends(app: Skiplock, hold: Hold) -> None:
    told: list[bool] = []

    @app.task(name="stuck", timeout=0.1, max_attempts=1)
    def stuck(ctx: JobContext) -> None:
        hold.in_thread()
        told.append(ctx.cancelled)

    @app.task(name="next")
    def next_one() -> None: ...

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = await stuck.aenqueue(), await next_one.aenqueue()
        record = await settled(first)
        assert (record.state, record.attempts[0].error_class) == ("dead", "TimeoutError")
        event = await worker.until_heard("handler_stuck")
        assert (event["job"].id, event["why"]) == (first.id, "timeout")
        assert "in_thread" in event["stack"]
        assert worker.worker._lines.running == 1
        assert (await second.aget()).state in ("ready", "running") and not worker.heard("handler_unstuck")
        assert [event["job"].id for event in worker.heard("attempt_started")] == [first.id]
        hold.free.set()
        assert (await settled(second)).state == "completed"
        assert (await worker.until_heard("handler_unstuck"))["job"].id == first.id
        assert (await first.aget()).state == "dead", "what the thread returned changes nothing"
    assert told == [True]


async def test_a_thread_that_never_ends_does_not_hold_up_the_worker_s_end(app: Skiplock, db: Verbs, hold: Hold) -> None:
    @app.task(name="t", max_attempts=1)
    def work() -> None:
        hold.in_thread()

    async with running_worker(app, grace=0.1) as worker:
        job = await work.aenqueue()
        await worker.until(hold.began.is_set)
    row = db.job(job.id)
    assert (row.state, row.attempt) == ("ready", 0)


async def test_a_handler_that_swallows_its_cancellation(
    app: Skiplock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skiplock.work.run.STUCK_AFTER", 0.1)

    @app.task(name="stubborn", timeout=0.1, max_attempts=1)
    async def stubborn() -> str:
        while not hold.free.is_set():
            try:
                await hold.on_loop()
            except asyncio.CancelledError:
                continue
        return "late"

    @app.task(name="next")
    async def next_one() -> None: ...

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = await stubborn.aenqueue(), await next_one.aenqueue()
        record = await settled(first)
        assert (record.state, record.attempts[0].error_class) == ("dead", "TimeoutError")
        assert (await worker.until_heard("handler_stuck"))["why"] == "timeout"
        assert not [event for event in worker.heard("attempt_started") if event["job"].id == second.id]
        hold.free.set()
        assert (await settled(second)).state == "completed"
        assert (await worker.until_heard("handler_unstuck"))["job"].id == first.id
        assert ((await first.aget()).state, worker.heard("settle_refused")) == ("dead", [])


async def test_a_handler_that_swallows_it_and_ends_well_is_completed(app: Skiplock) -> None:
    @app.task(name="t", timeout=0.05, max_attempts=1)
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved what there was"
        return "never"

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.result) == ("completed", "saved what there was")


async def test_a_blocked_loop_is_no_lost_worker(app: Skiplock, db: Verbs) -> None:
    """The heart beats in a thread of its own."""

    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        assert db.value("SELECT pg_sleep(1.5)") is not None  # blocking, in C, with the GIL free

    async with running_worker(app, beat_every=0.1, lost_after=0.5) as worker:
        job = await work.aenqueue()
        assert (await settled(job)).state == "completed"
        assert db.rows("SELECT * FROM skiplock.rescue()") == []
    assert worker.heard("worker_lost") == []

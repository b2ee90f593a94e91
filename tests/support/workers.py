"""A real worker inside the test's own event loop.

async with running_worker(app, queues={"default": 5}) as worker:
    job = await task.aenqueue()
    record = await settled(job)
    await worker.until(lambda: seen)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skiplock import JobHandle, JobRecord, JobState, Skiplock
from skiplock.core.events import Event
from skiplock.core.settings import WorkerSettings
from skiplock.worker import Worker

LIMIT = 30.0  # seconds: never what a test waits for, only how long it takes to fail


class RunningWorker:
    """The worker, its task, and what it tells: `events` as they came."""

    def __init__(self, worker: Worker, run: asyncio.Task[None]) -> None:
        self.worker, self.run = worker, run
        self.events: list[Event] = []

    def heard(self, name: str) -> list[dict[str, Any]]:
        """The fields of the events of that name so far."""
        return [event.fields for event in self.events if event.name == name]

    async def until(self, condition: Callable[[], Any], *, limit: float = LIMIT) -> Any:
        """Wait for a true value of `condition`; the worker's end ends the waiting."""
        return await until(condition, limit=limit, unless=self.run)

    async def until_heard(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = await self.until(lambda: self.heard(name))
        return found[-1]


EVENTS = (
    "worker_started", "worker_stopping", "worker_stopped", "worker_lost", "worker_rescued", "attempt_started",
    "attempt_ended", "job_dead", "settle_refused", "handler_stuck", "handler_unstuck", "claim_failed", "settle_failed",
    "beat_failed", "listen_failed", "hook_failed", "promoted", "task_process_started", "task_process_ended",
)  # fmt: skip


@asynccontextmanager
async def running_worker(
    app: Skiplock, *, queues: Mapping[str, int] | None = None, **settings: Any
) -> AsyncIterator[RunningWorker]:
    """Start a worker, wait until it is registered; stop it at the end and raise what it raised."""
    given: dict[str, Any] = {"queues": queues or {"default": 10}, "beat_every": 0.5, "grace": 5.0} | settings
    worker = Worker(app, WorkerSettings(**given))
    run = asyncio.create_task(worker.run())
    running = RunningWorker(worker, run)
    app.events.subscribe(running.events.append, *EVENTS)
    try:
        await running.until(lambda: running.heard("worker_started"))
        yield running
    finally:
        worker.stop("the test ends")
        try:
            async with asyncio.timeout(LIMIT):
                await asyncio.shield(run)
        except TimeoutError:
            pytest.fail("the worker did not stop")


async def until(
    condition: Callable[[], Any], *, limit: float = LIMIT, unless: asyncio.Future[Any] | None = None
) -> Any:
    """The first true value of `condition`. `unless`: nothing is worth waiting for once this is done."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if unless is not None and unless.done():
            unless.result()
            raise AssertionError(f"the worker has ended; the condition is still {value!r}")
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {limit} s")
        await asyncio.sleep(0.005)


async def settled(job: JobHandle, *, state: str | None = None, limit: float = LIMIT) -> JobRecord:
    """The job's record once it is in `state`, or, without one, in a final state."""

    async def look() -> JobRecord | None:
        record = await job.aget()
        reached = record.state == state if state else JobState(record.state).is_final
        seen.append(record.state)
        return record if reached else None

    seen: list[str] = []
    try:
        found: JobRecord = await until(look, limit=limit)
    except AssertionError:
        record = await job.aget()
        raise AssertionError(
            f"job {job.id} is {record.state} after {limit} s; {record.error}; was {sorted(set(seen))}"
        ) from None
    return found

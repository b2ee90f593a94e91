"""The app of the tests of clocks: what each attempt saw, by the database's clock and by its host's."""

from __future__ import annotations

import asyncio
import time

from skiplock import Backoff, JobContext, Skiplock

app = Skiplock()
SEEN = """CREATE TABLE seen (job bigint, attempt integer, host float8, enqueued timestamptz,
    at timestamptz DEFAULT clock_timestamp())"""
RETRY_AFTER = 1.0  # seconds
TIMEOUT = 1.0


async def _note(ctx: JobContext) -> None:
    async with ctx.reach.async_database().connection() as connection:
        await connection.execute(
            "INSERT INTO seen (job, attempt, host, enqueued) VALUES (%s, %s, %s, %s)",
            [ctx.id, ctx.attempt, time.time(), ctx.enqueued_at],
        )


@app.task(name="note")
async def note(ctx: JobContext) -> None:
    """Only that."""
    await _note(ctx)


@app.task(name="flaky", backoff=Backoff(base=RETRY_AFTER, factor=1, jitter=False))
async def flaky(ctx: JobContext) -> None:
    """Fails the first time."""
    await _note(ctx)
    if ctx.attempt == 1:
        raise ValueError("not yet")


@app.task(name="long", timeout=TIMEOUT, max_attempts=1)
async def long(ctx: JobContext) -> None:
    """Takes longer than it may. Without a look at the database: see test_clock.py."""
    await asyncio.sleep(60)


@app.task(name="hold")
async def hold(ctx: JobContext) -> None:
    """Holds its worker's attention."""
    await _note(ctx)
    if ctx.job.losses == 0:
        await asyncio.sleep(60)

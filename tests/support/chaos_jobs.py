"""The app of the chaos tests: handlers that record themselves, wait, block, and kill their own process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from skiplock import JobContext, Resource, Skiplock

app = Skiplock()
RUNS = "CREATE TABLE IF NOT EXISTS runs (job bigint, attempt int, pid int, at timestamptz DEFAULT clock_timestamp())"


@asynccontextmanager
async def pool() -> AsyncIterator[AsyncConnectionPool[Any]]:
    kwargs = {"autocommit": True, "options": "-c synchronous_commit=off"}
    async with AsyncConnectionPool(app.dsn, min_size=1, max_size=4, kwargs=kwargs, open=False) as opened:
        yield opened


async def note(ctx: JobContext, db: Any) -> None:
    async with db.connection() as connection:
        await connection.execute(
            "INSERT INTO runs (job, attempt, pid) VALUES (%s, %s, %s)", [ctx.id, ctx.attempt, os.getpid()]
        )


@app.task(name="record")
async def record(ctx: JobContext, db: Any = Resource(pool, scope="worker")) -> None:
    """Append one row; nothing else."""
    await note(ctx, db)


@app.task(name="wait")
async def wait(ctx: JobContext, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, then take a while."""
    await note(ctx, db)
    await asyncio.sleep(seconds)


@app.task(name="quick")
async def quick() -> None:
    """Nothing at all."""


@app.task(name="block")
async def block(ctx: JobContext, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
    """Block the event loop, as a handler must not."""
    await note(ctx, db)
    time.sleep(seconds)


@app.task(name="thread")
def thread(seconds: float) -> None:
    """Take a while in a thread."""
    time.sleep(seconds)


@app.task(name="poison")
async def poison(after: float) -> None:
    """Kill the process that runs this, after a while."""
    await asyncio.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


def make_runs(dsn: str) -> None:
    """The append-only table the handlers write to."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(RUNS)

"""The app of the chaos tests: handlers that record themselves, wait, block, and kill their own process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from skiplock import JobContext, Resource, Skiplock
from skiplock.core.events import Event

KILL = "SKIPLOCK_TEST_KILL"  # event:nth:signal:file; see `kill_at`
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


@app.task(name="journal")
async def journal(ctx: JobContext, seconds: float = 0.0) -> None:
    """Append to a file outside the database that an attempt began and that it ended, however."""
    _to_journal(f"began {ctx.id}")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _to_journal(f"broken {ctx.id}")
        raise
    _to_journal(f"ended {ctx.id}")


def _to_journal(line: str) -> None:
    with open(os.environ["SKIPLOCK_TEST_JOURNAL"], "a") as file:
        file.write(line + "\n")


def kill_at(event: str, nth: int, number: signal.Signals, marker: Path) -> dict[str, str]:
    """The environment that makes a worker process signal itself at the nth event of that name. Once: whoever finds the file
    made (a process that was started in its place) goes on."""
    return {KILL: f"{event}:{nth}:{number.name}:{marker}"}


def _await_own_end(order: str) -> None:
    event, nth, name, marker = order.split(":", 3)
    seen = 0

    def count(_: Event) -> None:
        nonlocal seen
        seen += 1
        if seen == int(nth) and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.Signals[name])

    app.events.subscribe(count, event)


if KILL in os.environ:
    _await_own_end(os.environ[KILL])


def make_runs(dsn: str) -> None:
    """The append-only table the handlers write to."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(RUNS)

"""The app of these tests. It runs under every kept release, so it uses nothing that is newer than the oldest of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg_pool import AsyncConnectionPool

from skiplock import Backoff, JobContext, Resource, Skiplock

app = Skiplock()
RUNS = "CREATE TABLE runs (job bigint, attempt int, code text, note text)"
AT_ONCE = Backoff(base=0.0, floor=0.0)


@asynccontextmanager
async def pool() -> AsyncIterator[AsyncConnectionPool[Any]]:
    kwargs = {"autocommit": True, "options": "-c synchronous_commit=off"}
    async with AsyncConnectionPool(app.dsn, min_size=1, max_size=4, kwargs=kwargs, open=False) as opened:
        yield opened


async def note(ctx: JobContext, db: Any, text: str = "") -> None:
    async with db.connection() as connection:
        await write(ctx, connection, text)


async def write(ctx: JobContext, connection: Any, text: str) -> None:
    row = [ctx.id, ctx.attempt, os.environ["COMPAT_CODE"], text]
    await connection.execute("INSERT INTO runs VALUES (%s, %s, %s, %s)", row)


@app.task(name="record")
async def record(ctx: JobContext, db: Any = Resource(pool, scope="worker")) -> None:
    """Say that it ran."""
    await note(ctx, db)


@app.task(name="slow")
async def slow(ctx: JobContext, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
    await note(ctx, db)
    await asyncio.sleep(seconds)


@app.task(name="answer")
def answer(text: str) -> int:
    """In a thread, with an argument of any size and a result."""
    return len(text)


@app.task(name="fails_once", max_attempts=2, backoff=AT_ONCE)
async def fails_once(ctx: JobContext) -> str:
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return "the second time"


@app.task(name="steps", max_attempts=2, backoff=AT_ONCE)
async def steps(ctx: JobContext, db: Any = Resource(pool, scope="worker")) -> int:
    """Its effect happens in the first attempt only."""

    async def effect() -> int:
        await note(ctx, db, "effect")
        return ctx.attempt

    value = await ctx.once("effect", effect)
    if ctx.attempt == 1:
        raise ValueError("after the effect")
    return value


@app.task(name="in_transaction")
async def in_transaction(ctx: JobContext) -> None:
    async with ctx.transaction(result={"done": True}) as connection:
        await write(ctx, connection, "in the job's transaction")

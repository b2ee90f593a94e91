"""The app of the chaos test of unique jobs, and its producer: python -m tests.support.unique_jobs SEED BATCHES KEYS."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

import psycopg

from skiplock import JobContext, Resource, Skiplock, Unique
from tests.support.chaos_jobs import pool

BATCH = 25
TABLES = """
CREATE TABLE busy (key integer PRIMARY KEY, job bigint NOT NULL);
CREATE TABLE touched (key integer NOT NULL, job bigint NOT NULL, alone boolean NOT NULL)
"""
app = Skiplock()


@app.task(name="touch", unique=Unique(by=["key"]), max_attempts=1)
async def touch(ctx: JobContext, key: int, n: int, db: Any = Resource(pool, scope="worker")) -> None:
    """Notes whether it is the only one of its key that runs."""
    async with db.connection() as connection:
        cursor = await connection.execute(
            "INSERT INTO busy VALUES (%s, %s) ON CONFLICT (key) DO NOTHING", [key, ctx.id]
        )
        await asyncio.sleep(n % 5 / 1000)
        await connection.execute("DELETE FROM busy WHERE job = %s", [ctx.id])
        await connection.execute("INSERT INTO touched VALUES (%s, %s, %s)", [key, ctx.id, cursor.rowcount == 1])


def produce(seed: int, batches: int, keys: int) -> None:
    """Batches with keys in any order, some of them twice; prints what each row was answered."""
    dice = random.Random(seed)
    for _ in range(batches):
        chosen = [dice.randrange(keys) for _ in range(BATCH)]
        jobs = [_in_some_way(dice).job(key=key, n=dice.randrange(1000)) for key in chosen]
        found = app.enqueue_many(jobs)
        print(json.dumps([[key, job.id, job.is_new] for key, job in zip(chosen, found, strict=True)]))
    app.close()


def _in_some_way(dice: random.Random) -> Any:
    way = dice.random()
    if way < 0.6:
        return touch
    if way < 0.8:
        return touch.using(unique=Unique(by=["key"], on_conflict="replace"))
    return touch.using(unique=Unique(by=["key"], on_conflict="reschedule", longest=1), delay=dice.random() / 20)


def make_tables(dsn: str) -> None:
    """Where the handlers write."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES)


if __name__ == "__main__":
    produce(*(int(text) for text in sys.argv[1:]))

"""The app of the tests of schedules in real processes: a job every second, which says what it was for and by which clock."""

from __future__ import annotations

import os
import time

from skiplock import JobContext, Skiplock

app = Skiplock()
TICKS = "CREATE TABLE ticks (fire timestamptz, job bigint, pid integer, host float8, at timestamptz DEFAULT clock_timestamp())"


@app.every("1s", missed="all")
@app.task(name="tick")
async def tick(ctx: JobContext) -> None:
    """Notes its fire."""
    async with ctx.reach.async_database().connection() as connection:
        await connection.execute(
            "INSERT INTO ticks (fire, job, pid, host) VALUES (%s, %s, %s, %s)",
            [ctx.scheduled_for, ctx.id, os.getpid(), time.time()],
        )

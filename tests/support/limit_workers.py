"""A process with several workers in it, whose handlers record when they began and ended, by the database's clock.

python -m tests.support.limit_workers DSN NUMBER
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg_pool import AsyncConnectionPool

from skiplock import JobContext, Resource, Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.worker import Worker
from tests.support.fleets import ROOT
from tests.support.waiting import eventually

SPANS = """CREATE TABLE spans (n bigint GENERATED ALWAYS AS IDENTITY, key text, job bigint, attempt int, pid int,
    began timestamptz DEFAULT clock_timestamp(), ended timestamptz)"""
_BEGAN = "INSERT INTO spans (key, job, attempt, pid) VALUES (%s, %s, %s, %s) RETURNING n"
LOST_AFTER = 1.5


def make_app(dsn: str) -> Skiplock:
    """`occupy` takes a while; `start` only records that it began; `stumble` fails as often as it is told."""
    app = Skiplock(dsn)

    @asynccontextmanager
    async def pool() -> AsyncIterator[AsyncConnectionPool[Any]]:
        kwargs = {"autocommit": True, "options": "-c synchronous_commit=off"}
        async with AsyncConnectionPool(dsn, min_size=1, max_size=2, kwargs=kwargs, open=False) as opened:
            yield opened

    async def begin(ctx: JobContext, db: Any, key: str) -> int:
        async with db.connection() as connection:
            found = await connection.execute(_BEGAN, [key, ctx.id, ctx.attempt, os.getpid()])
            [n] = await found.fetchone()
        return int(n)

    async def end(db: Any, n: int) -> None:
        async with db.connection() as connection:
            await connection.execute("UPDATE spans SET ended = clock_timestamp() WHERE n = %s", [n])

    @app.task(name="occupy")
    async def occupy(ctx: JobContext, key: str, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
        n = await begin(ctx, db, key)
        await asyncio.sleep(seconds)
        await end(db, n)

    @app.task(name="start")
    async def start(ctx: JobContext, key: str, db: Any = Resource(pool, scope="worker")) -> None:
        await begin(ctx, db, key)

    @app.task(name="stumble", max_attempts=3)
    async def stumble(ctx: JobContext, key: str, failures: int, db: Any = Resource(pool, scope="worker")) -> None:
        n = await begin(ctx, db, key)
        await end(db, n)
        if ctx.attempt <= failures:
            raise RuntimeError("stumbles")

    return app


async def _run(dsn: str, number: int) -> None:
    settings = WorkerSettings(queues={"default": 10}, beat_every=LOST_AFTER / 3, lost_after=LOST_AFTER, grace=5.0)
    workers = [Worker(make_app(dsn), settings) for _ in range(number)]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [w.stop("SIGTERM") for w in workers])
    await asyncio.gather(*[worker.run() for worker in workers])


class LimitWorkers:
    """Some such processes."""

    def __init__(self, dsn: str, processes: int, each: int) -> None:
        self._dsn, self._each = dsn, each
        self.processes = [self._start() for _ in range(processes)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.limit_workers", self._dsn, str(self._each)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        return subprocess.Popen(command, cwd=ROOT, env=environment)

    def kill(self, nth: int) -> int:
        """SIGKILL to one of them; another is started in its place. Answers the pid of the dead."""
        killed = self.processes[nth]
        killed.kill()
        killed.wait(10)
        self.processes[nth] = self._start()
        return killed.pid

    def stop(self) -> None:
        """Let all of them finish."""
        for process in self.processes:
            process.terminate()
        eventually(lambda: all(process.poll() is not None for process in self.processes), seconds=30)


@contextmanager
def limit_workers(dsn: str, processes: int, each: int) -> Iterator[LimitWorkers]:
    """Running; killed at the end whatever happened."""
    found = LimitWorkers(dsn, processes, each)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.wait(10)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2])))

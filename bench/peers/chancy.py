"""Chancy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer

_marks: Marks | None = None


async def noop(*, to: str, subject: str, n: int) -> None:
    """The job; found by the name of its module."""
    assert _marks
    _marks.start(n)


class Adapter(Peer):
    name = "chancy"
    packages = ("chancy", "psycopg[binary]", "uvloop")
    settings = "async executor, concurrency 1,000, eager_polling, uvloop, pool 10, logs warnings; bulk: push_many"
    unfinished_sql = "select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying')"
    _chancy: Any

    def _app(self) -> Any:
        from chancy import Chancy

        quiet = logging.getLogger("quiet")
        quiet.setLevel(logging.WARNING)
        return Chancy(self.dsn, log=quiet)

    def setup(self) -> None:
        async def install() -> None:
            from chancy import Chancy, Queue

            async with self._app() as app:
                await app.migrate()
                queue = Queue("q", concurrency=1000, executor=Chancy.Executor.Async, eager_polling=True)
                await app.declare(queue)

        run(install())

    async def open(self) -> None:
        self._chancy = self._app()
        await self._chancy.__aenter__()

    async def bulk(self, numbers: Sequence[int]) -> None:
        async for _ in self._chancy.push_many([_job(n) for n in numbers]):
            pass

    async def one(self, n: int) -> None:
        await self._chancy.push(_job(n))

    async def close(self) -> None:
        await self._chancy.__aexit__(None, None, None)

    def work(self, marks: Marks) -> None:
        global _marks
        _marks = marks
        run(self._loop())

    async def _loop(self) -> None:
        from chancy import Worker

        async with self._app() as app, Worker(app, shutdown_timeout=3) as worker:
            await worker.wait_for_shutdown()


def _job(n: int) -> Any:
    from chancy import Job

    return Job.from_func(noop, queue="q", kwargs=payload(n))

"""arq."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer, gathered
from bench.system import Ask


class Adapter(RedisPeer):
    name = "arq"
    packages = ("arq", "redis[hiredis]", "uvloop")
    settings = (
        "max_jobs 200, queue_read_limit 1,000, polls each 0.02 s (default 0.5), results not kept, uvloop, hiredis"
    )
    has_bulk = False
    _pool: Any

    def _redis(self) -> Any:
        from arq.connections import RedisSettings

        return RedisSettings.from_dsn(self.dsn)

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("ZCARD", "arq:queue"))

    async def open(self) -> None:
        from arq import create_pool

        self._pool = await create_pool(self._redis())

    async def bulk(self, numbers: Sequence[int]) -> None:
        await gathered(self.one, numbers)

    async def one(self, n: int) -> None:
        await self._pool.enqueue_job("noop", **payload(n))

    async def close(self) -> None:
        await self._pool.aclose()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        from arq.worker import Worker, func

        async def noop(context: Any, to: str, subject: str, n: int) -> None:
            marks.start(n)

        worker = Worker(
            [func(noop, name="noop")],
            redis_settings=self._redis(),
            max_jobs=200,
            queue_read_limit=1000,
            poll_delay=0.02,
            keep_result=0,
            log_results=False,
        )
        await worker.async_run()

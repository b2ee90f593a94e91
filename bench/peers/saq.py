"""SAQ, with Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer, gathered
from bench.system import Ask


class Adapter(RedisPeer):
    name = "saq"
    # It needs typing_extensions without saying so.
    packages = ("saq[redis]", "hiredis", "uvloop", "typing_extensions")
    settings = "Redis queue, concurrency 50, finished jobs not kept, uvloop, hiredis"
    has_bulk = False
    _queue: Any

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("ZCARD", "saq:default:incomplete"))

    async def open(self) -> None:
        from saq.queue.redis import RedisQueue

        self._queue = RedisQueue.from_url(self.dsn)
        await self._queue.connect()

    async def bulk(self, numbers: Sequence[int]) -> None:
        await gathered(self.one, numbers)

    async def one(self, n: int) -> None:
        await self._queue.enqueue("noop", ttl=-1, **payload(n))

    async def close(self) -> None:
        await self._queue.disconnect()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        from saq import Worker

        async def noop(context: Any, *, to: str, subject: str, n: int) -> None:
            marks.start(n)

        await self.open()
        await Worker(self._queue, functions=[("noop", noop)], concurrency=50).start()

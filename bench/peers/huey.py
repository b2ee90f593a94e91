"""Huey. It takes a job out of Redis before it runs: a crash loses it."""

from __future__ import annotations

from typing import Any

from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer
from bench.system import Ask


class Adapter(RedisPeer):
    name = "huey"
    packages = ("huey", "redis[hiredis]")
    settings = "4 threads, no results, no periodic tasks, hiredis; a job leaves the store when taken"
    has_bulk = False
    _noop: Any

    def _open(self, marks: Marks | None) -> Any:
        from huey import RedisHuey

        huey = RedisHuey("bench", url=self.dsn, results=False)

        @huey.task(name="noop")
        def noop(to: str, subject: str, n: int) -> None:
            assert marks
            marks.start(n)

        self._noop = noop
        return huey

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("LLEN", "huey.redis.bench"))

    async def open(self) -> None:
        self._open(None)

    async def one(self, n: int) -> None:
        self._noop(**payload(n))

    def work(self, marks: Marks) -> None:
        self._open(marks).create_consumer(workers=4, worker_type="thread", periodic=False).run()

"""Taskiq, with a Redis stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer, gathered, on_signal
from bench.system import Ask


class Adapter(RedisPeer):
    name = "taskiq"
    packages = ("taskiq", "taskiq-redis", "redis[hiredis]", "uvloop")
    settings = "Redis stream with acks, 200 async tasks, prefetch 200, no parsing, uvloop, hiredis, no results"
    has_bulk = False
    _broker: Any
    _noop: Any

    def _open(self, marks: Marks | None) -> None:
        from taskiq_redis import RedisStreamBroker

        self._broker = RedisStreamBroker(self.dsn, consumer_id="0", xread_count=200)

        @self._broker.task(task_name="noop")
        async def noop(to: str, subject: str, n: int) -> None:
            assert marks
            marks.start(n)

        self._noop = noop

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        found = ask("XINFO", "GROUPS", "taskiq")[0]
        group = dict(zip(found[::2], found[1::2], strict=True))
        return int(group["pending"]) + int(group["lag"] or 0)

    async def open(self) -> None:
        self._open(None)
        await self._broker.startup()

    async def bulk(self, numbers: Sequence[int]) -> None:
        await gathered(self.one, numbers)

    async def one(self, n: int) -> None:
        await self._noop.kiq(**payload(n))

    async def close(self) -> None:
        await self._broker.shutdown()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        from taskiq.api import run_receiver_task

        self._open(marks)
        receiver = run_receiver_task(
            self._broker, validate_params=False, max_async_tasks=200, max_prefetch=200, run_startup=True
        )
        task = asyncio.create_task(receiver)
        on_signal(task.cancel)
        await asyncio.wait([task])

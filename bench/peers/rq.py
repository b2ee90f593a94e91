"""RQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer
from bench.system import Ask

BATCH = 1_000
_NOOP = "bench.peers.rq.noop"
_marks: Marks | None = None


def noop(to: str, subject: str, n: int) -> None:
    """The job; found by the name of its module."""
    assert _marks
    _marks.start(n)


class Adapter(RedisPeer):
    name = "rq"
    packages = ("rq", "redis[hiredis]")
    settings = (
        f"SimpleWorker (the default one forks for each job), no results, hiredis; bulk: enqueue_many of {BATCH:,}"
    )
    _queue: Any

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("LLEN", "rq:queue:default")) + int(ask("ZCARD", "rq:wip:default"))

    async def open(self) -> None:
        import redis
        from rq import Queue

        self._queue = Queue(connection=redis.from_url(self.dsn))

    async def bulk(self, numbers: Sequence[int]) -> None:
        queue = self._queue
        for k in range(0, len(numbers), BATCH):
            part = numbers[k : k + BATCH]
            queue.enqueue_many([queue.prepare_data(_NOOP, kwargs=payload(n), result_ttl=0) for n in part])

    async def one(self, n: int) -> None:
        self._queue.enqueue(_NOOP, kwargs=payload(n), result_ttl=0)

    def work(self, marks: Marks) -> None:
        import redis
        from rq import Queue, SimpleWorker

        global _marks
        _marks = marks
        connection = redis.from_url(self.dsn)
        SimpleWorker([Queue(connection=connection)], connection=connection).work(logging_level="WARNING")

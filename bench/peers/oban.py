"""Oban for Python, the open-source edition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer, until_signal

BATCH = 1_000


class Adapter(Peer):
    name = "oban"
    packages = ("oban", "psycopg[binary]", "orjson", "uvloop")
    needs_python = (3, 12)
    settings = f"uvloop and orjson as in its command, queue limit 300, pool 10; bulk: enqueue_many of {BATCH:,}"
    unfinished_sql = """
        select count(*) from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable')"""
    _pool: Any
    _oban: Any
    _noop: Any

    def setup(self) -> None:
        async def make() -> None:
            from oban import Oban
            from oban.schema import install

            pool = await Oban.create_pool(self.dsn)
            await install(pool)
            await pool.close()

        run(make())

    async def open(self) -> None:
        from oban import Oban

        self._noop = _worker(None)
        self._pool = await Oban.create_pool(self.dsn)
        self._oban = Oban(pool=self._pool)
        await self._oban.start()

    async def bulk(self, numbers: Sequence[int]) -> None:
        for k in range(0, len(numbers), BATCH):
            await self._oban.enqueue_many([self._noop.new(payload(n)) for n in numbers[k : k + BATCH]])

    async def one(self, n: int) -> None:
        await self._oban.enqueue(self._noop.new(payload(n)))

    async def close(self) -> None:
        await self._oban.stop()
        await self._pool.close()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        from oban import Oban

        _worker(marks)
        pool = await Oban.create_pool(self.dsn, min_size=2, max_size=10)
        async with Oban(pool=pool, queues={"default": 300}):
            await until_signal()
        await pool.close()


def _worker(marks: Marks | None) -> Any:
    import orjson
    from oban import worker
    from psycopg.types.json import set_json_dumps, set_json_loads

    set_json_dumps(orjson.dumps)
    set_json_loads(orjson.loads)

    @worker(queue="default")
    class Noop:
        async def process(self, job: Any) -> None:
            assert marks
            marks.start(job.args["n"])

    return Noop

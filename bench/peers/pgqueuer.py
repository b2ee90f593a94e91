"""PGQueuer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer, on_signal

BATCH = 2_000


class Adapter(Peer):
    name = "pgqueuer"
    packages = ("pgqueuer[asyncpg]", "uvloop")
    settings = f"asyncpg pool, uvloop, batch_size 500, durable; bulk: enqueue of {BATCH:,}"
    unfinished_sql = "select count(*) from pgqueuer"
    _connection: Any
    _queries: Any

    def setup(self) -> None:
        async def install() -> None:
            await self.open()
            await self._queries.install()
            await self.close()

        run(install())

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        self._connection = await asyncpg.connect(self.dsn)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def bulk(self, numbers: Sequence[int]) -> None:
        for k in range(0, len(numbers), BATCH):
            part = [_encode(n) for n in numbers[k : k + BATCH]]
            await self._queries.enqueue(["noop"] * len(part), part, [0] * len(part))

    async def one(self, n: int) -> None:
        await self._queries.enqueue("noop", _encode(n))

    async def close(self) -> None:
        await self._connection.close()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgPoolDriver

        pool = await asyncpg.create_pool(self.dsn, min_size=4, max_size=8)
        queuer = PgQueuer(AsyncpgPoolDriver(pool))

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            marks.start(json.loads(job.payload)["n"])

        on_signal(queuer.shutdown.set)
        await queuer.run(batch_size=500)


def _encode(n: int) -> bytes:
    return json.dumps(payload(n)).encode()

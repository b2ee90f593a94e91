"""procrastinate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer

BATCH = 1_000


class Adapter(Peer):
    name = "procrastinate"
    packages = ("procrastinate", "psycopg[binary]", "uvloop")
    settings = f"psycopg binary, uvloop, concurrency 30, pool 4 to 20, listen/notify; bulk: batch_defer of {BATCH:,}"
    unfinished_sql = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
    _opened: Any
    _noop: Any

    def _app(self, marks: Marks | None = None) -> Any:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.dsn, min_size=4, max_size=20))

        @app.task(name="noop")
        async def noop(to: str, subject: str, n: int) -> None:
            assert marks
            marks.start(n)

        self._noop = noop
        return app

    def setup(self) -> None:
        async def apply() -> None:
            async with self._app().open_async() as app:
                await app.schema_manager.apply_schema_async()

        run(apply())

    async def open(self) -> None:
        self._opened = self._app().open_async()
        await self._opened.__aenter__()

    async def bulk(self, numbers: Sequence[int]) -> None:
        for k in range(0, len(numbers), BATCH):
            await self._noop.batch_defer_async(*[payload(n) for n in numbers[k : k + BATCH]])

    async def one(self, n: int) -> None:
        await self._noop.defer_async(**payload(n))

    async def close(self) -> None:
        await self._opened.__aexit__(None, None, None)

    def work(self, marks: Marks) -> None:
        async def loop() -> None:
            async with self._app(marks).open_async() as app:
                await app.run_worker_async(concurrency=30)

        logging.basicConfig(level=logging.WARNING)
        run(loop())

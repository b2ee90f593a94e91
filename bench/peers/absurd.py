"""Absurd: durable workflows, where a job is a task and a run of it."""

from __future__ import annotations

from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer


class Adapter(Peer):
    name = "absurd"
    packages = ("absurd-sdk", "absurdctl", "psycopg[binary]", "uvloop")
    settings = "async client, concurrency and batch 100, uvloop, polls each 0.05 s (default 0.25; it has no notify)"
    unfinished_sql = "select count(*) from absurd.t_default where state in ('pending', 'running', 'sleeping')"
    has_bulk = False
    _client: Any

    def _open(self, marks: Marks | None) -> Any:
        from absurd_sdk import AsyncAbsurd

        client = AsyncAbsurd(self.dsn)

        @client.register_task(name="noop")
        async def noop(params: dict[str, Any], context: Any) -> None:
            assert marks
            marks.start(params["n"])

        return client

    def setup(self) -> None:
        import psycopg
        from absurdctl import BUNDLED_SCHEMA_SQL

        async def make_queue() -> None:
            client = self._open(None)
            await client.create_queue("default")
            await client.close()

        with psycopg.connect(self.dsn) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL)
        run(make_queue())

    async def open(self) -> None:
        self._client = self._open(None)

    async def one(self, n: int) -> None:
        await self._client.spawn("noop", payload(n))

    async def close(self) -> None:
        await self._client.close()

    def work(self, marks: Marks) -> None:
        run(self._open(marks).start_worker(concurrency=100, batch_size=100, poll_interval=0.05))

"""The reference: the least that a queue in PostgreSQL can do, as a measure of the machine.

A plain table; one connection claims 200 rows with SKIP LOCKED, calls the handler for each and deletes them: two
transactions for 200 jobs. No attempts, no history, no lease, no timeouts, no waking up: it polls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import asyncpg
import psycopg

from bench.marks import Marks, payload
from bench.system import System

BATCH = 200
POLL = 0.02  # seconds
_SCHEMA = """
create table ref_job (id bigserial primary key, state smallint not null default 0, payload jsonb not null);
create index on ref_job (id) where state = 0"""
_CLAIM = f"""
with c as (select id from ref_job where state = 0 order by id for update skip locked limit {BATCH})
update ref_job j set state = 1 from c where j.id = c.id returning j.id, j.payload"""
_DELETE = "delete from ref_job where id = any($1)"


class Reference(System):
    """A raw asyncpg loop."""

    name = "reference"
    settings = f"one connection, batches of {BATCH}, COPY to fill"
    base_sql = "select case when is_called then last_value else 0 end from ref_job_id_seq"
    unfinished_sql = "select count(*) from ref_job where id > %(base)s and %(jobs)s > 0"
    _connection: Any

    @classmethod
    def version(cls) -> str:
        return f"asyncpg {asyncpg.__version__}"

    def setup(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement.encode())

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.dsn)

    async def bulk(self, numbers: Sequence[int]) -> None:
        records = [(json.dumps(payload(n)),) for n in numbers]
        await self._connection.copy_records_to_table("ref_job", records=records, columns=["payload"])

    async def one(self, n: int) -> None:
        await self._connection.execute("insert into ref_job (payload) values ($1)", json.dumps(payload(n)))

    async def close(self) -> None:
        await self._connection.close()

    def work(self, marks: Marks) -> None:
        from bench.child import run

        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        await self.open()
        connection = self._connection
        while True:
            rows = await connection.fetch(_CLAIM)
            for _, text in rows:
                marks.start(json.loads(text)["n"])
            if rows:
                await connection.execute(_DELETE, [row[0] for row in rows])
            else:
                await asyncio.sleep(POLL)

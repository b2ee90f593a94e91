"""W1's second measure: the same rows as skiplock's, stored by a multi-row INSERT that does nothing else.

No checks, no ids returned, no bell: what PostgreSQL and asyncpg need to store rows as wide as skiplock's, with their
indexes. It only enqueues.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import asyncpg
import psycopg

from bench.marks import Marks, payload
from bench.system import System
from skiplock.store.migrate import migrate

CHUNK = 5_000  # as skiplock's enqueue_many
_INSERT = """
insert into raw_ready (id, position, enqueued_at, max_attempts, priority, state, queue, task, args)
select n.id, n.id, now(), 10, 0, 'ready', 'default', 'bench.noop', n.args
from (select nextval('raw_numbers') as id, u.args from unnest($1::text[]::json[]) as u (args)) n"""


class RawInsert(System):
    """INSERT … SELECT FROM unnest by asyncpg, into a plain copy of skiplock's table of ready jobs."""

    name = "raw insert"
    base_sql = "select case when is_called then last_value else 0 end from raw_numbers"
    unfinished_sql = "select count(*) from raw_ready where id > %(base)s and %(jobs)s > 0"
    _connection: Any

    def setup(self) -> None:
        migrate(self.dsn)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("create table raw_ready (like skiplock.jobs_ready including all)")
            connection.execute("create sequence raw_numbers as bigint")

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.dsn)

    async def bulk(self, numbers: Sequence[int]) -> None:
        for at in range(0, len(numbers), CHUNK):
            await self._connection.execute(_INSERT, [json.dumps(payload(n)) for n in numbers[at : at + CHUNK]])

    async def one(self, n: int) -> None:
        await self._connection.execute(_INSERT, [json.dumps(payload(n))])

    async def close(self) -> None:
        await self._connection.close()

    def work(self, marks: Marks) -> None:
        raise NotImplementedError("it only enqueues")

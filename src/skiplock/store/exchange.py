"""One statement on an async connection of our own, by the shortest way through libpq.

psycopg's cursor does more than our calls need (conversion of parameters, a timer for Ctrl-C, a lock, named statements).
All our parameters are text already, and rows are read by psycopg's own loaders, so only the exchange itself is ours.
Measured beside `AsyncRawCursor.execute` and `fetchall`, on a machine that was asleep before each statement (50 a second):
see docs/performance.md, "Waking an idle worker".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus

from skiplock.store.call import Row

_ROWS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Exchange:
    """Statements on one connection in autocommit, one at a time; its owner sees to that."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._reader = Transformer(connection)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, sql: bytes, params: Sequence[str | None]) -> Sequence[Row]:
        """The rows of one statement, one transaction.

        Raises psycopg errors. After any error that is not the statement's own, and after a cancellation, the connection
        is in doubt: its owner closes it (`in_doubt`).
        """
        pgconn = self._pgconn
        pgconn.send_query_params(sql, [None if p is None else p.encode() for p in params])
        if pgconn.flush():
            await self._flush()
        while pgconn.is_busy():
            await self._readable()
            pgconn.consume_input()
        result = pgconn.get_result()
        while pgconn.is_busy():  # what ends the answer may come in a packet of its own
            await self._readable()
            pgconn.consume_input()
        while (more := pgconn.get_result()) is not None:
            result = more
        if result is None:
            raise OperationalError("the server closed the connection without an answer")
        if result.status not in _ROWS:
            raise error_from_result(result, encoding="utf-8")
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)

    @property
    def in_doubt(self) -> bool:
        """Whether the connection is anything but idle and sound."""
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    async def _flush(self) -> None:
        """A statement larger than the socket's buffer: the server may answer (an error, say) before it has read it all."""
        fd = self._pgconn.socket
        while self._pgconn.flush():
            self._loop.add_writer(fd, self._ready)
            try:
                await self._readable()
            finally:
                self._loop.remove_writer(fd)
            self._pgconn.consume_input()

    async def _readable(self) -> None:
        fd = self._pgconn.socket
        self._waiter = self._loop.create_future()
        self._loop.add_reader(fd, self._ready)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._loop.remove_reader(fd)

    def _ready(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

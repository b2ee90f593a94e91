"""One statement on a connection of our own, by the shortest way through libpq.

psycopg's cursor does more than our calls need (conversion of parameters, a timer for Ctrl-C, a lock). All our parameters
are text already, and psycopg's loaders read the rows; only the exchange itself is ours. From the third time on a statement
is prepared: parsing and planning `SELECT … FROM skiplock.claim(…)` took 0.28 of the 0.58 ms that claiming one job took the
server after a pause, 0.22 of 0.51 ms of an enqueue. See docs/performance.md, "Waking an idle worker".

Through a transaction pooler a prepared statement may be gone, or be another connection's: its name is a digest of its
text, so it is never another statement, and the first time that it is missing (26000) the connection prepares no more.
Nothing has happened then, so the statement is simply sent as it is.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection, OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from skiplock.store.call import Row

T = TypeVar("T")
Steps = Generator[Wait, Ready | int, T]  # yields what to wait for; psycopg's protocol, so that its `wait` drives it too
PREPARE_AT = 3  # uses: whoever enqueues once and ends should not pay for it
MOST_PREPARED = 50  # statements of a connection
_ROWS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_THERE = b"42P05"  # duplicate_prepared_statement: made by whoever had the connection before us, with the same text
# invalid_sql_statement_name; "cached plan must not change result type", after a migration
_NOT_HERE = (b"26000", b"0A000")


class Exchange:
    """Statements on one connection in autocommit, one at a time; its owner sees to that.

    Raises psycopg errors. After an error that is not the statement's own, and after a cancellation, the connection is
    `in_doubt`, and its owner closes it.
    """

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._reader = Transformer(connection)
        self._uses: Counter[str] = Counter()
        self._prepared: dict[str, bytes] = {}
        self._prepares = True

    @property
    def in_doubt(self) -> bool:
        """Whether the connection is anything but idle and sound."""
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    def close(self) -> None:
        """Close a sync connection."""
        assert isinstance(self.connection, Connection)
        self.connection.close()

    async def aclose(self) -> None:
        """Close an async connection."""
        assert isinstance(self.connection, AsyncConnection)
        await self.connection.close()

    def run(self, sql: str, params: Sequence[str | None]) -> Sequence[Row]:
        """The rows of one statement, one transaction, on a sync connection."""
        assert isinstance(self.connection, Connection)
        return self.connection.wait(self._statement(sql, params))

    async def arun(self, sql: str, params: Sequence[str | None]) -> Sequence[Row]:
        """The same on an async connection."""
        steps, fd = self._statement(sql, params), self._pgconn.socket
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(await _wait(fd, wanted))
        except StopIteration as end:
            rows: Sequence[Row] = end.value
            return rows
        finally:
            steps.close()

    def _statement(self, sql: str, params: Sequence[str | None]) -> Steps[Sequence[Row]]:
        values = [None if p is None else p.encode() for p in params]
        result = (yield from self._by_name(sql, values)) if self._prepares else None
        if result is None:
            self._pgconn.send_query_params(sql.encode(), values)
            result = yield from self._answer()
        if result.status not in _ROWS:
            raise error_from_result(result, encoding="utf-8")
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)

    def _by_name(self, sql: str, values: list[bytes | None]) -> Steps[PGresult | None]:
        """The answer of the prepared statement; None: it is not prepared, or cannot be."""
        name = self._prepared.get(sql)
        if name is None:
            self._uses[sql] += 1
            if self._uses[sql] < PREPARE_AT or len(self._prepared) >= MOST_PREPARED:
                return None
            name = b"skiplock_" + hashlib.blake2b(sql.encode(), digest_size=16).hexdigest().encode()
            self._pgconn.send_prepare(name, sql.encode())
            made = yield from self._answer()
            if made.status != ExecStatus.COMMAND_OK and made.error_field(DiagnosticField.SQLSTATE) != _THERE:
                self._prepares = False
                return None
            self._prepared[sql] = name
        self._pgconn.send_query_prepared(name, values)
        result = yield from self._answer()
        if result.status not in _ROWS and result.error_field(DiagnosticField.SQLSTATE) in _NOT_HERE:
            self._prepares = False
            return None
        return result

    def _answer(self) -> Steps[PGresult]:
        pgconn, last = self._pgconn, None
        while pgconn.flush():
            # Larger than the socket's buffer; the server may answer (an error, say) before it has read it all.
            if (yield Wait.RW) & Ready.R:
                pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                yield Wait.R
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        if last is None:
            raise OperationalError("the server closed the connection without an answer")
        return last


async def _wait(fd: int, wanted: Wait) -> Ready:
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[Ready] = loop.create_future()

    def ready(what: Ready) -> None:
        if not woken.done():
            woken.set_result(what)

    if wanted & Wait.R:
        loop.add_reader(fd, ready, Ready.R)
    if wanted & Wait.W:
        loop.add_writer(fd, ready, Ready.W)
    try:
        return await woken
    finally:
        if wanted & Wait.R:
            loop.remove_reader(fd)
        if wanted & Wait.W:
            loop.remove_writer(fd)

"""One statement on a connection of our own, by the shortest way through libpq.

psycopg's cursor does more than our calls need (conversion of parameters, a timer for Ctrl-C, a lock). All our parameters
are text already, and psycopg's loaders read the rows; only the exchange itself is ours. From the third time on a statement
is prepared: parsing and planning `SELECT … FROM skiplock.claim(…)` took 0.28 of the 0.58 ms that claiming one job took the
server after a pause, 0.22 of 0.51 ms of an enqueue. See docs/performance.md, "Waking an idle worker".

Through a transaction pooler a prepared statement may be gone, or be another connection's: its name is a digest of its
text, so it is never another statement, and the first time that it is missing (26000) the connection prepares no more.
Nothing has happened then, so the statement is simply sent as it is.

What a role or a database may have set otherwise than our statements rely on (`_RELIED_ON`: serializable transactions, another
form of dates) is found out once a connection, before its first statement. A session SET would be lost or leak behind a
pooler, which refuses start-up options too, so on such a connection every statement goes in a transaction of its own that
says what it needs: BEGIN, settings, statement and COMMIT, in one round trip. Nobody else pays for that.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, Connection, DataError, OperationalError, Pipeline
from psycopg.abc import Buffer
from psycopg.abc import Transformer as Reader
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from skiplock.store.call import Row

T = TypeVar("T")
Steps = Generator[Wait, Ready | int, T]  # yields what to wait for; psycopg's protocol, so that its `wait` drives it too
_Commands = Sequence[tuple[bytes, list[bytes | None]]]
PREPARE_AT = 3  # uses: whoever enqueues once and ends should not pay for it
MOST_PREPARED = 50  # statements of a connection
_ROWS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_THERE = b"42P05"  # duplicate_prepared_statement: made by whoever had the connection before us, with the same text
# invalid_sql_statement_name; "cached plan must not change result type", after a migration
_NOT_HERE = (b"26000", b"0A000")
_SERIALIZATION_FAILURE = b"40001"

# Setting → (the condition under which it is left alone, the value that it gets else).
#   extra_float_digits  seconds until a job is due would arrive rounded to a digit
#   array_nulls         NULL in an array would be the text "NULL"
#   jit                 a role that compiles everything would have our one-row statements compiled, every time
_RELIED_ON = {
    "DateStyle": ("current_setting('DateStyle') LIKE 'ISO%'", "ISO"),
    "extra_float_digits": ("current_setting('extra_float_digits')::integer > 0", "1"),
    "array_nulls": ("current_setting('array_nulls') = 'on'", "on"),
    "jit": (
        "(coalesce(current_setting('jit', true), 'off') = 'off' OR current_setting('jit_above_cost')::float8 NOT BETWEEN 0 AND 10000)",
        "off",
    ),
}
_ASK = " AND ".join(
    ["SELECT current_setting('default_transaction_isolation') = 'read committed'", *[c for c, _ in _RELIED_ON.values()]]
).encode()
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_SET = ("SELECT " + ", ".join([f"set_config('{k}', '{value}', true)" for k, (_, value) in _RELIED_ON.items()])).encode()
_COMMIT, _ROLLBACK = b"COMMIT", b"ROLLBACK"
_TIMESTAMPTZ = 1184  # its oid
# What was found out, kept beyond the time that a pool lends a connection.
_usual: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


class Exchange:
    """Statements on one connection in autocommit, one at a time; its owner sees to that.

    Raises psycopg errors. After an error that is not the statement's own, and after a cancellation, the connection is
    `in_doubt`, and its owner closes it.
    """

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._deadline: float | None = None  # monotonic time by which the answer must be here
        self._uses: Counter[str] = Counter()
        self._prepared: dict[str, bytes] = {}
        self._prepares = True
        self._is_usual = _usual.get(connection)  # None: not known yet
        self._reader = _reader(connection, self._is_usual is not False)

    @property
    def in_doubt(self) -> bool:
        """Whether the connection is anything but idle and sound."""
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    def is_cut(self) -> bool:
        """Whether the server has closed the connection while it lay idle, as far as has been heard: asks nobody."""
        poll = select.poll()
        try:
            poll.register(self._pgconn.socket, select.POLLIN)
            # It may have said something before, or something else (a setting was reloaded); the end comes last.
            for _ in range(10):
                if not poll.poll(0):
                    return False
                self._pgconn.consume_input()
        except OperationalError:
            return True
        return False

    def close(self) -> None:
        """Close a sync connection."""
        assert isinstance(self.connection, Connection)
        self.connection.close()

    async def aclose(self) -> None:
        """Close an async connection."""
        assert isinstance(self.connection, AsyncConnection)
        await self.connection.close()

    def run(self, sql: str, params: Sequence[str | None], limit: float | None = None) -> Sequence[Row]:
        """The rows of one statement, one transaction, on a sync connection. `limit`: seconds to wait for them."""
        assert isinstance(self.connection, Connection)
        self._deadline = None if limit is None else time.monotonic() + limit
        return self.connection.wait(self._statement(sql, params))

    async def arun(self, sql: str, params: Sequence[str | None]) -> Sequence[Row]:
        """The same on an async connection. Without a limit: its owner cancels the waiting."""
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
        values = [None if p is None else _sendable(p) for p in params]
        if self._is_usual is None:
            yield from self._find_out()
        if self._is_usual:
            result = (yield from self._by_name(sql, values)) if self._prepares else None
            if result is None:
                result = yield from self._one(sql.encode(), values)
        else:
            result = yield from self._in_transaction(sql.encode(), values)
        if result.status not in _ROWS:
            if result.error_field(DiagnosticField.SQLSTATE) == _SERIALIZATION_FAILURE:
                self._is_usual = None  # not ours, in a usual session: a pooler may have lent us another one
            raise error_from_result(result, encoding="utf-8")
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)

    def _find_out(self) -> Steps[None]:
        result = yield from self._one(_ASK, [])
        if result.status not in _ROWS:
            raise error_from_result(result, encoding="utf-8")
        self._is_usual = _usual[self.connection] = result.get_value(0, 0) == b"t"
        self._reader = _reader(self.connection, self._is_usual)

    def _one(self, sql: bytes, values: list[bytes | None]) -> Steps[PGresult]:
        self._pgconn.send_query_params(sql, values)
        return (yield from self._answer())

    def _in_transaction(self, sql: bytes, values: list[bytes | None]) -> Steps[PGresult]:
        """The answer to a statement in a session whose settings are not those that it relies on."""
        commands: Sequence[tuple[bytes, list[bytes | None]]]
        commands = ((_BEGIN, []), (_SET, []), (sql, values), (_COMMIT, []))
        results = yield from (self._at_once(commands) if Pipeline.is_supported() else self._in_turn(commands))
        if self._pgconn.transaction_status == TransactionStatus.INERROR:
            yield from self._one(_ROLLBACK, [])
        return next((result for result in results if result.status not in _ROWS), results[2])

    def _in_turn(self, commands: _Commands) -> Steps[list[PGresult]]:
        results: list[PGresult] = []
        for sql, values in commands:
            results.append((yield from self._one(sql, values)))
            if results[-1].status not in _ROWS:
                break
        return results

    def _at_once(self, commands: _Commands) -> Steps[list[PGresult]]:
        """The answers up to the first that is an error, in one round trip."""
        pgconn, results, ended = self._pgconn, list[PGresult](), False
        pgconn.enter_pipeline_mode()
        for sql, values in commands:
            pgconn.send_query_params(sql, values)
        pgconn.pipeline_sync()
        yield from self._sent()
        while True:
            result = yield from self._next()
            if result is None and ended:  # twice in a row: nothing more will come
                raise OperationalError("the server closed the connection without an answer")
            ended = result is None
            if result is None or result.status == ExecStatus.PIPELINE_ABORTED:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                pgconn.exit_pipeline_mode()
                return results
            results.append(result)
            if result.status not in _ROWS and pgconn.status == ConnStatus.BAD:
                return results

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
        last = None
        yield from self._sent()
        while (result := (yield from self._next())) is not None:
            last = result
        if last is None:
            raise OperationalError("the server closed the connection without an answer")
        return last

    def _sent(self) -> Steps[None]:
        pgconn = self._pgconn
        while pgconn.flush():
            # Larger than the socket's buffer; the server may answer (an error, say) before it has read it all.
            ready = yield Wait.RW
            if ready & Ready.R:
                pgconn.consume_input()
            elif not ready:
                self._check_deadline()

    def _next(self) -> Steps[PGresult | None]:
        pgconn = self._pgconn
        while pgconn.is_busy():
            if not (yield Wait.R):
                self._check_deadline()
            pgconn.consume_input()
        return pgconn.get_result()

    def _check_deadline(self) -> None:
        # Nothing has come for a moment; psycopg's `wait` says so ten times a second.
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise OperationalError("no answer in time")


def _sendable(text: str) -> bytes:
    """Backstop of the checks at the doors: libpq would end the text at a NUL, and so act on another name, without a word."""
    if "\0" in text:
        raise DataError("text for PostgreSQL cannot hold NUL characters")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"text for PostgreSQL cannot hold lone surrogates: {error.reason}") from None


class _IsoLoader(Loader):
    """A time in the form that our statements ask for: psycopg's own loader believes the session's DateStyle."""

    def load(self, data: Buffer) -> datetime:
        return datetime.fromisoformat(bytes(data).decode())


@dataclass(frozen=True, slots=True)
class _Context:
    adapters: AdaptersMap
    connection: Any


def _reader(connection: Connection[Any] | AsyncConnection[Any], is_usual: bool) -> Reader:
    found, usual = [of.adapters.get_loader(_TIMESTAMPTZ, Format.TEXT) for of in (connection, psycopg)]
    if is_usual or found is not usual:  # else its owner wants them otherwise, as text
        return Transformer(connection)
    adapters = AdaptersMap(connection.adapters)
    adapters.register_loader(_TIMESTAMPTZ, _IsoLoader)
    return Transformer(_Context(adapters, connection))


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

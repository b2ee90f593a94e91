"""Connections of our own: pools for calls, and single ones for the worker's loops.

Every connection is in autocommit (one statement, one transaction), uses no named prepared statements and leaves no
session state behind, so all of it works through a transaction pooler.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from skiplock.core.errors import ConfigurationError
from skiplock.store.again import arepeat, repeat
from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.guard import is_read_only, translate, unavailable

T = TypeVar("T")
POOL_TIMEOUT = 30.0  # seconds to wait for a connection before DatabaseUnavailableError
# Seconds until it is asked for anew: a pool waits twice as long after each failure to connect, so that after an outage of a
# minute nobody would get a connection for another one. Asked anew, once it has given up, it tries at once.
ASK_EVERY = 2.0
_NONE_IN_TIME = f"the server was away, or all connections of the pool were in use, for {POOL_TIMEOUT:g} seconds"
FRESH = 1.0  # seconds: a connection used within that time is not probed before it is lent
KEPT_FOR = 60.0  # seconds that a connection in constant use stays away from its pool

# A host that vanished without a word is noticed in about 25 s instead of the system's two hours; a server that does not
# answer at all in 10 s instead of two minutes for each address. Keepalive only watches a connection that is idle: while a
# statement is on its way unacknowledged, the system goes on sending it for a quarter of an hour, unless tcp_user_timeout
# (milliseconds; the same 25 s) ends that. It also ends a connection whose other end has taken no byte of what we send for so
# long: whoever feeds a COPY to a table locked for longer sets it to 0 in the DSN. All of these are settings of our own
# socket: a pooler never sees them, and libpq leaves them out on a Unix socket and where the system lacks them.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "application_name": "skiplock",
}


def conninfo(dsn: str, **extra: Any) -> str:
    """The DSN with our defaults where it is silent. Raises ConfigurationError if it cannot be read."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise ConfigurationError(f"the DSN cannot be read: {' '.join(str(error).split())}") from None
    found = {**_DEFAULTS, **extra, **{k: v for k, v in given.items() if v is not None}}
    # We send UTF-8, whatever a role or the environment says. Poolers let this one through.
    return make_conninfo("", **{**found, "client_encoding": "UTF8"})


def prepare(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Settings of the client's side only: raw `$1` placeholders, json as text, no named statements."""
    connection.prepare_threshold = None
    connection.adapters.register_loader("json", TextLoader)


def keep_times_as_text(connection: AsyncConnection[Any]) -> None:
    """For the claim: a datetime costs 0.8 µs a job, and few handlers ever look at it."""
    connection.adapters.register_loader("timestamptz", TextLoader)


def connect(dsn: str, **extra: Any) -> Connection[Any]:
    """A sync connection of our own. Raises DatabaseUnavailableError or ConfigurationError."""
    try:
        found = Connection.connect(conninfo(dsn, **extra), autocommit=True, cursor_factory=RawCursor)
    except psycopg.OperationalError as error:
        raise unavailable(error, dsn) from None
    prepare(found)
    return found


async def aconnect(dsn: str, **extra: Any) -> AsyncConnection[Any]:
    """The async twin of `connect`."""
    try:
        found = await AsyncConnection.connect(conninfo(dsn, **extra), autocommit=True, cursor_factory=AsyncRawCursor)
    except psycopg.OperationalError as error:
        raise unavailable(error, dsn) from None
    prepare(found)
    return found


def run_call(on: Exchange | Connection[Any], call: Call[T], *, limit: float | None = None) -> T:
    """Run one call: on a connection of our own, or on any psycopg one. Raises what it means in our own words, else the
    driver's error. `limit`: seconds to wait for the answer; only on one of our own."""
    try:
        if isinstance(on, Exchange):
            return call.read(on.run(call.sql, call.params, limit))
        return call.read(RawCursor(on).execute(call.sql.encode(), call.params).fetchall())
    except psycopg.Error as error:
        raise translate(error) or error from None


class _Kept:
    """The connection that was used last, at hand for the next use without the way through the pool.

    That way costs 45 µs of CPU time, and 0.2 ms after a pause, which is more than half of what an enqueue's own work costs.
    Only one is kept, only while nobody waits for one, and not for long: the pool still looks after its connections.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Exchange | None = None
        self._waiting = 0
        self._since = 0.0  # when it last came from the pool
        self._used = 0.0

    def take(self) -> tuple[Exchange | None, Exchange | None]:
        """The kept connection as (it, None), or as (None, it) if it has lain unused: the pool should look at it first.

        Without one to use, the caller counts as waiting until it says `arrived`.
        """
        with self._lock:
            found, self._kept = self._kept, None
            if found is not None and time.monotonic() - self._used < FRESH and not found.is_cut():
                return found, None
            self._waiting += 1
            return None, found

    def arrived(self) -> None:
        """The caller has one from the pool, or gave up."""
        with self._lock:
            self._waiting -= 1
            self._since = time.monotonic()

    def keep(self, used: Exchange) -> bool:
        """Whether this one is kept; else it belongs to the pool."""
        if used.in_doubt:
            return False
        with self._lock:
            self._used = now = time.monotonic()
            if self._waiting or self._kept is not None or now - self._since > KEPT_FOR:
                return False
            self._kept = used
            return True

    def empty(self) -> Exchange | None:
        """Give the kept one up."""
        with self._lock:
            found, self._kept = self._kept, None
            return found


class SyncDatabase:
    """A small pool for sync calls, opened at first use. Thread-safe.

    Its connections are plain psycopg ones in autocommit: handlers get them too (`ctx.transaction()`).
    """

    def __init__(self, dsn: str, *, max_size: int = 10) -> None:
        self.dsn = dsn
        self._pool: ConnectionPool[Connection[Any]] = ConnectionPool(
            conninfo(dsn),
            min_size=0,
            max_size=max_size,
            open=False,
            reconnect_timeout=ASK_EVERY,
            kwargs={"autocommit": True, "prepare_threshold": None},
            name="skiplock",
        )
        self._kept = _Kept()
        self._left_at = 0.0  # when the server was found to have turned read-only: connections from before lead there

    @contextmanager
    def _lent(self) -> Iterator[Exchange]:
        lent = self._take()
        try:
            yield lent
        except psycopg.Error as error:
            if is_read_only(error):
                self._left_at = time.monotonic()
                lent.close()
            raise
        finally:
            if not self._kept.keep(lent):
                self._give_back(lent)

    def _take(self) -> Exchange:
        found, stale = self._kept.take()
        if found is not None:
            return found
        try:
            if stale is not None:
                self._give_back(stale, used=False)
            self._pool.open()
            while _was_used_before(connection := self._wait_for_one(), self._left_at) or not _is_sound(connection):
                connection.close()
                self._pool.putconn(connection)
            return Exchange(connection)
        except PoolTimeout:
            raise unavailable(PoolTimeout(_NONE_IN_TIME), self.dsn) from None
        finally:
            self._kept.arrived()

    def _wait_for_one(self) -> Connection[Any]:
        until = time.monotonic() + POOL_TIMEOUT
        while (left := until - time.monotonic()) > ASK_EVERY:
            with suppress(PoolTimeout):
                return self._pool.getconn(ASK_EVERY)
        return self._pool.getconn(left)

    def _give_back(self, lent: Exchange, *, used: bool = True) -> None:
        connection: Any = lent.connection
        if not used and lent.is_cut():
            lent.close()
        _note_use(connection, used)
        self._pool.putconn(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Borrow a connection in autocommit."""
        with self._lent() as lent:
            connection: Any = lent.connection
            yield connection

    def run(self, call: Call[T]) -> T:
        """One call, one transaction; again if the database undid it (`again.py`). Raises DatabaseUnavailableError if it
        goes on refusing, or the connection is lost meanwhile."""
        return repeat(lambda: self._once(call))

    def _once(self, call: Call[T]) -> T:
        with self._lent() as lent:
            return call.read(lent.run(call.sql, call.params))

    def close(self) -> None:
        if (kept := self._kept.empty()) is not None:
            self._give_back(kept)
        self._pool.close()


class AsyncDatabase:
    """The async twin of `SyncDatabase`; belongs to one event loop."""

    def __init__(self, dsn: str, *, max_size: int = 10) -> None:
        self.dsn = dsn
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            conninfo(dsn),
            min_size=0,
            max_size=max_size,
            open=False,
            reconnect_timeout=ASK_EVERY,
            kwargs={"autocommit": True, "prepare_threshold": None},
            name="skiplock",
        )
        self._opening = asyncio.Lock()
        self._kept = _Kept()
        self._left_at = 0.0  # when the server was found to have turned read-only: connections from before lead there

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Borrow a connection in autocommit."""
        lent = await self._take()
        try:
            connection: Any = lent.connection
            yield connection
        except psycopg.Error as error:
            await self._leave_if_read_only(lent, error)
            raise
        finally:
            await self._end(lent)

    async def _leave_if_read_only(self, lent: Exchange, error: psycopg.Error) -> None:
        if is_read_only(error):
            self._left_at = time.monotonic()
            await lent.aclose()

    async def _end(self, lent: Exchange) -> None:
        if not self._kept.keep(lent):
            if lent.in_doubt:  # cut off in the middle: its answer must not meet the next call
                await lent.aclose()
            await self._give_back(lent)

    async def _take(self) -> Exchange:
        found, stale = self._kept.take()
        if found is not None:
            return found
        try:
            if stale is not None:
                await self._give_back(stale, used=False)
            if self._pool.closed:
                async with self._opening:
                    await self._pool.open()
            while _was_used_before(connection := await self._wait_for_one(), self._left_at) or not await _ais_sound(
                connection
            ):
                await connection.close()
                await self._pool.putconn(connection)
            return Exchange(connection)
        except PoolTimeout:
            raise unavailable(PoolTimeout(_NONE_IN_TIME), self.dsn) from None
        finally:
            self._kept.arrived()

    async def _wait_for_one(self) -> AsyncConnection[Any]:
        until = time.monotonic() + POOL_TIMEOUT
        while (left := until - time.monotonic()) > ASK_EVERY:
            with suppress(PoolTimeout):
                return await self._pool.getconn(ASK_EVERY)
        return await self._pool.getconn(left)

    async def _give_back(self, lent: Exchange, *, used: bool = True) -> None:
        connection: Any = lent.connection
        if not used and lent.is_cut():
            await lent.aclose()
        _note_use(connection, used)
        await self._pool.putconn(connection)

    async def run(self, call: Call[T]) -> T:
        """The async twin of `SyncDatabase.run`."""
        return await arepeat(lambda: self._once(call))

    async def _once(self, call: Call[T]) -> T:
        lent = await self._take()
        try:
            rows = await lent.arun(call.sql, call.params)
        except psycopg.Error as error:
            await self._leave_if_read_only(lent, error)
            raise
        finally:
            await self._end(lent)
        return call.read(rows)

    async def close(self) -> None:
        if (kept := self._kept.empty()) is not None:
            await self._give_back(kept)
        await self._pool.close()


_last_used: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _note_use(connection: Any, used: bool) -> None:
    # One that has only lain at hand was not used just now: it is to be probed before it is lent.
    if used:
        _last_used[connection] = time.monotonic()
    else:
        _last_used.setdefault(connection, 0.0)


def _was_used_before(connection: Any, moment: float) -> bool:
    return _last_used.get(connection, moment) < moment


# The pool itself can probe what it lends, but waits 1, 2, 4 … s before the next after each one that is dead: after a restart of
# the server six of them would keep a caller waiting until it gives up. So we ask for another one at once.


def _needs_no_probe(connection: Any) -> bool:
    """Used a moment ago, or just made."""
    return time.monotonic() - _last_used.get(connection, math.inf) < FRESH


def _is_sound(connection: Connection[Any]) -> bool:
    """Whether it may be lent. That it was cut has been heard by now, as a rule; else the server is asked."""
    if Exchange(connection).is_cut():
        return False
    try:
        if not _needs_no_probe(connection):
            ConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True


async def _ais_sound(connection: AsyncConnection[Any]) -> bool:
    """The async twin of `_is_sound`."""
    if Exchange(connection).is_cut():
        return False
    try:
        if not _needs_no_probe(connection):
            await AsyncConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True

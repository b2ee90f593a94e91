"""Connections of our own: pools for calls, and single ones for the worker's loops.

Every connection is in autocommit (one statement, one transaction), uses no named prepared statements and leaves no
session state behind, so all of it works through a transaction pooler.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from skiplock.core.errors import ConfigurationError
from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.guard import lost, translate, unavailable

T = TypeVar("T")
POOL_TIMEOUT = 30.0  # seconds to wait for a connection before DatabaseUnavailableError
FRESH = 1.0  # seconds: a connection used within that time is not probed before it is lent
KEPT_FOR = 60.0  # seconds that a connection in constant use stays away from its pool

# A host that vanished without a word is noticed in about 25 s instead of the system's two hours; a server that does not
# answer at all in 10 s instead of two minutes for each address.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "skiplock",
}


def conninfo(dsn: str, **extra: Any) -> str:
    """The DSN with our defaults where it is silent. Raises ConfigurationError if it cannot be read."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise ConfigurationError(f"the DSN cannot be read: {' '.join(str(error).split())}") from None
    return make_conninfo("", **{**_DEFAULTS, **extra, **{k: v for k, v in given.items() if v is not None}})


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


def run_call(on: Exchange | Connection[Any], call: Call[T]) -> T:
    """Run one call: on a connection of our own, or on any psycopg one. Raises what it means in our own words, else the
    driver's error."""
    try:
        if isinstance(on, Exchange):
            return call.read(on.run(call.sql, call.params))
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
            if found is not None and time.monotonic() - self._used < FRESH:
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
            timeout=POOL_TIMEOUT,
            kwargs={"autocommit": True, "prepare_threshold": None},
            check=_probe,
            name="skiplock",
        )
        self._kept = _Kept()

    @contextmanager
    def _lent(self) -> Iterator[Exchange]:
        lent = self._take()
        try:
            yield lent
        finally:
            if not self._kept.keep(lent):
                self._give_back(lent)

    def _take(self) -> Exchange:
        found, stale = self._kept.take()
        if found is not None:
            return found
        try:
            if stale is not None:
                self._give_back(stale)
            self._pool.open()
            return Exchange(self._pool.getconn())
        except PoolTimeout as error:
            raise unavailable(error, self.dsn) from None
        finally:
            self._kept.arrived()

    def _give_back(self, lent: Exchange) -> None:
        connection: Any = lent.connection
        _last_used[connection] = time.monotonic()
        self._pool.putconn(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Borrow a connection in autocommit."""
        with self._lent() as lent:
            connection: Any = lent.connection
            yield connection

    def run(self, call: Call[T]) -> T:
        """One call, one transaction. Raises DatabaseUnavailableError if the connection is lost meanwhile."""
        try:
            with self._lent() as lent:
                return run_call(lent, call)
        except psycopg.Error as error:
            raise lost(error) or error from error

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
            timeout=POOL_TIMEOUT,
            kwargs={"autocommit": True, "prepare_threshold": None},
            check=_aprobe,
            name="skiplock",
        )
        self._opening = asyncio.Lock()
        self._kept = _Kept()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Borrow a connection in autocommit."""
        lent = await self._take()
        try:
            connection: Any = lent.connection
            yield connection
        finally:
            if not self._kept.keep(lent):
                await self._give_back(lent)

    async def _take(self) -> Exchange:
        found, stale = self._kept.take()
        if found is not None:
            return found
        try:
            if stale is not None:
                await self._give_back(stale)
            if self._pool.closed:
                async with self._opening:
                    await self._pool.open()
            return Exchange(await self._pool.getconn())
        except PoolTimeout as error:
            raise unavailable(error, self.dsn) from None
        finally:
            self._kept.arrived()

    async def _give_back(self, lent: Exchange) -> None:
        connection: Any = lent.connection
        _last_used[connection] = time.monotonic()
        await self._pool.putconn(connection)

    async def run(self, call: Call[T]) -> T:
        """The async twin of `SyncDatabase.run`."""
        try:
            lent = await self._take()
            try:
                rows = await lent.arun(call.sql, call.params)
            finally:
                if not self._kept.keep(lent):
                    if lent.in_doubt:  # cut off in the middle: its answer must not meet the next call
                        await lent.aclose()
                    await self._give_back(lent)
            return call.read(rows)
        except psycopg.Error as error:
            raise translate(error) or lost(error) or error from error

    async def close(self) -> None:
        if (kept := self._kept.empty()) is not None:
            await self._give_back(kept)
        await self._pool.close()


_last_used: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _is_fresh(connection: Any) -> bool:
    return time.monotonic() - _last_used.get(connection, 0.0) < FRESH


def _probe(connection: Connection[Any]) -> None:
    if not _is_fresh(connection):
        ConnectionPool.check_connection(connection)


async def _aprobe(connection: AsyncConnection[Any]) -> None:
    if not _is_fresh(connection):
        await AsyncConnectionPool.check_connection(connection)

"""One connection of the worker's own, that comes back by itself."""

from __future__ import annotations

import asyncio
import random
from typing import TypeVar

from psycopg import Error

from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.guard import Meaning, meaning, translate
from skiplock.store.pool import aconnect, keep_times_as_text

T = TypeVar("T")
LONGEST_PAUSE = 5.0  # seconds between two tries at most: a server that is back is used within that time


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 0.05 to LONGEST_PAUSE, with jitter. Safe for any number."""
    return float(min(LONGEST_PAUSE, 0.05 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))


class Link:
    """An async connection, opened at first use and again after it broke. One statement at a time."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._exchange: Exchange | None = None
        self._lock = asyncio.Lock()

    async def run(self, call: Call[T]) -> T:
        """One call. Any error that leaves the connection's state in doubt closes it; cancellation does too."""
        async with self._lock:
            exchange = self._exchange
            if exchange is None or exchange.connection.closed:
                exchange = await self._open()
            try:
                rows = await exchange.arun(call.sql, call.params)
            except Error as error:
                if exchange.in_doubt or meaning(error) is not Meaning.AGAIN:
                    await self._drop()
                raise translate(error) or error from None
            except BaseException:
                await self._drop()
                raise
            return call.read(rows)

    async def _open(self) -> Exchange:
        connection = await aconnect(self._dsn, application_name=f"skiplock {self._name}")
        keep_times_as_text(connection)
        self._exchange = Exchange(connection)
        return self._exchange

    async def _drop(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

    async def close(self) -> None:
        """Close it; waits for a statement in progress."""
        async with self._lock:
            await self._drop()


def is_hopeless(error: BaseException) -> bool:
    """Whether repeating cannot help: a wrong password, no such database, no schema."""
    return meaning(error) in (Meaning.SCHEMA, Meaning.CONFIGURATION)

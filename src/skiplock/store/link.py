"""One connection of the worker's own, that comes back by itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from psycopg import AsyncConnection, Error, OperationalError

from skiplock.core.patience import Patience
from skiplock.store.call import Call, Row
from skiplock.store.exchange import Exchange
from skiplock.store.guard import Meaning, meaning, translate
from skiplock.store.pool import aconnect, keep_times_as_text

T = TypeVar("T")
LONGEST_PAUSE = 2.0  # seconds between two tries at most: a server that is back is used within that time
# Seconds to wait for an answer at first; see core/patience.py. The system notices a host that vanished (see pool.py); this is
# for one that takes what we send and never answers: a proxy that lost its server, a server that is stopped. Not less, because
# a claim waits as long as a migration holds its lock, and a commit as long as a synchronous standby is away.
ANSWER_LIMIT = 30.0
IDLE_AFTER = 0.1  # seconds
CANCEL_LIMIT = 2.0  # seconds for telling the server that nobody waits any more


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
        self.opened = 0  # times
        self._patience = Patience(ANSWER_LIMIT)
        self._waiting: asyncio.Timeout | None = None
        self._used = 0.0

    async def run(self, call: Call[T]) -> T:
        """One call. Any error that leaves the connection's state in doubt closes it; cancellation does too."""
        async with self._lock:
            exchange = self._exchange
            if exchange is None or exchange.connection.closed or (self._was_idle() and exchange.is_cut()):
                await self._drop()
                exchange = await self._open()
            try:
                rows = await self._answer(exchange, call)
            except Error as error:
                if exchange.in_doubt or meaning(error) is not Meaning.AGAIN:
                    await self._drop()
                raise translate(error) or error from None
            except BaseException:
                await self._drop()
                raise
            return call.read(rows)

    def give_up(self) -> None:
        """Wait no longer for the answer in progress, if any: the caller knows that it is of no use any more."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _answer(self, exchange: Exchange, call: Call[Any]) -> Sequence[Row]:
        patience, began = self._patience, time.monotonic()
        waiting = asyncio.timeout(patience.limit)
        try:
            async with waiting:
                self._waiting = waiting
                rows = await exchange.arun(call.sql, call.params)
        except TimeoutError:
            waited = time.monotonic() - began
            if waited >= patience.limit:
                patience.gave_up()
            self._waiting = None
            assert isinstance(exchange.connection, AsyncConnection)
            await _cancel(exchange.connection)
            raise OperationalError(f"no answer within {waited:.1f} s: the connection is replaced") from None
        finally:
            self._waiting = None
        self._used = time.monotonic()
        patience.answered(self._used - began)
        return rows

    def _was_idle(self) -> bool:
        # Long enough for whoever cuts idle connections (idle_session_timeout, a pooler): to find it cut is no failure.
        return time.monotonic() - self._used > IDLE_AFTER

    async def _open(self) -> Exchange:
        connection = await aconnect(self._dsn, application_name=f"skiplock {self._name}")
        keep_times_as_text(connection)
        self.opened += 1
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


async def _cancel(connection: AsyncConnection[Any]) -> None:
    """End the statement in the server too, if it can be reached: it may only be slow, or wait for a lock, and would come to
    its end after we have asked what became of it. Where this does not help, the fence and reconciling do."""
    with suppress(Error, TimeoutError):
        async with asyncio.timeout(CANCEL_LIMIT):
            await connection.cancel_safe(timeout=CANCEL_LIMIT)


def is_hopeless(error: BaseException) -> bool:
    """Whether repeating cannot help: a wrong password, no such database, no schema."""
    return meaning(error) in (Meaning.SCHEMA, Meaning.CONFIGURATION)

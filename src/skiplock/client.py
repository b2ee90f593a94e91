"""The async face: run a call from a coroutine. The same statements as the sync one."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from weakref import WeakKeyDictionary

from skiplock.store.call import Call
from skiplock.store.guests import arun_on
from skiplock.store.pool import AsyncDatabase

T = TypeVar("T")


class AsyncFace:
    """Runs calls on a pool of its own (one for each event loop), or on a connection of the caller's."""

    def __init__(self, dsn: str, pool_size: int) -> None:
        self._dsn = dsn
        self._pool_size = pool_size
        self._databases: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncDatabase] = WeakKeyDictionary()

    @property
    def database(self) -> AsyncDatabase:
        """The running loop's pool, opened at first use."""
        loop = asyncio.get_running_loop()
        found = self._databases.get(loop)
        if found is None:
            found = self._databases[loop] = AsyncDatabase(self._dsn, max_size=self._pool_size)
        return found

    async def run(self, call: Call[T], connection: object = None) -> T:
        """One call: in the caller's transaction if `connection` is given, else in one of its own."""
        if connection is not None:
            return await arun_on(connection, call)
        return await self.database.run(call)

    async def close(self) -> None:
        """Close the running loop's pool; it opens again at the next use."""
        database = self._databases.pop(asyncio.get_running_loop(), None)
        if database is not None:
            await database.close()

"""The sync face: run a call from ordinary code. The same statements as the async one."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

from skiplock.core.errors import BlockingCallError
from skiplock.store.call import Call
from skiplock.store.guests import run_on
from skiplock.store.pool import SyncDatabase

T = TypeVar("T")


class SyncFace:
    """Runs calls on a pool of its own, or on a connection of the caller's. Thread-safe."""

    def __init__(self, dsn: str, pool_size: int) -> None:
        self._dsn = dsn
        self._pool_size = pool_size
        self._lock = threading.Lock()
        self._database: SyncDatabase | None = None

    @property
    def database(self) -> SyncDatabase:
        """The pool, opened at first use."""
        with self._lock:
            if self._database is None:
                self._database = SyncDatabase(self._dsn, max_size=self._pool_size)
            return self._database

    def run(
        self, call: Call[T], connection: object = None, *, verb: str = "this call", instead: str = "the async twin"
    ) -> T:
        """One call: in the caller's transaction if `connection` is given, else in one of its own.

        Raises BlockingCallError inside a running event loop, unless the caller brought the connection and so has
        decided to block (SQLAlchemy's `run_sync` does not even).
        """
        if connection is not None:
            return run_on(connection, call)
        refuse_in_loop(verb, instead)
        return self.database.run(call)

    def close(self) -> None:
        """Close the pool; it opens again at the next use."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()


def refuse_in_loop(verb: str, instead: str) -> None:
    """Raise BlockingCallError if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError(f"{verb} would block the running event loop; use `await {instead}`")

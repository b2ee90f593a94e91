"""LISTEN and NOTIFY on a sync connection of its own, which two threads may read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from psycopg import Notify, sql

from skiplock.store.pool import connect


class Listener:
    """A connection that listens. One thread owns it (opens, pings, closes); any thread may take what has arrived.

    Raises DatabaseUnavailableError or psycopg errors if the connection cannot be had, or is gone.
    """

    def __init__(self, dsn: str, channels: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._arrived: deque[tuple[str, str]] = deque()
        self._connection = connect(dsn, application_name="skiplock ear")
        self._connection.add_notify_handler(self._keep)
        for name in channels:
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))

    def _keep(self, note: Notify) -> None:
        self._arrived.append((note.channel, note.payload))

    @property
    def backend(self) -> int:
        """The server's process."""
        return self._connection.info.backend_pid

    def fileno(self) -> int:
        """The socket: readable when something has arrived."""
        return self._connection.fileno()

    def ping(self, channel: str, payload: str) -> None:
        """Send a notification (to ourselves, too)."""
        with self._lock:
            self._connection.execute("SELECT pg_notify($1, $2)", [channel, payload])

    def take(self) -> list[tuple[str, str]]:
        """(channel, payload) of what has arrived, without waiting. Nothing while another thread uses the connection."""
        if self._lock.acquire(blocking=False):
            try:
                pgconn = self._connection.pgconn
                pgconn.consume_input()
                while (note := pgconn.notifies()) is not None:
                    self._arrived.append((note.relname.decode(), note.extra.decode()))
            finally:
                self._lock.release()
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

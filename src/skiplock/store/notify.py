"""LISTEN and NOTIFY on a sync connection of its own, which two threads may read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from psycopg import sql

from skiplock.store.call import Call, nothing
from skiplock.store.exchange import Exchange
from skiplock.store.pool import connect

ANSWER_LIMIT = 10.0  # seconds: a connection that does not answer by then delivers nothing either


class Listener:
    """A connection that listens. One thread owns it (opens, pings, closes); any thread may take what has arrived.

    Raises DatabaseUnavailableError or psycopg errors if the connection cannot be had, or is gone.
    """

    def __init__(self, dsn: str, channels: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._arrived: deque[tuple[str, str]] = deque()
        self._connection = connect(dsn, application_name="skiplock ear")
        self._exchange = Exchange(self._connection)
        try:
            for name in channels:
                listen = sql.SQL("LISTEN {}").format(sql.Identifier(name)).as_string(self._connection)
                self._exchange.run(listen, (), ANSWER_LIMIT)
        except BaseException:
            self._connection.close()
            raise

    @property
    def backend(self) -> int:
        """The server's process."""
        return self._connection.info.backend_pid

    def fileno(self) -> int:
        """The socket: readable when something has arrived."""
        return self._connection.fileno()

    def idle_limit(self) -> float | None:
        """Seconds after which the server cuts an idle session; None: never."""
        with self._lock:
            rows = self._exchange.run(
                "SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'", (), ANSWER_LIMIT
            )
        return int(rows[0][0]) / 1000 or None

    def touch(self) -> None:
        """Any statement, so that the session does not count as idle."""
        with self._lock:
            self._exchange.run("SELECT 1", (), ANSWER_LIMIT)

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


def notify_call(channel: str, payload: str) -> Call[None]:
    """Notify whoever listens, unless the server's queue is filling up: a full one would make the statement fail."""
    sql = "SELECT pg_notify($1, $2) WHERE pg_notification_queue_usage() < 0.5"
    return Call(sql, (channel, payload), nothing)

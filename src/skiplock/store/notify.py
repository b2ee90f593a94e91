"""LISTEN and NOTIFY on a sync connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import Connection, sql


def listen(connection: Connection[Any], channels: Sequence[str]) -> None:
    """Subscribe to these channels."""
    for name in channels:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))


def ping(connection: Connection[Any], channel: str, payload: str) -> None:
    """Send a notification (to ourselves, too)."""
    connection.execute("SELECT pg_notify($1, $2)", [channel, payload])


def heard(connection: Connection[Any], timeout: float) -> Iterator[tuple[str, str]]:
    """(channel, payload) of what arrives within `timeout` seconds."""
    for note in connection.notifies(timeout=timeout):
        yield note.channel, note.payload

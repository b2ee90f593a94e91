"""What a stretch of work costs the server: WAL, statements, rows written. Used by W7 and W14.

Needs the modules pg_stat_statements and pg_walinspect, which the embedded server brings along; where they are missing,
the figures that need them are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.contender import Contender
from bench.server import track_statements

_ROWS = """select coalesce(sum(n_tup_ins + n_tup_upd), 0), coalesce(sum(n_tup_upd + n_tup_del), 0)
from pg_stat_user_tables"""
_FPI = "select coalesce(sum(fpi_size), 0) from pg_get_wal_stats(%s::pg_lsn, %s::pg_lsn)"
# The driver's own questions, which wait for the end of a drain, are no cost of the system.
_STATEMENTS = """select query, calls, wal_bytes::bigint, wal_fpi, rows from pg_stat_statements s
join pg_database d on d.oid = s.dbid where d.datname = %s and query not ilike %s order by calls desc"""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the system and what it cost."""

    query: str
    calls: int
    wal: int
    images: int
    rows: int


class Meter:
    """Reads the server's counters for one contender."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._own = getattr(contender.kind, "unfinished_sql", "").partition(" from ")[2].partition("%")[0]

    def position(self) -> str:
        """The place in the WAL where the next record goes."""
        return str(self._one("select pg_current_wal_insert_lsn()"))

    def wal(self, since: str) -> dict[str, int]:
        """Bytes of WAL since then, and how many of them are full-page images (if that can be known)."""
        now = self.position()
        found = {"wal": int(self._one("select (%s::pg_lsn - %s::pg_lsn)::bigint", now, since))}
        try:
            found["images"] = int(self._one(_FPI, since, now))
        except psycopg.Error:
            pass
        return found

    def rows(self) -> tuple[int, int]:
        """Row versions written in its database so far, and how many were left dead."""
        with self._contender.connect() as connection:
            row = connection.execute(_ROWS).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def statements(self) -> list[Statement]:
        """What its sessions asked since counting began."""
        with self._contender.server_connection() as connection:
            found = connection.execute(_STATEMENTS, [self._contender.database, f"%from {self._own}%"]).fetchall()
        return [Statement(*row) for row in found]

    def connections(self) -> int:
        """How many clients its database has; the driver must not be one of them."""
        sql = "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'"
        return int(self._one(sql, self._contender.database))

    def _one(self, sql: str, *values: object) -> Any:
        with self._contender.server_connection() as connection:
            row = connection.execute(sql.encode(), values or None).fetchone()
        assert row is not None
        return row[0]


@contextmanager
def counting(contender: Contender) -> Iterator[bool]:
    """Count statements meanwhile; answers whether that is possible here."""
    with contender.server_connection() as connection:
        try:
            connection.execute("create extension if not exists pg_walinspect")
            connection.execute("create extension if not exists pg_stat_statements")
            connection.execute("select pg_stat_statements_reset()")
        except psycopg.Error:
            yield False
            return
        track_statements(connection, "top")
        try:
            yield True
        finally:
            track_statements(connection, "none")


def memory_of(pid: int) -> int | None:
    """Bytes of memory that belong to this process alone: without mapped files, such as the marks. None: not known."""
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return int(lines["RssAnon"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None

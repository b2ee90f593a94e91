"""Waiting for a lock without standing in the way.

A migration that waits for a lock on a table makes every statement that comes after it wait too: one forgotten transaction
of somebody's, and all workers stand still behind the migration. So it waits in short tries, lets everyone pass in between,
says who is in the way, and gives up after a while.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from skiplock.core.errors import MigrationBlockedError
from skiplock.store.schema import quoted

# Seconds that one try waits for one lock, and all others behind it. Shorter than deadlock_timeout (1 s), so that nobody is
# ever told of a deadlock because of us.
TRY = 0.3
LONGEST_REST = 2.0  # seconds between two tries
TELL_EVERY = 10.0  # seconds, while nothing changes
# Who holds something here since before a try began, longest first: a lock on one of our tables, or that of the migrators.
# Those who came later only wait behind us.
# Other people's transactions are only visible to roles with the right to (pg_read_all_stats): state and age are NULL then.
_BLOCKERS = """SELECT l.pid, coalesce(a.application_name, ''), coalesce(a.backend_type, ''), a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8, extract(epoch FROM clock_timestamp() - a.query_start)::float8,
    bool_or(l.locktype = 'advisory'), extract(epoch FROM current_setting('deadlock_timeout')::interval)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace($1))
       OR l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = hashtext($2)::bigint)
  AND (l.locktype = 'advisory' OR a.state IS NULL OR a.xact_start < to_timestamp($3))
GROUP BY l.pid, a.application_name, a.backend_type, a.state, a.xact_start, a.query_start
ORDER BY a.xact_start LIMIT 5"""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds a lock we need, as far as we may know."""

    pid: int | None  # None: a prepared transaction, which belongs to no session
    application: str
    kind: str
    state: str | None
    transaction_age: float | None
    query_age: float | None
    migrates: bool
    deadlock_timeout: float

    @property
    def yields(self) -> bool:
        """Autovacuum gives way, but only to those who have waited for `deadlock_timeout`."""
        return self.kind == "autovacuum worker"

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction (see pg_prepared_xacts)"
        what = "another migration, " if self.migrates else f"{self.kind}, " if self.yields else ""
        text = f"{what}pid {self.pid} {self.application!r}"
        if self.state:
            text += f", {self.state}"
        if self.query_age is not None:
            text += f", its {'query' if self.state == 'active' else 'latest query'} began {self.query_age:.0f} s ago"
        if self.transaction_age is not None:
            text += f", its transaction {self.transaction_age:.0f} s ago"
        return text


def lock_name(schema: str) -> str:
    """What the migrators of a schema lock (its hash, as an advisory lock)."""
    return f"skiplock migrate {schema}"


def server_time(connection: Connection[Any]) -> float:
    """The server's clock, in seconds."""
    return float(connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()[0][0])


def blockers(connection: Connection[Any], schema: str, began: float) -> list[Blocker]:
    """Who holds locks on the schema's tables since before a try that began then, by the server's clock."""
    rows = connection.execute(_BLOCKERS, [quoted(schema), lock_name(schema), began]).fetchall()
    return [Blocker(*row) for row in rows]


class Patience:
    """How a migration goes on after a try that failed."""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self._until = time.monotonic() + seconds
        self._seconds, self._tell = seconds, tell
        self._tries = 0
        self._told: tuple[list[int | None], float] | None = None
        self.lock_timeout = TRY

    def rest(self, found: Sequence[Blocker]) -> None:
        """Let the others pass, then try again. Raises MigrationBlockedError when the time is up."""
        now = time.monotonic()
        who = "; ".join(map(str, found)) or "somebody who is gone by now"
        if now >= self._until:
            raise MigrationBlockedError(
                f"gave up after {self._seconds:g} s of waiting for locks; nothing was changed. In the way: {who}"
            )
        pids = [blocker.pid for blocker in found]
        if self._told is None or self._told[0] != pids or now - self._told[1] >= TELL_EVERY:
            self._tell(f"waiting for locks; in the way: {who}")
            self._told = (pids, now)
        yielding = [blocker.deadlock_timeout for blocker in found if blocker.yields]
        self.lock_timeout = TRY + max(yielding, default=0.0)
        longest = 0.25 if found and all(blocker.migrates for blocker in found) else LONGEST_REST
        rest = min(longest, 0.1 * 2 ** min(self._tries, 10)) * random.uniform(0.5, 1.0)
        self._tries += 1
        time.sleep(min(rest, self._until - now))

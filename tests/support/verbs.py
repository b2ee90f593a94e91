"""skiplock's SQL verbs as a test calls them: short, with defaults, on one plain connection.

with open_verbs(dsn) as db:
    worker = db.register()
    job = db.enqueue(priority=3)
    [claimed] = db.claim(worker)
    db.settle(completed=[claimed])
    assert db.state(job) == "completed"
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import namedtuple_row

from tests.support.databases import connect

T = TypeVar("T")
FLOW = ("uniques", "slots", "meters", "limits", "nudges", "paused_tasks", "ageing", "depths")
TABLES = ("jobs", "payloads", "attempts", "steps", "cancellations", "workers", "queues", "schedules", *FLOW)
_CLAIMED = "id, job_lease AS lease, queue, priority, position, task, attempt, losses"


class Claimed(NamedTuple):
    """What a claim answered of one job."""

    id: int
    lease: int
    queue: str
    priority: int
    position: int
    task: str
    attempt: int
    losses: int


class Verbs:
    """The verbs on one connection, in autocommit unless inside `transaction()`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.transaction = connection.transaction

    def rows(self, sql: str, *params: Any) -> list[Any]:
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *params: Any) -> Any:
        rows = self.rows(sql, *params)
        return rows[0][0] if rows else None

    # -- produce -----------------------------------------------------------------------------------------------------

    def enqueue(self, task: str = "t", **options: Any) -> int:
        """One job; `options` are the named arguments of `skiplock.enqueue`."""
        named = "".join(f", {name} => %s" for name in options)
        found: int = self.value(f"SELECT skiplock.enqueue(%s{named})", task, *options.values())
        return found

    def enqueue_some(self, number: int, **options: Any) -> list[int]:
        return [self.enqueue(**options) for _ in range(number)]

    def enqueue_ruled(
        self, rules: dict[str, Any], number: int = 1, *, admits: bool = True, **options: Any
    ) -> list[int]:
        """Jobs with rules; `options` are one value each of enqueue_flow's arrays."""
        named = "".join(f", {name} => array_fill(%s::{kind}, ARRAY[%s])" for name, kind in _kinds(options))
        values = [part for value in options.values() for part in (value, number)]
        sql = f"""SELECT id FROM skiplock.enqueue_flow(array_fill('t'::text, ARRAY[%s]), array_fill('{{}}'::json, ARRAY[%s]),
            array_fill('default'::text, ARRAY[%s]), array_fill(%s::jsonb, ARRAY[%s]), admits => %s{named})"""
        found = self.rows(sql, number, number, number, json.dumps(rules), number, admits, *values)
        return [row.id for row in found]

    # -- work --------------------------------------------------------------------------------------------------------

    def register(self, name: str = "w", lost_after: float = 9.0) -> int:
        found: int = self.value("SELECT skiplock.register(%s, 'host', 1, '{}', '0', %s)", name, lost_after)
        return found

    def claim(
        self,
        worker: int,
        rooms: int | dict[str, int] = 100,
        *,
        tasks: Sequence[str] = ("t",),
        lanes: Sequence[tuple[str, int, int]] | None = None,
        lease: int | None = None,
    ) -> list[Claimed]:
        """`lanes` are (queue, priority, position); None: without cursor."""
        rooms = {"default": rooms} if isinstance(rooms, int) else rooms
        cursors = [None] * 3 if lanes is None else [[lane[n] for lane in lanes] for n in range(3)]
        sql = f"SELECT {_CLAIMED} FROM skiplock.claim(%s, %s, %s, %s, %s, %s, %s::smallint[], %s)"
        lease = random.getrandbits(63) if lease is None else lease
        found = self.rows(sql, worker, lease, list(rooms), list(rooms.values()), list(tasks), *cursors)
        return [Claimed(*row) for row in found]

    def claim_suspects(
        self, worker: int, room: int = 10, *, alone: bool = False, tasks: Sequence[str] = ("t",)
    ) -> list[Claimed]:
        sql = f"SELECT {_CLAIMED} FROM skiplock.claim_suspects(%s, %s, ARRAY['default'], ARRAY[%s::integer], %s, %s)"
        return [Claimed(*row) for row in self.rows(sql, worker, random.getrandbits(63), room, list(tasks), alone)]

    def settle(
        self,
        *,
        completed: Sequence[Claimed] = (),
        results: Sequence[str | None] | None = None,
        others: Sequence[dict[str, Any]] = (),
    ) -> list[tuple[int, int]]:
        """Answers what was refused. `others` are made with `verdict`."""
        sql = "SELECT * FROM skiplock.settle(%s, %s, %s::real[], %s::json[], %s)"
        leases, tooks = [job.lease for job in completed], [0.5 for _ in completed]
        more = json.dumps(list(others)) if others else None
        kept = None if results is None else list(results)
        return [tuple(row) for row in self.rows(sql, [job.id for job in completed], leases, tooks, kept, more)]

    # -- looking -----------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Any:
        """Its row, in whatever stage; found without help of `skiplock.find`."""
        rows = self.rows("SELECT *, tableoid::regclass::text AS stage FROM skiplock.jobs WHERE id = %s", job_id)
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    def state(self, job_id: int) -> str | None:
        row = self.job(job_id)
        return row.state if row else None

    def attempts(self, job_id: int) -> list[Any]:
        return self.rows("SELECT * FROM skiplock.attempts WHERE job_id = %s ORDER BY attempt, ended_at", job_id)

    def count(self, table: str = "jobs") -> int:
        found: int = self.value(f"SELECT count(*) FROM skiplock.{table}")
        return found

    # -- between tests ----------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Everything as after the migration, but for the numbers. Cheaper than another database."""
        for table in TABLES:
            self.rows(f"DELETE FROM skiplock.{table}")
        self.rows("DELETE FROM skiplock.bells WHERE queue <> ''")
        self.rows("UPDATE skiplock.bells SET until = NULL")
        self.rows("UPDATE skiplock.duties SET worker = NULL, until = NULL")

    # -- time --------------------------------------------------------------------------------------------------------

    def move_time(self, seconds: float) -> None:
        """From now on `skiplock.now()` is that far ahead of the real clock."""
        self.rows(
            "CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
            f"$$ SELECT pg_catalog.clock_timestamp() + interval '{seconds} s' $$"
        )


def _kinds(options: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, {"delays": "float8", "priorities": "integer", "max_attempts": "integer"}[name]) for name in options]


def verdict(job: Claimed, word: str, **more: Any) -> dict[str, Any]:
    """One entry of settle's `others`."""
    return {"id": job.id, "lease": job.lease, "verdict": word, "took": 0.5, "delay": None, "failure": None} | more


def failure(message: str = "boom", error_class: str = "ValueError") -> dict[str, Any]:
    return {"error_class": error_class, "message": message, "traceback": f"Traceback …\n{error_class}: {message}"}


@contextmanager
def open_verbs(dsn: str) -> Iterator[Verbs]:
    with connect(dsn) as connection:
        yield Verbs(connection)


def at_once(dsn: str, number: int, act: Callable[[Verbs, int], T]) -> list[T]:
    """`act(verbs, n)` in so many threads, each with its own connection, all let go by one barrier."""
    barrier = threading.Barrier(number, timeout=60)

    def one(n: int) -> T:
        with open_verbs(dsn) as db:
            barrier.wait()
            return act(db, n)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(one, range(number)))

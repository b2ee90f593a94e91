"""What the database says: the only source of the numbers on the screen and of most of the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from skiplock.cli.demo.summary import Hit
from skiplock.cli.demo.surroundings import QUEUES
from skiplock.store.call import Call, Row

if TYPE_CHECKING:
    from skiplock.store.pool import SyncDatabase

FINAL = ("completed", "cancelled", "dead")
_QUEUES = "{" + ",".join(QUEUES) + "}"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process of the fleet and how many jobs it holds."""

    id: int
    pid: int
    holds: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The demo's jobs at one moment. `states` and `retried` are by queue."""

    states: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    retried: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()

    def count(self, *states: str, queue: str | None = None) -> int:
        chosen = self.states.values() if queue is None else [self.states.get(queue, {})]
        return sum(number for found in chosen for state, number in found.items() if state in states)

    def settled(self, queue: str | None = None) -> int:
        return self.count(*FINAL, queue=queue)

    def total(self, queue: str | None = None) -> int:
        return self.count("scheduled", "retryable", "blocked", "ready", "running", *FINAL, queue=queue)

    @property
    def depth(self) -> int:
        """Jobs that wait to be run."""
        return self.count("scheduled", "retryable", "blocked", "ready")

    @property
    def retries(self) -> int:
        return sum(self.retried.values())


def snapshot(database: SyncDatabase) -> Snapshot:
    states: dict[str, dict[str, int]] = {queue: {} for queue in QUEUES}
    for queue, state, number in _ask(
        database,
        "SELECT queue, state, count(*) FROM skiplock.jobs WHERE queue = ANY ($1::text[]) GROUP BY 1, 2",
        _QUEUES,
    ):
        states[queue][state] = number
    retried = _ask(
        database,
        "SELECT j.queue, count(*) FROM skiplock.attempts a JOIN skiplock.jobs j ON j.id = a.job_id"
        " WHERE j.queue = ANY ($1::text[]) AND a.verdict = 'retry' GROUP BY 1",
        _QUEUES,
    )
    return Snapshot(states, dict(map(tuple, retried)), _workers(database))


def _workers(database: SyncDatabase) -> tuple[Worker, ...]:
    """Of all workers only those that serve the demo's queues: somebody else's database may have others."""
    rows = _ask(
        database,
        "SELECT w.id, w.pid, w.queues::text, (SELECT count(*) FROM skiplock.jobs_running r WHERE r.worker = w.id)"
        " FROM skiplock.workers w ORDER BY w.id",
    )
    return tuple(
        Worker(id, pid, holds) for id, pid, queues, holds in rows if set(QUEUES) & set(msgspec.json.decode(queues))
    )


def held_by(database: SyncDatabase, worker: int) -> frozenset[int]:
    """Ids of the jobs in a worker's hands: running, and claimed ahead."""
    return frozenset(
        id for (id,) in _ask(database, "SELECT id FROM skiplock.jobs_running WHERE worker = $1::bigint", str(worker))
    )


def final_rows(database: SyncDatabase) -> Counter[int]:
    """How many final rows each of the demo's jobs has. One, if all is well."""
    rows = _ask(
        database,
        "SELECT id, count(*) FROM skiplock.jobs WHERE queue = ANY ($1::text[]) AND state IN ('completed', 'cancelled', 'dead') GROUP BY 1",
        _QUEUES,
    )
    return Counter(dict(map(tuple, rows)))


def documents(database: SyncDatabase) -> int:
    ((number,),) = _ask(database, "SELECT count(*) FROM demo_documents")
    return int(number)


def search(database: SyncDatabase, query: str) -> tuple[Hit, ...]:
    rows = _ask(
        database,
        "SELECT module, title FROM demo_documents, websearch_to_tsquery('english', $1) AS q WHERE search @@ q AND title <> ''"
        " ORDER BY ts_rank(search, q, 1) DESC, module LIMIT 4",
        query,
    )
    return tuple(Hit(module, title) for module, title in rows)


def traces(database: SyncDatabase) -> str | None:
    """What an earlier demo left in this database, in words, or None."""
    if _ask(database, "SELECT 1 FROM skiplock.jobs WHERE queue = ANY ($1::text[]) LIMIT 1", _QUEUES):
        return "it already has jobs of the demo"
    if _ask(database, "SELECT 1 WHERE to_regclass('demo_documents') IS NOT NULL"):
        return "it already has a table demo_documents"
    return None


def create_documents(database: SyncDatabase) -> None:
    with database.connection() as connection:
        connection.execute(
            "CREATE TABLE demo_documents (module text PRIMARY KEY, title text NOT NULL, body text NOT NULL,"
            " job_id bigint NOT NULL, search tsvector NOT NULL)"
        )
        connection.execute("CREATE INDEX ON demo_documents USING gin (search)")


def _ask(database: SyncDatabase, sql: str, *params: str) -> Sequence[Row]:
    return database.run(Call(sql, params, _rows))


def _rows(rows: Sequence[Row]) -> Sequence[Row]:
    return rows

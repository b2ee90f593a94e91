"""The protocol's verbs on the smallest database that has all that matters: rows by stage, registered workers, leases.

Each function is one transaction: it takes a database and answers the next one. The verbs of the same names are in
src/skiplock/store/sql. What a stage of waiting adds (time) is left out: a retry is ready at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

READY, RUNNING, DONE, DEAD = "ready", "running", "done", "dead"
COMPLETED, RETRY, RELEASE = "completed", "retry", "release"


class Limits(NamedTuple):
    attempts: int
    losses: int  # workers lost in a row that a job survives; two in the real protocol


@dataclass(frozen=True)
class Protections:
    """What keeps the protocol right. The tests take them away one by one and see what happens."""

    lease_checked: bool = True  # a settle touches only the row that runs under the lease shown
    only_running: bool = True  # and only while it runs: a repeat changes nothing
    rescue_fenced: bool = True  # a rescue moves only rows that still run as they did when it looked
    lease_cleared: bool = True  # what was rescued has no lease, so that a late settle is told that it came to nothing
    attempts_counted: bool = True  # a retry without attempts left is death
    unregistered_swept: bool = True  # rows of workers that are not registered are rescued too
    random_leases: bool = True  # else from a sequence, which a failover sets back
    unique_workers: bool = True  # else their numbers are from a sequence, which a failover sets back
    outcomes_remembered: bool = True  # what a failover undid is settled again from memory
    reconciled: bool = True  # a worker compares what it holds with what the database thinks it holds


class Row(NamedTuple):
    """A job in one stage."""

    job: int
    stage: str
    attempt: int = 0
    losses: int = 0
    worker: int = 0
    lease: int = 0  # none: 0
    run: int = 0  # which attempt this truly is; nobody in the protocol sees it, only the leases
    ended_by: str = ""  # how the attempt of that lease ended


class Outcome(NamedTuple):
    """What a worker says of an attempt."""

    job: int
    lease: int
    run: int
    verdict: str


class Registration(NamedTuple):
    worker: int
    silent: bool = False  # without a beat for longer than it promised


class Database(NamedTuple):
    rows: tuple[Row, ...]
    workers: tuple[Registration, ...] = ()
    leases_drawn: int = 0  # sequences, of which the real protocol has none
    workers_drawn: int = 0

    def running(self, worker: int) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.stage == RUNNING and row.worker == worker)

    def registration(self, worker: int) -> Registration | None:
        return next((found for found in self.workers if found.worker == worker), None)


class Settled(NamedTuple):
    database: Database
    refused: tuple[Outcome, ...]
    wrong: str  # what must never happen and did


def move(database: Database, gone: Row | None, come: Row | None) -> Database:
    """DELETE … RETURNING and INSERT in one statement."""
    rows = [row for row in database.rows if row is not gone]
    return database._replace(rows=tuple(sorted([*rows, come] if come else rows)))


def claim(database: Database, worker: int, lease: int, run: int, room: int) -> tuple[Database, tuple[Row, ...]]:
    """The rows started under this one lease."""
    taken = []
    for row in [row for row in database.rows if row.stage == READY][:room]:
        started = Row(row.job, RUNNING, row.attempt + 1, row.losses, worker, lease, run)
        database = move(database, row, started)
        taken.append(started)
    return database, tuple(taken)


def settle(database: Database, outcomes: Iterable[Outcome], protections: Protections, limits: Limits) -> Settled:
    refused, wrong = [], ""
    for outcome in outcomes:
        row = next((row for row in database.rows if _owns(row, outcome, protections)), None)
        if row is not None:
            if row.run != outcome.run:
                wrong = "a settle was accepted under a stale lease"
            database = move(database, row, _ended(row, outcome.verdict, protections, limits))
        elif not any(row.job == outcome.job and row.lease == outcome.lease for row in database.rows):
            refused.append(outcome)
    return Settled(database, tuple(refused), wrong)


def _owns(row: Row, outcome: Outcome, protections: Protections) -> bool:
    return (
        row.job == outcome.job
        and (row.lease == outcome.lease or not protections.lease_checked)
        and (row.stage == RUNNING or not protections.only_running)
    )


def _ended(row: Row, verdict: str, protections: Protections, limits: Limits) -> Row:
    row = row._replace(worker=0, ended_by=verdict)
    if verdict == COMPLETED:
        return row._replace(stage=DONE)
    if verdict == RELEASE:
        return row._replace(stage=READY, attempt=row.attempt - 1)
    if row.attempt >= limits.attempts and protections.attempts_counted:
        return row._replace(stage=DEAD)
    return row._replace(stage=READY, losses=0)


def release(database: Database, worker: int, lease: int | None = None) -> Database:
    """Give back what runs under this worker, or under this one lease of its: attempts unspent."""
    for row in database.running(worker):
        if lease is None or row.lease == lease:
            released = row._replace(stage=READY, attempt=row.attempt - 1, worker=0, ended_by=RELEASE)
            database = move(database, row, released)
    return database


def lose(
    database: Database,
    seen: Iterable[Row],
    started: Collection[int] | None,
    protections: Protections,
    limits: Limits,
) -> Database:
    """Give back these rows of a lost worker, as they were `seen`. `started`: the jobs that had begun, if anybody knows."""
    for row in seen:
        found = row if row in database.rows else None
        if found is None and protections.rescue_fenced:
            continue
        if started is not None and row.job not in started:
            come = row._replace(stage=READY, attempt=row.attempt - 1, worker=0, ended_by=RELEASE)
        else:
            attempt = row.attempt - (started is None)
            used_up = started is not None and row.attempt >= limits.attempts
            stage = DEAD if row.losses >= limits.losses or used_up else READY
            come = Row(row.job, stage, attempt, row.losses + 1)
            if not protections.lease_cleared:
                come = come._replace(lease=row.lease, run=row.run, ended_by="lost")
        database = move(database, found, come)
    return database


def register(database: Database, worker: int) -> Database:
    return database._replace(workers=tuple(sorted([*database.workers, Registration(worker)])))


def forget(database: Database, worker: int) -> Database:
    return database._replace(workers=tuple(found for found in database.workers if found.worker != worker))


def beat(database: Database, worker: int) -> Database:
    return register(forget(database, worker), worker)


def silent(database: Database, but: Collection[int] = ()) -> Database:
    """More time passes than any worker may be silent for; these beat meanwhile."""
    return database._replace(
        workers=tuple(found._replace(silent=found.worker not in but) for found in database.workers)
    )


def problem(database: Database, jobs: int, limits: Limits) -> str:
    """What is wrong with these tables, or nothing."""
    if sorted(row.job for row in database.rows) != list(range(1, jobs + 1)):
        return "a job is lost, or in two places"
    for row in database.rows:
        if not 0 <= row.attempt <= limits.attempts or (row.stage == READY and row.attempt == limits.attempts):
            return "more attempts than were allowed, or fewer than none"
    return ""

"""The values that stand for a job on its way: `NewJob` → `Job` → (`Outcome` in core.outcome) → `JobRecord`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

MAX_NAME = 200  # characters of a queue, task or worker name; a NOTIFY payload (7,999 bytes) must hold a queue name
MIN_PRIORITY, MAX_PRIORITY = -32768, 32767


class JobState(StrEnum):
    """Where a job is. The states of one partition share a table; see docs/architecture."""

    SCHEDULED = "scheduled"
    RETRYABLE = "retryable"
    BLOCKED = "blocked"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_final(self) -> bool:
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be enqueued: checked and encoded, not yet stored.

    `args` is JSON text. `delay` (seconds, counted by the database's clock) and `run_at` exclude each other.
    `options` is JSON text of rare per-job settings (timeout, backoff) or None; `flow` that of its rules (core/flow.py).
    """

    task: str
    args: str
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int = 10
    tags: tuple[str, ...] = ()
    meta: str | None = None
    options: str | None = None
    flow: str | None = None


class Job(msgspec.Struct, frozen=True, gc=False):
    """A claimed job, as a worker holds it. `args`, `meta` and `options` are JSON text; `enqueued` is the time as PostgreSQL
    writes it (ISO 8601): making a datetime of it for every job would be half the price of fetching the row.

    The columns come in exactly the order in which `claim.sql` returns them.
    """

    id: int
    lease: int
    queue: str
    priority: int
    position: int
    task: str
    args: str
    attempt: int
    max_attempts: int
    losses: int
    enqueued: str
    meta: str | None
    options: str | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One failed, lost or snoozed attempt as it was kept."""

    attempt: int
    verdict: str
    error_class: str | None
    message: str | None
    traceback: str | None
    worker: str | None
    started_at: datetime | None
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as the desk shows it. Times are timezone-aware; `args`, `meta`, `result` and `flow` are decoded JSON.
    `blocked_on`: the key of the limit that holds it up."""

    id: int
    state: JobState
    task: str
    queue: str
    priority: int
    args: Any
    attempt: int
    max_attempts: int
    losses: int
    enqueued_at: datetime
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: int | None
    error: str | None
    result: Any
    tags: tuple[str, ...] = ()
    meta: Any = None
    options: Any = None
    flow: Any = None
    blocked_on: str | None = None
    expires_at: datetime | None = None
    attempts: tuple[AttemptRecord, ...] = field(default=())

"""The values of the reference: what a job is to it, and what the verbs are given and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FRESH = -1
WAITING, FINAL = ("scheduled", "retryable"), ("completed", "cancelled", "dead")
LOST = "JobLostError"
Pair = tuple[int, int]  # (job id, lease)


@dataclass(frozen=True)
class Job:
    """One job, in whatever stage. `lease` is that of its latest attempt, and stays when that has ended."""

    id: int
    queue: str
    priority: int
    max_attempts: int
    state: str
    position: int | None = None
    run_at: int | None = None
    attempt: int = 0
    losses: int = 0
    lease: int | None = None
    worker: int | None = None
    error: str | None = None  # the class of it
    large: bool = False  # whether its arguments are kept beside it
    unique: str | None = None  # its key

    @property
    def is_live(self) -> bool:
        return self.state not in FINAL


@dataclass(frozen=True)
class NewJob:
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 10
    delay: int | None = None
    large: bool = False
    unique: str | None = None
    replaces: bool = False  # the one that has the key


@dataclass(frozen=True)
class Outcome:
    """One attempt's end, as `settle` is told it."""

    id: int
    lease: int
    verdict: str
    delay: int | None = None

    @property
    def pair(self) -> Pair:
        return self.id, self.lease

    @property
    def error(self) -> str | None:
        return {"retry": "ValueError", "dead": "Dead", "cancelled": "Cancel"}.get(self.verdict)


@dataclass(frozen=True)
class Worker:
    beat_at: int
    lost_after: int
    state: str = "running"


class Kept(NamedTuple):
    """A row of `attempts`."""

    job: int
    attempt: int
    verdict: str
    worker: int | None


class Beat(NamedTuple):
    known: bool
    leader: bool
    due_in: int | None
    waiting: list[str]
    suspects: int
    cancelled: list[int]
    rescued: list[tuple[int, int]]

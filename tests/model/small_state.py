"""The values of the small machine: what there is in a state, and what the world may do.

Leases and workers' numbers are drawn at random by the real protocol and only ever compared. Here they are the least number
that nobody remembers any more, which comes to the same and keeps the number of states finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from tests.model.small_database import Database, Limits, Outcome, Row

LIMITS = Limits(attempts=2, losses=1)
UP, STOPPING, KILLED, GONE = "up", "stopping", "killed", "gone"


class World(NamedTuple):
    """How often, at most, the world does what it can do to us."""

    kills: int = 0
    cuts: int = 0  # of a connection while a request is on its way: it or its answer is lost, or it arrives later
    failovers: int = 0  # to a standby that lacks the latest transactions
    stops: int = 0  # SIGTERM
    pauses: int = (
        0  # of everybody, for longer than a worker may be silent: SIGSTOP, a host without memory, a slow network
    )


@dataclass(frozen=True)
class Scope:
    """What is explored."""

    world: World
    jobs: int = 1
    workers: int = 2
    slots: int = 1  # attempts that a worker holds at once
    limits: Limits = LIMITS
    undone: int = 1  # transactions that a failover undoes, at most
    handlers_fail: bool = True
    started: bool = True  # whether the workers are registered in the beginning


class Attempt(NamedTuple):
    job: int
    lease: int
    run: int


class ClaimRequest(NamedTuple):
    worker: int
    lease: int
    run: int
    room: int


class SettleRequest(NamedTuple):
    outcomes: tuple[Outcome, ...]


class RescueRequest(NamedTuple):
    """A rescuer that has looked and not yet written."""

    worker: int
    seen: tuple[Row, ...]


Request = ClaimRequest | SettleRequest | RescueRequest


class Process(NamedTuple):
    """A worker process, and what it believes."""

    worker: int
    life: str = UP
    held: tuple[Attempt, ...] = ()  # claimed, and their handlers not ended
    outbox: tuple[Outcome, ...] = ()  # not acknowledged
    unanswered: tuple[tuple[int, int], ...] = ()  # (worker, lease) of a claim whose answer never came
    settled: tuple[Outcome, ...] = ()  # acknowledged: the latest of each job


class State(NamedTuple):
    database: Database
    processes: tuple[Process, ...]
    world: World
    requests: tuple[Request, ...] = ()  # on their way although nobody waits for the answer
    before: tuple[Database, ...] = ()  # what a failover may bring back
    wrong: str = ""


def rows(state: State) -> Iterator[Row]:
    for database in (state.database, *state.before):
        yield from database.rows
    for request in state.requests:
        if isinstance(request, RescueRequest):
            yield from request.seen


def runs(state: State) -> set[int]:
    found: list[Any] = [item for p in state.processes for item in (*p.held, *p.outbox, *p.settled)]
    for request in state.requests:
        found += request.outcomes if isinstance(request, SettleRequest) else []
        found += [request] if isinstance(request, ClaimRequest) else []
    return {item.run for item in found} | {lease for p in state.processes for _, lease in p.unanswered}


def workers(state: State) -> set[int]:
    found = {registration.worker for database in (state.database, *state.before) for registration in database.workers}
    found |= {process.worker for process in state.processes}
    found |= {worker for process in state.processes for worker, _ in process.unanswered}
    return found | {request.worker for request in state.requests if not isinstance(request, SettleRequest)}


def first_free(taken: set[int]) -> int:
    return next(number for number in count(1) if number not in taken)

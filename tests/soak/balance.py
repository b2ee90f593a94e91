"""The balance: what was accepted and what the handlers did, against what the tables say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import psycopg

from tests.soak.producer import DEAD
from tests.soak.record import Record

_ROWS = "SELECT (args->>'n')::bigint, state, lease, coalesce(error, '') FROM skiplock.jobs"
LIVE = "SELECT count(*) FROM skiplock.jobs WHERE state NOT IN ('completed', 'cancelled', 'dead')"


@dataclass
class Balance:
    """Numbers of jobs; `faults` must be empty."""

    accepted: int = 0
    unknown: int = 0
    unknown_stored: int = 0
    states: Counter[str] = field(default_factory=Counter)
    again: int = 0  # handlers that came to their end more than once
    lost_workers: int = 0  # dead because they had lost three workers in a row
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def wrong(self, what: str, n: int, detail: str) -> None:
        self.faults[what] += 1
        if len(self.examples) < 20:
            self.examples.append(f"job {n}: {what}: {detail}")


def draw_up(dsn: str, record: Record, kinds: list[str]) -> Balance:
    """Read all jobs and judge each."""
    balance = Balance()
    accepted = {n for numbers in record.accepted for n in numbers}
    unknown = {n for numbers in record.unknown for n in numbers}
    balance.accepted, balance.unknown = len(accepted), len(unknown)
    seen: set[int] = set()
    with psycopg.connect(dsn) as connection, connection.cursor("jobs") as cursor:
        cursor.itersize = 10_000
        for n, state, lease, error in cursor.execute(_ROWS):
            if n in seen:
                balance.wrong("stored twice", n, state)
            seen.add(n)
            balance.states[state] += 1
            if n not in accepted and n not in unknown:
                balance.wrong("never sent", n, state)
            _judge(balance, record, kinds[n], n, state, lease, error)
    balance.unknown_stored = len(unknown & seen)
    for n in accepted - seen:
        balance.wrong("lost", n, kinds[n])
    balance.again = sum(len(leases) > 1 for leases in record.ends.values())
    return balance


def _judge(balance: Balance, record: Record, kind: str, n: int, state: str, lease: int, error: str) -> None:
    if state not in ("completed", "dead"):
        balance.wrong("not ended", n, state)
    elif kind in DEAD:
        if state != "dead":
            balance.wrong("should be dead", n, state)
    elif state == "dead":
        if error.startswith("JobLostError"):
            balance.lost_workers += 1
        else:
            balance.wrong("dead without cause", n, error)
    elif lease not in record.ends.get(n, ()):
        balance.wrong("completed, and no handler ended under that lease", n, str(lease))
    elif record.newest[n][1] != lease:
        balance.wrong("settled under a stale lease", n, f"{lease}, the newest is {record.newest[n][1]}")

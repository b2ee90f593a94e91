"""One tenant's flood and many small tenants, with real workers: each is served as if all took turns.

Small by default; SKIPLOCK_HAMMER=full is a flood of 100,000 jobs and 100 tenants with 10 each. Kinds: a tenant that starves all
others (PRIO-), jobs put before the cursors of all claims and found late.
To see it fail: give `p.id` for the place in enqueue_flow.sql (no fairness at all), or claim without cursor only every few seconds
(`SHARE` in core/cursor.py as 0.0001, and see that the claim is never cheap).
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from skiplock import Skiplock
from tests.support.fair_jobs import serve
from tests.support.fleets import fleet, one
from tests.support.waiting import eventually

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
FLOOD, TENANTS, EACH = (100_000, 100, 10) if FULL else (4_000, 30, 10)
# Starts of the flood's jobs after the small tenants' were there, and before the last of those had started.
BETWEEN = """SELECT count(*) FROM skiplock.jobs_finished j
WHERE j.flow ->> 'fair' = 'flood' AND j.started_at BETWEEN %s
    AND (SELECT max(started_at) AS last FROM skiplock.jobs_finished WHERE flow ->> 'fair' <> 'flood')"""


def done(dsn: str, flood: bool) -> int:
    found: int = one(dsn, "SELECT count(*) FROM skiplock.jobs_finished WHERE (flow ->> 'fair' = 'flood') = %s", flood)
    return found


def small_tenants(app: Skiplock) -> None:
    app.enqueue_many([serve.job(tenant=f"tenant {n % TENANTS}") for n in range(TENANTS * EACH)])


def measure(dsn: str, folder: Path, drained: float) -> None:
    """The small ones come when that share of the flood is done."""
    with (
        Skiplock(dsn) as app,
        fleet(dsn, folder, processes=2, queues={"default": 10}, target="tests.support.fair_jobs:app") as workers,
    ):
        workers.ready(2)
        app.enqueue_many([serve.job(tenant="flood") for _ in range(FLOOD)])
        eventually(lambda: done(dsn, flood=True) >= drained * FLOOD, seconds=300, pause=0.01)
        small_tenants(app)
        came = one(dsn, "SELECT clock_timestamp()")
        eventually(lambda: done(dsn, flood=False) == TENANTS * EACH, seconds=300, pause=0.05)
        assert done(dsn, flood=True) < FLOOD, "there was no flood left to be kept waiting"
    check_shares(dsn, came)


def check_shares(dsn: str, came: datetime) -> None:
    equal = (TENANTS + 1) * EACH
    began: int = one(dsn, BETWEEN, came)
    assert TENANTS * EACH + began <= 1.5 * equal, f"{began} jobs of the flood went first, and {EACH} were its share"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("drained", [0.0, 0.3], ids=["together", "after a while"])
def test_small_tenants_do_not_wait_for_a_flood(fresh_dsn: str, tmp_path: Path, drained: float) -> None:
    measure(fresh_dsn, tmp_path, drained)

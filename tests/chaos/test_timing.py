"""When scheduled jobs start: promptly, and never early. Speed is judged by the bench; this judges the order of magnitude."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.chaos_jobs import make_runs
from tests.support.fleets import fleet, one, rows, states
from tests.support.waiting import eventually

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
JOBS, SPREAD = (1000, 20) if FULL else (200, 4)
LATE = """SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - run_at)),
    min(extract(epoch FROM started_at - run_at)) FROM skiplock.jobs"""


@pytest.mark.timeout(120)
def test_scheduled_jobs_start_at_their_time(fresh_dsn: str, tmp_path: Path) -> None:
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, processes=1) as worker:
        worker.ready()
        rows(
            fresh_dsn,
            "SELECT skiplock.enqueue('quick', run_at => skiplock.now() + interval '1 s' + random() * interval '1 s' * %s) "
            "FROM generate_series(1, %s)",
            SPREAD,
            JOBS,
        )
        eventually(lambda: states(fresh_dsn) == {"completed": JOBS}, seconds=60)
    [(median, earliest)] = rows(fresh_dsn, LATE)
    assert earliest >= 0
    assert median < (0.05 if FULL else 0.5)  # 50 ms on an idle machine; the tests run on a busy one


def test_a_short_delay_is_not_held_up_by_the_poll(fresh_dsn: str, tmp_path: Path) -> None:
    """The leader sleeps until something is due that is far away; a job due sooner wakes it."""
    make_runs(fresh_dsn)
    rows(fresh_dsn, "SELECT skiplock.enqueue('quick', delay => '1 hour')")
    with fleet(fresh_dsn, tmp_path, processes=1) as worker:
        worker.ready()
        until = "SELECT until FROM skiplock.bells WHERE queue = ''"
        eventually(lambda: one(fresh_dsn, until) is not None)
        for _ in range(5):
            [(job,)] = rows(fresh_dsn, "SELECT skiplock.enqueue('quick', delay => '0.3 s')")
            eventually(lambda j=job: rows(fresh_dsn, "SELECT 1 FROM skiplock.jobs_finished WHERE id = %s", j))
        assert one(fresh_dsn, "SELECT max(extract(epoch FROM started_at - run_at)) FROM skiplock.jobs_finished") < 2.5

"""Many workers, many producers, one table: every job once, with and without workers being killed.

Small by default, so that the whole of the tests stays short; SKIPLOCK_HAMMER=full is 50,000 jobs, 8 processes, 20 kills.
Kinds: exactly one claimer (CONC-57, CONC-17), nothing lost under kills (LIFE-36, LIFE-19), no double settle (CONC-65).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.chaos_jobs import make_runs
from tests.support.fleets import ROOT, Fleet, fleet, one, rows, states
from tests.support.waiting import eventually

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
JOBS, PROCESSES, PRODUCERS, KILLS = (50_000, 8, 4, 20) if FULL else (6_000, 3, 4, 4)
PRODUCER = """
import sys
from tests.support.chaos_jobs import app, record
first, count = int(sys.argv[1]), int(sys.argv[2])
for start in range(0, count, 250):
    app.enqueue_many([record.job() for _ in range(min(250, count - start))])
app.close()
"""


def produce(dsn: str) -> list[subprocess.Popen[bytes]]:
    """Producers in processes of their own, while the workers run."""
    share = JOBS // PRODUCERS
    environment = {
        **os.environ,
        "SKIPLOCK_DATABASE_URL": dsn,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-c", PRODUCER]
    return [subprocess.Popen([*command, str(n * share), str(share)], env=environment) for n in range(PRODUCERS)]


def finished(dsn: str) -> bool:
    """All there and all done, or a failure that cannot heal."""
    found = states(dsn)
    assert found.get("dead", 0) == 0, rows(dsn, "SELECT id, error FROM skiplock.jobs_dead LIMIT 5")
    return found == {"completed": JOBS}


@pytest.mark.timeout(600)
def test_every_job_is_completed_exactly_once(fresh_dsn: str, tmp_path: Path) -> None:
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, processes=PROCESSES) as workers:
        workers.ready(PROCESSES)
        producers = produce(fresh_dsn)
        assert [p.wait(300) for p in producers] == [0] * PRODUCERS
        eventually(lambda: finished(fresh_dsn), seconds=300, pause=0.2)
        workers.signal(signal.SIGTERM)
        assert workers.wait() == 0
        assert not workers.events("settle_refused")
    assert one(fresh_dsn, "SELECT count(*) FROM runs") == JOBS
    assert one(fresh_dsn, "SELECT count(DISTINCT job) FROM runs WHERE attempt = 1") == JOBS
    assert one(fresh_dsn, "SELECT count(DISTINCT id) FROM skiplock.jobs") == JOBS
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0


@pytest.mark.timeout(600)
def test_nothing_is_lost_while_workers_are_killed(fresh_dsn: str, tmp_path: Path) -> None:
    """One random worker process a second. A killed attempt may have had its effect, so a job may *run* twice; it is
    settled once, each extra run is accounted for by an attempt recorded as lost, and all are rescued."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, processes=PROCESSES) as workers:
        workers.ready(PROCESSES)
        producers = produce(fresh_dsn)
        for _ in range(KILLS):
            kill_one(workers)
        assert [p.wait(300) for p in producers] == [0] * PRODUCERS
        eventually(lambda: finished(fresh_dsn), seconds=300, pause=0.2)
        workers.signal(signal.SIGTERM)
        assert workers.wait() == 0
        assert len(workers.events("child_died")) == KILLS
    assert one(fresh_dsn, "SELECT count(DISTINCT id) FROM skiplock.jobs") == JOBS
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs_running") == 0
    # An extra run without a lost attempt would be a job handed out twice; the same attempt run twice would be worse.
    extra = """SELECT count(*) FROM (SELECT job, count(*) - 1 AS extra FROM runs GROUP BY job) r
        WHERE extra > (SELECT count(*) FROM skiplock.attempts a WHERE a.job_id = r.job AND a.verdict = 'lost')"""
    assert one(fresh_dsn, extra) == 0
    assert one(fresh_dsn, "SELECT count(*) FROM (SELECT FROM runs GROUP BY job, attempt HAVING count(*) > 1) t") == 0


def kill_one(workers: Fleet) -> None:
    """SIGKILL to a random worker process about a second after the previous one."""
    due = time.monotonic() + 1.0
    eventually(lambda: time.monotonic() >= due)
    _, pid = random.choice(workers.ready())
    os.kill(pid, signal.SIGKILL)

"""A worker process killed, stopped and told to end at the points between two statements where it knows more than the database.

    claim answered ─ `claimed` ─ nothing has started ─ `attempt_started` ─ handler ─ `attempt_ended` ─ outcome known, not sent ─
    settle answered ─ `settled`

Kinds: a worker dies with started and unstarted jobs (LIFE-04, LIFE-19, LIFE-36), a stopped one wakes late (LIFE-49, CONC-65),
SIGTERM at every moment (LIFE-18, LIFE-21, RETRY-22), what was settled is never run again.

Protections to try: `Settler._settled` ends the slots of the start map only once the outcome is settled (end them in `add`: an
effect without its outcome is taken for one that never began, and its second run has no attempt on record).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.chaos_jobs import kill_at, make_runs
from tests.support.fleets import Fleet, add, fleet, one, rows, states
from tests.support.waiting import eventually

JOBS = 30
QUICK = ("--beat-every", "0.3", "--lost-after", "1")
POINTS = [("claimed", 2), ("attempt_started", 7), ("attempt_ended", 7), ("settled", 2)]
at_every_point = pytest.mark.parametrize(("event", "nth"), POINTS, ids=[event for event, _ in POINTS])
# More runs of a job than attempts on record as lost explain, or an attempt that ran twice.
UNEXPLAINED = """SELECT count(*) FROM (SELECT job, count(*) - 1 AS extra FROM runs GROUP BY job) r
    WHERE extra > (SELECT count(*) FROM skiplock.attempts a WHERE a.job_id = r.job AND a.verdict = 'lost')"""
TWICE = "SELECT count(*) FROM (SELECT FROM runs GROUP BY job, attempt HAVING count(*) > 1) t"


def all_completed(dsn: str) -> bool:
    return states(dsn) == {"completed": JOBS}


def prepared(dsn: str) -> None:
    make_runs(dsn)
    add(dsn, "record", JOBS, max_attempts=3)


@at_every_point
def test_killed(fresh_dsn: str, tmp_path: Path, event: str, nth: int) -> None:
    """The supervisor knows at once. Jobs that had begun spend their attempt, the others nothing; what was settled stays."""
    prepared(fresh_dsn)
    order = kill_at(event, nth, signal.SIGKILL, tmp_path / "killed")
    with fleet(fresh_dsn, tmp_path, queues={"default": 5}, options=QUICK, environment=order) as workers:
        eventually(lambda: workers.events("child_rescued"))
        [rescued] = workers.events("child_rescued")
        eventually(lambda: all_completed(fresh_dsn))
    lost = one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts WHERE verdict = 'lost'")
    assert lost <= rescued["started"]  # less by those that were settled and whose slots were not yet given back
    if event == "attempt_ended":
        assert lost > 0, "their effect is there, so they count as begun"
    assert one(fresh_dsn, UNEXPLAINED) == one(fresh_dsn, TWICE) == 0
    assert one(fresh_dsn, "SELECT max(attempt) FROM skiplock.jobs") <= 2
    # The other way round: an attempt that is on record as the final one has run.
    unrun = "SELECT count(*) FROM skiplock.jobs j WHERE NOT EXISTS (SELECT FROM runs r WHERE r.job = j.id AND r.attempt = j.attempt)"
    assert one(fresh_dsn, unrun) == 0


@at_every_point
def test_told_to_end(fresh_dsn: str, tmp_path: Path, event: str, nth: int) -> None:
    """SIGTERM: what has begun is finished and settled, what has not is ready again. No attempt is spent."""
    prepared(fresh_dsn)
    order = kill_at(event, nth, signal.SIGTERM, tmp_path / "told")
    with fleet(fresh_dsn, tmp_path, queues={"default": 5}, processes=None, environment=order) as worker:
        assert worker.wait() == 0
    found = states(fresh_dsn)
    assert found.keys() <= {"completed", "ready"}
    assert sum(found.values()) == JOBS
    ran = {row[0] for row in rows(fresh_dsn, "SELECT job FROM runs")}
    assert ran == {row[0] for row in rows(fresh_dsn, "SELECT id FROM skiplock.jobs WHERE state = 'completed'")}
    assert one(fresh_dsn, TWICE) == 0
    assert rows(fresh_dsn, "SELECT DISTINCT attempt FROM skiplock.jobs_ready") in ([], [(0,)])
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def stopped(workers: Fleet) -> bool:
    """Whether it has stopped itself."""
    status = Path(f"/proc/{workers.process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("event", "nth"), [POINTS[0], POINTS[2]], ids=["claimed", "attempt_ended"])
def test_stopped_and_woken_late(fresh_dsn: str, tmp_path: Path, event: str, nth: int) -> None:
    """Others find it silent and do its jobs. What it says when it wakes changes nothing, and then it is of use again."""
    prepared(fresh_dsn)
    order = kill_at(event, nth, signal.SIGSTOP, tmp_path / "stopped")
    with fleet(fresh_dsn, tmp_path, queues={"default": 5}, processes=None, options=QUICK, environment=order) as sleeper:
        eventually(lambda: stopped(sleeper))
        with fleet(fresh_dsn, tmp_path, queues={"default": 5}, processes=None, options=QUICK):
            eventually(lambda: all_completed(fresh_dsn))
        before = rows(fresh_dsn, "SELECT * FROM skiplock.jobs ORDER BY id")
        os.kill(sleeper.process.pid, signal.SIGCONT)
        eventually(lambda: sleeper.events("worker_lost"))
        [after] = add(fresh_dsn, "record")
        eventually(lambda: states(fresh_dsn) == {"completed": JOBS + 1})
        assert rows(fresh_dsn, "SELECT * FROM skiplock.jobs WHERE id <> %s ORDER BY id", after) == before
    # Nobody could tell what had begun, so no attempt was spent by the sleep: the same one may have run in both.
    assert one(fresh_dsn, "SELECT max(attempt) FROM skiplock.jobs") == 1
    extra = one(fresh_dsn, "SELECT count(*) FROM (SELECT FROM runs GROUP BY job HAVING count(*) > 1) t")
    assert extra <= one(fresh_dsn, "SELECT count(DISTINCT job_id) FROM skiplock.attempts WHERE verdict = 'lost'")

"""SIGKILL, SIGSTOP, poison: nothing is lost, nothing is settled twice, the innocent live.

Kinds: a worker dies with started and unstarted jobs (LIFE-04, LIFE-08, LIFE-19, LIFE-36), a slow worker is not a dead one
(LIFE-06, LIFE-57, CONC-05), a stale result changes nothing (CONC-07, CONC-65), a job that kills its worker ends (LIFE-24).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.chaos_jobs import make_runs
from tests.support.fleets import add, fleet, one, rows, states
from tests.support.waiting import eventually

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"


def fill(dsn: str, *, running: int, buffered: int) -> None:
    """A queue in which fast jobs make a worker claim far ahead, and slow ones then hold its slots."""
    make_runs(dsn)
    add(dsn, "quick", 4000)
    add(dsn, "wait", running, '{"seconds": 120}')
    add(dsn, "record", buffered + 500, max_attempts=1)


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "everything killed"])
def test_the_jobs_of_a_killed_worker_are_given_back(fresh_dsn: str, tmp_path: Path, supervised: bool) -> None:
    """Under a supervisor within 2 s, else within 15 s by the missing heartbeat, with default settings (so this test takes
    its 15 s). What was only claimed ahead has lost no attempt; with max_attempts=1 it still runs."""
    fill(fresh_dsn, running=100, buffered=500)
    with fleet(fresh_dsn, tmp_path, queues={"default": 100}, processes=1 if supervised else None) as victim:
        [(worker, pid)] = victim.ready()
        held = "SELECT count(*) FROM skiplock.jobs_running WHERE worker = %s AND (SELECT count(*) FROM runs) >= 100"
        eventually(lambda: one(fresh_dsn, held, worker) >= 600, pause=0.005)
        killed = time.monotonic()
        if supervised:
            os.kill(pid, signal.SIGKILL)
            free = "SELECT count(*) = 0 FROM skiplock.jobs_running WHERE worker = %s"
            eventually(lambda: one(fresh_dsn, free, worker), seconds=20)
            assert time.monotonic() - killed < 2.0
        else:
            victim.destroy()
            with fleet(fresh_dsn, tmp_path, queues={"other": 1}, processes=None) as witness:
                witness.ready()
                eventually(lambda: one(fresh_dsn, "SELECT count(*) = 0 FROM skiplock.jobs_running"), seconds=40)
                assert time.monotonic() - killed < 15.0
        started = one(fresh_dsn, "SELECT count(*) FROM runs")
        assert started >= 100
        lost = "SELECT count(*) FROM skiplock.attempts WHERE verdict = 'lost'"
        if supervised:
            assert one(fresh_dsn, lost) == started  # each attempt that had begun is on record, and no other
        rows(fresh_dsn, "DELETE FROM skiplock.jobs_ready WHERE task = 'wait' RETURNING 1")
    with fleet(fresh_dsn, tmp_path, queues={"default": 100}) as heir:
        heir.ready()
        eventually(lambda: not {"ready", "running", "retryable"} & states(fresh_dsn).keys(), seconds=60)
    died_started = one(
        fresh_dsn, "SELECT count(*) FROM skiplock.jobs_dead d WHERE EXISTS (SELECT FROM runs WHERE job = d.id)"
    )
    assert states(fresh_dsn).get("dead", 0) == died_started  # max_attempts=1: dead only if it had really begun
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs WHERE task = 'record'") == 1000


def test_a_worker_that_blocks_its_event_loop_keeps_its_jobs(fresh_dsn: str, tmp_path: Path) -> None:
    """Three times the lease long, with another worker watching; the heartbeat has its own thread and connection.
    SKIPLOCK_HAMMER=full: a whole minute, with default settings."""
    make_runs(fresh_dsn)
    quick = () if FULL else ("--beat-every", "0.3", "--lost-after", "1")
    block = 60 if FULL else 3
    with fleet(fresh_dsn, tmp_path, processes=None, options=quick) as blocked:
        [(worker, _)] = blocked.ready()
        add(fresh_dsn, "wait", 5, '{"seconds": 4}')
        add(fresh_dsn, "block", 1, f'{{"seconds": {block}}}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 6)
        with fleet(fresh_dsn, tmp_path, queues={"other": 5, "default": 5}, processes=None, options=quick) as watcher:
            watcher.ready()
            eventually(lambda: states(fresh_dsn).get("completed") == 6, seconds=block + 20)
            assert not watcher.events("worker_rescued")
        assert one(fresh_dsn, "SELECT count(DISTINCT worker) FROM skiplock.jobs WHERE worker = %s", worker) == 1
        assert one(fresh_dsn, "SELECT count(*) FROM runs") == 6
        assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0


def test_a_stopped_worker_that_wakes_late_changes_nothing(fresh_dsn: str, tmp_path: Path) -> None:
    """Lease lost under SIGSTOP, the job finished by another: the late settle is refused and said so."""
    make_runs(fresh_dsn)
    quick = ("--beat-every", "0.3", "--lost-after", "1")
    with fleet(fresh_dsn, tmp_path, processes=None, options=quick) as sleeper:
        [(worker, pid)] = sleeper.ready()
        [job] = add(fresh_dsn, "wait", 1, '{"seconds": 0.7}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        os.kill(pid, signal.SIGSTOP)
        with fleet(fresh_dsn, tmp_path, processes=None, options=quick) as other:
            other.ready()
            eventually(lambda: states(fresh_dsn).get("completed") == 1)
            before = rows(fresh_dsn, "SELECT * FROM skiplock.jobs WHERE id = %s", job)
            os.kill(pid, signal.SIGCONT)
            # Whichever is first on waking, its handler's end or its heart, it learns that it was declared lost.
            eventually(lambda: sleeper.events("worker_lost"))
            eventually(lambda: len(sleeper.workers()) == 1 and sleeper.workers()[0][0] != worker)
            assert rows(fresh_dsn, "SELECT * FROM skiplock.jobs WHERE id = %s", job) == before
        assert one(fresh_dsn, "SELECT count(*) FROM runs") == 2
        # It is back in business under a new registration.
        add(fresh_dsn, "record")
        eventually(lambda: states(fresh_dsn).get("completed") == 2)


@pytest.mark.parametrize("after", [0.0, 0.5], ids=["at once", "after a while"])
@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "restarted by hand"])
def test_a_job_that_kills_its_worker_ends_dead_and_its_neighbours_complete(
    fresh_dsn: str, tmp_path: Path, after: float, supervised: bool
) -> None:
    make_runs(fresh_dsn)
    add(fresh_dsn, "wait", 100, '{"seconds": 0.2}')
    [killer] = add(fresh_dsn, "poison", 1, f'{{"after": {after}}}')
    add(fresh_dsn, "wait", 100, '{"seconds": 0.2}')
    quick = ("--beat-every", "0.3", "--lost-after", "1")

    def over() -> bool:
        return states(fresh_dsn) == {"completed": 200, "dead": 1}

    if supervised:
        with fleet(fresh_dsn, tmp_path, processes=1, options=quick):
            eventually(over, seconds=60)
    else:
        deaths = 0
        while not over():
            assert deaths < 20
            with fleet(fresh_dsn, tmp_path, processes=None, options=quick) as victim:
                eventually(lambda v=victim: over() or v.process.poll() is not None, seconds=60)
            deaths += 1
    error = one(fresh_dsn, "SELECT error FROM skiplock.jobs WHERE id = %s", killer)
    assert error.startswith("JobLostError: worker")
    assert ("SIGKILL" in error) == supervised

"""SIGTERM and SIGINT: once, twice, echoed; at idle, with work in progress, with handlers that do not listen.

Kinds: nothing is lost and no attempt spent by a shutdown (RETRY-17, RETRY-22, LIFE-18, LIFE-50), what succeeds within the
grace period is recorded (LIFE-21, LIFE-23), it ends in time whatever the handlers do (LIFE-54, LIFE-55), one order
delivered twice counts once (LIFE-51).
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.chaos_jobs import make_runs
from tests.support.fleets import add, fleet, one, states
from tests.support.waiting import eventually


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, None], ids=["supervised", "bare"])
def test_an_idle_worker_ends_at_once(
    fresh_dsn: str, tmp_path: Path, number: signal.Signals, processes: int | None
) -> None:
    with fleet(fresh_dsn, tmp_path, processes=processes) as idle:
        idle.ready()
        idle.signal(number)
        assert idle.wait() == 0
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def test_running_jobs_finish_and_buffered_ones_are_ready_again(fresh_dsn: str, tmp_path: Path) -> None:
    """50 running, 500 buffered: the buffered are free long before the running have finished; no attempt is spent."""
    make_runs(fresh_dsn)
    add(fresh_dsn, "quick", 4000)
    add(fresh_dsn, "wait", 50, '{"seconds": 3}')
    add(fresh_dsn, "record", 1500, max_attempts=1)
    with fleet(fresh_dsn, tmp_path, processes=1) as stopping:
        [(worker, _)] = stopping.ready()
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") >= 50, pause=0.005)
        running = one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs_running WHERE worker = %s", worker)
        assert running >= 550
        stopping.signal(signal.SIGTERM)
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs_running") <= 50, seconds=2)
        assert stopping.wait() == 0
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs WHERE task = 'wait' AND state = 'completed'") == 50
    assert (
        one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs_ready WHERE attempt = 0 AND losses = 0")
        == states(fresh_dsn)["ready"]
    )
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0


@pytest.mark.parametrize("task", ["wait", "thread", "block"])
def test_what_outlives_the_grace_period_is_released(fresh_dsn: str, tmp_path: Path, task: str) -> None:
    """A coroutine, a thread that cannot be stopped, a handler that blocks the loop: attempt given back, in time."""
    make_runs(fresh_dsn)
    [job] = add(fresh_dsn, task, 1, '{"seconds": 100}', max_attempts=1)
    with fleet(fresh_dsn, tmp_path, processes=1, options=("--grace", "0.5")) as stopping:
        stopping.ready()
        eventually(lambda: states(fresh_dsn) == {"running": 1})
        began = time.monotonic()
        stopping.signal(signal.SIGTERM)
        code = stopping.wait()
        assert time.monotonic() - began < 14
        assert code == (137 if task == "block" else 0)  # a blocked loop can only be killed
    eventually(lambda: states(fresh_dsn) == {"ready": 1})
    assert one(fresh_dsn, "SELECT attempt FROM skiplock.jobs WHERE id = %s", job) == 0


def test_a_second_signal_ends_it_at_once(fresh_dsn: str, tmp_path: Path) -> None:
    make_runs(fresh_dsn)
    add(fresh_dsn, "wait", 20, '{"seconds": 100}', max_attempts=1)
    with fleet(fresh_dsn, tmp_path, processes=1) as stopping:
        stopping.ready()
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 20)
        stopping.signal(signal.SIGTERM)
        eventually(lambda: stopping.events("worker_stopping"))
        eventually(lambda: _aged(stopping.log), seconds=5)  # beyond the time in which an echo counts as one
        began = time.monotonic()
        stopping.signal(signal.SIGTERM)
        assert stopping.wait() == 143
        assert time.monotonic() - began < 5
    assert states(fresh_dsn) == {"ready": 20}
    assert one(fresh_dsn, "SELECT max(attempt) FROM skiplock.jobs") == 0


def _aged(log: Path, seconds: float = 1.3) -> bool:
    return time.time() - log.stat().st_mtime > seconds


def test_one_order_delivered_twice_counts_once(fresh_dsn: str, tmp_path: Path) -> None:
    """A terminal and a process manager both pass it on: the running job still gets its grace period."""
    make_runs(fresh_dsn)
    add(fresh_dsn, "wait", 1, '{"seconds": 2}')
    with fleet(fresh_dsn, tmp_path, processes=None) as stopping:
        stopping.ready()
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        stopping.signal(signal.SIGINT)
        stopping.signal(signal.SIGTERM)
        stopping.signal(signal.SIGINT)
        assert stopping.wait() == 0
    assert states(fresh_dsn) == {"completed": 1}


def test_workers_end_when_their_supervisor_is_killed(fresh_dsn: str, tmp_path: Path) -> None:
    with fleet(fresh_dsn, tmp_path, processes=2) as orphaned:
        pids = [pid for _, pid in orphaned.ready(2)]
        orphaned.signal(signal.SIGKILL)
        eventually(lambda: not any(_alive(pid) for pid in pids))
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except FileNotFoundError:
        return False

"""Child processes of workers (executor="process") when their worker is killed, told to stop, or loses them under load.

Kinds: children end with their worker, whatever they do (LIFE-19, LIFE-45); what had begun spends its attempt and what only
waited for a child does not (LIFE-24); a signal to all processes of a worker is the worker's to heed (LIFE-22); killed
children are replaced, and jobs are claimed only as fast as those alive can run them (LIFE-15, LIFE-20); a second signal ends
everything at once (case 9).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.child_processes import is_alive
from tests.support.fleets import Fleet, add, fleet, one, rows, states
from tests.support.waiting import eventually

APP = "tests.support.process_jobs:app"


def children(worker: int) -> list[int]:
    """The child processes of that process which run skiplock's child."""
    try:
        found = [int(p) for p in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [pid for pid in found if b"skiplock.child" in _command(pid) and is_alive(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def written(path: Path) -> int:
    """The number that a handler has written there."""
    return int(eventually(lambda: path.exists() and path.read_text()) or 0)


def leave(running: Fleet, pids: list[int]) -> None:
    """Nothing of it may be left."""
    eventually(lambda: not [pid for pid in pids if is_alive(pid)], seconds=10)
    assert running.process.poll() is not None


@pytest.mark.parametrize("how", ["python", "a call in C", "a call that blocks"])
@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "everything killed"])
def test_children_end_with_a_killed_worker(fresh_dsn: str, tmp_path: Path, how: str, supervised: bool) -> None:
    """The call in C holds the GIL, so that no thread of the child could notice: remove the prctl, and it lives on. Remove the
    exit in `_read`, and on systems without prctl all would.

    With a supervisor left to tell, what had begun has spent its attempt; what waited for the only child has not."""
    noted = tmp_path / "pid"
    [begun] = add(fresh_dsn, "hangs", 1, json.dumps({"how": how, "path": str(noted)}), max_attempts=5)
    with fleet(
        fresh_dsn, tmp_path, processes=1 if supervised else None, target=APP, options=("--children", "1")
    ) as victim:
        [(_, pid)] = victim.ready()
        child = written(noted)
        assert children(pid) == [child]
        [waiting] = add(fresh_dsn, "nothing", 1, max_attempts=1)
        eventually(lambda: states(fresh_dsn) == {"running": 2})
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_alive(child), seconds=5)
        if supervised:
            fate = "SELECT attempt FROM skiplock.attempts WHERE job_id = %s AND verdict = 'lost'"
            eventually(lambda: rows(fresh_dsn, fate, begun) == [(1,)])
            assert rows(fresh_dsn, fate, waiting) == []


def test_a_stop_of_all_processes_lets_the_job_finish(fresh_dsn: str, tmp_path: Path) -> None:
    """As a service manager does it: SIGTERM to each, children included; and Ctrl-C besides. Remove the handlers in
    `_prepare_process`: the child dies, and with it the job's attempt."""
    noted = tmp_path / "note"
    with fleet(fresh_dsn, tmp_path, processes=1, target=APP, options=("--children", "1")) as stopping:
        [(_, pid)] = stopping.ready()
        [job] = add(fresh_dsn, "note", 1, json.dumps({"path": str(noted), "seconds": 2.0}), max_attempts=1)
        eventually(lambda: noted.exists() and "began" in noted.read_text())
        [child] = children(pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(child, number)
        for told in (pid, stopping.process.pid):
            os.kill(told, signal.SIGTERM)
        assert stopping.wait() == 0
        leave(stopping, [pid, child])
    assert rows(fresh_dsn, "SELECT state, attempt FROM skiplock.jobs WHERE id = %s", job) == [("completed", 1)]
    assert noted.read_text() == f"began {child}\nended {child}\n"


@pytest.mark.parametrize("processes", [1, None], ids=["supervised", "bare"])
def test_what_outlives_the_grace_period_is_killed_and_given_back(
    fresh_dsn: str, tmp_path: Path, processes: int | None
) -> None:
    """Where a handler of the worker's own that holds the GIL could only be killed together with the worker."""
    noted = tmp_path / "pid"
    options = ("--grace", "0.5", "--children", "1")
    with fleet(fresh_dsn, tmp_path, processes=processes, target=APP, options=options) as stopping:
        [(_, pid)] = stopping.ready()
        add(fresh_dsn, "hangs", 1, json.dumps({"how": "a call in C", "path": str(noted)}))
        child = written(noted)
        began = time.monotonic()
        stopping.signal(signal.SIGTERM)
        assert stopping.wait() == 0
        assert time.monotonic() - began < 10
        leave(stopping, [pid, child])
    assert rows(fresh_dsn, "SELECT state, attempt FROM skiplock.jobs") == [("ready", 0)]


def test_a_second_signal_ends_children_at_once(fresh_dsn: str, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    with fleet(fresh_dsn, tmp_path, processes=None, target=APP) as stopping:
        [(_, pid)] = stopping.ready()
        add(fresh_dsn, "hangs", 1, json.dumps({"how": "a call in C", "path": str(noted)}))
        child = written(noted)
        stopping.signal(signal.SIGTERM)
        eventually(lambda: stopping.events("worker_stopping"))
        told = time.monotonic()
        eventually(lambda: time.monotonic() - told > 1.2)  # sooner, it would be an echo of the first
        stopping.signal(signal.SIGTERM)
        assert stopping.wait() == 143
        assert time.monotonic() - told < 6
        leave(stopping, [pid, child])
    assert rows(fresh_dsn, "SELECT state, attempt FROM skiplock.jobs") == [("ready", 0)]


def test_children_are_killed_again_and_again_under_load(fresh_dsn: str, tmp_path: Path) -> None:
    """80 jobs over two children, one of which is killed whenever ten more have ended: each kill costs the job it hit one
    attempt and nobody else anything. Never are there more children than allowed, but for those that are dying."""
    noted = tmp_path / "ids"
    args = json.dumps({"path": str(noted), "seconds": 0.05})
    job_ids = add(fresh_dsn, "once", 80, args, queue="once", max_attempts=20)
    queues = {"once": 50}
    with fleet(fresh_dsn, tmp_path, queues=queues, processes=None, target=APP, options=("--children", "2")) as worker:
        [(_, pid)] = worker.ready()
        kills = 0

        def all_done() -> bool:
            nonlocal kills
            done, found = states(fresh_dsn).get("completed", 0), children(pid)
            assert len(found) <= 3
            if found and kills * 10 <= done < 80:
                os.kill(found[0], signal.SIGKILL)
                kills += 1
            return done == 80

        eventually(all_done, seconds=60)
        assert kills >= 4
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert set(map(int, noted.read_text().split())) == set(job_ids)
    failures = rows(fresh_dsn, "SELECT error_class, message FROM skiplock.attempts")
    assert len(failures) <= kills
    kinds = Counter(error for error, _ in failures)
    assert set(kinds) <= {"skiplock.core.errors.ChildDiedError", "skiplock.core.errors.ChildStartError"}
    assert all("was killed by SIGKILL" in message for _, message in failures)
    assert one(fresh_dsn, "SELECT max(attempt) FROM skiplock.jobs WHERE id = ANY (%s)", job_ids) <= 1 + kills

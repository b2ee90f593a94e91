"""A worker that lives but cannot beat is not taken for dead, and one that does not run is not taken for alive.

Kinds: a handler that blocks the loop or holds the interpreter for twice the lease (case 2; LIFE-06, LIFE-32, LIFE-57, LIFE-58), a
process that was stopped (case 3), an overloaded machine. To see the tests about the interpreter fail: take the call of
`messenger.vouch` out of vouching.py. For the stopped one: take `is_suspended` out of `Vouching.look`. For the outage: let
`Vouching._hear` do nothing when `known` is None.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skiplock import Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from skiplock.work.beat import Heart
from skiplock.work.startmap import StartMap
from skiplock.worker import Worker
from tests.support.chaos_jobs import make_runs
from tests.support.fleet_jobs import JOBS
from tests.support.fleets import add, fleet, one, rows, states
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.verbs import Verbs
from tests.support.waiting import eventually
from tests.support.workers import until

QUICK = ("--beat-every", "0.3", "--lost-after", "1")
FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"


def test_a_handler_that_holds_the_interpreter_keeps_its_jobs(fresh_dsn: str, tmp_path: Path) -> None:
    """Four times the lease long, with another worker that would take them. SKIPLOCK_HAMMER=full: default settings, 30 s."""
    make_runs(fresh_dsn)
    quick, held = ((), 30) if FULL else (QUICK, 4)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=quick) as holding:
        [(worker, pid)] = holding.ready()
        add(fresh_dsn, "wait", 4, '{"seconds": 1}')
        [held_by] = add(fresh_dsn, "hold", 1, f'{{"seconds": {held}}}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 5)
        with fleet(fresh_dsn, tmp_path, target=JOBS, processes=None, options=quick) as watcher:
            watcher.ready()
            eventually(lambda: states(fresh_dsn).get("completed") == 5, seconds=held + 20)
            assert not watcher.events("worker_rescued")
            [told] = holding.events("worker_vouched")
            assert (told["pid"], told["worker"], told["level"]) == (pid, worker, "WARNING")
            assert held_by in told["jobs"] and 'executor="process"' in told["hint"]
            eventually(lambda: holding.events("worker_heard"))
        assert not holding.events("worker_lost") and not holding.events("child_died")
    assert one(fresh_dsn, "SELECT count(*) FROM runs") == 5
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0


def test_a_stopped_process_is_not_vouched_for(fresh_dsn: str, tmp_path: Path) -> None:
    """Others have its job within the lease; when it wakes, its late result changes nothing and it begins afresh."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=QUICK) as stopping:
        [(worker, pid)] = stopping.ready()
        [job] = add(fresh_dsn, "wait", 1, '{"seconds": 0.7}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        os.kill(pid, signal.SIGSTOP)
        with fleet(fresh_dsn, tmp_path, target=JOBS, processes=None, options=QUICK) as other:
            other.ready()
            eventually(lambda: states(fresh_dsn).get("completed") == 1)
            before = rows(fresh_dsn, "SELECT * FROM skiplock.jobs WHERE id = %s", job)
            assert not stopping.events("worker_vouched") and not stopping.events("child_died")
            os.kill(pid, signal.SIGCONT)
            eventually(lambda: stopping.events("worker_lost"))
            eventually(lambda: [w for w, p in stopping.workers() if p == pid and w != worker])
            assert rows(fresh_dsn, "SELECT * FROM skiplock.jobs WHERE id = %s", job) == before
    assert one(fresh_dsn, "SELECT count(*) FROM runs") == 2


def test_one_that_never_comes_round_is_killed_and_tells_where_it_was(fresh_dsn: str, tmp_path: Path) -> None:
    """A dead lock that holds the interpreter: after --vouch-for it costs its attempt, and the innocent run again."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=(*QUICK, "--vouch-for", "1.5")) as holding:
        [(_, pid)] = holding.ready()
        add(fresh_dsn, "wait", 3, '{"seconds": 1.5}')
        [job] = add(fresh_dsn, "deadlock", 1, max_attempts=1)
        eventually(lambda: states(fresh_dsn) == {"completed": 3, "dead": 1})
        [died] = holding.events("child_died")
        assert died["pid"] == pid and "killed by its supervisor" in died["reason"]
        assert died["traceback"].startswith("Current thread") and "in deadlock" in died["traceback"]
        holding.signal(signal.SIGTERM)
        assert holding.wait() == 0
    error = one(fresh_dsn, "SELECT error FROM skiplock.jobs WHERE id = %s", job)
    assert "killed by its supervisor: it had not come round for" in error
    assert one(fresh_dsn, "SELECT count(*) FROM runs") == 7  # three waits, the one that hung, and the waits again


async def test_a_worker_that_is_vouched_for_does_not_think_itself_lost(
    dsn: str, db: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own beats fail for thrice the lease, its supervisor's come through. When those end too, it gives its leases up.
    Remove the look at `vouched_at` in `Worker._silence`."""

    def fail(_: Heart) -> None:
        raise OSError("no beat today")

    startmap, lost = StartMap.create(100), asyncio.Event()
    with Skiplock(dsn) as app:
        app.events.subscribe(lambda event: lost.set(), "worker_lost")
        worker = Worker(app, WorkerSettings(beat_every=0.3, lost_after=1.0, grace=0.1), startmap=startmap)
        run = asyncio.create_task(worker.run())
        await until(lambda: startmap.worker and startmap.heard_at, unless=run)
        monkeypatch.setattr(Heart, "_one_beat", fail)
        until_then = time.monotonic() + 3.0
        while time.monotonic() < until_then:
            startmap.set_vouched(time.monotonic())
            await asyncio.sleep(0.1)
        assert not lost.is_set()
        await asyncio.wait_for(lost.wait(), 10)
        worker.stop("the test ends")
        await asyncio.wait_for(run, 30)
    startmap.close()


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    with start_server(binaries=binaries_under_test(), settings=SETTINGS) as server:
        migrate(server.dsn())
        make_runs(server.dsn())
        yield server


def test_while_the_database_is_away_nobody_is_killed_for_silence(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """A handler holds the interpreter before, during and after an outage longer than --vouch-for, and is settled in the end."""
    dsn = own_server.dsn()
    with fleet(dsn, tmp_path, target=JOBS, options=(*QUICK, "--vouch-for", "2.7")) as worker:
        [(_, pid)] = worker.ready()
        add(dsn, "hold", 1, '{"seconds": 6}')
        eventually(lambda: worker.events("worker_vouched"))
        own_server.halt("fast")
        gone = time.monotonic()
        eventually(lambda: time.monotonic() - gone > 3.2)
        own_server.resume()
        eventually(lambda: states(dsn) == {"completed": 1}, seconds=30)
        assert not worker.events("child_died") and not worker.events("beat_failed")[1:]
        assert [p for _, p in worker.workers()] == [pid]
    assert one(dsn, "SELECT count(*) FROM runs") == 1


def _burn(until: float) -> None:
    while time.monotonic() < until:
        sum(range(1000))


def test_an_overloaded_machine_makes_nobody_look_dead(fresh_dsn: str, tmp_path: Path) -> None:
    """Three times as many busy processes as processors, and thirty busy threads in each of two workers that watch each other.
    Takes its 8 s: an overload has to last. SKIPLOCK_HAMMER=full: ten minutes, with default settings."""
    options, lasting = ((), 600.0) if FULL else (("--beat-every", "1", "--lost-after", "3"), 8.0)
    until = time.monotonic() + lasting
    burners = [
        multiprocessing.get_context("spawn").Process(target=_burn, args=(until,), daemon=True)
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    with fleet(fresh_dsn, tmp_path, target=JOBS, queues={"default": 30}, processes=2, options=options) as busy:
        workers = busy.ready(2)
        for burner in burners:
            burner.start()
        add(fresh_dsn, "spin", 60, f'{{"seconds": {lasting / 2}}}', max_attempts=1)
        eventually(lambda: states(fresh_dsn) == {"completed": 60}, seconds=lasting + 60, pause=0.2)
        assert not busy.events("worker_rescued") and not busy.events("worker_lost") and not busy.events("child_died")
        assert busy.ready(2) == workers
    for burner in burners:
        burner.join()
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0

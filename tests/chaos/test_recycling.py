"""Worn-out worker processes make way for fresh ones, and nothing is lost, repeated or cut short by it.

Kinds: memory that only grows (SCALE-09, SCALE-10, SCALE-11, SCALE-42), slots held by threads that nothing stops (LIFE-25), a process
on its way out that claims (LIFE-38). What to remove to see them fail: `worker.retire` → `worker.stop` in process.py (long jobs
are cut short), `is_taking_turn` in `Supervisor._renew` (all at once), waiting for the successor there (capacity drops).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chaos_jobs import make_runs
from tests.support.fleet_jobs import BROKEN, JOBS
from tests.support.fleets import Fleet, add, fleet, one, rows, states
from tests.support.waiting import eventually

QUICK = ("--beat-every", "0.3", "--lost-after", "1")


def all_done(dsn: str) -> bool:
    return states(dsn).keys() == {"completed"}


def each_ran_once(dsn: str) -> bool:
    ran = one(dsn, "SELECT count(*) FROM (SELECT job FROM runs GROUP BY job HAVING count(*) = 1) r")
    tried = one(dsn, "SELECT count(*) FROM skiplock.attempts")
    return bool(tried == 0 and ran == one(dsn, "SELECT count(*) FROM skiplock.jobs"))


@contextmanager
def counted(dsn: str) -> Iterator[list[int]]:
    """How many processes were there to claim, looked at every 20 ms."""
    found: list[int] = []
    over = threading.Event()
    sql = "SELECT count(*) FROM skiplock.workers WHERE state = 'running'"
    thread = threading.Thread(target=lambda: [found.append(one(dsn, sql)) for _ in iter(lambda: over.wait(0.02), True)])
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["jobs", "memory", "age"])
def test_worn_out_processes_are_replaced_under_load(fresh_dsn: str, tmp_path: Path, kind: str) -> None:
    """Several replacements while jobs come in: each job runs once, and two processes claim at any time."""
    make_runs(fresh_dsn)
    limit = {"jobs": ("--max-jobs", "150"), "memory": ("--max-memory", "160MiB"), "age": ("--max-age", "1.5")}[kind]
    with fleet(fresh_dsn, tmp_path, target=JOBS, queues={"default": 3}, processes=2, options=limit) as worn:
        worn.ready(2)
        with counted(fresh_dsn) as processes:
            while len(worn.events("child_recycled")) < 2:
                if kind == "memory":
                    add(fresh_dsn, "leak", 4, '{"mib": 6}')
                else:
                    add(fresh_dsn, "record", 60)
                add(fresh_dsn, "wait", 2, '{"seconds": 0.3}')
                eventually(lambda: states(fresh_dsn).get("ready", 0) < 20, pause=0.05)
            eventually(lambda: all_done(fresh_dsn))
        assert min(processes) >= 2
        told = worn.events("worker_recycling")[0]
        assert {"jobs": "has run", "memory": "holds", "age": "has lived for"}[kind] in told["reason"]
        assert told["jobs"] > 0 and told["memory"] > 2**25 and told["age"] > 0
        worn.signal(signal.SIGTERM)
        assert worn.wait() == 0
        assert not worn.events("child_died") and not worn.events("child_rescued")
    assert each_ran_once(fresh_dsn)
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def wear_out(dsn: str, worn: Fleet, jobs: int = 10) -> tuple[int, int]:
    """Have a fleet of one process with --max-jobs reach it; answers the pids of the old process and of its successor."""
    add(dsn, "record", jobs)
    [told] = eventually(lambda: worn.events("child_retiring"))
    eventually(lambda: worn.events("worker_recycling"))
    return told["pid"], told["successor"]


def test_what_runs_is_finished_however_long_it_takes_and_nothing_is_claimed(fresh_dsn: str, tmp_path: Path) -> None:
    """Far beyond the grace period. Meanwhile its successor has all that comes, and the long job's worker beats on."""
    make_runs(fresh_dsn)
    options = (*QUICK, "--max-jobs", "10", "--grace", "0.2")
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=options) as worn:
        worn.ready()
        [long] = add(fresh_dsn, "wait", 1, '{"seconds": 6}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        old, successor = wear_out(fresh_dsn, worn)
        later = add(fresh_dsn, "record", 5)
        eventually(lambda: states(fresh_dsn) == {"completed": 15, "running": 1})
        pids = rows(fresh_dsn, "SELECT DISTINCT pid FROM runs WHERE job = ANY (%s)", later)
        assert pids == [(successor,)]
        assert old in [pid for _, pid in worn.workers()]
        eventually(lambda: states(fresh_dsn) == {"completed": 16})
        assert rows(fresh_dsn, "SELECT pid FROM runs WHERE job = %s", long) == [(old,)]
        eventually(lambda: [event["pid"] for event in worn.events("child_recycled")] == [old])
        assert not worn.owns(old)
    assert each_ran_once(fresh_dsn)


def test_one_after_the_other(fresh_dsn: str, tmp_path: Path) -> None:
    """Three that are worn out at the same time: the next one is told only when the one before has ended. Takes its 10 s, since
    each has to finish what it runs first."""
    make_runs(fresh_dsn)
    with fleet(
        fresh_dsn, tmp_path, target=JOBS, queues={"default": 5}, processes=3, options=("--max-age", "1")
    ) as worn:
        worn.ready(3)
        first = {event["pid"] for event in worn.events("child_started")[:3]}
        add(fresh_dsn, "wait", 75, '{"seconds": 2}')
        eventually(lambda: len(worn.events("child_recycled")) >= 3, seconds=40)
        names = ("child_retiring", "child_recycled")
        turns = [(e["event"], e["pid"]) for e in worn.all_events() if e["event"] in names][:6]
        assert {pid for _, pid in turns} == first
        assert turns[0::2] == [("child_retiring", pid) for _, pid in turns[1::2]]
        eventually(lambda: all_done(fresh_dsn))
    assert each_ran_once(fresh_dsn)


def test_told_to_stop_while_one_is_on_its_way_out(fresh_dsn: str, tmp_path: Path) -> None:
    """Then the usual grace period holds for it too, and its job is given back with its attempt."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=("--max-jobs", "10", "--grace", "0.5")) as worn:
        worn.ready()
        [long] = add(fresh_dsn, "wait", 1, '{"seconds": 100}', max_attempts=1)
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        wear_out(fresh_dsn, worn)
        began = time.monotonic()
        worn.signal(signal.SIGTERM)
        assert worn.wait() == 0
        assert time.monotonic() - began < 8
    assert rows(fresh_dsn, "SELECT state, attempt FROM skiplock.jobs WHERE id = %s", long) == [("ready", 0)]
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def test_one_that_is_killed_on_its_way_out_is_reported(fresh_dsn: str, tmp_path: Path) -> None:
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=("--max-jobs", "10")) as worn:
        worn.ready()
        [long] = add(fresh_dsn, "wait", 1, '{"seconds": 5}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        old, successor = wear_out(fresh_dsn, worn)
        os.kill(old, signal.SIGKILL)
        [died] = eventually(lambda: worn.events("child_died"))
        assert (died["pid"], died.get("restart_in")) == (old, None)
        eventually(lambda: all_done(fresh_dsn))
        ran = rows(fresh_dsn, "SELECT pid, attempt FROM runs WHERE job = %s ORDER BY attempt", long)
        assert ran == [(old, 1), (successor, 2)]


def test_a_successor_that_cannot_start_costs_nothing(fresh_dsn: str, tmp_path: Path) -> None:
    """A broken deployment, with an exit code that would end the whole fleet at its start: the old process works on, and is
    replaced once a fresh one can start."""
    make_runs(fresh_dsn)
    broken = tmp_path / "broken"
    with fleet(
        fresh_dsn, tmp_path, target=JOBS, options=("--max-jobs", "10"), environment={BROKEN: str(broken)}
    ) as worn:
        [(_, old)] = worn.ready()
        broken.write_text("3")
        add(fresh_dsn, "record", 10)
        eventually(lambda: len(worn.events("child_died")) >= 2)
        assert {event["code"] for event in worn.events("child_died")} == {3}
        later = add(fresh_dsn, "record", 50)
        eventually(lambda: all_done(fresh_dsn))
        assert rows(fresh_dsn, "SELECT DISTINCT pid FROM runs WHERE job = ANY (%s)", later) == [(old,)]
        broken.unlink()
        eventually(lambda: [event["pid"] for event in worn.events("child_recycled")] == [old], seconds=30)
        assert worn.process.poll() is None
    assert each_ran_once(fresh_dsn)


def test_a_process_whose_slots_are_stuck_is_replaced(fresh_dsn: str, tmp_path: Path) -> None:
    """Threads that do not heed their timeout hold both slots for good. What waits behind them runs in the successor."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, queues={"default": 2}, options=("--grace", "0.5")) as stuck:
        [(_, old)] = stuck.ready()
        add(fresh_dsn, "deaf", 2, '{"seconds": 600}', max_attempts=1)
        eventually(lambda: len(stuck.events("handler_stuck")) == 2)
        add(fresh_dsn, "record", 3)
        eventually(lambda: states(fresh_dsn) == {"dead": 2, "completed": 3})
        eventually(lambda: [event["pid"] for event in stuck.events("child_recycled")] == [old])
        assert "100%" in stuck.events("worker_recycling")[0]["reason"]


def test_without_a_supervisor_it_ends_with_0_and_says_so(fresh_dsn: str, tmp_path: Path) -> None:
    make_runs(fresh_dsn)
    with fleet(
        fresh_dsn, tmp_path, target=JOBS, processes=None, options=("--max-jobs", "10", "--grace", "0.2")
    ) as worn:
        worn.ready()
        add(fresh_dsn, "wait", 1, '{"seconds": 3}')
        add(fresh_dsn, "record", 10)
        assert worn.wait() == 0
        [told] = worn.events("worker_recycling")
        assert "exits with code 0" in told["then"] and told["jobs"] == 11
    assert states(fresh_dsn) == {"completed": 11}
    assert each_ran_once(fresh_dsn)


def test_less_memory_than_the_app_takes_is_refused_at_the_start(fresh_dsn: str, tmp_path: Path) -> None:
    with fleet(fresh_dsn, tmp_path, options=("--max-memory", "16MiB")) as small:
        assert small.wait() == 3
        assert "max_memory=16 MiB: the app takes" in small.log.read_text()


def test_many_small_jobs_leave_nothing_behind(fresh_dsn: str, tmp_path: Path) -> None:
    """100,000 jobs through one process: its memory is what it was before them, and so are its descriptors."""
    with fleet(fresh_dsn, tmp_path, queues={"default": 100}) as worker:
        [(_, pid)] = worker.ready()

        def after(jobs: int) -> tuple[float, int]:
            fill = [
                f"array_fill({value}, ARRAY[{jobs}])" for value in ("'quick'::text", "'{}'::json", "'default'::text")
            ]
            rows(fresh_dsn, f"SELECT count(*) FROM skiplock.enqueue_many({', '.join(fill)})")
            eventually(lambda: not states(fresh_dsn).keys() & {"ready", "running"}, seconds=60, pause=0.2)
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))

        memory, descriptors = after(50_000)  # what is remembered of outcomes for a while is full by then
        more, still = after(100_000)
        assert more < memory + 12, f"{memory:.0f} MiB, then {more:.0f}"
        assert still <= descriptors + 1

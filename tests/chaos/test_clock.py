"""Hosts whose clocks are an hour off, or step about: only the database's clock counts.

Kinds: skew and steps of a host's clock, for delayed jobs, retries, timeouts, heartbeats, rescue. The worker is a real process
under libfaketime, which lies to it about the calendar and leaves the monotonic clock alone, as an administrator's `date -s` does.
It also stops a process with threads now and then for half a second. (When an interruption then meets an answer of the database in
the same turn of the event loop, `asyncio.wait_for` of Python 3.11 loses it, so the handler that is interrupted waits for neither.)

To see it fail: use `time.time()` for `time.monotonic()` in work/beat.py (the clock that steps).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock_jobs import RETRY_AFTER, SEEN, TIMEOUT
from tests.support.databases import connect
from tests.support.debian import unpacked
from tests.support.fleets import Fleet, add, one, rows, states
from tests.support.waiting import eventually

HOUR = 3600.0
LIBRARY = "libfaketimeMT.so.1"


class Clock:
    """The calendar of one host: a file that says how far it is off, read anew at each look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: float) -> None:
        """From now on it is that far off."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+.0f}s\n")
        draft.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        library = next(unpacked("libfaketime").rglob(LIBRARY))
        return {
            "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip


@pytest.fixture
def database(fresh_dsn: str) -> str:
    with connect(fresh_dsn) as connection:
        connection.execute(SEEN)
    return fresh_dsn


@contextmanager
def host(dsn: str, folder: Path, clock: Clock, *options: str) -> Iterator[Fleet]:
    """A worker on a host with that clock."""
    worker = Fleet(
        dsn, folder / f"{id(clock)}.log", queues={"default": 10}, processes=None, options=("--beat-every", "0.3", *options),
        target="tests.support.clock_jobs:app", environment=clock.environment,
    )  # fmt: skip
    try:
        worker.ready()
        yield worker
    except BaseException:
        print(f"--- log of the worker ---\n{worker.log.read_text()[-4000:]}")
        raise
    finally:
        worker.destroy()


def seen(dsn: str, job: int) -> list[Any]:
    """(attempt, seconds after it was due, by the database's clock, whether it knows when it was enqueued)."""
    return rows(
        dsn,
        "SELECT s.attempt, extract(epoch FROM s.at - coalesce(j.run_at, j.enqueued_at))::float8, "
        "s.enqueued = j.enqueued_at, extract(epoch FROM s.at)::float8 "
        "FROM seen s JOIN skiplock.jobs j ON j.id = s.job WHERE s.job = %s ORDER BY s.at",
        job,
    )


def check_times(dsn: str) -> None:
    """A delayed job, a retry, a timeout."""
    [delayed] = add(dsn, "note", delay="1.2 s")
    [at] = [
        row[0] for row in rows(dsn, "SELECT skiplock.enqueue('note', run_at => clock_timestamp() + interval '1.2 s')")
    ]
    [flaky], [long], [now] = add(dsn, "flaky"), add(dsn, "long", max_attempts=1), add(dsn, "note")
    eventually(lambda: states(dsn).get("completed") == 4 and states(dsn).get("dead") == 1, seconds=30)
    for job in (delayed, at, now):
        [(attempt, late, knows, _)] = seen(dsn, job)
        assert (attempt, knows) == (1, True)
        assert 0.0 <= late < 5.0, job
    first, second = [row[-1] for row in seen(dsn, flaky)]
    assert RETRY_AFTER <= second - first < RETRY_AFTER + 5.0
    took = "SELECT extract(epoch FROM ended_at - started_at)::float8 FROM skiplock.attempts WHERE job_id = %s"
    assert TIMEOUT - 0.1 <= one(dsn, took, long) < TIMEOUT + 5.0


@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=["an hour late", "an hour early"])
def test_a_host_that_is_an_hour_off(database: str, tmp_path: Path, off: float) -> None:
    """It works as any, and neither takes others' jobs nor loses its own; another, right one, is beside it."""
    wrong, right = Clock(tmp_path / "wrong"), Clock(tmp_path / "right")
    wrong.step(off)
    with host(database, tmp_path, wrong, "--lost-after", "1.5") as first:
        check_times(database)
        shifts = [row[0] for row in rows(database, "SELECT host - extract(epoch FROM at)::float8 FROM seen")]
        assert all(abs(shift - off) < 60 for shift in shifts), "else its clock was right"
        silence = "SELECT extract(epoch FROM clock_timestamp() - beat_at)::float8 FROM skiplock.workers"
        assert -1.0 < one(database, silence) < 1.5
        [held] = add(database, "hold")
        eventually(lambda: seen(database, held))
        with host(database, tmp_path, right, "--lost-after", "1.5") as second:
            first.process.kill()
            killed = time.monotonic()
            eventually(lambda: states(database).get("completed") == 5, seconds=30)
            assert time.monotonic() - killed < 15.0
            [lost] = second.events("worker_rescued")
            assert 1.0 < lost["silent_for"] < 10.0


def test_a_clock_that_steps_about(database: str, tmp_path: Path) -> None:
    clock, over = Clock(tmp_path / "clock"), threading.Event()

    def step_about() -> None:
        turn = 0
        while not over.wait(0.15):
            turn += 1
            clock.step((0, HOUR, -HOUR, 90, -90)[turn % 5])

    stepping = threading.Thread(target=step_about)
    stepping.start()
    try:
        with host(database, tmp_path, clock, "--lost-after", "1.5") as worker:
            check_times(database)
            for _ in range(20):  # spread over all its clocks
                [job] = add(database, "note")
                eventually(lambda job=job: seen(database, job))
            assert not worker.events("worker_lost") and not worker.events("beat_failed")
    finally:
        over.set()
        stepping.join(20)
    shifts = {round(row[0] / HOUR) for row in rows(database, "SELECT host - extract(epoch FROM at)::float8 FROM seen")}
    assert len(shifts) > 1, "else its clock stood"

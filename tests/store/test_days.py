"""Making the partitions of the coming days while somebody's transaction is open.

Kinds: DDL of a worker that waits for a lock, with everybody behind it (case 24, UPG-09), and the heart that waits with it
(LIFE-06). What the partitions are for is in test_complete.py.
"""

from __future__ import annotations

import time

import psycopg

from skiplock import Skiplock
from tests.support.verbs import open_verbs
from tests.support.workers import running_worker


def test_an_open_transaction_that_has_read_jobs_is_not_waited_for(fresh_dsn: str) -> None:
    """To see it fail: take `lock_timeout` out of days.sql."""
    with psycopg.connect(fresh_dsn) as reader, open_verbs(fresh_dsn) as db:
        reader.execute("SELECT count(*) FROM skiplock.jobs")
        began = time.monotonic()
        assert db.value("SELECT skiplock.make_days(10)") == 0
        assert time.monotonic() - began < 2.0
        reader.rollback()
        assert db.value("SELECT skiplock.make_days(10)") == 3


async def test_a_worker_beats_on(fresh_dsn: str) -> None:
    """The leader makes the days within its first beat. To see it fail: as above."""
    with psycopg.connect(fresh_dsn) as reader, open_verbs(fresh_dsn) as db:
        db.move_time(5 * 86400)
        reader.execute("SELECT count(*) FROM skiplock.jobs")
        async with running_worker(Skiplock(fresh_dsn)) as worker:
            beat_at = "SELECT beat_at FROM skiplock.workers"
            for _ in range(3):
                last = db.value(beat_at)
                await worker.until(lambda last=last: db.value(beat_at) != last, limit=5.0)
            assert not worker.heard("beat_failed") and not worker.heard("worker_lost")

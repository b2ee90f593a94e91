"""Settling: what each verdict does to a job, once, and only for the attempt that owns it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from skiplock.core.outcome import Outcome, Verdict
from skiplock.work.settle import _SETTLE, settle_call
from tests.support.verbs import Claimed, Verbs, at_once, open_verbs, verdict


@pytest.fixture(scope="module")
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        yield verbs


@pytest.fixture
def worker(db: Verbs) -> Iterator[int]:
    """A registered one, in an empty database."""
    db.empty()
    yield db.register("Ann's")


def running(db: Verbs, worker: int, number: int = 1, **options: Any) -> list[Claimed]:
    db.enqueue_some(number, **options)
    claimed = db.claim(worker)
    assert len(claimed) == number
    return claimed


def all_rows(db: Verbs) -> list[Any]:
    return [db.rows(f"SELECT * FROM skiplock.{table} ORDER BY 1") for table in ("jobs", "attempts", "cancellations")]


# --- complete ---------------------------------------------------------------------------------------------------------


def test_complete(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    db.rows("SELECT skiplock.complete(%s, %s, 0.25::real, '[1]')", job.id, job.lease)
    row = db.job(job.id)
    assert (row.state, row.result, (row.finished_at - row.started_at).total_seconds()) == ("completed", [1], 0.25)
    assert db.settle(others=[verdict(job, "retry", delay=0)]) == []  # what the worker asks afterwards
    assert db.state(job.id) == "completed"


@pytest.mark.parametrize("gone", ["stale lease", "unknown job", "completed before", "released"])
def test_complete_raises_if_the_attempt_no_longer_owns_the_job(db: Verbs, worker: int, gone: str) -> None:
    [job] = running(db, worker)
    if gone == "stale lease":
        job = job._replace(lease=1)
    elif gone == "unknown job":
        job = job._replace(id=10**12)
    elif gone == "completed before":
        db.settle(completed=[job])
    else:
        db.settle(others=[verdict(job, "release")])
    before = all_rows(db)
    with pytest.raises(psycopg.Error) as caught, db.transaction():
        db.rows("INSERT INTO skiplock.queues (name) VALUES ('written along')")
        db.rows("SELECT skiplock.complete(%s, %s)", job.id, job.lease)
    assert caught.value.sqlstate == "SK004"
    assert str(job.id) in str(caught.value)
    assert all_rows(db) == before
    assert db.value("SELECT count(*) FROM skiplock.queues WHERE name = 'written along'") == 0


def test_complete_rolled_back(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    before = all_rows(db)
    with db.transaction(force_rollback=True):
        db.rows("SELECT skiplock.complete(%s, %s)", job.id, job.lease)
        assert db.state(job.id) == "completed"
    assert all_rows(db) == before
    assert db.settle(completed=[job]) == []


def test_who_settles_while_a_complete_is_not_committed_waits_for_it(db: Verbs, worker: int, dsn: str) -> None:
    [job] = running(db, worker)
    with open_verbs(dsn) as handler:
        with handler.transaction():
            handler.rows("SELECT skiplock.complete(%s, %s)", job.id, job.lease)
            db.rows("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                db.rows("SELECT skiplock.report_lost(%s, %s, 'slow')", worker, [job.id])
            db.rows("SET lock_timeout = 0")
        assert db.value("SELECT skiplock.report_lost(%s, %s, 'slow')", worker, [job.id]) == 0
    assert db.state(job.id) == "completed"


# --- where finished jobs go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["completed", "cancelled"])
def test_finished_jobs_lie_in_the_partition_of_their_day(db: Verbs, worker: int, word: str) -> None:
    [job] = running(db, worker)
    before = datetime.now(UTC)
    db.settle(completed=[job]) if word == "completed" else db.settle(others=[verdict(job, word)])
    days = {f"skiplock.jobs_finished_{day:%Y%m%d}" for day in (before, datetime.now(UTC))}
    assert db.job(job.id).stage in days


def test_a_missing_partition_stops_no_settle(fresh_dsn: str) -> None:
    with open_verbs(fresh_dsn) as db:
        db.move_time(400 * 86400)
        [done, cancelled] = running(db, db.register(), 2)
        assert db.settle(completed=[done], others=[verdict(cancelled, "cancelled")]) == []
        assert [db.job(job.id).stage for job in (done, cancelled)] == ["skiplock.jobs_finished_default"] * 2
        db.value("SELECT skiplock.make_days()")  # must leave that day to the default partition, and make the others
        [later] = running(db, db.register(), 1)
        db.settle(completed=[later])
        assert db.job(later.id).stage == "skiplock.jobs_finished_default"
        db.move_time(401 * 86400)
        [next_day] = running(db, db.register(), 1)
        db.settle(completed=[next_day])
        assert db.job(next_day.id).stage == db.value(
            "SELECT 'skiplock.jobs_finished_' || to_char(skiplock.now() AT TIME ZONE 'UTC', 'YYYYMMDD')"
        )


def test_making_days_twice_makes_none(fresh_dsn: str) -> None:
    with open_verbs(fresh_dsn) as db:
        assert db.value("SELECT skiplock.make_days()") == 0
        assert db.value("SELECT skiplock.make_days(10)") == 3
        db.move_time(5 * 86400)
        assert db.value("SELECT skiplock.make_days()") == 2


def test_many_at_once_make_each_day_once(fresh_dsn: str) -> None:
    made = at_once(fresh_dsn, 4, lambda db, n: db.value("SELECT skiplock.make_days(20)"))
    assert sum(made) == 13


# --- two at once ------------------------------------------------------------------------------------------------------


def test_two_settles_in_opposite_order_do_not_deadlock(db: Verbs, worker: int, dsn: str) -> None:
    """The worker sorts what it sends: whatever the order of the outcomes, rows are locked in the order of ids."""
    for verdicts in (
        [Verdict.COMPLETED],
        [Verdict.RETRY, Verdict.DEAD],
        [Verdict.COMPLETED, Verdict.RETRY, Verdict.RELEASE],
    ):
        jobs = running(db, worker, 60)
        outcomes = [Outcome(job.id, job.lease, verdicts[n % len(verdicts)]) for n, job in enumerate(jobs)]

        def settle(mine: Verbs, n: int, outcomes: list[Outcome] = outcomes) -> str:
            call = settle_call(outcomes if n % 2 else outcomes[::-1], _SETTLE)
            with psycopg.RawCursor(mine.connection) as cursor:
                cursor.execute(call.sql.encode(), call.params)
            return "done"

        assert at_once(dsn, 4, settle) == ["done"] * 4
        assert db.count("jobs_running") == 0
        db.rows("DELETE FROM skiplock.jobs")


def test_of_two_settles_of_one_attempt_one_counts(db: Verbs, worker: int, dsn: str) -> None:
    words = ["completed", "dead", "retry", "cancelled"]
    for _ in range(5):
        [job] = running(db, worker)

        def settle(mine: Verbs, n: int, job: Claimed = job) -> list[tuple[int, int]]:
            return mine.settle(completed=[job]) if n == 0 else mine.settle(others=[verdict(job, words[n], delay=99)])

        at_once(dsn, 4, settle)
        assert db.count() == 1
        assert len(db.attempts(job.id)) <= 1
        db.empty()

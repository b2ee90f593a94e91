"""Unique keys, and two connections at once: who waits for whom, and what each is told.

Kinds: a holder that rolls back or has just finished (CONC-09, CONC-11, CONC-12), batches in opposite order (DB-53, DB-55), replaced
data dropped without a word (CONC-30).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support import connect, eventually
from tests.support.uniques import add, check, run
from tests.support.verbs import Verbs, open_verbs

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


class Another:
    """Another connection, whose statement may have to wait."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.threads = ThreadPoolExecutor(4)

    def add(self, *keys: str | None, **options: Any) -> Future[list[tuple[int, bool]]]:
        def act() -> list[tuple[int, bool]]:
            with open_verbs(self.dsn) as other:
                return add(other, *keys, **options)

        return self.threads.submit(act)


@pytest.fixture
def another(fresh_dsn: str) -> Iterator[Another]:
    found = Another(fresh_dsn)
    yield found
    found.threads.shutdown()


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
@pytest.mark.parametrize("commits", [True, False])
def test_an_insert_waits_for_one_that_is_under_way(
    db: Verbs, fresh_dsn: str, another: Another, commits: bool, on_conflict: str
) -> None:
    """And answers honestly: the job that is there then. To see it fail: look whether the key is there before inserting it."""
    holder = psycopg.connect(fresh_dsn)
    [(job, _)] = add(Verbs(holder), "a", args=['{"n": 1}'])
    waiting = another.add("a", on_conflict=on_conflict, args=['{"n": 2}'])
    eventually(lambda: db.value(WAITING) == 1)
    holder.commit() if commits else holder.rollback()
    holder.close()
    if commits and on_conflict == "raise":
        with pytest.raises(psycopg.Error, match=f"that of job {job}"):
            waiting.result(20)
    else:
        [(found, new)] = waiting.result(20)
        assert (found == job, new) == (commits, not commits)
        assert db.job(found).args == {"n": 1 if commits and on_conflict == "keep" else 2}
    assert db.count() == 1
    check(db)


@pytest.mark.parametrize("hold", [0, 30])
@pytest.mark.parametrize("commits", [True, False])
def test_an_insert_waits_for_an_end_that_is_under_way(
    db: Verbs, fresh_dsn: str, another: Another, commits: bool, hold: int
) -> None:
    [(job, _)] = add(db, "a", hold=hold)
    [claimed] = run(db)
    holder = psycopg.connect(fresh_dsn)
    Verbs(holder).rows("SELECT skiplock.complete(%s, %s)", job, claimed.lease)
    waiting = another.add("a")
    eventually(lambda: db.value(WAITING) == 1)
    holder.commit() if commits else holder.rollback()
    holder.close()
    [(found, new)] = waiting.result(20)
    assert new is (commits and not hold) and (found != job) is new
    check(db)


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "reschedule"])
def test_an_open_transaction_of_a_producer_holds_up_no_worker(db: Verbs, fresh_dsn: str, on_conflict: str) -> None:
    """To see it fail: INSERT … ON CONFLICT DO UPDATE, or FOR UPDATE of live keys, in `_take_unique`."""
    [(job, _)] = add(db, "a")
    [claimed] = run(db)
    with psycopg.connect(fresh_dsn) as producer:
        assert add(Verbs(producer), "a", on_conflict=on_conflict) == [(job, False)]
        db.rows("SET lock_timeout = '2s'")
        assert db.settle(completed=[claimed]) == []
        assert add(db, "a")[0][1]
    check(db)


@pytest.mark.parametrize("ends", ["claimed", "promoted", "cancelled", "claim undone"])
def test_who_replaces_waits_for_whoever_is_moving_the_job(
    db: Verbs, fresh_dsn: str, another: Another, ends: str
) -> None:
    """Else its arguments were lost without a word, though the job never ran with them.

    To see it fail: SKIP LOCKED in `_take_out`.
    """
    [(job, _)] = add(db, "a", args=['{"n": 1}'], **({"delays": [0.01]} if ends == "promoted" else {}))
    eventually(lambda: ends != "promoted" or db.value("SELECT run_at < skiplock.now() FROM skiplock.jobs"))
    mover = psycopg.connect(fresh_dsn)
    sql = {"promoted": "SELECT skiplock.promote()", "cancelled": f"SELECT skiplock.cancel({job})"}
    Verbs(mover).rows(sql.get(ends, "SELECT skiplock.claim(1, 7, '{default}', '{9}', '{t}')"))
    waiting = another.add("a", on_conflict="replace", args=['{"n": 2}'])
    eventually(lambda: db.value(WAITING) == 1)
    mover.rollback() if ends == "claim undone" else mover.commit()
    mover.close()
    [(found, new)] = waiting.result(20)
    assert (found != job, new) == ((True, True) if ends == "cancelled" else (False, False))
    assert db.job(found).args == {"n": 1 if ends == "claimed" else 2}
    check(db)


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_two_batches_in_opposite_order_never_wait_for_each_other(
    db: Verbs, fresh_dsn: str, another: Another, on_conflict: str
) -> None:
    """Nor for a settle of the same keys. To see it fail: take the keys, or the jobs, in the order of the rows."""
    keys = [f"k{number}" for number in range(300)]
    if on_conflict == "replace":
        add(db, *keys, delays=[60.0] * len(keys))
    stop = threading.Event()

    def work() -> int:
        done = 0
        with open_verbs(fresh_dsn) as other:
            worker = other.register()
            while not stop.is_set():
                jobs = sorted(other.claim(worker, 100))
                assert other.settle(completed=jobs) == []
                done += len(jobs)
        return done

    working = [another.threads.submit(work) for _ in range(2)]
    try:
        for _ in range(12):
            batches = [another.add(*order, on_conflict=on_conflict) for order in (keys, keys[::-1])]
            for batch in batches:
                assert len(batch.result(30)) == len(keys)
    finally:
        stop.set()
    assert sum(worker.result(30) for worker in working) > 0
    check(db)


def test_two_who_replace_in_opposite_order_meet_at_the_first_key(db: Verbs, fresh_dsn: str, another: Another) -> None:
    """To see it fail: go through the keys by `nth` in `_unique_owners`."""
    [(first, _), (second, _)] = add(db, "z", "a", delays=[60.0, 60.0])
    with connect(fresh_dsn) as gate, gate.transaction():
        gate.execute("SELECT FROM skiplock.jobs_waiting WHERE id = %s FOR UPDATE", [second])
        batches = [another.add(*order, on_conflict="replace") for order in (("z", "a"), ("a", "z"))]
        eventually(lambda: db.value(WAITING) == 2)
        assert gate.execute("SELECT id FROM skiplock.jobs_waiting WHERE id = %s FOR UPDATE NOWAIT", [first]).fetchone()
    assert [sorted(batch.result(20)) for batch in batches] == [[(first, False), (second, False)]] * 2
    check(db)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_in_stricter_transactions_of_the_caller_no_key_is_lost(db: Verbs, fresh_dsn: str, level: str) -> None:
    """They see the key of a job that has ended meanwhile beside the one they take. To see it fail: read all keys in the last
    statement of `_take_unique`, without regard to those just taken."""
    end_later = add(db, "a")[0][0]
    [claimed] = run(db)
    with psycopg.connect(fresh_dsn) as guest:
        guest.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        guest.execute("SELECT FROM skiplock.jobs_waiting")
        db.settle(completed=[claimed])
        [(job, new)] = add(Verbs(guest), "a")
        assert new and job != end_later
    check(db)
    with psycopg.connect(fresh_dsn) as guest:
        guest.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        guest.execute("SELECT FROM skiplock.jobs_waiting")
        add(db, "b")
        with pytest.raises(psycopg.errors.SerializationFailure):
            add(Verbs(guest), "b")
    check(db)


def test_a_rollback_takes_everything_back(db: Verbs, fresh_dsn: str) -> None:
    [(job, _)] = add(db, "a", args=['{"n": 1}'], delays=[60.0])
    before = db.job(job)
    with psycopg.connect(fresh_dsn) as guest:
        assert add(Verbs(guest), "a", "b", on_conflict="replace", args=['{"n": 2}', "{}"])[0] == (job, False)
        guest.rollback()
    assert db.job(job) == before and db.count() == 1
    check(db)

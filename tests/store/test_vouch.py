"""A supervisor vouches for its silent processes: their heartbeat moves, and nothing else does (case 2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.verbs import Verbs, at_once, open_verbs


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    """A database of its own, whose clock a test may move."""
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


def vouch(db: Verbs, *workers: int) -> list[int]:
    found: list[int] = db.value("SELECT skiplock.vouch(%s::bigint[])", list(workers))
    return found


def test_one_that_is_vouched_for_is_not_lost(db: Verbs) -> None:
    silent, other = db.register(lost_after=9), db.register(lost_after=9)
    db.enqueue()
    [job] = db.claim(silent)
    for later in (8, 16, 24):
        db.move_time(later)
        assert vouch(db, silent) == [silent]
    assert [lost.worker for lost in db.rows("SELECT * FROM skiplock.rescue()")] == [other]
    assert db.state(job.id) == "running"


def test_nothing_but_the_heartbeat_is_touched(db: Verbs) -> None:
    worker = db.register()
    db.rows("SELECT * FROM skiplock.beat(%s, 7, 'stopping')", worker)
    columns = "id, name, host, pid, queues::text, version, started_at, lost_after, state, running"
    before = db.rows(f"SELECT {columns} FROM skiplock.workers")
    duties = db.rows("SELECT * FROM skiplock.duties")
    db.move_time(5)
    vouch(db, worker)
    assert db.rows(f"SELECT {columns} FROM skiplock.workers") == before
    assert db.rows("SELECT * FROM skiplock.duties") == duties
    assert db.value("SELECT beat_at > started_at + interval '4 s' FROM skiplock.workers")


def test_one_that_was_declared_lost_stays_lost(db: Verbs) -> None:
    gone, there = db.register(lost_after=9), db.register(lost_after=3600)
    db.move_time(60)
    db.rows("SELECT * FROM skiplock.rescue()")
    assert vouch(db, gone, there) == [there]
    assert vouch(db, gone) == [] and vouch(db) == []
    assert db.rows("SELECT id FROM skiplock.workers") == [(there,)]


def test_vouching_and_rescuing_at_once_never_agree_on_the_same_worker(db: Verbs, fresh_dsn: str) -> None:
    """Whoever is second finds it as the first one left it: vouched for and registered, or rescued and gone."""
    for _ in range(20):
        workers = [db.register(lost_after=0.001) for _ in range(5)]

        def act(mine: Verbs, n: int, workers: list[int] = workers) -> list[int]:
            if n == 0:
                return vouch(mine, *workers)
            return [lost.worker for lost in mine.rows("SELECT * FROM skiplock.rescue()")]

        vouched, rescued = at_once(fresh_dsn, 2, act)
        left = [row.id for row in db.rows("SELECT id FROM skiplock.workers ORDER BY id")]
        assert set(left) | set(rescued) == set(workers)
        assert set(left) <= set(vouched)
        db.rows("DELETE FROM skiplock.workers")

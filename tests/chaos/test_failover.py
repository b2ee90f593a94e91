"""A standby takes over: what is promised under asynchronous and under synchronous replication.

Kinds: failover that undoes what was acknowledged (claims, settles, enqueues), an old primary that lives on read-only with its
connections (DB-35), a standby that is asked for writes. The record of what was acknowledged is kept outside the database:
the ids that enqueue answered, and a file that the handlers write to.

To see them fail: without `Reconciler._put_right` (work/reconcile.py) the settles that were undone stay `running` for
ever, and the claims that were undone run twice at once; without 25006 in store/guard.py the worker keeps its connections to the
server that takes no more writes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from skiplock.store.migrate import migrate
from tests.support.fleets import Fleet, add, fleet, one, rows, states
from tests.support.replicas import Pair, change, primary_and_standby
from tests.support.waiting import eventually

MOVED_WITHIN = 10.0  # seconds from the promotion to the first settled job


@pytest.fixture
def pair() -> Iterator[Pair]:
    with primary_and_standby() as made:
        migrate(made.primary.dsn())
        made.replicated()
        yield made


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "journal"
    path.touch()
    monkeypatch.setenv("SKIPLOCK_TEST_JOURNAL", str(path))
    return path


def told(journal: Path, what: str) -> Counter[int]:
    """How often each job did that."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    return Counter(int(job) for word, job in lines if word == what)


def running(pair: Pair, tmp_path: Path) -> AbstractContextManager[Fleet]:
    return fleet(pair.dsn, tmp_path, queues={"default": 50, "late": 5}, options=("--beat-every", "0.5"))


def test_what_an_asynchronous_failover_undoes(pair: Pair, journal: Path, tmp_path: Path) -> None:
    """Settles are made again and not re-run; claims are given up and run again; enqueues are gone; nobody acts by hand."""
    old = pair.primary.dsn()
    rows(old, "SELECT skiplock.pause('late')")
    with running(pair, tmp_path) as worker:
        worker.ready()
        settles = add(old, "journal", 20, '{"seconds": 3}')
        claims = add(old, "journal", 3, '{"seconds": 60}', queue="late")
        eventually(lambda: len(told(journal, "began")) == 20)
        eventually(lambda: states(old).get("running") == 20)
        pair.replicated()
        pair.cut()
        rows(old, "SELECT skiplock.resume('late')")
        enqueues = add(old, "journal", 10)
        eventually(lambda: states(old) == {"completed": 30, "running": 3}, seconds=30)
        eventually(lambda: len(told(journal, "began")) == 33)
        pair.fail_over()
        promoted, new = time.monotonic(), pair.standby.dsn()
        eventually(lambda: states(new).get("completed", 0) > 0, seconds=30, pause=0.05)
        assert time.monotonic() - promoted < MOVED_WITHIN
        eventually(lambda: states(new) == {"completed": 20, "ready": 3}, seconds=30)  # the pause is back as well
        eventually(lambda: sorted(told(journal, "broken")) == sorted(claims), seconds=30)
        rows(new, "UPDATE skiplock.jobs SET args = '{\"seconds\": 0}' WHERE state = 'ready' RETURNING 1")
        rows(new, "SELECT skiplock.resume('late')")
        eventually(lambda: states(new) == {"completed": 23}, seconds=30)
        told_again = [event for event in worker.events("reconciled") if event["settled_again"]]
    assert [event["settled_again"] for event in told_again] == [20]
    began = told(journal, "began")
    assert {began[job] for job in settles} == {1}
    assert {began[job] for job in claims} == {2}
    assert {began[job] for job in enqueues} == {1}, "they ran, and the database has forgotten them"
    assert one(new, "SELECT count(*) FROM skiplock.jobs WHERE id = ANY (%s)", enqueues) == 0
    assert one(new, "SELECT max(attempt) FROM skiplock.jobs") == 1


def test_what_a_synchronous_failover_keeps(pair: Pair, journal: Path, tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost: neither an enqueue nor a settle."""
    old = pair.primary.dsn()
    pair.make_synchronous()
    with running(pair, tmp_path) as worker:
        worker.ready()
        accepted = [job for _ in range(20) for job in add(old, "journal", 10)]
        eventually(lambda: states(old).get("completed", 0) > 100)
        settled = {row[0] for row in rows(old, "SELECT id FROM skiplock.jobs WHERE state = 'completed'")}
        before = told(journal, "began")
        pair.fail_over()
        promoted, new = time.monotonic(), pair.standby.dsn()
        late = add(new, "journal", 1)
        eventually(lambda: states(new) == {"completed": 201}, seconds=30, pause=0.05)
        assert time.monotonic() - promoted < 3 * MOVED_WITHIN
    began = told(journal, "began")
    assert set(began) == {*accepted, *late}
    assert {began[job] for job in settled} == {1}
    assert len(before) >= 100


def test_a_primary_that_turns_read_only_under_its_connections(pair: Pair, journal: Path, tmp_path: Path) -> None:
    """A planned switch-over: the old primary lives on and refuses writes (25006)."""
    old = pair.primary.dsn()
    with running(pair, tmp_path) as worker:
        worker.ready()
        add(old, "journal", 5)
        eventually(lambda: states(old) == {"completed": 5})
        long_ones = add(old, "journal", 5, '{"seconds": 4}')
        eventually(lambda: len(told(journal, "began")) == 10)
        change(pair.primary, "default_transaction_read_only", "on")
        pair.replicated()
        pair.promote()
        promoted, new = time.monotonic(), pair.standby.dsn()
        add(new, "journal", 5)
        eventually(lambda: states(new).get("completed", 0) >= 10, seconds=30, pause=0.05)
        assert time.monotonic() - promoted < MOVED_WITHIN
        eventually(lambda: states(new) == {"completed": 15}, seconds=30)
    assert {told(journal, "began")[job] for job in long_ones} == {1}

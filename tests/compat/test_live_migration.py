"""An upgrade while workers and producers of the previous release are at work; then a rolling restart.

Kinds: migrate under load with workers of N-1 (case 24, UPG-15), mixed versions in a rolling deploy (UPG-13, UPG-14), a worker
that drains while its successor of the same name starts (LIFE-38).
"""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from skiplock.store.migrate import migrate, verify
from tests.compat.jobs import RUNS
from tests.compat.releases import NEW, Client, Release
from tests.support.catalog import run
from tests.support.fleets import Fleet
from tests.support.waiting import eventually

MORE = 200  # jobs between two events


@pytest.fixture
def old_dsn(previous: Release, empty_dsn: str) -> str:
    previous.install(empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(RUNS)
    return empty_dsn


def go_on(client: Client) -> None:
    """Until so many jobs more were enqueued."""
    goal = client.streamed() + MORE
    eventually(lambda: client.streamed() >= goal)


def no_failures(fleet: Fleet) -> bool:
    names = ("claim_failed", "settle_failed", "beat_failed", "settle_refused", "worker_lost", "job_dead")
    assert [event for name in names for event in fleet.events(name)] == []
    return True


def test_migrate_in_the_middle_of_it(previous: Release, old_dsn: str, tmp_path: Path) -> None:
    """Nothing fails, nothing is lost, nothing runs twice, nobody is told of a deadlock.

    Takes its seconds: two releases' processes start one after the other. To see it fail: let `migrate` drop a function
    before it makes its successor and commit in between, or give `leave` a parameter without a default.
    """
    with previous.client(old_dsn) as producer, previous.worker(old_dsn, tmp_path, processes=2) as old:
        old.ready(2)
        producer.start_stream()
        go_on(producer)
        assert migrate(old_dsn, force=True)[-1] == "functions"  # there may be nothing new since
        go_on(producer)
        assert no_failures(old)
        with NEW.worker(old_dsn, tmp_path, processes=1) as new:
            new.ready()
            go_on(producer)
            old.signal(signal.SIGTERM)
            assert old.wait() == 0 and no_failures(old)
            go_on(producer)
            streamed = producer.stop_stream()
            assert streamed["error"] == ""
            ids = streamed["ids"]
            stages = "SELECT state, count(*) FROM skiplock.jobs GROUP BY state"
            eventually(lambda: run(old_dsn, stages) == [("completed", len(ids))], seconds=40)
            new.signal(signal.SIGTERM)
            assert new.wait() == 0 and no_failures(new)
    # `fails_once` is not among the runs; it is recorded as an attempt, once each.
    expected = "SELECT id FROM skiplock.jobs WHERE task = 'record' ORDER BY id"
    assert run(old_dsn, "SELECT job FROM runs ORDER BY job") == run(old_dsn, expected)
    assert sorted(ids) == [row[0] for row in run(old_dsn, "SELECT id FROM skiplock.jobs ORDER BY id")]
    assert {row[0] for row in run(old_dsn, "SELECT DISTINCT code FROM runs")} == {"old", "new"}
    assert run(old_dsn, "SELECT verdict, count(*) FROM skiplock.attempts GROUP BY verdict") == run(
        old_dsn, "SELECT 'retry', count(*) FROM skiplock.jobs WHERE task = 'fails_once'"
    )
    database = urlsplit(old_dsn).path[1:]
    assert run(old_dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = %s", database) == [(0,)]
    assert verify(old_dsn) == []


def test_a_draining_worker_claims_nothing_more(dsn: str, tmp_path: Path) -> None:
    """It has free slots, and its successor has the same name, as after a restart of a pod.

    To see it fail: take the looks at `_stop` out of `Worker.run`, `_claim_loop` and `_claim_once`.
    """
    run(dsn, RUNS)
    name = ("--name", "web-1")
    with NEW.client(dsn) as client, NEW.worker(dsn, tmp_path, options=name, default=5) as drained:
        [(worker, _)] = drained.ready()
        slow = client.many("slow", 2, seconds=100)
        eventually(lambda: run(dsn, "SELECT count(*) FROM runs WHERE job = ANY (%s)", slow) == [(2,)])
        drained.signal(signal.SIGTERM)
        eventually(lambda: drained.events("worker_stopping"))
        jobs = client.many("record", 20)
        ended = "SELECT worker, state, count(*) FROM skiplock.jobs WHERE id = ANY (%s) GROUP BY worker, state"
        with NEW.worker(dsn, tmp_path, options=name, default=5) as successor:
            [(heir, _)] = successor.ready()

            def all_by_the_heir() -> bool:
                found = run(dsn, ended, jobs)
                assert worker not in [row[0] for row in found]
                return found == [(heir, "completed", 20)]

            eventually(all_by_the_heir)
            assert run(dsn, ended, slow) == [(worker, "running", 2)]
            for job in slow:
                client.cancel(job)
            assert drained.wait() == 0
            assert run(dsn, ended, slow) == [(worker, "cancelled", 2)]
            assert run(dsn, "SELECT count(*) FROM runs WHERE job = ANY (%s)", [*slow, *jobs]) == [(22,)]

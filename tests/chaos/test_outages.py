"""The database goes away and comes back: the worker works on by itself, and no outcome is lost.

Kinds: server restart and crash (DB-01, DB-08, DB-17, DB-42), every one of our connections cut at once (DB-34, DB-44, DB-48).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from tests.support.chaos_jobs import make_runs
from tests.support.fleets import add, fleet, one, rows, states
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """A server of this module's own, since it is going to be mistreated."""
    with start_server(binaries=binaries_under_test(), settings=SETTINGS) as server:
        migrate(server.dsn())
        make_runs(server.dsn())
        yield server


def clean(dsn: str) -> None:
    """Nothing of an earlier test."""
    rows(dsn, "DELETE FROM skiplock.jobs RETURNING 1")
    rows(dsn, "DELETE FROM skiplock.attempts RETURNING 1")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_worker_survives_a_restart_of_the_server(own_server: EmbeddedServer, tmp_path: Path, mode: str) -> None:
    """`immediate` is a crash. Jobs go on within seconds, those whose outcome was on its way are settled and not lost."""
    dsn = own_server.dsn()
    clean(dsn)
    with fleet(dsn, tmp_path, processes=1) as worker:
        worker.ready()
        add(dsn, "wait", 40, '{"seconds": 1}')
        add(dsn, "record", 2000)
        eventually(lambda: states(dsn).get("completed", 0) > 100)
        own_server.halt(mode)
        own_server.resume()
        back = time.monotonic()
        add(dsn, "quick", 10)
        eventually(lambda: states(dsn) == {"completed": 2050}, seconds=60)
        assert time.monotonic() - back < 45
        assert worker.process.poll() is None


def test_cut_connections_are_replaced(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """All of the worker's connections are terminated again and again, wherever they happen to be."""
    dsn = own_server.dsn()
    clean(dsn)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'skiplock%%' AND pid <> pg_backend_pid()"
    with fleet(dsn, tmp_path, processes=1) as worker:
        worker.ready()
        add(dsn, "quick", 20_000)
        for share in (2_000, 6_000, 10_000, 14_000):
            eventually(lambda s=share: states(dsn).get("completed", 0) > s, pause=0.005)
            rows(dsn, cut)
        eventually(lambda: states(dsn) == {"completed": 20_000}, seconds=60)
    assert one(dsn, "SELECT count(*) FROM skiplock.attempts") == 0
    assert one(dsn, "SELECT max(attempt) FROM skiplock.jobs WHERE state = 'completed'") == 1

"""A worker of one version is killed, one of the other gives its jobs back; either may do the chores.

Kinds: N-1 on schema N (UPG-14), a whole host is gone (LIFE-04) in the middle of a rolling deploy.
To see it fail: let `rescue` look at workers of its own version only.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest

from tests.compat.jobs import RUNS
from tests.compat.releases import NEW, Code, Release
from tests.support.catalog import run
from tests.support.waiting import eventually

QUICK = ("--beat-every", "0.3", "--lost-after", "1")


@pytest.mark.parametrize("leader", ["old", "new"])
def test_chores_are_done_for_the_other_version(previous: Release, fresh_dsn: str, tmp_path: Path, leader: str) -> None:
    """Promoting and rescuing: the leader is of one version, all else of the other. (Four processes a case, so seconds.)"""
    codes: dict[str, Code] = {"old": previous, "new": NEW}
    chief, other = codes[leader], codes["new" if leader == "old" else "old"]
    with psycopg.connect(fresh_dsn, autocommit=True) as connection:
        connection.execute(RUNS)
    with chief.worker(fresh_dsn, tmp_path, options=QUICK, elsewhere=5) as watcher, other.client(fresh_dsn) as client:
        [(chief_id, _)] = watcher.ready()
        leads = "SELECT worker FROM skiplock.duties WHERE name = 'upkeep'"
        eventually(lambda: run(fresh_dsn, leads) == [(chief_id,)])
        with other.worker(fresh_dsn, tmp_path, options=QUICK) as victim:
            [(worker, pid)] = victim.ready()
            [later] = client.enqueue("record", {"delay": 0.3})
            eventually(lambda: client.get(later)["state"] == "completed")
            assert run(fresh_dsn, leads) == [(chief_id,)]
            jobs = client.many("slow", 3, seconds=1.0)
            eventually(lambda: run(fresh_dsn, "SELECT count(*) FROM runs WHERE job = ANY (%s)", jobs) == [(3,)])
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: watcher.events("worker_rescued"))
        assert [event["worker"] for event in watcher.events("worker_rescued")] == [worker]
        rescued = "SELECT state, losses, attempt FROM skiplock.jobs WHERE id = ANY (%s)"
        assert run(fresh_dsn, rescued, jobs) == [("ready", 1, 0)] * 3
        with other.worker(fresh_dsn, tmp_path, options=QUICK) as heir:
            heir.ready()
            eventually(lambda: {client.get(job)["state"] for job in jobs} == {"completed"})
    assert run(fresh_dsn, "SELECT count(*) FROM runs WHERE job = ANY (%s)", jobs) == [(6,)]

"""Many producers with overlapping unique keys in any order, while workers finish the jobs: one live job a key at any time, no
deadlock, and each row is told the truth.

Kinds: bulk inserts of unique keys against settles (DB-53, DB-55), concurrent inserts that end with an error or without a job
(CONC-11, CONC-12), many at once (CONC-14). SKIPLOCK_HAMMER=full is 16 producers with 1,000 batches each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import ROOT, fleet, one, rows, states
from tests.support.unique_jobs import BATCH, make_tables
from tests.support.waiting import eventually

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
PRODUCERS, BATCHES, KEYS = (16, 1000, 400) if FULL else (4, 60, 60)
# In one statement, so of one moment: keys with two live jobs, live jobs without their key, keys held by no live job.
WRONG = """
WITH live AS (SELECT j.id, j.flow ->> 'unique' AS key FROM skiplock.jobs j WHERE j.state NOT IN ('completed', 'cancelled', 'dead'))
SELECT 'twice', l.key, min(l.id) FROM live l GROUP BY l.key HAVING count(*) > 1
UNION ALL SELECT 'without its key', l.key, l.id FROM live l
    WHERE NOT EXISTS (SELECT FROM skiplock.uniques u WHERE u.key = l.key AND u.job_id = l.id AND u.free_at IS NULL)
UNION ALL SELECT 'held in vain', u.key, u.job_id FROM skiplock.uniques u WHERE NOT EXISTS (SELECT FROM live l WHERE l.id = u.job_id)
"""


def produce(dsn: str, folder: Path) -> list[tuple[subprocess.Popen[bytes], Path]]:
    """Processes of their own; what they were answered is in the files."""
    environment = {
        **os.environ,
        "SKIPLOCK_DATABASE_URL": dsn,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    found = []
    for seed in range(PRODUCERS):
        file = folder / f"answers-{seed}"
        command = [sys.executable, "-m", "tests.support.unique_jobs", str(seed), str(BATCHES), str(KEYS)]
        with file.open("wb") as out:
            found.append((subprocess.Popen(command, env=environment, stdout=out), file))
    return found


@pytest.mark.timeout(1200)
def test_there_is_one_live_job_a_key_at_any_time(fresh_dsn: str, tmp_path: Path) -> None:
    """To see it fail: look for the key before it is inserted; free it in a transaction of its own after the settle; take keys
    in the order of the rows (a deadlock, which the database counts though the producer repeats its call)."""
    make_tables(fresh_dsn)
    seen: list[Any] = []
    looks, over = 0, threading.Event()

    def look() -> None:
        nonlocal looks
        while not over.is_set():
            seen.extend(rows(fresh_dsn, WRONG))
            looks += 1
            over.wait(0.05)

    target = "tests.support.unique_jobs:app"
    with fleet(fresh_dsn, tmp_path, queues={"default": 20}, processes=2, target=target) as workers:
        workers.ready(2)
        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            producers = produce(fresh_dsn, tmp_path)
            assert [process.wait(900) for process, _ in producers] == [0] * PRODUCERS
            eventually(lambda: set(states(fresh_dsn)) <= {"completed", "dead"}, seconds=60, pause=0.1)
        finally:
            over.set()
            watcher.join()
        workers.signal(signal.SIGTERM)
        assert workers.wait() == 0
        assert not workers.events("settle_refused")
    assert seen == [] and looks > 10
    assert set(states(fresh_dsn)) == {"completed"}
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.uniques") == 0
    assert one(fresh_dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    check_answers([json.loads(line) for _, file in producers for line in file.read_text().splitlines()], fresh_dsn)
    check_runs(fresh_dsn)


def check_answers(batches: list[list[tuple[int, int, bool]]], dsn: str) -> None:
    """Each job was new to exactly one row, and each row was told of a job of its key."""
    answers = [tuple(answer) for batch in batches for answer in batch]
    assert len(answers) == PRODUCERS * BATCHES * BATCH
    keys = dict(rows(dsn, "SELECT id, (args ->> 'key')::integer FROM skiplock.jobs"))
    assert sorted(job for _, job, is_new in answers if is_new) == sorted(keys)
    assert [answer for answer in answers if keys.get(answer[1]) != answer[0]] == []
    assert len(keys) < len(answers), "no keys met"


def check_runs(dsn: str) -> None:
    """Every job ran once, and no two of a key at a time."""
    ran = rows(dsn, "SELECT job, alone FROM touched")
    assert [run for run in ran if not run[1]] == []
    assert len(ran) == len({job for job, _ in ran}) == one(dsn, "SELECT count(*) FROM skiplock.jobs")

"""Verbs that write the same rows lock them in one order, so that two of them never wait for each other.

Kinds: deadlocks between a process's own statements, and between processes at the same rows (DB-11, DB-54, DB-55).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import connect, eventually
from tests.support.verbs import open_verbs

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_a_worker_that_leaves_does_not_meet_its_own_last_beat(fresh_dsn: str) -> None:
    """To see it fail: let leave (sql/work/beat.sql) delete the worker's row last."""
    lanes = "%s, lane_queues => '{{q}}', lane_priorities => '{{0}}'::smallint[], lane_positions => '{{{}}}'"
    with open_verbs(fresh_dsn) as db, ThreadPoolExecutor(2) as threads:
        worker = db.register()
        db.rows("INSERT INTO skiplock.lanes VALUES ('q', 0, 1)")

        def run(sql: str) -> list[Any]:
            with open_verbs(fresh_dsn) as other:
                return other.rows(sql, worker)

        with connect(fresh_dsn) as holder, holder.transaction():
            holder.execute("UPDATE skiplock.lanes SET position = 2")
            leaving = threads.submit(run, f"SELECT skiplock.leave({lanes.format(3)})")
            eventually(lambda: db.value(WAITING) == 1)
            beating = threads.submit(run, f"SELECT known FROM skiplock.beat({lanes.format(4)})")
            eventually(lambda: db.value(WAITING) == 2)
        assert leaving.result(20) == [(0,)]
        assert beating.result(20) == [(False,)]


def test_fires_and_declarations_lock_schedules_in_one_order(fresh_dsn: str) -> None:
    """b is orphaned when a worker comes that declares c, which was another: c would be met before b.

    To see it fail: take the locking of all schedules out of _adopt_declarations (sql/upkeep/schedules.sql).
    """
    fire = '{"name": "%s", "until": "2020-01-01Z", "seen": "2020-01-01Z", "fires": [], "run_ats": [], "passed_over": 0}'
    told = f"[{fire % 'b'}, {fire % 'c'}]"
    declared = '[{"name": "c", "spec": {"task": "t", "cron": "1 1 * * *"}}]'
    with open_verbs(fresh_dsn) as db, ThreadPoolExecutor(2) as threads:
        both = '[{"name": "b", "spec": {"task": "t", "cron": "0 0 1 1 *"}}, {"name": "c", "spec": {"task": "t", "cron": "0 0 1 1 *"}}]'
        old, new = db.register(), db.register()
        db.rows("SELECT skiplock.declare_schedules(%s, 10, %s)", old, both)
        db.rows("UPDATE skiplock.schedules SET checked_until = '2020-01-01Z'")
        db.rows("SELECT skiplock.leave(%s)", old)

        def run(sql: str, *params: Any) -> list[Any]:
            with open_verbs(fresh_dsn) as other:
                return other.rows(sql, *params)

        with connect(fresh_dsn) as holder, holder.transaction():
            holder.execute("SELECT FROM skiplock.schedules WHERE name = 'b' FOR UPDATE")
            firing = threads.submit(run, "SELECT done FROM skiplock.fire_schedules(%s)", told)
            eventually(lambda: db.value(WAITING) == 1)
            declaring = threads.submit(run, "SELECT skiplock.declare_schedules(%s, 0, %s)", new, declared)
            eventually(lambda: db.value(WAITING) == 2)
        assert firing.result(20) == []
        declaring.result(20)
        assert db.rows("SELECT name, cron, orphaned_at IS NULL FROM skiplock.schedules ORDER BY 1") == [
            ("b", "0 0 1 1 *", False), ("c", "1 1 * * *", True),
        ]  # fmt: skip


def test_arming_and_disarming_lock_in_one_order(fresh_dsn: str) -> None:
    """To see it fail: take the ORDER BY from disarm (sql/work/bell.sql)."""
    with open_verbs(fresh_dsn) as db, ThreadPoolExecutor(2) as threads:
        # b lies before a, and is met first by whoever reads the table as it lies.
        db.rows("INSERT INTO skiplock.bells VALUES ('b', now() - interval '1 min'), ('a', now() - interval '1 min')")

        def run(verb: str) -> None:
            with open_verbs(fresh_dsn) as other:
                other.rows("SET enable_indexscan = off")
                other.rows("SET enable_bitmapscan = off")
                other.rows(f"SELECT skiplock.{verb}('{{a,b}}')")

        with connect(fresh_dsn) as holder, holder.transaction():
            holder.execute("SELECT FROM skiplock.bells WHERE queue = 'b' FOR UPDATE")
            disarming = threads.submit(run, "disarm")
            eventually(lambda: db.value(WAITING) == 1)
            arming = threads.submit(run, "arm")
            eventually(lambda: db.value(WAITING) == 2)
        disarming.result(20)
        arming.result(20)

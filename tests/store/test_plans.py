"""The hot verbs keep their plans whatever the planner has been told: no statistics, stale ones, a pinned horizon.

Kinds: a plan turned round when a table was analysed while empty (SCALE-46, SCALE-41), cost that grows with dead rows
(SCALE-07, SCALE-45), with backlog (SCALE-19), with rows of other kinds in front (SCALE-12, SCALE-13).
Buffers are counted, not time, except where the fault costs only CPU.
"""

from __future__ import annotations

import random
import time
from typing import Any

import psycopg
import pytest

from tests.support import connect

CLAIM = "SELECT id, job_lease FROM skiplock.claim(%s, %s, '{{q}}', '{{{room}}}', '{{t}}'{cursor})"


class Bench:
    """One worker that claims and settles, and can say what that cost."""

    def __init__(self, dsn: str) -> None:
        self.c: psycopg.Connection[Any] = connect(dsn)
        self.worker = self.one("SELECT skiplock.register('w', 'h', 1, '{}', '0', 9)")

    def one(self, sql: str, *params: object) -> Any:
        row = self.c.execute(sql, params or None).fetchone()  # type: ignore[call-overload]
        return row[0] if row else None

    def fill(self, count: int, queue: str = "q", task: str = "t", more: str = "") -> None:
        self.one(
            "SELECT count(*) FROM skiplock.enqueue_many(array_fill(%s::text, ARRAY[%s]), array_fill('{}'::json, ARRAY[%s]), "
            f"array_fill(%s::text, ARRAY[%s]) {more})",
            *(task, count, count, queue, count),
        )

    def claim(self, room: int, cursor: int | None = None) -> tuple[list[int], int]:
        lease = random.getrandbits(62)
        more = "" if cursor is None else f", '{{q}}', '{{0}}', '{{{cursor}}}'"
        rows = self.c.execute(CLAIM.format(room=room, cursor=more), [self.worker, lease]).fetchall()
        return sorted(row[0] for row in rows), lease

    def settle(self, ids: list[int], lease: int) -> float:
        began = time.perf_counter()
        refused = self.c.execute(
            "SELECT * FROM skiplock.settle(%s::bigint[], %s::bigint[])", [ids, [lease] * len(ids)]
        ).fetchall()
        assert not refused
        return time.perf_counter() - began

    def buffers(self, sql: str) -> int:
        """Pages touched by a statement, those of the functions it calls included."""
        [plan] = self.one(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {sql}")
        return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])

    def claim_buffers(self, room: int, cursor: int | None = None) -> int:
        more = "" if cursor is None else f", '{{q}}', '{{0}}', '{{{cursor}}}'"
        sql = f"SELECT * FROM skiplock.claim({self.worker}, {random.getrandbits(62)}, '{{q}}', '{{{room}}}', '{{t}}'{more})"
        return self.buffers(sql)


@pytest.fixture
def bench(fresh_dsn: str) -> Any:
    made = Bench(fresh_dsn)
    yield made
    made.c.close()


@pytest.fixture
def pinned(fresh_dsn: str) -> Any:
    """Someone else's old snapshot: nothing that dies from now on can be vacuumed."""
    other = connect(fresh_dsn)
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT count(*) FROM skiplock.jobs")
    yield other
    other.close()


@pytest.mark.parametrize("told", ["nothing", "empty", "one row", "very many rows"])
def test_settle_is_linear_whatever_the_statistics_say(bench: Bench, pinned: Any, told: str) -> None:
    """8 times the jobs in about 8 times the time. The plan turned round takes 64 times as long."""
    bench.fill(12_000)
    if told == "empty":
        ids, lease = bench.claim(2_000)
        bench.settle(ids, lease)
        bench.c.execute("ANALYZE skiplock.jobs_running")
    elif told == "one row":
        ids, lease = bench.claim(1)
        bench.c.execute("ANALYZE skiplock.jobs_running")
    elif told == "very many rows":
        bench.claim(6_000)
        bench.c.execute("ANALYZE skiplock.jobs_running")
    bench.fill(14_000)
    small = min(bench.settle(*bench.claim(500)) for _ in range(3))
    large = min(bench.settle(*bench.claim(4_000)) for _ in range(3))
    assert large < 25 * small


def test_a_claim_costs_the_same_with_few_and_with_many_jobs(bench: Bench) -> None:
    bench.fill(200)
    few = bench.claim_buffers(100)
    bench.fill(100_000)
    for told in ("no statistics", "fresh ones"):
        many = bench.claim_buffers(100)
        assert many < few * 2 + 200, told
        bench.c.execute("ANALYZE")


def test_jobs_for_others_in_front_are_not_looked_at(bench: Bench) -> None:
    """Future, dead, finished and running jobs, and other queues: none of them lies in front of a claim."""
    bench.fill(300)
    alone = bench.claim_buffers(100)
    bench.fill(20_000, more=", delays => array_fill(3600::float8, ARRAY[20000])")
    bench.fill(20_000, queue="other")
    bench.one("INSERT INTO skiplock.jobs_dead (id, enqueued_at, max_attempts, state, queue, task, args) "
              "SELECT n, now(), 1, 'dead', 'q', 't', '{}' FROM generate_series(-20000, -1) n RETURNING 1")  # fmt: skip
    assert bench.claim_buffers(100) < alone * 2 + 200


def test_with_the_cursor_dead_rows_cost_nothing(bench: Bench, pinned: Any) -> None:
    """Under a pinned horizon a claim from the left end walks over every job ever claimed; one with the cursor does not."""
    bench.fill(22_000)
    first = bench.claim_buffers(100)
    cursor = 0
    for _ in range(20):
        ids, lease = bench.claim(1_000, cursor)
        cursor = max(ids)
        bench.settle(ids, lease)
    seeking = bench.claim_buffers(100, cursor)
    from_the_left = bench.claim_buffers(100)
    assert seeking < first * 2 + 200
    assert from_the_left > seeking + 200  # the danger is real, so the cursor is what avoids it


def test_one_settle_touches_only_its_rows(bench: Bench) -> None:
    bench.fill(10_000)
    bench.claim(9_000)
    ids, lease = bench.claim(100)
    text = "{" + ",".join(map(str, ids)) + "}"
    leases = "{" + ",".join([str(lease)] * len(ids)) + "}"
    assert bench.buffers(f"SELECT * FROM skiplock.settle('{text}', '{leases}')") < 100 * 40

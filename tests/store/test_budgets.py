"""Each verb has a written budget of pages, kept on tables of half a million rows whatever the planner has been told.

The budgets are about one and a half times the highest figure of a healthy plan (PostgreSQL 15 and 18); a scan of one of
these tables costs 7,000 pages more (running: 1,700), a walk through one of their indexes 10,000 to 500,000.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.store.budgets import (
    FEW,
    FIRST,
    FIRST_LARGE,
    LEANINGS,
    LONG_AGO,
    PRIORITIES,
    QUEUES,
    TOLD,
    Planner,
    Verb,
    clone_full,
    pages_and_rows,
)
from tests.support import connect, drop

Lanes = list[tuple[str, int, int]]
FAILURE = {"error_class": "ValueError", "message": "boom", "traceback": "…"}
OTHERS = [queue + "x" for queue in QUEUES]
LANES = [(queue, priority, 1_000) for queue in QUEUES for priority in PRIORITIES]
EVERY = ["main", *QUEUES]


def claim(name: str, budget: int, queues: list[str], room: int, lanes: Lanes | None = None, finds: int = -1) -> Verb:
    cursor = [None, None, None] if lanes is None else [list(column) for column in zip(*lanes, strict=True)]
    sql = "SELECT * FROM skiplock.claim(1, 77, %s, %s, '{t}', %s, %s::smallint[], %s)"
    rooms = [room] * len(queues)
    return Verb(name, sql, (queues, rooms, *cursor), sum(rooms) if finds < 0 else finds, budget)


def settle(
    name: str, budget: int, verdict: str, number: int, stage: str = "jobs_running", refused: bool = False
) -> Verb:
    ids = [FIRST[stage] + 7 * n for n in range(1, number + 1)]  # every lease of the full database is the job's id
    leases, others = [9 for _ in ids] if refused else ids, None
    if verdict != "completed":
        more = {"verdict": verdict, "took": 0.5, "delay": 60, "failure": FAILURE}
        others = json.dumps([{"id": i, "lease": i} | more for i in ids])
        ids = leases = []
    sql = "SELECT * FROM skiplock.settle(%s::bigint[], %s::bigint[], NULL, NULL, %s)"
    return Verb(name, sql, (ids, leases, others), number if refused else 0, budget)


def enqueue(name: str, budget: int, number: int, delay: float | None = None, args: str = "{}") -> Verb:
    queues = [QUEUES[n % len(QUEUES)] for n in range(number)]
    delays = None if delay is None else [delay] * number
    sql = "SELECT skiplock.enqueue_many(%s, %s::json[], %s, delays => %s::float8[])"
    return Verb(name, sql, (["t"] * number, [args] * number, queues, delays), number, budget)


BEAT = "SELECT * FROM skiplock.beat(1, 5, 'running', %s, asleep => %s, sweep => %s)"
PROMOTE = "SELECT * FROM skiplock.promote(%s, true)"
PROMOTE_SINCE = (
    "SELECT * FROM skiplock.promote(1000, true, since => extract(epoch FROM %s::timestamptz - skiplock.now())::float8)"
)
VERBS = [
    Verb("enqueue 1", "SELECT skiplock.enqueue('t', queue => 'q07', priority => 5)", (), 1, 20),
    enqueue("enqueue 1,000", 7_500, 1_000),
    # 1,000 more than without the index by queue, which counts bounded queues (sql/produce/depth.sql).
    enqueue("enqueue 1,000 for later", 11_500, 1_000, delay=86_400),
    enqueue("enqueue 100 with large arguments", 1_200, 100, args=json.dumps({"x": "abcdefgh" * 2_000})),
    claim("claim 100 with large arguments", 2_000, ["large"], 100),
    claim("claim 100 with large arguments, cursor", 2_000, ["large"], 100, [("large", 0, 1_000)]),
    Verb(
        "find 10 with large arguments",
        "SELECT * FROM skiplock.find(%s)",
        ([FIRST_LARGE + n for n in range(10)],),
        9,
        3_800,
    ),
    # Whether one of them is ready is asked in each of the 61 lanes.
    Verb("sweep 100 payloads", "SELECT * FROM skiplock.sweep_payloads(0, 100)", (), 1, 30_000),
    claim("claim 100 of 1 queue", 1_500, ["main"], 100),
    claim("claim 100 of 20 queues", 1_600, QUEUES, 5),
    claim("claim 100 of 1 queue, cursor", 1_600, ["main"], 100, [("main", 0, 1_000)]),
    claim("claim 100 of 20 queues, cursor", 1_700, QUEUES, 5, LANES),
    claim("claim from 20 empty queues", 150, OTHERS, 5, finds=0),
    claim("claim from 20 empty queues, cursor", 350, OTHERS, 5, [(q + "x", p, n) for q, p, n in LANES], finds=0),
    Verb("lanes of 21 queues", "SELECT * FROM skiplock.lanes(%s)", (EVERY,), 61, 500),
    claim("claim past the end of 60 lanes", 350, QUEUES, 5, [(q, p, 10**12) for q, p, _ in LANES], finds=0),
    settle("settle 1 completed", 20, "completed", 1),
    settle("settle 100 completed", 1_500, "completed", 100),
    settle("settle 500 completed", 6_500, "completed", 500),
    settle("settle 100 retry", 4_000, "retry", 100),
    settle("settle 100 snooze", 3_200, "snooze", 100),
    settle("settle 100 dead", 3_900, "dead", 100),
    settle("settle 100 release", 4_000, "release", 100),
    settle("settle 100 completed before", 1_900, "completed", 100, "jobs_finished"),
    settle("settle 100 dead before", 4_600, "dead", 100, "jobs_dead"),
    settle("settle 100 retry before", 4_700, "retry", 100, "jobs_waiting"),
    settle("settle 10 refused, running", 4_400, "completed", 10, refused=True),
    settle("settle 10 refused, ready", 4_400, "completed", 10, "jobs_ready", refused=True),
    Verb("promote 100", PROMOTE, (100,), 1, 1_700),
    Verb("promote 1,000", PROMOTE, (1_000,), 1, 17_000),
    Verb("beat", BEAT, (EVERY, False, False), 1, 100),
    Verb("beat, asleep and sweeping", BEAT, (EVERY, True, True), 1, 450),
    Verb("rescue, nothing lost", "SELECT * FROM skiplock.rescue(false)", (), 0, 10),
    Verb("rescue with sweep, nothing lost", "SELECT * FROM skiplock.rescue()", (), 0, 200),
    Verb("_ring of 1,000 jobs", "SELECT skiplock._ring(%s)", (QUEUES * 50,), 1, 50),
]


@pytest.fixture(scope="module")
def full(template_server: str) -> Iterator[str]:
    """Every test leaves it as it was, dead rows apart."""
    database = clone_full(template_server)
    yield database
    drop(template_server, database)


def test_a_beat_looks_at_one_of_many_schedules(fresh_dsn: str) -> None:
    """The leader also asks whose declaration has gone, once through the table. To see it fail: drop the index schedules_wake."""
    put = 'SELECT skiplock._put_schedule(\'s\' || n, \'{"task": "t", "cron": "0 0 1 1 *"}\') FROM generate_series(1, 3000) n'
    with connect(fresh_dsn) as c:
        c.execute(put)
        c.execute("VACUUM skiplock.schedules")
        for whole, budget in (("false", 10), ("true", 400)):
            look = f"SELECT skiplock._schedules_due_in({whole})"
            c.execute(look)
            assert pages_and_rows(c, look)[0] <= budget


@pytest.fixture
def planner(full: str) -> Iterator[Planner]:
    with connect(full) as connection:
        yield Planner(connection)


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("leaning", LEANINGS)
def test_every_verb_keeps_its_budget_of_pages(planner: Planner, leaning: str, told: str) -> None:
    with planner.believing(told, leaning):
        assert [excess for verb in VERBS if (excess := planner.excess(verb))] == []


@pytest.mark.parametrize("leaning", LEANINGS)
def test_a_verb_locks_only_the_rows_it_was_asked_for(full: str, planner: Planner, leaning: str) -> None:
    """Locked, deleted or updated rows carry their transaction's number; another session sees it."""
    asked = [
        claim("", 0, ["main"], 7),
        claim("", 0, QUEUES, 2),
        claim("", 0, ["main"], 6, [("main", 0, 1_000)]),
        claim("", 0, QUEUES, 3, LANES),
        settle("", 0, "completed", 11),
        Verb("", PROMOTE, (13,), 1, 0),
    ]
    locked = "SELECT count(*) FROM skiplock.{} WHERE xmax = %s::text::xid"
    with connect(full) as other:
        for told in TOLD:
            if told == LONG_AGO:
                continue  # emptied by the same transaction: nobody else can look
            with planner.believing(told, leaning):
                for verb in asked:
                    assert len(planner.run(verb.sql, *verb.params)) == verb.answers
                [[me]] = planner.run("SELECT pg_current_xact_id()::xid::text")
                found = {s: other.execute(locked.format(s), [me]).fetchone()[0] for s in FIRST}  # type: ignore[index]
            wanted = {"jobs_ready": 7 + 40 + 6 + 60, "jobs_running": 11, "jobs_waiting": 13}
            assert {stage: number for stage, number in found.items() if number} == wanted, told


@pytest.mark.parametrize("told", [told for told in TOLD if told != LONG_AGO])
@pytest.mark.parametrize("leaning", LEANINGS)
def test_what_one_claim_leaves_a_second_one_gets_at_once(full: str, planner: Planner, leaning: str, told: str) -> None:
    lanes = [("few", priority, 0) for priority in (2, 1, 0)]
    with connect(full) as other:
        second = Planner(other)
        for first_lanes, second_lanes in ((None, None), (lanes, lanes), (lanes, None), (None, lanes)):
            one, two = claim("", 0, ["few"], 10, first_lanes), claim("", 0, ["few"], 100, second_lanes)
            with planner.believing(told, leaning), second.believing("correct", leaning):
                mine = {row[0] for row in planner.run(one.sql, *one.params)}
                theirs = {row[0] for row in second.run(two.sql, *two.params)}
            assert (len(mine), len(theirs), mine & theirs) == (10, FEW - 10, set())


# --- under someone's old snapshot ------------------------------------------------------------------------------------


class Rounds:
    """Jobs that go in and out while nothing that dies can be vacuumed. `run` answers pages by verb."""

    JOBS, BATCH, RETRIED = 5_000, 500, 500

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.cursor = 0
        self.lease = 0
        self.promoted_to: datetime | None = None
        connection.execute("SELECT skiplock.register('w', 'host', 1, '{}', '0', 1e6)")

    def pages(self, sql: str, *params: Any) -> int:
        return pages_and_rows(self.connection, sql, *params)[0]

    def run(self) -> dict[str, int]:
        pages = dict.fromkeys(("enqueue", "claim", "settle", "retry"), 0)
        pages["enqueue"] = self.pages(
            "SELECT skiplock.enqueue_many(array_fill('t'::text, ARRAY[%s]), array_fill('{}'::json, ARRAY[%s]), "
            "array_fill('q'::text, ARRAY[%s]))",
            *[self.JOBS] * 3,
        )
        for batch in range(self.JOBS // self.BATCH):
            self.lease += 1
            sql = "SELECT * FROM skiplock.claim(1, %s, '{q}', %s, '{t}', '{q}', '{0}', %s)"
            pages["claim"] += self.pages(sql, self.lease, [self.BATCH], [self.cursor])
            sql = "SELECT array_agg(id), array_agg(lease), max(position) FROM (SELECT * FROM skiplock.jobs_running ORDER BY id) r"
            ids, leases, self.cursor = self.connection.execute(sql).fetchone() or ((), (), 0)
            assert len(ids) == self.BATCH
            if batch:
                pages["settle"] += self.pages("SELECT * FROM skiplock.settle(%s, %s)", ids, leases)
                continue
            more = {"verdict": "retry", "delay": 0, "failure": FAILURE}
            others = json.dumps([{"id": i, "lease": lease} | more for i, lease in zip(ids, leases, strict=True)])
            sql = "SELECT * FROM skiplock.settle('{}', '{}', NULL, NULL, %s)"
            pages["retry"] += self.pages(sql, others)
        # As the heart does it nearly always: from where it had got to, and without what it can do without.
        pages["promote"] = self.pages(PROMOTE_SINCE, self.promoted_to)
        self.connection.execute("SELECT skiplock.promote(1000)")
        [[self.promoted_to]] = self.connection.execute("SELECT skiplock.now()").fetchall()
        pages["promote, nothing due"] = self.pages(PROMOTE_SINCE, self.promoted_to)
        pages["beat"] = self.pages(f"{BEAT[:-1]}, look => false)", ["q"], True, False)
        return pages


@pytest.fixture
def rounds(fresh_dsn: str) -> Iterator[dict[int, dict[str, int]]]:
    """What each verb touched in each of twelve rounds."""
    with connect(fresh_dsn) as pinned, connect(fresh_dsn) as connection:
        pinned.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pinned.execute("SELECT count(*) FROM skiplock.jobs")
        rounds = Rounds(connection)
        yield {number: rounds.run() for number in range(1, 13)}


def test_dead_rows_make_no_job_dearer_under_an_old_snapshot(rounds: dict[int, dict[str, int]]) -> None:
    for verb in ("enqueue", "claim", "settle", "retry"):
        assert rounds[12][verb] <= 1.3 * rounds[2][verb], verb


def test_dead_rows_make_no_chore_dearer_under_an_old_snapshot(rounds: dict[int, dict[str, int]]) -> None:
    for verb in ("promote", "promote, nothing due", "beat"):
        assert rounds[12][verb] <= 1.3 * rounds[2][verb] + 20, verb

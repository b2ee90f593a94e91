"""Fairness: where jobs with a fair key are put in line.

Kinds: a tenant's flood in front of everybody (PRIO-), one tenant that is always served first, a place behind the cursors of all
claims, cost that grows with dead rows (SCALE-07) or with the backlog (SCALE-19).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.store.budgets import CORRECT, LEANINGS, NEVER, NO_ROWS, ONE_ROW, Planner, Verb
from tests.support import clone, connect, drop
from tests.support.verbs import Claimed, Verbs, open_verbs, verdict


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    """A database of its own, whose clock a test may move."""
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


def enqueue(db: Verbs, *flows: dict[str, Any] | str | None, **options: Any) -> list[int]:
    """Jobs in one statement; a text is a fair key."""
    rules = [{"fair": flow} if isinstance(flow, str) else flow for flow in flows]
    given = [None if rule is None else json.dumps(rule) for rule in rules]
    n = len(flows)
    named = "".join(f", {name} => %s" for name in options)
    sql = f"SELECT id FROM skiplock.enqueue_flow(%s, %s::json[], %s, %s::jsonb[]{named})"
    return [r.id for r in db.rows(sql, ["t"] * n, ["{}"] * n, ["default"] * n, given, *options.values())]


def line(db: Verbs) -> str:
    """The keys in the order in which they stand in line, "-" for jobs without; those that share a place sorted."""
    sql = "SELECT coalesce(flow ->> 'fair', '-') AS key FROM skiplock.jobs_ready ORDER BY priority DESC, position, 1"
    return "".join(row.key for row in db.rows(sql))


def last_number(db: Verbs) -> int:
    found: int = db.value("SELECT last_value FROM skiplock.job_numbers")
    return found


def furthest(db: Verbs) -> int:
    found: int = db.value("SELECT max(position) FROM skiplock.jobs_ready")
    return found


def one(db: Verbs, worker: int = 1) -> Claimed:
    [job] = db.claim(worker, 1)
    return job


def key(db: Verbs, job: Claimed) -> str:
    found: str = db.job(job.id).flow["fair"]
    return found


def test_keys_take_turns_whatever_their_backlogs(db: Verbs) -> None:
    enqueue(db, *"A" * 6)
    enqueue(db, *"B" * 3)
    enqueue(db, "C")
    # B and C came later than A, so one turn of A's has passed for them.
    assert line(db) == "A" + "ABC" + "AB" + "AB" + "A" + "A"


def test_one_batch_is_spread_as_well(db: Verbs) -> None:
    enqueue(db, *"AAAABB")
    assert line(db) == "ABABAA"


def test_a_weight_is_a_number_of_turns(db: Verbs) -> None:
    heavy, light = {"fair": "H", "weight": 3}, {"fair": "L", "weight": 0.5}
    enqueue(db, *[heavy] * 7, *"N" * 3, *[light] * 2)
    assert line(db) == "HHHLN" + "HHHN" + "HLN"
    for _ in range(4):  # one by one, they come to the same
        enqueue(db, heavy)
    assert [
        row.n
        for row in db.rows(
            "SELECT count(*) AS n FROM skiplock.jobs_ready WHERE flow ->> 'fair' = 'H' GROUP BY position ORDER BY position"
        )
    ] == [3, 3, 3, 2]


def test_whoever_always_has_just_one_job_does_not_keep_others_waiting(db: Verbs) -> None:
    """A job of B enqueues the next one of B before it ends. Take `greatest(1, …)` out of _fair_places to see it fail: B is served
    for ever. (Its rows are put into the place left by those before, so of equal places B's comes first.)"""
    enqueue(db, *"A" * 20)
    enqueue(db, "B")
    served = []
    for _ in range(20):
        job = one(db)
        served.append(key(db, job))
        if served[-1] == "B":
            enqueue(db, "B")
        db.settle(completed=[job])
        db.rows("VACUUM skiplock.jobs_ready")
    assert 8 <= served.count("A") <= 12, served


def test_a_light_one_that_always_has_just_one_job_keeps_its_weight(db: Verbs) -> None:
    enqueue(db, *"A" * 40)
    light = {"fair": "L", "weight": 0.2}
    enqueue(db, light)
    served = []
    for _ in range(30):
        job = one(db)
        served.append(key(db, job))
        if served[-1] == "L":
            enqueue(db, light)
        db.settle(completed=[job])
    assert 4 <= served.count("L") <= 6, served


def test_priorities_have_lines_of_their_own(db: Verbs) -> None:
    enqueue(db, *"AAA", "B", priorities=[0, 0, 5, 0])
    enqueue(db, *"AC", priorities=[5, 5])
    assert line(db) == "A" + "AC" + "AB" + "A"


def test_no_place_is_beyond_the_numbers_drawn(db: Verbs) -> None:
    """Else a job without a key, whose place is its number, would be put before the cursors of all claims once the line had been
    served up to such a place. Give the line's start as `s.last_value` in _fair_places to see it fail."""
    enqueue(db, *"A" * 50)
    assert furthest(db) <= last_number(db)
    enqueue(db, *"B" * 50, *"C" * 20)
    assert furthest(db) <= last_number(db)
    seen = max(job.position for job in db.claim(1, 1000))
    [plain] = enqueue(db, None)
    enqueue(db, *"D" * 3)
    assert len(db.claim(1, 10, lanes=[("default", 0, seen)])) == 4
    assert db.state(plain) == "running"


@pytest.mark.parametrize("way", ["promoted", "retried", "retried by hand", "admitted"])
def test_a_job_that_comes_back_stands_where_a_new_one_would(db: Verbs, way: str) -> None:
    """And in an empty line it is found by whoever has claimed the latest there."""
    rules = {"fair": "B"} | ({"limits": [{"key": "k", "slots": 1}]} if way == "admitted" else {})
    worker = db.register()
    if way == "promoted":
        [came] = enqueue(db, rules, delays=[100.0])
    else:
        [came] = enqueue(db, rules, admits=True)
        [job] = db.claim(worker)
        if way == "admitted":
            [came] = enqueue(db, rules, admits=True)
            enqueue(db, None)
            [plain] = db.claim(worker)
            db.settle(completed=[job])  # lets the next one in, into an empty line
        else:
            db.settle(others=[verdict(job, "retry" if way == "retried" else "dead", delay=100.0)])

    def come_back() -> None:
        if way == "retried by hand":
            db.rows("SELECT skiplock.retry(%s)", came)
        elif way != "admitted":
            db.move_time(200)
            db.rows("SELECT * FROM skiplock.promote(1000, true)")

    if way == "admitted":
        assert [job.id for job in db.claim(worker, lanes=[("default", 0, plain.position + 1)])] == [came]
        return
    enqueue(db, *"A" * 10)
    come_back()
    assert line(db) == "AAB" + "A" * 8


def test_an_empty_line_begins_behind_the_cursors(db: Verbs) -> None:
    worker = db.register()
    [came] = enqueue(db, "B", delays=[100.0])
    enqueue(db, *"A" * 10)
    seen = max(job.position for job in db.claim(worker))
    db.move_time(200)
    db.rows("SELECT * FROM skiplock.promote(1000, true)")
    assert [job.id for job in db.claim(worker, lanes=[("default", 0, seen + 1)])] == [came]


def test_those_without_a_key_keep_the_order_of_their_coming(db: Verbs) -> None:
    enqueue(db, *"A" * 3)
    enqueue(db, None, None)
    enqueue(db, *"BB")
    assert line(db) == "A" + "AB" + "AB" + "--"


def test_released_jobs_keep_their_places(db: Verbs) -> None:
    worker = db.register()
    enqueue(db, *"A" * 4)
    jobs = db.claim(worker, 2)
    enqueue(db, "B")
    db.settle(others=[verdict(job, "release") for job in jobs])
    assert line(db) == "AAAAB" or line(db) == "AAABA", line(db)


def test_a_job_is_found_by_its_id_wherever_it_stands(db: Verbs) -> None:
    """Ready has no index on id: a job is found because its place is its number, or else in the index of those that were moved."""
    ids = [*enqueue(db, *"AAAAABBBCC"), *enqueue(db, *"CAB"), *enqueue(db, None, {"fair": "B", "weight": 3}, "D")]
    for job_id in ids:
        assert db.rows("SELECT id FROM skiplock.find(ARRAY[%s::bigint])", job_id) == [(job_id,)]
        assert db.rows("SELECT done, was FROM skiplock.cancel(%s)", job_id) == [(True, "ready")]


def test_many_producers_do_not_make_more_turns(db: Verbs, fresh_dsn: str) -> None:
    """What two transactions did not see of each other the next enqueue makes up for. Take `sharing` out of _fair_places to see it fail."""
    enqueue(db, *"Z" * 40)
    with open_verbs(fresh_dsn) as second, open_verbs(fresh_dsn) as third:
        for _ in range(5):
            with db.transaction(), second.transaction(), third.transaction():
                for connection in (db, second, third):
                    enqueue(connection, "A")
    places = [
        row.position
        for row in db.rows("SELECT position FROM skiplock.jobs_ready WHERE flow ->> 'fair' = 'A' ORDER BY position")
    ]
    assert len(places) == 15 and places[-1] - places[0] == 12


@pytest.mark.parametrize("pinned", [False, True], ids=["", "while an old snapshot pins dead rows"])
def test_enqueueing_costs_the_same_whatever_has_been_claimed(db: Verbs, fresh_dsn: str, pinned: bool) -> None:
    """5,000 jobs of the key before. Take `r.position >= l.head` out of _fair_places to see it fail."""
    worker = db.register()
    with open_verbs(fresh_dsn) as other, other.transaction():
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if pinned:
            other.rows("SELECT count(*) FROM skiplock.jobs")
        for _ in range(5):
            enqueue(db, *["A"] * 1000)
            jobs = db.claim(worker, 2000)
            db.settle(completed=sorted(jobs))
            db.rows(
                "SELECT skiplock._tell_lanes('{default}', '{0}', ARRAY[%s::bigint])", max(job.position for job in jobs)
            )
        enqueue(db, "B")  # none of A's is left in line
        sql = "SELECT * FROM skiplock.enqueue_flow('{t}', '{\"{}\"}', '{default}', ARRAY['{\"fair\": \"A\"}']::jsonb[])"
        [[[plan]]] = db.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {sql}")
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 40


# --- half a million ---------------------------------------------------------------------------------------------------

BACKLOG = 500_000
TENANTS = 1000
FILL = f"""INSERT INTO skiplock.jobs_ready (id, position, state, enqueued_at, max_attempts, task, args, queue, priority, flow)
SELECT n, n / 5, 'ready', now(), 10, 't', '{{}}', 'default', 0,
       jsonb_build_object('fair', 't' || CASE WHEN n % 2 = 0 THEN 0 ELSE n % {TENANTS} END) FROM generate_series(1, {BACKLOG}) n"""
FLOWS = {"one": ["t0"], "a new key": ["new"], "100 of one key": ["t0"] * 100, "100 keys": [f"t{n}" for n in range(100)]}
BUDGETS = {"one": 45, "a new key": 45, "100 of one key": 1_400, "100 keys": 2_300}


@pytest.fixture(scope="module")
def full(template_server: str) -> Iterator[Planner]:
    database = clone(template_server)
    with connect(database) as c:
        indexes = c.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'skiplock' AND tablename = 'jobs_ready'"
        ).fetchall()
        c.execute("ALTER TABLE skiplock.jobs_ready SET (autovacuum_enabled = off)")
        for name, _ in indexes:
            c.execute(f"DROP INDEX skiplock.{name}")
        c.execute(FILL)
        for _, definition in indexes:
            c.execute(definition)
        c.execute("SELECT setval('skiplock.job_numbers', %s)", [BACKLOG])
        c.execute("ANALYZE skiplock.jobs_ready")
        yield Planner(c)
    drop(template_server, database)


@pytest.mark.parametrize("leaning", LEANINGS)
def test_enqueueing_into_a_line_of_half_a_million(full: Planner, leaning: str) -> None:
    """Whatever the planner has been told. Take MATERIALIZED out of _fair_places to see it fail."""
    excess = []
    for told in (NEVER, NO_ROWS, ONE_ROW, CORRECT):
        with full.believing(told, leaning):
            for name, keys in FLOWS.items():
                n = len(keys)
                flows = [json.dumps({"fair": found}) for found in keys]
                sql = "SELECT * FROM skiplock.enqueue_flow(%s, %s::json[], %s, %s::jsonb[])"
                verb = Verb(name, sql, (["t"] * n, ["{}"] * n, ["default"] * n, flows), n, BUDGETS[name])
                excess.append(full.excess(verb) and f"{told}: {full.excess(verb)}")
    assert [found for found in excess if found] == []

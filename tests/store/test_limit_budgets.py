"""Limits keep a written budget of pages with 100,000 keys, a key that 400,000 jobs wait for, and whatever the planner
has been told (SCALE-46, CONC-17, case 23).

To see it fail: let _admit_round (sql/upkeep/admit.sql) order a line by position alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.store.budgets import LEANINGS, LONG_AGO, TOLD, Planner, Verb
from tests.support import clone, connect, drop

KEYS, HOT = 100_000, 400_000
RUNS = 1_000  # keys of which a job runs
FILL = [
    f"""INSERT INTO skiplock.jobs_waiting (id, position, enqueued_at, max_attempts, priority, state, queue, task, args, flow, blocked_on)
    SELECT n, n, now(), 10, 0, 'blocked', 'q', 't', '{{}}', json_build_object('limits', json_build_array(json_build_object('key', k, 'slots', 1)))::jsonb, k
    FROM (SELECT n, CASE WHEN n <= {KEYS} THEN E'name\\x1f' || n ELSE 'hot' END AS k FROM generate_series(1, {KEYS + HOT}) n) x""",
    f"""INSERT INTO skiplock.jobs_running (id, position, lease, worker, attempt, enqueued_at, max_attempts, priority, state, queue, task, args, flow)
    SELECT {KEYS + HOT} + n, n, 7, 1, 1, now(), 10, 0, 'running', 'q', 't', '{{}}',
           json_build_object('limits', json_build_array(json_build_object('key', k, 'slots', 1)))::jsonb
    FROM (SELECT n, CASE WHEN n <= {RUNS} THEN E'name\\x1f' || n ELSE 'hot' END AS k FROM generate_series(1, {RUNS + 1}) n) x""",
    "INSERT INTO skiplock.slots SELECT flow -> 'limits' -> 0 ->> 'key', id FROM skiplock.jobs_running",
    f"INSERT INTO skiplock.slots SELECT E'other\\x1f' || n, -n FROM generate_series(1, {KEYS}) n",
    f"INSERT INTO skiplock.meters SELECT E'rate\\x1f' || n, now() + interval '1 h', CASE WHEN n % 2 = 0 THEN now() + interval '1 h' END FROM generate_series(1, {KEYS}) n",
    f"SELECT setval('skiplock.job_numbers', {KEYS + HOT + RUNS + 10})",
    "ANALYZE skiplock.jobs_waiting, skiplock.jobs_running, skiplock.slots, skiplock.meters",
]
SETTLE = "SELECT * FROM skiplock.settle(%s::bigint[], array_fill(7::bigint, ARRAY[%s]))"
FIRST_RUNNING = KEYS + HOT + 1


def settle(name: str, ids: list[int], budget: int) -> Verb:
    return Verb(name, SETTLE, (ids, len(ids)), 0, budget)


def enqueue(name: str, keys: list[str], budget: int) -> Verb:
    flows = [json.dumps({"limits": [{"key": key, "slots": 1}]}) for key in keys]
    number = len(keys)
    sql = f"SELECT * FROM skiplock.enqueue_flow(array_fill('t'::text, ARRAY[{number}]), array_fill('{{}}'::json, ARRAY[{number}]), array_fill('q'::text, ARRAY[{number}]), %s::jsonb[], admits => true)"
    return Verb(name, sql, (flows,), number, budget)


VERBS = [
    settle("settle 1, the next of a long line is let in", [FIRST_RUNNING + RUNS], 120),
    settle("settle 100 of as many keys", [FIRST_RUNNING + n for n in range(100)], 8_200),
    enqueue("enqueue 1 at the end of a long line", ["hot"], 70),
    enqueue("enqueue 100 of new keys", [f"new\x1f{n}" for n in range(100)], 7_000),
    enqueue("enqueue 100 of full keys", [f"name\x1f{n + 1}" for n in range(100)], 3_600),
    Verb("promote, nothing to do", "SELECT * FROM skiplock.promote(1000, true)", (), 1, 30),
    Verb("beat", "SELECT * FROM skiplock.beat(1, 0, 'running', '{q}')", (), 1, 60),
    Verb("sweep 100 keys", "SELECT * FROM skiplock.sweep_limits('name', 100)", (), 1, 4_000),
    Verb("cancel one in a long line", f"SELECT * FROM skiplock.cancel({KEYS + 1000})", (), 1, 40),
    Verb("a changed limit", "SELECT skiplock.set_limit('name', 2)", (), 1, 25),
]


@pytest.fixture(scope="module")
def full(template_server: str) -> Iterator[str]:
    database = clone(template_server)
    with connect(database) as connection:
        for sql in FILL:
            connection.execute(sql)
    yield database
    drop(template_server, database)


@pytest.fixture
def planner(full: str) -> Iterator[Planner]:
    with connect(full) as connection:
        yield Planner(connection)


@pytest.mark.parametrize("told", [told for told in TOLD if told != LONG_AGO])
@pytest.mark.parametrize("leaning", LEANINGS)
def test_limits_keep_their_budget_of_pages(planner: Planner, leaning: str, told: str) -> None:
    with planner.believing(told, leaning):
        assert [excess for verb in VERBS if (excess := planner.excess(verb))] == []


def test_a_change_goes_through_a_hundred_thousand_keys_in_steps(planner: Planner) -> None:
    """Each step is a promote of its own, and lets in what the keys it has come to allow."""
    with planner.believing("correct", "as usual"):
        planner.run("SELECT skiplock.set_limit('name', 2)")
        steps = [planner.run("SELECT moved, due_in FROM skiplock.promote(1000, true)")[0] for _ in range(3)]
    assert all(moved >= 900 and due_in <= 0 for moved, due_in in steps)

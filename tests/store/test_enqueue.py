"""Getting jobs in from plain SQL: what is stored, what is refused, who may, and when the bell rings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support import connect, in_database
from tests.support.verbs import Verbs, open_verbs

FAR = "2100-01-01 00:00+00"


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture(scope="module")
def shared(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        yield verbs


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_the_defaults(shared: Verbs) -> None:
    row = shared.job(shared.value("SELECT skiplock.enqueue('report')"))
    assert (row.state, row.task, row.args, row.queue, row.priority) == ("ready", "report", {}, "default", 0)
    assert (row.attempt, row.max_attempts, row.losses, row.position) == (0, 10, 0, row.id)
    nothing = ("run_at", "started_at", "finished_at", "lease", "worker", "tags", "meta", "options", "result", "error")
    assert {name: getattr(row, name) for name in nothing} == dict.fromkeys(nothing)
    assert abs(shared.value("SELECT extract(epoch FROM clock_timestamp() - %s::timestamptz)", row.enqueued_at)) < 60


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "args": ({"args": '{"a": [1, 1e22, null]}'}, {"args": {"a": [1, 1e22, None]}}),
    "args after white space": ({"args": ' \n\t{"a": 1}'}, {"args": {"a": 1}}),
    "an escaped backslash before u0000 is no NUL": ({"args": r'{"a": "\\u0000"}'}, {"args": {"a": r"\u0000"}}),
    "queue": ({"queue": "slow lane ☃"}, {"queue": "slow lane ☃"}),
    "a queue of the longest name": ({"queue": "q" * 200}, {"queue": "q" * 200}),
    "highest priority": ({"priority": 32767}, {"priority": 32767}),
    "lowest priority": ({"priority": -32768}, {"priority": -32768}),
    "one attempt": ({"max_attempts": 1}, {"max_attempts": 1}),
    "attempts without end": ({"max_attempts": 2**31 - 1}, {"max_attempts": 2**31 - 1}),
    "tags": ({"tags": ["a", 'b"c', "d,{e}", "NULL", ""]}, {"tags": ["a", 'b"c', "d,{e}", "NULL", ""]}),
    "meta": ({"meta": '{"by": "ann"}'}, {"meta": {"by": "ann"}}),
    "options": ({"options": '{"timeout": 3}'}, {"options": {"timeout": 3}}),
    "delay": ({"delay": "5 minutes"}, {"state": "scheduled", "position": None}),
    "delay in months": ({"delay": "1 month"}, {"state": "scheduled"}),
    "no delay": ({"delay": "0"}, {"state": "ready"}),
    "a delay into the past": ({"delay": "-1 hour"}, {"state": "ready"}),
    "run_at": ({"run_at": FAR}, {"state": "scheduled"}),
    "a run_at that has passed": ({"run_at": "2001-01-01 00:00+00"}, {"state": "ready"}),
}


@pytest.mark.parametrize(("given", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_every_option(shared: Verbs, given: dict[str, Any], expected: dict[str, Any]) -> None:
    row = shared.job(shared.enqueue(**given))
    assert {name: getattr(row, name) for name in expected} == expected


def test_a_delay_counts_from_the_database_s_clock(shared: Verbs) -> None:
    row = shared.job(shared.enqueue(delay="90 seconds"))
    assert (row.run_at - row.enqueued_at).total_seconds() == 90


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({"task": None}, "task NULL"),
    "an empty task": ({"task": ""}, "task ''"),
    "a task's name too long": ({"task": "t" * 201}, "1 to 200 characters"),
    "no queue": ({"queue": None}, "queue NULL"),
    "an empty queue": ({"queue": ""}, "queue ''"),
    "a queue's name too long": ({"queue": "q" * 201}, "1 to 200 characters"),
    "no args": ({"args": None}, "args NULL"),
    "args that are a list": ({"args": "[1]"}, "must be a JSON object"),
    "args that are a text": ({"args": '"{"'}, "must be a JSON object"),
    "args that are null": ({"args": "null"}, "must be a JSON object"),
    "a NUL in args": ({"args": r'{"a": "x\u0000"}'}, "NUL"),
    "a NUL in a key": ({"args": r'{"\u0000": 1}'}, "NUL"),
    "a NUL after escaped backslashes": ({"args": r'{"a": "\\\u0000"}'}, "NUL"),
    "priority too high": ({"priority": 32768}, "priority 32768"),
    "priority too low": ({"priority": -32769}, "priority -32769"),
    "no attempts": ({"max_attempts": 0}, "max_attempts 0"),
    "fewer than none": ({"max_attempts": -1}, "max_attempts -1"),
    "a delay of more than a life": ({"delay": "120 years"}, "100 years"),
    "run_at never": ({"run_at": "infinity"}, "run_at infinity"),
    "run_at before all time": ({"run_at": "-infinity"}, "run_at -infinity"),
    "run_at in the year 10000": ({"run_at": "10000-01-01"}, "before the year 9999"),
    "run_at before Christ": ({"run_at": "0044-03-15 BC"}, "before the year 9999"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_SK001_and_nothing_stored(shared: Verbs, given: dict[str, Any], said: str) -> None:
    before = shared.count()
    with pytest.raises(psycopg.Error) as caught:
        shared.enqueue(given.get("task", "t"), **{name: value for name, value in given.items() if name != "task"})
    assert caught.value.sqlstate == "SK001"
    assert "job 1: " in str(caught.value) and said in str(caught.value)
    assert shared.count() == before


def test_of_many_the_error_names_the_first_bad_one_and_none_is_stored(shared: Verbs) -> None:
    before = shared.count()
    args = ["{}", "{}", "[]", "3", "{}"]
    with pytest.raises(psycopg.Error, match="job 3: args") as caught:
        shared.rows("SELECT skiplock.enqueue_many(%s, %s::json[], %s)", ["t"] * 5, args, ["q"] * 5)
    assert caught.value.sqlstate == "SK001"
    assert shared.count() == before


SHORT = {
    "fewer queues": (["t", "t"], ["{}", "{}"], ["q"], "job 2: queue NULL"),
    "fewer tasks": (["t"], ["{}", "{}"], ["q", "q"], "job 2: task NULL"),
    "fewer args": (["t", "t"], ["{}"], ["q", "q"], "job 2: args NULL"),
}


@pytest.mark.parametrize(("tasks", "args", "queues", "said"), SHORT.values(), ids=SHORT)
def test_arrays_of_different_lengths(
    shared: Verbs, tasks: list[str], args: list[str], queues: list[str], said: str
) -> None:
    with pytest.raises(psycopg.Error, match=said):
        shared.rows("SELECT skiplock.enqueue_many(%s, %s::json[], %s)", tasks, args, queues)


# --- ids and order ----------------------------------------------------------------------------------------------------

DELAYS = {
    "all at once": [None] * 6,
    "all later": [10.0, 5.0, 30.0, 1.0, 2.0, 3.0],
    "mixed": [None, 60.0, 0.0, 5.0, None, 1.0],
}


@pytest.mark.parametrize("delays", DELAYS.values(), ids=DELAYS)
def test_ids_come_in_the_order_given(shared: Verbs, delays: list[float | None]) -> None:
    number = len(delays)
    args = [json.dumps({"n": n}) for n in range(number)]
    found = shared.rows(
        "SELECT skiplock.enqueue_many(%s, %s::json[], %s, delays => %s::float8[])",
        ["t"] * number, args, ["ordered"] * number, delays if any(d is not None for d in delays) else None,
    )  # fmt: skip
    ids = [row[0] for row in found]
    assert ids == sorted(ids)
    assert [shared.job(job_id).args["n"] for job_id in ids] == list(range(number))
    assert [shared.state(job_id) for job_id in ids] == ["scheduled" if delay else "ready" for delay in delays]


def test_a_run_at_for_one_and_a_delay_for_another(shared: Verbs) -> None:
    sql = "SELECT skiplock.enqueue_many(%s, %s::json[], %s, delays => %s::float8[], run_ats => %s::timestamptz[])"
    ids = [row[0] for row in shared.rows(sql, ["t"] * 3, ["{}"] * 3, ["q"] * 3, [None, 60.0, None], [FAR, None, None])]
    assert [shared.state(job_id) for job_id in ids] == ["scheduled", "scheduled", "ready"]
    assert shared.job(ids[0]).run_at.year == 2100


def test_none_at_all(shared: Verbs) -> None:
    assert shared.rows("SELECT skiplock.enqueue_many('{}', '{}', '{}')") == []


def test_a_rollback_leaves_none(db: Verbs) -> None:
    with db.transaction(force_rollback=True):
        db.enqueue()
        db.enqueue(delay="1 hour")
        assert db.count() == 2
    assert db.count() == 0


def test_a_job_is_seen_by_nobody_before_its_commit(db: Verbs, dsn: str) -> None:
    worker = db.register()
    with open_verbs(dsn) as other:
        with other.transaction():
            job = other.enqueue()
            assert db.claim(worker) == []
        assert [claimed.id for claimed in db.claim(worker)] == [job]


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def producer(db: Verbs, dsn: str) -> Iterator[Verbs]:
    """A role with USAGE on the schema and EXECUTE on enqueue, and nothing else."""
    name = "producer_" + db.value("SELECT current_database()")
    db.rows(f"CREATE ROLE {name}")
    db.rows(f"GRANT USAGE ON SCHEMA skiplock TO {name}")
    signature = db.value("SELECT oid::regprocedure::text FROM pg_proc WHERE oid = 'skiplock.enqueue'::regproc")
    db.rows(f"GRANT EXECUTE ON FUNCTION {signature} TO {name}")
    with connect(dsn) as connection:
        connection.execute(f"SET SESSION AUTHORIZATION {name}")
        yield Verbs(connection)
    db.rows(f"DROP OWNED BY {name}")
    db.rows(f"DROP ROLE {name}")


def test_a_producer_can_enqueue(producer: Verbs, db: Verbs) -> None:
    assert db.state(producer.enqueue(args='{"a": 1}', tags=["x"])) == "ready"
    assert db.state(producer.enqueue(delay="1 hour")) == "scheduled"


def test_a_producer_s_bad_job_is_refused_by_name_and_not_for_lack_of_rights(producer: Verbs) -> None:
    with pytest.raises(psycopg.Error, match="priority") as caught:
        producer.enqueue(priority=99999)
    assert caught.value.sqlstate == "SK001"


def test_a_producer_cannot_be_tricked_by_its_own_search_path(producer: Verbs, db: Verbs) -> None:
    """SECURITY DEFINER: nothing of the caller's may run with the owner's rights."""
    producer.rows("CREATE TEMP TABLE caught (who text)")
    producer.rows("CREATE FUNCTION pg_temp.length(text) RETURNS integer LANGUAGE sql AS $$ SELECT 1 / 0 $$")
    producer.rows("SET search_path = pg_temp, pg_catalog")
    assert db.state(producer.enqueue()) == "ready"


FORBIDDEN = {
    "read jobs": "SELECT * FROM skiplock.jobs",
    "read ready jobs": "SELECT * FROM skiplock.jobs_ready",
    "read attempts": "SELECT * FROM skiplock.attempts",
    "read workers": "SELECT * FROM skiplock.workers",
    "insert": "INSERT INTO skiplock.queues (name) VALUES ('x')",
    "draw a number": "SELECT nextval('skiplock.job_numbers')",
    "claim": "SELECT skiplock.claim(1, 1, '{}', '{}', '{}')",
    "find": "SELECT skiplock.find('{1}')",
    "cancel": "SELECT skiplock.cancel(1)",
    "enqueue many": "SELECT skiplock.enqueue_many('{}', '{}', '{}')",
    "settle": "SELECT skiplock.settle('{}', '{}')",
}


def test_a_producer_may_do_nothing_else(producer: Verbs) -> None:
    for what, sql in FORBIDDEN.items():
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.rows(sql)
            pytest.fail(f"may {what}")


# --- the bell ---------------------------------------------------------------------------------------------------------


class Listener:
    """Hears every bell of a database, in a connection of its own."""

    def __init__(self, dsn: str) -> None:
        self._connection = connect(dsn)
        self._connection.execute('LISTEN "skiplock.bell"')

    def heard(self) -> list[str]:
        """The payloads of all that was sent before this moment: a ping of our own shows where that is."""
        self._connection.execute("SELECT pg_notify('skiplock.bell', 'ping')")
        found = []
        for note in self._connection.notifies(timeout=20):
            if note.payload == "ping":
                return found
            found.append(note.payload)
        raise AssertionError(f"the ping did not arrive; heard {found}")


@pytest.fixture
def listener(dsn: str) -> Iterator[Listener]:
    found = Listener(dsn)
    yield found
    found._connection.close()


def arm(db: Verbs, *queues: str) -> None:
    db.rows("SELECT skiplock.arm(%s)", list(queues))


MANY = "SELECT skiplock.enqueue_many(array_fill('t'::text, ARRAY[5]), array_fill('{}'::json, ARRAY[5]), %s)"


def test_no_bell_while_none_is_armed(db: Verbs, listener: Listener) -> None:
    db.enqueue()
    db.rows(MANY, ["a"] * 5)
    assert listener.heard() == []


def test_an_armed_bell_rings_once_a_statement(db: Verbs, listener: Listener) -> None:
    arm(db, "default", "a")
    db.rows(MANY, ["a"] * 5)
    assert listener.heard() == ["a"]


def test_a_statement_for_several_queues_rings_each_armed_one_once(db: Verbs, listener: Listener) -> None:
    arm(db, "a", "b", "c")
    db.rows(MANY, ["a", "b", "a", "b", "x"])
    assert sorted(listener.heard()) == ["a", "b"]


def test_other_queues_do_not_ring(db: Verbs, listener: Listener) -> None:
    arm(db, "a")
    db.enqueue(queue="b")
    assert listener.heard() == []


def test_a_disarmed_bell_is_silent(db: Verbs, listener: Listener) -> None:
    arm(db, "a")
    db.rows("UPDATE skiplock.bells SET armed_at = armed_at - interval '2 s'")
    db.rows("SELECT skiplock.disarm(ARRAY['a'])")
    db.enqueue(queue="a")
    assert listener.heard() == []


def test_a_bell_armed_just_now_is_someone_else_s_and_stays(db: Verbs, listener: Listener) -> None:
    arm(db, "a")
    db.rows("SELECT skiplock.disarm(ARRAY['a'])")
    db.enqueue(queue="a")
    assert listener.heard() == ["a"]


def test_the_bell_rings_at_the_commit_and_not_at_all_after_a_rollback(db: Verbs, listener: Listener) -> None:
    arm(db, "a")
    with db.transaction(force_rollback=True):
        db.enqueue(queue="a")
    assert listener.heard() == []
    with db.transaction():
        db.enqueue(queue="a")
        assert listener.heard() == []
    assert listener.heard() == ["a"]


def test_a_job_for_later_rings_the_timer_if_it_is_due_before_the_leader_wakes(db: Verbs, listener: Listener) -> None:
    assert db.rows("SELECT moved, due_in FROM skiplock.promote(arm => true)") == [
        (0, None)
    ]  # nothing waits: wakes never
    db.enqueue(delay="1 hour")
    assert listener.heard() == [""]
    db.rows("SELECT skiplock.promote(arm => true)")  # now it means to wake in an hour
    db.enqueue(delay="2 hours")
    assert listener.heard() == []
    db.enqueue(delay="30 minutes")
    assert listener.heard() == [""]


def test_a_job_for_later_rings_no_queue_until_it_is_promoted(db: Verbs, listener: Listener) -> None:
    arm(db, "a")
    db.enqueue(queue="a", delay="1 hour")
    assert listener.heard() == []
    db.rows("UPDATE skiplock.jobs_waiting SET run_at = run_at - interval '1 hour'")
    db.rows("SELECT skiplock.promote()")
    assert listener.heard() == ["a"]


def test_arming_again_at_once_writes_nothing(db: Verbs) -> None:
    arm(db, "a", "b")
    before = db.rows("SELECT xmin, * FROM skiplock.bells ORDER BY queue")
    arm(db, "a", "b")
    assert db.rows("SELECT xmin, * FROM skiplock.bells ORDER BY queue") == before


def test_two_databases_do_not_hear_each_other(db: Verbs, server: str, listener: Listener) -> None:
    with connect(in_database(server, "postgres")) as elsewhere:
        elsewhere.execute("SELECT pg_notify('skiplock.bell', 'elsewhere')")
    assert listener.heard() == []

"""Large arguments are kept once, beside the job, and nobody who reads a job can tell.

Kinds: payloads rewritten at each move of a job (bloat, WAL), arguments lost or mixed up on one of the ways a job can go,
leftovers when jobs go (delete, rollback, a dropped day), an argument of hundreds of megabytes through SQL (PAY-23, PAY-24,
PAY-27), a migration that leaves a day of history which refuses such jobs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from skiplock import OptionError, Skiplock
from skiplock.core.job import NewJob
from skiplock.core.settings import MAX_PAYLOAD
from skiplock.desk.find import list_call
from skiplock.produce.enqueue import enqueue_call
from skiplock.store.migrate import migrate
from skiplock.store.schema import migrations
from tests.support import connect
from tests.support.verbs import Claimed, Verbs, failure, open_verbs, verdict

ARGS_OF_CLAIM = "SELECT id, args::text FROM skiplock.claim(%s, %s, '{default}', '{1000}', '{t}')"


def limit(db: Verbs) -> int:
    """From how many bytes on arguments are large."""
    found: int = db.value("SELECT skiplock._large_args()")
    return found


def document(size: int, seed: int = 0) -> str:
    """JSON of so many bytes that no compression makes smaller."""
    filling = random.Random(seed).randbytes(size).hex()
    return json.dumps({"x": filling[: size - len('{"x": ""}')]})


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture
def large(db: Verbs) -> str:
    return document(3 * limit(db))


def payloads(db: Verbs) -> list[Any]:
    """Whose they are, and which version of the row: one that was written again is another."""
    return db.rows("SELECT job_id, ctid::text, xmin::text FROM skiplock.payloads ORDER BY job_id")


def kept_beside(db: Verbs, job: int) -> bool:
    assert db.count() == db.value("SELECT count(DISTINCT id) FROM skiplock.jobs")
    return bool(db.value("SELECT args IS NULL FROM skiplock.jobs WHERE id = %s", job))


def claimed_args(db: Verbs, worker: int) -> dict[int, str]:
    return dict(db.rows(ARGS_OF_CLAIM, worker, random.getrandbits(62)))


# --- which are large, and through every door --------------------------------------------------------------------------


def test_longer_than_the_limit_is_large(db: Verbs) -> None:
    size = limit(db)
    ids = [db.enqueue(args=document(size)), db.enqueue(args=document(size + 1)), db.enqueue()]
    assert [kept_beside(db, job) for job in ids] == [False, True, False]
    assert [row.job_id for row in payloads(db)] == [ids[1]]


def test_many_in_one_statement(db: Verbs) -> None:
    size = limit(db)
    args = [document((size + 1) * (n % 3), n) if n % 3 else f'{{"n": {n}}}' for n in range(30)]
    sql = "SELECT skiplock.enqueue_many(%s, %s::json[], %s)"
    ids = [row[0] for row in db.rows(sql, ["t"] * 30, args, ["default"] * 30)]
    assert claimed_args(db, db.register()) == dict(zip(ids, args, strict=True))
    assert [row.job_id for row in payloads(db)] == [job for n, job in enumerate(ids) if n % 3]


@pytest.mark.parametrize("delays", [[0.0] * 3, [60.0] * 3, [60.0, None, -5.0]], ids=["due", "for later", "mixed"])
def test_with_delays(db: Verbs, large: str, delays: list[float | None]) -> None:
    sql = "SELECT skiplock.enqueue_many(%s, %s::json[], %s, delays => %s::float8[])"
    ids = [row[0] for row in db.rows(sql, ["t"] * 3, [large, "{}", large], ["default"] * 3, delays)]
    db.rows("UPDATE skiplock.jobs_waiting SET run_at = run_at - interval '1 hour'")
    db.rows("SELECT skiplock.promote()")
    assert claimed_args(db, db.register()) == {ids[0]: large, ids[1]: "{}", ids[2]: large}
    assert [row.job_id for row in payloads(db)] == [ids[0], ids[2]]


def test_from_python(db: Verbs, dsn: str) -> None:
    with Skiplock(dsn) as app:
        task = app.task(name="t")(_take)
        text = "ü" * limit(db)
        one = task.enqueue(x=text)
        two, three = app.enqueue_many([task.job(x=text), task.job(x="small")])
        assert [job.get().args["x"] for job in (one, two, three)] == [text, text, "small"]
        assert [row.job_id for row in payloads(db)] == [one.id, two.id]


def _take(x: str) -> None: ...


def test_a_producer_who_may_only_enqueue(db: Verbs, dsn: str, large: str) -> None:
    name = "producer_" + db.value("SELECT current_database()")
    db.rows(f"CREATE ROLE {name}")
    db.rows(f"GRANT USAGE ON SCHEMA skiplock TO {name}")
    db.rows(f"GRANT EXECUTE ON FUNCTION skiplock.enqueue TO {name}")
    with open_verbs(dsn) as producer:
        producer.rows(f"SET SESSION AUTHORIZATION {name}")
        job = producer.enqueue(args=large)
        for forbidden in ("SELECT * FROM skiplock.payloads", "SELECT skiplock._large_args()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                producer.rows(forbidden)
    db.rows(f"DROP OWNED BY {name}")
    db.rows(f"DROP ROLE {name}")
    assert db.value("SELECT skiplock.args(j)::text FROM skiplock.jobs j WHERE id = %s", job) == large


# --- together with the job or not at all ------------------------------------------------------------------------------


def test_a_rollback_leaves_neither(db: Verbs, large: str) -> None:
    with db.transaction(force_rollback=True):
        db.enqueue(args=large)
        assert (db.count(), len(payloads(db))) == (1, 1)
    assert (db.count(), len(payloads(db))) == (0, 0)


@pytest.mark.parametrize("delay", [None, 60.0])
def test_one_bad_job_in_the_statement_leaves_none(db: Verbs, large: str, delay: float | None) -> None:
    sql = "SELECT skiplock.enqueue_many(%s, %s::json[], %s, delays => %s::float8[])"
    delays = None if delay is None else [delay] * 3
    with pytest.raises(psycopg.Error, match="job 3"):
        db.rows(sql, ["t"] * 3, [large, large, "[]"], ["q"] * 3, delays)
    assert (db.count(), len(payloads(db))) == (0, 0)


# --- through a whole life, written once -------------------------------------------------------------------------------

Way = Callable[[Verbs, Claimed], None]


def retried(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "retry", delay=0, failure=failure())])
    db.rows("SELECT skiplock.promote()")


def snoozed(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "snooze", delay=0)])
    db.rows("SELECT skiplock.promote()")


def released(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "release")])


def claim_given_back(db: Verbs, job: Claimed) -> None:
    db.rows("SELECT skiplock.release_claim(worker, lease) FROM skiplock.jobs_running WHERE id = %s", job.id)


def left(db: Verbs, job: Claimed) -> None:
    db.rows("SELECT skiplock.leave(worker) FROM skiplock.jobs_running WHERE id = %s", job.id)


def dead_and_retried(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "dead", failure=failure())])
    db.rows("SELECT skiplock.retry(%s)", job.id)


def cancelled_and_retried(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "cancelled", failure=failure())])
    db.rows("SELECT skiplock.retry(%s)", job.id)


def cancelled_while_it_waited(db: Verbs, job: Claimed) -> None:
    db.settle(others=[verdict(job, "retry", delay=3600, failure=failure())])
    db.rows("SELECT skiplock.cancel(%s)", job.id)
    db.rows("SELECT skiplock.retry(%s)", job.id)


def lost_with_its_host(db: Verbs, job: Claimed) -> None:
    db.rows("UPDATE skiplock.workers SET beat_at = beat_at - interval '1 hour'")
    db.rows("SELECT * FROM skiplock.rescue()")


def lost_with_its_process(db: Verbs, job: Claimed) -> None:
    db.rows("SELECT skiplock.report_lost(worker, ARRAY[id], 'killed') FROM skiplock.jobs_running WHERE id = %s", job.id)


WAYS: list[Way] = [
    retried, snoozed, released, claim_given_back, left, dead_and_retried, cancelled_and_retried,
    cancelled_while_it_waited, lost_with_its_host, lost_with_its_process,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_becomes_of_a_job_its_arguments_stay_where_they_are(db: Verbs, large: str, way: Way) -> None:
    """To see it fail: let a move read them (`skiplock.args(g)` for `g.args`), or leave the look-up out of `_start`."""
    job, other = db.enqueue(args=large), db.enqueue(queue="other", args=document(2 * limit(db), 7))
    written = payloads(db)
    [claimed] = db.claim(db.register())
    way(db, claimed)
    assert kept_beside(db, job)
    worker = db.register()
    found = claimed_args(db, worker)
    if not found:
        sql = "SELECT id, args::text FROM skiplock.claim_suspects(%s, 1, '{default}', '{1}', '{t}', false)"
        found = dict(db.rows(sql, worker))
    assert found == {job: large}
    db.settle(completed=[db.job(job)])
    assert (db.state(job), kept_beside(db, job)) == ("completed", True)
    assert payloads(db) == written
    assert [row.job_id for row in written] == [job, other]


def test_moving_a_large_job_writes_next_to_nothing(db: Verbs) -> None:
    """100 KiB that do not compress: claimed and settled with a hundredth of that in WAL, page images included."""
    number = 20
    for n in range(number):
        db.enqueue(args=document(102_400, n))

    def wal(sql: str, *params: Any) -> int:
        [[[plan]]] = db.rows(f"EXPLAIN (ANALYZE, WAL, FORMAT json) {sql}", *params)
        return int(plan["Plan"]["WAL Bytes"])

    moved = wal("SELECT * FROM skiplock.claim(%s, 1, '{default}', '{1000}', '{t}')", db.register())
    ids = [row.id for row in db.rows("SELECT id FROM skiplock.jobs_running ORDER BY id")]
    assert len(ids) == number
    moved += wal("SELECT * FROM skiplock.settle(%s, %s)", ids, [1] * number)
    assert moved < number * 102_400 / 5


# --- reading ----------------------------------------------------------------------------------------------------------


def ready(db: Verbs, args: str) -> int:
    return db.enqueue(args=args)


def waiting(db: Verbs, args: str) -> int:
    return db.enqueue(args=args, delay="1 hour")


def running(db: Verbs, args: str) -> int:
    job = db.enqueue(f"run {args[:20]}", args=args)
    db.claim(db.register(), tasks=(f"run {args[:20]}",))
    return job


def ended(word: str) -> Callable[[Verbs, str], int]:
    def make(db: Verbs, args: str) -> int:
        job = db.enqueue("to end", args=args)
        [claimed] = db.claim(db.register(), tasks=("to end",))
        if word == "completed":
            db.settle(completed=[claimed])
        else:
            db.settle(others=[verdict(claimed, word, failure=failure())])
        return job

    return make


STATES = {
    "ready": ready,
    "scheduled": waiting,
    "running": running,
    "dead": ended("dead"),
    "completed": ended("completed"),
    "cancelled": ended("cancelled"),
}


def test_whoever_reads_a_job_gets_them(db: Verbs, dsn: str, large: str) -> None:
    jobs = {make(db, large): state for state, make in STATES.items()}
    with Skiplock(dsn) as app:
        listed = {record.id: record for record in app.run(list_call("skiplock"))}
        for job, state in jobs.items():
            assert (listed[job].state, listed[job].args) == (state, json.loads(large))
            assert (app.get(job).state, app.get(job).args) == (state, json.loads(large))
    found = db.rows("SELECT id, args::text FROM skiplock.find(%s)", list(jobs))
    assert dict(found) == dict.fromkeys(jobs, large)
    for sql in (
        "SELECT id, skiplock.args(j)::text FROM skiplock.jobs j",
        "SELECT id, skiplock.args(j)::text FROM skiplock.jobs_dead j",
        "SELECT id, skiplock.args(j)::text FROM skiplock.jobs_finished j WHERE state = 'cancelled'",
    ):
        assert set(dict(db.rows(sql)).values()) == {large}
    assert db.rows("SELECT DISTINCT args::text FROM skiplock.jobs") == [(None,)]


def test_args_of_a_small_job_are_its_own(db: Verbs) -> None:
    db.enqueue(args='{"a": 1}')
    assert db.value("SELECT skiplock.args(j)::text FROM skiplock.jobs j") == '{"a": 1}'


# --- going ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in STATES if state != "running"])
def test_delete_takes_them_along_and_no_others(db: Verbs, large: str, state: str) -> None:
    job, other = STATES[state](db, large), db.enqueue("other", args=large)
    db.rows("SELECT skiplock.delete(%s)", job)
    assert [row.job_id for row in payloads(db)] == [other]


def test_a_running_job_keeps_them_when_its_delete_is_refused(db: Verbs, large: str) -> None:
    job = running(db, large)
    assert db.rows("SELECT * FROM skiplock.delete(%s)", job) == [(False, "running")]
    assert [row.job_id for row in payloads(db)] == [job]


def finished(db: Verbs, number: int, args: str) -> list[int]:
    return [ended("completed")(db, args) for _ in range(number)]


def today(db: Verbs) -> str:
    """The table of history that jobs go to now."""
    job = ended("completed")(db, "{}")
    name: str = db.value("SELECT tableoid::regclass::text FROM skiplock.jobs_finished WHERE id = %s", job)
    return name


def drop_all(db: Verbs, function: str, table: str = "", batch: int = 3) -> list[int]:
    """What each call dropped."""
    dropped, after = [], 0
    while after is not None:
        given = "%s, " if table else ""
        params = (table, after, batch) if table else (after, batch)
        [(number, after)] = db.rows(f"SELECT * FROM skiplock.{function}({given}%s, %s)", *params)
        dropped.append(number)
    return dropped


def test_the_payloads_of_a_day_that_goes(fresh_dsn: str) -> None:
    """What retention has to do: detach the day, drop the payloads of its jobs in batches, drop the day.

    To see it fail: let drop_payloads take an attached day.
    """
    with open_verbs(fresh_dsn) as db:
        large = document(2 * limit(db))
        gone, small, dead = finished(db, 7, large), finished(db, 4, "{}"), ended("dead")(db, large)
        day = today(db)
        assert {db.value("SELECT tableoid::regclass::text FROM skiplock.jobs WHERE id = %s", job) for job in gone} == {
            day
        }
        with pytest.raises(psycopg.Error, match="detach it first"):
            db.rows("SELECT * FROM skiplock.drop_payloads(%s)", day)
        assert len(payloads(db)) == 8
        db.rows(f"ALTER TABLE skiplock.jobs_finished DETACH PARTITION {day}")
        live = ready(db, large)
        dropped = drop_all(db, "drop_payloads", day)
        assert (sum(dropped), max(dropped)) == (7, 3)
        assert [row.job_id for row in payloads(db)] == [dead, live]
        assert drop_all(db, "drop_payloads", day, batch=1000) == [0], "again: nothing is left"
        db.rows(f"DROP TABLE {day}")
        assert small
        assert claimed_args(db, db.register()) == {live: large}


def test_leftovers_of_jobs_deleted_by_hand(db: Verbs, large: str) -> None:
    kept = [make(db, large) for make in STATES.values()]
    moved = db.enqueue("moved", args=large, delay="1 hour")
    db.rows("UPDATE skiplock.jobs_waiting SET run_at = run_at - interval '2 hours' WHERE id = %s", moved)
    db.rows("SELECT skiplock.promote()")
    by_hand = [db.enqueue(args=large, queue="by hand", priority=n) for n in range(5)]
    assert sum(drop_all(db, "sweep_payloads")) == 0
    db.rows("DELETE FROM skiplock.jobs WHERE id = ANY (%s)", by_hand)
    dropped = drop_all(db, "sweep_payloads")
    assert (sum(dropped), max(dropped)) == (5, 3)
    assert [row.job_id for row in payloads(db)] == sorted([*kept, moved])


# --- too large --------------------------------------------------------------------------------------------------------


def test_the_limit_of_the_settings_is_that_of_the_database(db: Verbs) -> None:
    assert db.value("SELECT skiplock._most_args()") == MAX_PAYLOAD


SAYS = r"job 2: args: 67108865 bytes of JSON, at most 67108864 are allowed; store the data elsewhere"


@pytest.mark.parametrize("delays", [None, [0.0, 0.0]], ids=["at once", "with delays"])
def test_one_byte_too_many_is_refused_by_sql(db: Verbs, delays: list[float] | None) -> None:
    """Made by the server, so that nothing of it has to be sent. To see it fail: take the two conditions out of enqueue.sql."""
    make = """('{"x":"' || repeat('y', %s - 8) || '"}')::json"""
    sql = f"SELECT skiplock.enqueue_many('{{t,t}}', ARRAY['{{}}', {make}]::json[], '{{q,q}}', delays => %s::float8[])"
    with pytest.raises(psycopg.Error, match=SAYS) as caught:
        db.rows(sql, MAX_PAYLOAD + 1, delays)
    assert caught.value.sqlstate == "SK001"
    assert (db.count(), len(payloads(db))) == (0, 0)


@pytest.mark.parametrize("what", ["meta", "options", "tags"])
def test_what_rides_along_must_be_small(db: Verbs, what: str) -> None:
    value: Any = ["x" * 70_000] if what == "tags" else json.dumps({"x": "y" * 70_000})
    with pytest.raises(psycopg.Error, match=rf"job 1: {what}: 70\d\d\d bytes, at most 65536") as caught:
        db.enqueue(**{what: value})
    assert caught.value.sqlstate == "SK001"
    fits: Any = ["x" * 60_000] if what == "tags" else json.dumps({"x": "y" * 60_000})
    assert db.state(db.enqueue(**{what: fits})) == "ready"


def test_many_megabytes_from_python_go_in_several_statements(db: Verbs, dsn: str) -> None:
    """1,000 jobs of 100 KB: one statement would be 100 MB, several times over in here and in the server."""
    with Skiplock(dsn) as app:
        task = app.task(name="t")(_take)
        sent: list[int] = []
        run = app.faces[0].run

        def counting(call: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append(sum(len(param or "") for param in call.params))
            return run(call, *args, **kwargs)

        app.faces[0].run = counting  # type: ignore[method-assign]
        job = task.job(x="y" * 100_000)
        handles = app.enqueue_many([job] * 300)
    assert len({handle.id for handle in handles}) == 300
    assert len(sent) == 4
    assert max(sent) < 9_000_000


def test_the_server_s_refusal_in_our_own_words(db: Verbs, dsn: str) -> None:
    """Of a job that went by all the checks before it."""
    with Skiplock(dsn) as app, pytest.raises(OptionError, match=r"job 2: task .* a name has 1 to 200 characters"):
        app.run(enqueue_call([NewJob("t", "{}"), NewJob("t" * 201, "{}")], "skiplock"))


# --- upgrading --------------------------------------------------------------------------------------------------------

DAYS = """
CREATE TABLE skiplock.jobs_finished_29990101 (LIKE skiplock.jobs_finished INCLUDING DEFAULTS);
ALTER TABLE skiplock.jobs_finished ATTACH PARTITION skiplock.jobs_finished_29990101
    FOR VALUES FROM ('2999-01-01') TO ('2999-01-02')"""


def of_the_release_before(dsn: str) -> None:
    """The tables as they were before there were payloads."""
    with connect(dsn) as c:
        c.execute("CREATE SCHEMA skiplock")
        c.execute(
            "CREATE TABLE skiplock.migrations (name text PRIMARY KEY, checksum text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp())"
        )
        for step in [m for m in migrations() if m.name < "0003"]:
            c.execute(step.text.encode())
            c.execute("INSERT INTO skiplock.migrations (name, checksum) VALUES (%s, %s)", [step.name, step.checksum])


def test_a_worker_s_role_that_was_given_before_there_were_payloads(empty_dsn: str) -> None:
    """Once, by hand, and without default privileges for what comes later. To see it fail: leave the grants out of
    0003_payloads.sql."""
    of_the_release_before(empty_dsn)
    with open_verbs(empty_dsn) as db:
        name = "worker of " + db.value("SELECT current_database()")
        db.rows(f'CREATE ROLE "{name}"')
        db.rows(f'GRANT USAGE ON SCHEMA skiplock TO "{name}"')
        db.rows(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA skiplock TO "{name}"')
        migrate(empty_dsn)
        wanted = "SELECT has_table_privilege(%s, 'skiplock.payloads', 'SELECT, INSERT, UPDATE, DELETE')"
        assert db.value(wanted, name) is True
        db.rows(f'DROP OWNED BY "{name}"')
        db.rows(f'DROP ROLE "{name}"')


def test_days_made_before_the_upgrade_take_jobs_without_args_of_their_own(empty_dsn: str) -> None:
    """A day is made as a table of its own and attached; whether its NOT NULL goes with that of the parent is up to the server."""
    of_the_release_before(empty_dsn)
    with connect(empty_dsn) as c:
        c.execute(DAYS.encode())
        c.execute(
            "INSERT INTO skiplock.jobs (id, enqueued_at, max_attempts, state, queue, task, args) "
            "VALUES (-1, now(), 1, 'scheduled', 'q', 't', '{\"old\": 1}')"
        )
    migrate(empty_dsn)
    with open_verbs(empty_dsn) as db:
        refusing = "SELECT attrelid::regclass::text FROM pg_attribute WHERE attname = 'args' AND attnotnull AND attrelid IN (SELECT relid FROM pg_partition_tree('skiplock.jobs'))"
        assert db.rows(refusing) == []
        assert db.value("SELECT skiplock.args(j)::text FROM skiplock.jobs j") == '{"old": 1}'
        job = db.enqueue(args=document(2 * limit(db)))
        [claimed] = db.claim(db.register())
        db.settle(completed=[claimed])
        assert (db.state(job), kept_beside(db, job)) == ("completed", True)
        db.rows("INSERT INTO skiplock.jobs_finished_29990101 SELECT (jsonb_populate_record(f, '{\"finished_at\": \"2999-01-01 12:00+00\"}')).* FROM skiplock.jobs_finished f")  # fmt: skip

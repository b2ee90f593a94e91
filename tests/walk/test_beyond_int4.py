"""Numbers beyond 2³¹, through every verb, a worker, its shutdown and the command line; and the end of all numbers.

Kinds: a counter of four bytes that ends after two thousand million jobs (SCALE-32, SCALE-33; case 22), a driver, a map or a
JSON document in between that holds less than the database does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from skiplock import JobContext, JobNotFoundError, Skiplock
from skiplock.cli.root import cli
from skiplock.work.startmap import StartMap
from skiplock.worker import Worker, WorkerSettings
from tests.support.handlers import Hold
from tests.support.verbs import Verbs, failure, open_verbs, verdict
from tests.support.workers import running_worker, settled, until

LAST = 2**63 - 1
STARTS = [2**31 - 2, 2**32 - 2, 2**53 - 2, LAST - 1000]
each_start = pytest.mark.parametrize("start", STARTS, ids=["2^31", "2^32", "2^53", "near the end"])


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


@pytest.fixture
def app(fresh_dsn: str) -> Iterator[Skiplock]:
    with Skiplock(fresh_dsn) as found:
        yield found


def start_at(db: Verbs, number: int) -> None:
    """The next numbers of every sequence are that and those after it. Workers' ids are longer by four digits."""
    names = {
        row[0]
        for row in db.rows(
            "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'skiplock'::regnamespace"
        )
    }
    assert names == {"job_numbers", "worker_numbers", "nudges_n_seq"}
    db.rows("SELECT setval('skiplock.job_numbers', %s, false)", number)
    db.rows("SELECT setval('skiplock.nudges_n_seq', %s, false)", number)
    db.rows("SELECT setval('skiplock.worker_numbers', %s, false)", min(number, LAST // 10_000 - 1_000))


def test_no_counter_is_of_four_bytes(db: Verbs) -> None:
    """Whatever counts jobs, workers, leases or terms."""
    narrow = db.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'skiplock' "
        "AND data_type IN ('integer', 'smallint')"
    )
    allowed = {"attempt", "max_attempts", "priority", "losses", "pid", "running"} | {
        "slots",
        "burst",
        "missed_most",
        "waiting_most",
        "max_depth",
        "counted",
    }
    assert {column for _, column in narrow} <= allowed
    sequences = db.rows(
        "SELECT relname, seqtypid::regtype::text FROM pg_sequence JOIN pg_class ON oid = seqrelid WHERE relnamespace = 'skiplock'::regnamespace"
    )
    assert {kind for _, kind in sequences} == {"bigint"}


@each_start
def test_every_verb(db: Verbs, start: int) -> None:
    start_at(db, start)
    worker = db.register()
    ids = db.enqueue_some(9)
    ids += [db.enqueue(delay="1 hour"), db.enqueue(args=json.dumps({"x": "y" * 20_000}))]
    assert ids[0] == start
    jobs = {job.id: job for job in db.claim(worker, lease=LAST)}
    assert [jobs[i].lease for i in ids[:9]] == [LAST] * 9
    assert (
        db.rows(
            "SELECT timeline IS NULL FROM skiplock.reconcile(%s, %s, %s) WHERE job_id IS NOT NULL",
            worker,
            list(jobs),
            [LAST] * len(jobs),
        )
        == []
    )
    assert db.settle(completed=[jobs[ids[0]]], results=["1"]) == []
    words = ["retry", "snooze", "dead", "cancelled", "release"]
    assert (
        db.settle(
            others=[verdict(jobs[i], word, delay=0, failure=failure()) for i, word in zip(ids[1:6], words, strict=True)]
        )
        == []
    )
    states = ["completed", "retryable", "retryable", "dead", "cancelled", "ready"]
    assert [db.state(i) for i in ids[:6]] == states
    assert db.settle(completed=[jobs[ids[0]]]) == [], "repeated"
    stale = jobs[ids[6]]._replace(lease=LAST - 1)
    assert db.settle(completed=[stale]) == [(ids[6], LAST - 1)]
    db.rows("SELECT skiplock.record(%s, %s, 'step', '1')", ids[6], LAST)
    assert db.value("SELECT skiplock.recall(%s, 'step')", ids[6]) == 1
    db.rows("SELECT skiplock.cancel(%s)", ids[7])
    [beat] = db.rows(
        "SELECT * FROM skiplock.beat(%s, 1, 'running', '{default}', 9, true, true, true, '{default}', '{0}', %s)",
        worker,
        [ids[8]],
    )
    assert (beat.known, beat.cancelled) == (True, [ids[7]])
    assert db.value("SELECT skiplock.promote()::text") is not None
    assert db.rows("SELECT * FROM skiplock.retry(%s)", ids[3]) == [(True, "dead")]
    found = {row.id: row.state for row in db.rows("SELECT * FROM skiplock.find(%s)", ids)}
    assert found[ids[3]] == "ready" and found[ids[9]] == "scheduled" and len(found) == len(ids)
    assert [row.position for row in db.rows("SELECT * FROM skiplock.lanes('{default}')")] == [ids[8]]
    assert db.value("SELECT skiplock.report_lost(%s, %s, 'gone')", worker, [ids[6]]) == 4
    second = db.register()
    assert second > worker > 2**31
    assert len(db.claim_suspects(second)) == 1
    assert db.value("SELECT skiplock.leave(%s)", second) == 1
    for job in ids[9:]:
        assert db.rows("SELECT done FROM skiplock.delete(%s)", job) == [(True,)]


@each_start
async def test_a_worker_from_start_to_shutdown(app: Skiplock, db: Verbs, hold: Hold, start: int) -> None:
    start_at(db, start)

    @app.task(name="quick")
    async def quick(ctx: JobContext, n: int) -> int:
        return ctx.id if n < 0 else n

    @app.task(name="steps")
    async def steps(ctx: JobContext) -> None:
        await ctx.once("one", lambda: ctx.id)
        async with ctx.transaction():
            pass

    @app.task(name="held", max_attempts=3)
    async def held() -> None:
        await hold.on_loop()

    startmap = StartMap.create()
    worker = Worker(
        app, WorkerSettings(queues={"default": 20}, beat_every=0.2, lost_after=0.6, grace=0.0), startmap=startmap
    )
    run = asyncio.create_task(worker.run())
    jobs = await app.aenqueue_many([quick.job(n) for n in range(50)])
    assert jobs[0].id >= start
    for n, job in enumerate(jobs):
        assert (await settled(job)).result == n
    own = await quick.aenqueue(-1)
    assert (await settled(own)).result == own.id
    assert (await settled(await steps.aenqueue())).state == "completed"
    cancelled, kept = await held.aenqueue(), await held.aenqueue()
    await until(lambda: {cancelled.id, kept.id} <= set(startmap.started()), unless=run)
    await cancelled.acancel()
    assert (await settled(cancelled)).state == "cancelled"
    assert startmap.worker == worker.id > 2**31
    worker.stop()
    await asyncio.wait_for(run, 30)
    record = await kept.aget()
    assert (record.state, record.attempt) == ("ready", 0), "given back by the shutdown"
    assert db.count("workers") == 0
    startmap.close()


@each_start
def test_the_command_line(fresh_dsn: str, db: Verbs, start: int) -> None:
    start_at(db, start)

    def run(*args: object) -> Any:
        done = CliRunner().invoke(cli, [*map(str, args), "--json"], env={"SKIPLOCK_DATABASE_URL": fresh_dsn})
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    first, second = run("enqueue", "t", "a=1")["id"], run("enqueue", "t")["id"]
    assert (first, second) == (start, start + 1)
    worker = db.register("w")
    assert [found["id"] for found in run("workers", "list")["workers"]] == [worker]
    assert [found["id"] for found in run("jobs", "list")["jobs"]] == [second, first]
    assert [found["id"] for found in run("jobs", "list", "--before", second)["jobs"]] == [first]
    assert run("jobs", "show", first)["args"] == {"a": 1}
    assert run("jobs", "cancel", first)["results"] == [{"id": first, "done": True, "was": "ready"}]
    assert run("jobs", "retry", first)["results"] == [{"id": first, "done": True, "was": "cancelled"}]
    assert run("jobs", "delete", first, "--yes")["results"] == [{"id": first, "done": True, "was": "ready"}]
    for args in (("jobs", "list"), ("jobs", "show", second), ("workers", "list"), ("queues", "list")):
        done = CliRunner().invoke(cli, [*map(str, args)], env={"SKIPLOCK_DATABASE_URL": fresh_dsn})
        assert done.exit_code == 0
        assert {"jobs": str(second), "workers": str(worker), "queues": "default"}[args[0]] in done.output


async def test_the_very_last_number_works_and_after_it_enqueue_says_so(app: Skiplock, db: Verbs) -> None:
    """Nobody will get there: at a million jobs a second it takes 290,000 years. Nothing is stored, and nothing else stops."""
    start_at(db, LAST)

    @app.task(name="t")
    async def work() -> int:
        return 7

    async with running_worker(app):
        last = await work.aenqueue()
        assert last.id == LAST
        assert (await settled(last)).result == 7
        with pytest.raises(psycopg.Error, match="reached maximum value of sequence"):
            await work.aenqueue()
        assert (await app.aget(LAST)).state == "completed"
    with pytest.raises(JobNotFoundError):
        await app.aget(LAST - 1)
    assert db.count() == 1

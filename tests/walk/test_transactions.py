"""A job completed in its handler's own transaction: both commit or neither, on every kind of connection; `ctx.once`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from skiplock import Backoff, JobContext, LeaseLostError, Skiplock, SkiplockError, UnsupportedConnectionError
from skiplock.store.call import Call
from skiplock.store.guests import arun_on, run_on
from tests.support.guests import ASYNC_GUESTS, SYNC_GUESTS, AsyncKind, Guest, SyncKind
from tests.support.proxy import Moment, Way, fault_proxy
from tests.support.verbs import Verbs
from tests.support.workers import RunningWorker, running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
WRITE = Call("INSERT INTO business (job, note) VALUES ($1::text::bigint, $2::text)", (), list)

# How the handler ends its transaction and itself, in its first attempt; in the second it commits.
WAYS = ["commit", "roll back and return", "roll back and raise", "commit and raise"]


@pytest.fixture(autouse=True)
def business(db: Verbs) -> None:
    """The application's own table."""
    db.rows("DROP TABLE IF EXISTS business")
    db.rows("CREATE TABLE business (job bigint NOT NULL, note text NOT NULL)")


def written(job: int, note: str) -> Call[Any]:
    return Call(WRITE.sql, (str(job), note), list)


def notes(db: Verbs, job: int) -> list[str]:
    return [row.note for row in db.rows("SELECT note FROM business WHERE job = %s ORDER BY note", job)]


def way_in_attempt(ctx: JobContext, way: str) -> str:
    return way if ctx.attempt == 1 else "commit"


def check(db: Verbs, job: Any, way: str, kind: str) -> None:
    """What must hold after the job with that way has ended."""
    row, attempts = db.job(job.id), db.attempts(job.id)
    assert (row.state, row.result) == ("completed", {"by": kind}), (way, row.error)
    if way in ("commit", "commit and raise"):
        assert (row.attempt, notes(db, job.id)) == (1, ["attempt 1"])
        assert attempts == [], "what is committed is committed"
    else:
        assert (row.attempt, notes(db, job.id)) == (2, ["attempt 2"])
        [attempt] = attempts
        assert attempt.error_class == ("ValueError" if way == "roll back and raise" else "CompletionNotCommitted")


@pytest.mark.parametrize("kind", ASYNC_GUESTS)
async def test_complete_on_an_async_connection(app: Skiplock, db: Verbs, dsn: str, kind: AsyncKind) -> None:
    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext, way: str) -> None:
        way = way_in_attempt(ctx, way)
        async with kind(dsn) as guest:
            await arun_on(guest.connection, written(ctx.id, f"attempt {ctx.attempt}"))
            await ctx.complete(connection=guest.connection, result={"by": kind.__name__})
            await (guest.rollback() if way.startswith("roll back") else guest.commit())
        if way.endswith("raise"):
            raise ValueError("afterwards")

    async with running_worker(app):
        jobs = [(way, await work.aenqueue(way)) for way in WAYS]
        for _, job in jobs:
            await settled(job)
    for way, job in jobs:
        check(db, job, way, kind.__name__)


@pytest.mark.parametrize("kind", SYNC_GUESTS)
async def test_complete_on_a_sync_connection(app: Skiplock, db: Verbs, dsn: str, kind: SyncKind) -> None:
    skipped: list[BaseException] = []

    @app.task(name="t", backoff=AT_ONCE)
    def work(ctx: JobContext, way: str) -> None:
        way = way_in_attempt(ctx, way)
        try:
            with kind(dsn) as guest:
                run_on(guest.connection, written(ctx.id, f"attempt {ctx.attempt}"))
                ctx.complete(connection=guest.connection, result={"by": kind.__name__})
                guest.rollback() if way.startswith("roll back") else guest.commit()
        except pytest.skip.Exception as missing:  # a driver that is not installed
            skipped.append(missing)
            return
        if way.endswith("raise"):
            raise ValueError("afterwards")

    async with running_worker(app, queues={"default": 1}):  # one at a time: Django's settings are the process's
        jobs = [(way, await work.aenqueue(way)) for way in WAYS]
        for _, job in jobs:
            await settled(job)
    if skipped:
        raise skipped[0]
    for way, job in jobs:
        check(db, job, way, kind.__name__)


# --- ctx.transaction --------------------------------------------------------------------------------------------------


async def in_async_transaction(app: Skiplock, end: Callable[[JobContext], None]) -> Any:
    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> None:
        async with ctx.transaction(result={"n": ctx.attempt}) as connection:
            await connection.execute("INSERT INTO business VALUES (%s, %s)", [ctx.id, f"attempt {ctx.attempt}"])
            end(ctx)

    return work


async def in_sync_transaction(app: Skiplock, end: Callable[[JobContext], None]) -> Any:
    @app.task(name="t", backoff=AT_ONCE)
    def work(ctx: JobContext) -> None:
        with ctx.transaction(result={"n": ctx.attempt}) as connection:
            connection.execute("INSERT INTO business VALUES (%s, %s)", [ctx.id, f"attempt {ctx.attempt}"])
            end(ctx)

    return work


both = pytest.mark.parametrize("make", [in_async_transaction, in_sync_transaction], ids=["async", "sync"])


@both
async def test_a_transaction_commits_with_the_job(app: Skiplock, db: Verbs, make: Callable[..., Any]) -> None:
    work = await make(app, lambda ctx: None)
    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.result, record.attempts) == ("completed", {"n": 1}, ())
    assert notes(db, record.id) == ["attempt 1"]


@both
async def test_an_error_in_it_rolls_both_back(app: Skiplock, db: Verbs, make: Callable[..., Any]) -> None:
    def fail_once(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise KeyError("within")

    work = await make(app, fail_once)
    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.result) == ("completed", {"n": 2})
    assert [kept.error_class for kept in record.attempts] == ["KeyError"]
    assert notes(db, record.id) == ["attempt 2"]


async def its_only_beat(running: RunningWorker, db: Verbs) -> None:
    """The beat at the start is over: from now on it does not learn by a beat that it is thought lost."""
    beaten = "SELECT beat_at > started_at FROM skiplock.workers WHERE id = %s"
    await running.until(lambda: db.value(beaten, running.worker.id))


@both
async def test_it_cannot_commit_once_the_lease_is_lost(app: Skiplock, db: Verbs, make: Callable[..., Any]) -> None:
    raised: list[BaseException] = []

    def lose(ctx: JobContext) -> None:
        if not raised:
            raised.append(ValueError("placeholder until the block has ended"))
            db.rows("SELECT skiplock.report_lost(%s, %s, 'a mistake')", running.worker.id, [ctx.id])

    work = await make(app, lose)
    async with running_worker(app, beat_every=100.0, lost_after=300.0) as running:
        await its_only_beat(running, db)
        job = await work.aenqueue()
        await running.until_heard("settle_refused")
        [ended] = running.heard("attempt_ended")
    assert ended["failure"].error_class.endswith("LeaseLostError")
    assert notes(db, job.id) == []
    row = db.job(job.id)
    assert (row.state, row.losses, row.attempt) == ("ready", 1, 1)


@both
async def test_a_transaction_that_cannot_begin_costs_no_connection_of_the_pool(
    db: Verbs, dsn: str, make: Callable[..., Any]
) -> None:
    """The pooled connection is cut at its BEGIN; more often than the pool is large."""
    with fault_proxy(dsn) as proxy:
        app = Skiplock(proxy.dsn, pool_size=1)
        await make(app, lambda ctx: None)
        async with running_worker(app, queues={"default": 1}) as worker:
            for _ in range(4):
                trap = proxy.trap("BEGIN", Moment.BEFORE, Way.RESET, name="skiplock")
                job = db.enqueue()  # by SQL, so that only the handlers use the pool
                await worker.until(lambda job=job: db.state(job) == "completed", limit=20)
                assert trap.sprung.is_set()
    assert any(kept.attempt for kept in db.rows("SELECT attempt FROM skiplock.attempts")), "nothing was cut"


# --- what complete refuses --------------------------------------------------------------------------------------------


async def test_complete_on_what_is_no_connection(app: Skiplock) -> None:
    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> None:
        await ctx.complete(connection="postgresql://x")

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert record.state == "dead"
    assert record.attempts[0].error_class == f"{UnsupportedConnectionError.__module__}.UnsupportedConnectionError"


async def test_completing_twice(app: Skiplock, dsn: str) -> None:
    said: list[BaseException] = []

    @app.task(name="t")
    def work(ctx: JobContext) -> None:
        with psycopg.connect(dsn) as connection:
            ctx.complete(connection=connection)
            try:
                with connection.transaction():
                    ctx.complete(connection=connection)
            except LeaseLostError as error:
                said.append(error)

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert record.state == "completed"
    assert len(said) == 1


async def test_a_result_that_cannot_be_stored_is_refused_in_the_transaction(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> None:
        async with ctx.transaction(result=object()) as connection:
            await connection.execute("INSERT INTO business VALUES (%s, 'x')", [ctx.id])

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert record.state == "dead" and "ArgumentError" in (record.error or "")
    assert notes(db, record.id) == []


async def test_a_job_deleted_under_its_handler_s_feet_cannot_be_completed(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> None:
        db.rows("DELETE FROM skiplock.jobs_running WHERE id = %s", ctx.id)
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO business VALUES (%s, 'x')", [ctx.id])

    async with running_worker(app) as worker:
        job = await work.aenqueue()
        assert await worker.until_heard("settle_refused") == {"jobs": [job.id]}
    assert notes(db, job.id) == []


# --- enqueue and complete in one transaction --------------------------------------------------------------------------


async def test_the_next_job_and_the_completion_of_this_one_are_one(app: Skiplock, db: Verbs) -> None:
    @app.task(name="next")
    async def following(n: int) -> int:
        return n

    @app.task(name="first", backoff=AT_ONCE)
    async def first(ctx: JobContext) -> None:
        async with ctx.transaction() as connection:
            await following.using(connection=connection).aenqueue(ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("too early")

    async with running_worker(app) as worker:
        await settled(await first.aenqueue())
        await worker.until(lambda: db.rows("SELECT 1 FROM skiplock.jobs WHERE task = 'next' AND state = 'completed'"))
    assert db.rows("SELECT result FROM skiplock.jobs WHERE task = 'next'") == [(2,)]


# --- once -------------------------------------------------------------------------------------------------------------


async def test_a_step_runs_once_and_its_value_is_remembered(app: Skiplock) -> None:
    calls: list[str] = []
    values: list[list[Any]] = []

    async def charge() -> dict[str, Any]:
        calls.append("charge")
        return {"id": 7, "lines": (1, 2)}

    def nothing() -> None:
        calls.append("nothing")

    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> None:
        values.append([await ctx.once("charge", charge), await ctx.once("nothing", nothing)])
        if ctx.attempt < 3:
            raise ValueError("later")

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).attempt == 3
    assert calls == ["charge", "nothing"]
    assert values[0] == [{"id": 7, "lines": (1, 2)}, None]
    assert values[1] == values[2] == [{"id": 7, "lines": [1, 2]}, None], "comes back as plain JSON data"


async def test_once_in_a_thread(app: Skiplock) -> None:
    calls: list[int] = []

    @app.task(name="t", backoff=AT_ONCE)
    def work(ctx: JobContext) -> int:
        value = ctx.once_sync("step", lambda: calls.append(ctx.attempt) or len(calls))
        if ctx.attempt == 1:
            raise ValueError("later")
        return value

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).result == 1
    assert calls == [1]


async def test_a_step_that_fails_is_not_remembered(app: Skiplock, db: Verbs) -> None:
    calls: list[int] = []

    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> str:
        async def step() -> str:
            calls.append(ctx.attempt)
            if ctx.attempt == 1:
                raise ConnectionError("not yet")
            return "done"

        return await ctx.once("step", step)

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).result == "done"
    assert calls == [1, 2]


async def test_jobs_do_not_share_their_steps(app: Skiplock) -> None:
    @app.task(name="t")
    async def work(ctx: JobContext, n: int) -> int:
        return await ctx.once("step", lambda: n)

    async with running_worker(app):
        jobs = [await work.aenqueue(n) for n in range(3)]
        assert [(await settled(job)).result for job in jobs] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_with_a_connection_the_effect_and_its_record_are_one(
    app: Skiplock, db: Verbs, dsn: str, kind: str
) -> None:
    """The first attempt rolls both back, the second commits both and fails, the third finds the record."""
    values: list[int] = []

    @app.task(name="t", backoff=AT_ONCE)
    async def on_loop(ctx: JobContext) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:

            async def write() -> int:
                await connection.execute("INSERT INTO business VALUES (%s, %s)", [ctx.id, f"attempt {ctx.attempt}"])
                return ctx.attempt

            values.append(await ctx.once("write", write, connection=connection))
            await (connection.rollback() if ctx.attempt == 1 else connection.commit())
        if ctx.attempt < 3:
            raise ValueError("later")

    @app.task(name="u", backoff=AT_ONCE)
    def in_thread(ctx: JobContext) -> None:
        with psycopg.connect(dsn) as connection:

            def write() -> int:
                connection.execute("INSERT INTO business VALUES (%s, %s)", [ctx.id, f"attempt {ctx.attempt}"])
                return ctx.attempt

            values.append(ctx.once_sync("write", write, connection=connection))
            connection.rollback() if ctx.attempt == 1 else connection.commit()
        if ctx.attempt < 3:
            raise ValueError("later")

    async with running_worker(app):
        record = await settled(await (on_loop if kind == "async" else in_thread).aenqueue())
    assert values == [1, 2, 2]
    assert notes(db, record.id) == ["attempt 2"]


async def test_a_step_cannot_be_recorded_once_the_lease_is_lost(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        async def step() -> None:
            db.rows("SELECT skiplock.report_lost(%s, %s, 'a mistake')", running.worker.id, [ctx.id])

        await ctx.once("step", step)

    async with running_worker(app, beat_every=100.0, lost_after=300.0) as running:
        await its_only_beat(running, db)
        await work.aenqueue()
        await running.until_heard("settle_refused")
        [ended] = running.heard("attempt_ended")
    assert ended["failure"].error_class.endswith("LeaseLostError")
    assert db.count("steps") == 0


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", None])
async def test_step_names_that_are_refused(app: Skiplock, name: Any) -> None:
    ran: list[int] = []

    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> None:
        await ctx.once(name, lambda: ran.append(1))

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, ran) == ("dead", [])
    assert "OptionError" in (record.error or "")


def test_there_is_no_transaction_in_a_plain_call() -> None:
    app = Skiplock("postgresql://nobody@127.0.0.1:1/none")

    @app.task(name="t")
    def work(ctx: JobContext) -> None:
        with ctx.transaction():
            pytest.fail("it has begun")

    with pytest.raises(SkiplockError, match="called plainly"):
        work()


# --- enqueue in the caller's transaction: what the handles say --------------------------------------------------------


@pytest.mark.parametrize("kind", SYNC_GUESTS)
def test_jobs_enqueued_on_a_sync_connection_come_with_its_commit(
    app: Skiplock, db: Verbs, dsn: str, kind: SyncKind
) -> None:
    task = app.task(name="t")(_work)

    def many(guest: Guest) -> list[int]:
        return [job.id for job in app.enqueue_many([task.job(n) for n in range(3)], connection=guest.connection)]

    with kind(dsn) as guest:
        many(guest)
        guest.rollback()
        ids = many(guest)
        assert db.count() == 0
        guest.commit()
    assert [row.id for row in db.rows("SELECT id FROM skiplock.jobs ORDER BY id")] == ids


def _work(n: int) -> None: ...


async def test_a_pool_shared_by_many_threads_and_tasks(app: Skiplock, db: Verbs) -> None:
    task = app.task(name="t")(_work)

    def enqueue(n: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        task.enqueue(n)

    await asyncio.gather(*[asyncio.to_thread(enqueue, n) for n in range(50)], *[task.aenqueue(n) for n in range(50)])
    await app.aclose()
    assert db.count() == 100

"""Everything a producer, a worker and the desk do, once around: for tests of what lies between them and the server.

found = await tour(dsn)                 # raises AssertionError where something went otherwise than it should
assert not found.heard("claim_failed")  # the worker's events, for what else the test wants to know
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from skiplock import Backoff, JobContext, JobHandle, Skiplock, Snooze
from skiplock.desk.find import list_call, queues_call, workers_call
from skiplock.desk.queues import pause_call, resume_call
from tests.support.workers import RunningWorker, running_worker, settled, until

SOON = Backoff(base=0.05, floor=0.05, jitter=False)
TEXT = 'ünï "quoted" \\back\\slash \\u0000 NULL {1,2} 漢字 🐘'
EFFECTS = "CREATE TABLE IF NOT EXISTS public.effects (job bigint, what text)"
_EFFECT = "INSERT INTO public.effects VALUES (%s, %s)"


class Tour:
    """The app of a tour, and what its handlers were given."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        self.app = app = Skiplock(dsn, **settings)
        self.runs: list[tuple[str, int]] = []
        self.enqueued: list[datetime] = []

        @app.task(name="echo")
        async def echo(ctx: JobContext, text: str) -> dict[str, Any]:
            self._begins("echo", ctx)
            return {"text": text, "nothing": None, "half": 0.5}

        @app.task(name="in thread")
        def in_thread(ctx: JobContext) -> None:
            self._begins("in thread", ctx)
            with ctx.transaction() as connection:
                connection.execute(_EFFECT, [ctx.id, "thread"])

        @app.task(name="in transaction")
        async def in_transaction(ctx: JobContext) -> None:
            self._begins("in transaction", ctx)
            async with ctx.transaction(result=7) as connection:
                await connection.execute(_EFFECT, [ctx.id, "async"])

        @app.task(name="flaky", backoff=SOON)
        async def flaky(ctx: JobContext) -> str:
            self._begins("flaky", ctx)
            once: str = await ctx.once("step", lambda: f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                raise ValueError(TEXT)
            return once

        @app.task(name="doomed", max_attempts=1)
        async def doomed(ctx: JobContext) -> None:
            self._begins("doomed", ctx)
            if ctx.attempt == 1:
                raise ValueError("not yet")

        @app.task(name="sleepy")
        async def sleepy(ctx: JobContext) -> None:
            self._begins("sleepy", ctx)
            if self.runs.count(("sleepy", ctx.id)) == 1:
                raise Snooze(0.05)

        @app.task(name="endless")
        async def endless(ctx: JobContext) -> None:
            self._begins("endless", ctx)
            await asyncio.sleep(600)

        self.echo, self.in_thread, self.in_transaction = echo, in_thread, in_transaction
        self.flaky, self.doomed, self.sleepy, self.endless = flaky, doomed, sleepy, endless

    def _begins(self, what: str, ctx: JobContext) -> None:
        self.runs.append((what, ctx.id))
        self.enqueued.append(ctx.enqueued_at)


async def tour(dsn: str, *, queues: tuple[str, ...] = ("default", "slow"), **settings: Any) -> RunningWorker:
    """The whole of it on a fresh database; answers the worker that was used."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(EFFECTS)
    made = Tour(dsn)
    async with made.app:
        early = await _producer(made, dsn)
        async with running_worker(made.app, queues=dict.fromkeys(queues, 10), **settings) as worker:
            await _handlers(made, dsn)
            await _desk(made)
            await _early(made, early)
            await _claim_order(made)
        left = await made.app.arun(list_call(made.app.schema, states=("ready", "running", "scheduled", "retryable")))
        assert left == []
    assert all(abs(datetime.now(UTC) - moment) < timedelta(minutes=5) for moment in made.enqueued)
    return worker


async def _producer(made: Tour, dsn: str) -> dict[str, JobHandle]:
    """Before there is a worker."""
    found = {
        "sync": await asyncio.to_thread(made.echo.using(meta={"for": TEXT}, tags=["a,b", TEXT]).enqueue, TEXT),
        "async": await made.echo.aenqueue(text=TEXT),
        "delayed": await made.echo.using(delay=0.2).aenqueue(text="later"),
        "at": await made.echo.using(at=datetime.now(UTC)).aenqueue(text="by the calendar"),
    }
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        found["mine"] = await made.echo.using(connection=connection).aenqueue(text="in my transaction")
    try:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await made.echo.using(connection=connection).aenqueue(text="undone")
            raise KeyError("rolled back")
    except KeyError:
        pass
    later = made.echo.using(delay=0.1, tags=["late"])
    jobs = [(later if n % 10 == 1 else made.echo).job(text=f"{n}{TEXT}") for n in range(100)]
    many = await made.app.aenqueue_many(jobs)
    again = await asyncio.to_thread(made.app.enqueue_many, [made.echo.job(text=f"{n}") for n in range(100)])
    return found | {f"many {n}": job for n, job in enumerate([*many, *again])}


async def _early(made: Tour, jobs: dict[str, JobHandle]) -> None:
    for name in ("sync", "async", "mine", "delayed", "at", "many 0", "many 199"):
        record = await settled(jobs[name])
        assert record.state == "completed", (name, record)
        assert record.result == {"text": record.args["text"], "nothing": None, "half": 0.5}, name
    record = await jobs["sync"].aget()
    assert (record.args, record.tags, record.meta) == ({"text": TEXT}, ("a,b", TEXT), {"for": TEXT})
    await until(lambda: len([1 for what, _ in made.runs if what == "echo"]) >= len(jobs))
    assert len([1 for what, _ in made.runs if what == "echo"]) == len(jobs), "each of them once, the undone one never"


async def _handlers(made: Tour, dsn: str) -> None:
    thread, transaction = await asyncio.to_thread(made.in_thread.enqueue), await made.in_transaction.aenqueue()
    flaky, sleepy = await made.flaky.aenqueue(), await made.sleepy.aenqueue()
    assert (await settled(thread)).state == (await settled(sleepy)).state == "completed"
    assert (await settled(transaction)).result == 7
    record = await settled(flaky)
    assert (record.state, record.result, record.attempt) == ("completed", "attempt 1", 2)
    assert [attempt.message for attempt in record.attempts] == [TEXT]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        rows = await (await connection.execute("SELECT job, what FROM public.effects ORDER BY job")).fetchall()
    assert sorted(rows) == sorted([(thread.id, "thread"), (transaction.id, "async")])


async def _desk(made: Tour) -> None:
    doomed, endless = await made.doomed.aenqueue(), await made.endless.aenqueue()
    assert (await settled(doomed)).state == "dead"
    assert await doomed.aretry() == "dead"
    assert (await settled(doomed)).state == "completed"
    await until(lambda: ("endless", endless.id) in made.runs)
    assert await endless.acancel() == "running"
    assert (await settled(endless)).state == "cancelled"
    waits = await made.echo.using(delay=3600).aenqueue(text="never")
    assert await waits.acancel() == "scheduled"
    assert await waits.adelete() == "cancelled"
    assert [w.lost for w in await made.app.arun(workers_call(made.app.schema))] == [False]
    assert all(w.silent_for < 60 for w in await made.app.arun(workers_call(made.app.schema)))


async def _claim_order(made: Tour) -> None:
    """A paused queue, and what was held back comes by priority."""
    schema = made.app.schema
    await made.app.arun(pause_call("slow", schema))
    held = [await made.echo.using(queue="slow", priority=n).aenqueue(text=f"priority {n}") for n in (0, 5, -5)]
    passed = await made.echo.aenqueue(text="not held")
    await settled(passed)
    assert [(await job.aget()).state for job in held] == ["ready"] * 3
    assert [q.paused for q in await made.app.arun(queues_call(schema)) if q.name == "slow"] == [True]
    await made.app.arun(resume_call("slow", schema))
    for job in held:
        assert (await settled(job)).state == "completed"

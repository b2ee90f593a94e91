"""The walk of a job through a real worker: enqueued, claimed, run, settled."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import threading
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from skiplock import Backoff, BlockingCallError, Dead, JobContext, Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.worker import Worker
from tests.support.guests import ASYNC_GUESTS, SYNC_GUESTS, AsyncKind, SyncKind
from tests.support.verbs import Verbs
from tests.support.workers import RunningWorker, running_worker, settled, until

AT_ONCE = Backoff(base=0, floor=0, jitter=False)


# --- there and back ---------------------------------------------------------------------------------------------------


async def test_an_async_and_a_plain_function(app: Skiplock) -> None:
    ran_in: dict[str, threading.Thread] = {}

    @app.task(name="async")
    async def on_loop(n: int) -> int:
        ran_in["async"] = threading.current_thread()
        return n + 1

    @app.task(name="def")
    def in_thread(n: int) -> int:
        ran_in["def"] = threading.current_thread()
        return n + 2

    async with running_worker(app) as worker:
        first, second = await on_loop.aenqueue(1), await in_thread.aenqueue(n=1)
        assert [(await settled(job)).result for job in (first, second)] == [2, 3]
        record = await first.aget()
    assert (record.state, record.attempt, record.worker, record.error) == ("completed", 1, worker.worker.id, None)
    assert record.enqueued_at <= record.started_at <= record.finished_at
    assert ran_in["async"] is threading.main_thread()
    assert ran_in["def"] is not threading.main_thread()


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    when: dt.datetime
    inner: list[Decimal] = dataclasses.field(default_factory=list)


class Order(msgspec.Struct):
    number: uuid.UUID
    lines: list[Point]


class Customer(pydantic.BaseModel):
    name: str
    since: dt.date


NOW = dt.datetime(2026, 7, 31, 12, 30, 15, 123456, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30)))
POINT = Point(1, NOW, [Decimal("1.10"), Decimal("1e22")])
VALUES: dict[str, tuple[Any, Any]] = {
    "datetime": (dt.datetime, NOW),
    "date": (dt.date, dt.date(2026, 2, 28)),
    "timedelta": (dt.timedelta, dt.timedelta(days=3, microseconds=7)),
    "UUID": (uuid.UUID, uuid.UUID(int=7)),
    "Decimal": (Decimal, Decimal("0.10")),
    "Enum": (Colour, Colour.RED),
    "bytes": (bytes, b"\x00\xff"),
    "dataclass": (Point, POINT),
    "msgspec struct": (Order, Order(uuid.UUID(int=8), [POINT])),
    "pydantic model": (Customer, Customer(name="Ann ☃", since=dt.date(2020, 1, 1))),
    "optional": (str | None, None),
    "dict of lists": (dict[str, list[float]], {"a": [0.1, 1e22]}),
    "odd text": (str, "\\u0000 is six characters, \\ \" ' \n\t % $1 {} ☃ 🦀"),
    "large integer": (int, 2**53 + 1),
    "anything": (Any, {"a": [1, None, True]}),
}


async def test_arguments_arrive_as_they_were_given(app: Skiplock) -> None:
    got: dict[str, Any] = {}
    jobs = {}
    async with asyncio.timeout(60):
        for n, (name, (annotation, _)) in enumerate(VALUES.items()):

            async def take(value: Any, name: str = name) -> None:
                got[name] = value

            take.__annotations__["value"] = annotation
            app.task(name=f"take {n}")(take)
        async with running_worker(app):
            for n, (name, (_, value)) in enumerate(VALUES.items()):
                jobs[name] = await app.find_task(f"take {n}").aenqueue(value)
            for job in jobs.values():
                assert (await settled(job)).state == "completed"
    for name, (_, value) in VALUES.items():
        assert (type(got[name]), got[name]) == (type(value), value), name


async def test_defaults_are_the_function_s_own_and_options_arrive(app: Skiplock) -> None:
    seen: list[Any] = []

    @app.task(name="t", queue="mail", priority=3, tags=["a"])
    async def work(ctx: JobContext, n: int = 5, *, flag: bool = False) -> None:
        seen.append((ctx.id, ctx.attempt, ctx.is_last_attempt, ctx.meta, n, flag))

    async with running_worker(app, queues={"mail": 1}):
        first = await work.aenqueue()
        second = await work.using(meta={"by": "ann"}, max_attempts=1, priority=1, tags=["b"]).aenqueue(7, flag=True)
        await settled(first), await settled(second)
        record = await second.aget()
    assert seen == [(first.id, 1, False, None, 5, False), (second.id, 1, True, {"by": "ann"}, 7, True)]
    assert (record.queue, record.priority, record.tags, record.meta) == ("mail", 1, ("b",), {"by": "ann"})


async def test_many_jobs_each_once(app: Skiplock, db: Verbs) -> None:
    runs: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        runs.append(n)

    async with running_worker(app) as worker:
        handles = await app.aenqueue_many(work.job(n) for n in range(3000))
        await worker.until(lambda: len(runs) >= 3000)
    assert sorted(runs) == list(range(3000))
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert db.rows("SELECT state, attempt, count(*) FROM skiplock.jobs GROUP BY 1, 2") == [("completed", 1, 3000)]
    assert db.count("workers") == db.count("attempts") == 0


async def test_concurrency_is_bounded_for_each_queue(app: Skiplock) -> None:
    now = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0}

    @app.task(name="t")
    async def work(queue: str) -> None:
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        await asyncio.sleep(0.01)
        now[queue] -= 1

    jobs = [work.using(queue=queue).job(queue) for queue in "ab" for _ in range(40)]
    async with running_worker(app, queues={"a": 3, "b": 7}):
        handles = await app.aenqueue_many(jobs)
        for handle in handles:
            await settled(handle)
    assert most == {"a": 3, "b": 7}


async def test_priority_decides_among_what_waits(app: Skiplock) -> None:
    order: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        order.append(n)

    for n, priority in enumerate([0, 5, -5, 5, 0]):
        await work.using(priority=priority).aenqueue(n)
    async with running_worker(app, queues={"default": 1}) as worker:
        await worker.until(lambda: len(order) == 5)
    assert order == [1, 3, 0, 4, 2]


# --- attempts ---------------------------------------------------------------------------------------------------------


async def test_a_failing_job_is_tried_again_until_it_succeeds(app: Skiplock) -> None:
    attempts: list[int] = []

    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError(f"number {ctx.attempt}")
        return "done"

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert attempts == [1, 2, 3]
    assert (record.state, record.attempt, record.result, record.error) == ("completed", 3, "done", None)
    assert [(kept.attempt, kept.verdict, kept.error_class, kept.message) for kept in record.attempts] == [
        (1, "retry", "ValueError", "number 1"),
        (2, "retry", "ValueError", "number 2"),
    ]
    assert "raise ValueError" in (record.attempts[0].traceback or "")


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_exactly_so_many_attempts(app: Skiplock, max_attempts: int) -> None:
    runs: list[bool] = []

    @app.task(name="t", backoff=AT_ONCE, max_attempts=max_attempts)
    async def work(ctx: JobContext) -> None:
        runs.append(ctx.is_last_attempt)
        raise ValueError("boom")

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert runs == [False] * (max_attempts - 1) + [True]
    assert (record.state, record.attempt, len(record.attempts)) == ("dead", max_attempts, max_attempts)


async def test_a_dead_job_can_be_retried(app: Skiplock) -> None:
    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise Dead("not yet")
        return ctx.attempt

    async with running_worker(app):
        job = await work.aenqueue()
        assert (await settled(job)).state == "dead"
        assert await job.aretry() == "dead"
        assert (await settled(job, state="completed")).result == 2


# --- what it leaves alone ---------------------------------------------------------------------------------------------


async def test_a_task_it_does_not_know_stays_ready_and_stops_nobody(app: Skiplock, db: Verbs) -> None:
    @app.task(name="known")
    async def known() -> None: ...

    unknown = db.enqueue("unknown")
    async with running_worker(app):
        await settled(await known.aenqueue())
    row = db.job(unknown)
    assert (row.state, row.attempt) == ("ready", 0)


BAD_ARGS = {
    "of the wrong type": '{"n": "text"}',
    "one missing": "{}",
    "one too many": '{"n": 1, "m": 2}',
    "null": '{"n": null}',
    "a lone surrogate": r'{"n": "\ud800"}',
    "too deep": '{"n": ' + "[" * 2000 + "]" * 2000 + "}",
    "a huge number": '{"n": 1e999}',
}
BAD_OPTIONS = {
    "no object": '"text"', "a timeout of text": '{"timeout": "soon"}', "a timeout of objects": '{"timeout": {}}',
    "a list": "[1]", "a lone surrogate among them": r'{"timeout": "\ud800"}',
}  # fmt: skip


async def test_jobs_that_cannot_be_read_fail_alone(app: Skiplock, db: Verbs) -> None:
    runs: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        runs.append(n)

    bad = {name: db.enqueue(args=args, max_attempts=1) for name, args in BAD_ARGS.items()}
    bad |= {name: db.enqueue(args='{"n": 0}', options=options, max_attempts=1) for name, options in BAD_OPTIONS.items()}
    good = db.enqueue(args='{"n": 7}')
    sql = (
        "SELECT state, error FROM skiplock.jobs WHERE id = %s"  # not through the desk, which reads args and options too
    )
    async with running_worker(app) as worker:
        await settled(app.job(good))
        for name, job in bad.items():
            [(state, error)] = await worker.until(lambda job=job: [row for row in db.rows(sql, job) if row.error])
            assert state == "dead" and error, name
            if name in BAD_ARGS:
                assert "do not fit its signature" in error, name
    assert runs == [7]


ODD_OPTIONS = {
    "a backoff that is none": '{"backoff": 5}', "a backoff of nonsense": '{"backoff": {"base": -1}}',
    "a backoff with unknown words": '{"backoff": {"bass": 1}}',
}  # fmt: skip


async def test_a_backoff_that_makes_no_sense_is_passed_over(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t", backoff=AT_ONCE)
    async def work(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    jobs = {name: db.enqueue(options=options) for name, options in ODD_OPTIONS.items()}
    async with running_worker(app):
        for name, job in jobs.items():
            assert (await settled(app.job(job))).result == 2, name


async def test_enqueue_inside_a_running_loop_is_refused(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    for call in (work.enqueue, lambda: app.enqueue_many([work.job()]), lambda: app.get(1), lambda: app.job(1).cancel()):
        with pytest.raises(BlockingCallError, match="await"):
            call()
    assert db.count() == 0


# --- waking up --------------------------------------------------------------------------------------------------------


async def asleep(worker: RunningWorker) -> None:
    """Wait until it relies on the bell alone."""
    await worker.until(lambda: worker.worker._ear.works and worker.worker._sleeper.asleep)


@pytest.fixture
def bell_only(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Settings with which nothing but the bell can wake a worker within a test's patience."""
    monkeypatch.setattr("skiplock.work.bell.RECHECKS", ())
    return {"beat_every": 100.0, "lost_after": 300.0, "poll_every": 100.0}


async def test_an_enqueue_wakes_an_idle_worker_at_once(app: Skiplock, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    waits = []
    async with running_worker(app, **bell_only) as worker:
        for _ in range(5):
            await asleep(worker)
            record = await settled(await work.aenqueue())
            waits.append((record.started_at - record.enqueued_at).total_seconds())
    assert sorted(waits)[2] < 0.5, waits


async def test_a_rolled_back_transaction_wakes_nobody_and_a_committed_one_does(
    app: Skiplock, db: Verbs, dsn: str, bell_only: dict[str, float]
) -> None:
    done: list[str] = []

    @app.task(name="t")
    async def work(kind: str) -> None:
        done.append(kind)

    def sync(kind: SyncKind) -> None:
        for end in ("rollback", "commit"):
            with kind(dsn) as guest:
                work.using(connection=guest.connection).enqueue(f"{kind.__name__} {end}")
                getattr(guest, end)()

    async def async_(kind: AsyncKind) -> None:
        for end in ("rollback", "commit"):
            async with kind(dsn) as guest:
                await work.using(connection=guest.connection).aenqueue(f"{kind.__name__} {end}")
                await getattr(guest, end)()

    kinds: list[Callable[[], Any]] = [
        lambda k=kind: asyncio.to_thread(sync, k) for kind in SYNC_GUESTS if "psycopg2" not in kind.__name__
    ]
    kinds += [lambda k=kind: async_(k) for kind in ASYNC_GUESTS]
    async with running_worker(app, **bell_only) as worker:
        for n, enqueue in enumerate(kinds, 1):
            await asleep(worker)
            await enqueue()
            await worker.until(lambda n=n: len(done) == n, limit=10)
    assert [name for name in done if not name.endswith("commit")] == []
    assert len(set(done)) == db.count()


async def test_a_job_enqueued_by_sql_wakes_it_too(app: Skiplock, db: Verbs, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, **bell_only) as worker:
        await asleep(worker)
        await settled(app.job(db.enqueue()), limit=10)


async def test_a_queue_that_is_resumed_wakes_it(app: Skiplock, db: Verbs, bell_only: dict[str, float]) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    db.rows("SELECT skiplock.pause('default')")
    async with running_worker(app, **bell_only) as worker:
        await asleep(worker)
        job = await work.aenqueue()
        await asleep(worker)
        assert (await job.aget()).state == "ready"
        db.rows("SELECT skiplock.resume('default')")
        await settled(job, limit=10)


async def test_without_the_bell_polling_finds_it(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=0.1) as worker:
        await asleep(worker)
        db.rows("UPDATE skiplock.bells SET armed_at = NULL")
        job = db.enqueue()
        await settled(app.job(job), limit=10)


async def test_delayed_jobs_run_soon_after_they_are_due_and_never_before(app: Skiplock, db: Verbs) -> None:
    began: dict[int, float] = {}

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        began[ctx.id] = time.time()

    async with running_worker(app, queues={"default": 100}) as worker:
        jobs = await app.aenqueue_many([work.using(delay=n * 0.02).job() for n in range(100)])
        await worker.until(lambda: len(began) == 100)
        for job in jobs:
            await settled(job)
    late = [began[row.id] - row.run_at.timestamp() for row in db.rows("SELECT id, run_at FROM skiplock.jobs")]
    assert len(late) == 100
    assert min(late) >= 0
    assert sorted(late)[50] < 0.5, late
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE started_at < run_at") == 0


# --- the worker's own life --------------------------------------------------------------------------------------------


async def test_drain_ends_when_nothing_is_left(app: Skiplock, db: Verbs) -> None:
    runs: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        await asyncio.sleep(0.01)
        runs.append(n)

    await app.aenqueue_many([work.job(n) for n in range(60)])
    db.enqueue("unknown")
    async with asyncio.timeout(30):
        await Worker(app, WorkerSettings(queues={"default": 5}, drain=True)).run()
    assert sorted(runs) == list(range(60))
    assert db.count("jobs_running") == db.count("workers") == 0
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE state = 'completed'") == 60


async def test_stopping_lets_running_jobs_end_and_gives_the_others_back(app: Skiplock, db: Verbs) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="t", max_attempts=1)
    async def work() -> str:
        started.set()
        await go_on.wait()
        return "done"

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = [job.id for job in await app.aenqueue_many([work.job(), work.job()])]
        await asyncio.wait_for(started.wait(), 30)
        worker.worker.stop()
        await worker.until_heard("worker_stopping")
        go_on.set()
        await worker.run
    assert (db.state(first), db.job(first).result) == ("completed", "done")
    assert (db.state(second), db.job(second).attempt) == ("ready", 0)


@pytest.mark.parametrize("how", ["grace is over", "told twice"])
async def test_what_does_not_end_in_time_is_released_with_its_attempt(app: Skiplock, db: Verbs, how: str) -> None:
    started, broken_off = asyncio.Event(), asyncio.Event()

    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            broken_off.set()
            raise

    async with running_worker(app, grace=0.1 if how == "grace is over" else 100.0) as worker:
        job = await work.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        worker.worker.stop()
        if how == "told twice":
            worker.worker.stop()
        await asyncio.wait_for(asyncio.shield(worker.run), 30)
    assert broken_off.is_set()
    row = db.job(job.id)
    assert (row.state, row.attempt, row.losses) == ("ready", 0, 0)
    assert db.count("attempts") == 0


async def test_a_worker_declared_lost_starts_afresh(app: Skiplock, db: Verbs) -> None:
    attempts: list[int] = []
    started, broken_off = asyncio.Event(), asyncio.Event()

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                broken_off.set()
                raise

    async with running_worker(app, beat_every=0.1, lost_after=1.0) as worker:
        job = await work.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        old = worker.worker.id
        db.rows("SELECT skiplock.report_lost(%s, %s, 'a mistake')", old, [job.id])
        record = await settled(job)
        assert worker.worker.id != old
    assert broken_off.is_set()
    assert (record.state, record.attempt, attempts) == ("completed", 2, [1, 2])
    assert [kept.verdict for kept in record.attempts] == ["lost"]
    assert len(worker.heard("worker_lost")) == 1


async def test_a_cut_connection_is_noticed_and_forgotten(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work(n: int) -> int:
        return n

    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with running_worker(app) as worker:
        for n in range(3):
            assert (await settled(await work.aenqueue(n))).result == n
            db.rows(cut)
            await app.aclose()  # our own pool's connections are gone too
        assert (await settled(await work.aenqueue(9))).result == 9
        await worker.until(lambda: db.value("SELECT count(*) FROM skiplock.workers") == 1)
    assert worker.heard("worker_lost") == []


async def test_jobs_that_were_lost_with_their_worker_run_again(app: Skiplock, db: Verbs) -> None:
    async def work(ctx: JobContext) -> int:
        return ctx.job.losses

    jobs = {}
    for losses in (1, 2):
        name = f"lost {losses} times"
        app.task(name=name)(work)
        jobs[losses] = db.enqueue(name)
        for n in range(losses):
            worker = db.register()
            [claimed] = db.claim_suspects(worker, tasks=(name,)) if n else db.claim(worker, tasks=(name,))
            db.rows("SELECT skiplock.report_lost(%s, %s, 'killed')", worker, [claimed.id])
    async with running_worker(app, beat_every=0.1, lost_after=1.0):
        for losses, job in jobs.items():
            assert (await settled(app.job(job))).result == losses


async def test_two_workers_share_the_work(dsn: str, db: Verbs) -> None:
    runs: list[int] = []
    apps = [Skiplock(dsn), Skiplock(dsn)]
    for app in apps:

        @app.task(name="t")
        async def work(n: int) -> None:
            await asyncio.sleep(0.002)
            runs.append(n)

    task = apps[0].find_task("t")
    async with running_worker(apps[0], name="one"), running_worker(apps[1], name="two"):
        await apps[0].aenqueue_many([task.job(n) for n in range(400)])
        await until(lambda: len(runs) >= 400)
        await until(lambda: db.count("jobs_running") == 0)
    assert sorted(runs) == list(range(400))
    shares = db.rows("SELECT worker, count(*) FROM skiplock.jobs GROUP BY worker")
    assert len(shares) == 2, shares

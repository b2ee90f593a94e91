"""The walk of a job through a real worker: enqueued, claimed, run, settled."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import threading
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from skiplock import Backoff, Dead, JobContext, Skiplock
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled

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

"""Unique jobs through the Python API: what an enqueue answers, in transactions of its own and of the caller's; retried by hand.

Kinds: an answer that is not true after a rollback (CONC-09), different data dropped without a word (CONC-30), bulk inserts that
ignore uniqueness (CONC-33), many at once on a small pool (CONC-14), two who enqueue at the same moment (CONC-20).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from skiplock import Concurrency, JobContext, OptionError, Skiplock, Unique, UniqueConflictError
from skiplock.core.job import NewJob
from skiplock.task import Task
from tests.support.guests import ASYNC_GUESTS, SYNC_GUESTS, AsyncKind, SyncKind
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled, until


@pytest.fixture
def index(app: Skiplock) -> Task[..., Any]:
    @app.task(name="index", unique=True)
    async def index(document: int, deep: bool = False) -> None: ...

    return index


def test_one_and_many_are_told_what_became_of_each(app: Skiplock, index: Task[..., Any]) -> None:
    first = index.enqueue(1)
    assert first.is_new
    again = index.enqueue(document=1, deep=False)
    assert again == first and not again.is_new
    found = app.enqueue_many(
        [index.job(1), index.job(2), index.job(2), index.using(unique=False).job(1), index.job(1, deep=True)]
    )
    assert [job.is_new for job in found] == [False, True, False, True, True]
    assert found[0] == first and found[1] == found[2] and len({job.id for job in found}) == 4
    assert first.cancel() == "ready" and index.enqueue(1).is_new


async def test_in_a_coroutine(app: Skiplock, index: Task[..., Any]) -> None:
    first = await index.aenqueue(1)
    [again, other] = await app.aenqueue_many([index.job(1), index.job(2)])
    assert (first.is_new, again.is_new, other.is_new) == (True, False, True) and again == first
    await app.aclose()


def test_replace_and_reschedule(index: Task[..., Any]) -> None:
    later = index.using(unique=Unique(by=["document"], on_conflict="reschedule", longest="1h"), delay="10m", tags=["x"])
    job = later.enqueue(1)
    before = job.get()
    assert later.using(delay="20m", meta={"who": "ann"}).enqueue(1, deep=True) == job
    after = job.get()
    assert (after.args, after.meta, after.tags) == ({"document": 1, "deep": True}, {"who": "ann"}, ("x",))
    assert before.run_at and after.run_at and after.run_at > before.run_at and after.enqueued_at == before.enqueued_at


def test_raise_stores_nothing_of_the_batch(app: Skiplock, index: Task[..., Any], db: Verbs) -> None:
    job = index.enqueue(1)
    strict = index.using(unique=Unique(on_conflict="raise"))
    with pytest.raises(
        UniqueConflictError,
        match=rf"^job 2: its unique key is that of job {job.id}, which is there already; nothing is stored",
    ):
        app.enqueue_many([strict.job(2), strict.job(1)])
    assert db.count() == 1


def test_what_the_server_refuses_stores_nothing(app: Skiplock, index: Task[..., Any], db: Verbs) -> None:
    bad = NewJob("index", "{}", flow='{"unique": {"key": ""}}')
    with pytest.raises(OptionError, match="job 2: unique: a key has 1 to 400 characters"):
        app.enqueue_many([index.job(1), bad])
    assert db.count() == 0 and db.count("uniques") == 0


@pytest.mark.parametrize("kind", SYNC_GUESTS)
def test_in_the_callers_transaction(app: Skiplock, index: Task[..., Any], db: Verbs, dsn: str, kind: SyncKind) -> None:
    """Rolled back, key and job are gone, and what was replaced is as it was; committed, both are there."""
    replace = index.using(unique=Unique(by=["document"], on_conflict="replace"))
    old = replace.enqueue(9)
    with kind(dsn) as guest:
        mine = index.using(connection=guest.connection)
        assert mine.enqueue(1).is_new and not mine.enqueue(1).is_new
        assert replace.using(connection=guest.connection).enqueue(9, deep=True) == old
        guest.rollback()
    assert db.count() == db.count("uniques") == 1 and old.get().args == {"document": 9}
    with kind(dsn) as guest:
        [job, again, other] = app.enqueue_many(
            [index.job(1), index.job(1), replace.job(9, deep=True)], connection=guest.connection
        )
        assert (job.is_new, again.is_new, other.is_new) == (True, False, False)
        guest.commit()
    assert index.enqueue(1) == job == again and other == old and old.get().args == {"document": 9, "deep": True}


@pytest.mark.parametrize("kind", ASYNC_GUESTS)
async def test_in_the_callers_async_transaction(
    app: Skiplock, index: Task[..., Any], db: Verbs, dsn: str, kind: AsyncKind
) -> None:
    async with kind(dsn) as guest:
        assert (await index.using(connection=guest.connection).aenqueue(1)).is_new
        await guest.rollback()
    assert db.count() == db.count("uniques") == 0
    async with kind(dsn) as guest:
        found = await app.aenqueue_many([index.job(1), index.job(1)], connection=guest.connection)
        assert [job.is_new for job in found] == [True, False]
        await guest.commit()
    assert (await index.aenqueue(1)) == found[0]
    await app.aclose()


def test_many_at_once_on_a_small_pool(dsn: str, db: Verbs) -> None:
    """Exactly one of them is told that its job is new."""
    with Skiplock(dsn, pool_size=3) as app, ThreadPoolExecutor(40) as threads:
        task = app.task(name="t", unique=True)(lambda value: None)
        found = list(threads.map(lambda n: task.enqueue(n % 4), range(200)))
    assert sum(job.is_new for job in found) == 4 == len({job.id for job in found})


async def test_its_key_is_free_when_the_handler_has_ended(app: Skiplock, db: Verbs) -> None:
    """Not before: a handler that enqueues itself is told of itself; with another key it goes on."""
    told: list[Any] = []

    @app.task(name="chain", unique=True)
    async def chain(ctx: JobContext, n: int) -> None:
        same, following = await app.aenqueue_many([chain.job(n), chain.job(n + 1)]) if n < 3 else (None, None)
        told.append((ctx.id, same and same.id, following and following.is_new))

    async with running_worker(app):
        first = await chain.aenqueue(0)
        await until(lambda: len(told) == 4)
        assert all(same in (None, own) and new in (None, True) for own, same, new in told)
        await settled(first)
        await until(lambda: db.count("uniques") == 0)
        assert (await chain.using(delay=60).aenqueue(0)).is_new
    await app.aclose()


async def test_with_a_limit_and_a_delay(app: Skiplock, db: Verbs) -> None:
    """All three rules of one job: it waits for its time, then for its slot, and is one all the while."""
    gate = asyncio.Event()

    @app.task(name="busy", unique=Unique(by=["n"]), limits=[Concurrency("one", 1)])
    async def busy(n: int) -> None:
        await gate.wait()

    async with running_worker(app):
        first = await busy.aenqueue(1)
        await until(lambda: db.state(first.id) == "running")
        second = await busy.using(delay=0.05).aenqueue(2)
        assert (await busy.aenqueue(2)) == second
        await until(lambda: db.state(second.id) == "blocked")
        assert (await busy.aenqueue(2)) == second and (await busy.aenqueue(1)) == first
        gate.set()
        await settled(second)
    assert db.count("slots") == 0 and db.count("uniques") == 0
    await app.aclose()


def test_retried_while_another_has_its_key(index: Task[..., Any]) -> None:
    job = index.enqueue(1)
    job.cancel()
    other = index.enqueue(1)
    with pytest.raises(
        UniqueConflictError, match=f"job {job.id}: its unique key is held by job {other.id}; cancel or wait"
    ):
        job.retry()
    other.delete()
    assert job.retry() == "cancelled" and index.enqueue(1) == job

"""A task called plainly: the function, here and now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skiplock import Backoff, JobContext, Resource, Skiplock
from tests.support.handlers import Log, async_resource, sync_resource
from tests.support.verbs import open_verbs

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- plain calls ------------------------------------------------------------------------------------------------------


def test_a_plain_call_runs_the_function_here_and_now() -> None:
    log: Log = []
    app = Skiplock("postgresql://nobody@127.0.0.1:1/none")

    @app.task(name="a")
    def add(a: int, b: int = 2) -> int:
        return a + b

    @app.task(name="b")
    async def add_later(a: int, b: int = 2) -> int:
        return a + b

    @app.task(name="c")
    def with_everything(ctx: JobContext, n: int, it: str = Resource(sync_resource(log))) -> tuple[Any, ...]:
        log.append("run")
        return ctx.id, ctx.attempt, ctx.cancelled, ctx.meta, n, it

    @app.task(name="d")
    async def with_everything_later(
        ctx: JobContext, n: int, it: str = Resource(async_resource(log))
    ) -> tuple[Any, ...]:
        log.append("run")
        await ctx.complete(connection=None)
        return ctx.id, await ctx.once("x", lambda: n), it

    assert (add(1), add(1, b=5), asyncio.run(add_later(1))) == (3, 6, 3)
    assert with_everything(4) == (0, 1, False, None, 4, "sync")
    assert asyncio.run(with_everything_later(n=5)) == (0, 5, "async")
    assert log == ["open sync", "run", "close sync", "open async", "run", "close async"]
    assert with_everything(4, it="mine") == (0, 1, False, None, 4, "mine"), "a resource may be given"


def test_errors_of_a_plain_call_are_the_function_s_own() -> None:
    app = Skiplock("postgresql://nobody@127.0.0.1:1/none")
    log: Log = []

    @app.task(name="t")
    def work(it: str = Resource(sync_resource(log))) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()
    assert log == ["open sync", "sync told of KeyError", "close sync"]


def test_the_database_of_a_plain_call_is_none_at_all(dsn: str) -> None:
    with open_verbs(dsn) as db:
        app = Skiplock(dsn)

        @app.task(name="t")
        def work() -> int:
            return 1

        before = db.count()
        assert work() == 1
        assert db.count() == before

"""Where a handler is that does not heed its interruption, or that blocks the event loop: the right line, and no other's.

Kinds: a thread that a time limit cannot stop (LIFE-25), handlers that swallow cancellation (LIFE-55), a work loop that hangs while the
heart beats on (LIFE-58). Look a thread's stack up by the handler's name instead of its identity, or use `Task.get_stack`,
to see these fail.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

from skiplock import JobContext, Skiplock
from tests.support.handlers import Hold
from tests.support.workers import running_worker, settled


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiplock.work.run.STUCK_AFTER", 0.1)
    monkeypatch.setattr("skiplock.work.vigil.BLOCKED_AFTER", 1.5)


def lines(stack: str) -> list[str]:
    """The names of the functions in it."""
    return [line.rpartition(", in ")[2].strip() for line in stack.splitlines() if line.startswith("  File ")]


async def innermost(hold: Hold) -> None:
    while not hold.free.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def middle(hold: Hold) -> None:
    await innermost(hold)


async def test_nested_coroutines_down_to_the_innermost(app: Skiplock, hold: Hold) -> None:
    @app.task(name="t", timeout=0.05, max_attempts=1)
    async def handler() -> None:
        await middle(hold)

    async with running_worker(app) as worker:
        await handler.aenqueue()
        stuck = await worker.until_heard("handler_stuck")
        hold.free.set()
    assert lines(stuck["stack"]) == ["handler", "middle", "innermost", "sleep"]
    assert "await middle(hold)" in stuck["stack"] and stuck["seconds"] > 0.1


class Wrapped:
    """An awaitable of someone's own, with a coroutine inside."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold

    def __await__(self) -> Generator[Any, Any, None]:
        return middle(self.hold).__await__()


async def some(hold: Hold) -> AsyncIterator[int]:
    await innermost(hold)
    yield 1


async def gathered(hold: Hold) -> None:
    await asyncio.gather(asyncio.sleep(0), middle(hold))


@pytest.mark.parametrize("way", ["awaitable", "generator", "task", "gather"])
async def test_through_whatever_stands_between(app: Skiplock, hold: Hold, way: str) -> None:
    """An object with `__await__`, an async generator, a task of its own, several gathered."""

    @app.task(name="t", timeout=0.05, max_attempts=1)
    async def handler() -> None:
        while not hold.free.is_set():
            try:
                if way == "awaitable":
                    await Wrapped(hold)
                elif way == "generator":
                    async for _ in some(hold):
                        pass
                elif way == "task":
                    await asyncio.create_task(middle(hold))
                else:
                    await gathered(hold)
            except asyncio.CancelledError:
                continue

    async with running_worker(app) as worker:
        await handler.aenqueue()
        stuck = await worker.until_heard("handler_stuck")
        hold.free.set()
    assert lines(stuck["stack"])[0] == "handler"
    assert "innermost" in lines(stuck["stack"])


async def test_two_of_the_same_function_each_tell_their_own_place(app: Skiplock, hold: Hold) -> None:
    """One waits in `first_place`, the other in `second_place`: threads of one pool, with the same handler."""

    def first_place() -> None:
        hold.in_thread()

    def second_place() -> None:
        hold.in_thread()

    @app.task(name="t", timeout=0.3, max_attempts=1)
    def handler(place: int) -> None:
        (first_place if place == 1 else second_place)()

    async with running_worker(app, queues={"default": 2}) as worker:
        jobs = {(await handler.aenqueue(place)).id: place for place in (1, 2)}
        await worker.until(lambda: len(worker.heard("handler_stuck")) == 2)
        hold.free.set()
    told = {jobs[event["job"].id]: lines(event["stack"]) for event in worker.heard("handler_stuck")}
    assert told[1][:3] == ["handler", "first_place", "in_thread"]
    assert told[2][:3] == ["handler", "second_place", "in_thread"]


def measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the application's."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def test_a_decorated_handler_in_a_call_into_c(app: Skiplock) -> None:
    """The last line of Python is the one that calls it."""
    lock = threading.Lock()
    lock.acquire()

    @app.task(name="t", timeout=0.1, max_attempts=1)
    @measured
    def handler() -> None:
        lock.acquire(timeout=60)

    async with running_worker(app) as worker:
        await handler.aenqueue()
        stuck = await worker.until_heard("handler_stuck")
        lock.release()
    assert lines(stuck["stack"]) == ["wrapper", "handler"]
    assert stuck["stack"].rstrip().endswith("lock.acquire(timeout=60)")


async def test_a_middleware_that_does_not_let_go(app: Skiplock, hold: Hold) -> None:
    async def patient(ctx: JobContext, inner: Callable[[], Awaitable[Any]]) -> Any:
        await innermost(hold)
        return await inner()

    @app.task(name="t", timeout=0.05, max_attempts=1, middleware=[patient])
    async def handler() -> None: ...

    async with running_worker(app) as worker:
        await handler.aenqueue()
        stuck = await worker.until_heard("handler_stuck")
        hold.free.set()
    assert lines(stuck["stack"]) == ["patient", "innermost", "sleep"]


async def test_a_deep_stack_shows_both_ends(app: Skiplock, hold: Hold) -> None:
    async def dig(depth: int) -> None:
        await (dig(depth - 1) if depth else innermost(hold))

    @app.task(name="t", timeout=0.05, max_attempts=1)
    async def handler() -> None:
        await dig(200)

    async with running_worker(app) as worker:
        await handler.aenqueue()
        stuck = await worker.until_heard("handler_stuck")
        hold.free.set()
    found = lines(stuck["stack"])
    assert len(found) < 40 and " more" in stuck["stack"]
    assert (found[0], found[-2:]) == ("handler", ["innermost", "sleep"])


async def test_one_that_outlives_the_shutdown_is_told(
    app: Skiplock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is given back, and the last words of the worker say where it was. Remove the report in `Runner.abandon_all`."""
    monkeypatch.setattr("skiplock.work.run.STUCK_AFTER", 60.0)

    @app.task(name="t")
    async def handler() -> None:
        hold.began.set()
        await middle(hold)

    async with running_worker(app, grace=0.1) as worker:
        await handler.aenqueue()
        await worker.until(hold.began.is_set)
    hold.free.set()
    [stuck] = worker.heard("handler_stuck")
    assert stuck["why"] == "shutdown" and "innermost" in lines(stuck["stack"])


async def test_a_handler_that_blocks_the_loop_is_told_while_it_does(app: Skiplock) -> None:
    """By the heart's thread, with the job and its line; once, and when it is over too. It cannot be timed out meanwhile."""

    def deep_inside() -> None:
        time.sleep(3)

    @app.task(name="blocker", timeout=0.1, max_attempts=1)
    async def handler() -> None:
        deep_inside()

    heard: list[tuple[float, dict[str, Any]]] = []
    app.events.subscribe(lambda event: heard.append((time.monotonic(), event.fields)), "loop_blocked")
    async with running_worker(app, beat_every=0.2, lost_after=1.0) as worker:
        app.events.subscribe(worker.events.append, "loop_unblocked")
        job = await handler.aenqueue()
        record = await settled(job)
        done = time.monotonic()
        over = await worker.until_heard("loop_unblocked")
    [(at, blocked)] = heard
    assert at < done - 0.5
    assert (blocked["job"].id, blocked["task"]) == (job.id, "blocker")
    assert lines(blocked["stack"])[-2:] == ["handler", "deep_inside"]
    assert blocked["seconds"] >= 1.5 and over["seconds"] >= 2.5
    assert record.state == "completed"


async def test_a_busy_loop_is_not_a_blocked_one(app: Skiplock) -> None:
    @app.task(name="t")
    async def handler() -> None:
        for _ in range(30):
            time.sleep(0.1)
            await asyncio.sleep(0)

    heard: list[Any] = []
    app.events.subscribe(heard.append, "loop_blocked")
    async with running_worker(app, beat_every=0.2, lost_after=1.0):
        assert (await settled(await handler.aenqueue())).state == "completed"
    assert heard == []

"""Resources: opened and closed around attempts, or kept by the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from skiplock import Backoff, Resource, Skiplock
from tests.support.handlers import Log, async_resource, both_kinds, sync_resource
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- resources --------------------------------------------------------------------------------------------------------


class ByClass:
    def __init__(self, log: Log) -> None:
        self.log = log

    def __enter__(self) -> str:
        self.log.append("open class")
        return "class"

    def __exit__(self, kind: Any, error: Any, tb: Any) -> None:
        self.log.append("close class" if error is None else f"class told of {kind.__name__}")


FACTORIES: dict[str, Callable[[Log], Callable[[], Any]]] = {
    "sync": sync_resource,
    "async": async_resource,
    "a context manager": lambda log: contextmanager(sync_resource(log)),
    "an async context manager": lambda log: asynccontextmanager(async_resource(log)),
    "a class": lambda log: lambda: ByClass(log),
}


def task_with(app: Skiplock, kind: str, body: Callable[[str], Any], resource: Any, **settings: Any) -> Any:
    """A task of that kind whose body gets the resource."""

    async def on_loop(it: str = resource) -> Any:
        return body(it)

    def in_thread(it: str = resource) -> Any:
        return body(it)

    return app.task(name="t", **settings)(on_loop if kind == "async" else in_thread)


@both_kinds
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
async def test_a_resource_is_opened_and_closed_around_each_attempt(
    app: Skiplock, kind: str, factory: Callable[[Log], Any]
) -> None:
    log: Log = []

    def body(it: str) -> str:
        log.append(f"run with {it}")
        if log.count(f"run with {it}") == 1:
            raise KeyError("first")
        return it

    task = task_with(app, kind, body, Resource(factory(log)), backoff=AT_ONCE)
    async with running_worker(app):
        record = await settled(await task.aenqueue())
    name = record.result
    told = [f"{name} told of KeyError"] if name == "class" else [f"{name} told of KeyError", f"close {name}"]
    assert log == [f"open {name}", f"run with {name}", *told, f"open {name}", f"run with {name}", f"close {name}"]


@both_kinds
async def test_a_resource_of_the_worker_is_opened_once_and_closed_at_its_end(app: Skiplock, kind: str) -> None:
    log: Log = []
    task = task_with(app, kind, lambda it: it, Resource(async_resource(log), scope="worker"))
    async with running_worker(app):
        for job in [await task.aenqueue() for _ in range(5)]:
            assert (await settled(job)).result == "async"
        assert log == ["open async"]
    assert log == ["open async", "close async"]


async def test_several_resources_are_closed_in_reverse_order(app: Skiplock) -> None:
    log: Log = []

    @app.task(name="t")
    async def work(
        n: int, a: str = Resource(sync_resource(log, "a")), b: str = Resource(async_resource(log, "b"))
    ) -> list[Any]:
        return [n, a, b]

    async with running_worker(app):
        assert (await settled(await work.aenqueue(n=1))).result == [1, "a", "b"]
    assert log == ["open a", "open b", "close b", "close a"]


@both_kinds
async def test_a_sync_resource_of_a_def_task_lives_in_its_thread(app: Skiplock, kind: str) -> None:
    threads: list[threading.Thread] = []

    def resource() -> Iterator[str]:
        threads.append(threading.current_thread())
        yield ""
        threads.append(threading.current_thread())

    task = task_with(app, kind, lambda it: threads.append(threading.current_thread()), Resource(resource))
    async with running_worker(app):
        await settled(await task.aenqueue())
    assert len(set(threads)) == 1 and len(threads) == 3
    assert (threads[0] is threading.main_thread()) == (kind == "async")


def fails_to_open() -> Iterator[str]:
    raise ConnectionError("cannot open")
    yield ""


def fails_to_close() -> Iterator[str]:
    yield ""
    raise ConnectionError("cannot close")


def yields_nothing() -> Iterator[str]:
    return
    yield ""


@both_kinds
@pytest.mark.parametrize(
    "factory", [fails_to_open, fails_to_close, yields_nothing, lambda: 7], ids=lambda f: f.__name__
)
async def test_a_resource_that_fails_fails_the_attempt(app: Skiplock, kind: str, factory: Callable[[], Any]) -> None:
    task = task_with(app, kind, lambda it: it, Resource(factory), max_attempts=1)

    @app.task(name="after")
    async def after() -> None: ...

    async with running_worker(app):
        record = await settled(await task.aenqueue())
        assert (record.state, bool(record.error)) == ("dead", True)
        assert (await settled(await after.aenqueue())).state == "completed"


@both_kinds
async def test_a_resource_that_swallows_the_error_makes_the_attempt_a_success(app: Skiplock, kind: str) -> None:
    @contextmanager
    def lenient() -> Iterator[str]:
        try:
            yield ""
        except ValueError:
            pass

    def body(it: str) -> None:
        raise ValueError("not so bad")

    task = task_with(app, kind, body, Resource(lenient), max_attempts=1)
    async with running_worker(app):
        record = await settled(await task.aenqueue())
    assert (record.state, record.error) == ("completed", None)


async def test_resources_are_closed_when_the_attempt_is_broken_off(app: Skiplock) -> None:
    log: Log = []

    @app.task(name="t", timeout=0.1, max_attempts=1)
    async def work(a: str = Resource(async_resource(log))) -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        await settled(await work.aenqueue())
    assert log == ["open async", "async told of CancelledError", "close async"]


@both_kinds
async def test_a_BaseException_passes_through_resources(app: Skiplock, kind: str) -> None:
    log: Log = []

    def body(it: str) -> None:
        raise GeneratorExit

    task = task_with(app, kind, body, Resource(async_resource(log)), max_attempts=1)
    async with running_worker(app):
        record = await settled(await task.aenqueue())
    assert record.state == "dead"
    assert (log[0], log[-1]) == ("open async", "close async")

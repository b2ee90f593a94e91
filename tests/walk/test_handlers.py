"""What handlers may do, and what becomes of their jobs; what is around a handler: resources, middleware, hooks."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from skiplock import Backoff, Dead, JobRecord, Retry, Skiplock
from tests.support import clone, drop
from tests.support.handlers import both_kinds
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- how a handler ends: a table, run once by one worker --------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class TwoArguments(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one} {two}")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class MyBase(BaseException):
    pass


def circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def raising(make: Callable[[], BaseException]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def on_loop() -> None:
        raise make()

    def in_thread() -> None:
        raise make()

    return on_loop, in_thread


# What is raised, and what the job's error says of it; whatever it is, that job is dead and nothing else happens.
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an exception": (lambda: ValueError("boom"), "ValueError: boom"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "SystemExit": (lambda: SystemExit(0), "SystemExit"),
    "SystemExit 1": (lambda: SystemExit(1), "SystemExit: 1"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "StopIteration": (lambda: StopIteration(3), "StopIteration"),
    "StopAsyncIteration": (StopAsyncIteration, "StopAsyncIteration"),
    "a BaseException of its own": (lambda: MyBase("odd"), "MyBase: odd"),
    "a group": (lambda: ExceptionGroup("many", [ValueError("x")] * 20), "ExceptionGroup: many"),
    "a group with SystemExit": (lambda: BaseExceptionGroup("many", [SystemExit(1)]), "BaseExceptionGroup: many"),
    "TimeoutError of its own": (lambda: TimeoutError("mine"), "TimeoutError: mine"),
    "no message at all": (ValueError, "ValueError"),
    "a failing __str__": (Unprintable, "Unprintable"),
    "one that cannot be pickled": (lambda: TwoArguments(1, 2), "TwoArguments: 1 2"),
    "one that holds a lock": (lambda: ValueError(threading.Lock()), "ValueError: <unlocked"),
    "a circle of causes": (circle, "ValueError: one"),
    "NUL in its text": (lambda: ValueError("a\0b"), r"ValueError: a\x00b"),
    "a lone surrogate in its text": (lambda: ValueError("a\ud800b"), r"ValueError: a\ud800b"),
    "a file name that is no text": (
        lambda: OSError(2, "gone", b"\xff".decode(errors="surrogateescape")),
        "FileNotFoundError: ",
    ),
    "ten million characters": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "Dead": (lambda: Dead("enough"), "Dead: enough"),
    "Dead without a word": (Dead, "Dead: (no reason given)"),
    "Retry with no attempt left": (lambda: Retry("again", delay=0), "Retry: again"),
}


@dataclasses.dataclass
class Point:
    x: int
    when: dt.date


def deep() -> Any:
    value: Any = []
    for _ in range(5000):
        value = [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


RESULTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "nothing": (lambda: None, None),
    "a number": (lambda: 3, 3),
    "false": (lambda: False, False),
    "text": (lambda: '☃ 🦀 "quoted" \\', '☃ 🦀 "quoted" \\'),
    "a tree": (lambda: {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    "a tuple": (lambda: (1, 2), [1, 2]),
    "times and numbers": (
        lambda: [dt.date(2026, 1, 2), uuid.UUID(int=1), Decimal("1.10")],
        ["2026-01-02", str(uuid.UUID(int=1)), "1.10"],
    ),
    "a dataclass": (lambda: Point(1, dt.date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}),
}
UNSTORABLE: dict[str, Callable[[], Any]] = {
    "an object": object,
    "NaN": lambda: math.nan,
    "infinity within": lambda: {"a": [1, math.inf]},
    "Decimal NaN": lambda: Decimal("NaN"),
    "NUL in text": lambda: "a\0b",
    "NUL in a key": lambda: {"\0": 1},
    "a lone surrogate": lambda: "a\ud800",
    "too large": lambda: "x" * 2_000_000,
    "too deep": deep,
    "a list that holds itself": endless,
    "a coroutine's function": lambda: open,
}


def returning(make: Callable[[], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def on_loop() -> Any:
        return make()

    def in_thread() -> Any:
        return make()

    return on_loop, in_thread


Records = dict[str, JobRecord]


@pytest.fixture(scope="module")
def records(template_server: str) -> Iterator[Records]:
    """Every handler of the tables, run once as `async def` and once as `def`, and one job after all of them."""
    dsn = clone(template_server)
    app = Skiplock(dsn)
    tables: list[tuple[str, Any, Callable[[Any], Any]]] = [
        ("raises", {name: make for name, (make, _) in RAISED.items()}, raising),
        ("returns", {name: make for name, (make, _) in RESULTS.items()} | UNSTORABLE, returning),
    ]
    for table, makes, build in tables:
        for name, make in makes.items():
            for kind, function in zip(("async", "def"), build(make), strict=True):
                app.task(name=f"{table} {name} {kind}", max_attempts=1)(function)

    @app.task(name="the last")
    async def last() -> str:
        return "alive"

    async def run_all() -> Records:
        async with running_worker(app, queues={"default": 20}):
            jobs = {name: await task.aenqueue() for name, task in app.tasks.items() if name != "the last"}
            found = {name: await settled(job) for name, job in jobs.items()}
            found["the last"] = await settled(await last.aenqueue())
        return found

    yield asyncio.run(run_all())
    drop(template_server, dsn)


@both_kinds
@pytest.mark.parametrize("name", RAISED)
def test_whatever_a_handler_raises_only_its_job_fails(records: Records, name: str, kind: str) -> None:
    record = records[f"raises {name} {kind}"]
    assert record.state == "dead"
    assert record.error is not None and RAISED[name][1] in record.error
    [attempt] = record.attempts
    assert attempt.message is not None and len(attempt.message) < 10_000
    assert attempt.traceback is None or len(attempt.traceback) < 40_000


@both_kinds
@pytest.mark.parametrize("name", RESULTS)
def test_results(records: Records, name: str, kind: str) -> None:
    record = records[f"returns {name} {kind}"]
    assert (record.state, record.result, record.error) == ("completed", RESULTS[name][1], None)


@both_kinds
@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_result_that_cannot_be_stored_ends_the_job_dead_with_the_reason(
    records: Records, name: str, kind: str
) -> None:
    record = records[f"returns {name} {kind}"]
    assert (record.state, record.result) == ("dead", None)
    assert (record.error or "").startswith("ResultNotStorable: the handler succeeded, but its result cannot be stored")


def test_the_worker_has_outlived_all_of_them(records: Records) -> None:
    assert (records["the last"].state, records["the last"].result) == ("completed", "alive")
    assert len({record.worker for record in records.values()}) == 1

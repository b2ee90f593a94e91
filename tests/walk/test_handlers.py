"""What handlers may do, and what becomes of their jobs; what is around a handler: resources, middleware, hooks."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import math
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from typing import Any

import pytest

from skiplock import Backoff, Cancel, Dead, JobContext, JobHandle, JobRecord, Resource, Retry, Skiplock, Snooze
from skiplock.core.events import Event
from tests.support import clone, drop
from tests.support.verbs import Verbs, open_verbs
from tests.support.workers import RunningWorker, running_worker, settled

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


both_kinds = pytest.mark.parametrize("kind", ["async", "def"])


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


# --- retries ----------------------------------------------------------------------------------------------------------


def wait_of(record: JobRecord) -> float:
    assert record.run_at is not None
    return (record.run_at - record.attempts[-1].ended_at).total_seconds()


# raised, settings of the task, settings of the job → (state, seconds to wait)
RETRIES: dict[str, tuple[Callable[[], BaseException], dict[str, Any], dict[str, Any], tuple[str, float | None]]] = {
    "the task's backoff": (ValueError, {"backoff": STEADY}, {}, ("retryable", 100)),
    "no retries": (ValueError, {"backoff": None}, {}, ("dead", None)),
    "a rule for its class": (KeyError, {"backoff": None, "retry_on": {KeyError: STEADY}}, {}, ("retryable", 100)),
    "a rule for its base": (KeyError, {"backoff": None, "retry_on": {LookupError: STEADY}}, {}, ("retryable", 100)),
    "a rule against it": (KeyError, {"backoff": STEADY, "retry_on": {LookupError: None}}, {}, ("dead", None)),
    "a rule for another": (KeyError, {"backoff": STEADY, "retry_on": {OSError: None}}, {}, ("retryable", 100)),
    "the job's own backoff": (
        ValueError,
        {"backoff": None},
        {"backoff": Backoff(base=500, jitter=False)},
        ("retryable", 500),
    ),
    "but the rule for a class comes first": (
        KeyError,
        {"retry_on": {KeyError: None}},
        {"backoff": STEADY},
        ("dead", None),
    ),
    "Retry": (Retry, {"backoff": STEADY}, {}, ("retryable", 100)),
    "Retry with a delay": (lambda: Retry(delay="5m"), {"backoff": None}, {}, ("retryable", 300)),
    "Retry without a delay where none is allowed": (Retry, {"backoff": None}, {}, ("dead", None)),
}


@pytest.mark.parametrize("case", RETRIES.values(), ids=RETRIES)
async def test_when_a_failed_job_runs_again(app: Skiplock, case: tuple[Any, ...]) -> None:
    make, settings, options, (state, wait) = case

    @app.task(name="t", **settings)
    async def work() -> None:
        raise make()

    async with running_worker(app):
        record = await settled(await work.using(**options).aenqueue(), state=state)
    assert record.attempt == 1
    assert wait is None or wait_of(record) == pytest.approx(wait, abs=1)


async def test_a_rule_that_misbehaves_does_not_lose_the_job(app: Skiplock) -> None:
    class Broken(Backoff):
        def delay(self, attempt: int, draw: Any = None) -> float:
            raise ZeroDivisionError

    @app.task(name="t", backoff=Broken())
    async def work() -> None:
        raise ValueError("boom")

    async with running_worker(app):
        record = await settled(await work.aenqueue(), state="retryable")
    assert record.error == "ValueError: boom"


async def test_snooze_spends_no_attempt_and_is_no_failure(app: Skiplock) -> None:
    seen: list[int] = []

    @app.task(name="t", max_attempts=1)
    async def work(ctx: JobContext) -> None:
        seen.append(ctx.attempt)
        if len(seen) < 4:
            raise Snooze(0)

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (seen, record.state, record.attempts, record.error) == ([1, 1, 1, 1], "completed", (), None)


async def test_cancel_from_within(app: Skiplock) -> None:
    @app.task(name="t")
    def work() -> None:
        raise Cancel("not needed any more")

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.error) == ("cancelled", "Cancel: not needed any more")


# --- timeouts ---------------------------------------------------------------------------------------------------------


class Hold:
    """A handler's body that a test lets go: for a thread or the loop."""

    def __init__(self) -> None:
        self.began, self.free = threading.Event(), threading.Event()

    def in_thread(self) -> None:
        self.began.set()
        assert self.free.wait(60)

    async def on_loop(self) -> None:
        self.began.set()
        while not self.free.is_set():
            await asyncio.sleep(0.005)


@pytest.fixture
def hold() -> Iterator[Hold]:
    found = Hold()
    yield found
    found.free.set()


async def test_an_async_handler_is_cancelled_at_its_timeout(app: Skiplock) -> None:
    cleaned = asyncio.Event()

    @app.task(name="t", timeout=0.1, max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.error) == ("dead", "TimeoutError: ran longer than its timeout of 0.1 s")
    assert cleaned.is_set()


async def test_a_timeout_is_a_failure_with_its_backoff(app: Skiplock) -> None:
    @app.task(name="t", backoff=STEADY)
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        record = await settled(await work.using(timeout=0.1).aenqueue(), state="retryable")
    assert wait_of(record) == pytest.approx(100, abs=1)
    assert record.attempts[0].error_class == "TimeoutError"


async def test_a_rule_for_timeouts(app: Skiplock) -> None:
    @app.task(name="t", timeout=0.1, retry_on={TimeoutError: None})
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).state == "dead"


async def test_a_thread_is_settled_at_its_timeout_and_keeps_its_slot_until_it_ends(app: Skiplock, hold: Hold) -> None:
    told: list[bool] = []

    @app.task(name="stuck", timeout=0.1, max_attempts=1)
    def stuck(ctx: JobContext) -> None:
        hold.in_thread()
        told.append(ctx.cancelled)

    @app.task(name="next")
    def next_one() -> None: ...

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = await stuck.aenqueue(), await next_one.aenqueue()
        record = await settled(first)
        assert (record.state, record.attempts[0].error_class) == ("dead", "TimeoutError")
        event = await worker.until_heard("handler_stuck")
        assert (event["job"].id, event["why"]) == (first.id, "timeout")
        assert "in_thread" in event["stack"]
        assert worker.worker._lines.running == 1
        assert (await second.aget()).state in ("ready", "running") and not worker.heard("handler_unstuck")
        assert [event["job"].id for event in worker.heard("attempt_started")] == [first.id]
        hold.free.set()
        assert (await settled(second)).state == "completed"
        assert (await worker.until_heard("handler_unstuck"))["job"].id == first.id
        assert (await first.aget()).state == "dead", "what the thread returned changes nothing"
    assert told == [True]


async def test_a_thread_that_never_ends_does_not_hold_up_the_worker_s_end(app: Skiplock, db: Verbs, hold: Hold) -> None:
    @app.task(name="t", max_attempts=1)
    def work() -> None:
        hold.in_thread()

    async with running_worker(app, grace=0.1) as worker:
        job = await work.aenqueue()
        await worker.until(hold.began.is_set)
    row = db.job(job.id)
    assert (row.state, row.attempt) == ("ready", 0)


async def test_a_handler_that_swallows_its_cancellation(
    app: Skiplock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skiplock.work.run.STUCK_AFTER", 0.1)

    @app.task(name="stubborn", timeout=0.1, max_attempts=1)
    async def stubborn() -> str:
        while not hold.free.is_set():
            try:
                await hold.on_loop()
            except asyncio.CancelledError:
                continue
        return "late"

    @app.task(name="next")
    async def next_one() -> None: ...

    async with running_worker(app, queues={"default": 1}) as worker:
        first, second = await stubborn.aenqueue(), await next_one.aenqueue()
        record = await settled(first)
        assert (record.state, record.attempts[0].error_class) == ("dead", "TimeoutError")
        assert (await worker.until_heard("handler_stuck"))["why"] == "timeout"
        assert not [event for event in worker.heard("attempt_started") if event["job"].id == second.id]
        hold.free.set()
        assert (await settled(second)).state == "completed"
        assert (await worker.until_heard("handler_unstuck"))["job"].id == first.id
        assert ((await first.aget()).state, worker.heard("settle_refused")) == ("dead", [])


async def test_a_handler_that_swallows_it_and_ends_well_is_completed(app: Skiplock) -> None:
    @app.task(name="t", timeout=0.05, max_attempts=1)
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved what there was"
        return "never"

    async with running_worker(app):
        record = await settled(await work.aenqueue())
    assert (record.state, record.result) == ("completed", "saved what there was")


async def test_a_blocked_loop_is_no_lost_worker(app: Skiplock, db: Verbs) -> None:
    """The heart beats in a thread of its own."""

    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        assert db.value("SELECT pg_sleep(1.5)") is not None  # blocking, in C, with the GIL free

    async with running_worker(app, beat_every=0.1, lost_after=0.5) as worker:
        job = await work.aenqueue()
        assert (await settled(job)).state == "completed"
        assert db.rows("SELECT * FROM skiplock.rescue()") == []
    assert worker.heard("worker_lost") == []


# --- cancel -----------------------------------------------------------------------------------------------------------


async def started(worker: RunningWorker, job: JobHandle) -> None:
    await worker.until(lambda: job.id in [event["job"].id for event in worker.heard("attempt_started")])


async def test_cancelling_a_running_job(app: Skiplock) -> None:
    cleaned = asyncio.Event()

    @app.task(name="t")
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async with running_worker(app, beat_every=100.0, lost_after=300.0) as worker:  # heard by NOTIFY, not by the beat
        await worker.until(lambda: worker.worker._ear.works)
        job = await work.aenqueue()
        await started(worker, job)
        assert await job.acancel() == "running"
        record = await settled(job, limit=10)
    assert (record.state, record.error) == ("cancelled", "Cancel: cancelled while running")
    assert cleaned.is_set()


async def test_a_cancel_is_heard_at_the_next_beat_when_notifications_fail(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None:
        await asyncio.sleep(60)

    async with running_worker(app, beat_every=0.1, lost_after=1.0) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        db.rows("INSERT INTO skiplock.cancellations VALUES (%s, %s, now())", job.id, worker.worker.id)
        assert (await settled(job, limit=10)).state == "cancelled"


async def test_a_thread_hears_of_its_cancel_by_its_context(app: Skiplock) -> None:
    ended = threading.Event()

    @app.task(name="t")
    def work(ctx: JobContext) -> str:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        ended.set()
        return "stopped"

    async with running_worker(app) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        await job.acancel()
        record = await settled(job)
        await worker.until(ended.is_set)
        await worker.until(lambda: worker.worker._lines.running == 0)
    assert record.state == "cancelled"


async def test_a_cancelled_job_that_fails_is_not_retried(app: Skiplock) -> None:
    @app.task(name="t", backoff=AT_ONCE)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("while cleaning up") from None

    async with running_worker(app) as worker:
        job = await work.aenqueue()
        await started(worker, job)
        await job.acancel()
        record = await settled(job)
    assert (record.state, record.attempt) == ("cancelled", 1)


async def test_a_job_claimed_ahead_and_cancelled_never_starts(
    app: Skiplock, db: Verbs, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skiplock.worker.STALLED_AFTER", 60.0)  # what is stalled would be given back, and so cancelled
    ran: list[int] = []

    @app.task(name="t")
    async def work(n: int) -> None:
        ran.append(n)
        if n == 0:
            await hold.on_loop()

    async with running_worker(app, queues={"default": 1}) as worker:
        worker.worker._lines.by_name["default"].mean = 1e-5  # as after many fast jobs: it claims ahead
        jobs = await app.aenqueue_many([work.job(n) for n in range(3)])
        await worker.until(lambda: worker.worker._lines.buffered == 2)
        assert await jobs[1].acancel() == "running"
        await settled(jobs[1], limit=10)
        hold.free.set()
        await settled(jobs[2])
    assert ran == [0, 2]
    row = db.job(jobs[1].id)
    assert (row.state, db.attempts(row.id)) == ("cancelled", [])


# --- resources --------------------------------------------------------------------------------------------------------

Log = list[str]


def sync_resource(log: Log, name: str = "sync") -> Callable[[], Iterator[str]]:
    def resource() -> Iterator[str]:
        log.append(f"open {name}")
        try:
            yield name
        except BaseException as error:
            log.append(f"{name} told of {type(error).__name__}")
            raise
        finally:
            log.append(f"close {name}")

    return resource


def async_resource(log: Log, name: str = "async") -> Callable[[], AsyncIterator[str]]:
    async def resource() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        log.append(f"open {name}")
        try:
            yield name
        except BaseException as error:
            log.append(f"{name} told of {type(error).__name__}")
            raise
        finally:
            await asyncio.sleep(0)
            log.append(f"close {name}")

    return resource


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


# --- middleware -------------------------------------------------------------------------------------------------------


def noting(log: Log, name: str) -> Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    async def middleware(ctx: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
        log.append(f"{name} before {ctx.job.task}")
        try:
            return await call()
        except Exception as error:
            log.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            log.append(f"{name} after")

    return middleware


@both_kinds
async def test_the_app_s_middleware_is_outside_and_the_first_one_outermost(db: Verbs, dsn: str, kind: str) -> None:
    log: Log = []
    app = Skiplock(dsn, middleware=[noting(log, "one"), noting(log, "two")])

    async def on_loop() -> None:
        log.append("run")
        raise ValueError("boom")

    def in_thread() -> None:
        log.append("run")
        raise ValueError("boom")

    task = app.task(name="t", max_attempts=1, middleware=[noting(log, "three")])(
        on_loop if kind == "async" else in_thread
    )
    async with running_worker(app):
        await settled(await task.aenqueue())
    names = ("one", "two", "three")
    inwards = [f"{name} before t" for name in names]
    outwards = [line for name in reversed(names) for line in (f"{name} saw ValueError", f"{name} after")]
    assert log == [*inwards, "run", *outwards]


async def test_middleware_may_answer_itself_change_the_result_or_raise(app: Skiplock) -> None:
    async def answer(ctx: JobContext, call: Any) -> str:
        return "not run"

    async def change(ctx: JobContext, call: Any) -> Any:
        return [await call(), "changed"]

    async def refuse(ctx: JobContext, call: Any) -> Any:
        raise Cancel("not today")

    ran: list[str] = []
    jobs = {}
    for name, middleware in {"answer": answer, "change": change, "refuse": refuse}.items():

        async def work(name: str = name) -> str:
            ran.append(name)
            return "run"

        jobs[name] = app.task(name=name, middleware=[middleware])(work)
    async with running_worker(app):
        found = {name: await settled(await task.aenqueue(name)) for name, task in jobs.items()}
    assert ran == ["change"]
    assert (found["answer"].result, found["change"].result) == ("not run", ["run", "changed"])
    assert (found["refuse"].state, found["refuse"].error) == ("cancelled", "Cancel: not today")


# --- hooks ------------------------------------------------------------------------------------------------------------


async def test_hooks_of_the_app_and_of_the_task(app: Skiplock) -> None:
    told: list[tuple[str, str, Any]] = []

    def hook(who: str) -> Callable[[Event], None]:
        return lambda event: told.append((who, event.name, event.fields.get("verdict")))

    moments = ("attempt_started", "attempt_ended", "job_dead")

    @app.task(name="hooked", max_attempts=2, backoff=AT_ONCE, hooks={moment: hook("task") for moment in moments})
    async def hooked() -> None:
        raise ValueError("boom")

    @app.task(name="other")
    async def other() -> None: ...

    for moment in moments:
        app.on(moment)(hook("app"))
    async with running_worker(app):
        await settled(await hooked.aenqueue())
        by_task = [(name, verdict) for who, name, verdict in told if who == "task"]
        assert by_task == [
            ("attempt_started", None), ("attempt_ended", "retry"),
            ("attempt_started", None), ("job_dead", None), ("attempt_ended", "dead"),
        ]  # fmt: skip
        assert [(name, verdict) for who, name, verdict in told if who == "app"] == by_task
        told.clear()
        await settled(await other.aenqueue())
        assert told == [("app", "attempt_started", None), ("app", "attempt_ended", "completed")]


async def test_what_an_event_tells(app: Skiplock) -> None:
    @app.task(name="t", queue="q", max_attempts=1)
    async def work() -> None:
        raise ValueError("boom")

    async with running_worker(app, queues={"q": 1}) as worker:
        job = await work.aenqueue()
        await settled(job)
        [ended], [dead] = worker.heard("attempt_ended"), worker.heard("job_dead")
    assert (ended["job"].id, ended["task"], ended["queue"], ended["attempt"], ended["verdict"]) == (
        job.id,
        "t",
        "q",
        1,
        "dead",
    )
    assert (ended["failure"].error_class, ended["delay"]) == ("ValueError", None)
    assert 0 <= ended["took"] < 30
    assert dead["failure"].message == "boom"


async def test_a_job_whose_attempts_are_used_up_by_Retry_is_told_to_be_dead(app: Skiplock) -> None:
    @app.task(name="t", max_attempts=1)
    async def work() -> None:
        raise Retry("again", delay=0)

    async with running_worker(app) as worker:
        await settled(await work.aenqueue())
        assert len(worker.heard("job_dead")) == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("whose", ["app", "task"])
async def test_a_hook_that_fails_harms_nobody(app: Skiplock, whose: str, error: type[BaseException]) -> None:
    def fail(event: Event) -> None:
        raise error("hook")

    moments = ("attempt_started", "attempt_ended", "job_dead")
    if whose == "app":
        for moment in moments:
            app.on(moment, fail)

    @app.task(name="t", max_attempts=1, hooks=dict.fromkeys(moments, fail) if whose == "task" else None)
    async def work(n: int) -> int:
        if n == 0:
            raise ValueError("handler")
        return n

    async with running_worker(app, queues={"default": 1}) as worker:
        dead, done = await work.aenqueue(0), await work.aenqueue(1)
        assert ((await settled(dead)).state, (await settled(done)).result) == ("dead", 1)
        await worker.until(lambda: worker.worker._lines.running == 0)
        assert len(worker.heard("hook_failed")) == 5


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

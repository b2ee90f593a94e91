"""Middleware around an attempt, hooks at its moments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skiplock import Backoff, Cancel, JobContext, Retry, Skiplock
from skiplock.core.events import Event
from tests.support.handlers import Log, both_kinds
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


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

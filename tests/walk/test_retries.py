"""Retries: when a failed job runs again, and whether."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skiplock import Backoff, Cancel, JobContext, Retry, Skiplock, Snooze
from tests.support.handlers import wait_of
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
STEADY = Backoff(base=100, factor=2, jitter=False)


# --- retries ----------------------------------------------------------------------------------------------------------


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

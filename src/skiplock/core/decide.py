"""What an error means for its job: the one place where exceptions become outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from skiplock.core.failure import describe
from skiplock.core.job import Job
from skiplock.core.outcome import Cancel, Dead, Failure, Outcome, Retry, Snooze, Verdict
from skiplock.core.retry import backoff_from_options, retry_delay, rule_for
from skiplock.core.task import TaskSpec

TIMEOUT, CANCEL, SHUTDOWN, LOST = "timeout", "cancel", "shutdown", "lost"  # why the worker interrupted an attempt

_options = msgspec.json.Decoder(dict[str, Any])


def options_of(job: Job) -> dict[str, Any]:
    """The rare settings a job carries itself."""
    return _options.decode(job.options) if job.options else {}


def timeout_of(job: Job, spec: TaskSpec) -> float | None:
    """Seconds its handler may run, None: no limit."""
    if not job.options:
        return spec.timeout
    found = options_of(job).get("timeout", spec.timeout)
    return None if found is None else float(found)


def interrupted(job: Job, spec: TaskSpec, why: str, took: float, timeout: float | None) -> Outcome:
    """The outcome of an attempt that the worker itself broke off."""
    if why == CANCEL:
        return Outcome(job.id, job.lease, Verdict.CANCELLED, took, failure=Failure("Cancel", "cancelled while running"))
    if why == TIMEOUT:
        error = TimeoutError(f"ran longer than its timeout of {timeout:g} s" if timeout else "ran too long")
        return failed(job, spec, error, took)
    return Outcome(job.id, job.lease, Verdict.RELEASE, took)


def failed(job: Job, spec: TaskSpec, error: BaseException, took: float) -> Outcome:
    """The outcome of an attempt whose handler raised `error`."""
    if isinstance(error, Snooze):
        return Outcome(job.id, job.lease, Verdict.SNOOZE, took, delay=error.delay)
    if isinstance(error, Cancel):
        return Outcome(job.id, job.lease, Verdict.CANCELLED, took, failure=_said("Cancel", error.reason))
    if isinstance(error, Dead):
        return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=_said("Dead", error.reason))
    if isinstance(error, Retry):
        failure = _said("Retry", error.reason)
    elif isinstance(error, asyncio.CancelledError):
        failure = Failure("CancelledError", "the handler raised CancelledError itself; nobody had cancelled it")
    else:
        failure = describe(error)
    delay = _delay(job, spec, error)
    if delay is None:
        return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=failure)
    return Outcome(job.id, job.lease, Verdict.RETRY, took, delay=delay, failure=failure)


def _said(word: str, reason: str) -> Failure:
    return Failure(word, reason or "(no reason given)")


def _delay(job: Job, spec: TaskSpec, error: BaseException) -> float | None:
    if isinstance(error, Retry) and error.delay is not None:
        return error.delay if job.attempt < job.max_attempts else None
    otherwise = spec.backoff
    if job.options:
        otherwise = guarded(lambda: backoff_from_options(options_of(job))) or otherwise
    return retry_delay(rule_for(error, spec.retry_on, otherwise), job.attempt, job.max_attempts)


def guarded(build: Callable[[], Any]) -> Any:
    """None instead of an error: a job's own settings may come from anywhere and must not keep it from being settled."""
    try:
        return build()
    except Exception:
        return None

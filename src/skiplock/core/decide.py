"""What an error means for its job: the one place where exceptions become outcomes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import msgspec

from skiplock.core.codec import encode_result
from skiplock.core.depth import decode_json
from skiplock.core.errors import OptionError
from skiplock.core.failure import describe, safe_text
from skiplock.core.job import Job
from skiplock.core.outcome import Cancel, Dead, Failure, Outcome, Retry, Snooze, Verdict
from skiplock.core.retry import backoff_from_options, retry_delay, rule_for
from skiplock.core.task import TaskSpec

TIMEOUT, CANCEL, SHUTDOWN, LOST = "timeout", "cancel", "shutdown", "lost"  # why the worker interrupted an attempt

_UNCOMMITTED = Failure("CompletionNotCommitted", "ctx.complete() was called, but its transaction did not commit")
_MAX_MESSAGE = 4000  # characters

E = TypeVar("E", bound=BaseException)


def options_of(job: Job) -> dict[str, Any]:
    """The rare settings a job carries itself. Raises ValueError: whoever enqueues by SQL can write anything there."""
    found = decode_json(job.options) if job.options else {}
    if not isinstance(found, dict):
        raise OptionError("the job's options are no JSON object")
    return found


def timeout_of(job: Job, spec: TaskSpec) -> float | None:
    """Seconds its handler may run, None: no limit. Raises ValueError as `options_of` does."""
    if not job.options:
        return spec.timeout
    found = options_of(job).get("timeout", spec.timeout)
    if found is None:
        return None
    # A timer that is set to NaN puts those of all other jobs out of order.
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise OptionError(f"the job's options: timeout {safe_text(found, 60)!r} is not a positive number of seconds")
    return float(found)


def completed(job: Job, value: Any, took: float, *, limit: int) -> Outcome:
    """The outcome of an attempt whose handler returned `value`; `limit`: bytes of its JSON."""
    try:
        result = None if value is None else encode_result(value, limit=limit)
    except BaseException as error:  # a value may run code of its own when it is encoded, and that may raise SystemExit
        # The work is done, so running it again would do it twice: dead, with the reason.
        reason = safe_text(error, _MAX_MESSAGE)
        failure = Failure("ResultNotStorable", f"the handler succeeded, but its result cannot be stored: {reason}")
        return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=failure)
    return Outcome(job.id, job.lease, Verdict.COMPLETED, took, result)


def completed_itself(job: Job, spec: TaskSpec, took: float) -> Outcome:
    """The outcome of an attempt that completed its job in a transaction of its own.

    Nothing to settle if that transaction committed; the settle finds out, and retries the job otherwise.
    """
    otherwise = failed(job, spec, RuntimeError(_UNCOMMITTED.message), took)
    return msgspec.structs.replace(otherwise, failure=_UNCOMMITTED, in_transaction=True)


def broken(job: Job, spec: TaskSpec, error: BaseException, took: float) -> Outcome:
    """As `failed`, whatever the task's rules do: a retry rule that raises must not lose the job."""
    found = guarded(lambda: failed(job, spec, error, took))
    if isinstance(found, Outcome):
        return found
    return Outcome(job.id, job.lease, Verdict.RETRY, took, delay=60.0, failure=describe(error))


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
    if _is(error, Snooze):
        return Outcome(job.id, job.lease, Verdict.SNOOZE, took, delay=error.delay)
    if _is(error, Cancel):
        return Outcome(job.id, job.lease, Verdict.CANCELLED, took, failure=_said("Cancel", error.reason))
    if _is(error, Dead):
        return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=_said("Dead", error.reason))
    if _is(error, Retry):
        failure = _said("Retry", error.reason)
    elif _is(error, asyncio.CancelledError):
        failure = Failure("CancelledError", "the handler raised CancelledError itself; nobody had cancelled it")
    else:
        failure = describe(error)
    delay = _delay(job, spec, error)
    if delay is None:
        return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=failure)
    return Outcome(job.id, job.lease, Verdict.RETRY, took, delay=delay, failure=failure)


def _is(error: BaseException, kind: type[E]) -> TypeGuard[E]:
    """`isinstance` would ask the error for its `__class__`, which may lie or raise."""
    return issubclass(type(error), kind)


def _said(word: str, reason: object) -> Failure:
    return Failure(word, safe_text(reason, _MAX_MESSAGE) or "(no reason given)")


def _delay(job: Job, spec: TaskSpec, error: BaseException) -> float | None:
    if _is(error, Retry) and error.delay is not None:
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

"""How an attempt ended, as a value; and what a handler raises to say so itself."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec

from skiplock.core.errors import OptionError

Duration = float | int | timedelta | str  # seconds, timedelta, or "90s", "5m", "1h30m", "2d"
MAX_DELAY = 100 * 366 * 86400.0  # seconds


class ControlFlow(Exception):
    """Base of what a handler raises to decide how its job goes on. Not an error."""


class Retry(ControlFlow):
    """Run this job again after `delay` (default: the task's backoff). Spends the attempt.

    raise Retry(delay="30s", reason="rate limited")
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else pause(delay, "Retry(delay=…)")


class Snooze(ControlFlow):
    """Run this job again after `delay` without spending the attempt.

    raise Snooze("5m")
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = pause(delay, "Snooze(delay)")


class Cancel(ControlFlow):
    """End this job as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Dead(ControlFlow):
    """End this job as dead at once, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(value: Duration, where: str = "duration") -> float:
    """A duration in seconds. Accepts a number of seconds, a timedelta, or text such as ``"1h30m"`` or ``"500ms"``.

    Raises OptionError for anything else, and for NaN, infinity and negative values.
    """
    result = _seconds(value, where)
    if not math.isfinite(result) or result < 0:
        raise OptionError(f"{where}: {value!r} is not a duration of at least 0 seconds")
    return result


def pause(value: Duration, where: str) -> float:
    """As `seconds`, at most `MAX_DELAY`: what the database's clock can add to now. Raises OptionError."""
    found = seconds(value, where)
    if found > MAX_DELAY:
        raise OptionError(f"{where}: {value!r} is more than 100 years")
    return found


def _seconds(value: Duration, where: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        return _parse(value, where)
    raise OptionError(f'{where}: {value!r} is not a duration; give seconds, a timedelta, or text like "90s" or "1h30m"')


def _parse(text: str, where: str) -> float:
    total, number = 0.0, ""
    rest = text.strip().lower()
    if not rest:
        raise OptionError(f'{where}: empty text is not a duration; give text like "90s" or "1h30m"')
    while rest:
        unit = ""
        while rest and (rest[0].isdigit() or rest[0] == ".") and rest[0].isascii():
            number, rest = number + rest[0], rest[1:]
        while rest and rest[0].isalpha():
            unit, rest = unit + rest[0], rest[1:]
        rest = rest.lstrip()
        try:
            total += float(number) * _UNITS[unit or "s"]
        except (KeyError, ValueError):
            raise OptionError(
                f'{where}: {text!r} is not a duration; give text like "500ms", "90s" or "1h30m"'
            ) from None
        number = ""
    return total


class Failure(msgspec.Struct, frozen=True):
    """An error as it is kept: plain text, cut to a limit, free of anything PostgreSQL refuses."""

    error_class: str
    message: str
    traceback: str | None = None


class Verdict:
    """The words of `settle.sql`. Plain strings: they go over the wire by the thousand."""

    COMPLETED = "completed"
    RETRY = "retry"
    SNOOZE = "snooze"
    CANCELLED = "cancelled"
    DEAD = "dead"
    RELEASE = "release"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one attempt. `took` is the handler's run time in seconds, `delay` seconds to wait.

    `in_transaction` marks an attempt that says it completed its job inside its own transaction: the settle then only
    checks that this was committed.
    """

    id: int
    lease: int
    verdict: str
    took: float = 0.0
    result: str | None = None
    delay: float | None = None
    failure: Failure | None = None
    in_transaction: bool = False


def as_json(value: Any) -> str:
    """JSON text of a plain value."""
    return msgspec.json.encode(value).decode()

"""When a failed job runs again."""

import datetime as dt
import math
from decimal import Decimal

import pytest

from skiplock.core.errors import ConfigurationError, OptionError
from skiplock.core.outcome import Retry, Snooze, seconds
from skiplock.core.retry import DEFAULT_BACKOFF, MAX_DELAY, Backoff, backoff_from_options, retry_delay, rule_for

STEADY = Backoff(jitter=False, floor=0)

WAITS = {
    "first": (STEADY, 1, 2.0),
    "second": (STEADY, 2, 4.0),
    "tenth": (STEADY, 10, 1024.0),
    "capped": (STEADY, 12, 3600.0),
    "attempt of any size": (STEADY, 10**400, 3600.0),
    "attempt before the first": (STEADY, 0, 2.0),
    "even": (Backoff(base=30, factor=1, jitter=False), 50, 30.0),
    "shrinking": (Backoff(base=8, factor=0.5, jitter=False, floor=0), 4, 1.0),
    "shrinking down to the floor": (Backoff(base=8, factor=0.5, jitter=False, floor=3), 99, 3.0),
    "none at all": (Backoff(base=0, jitter=False, floor=0), 3, 0.0),
    "never beyond a year": (Backoff(cap=1e12, jitter=False), 100, MAX_DELAY),
    "a base above the cap": (Backoff(base=100, cap=10, jitter=False), 1, 10.0),
    "a factor that overflows": (Backoff(factor=1e308, jitter=False), 3, 3600.0),
    "a base next to nothing": (Backoff(base=5e-324, jitter=False), 5000, 3600.0),
    "a factor given as a large int": (Backoff(factor=10**300, jitter=False), 3, 3600.0),
}


@pytest.mark.parametrize(("backoff", "attempt", "expected"), WAITS.values(), ids=WAITS)
def test_the_wait_without_jitter(backoff, attempt, expected):
    assert backoff.delay(attempt) == expected


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 0.1), (0.25, 2.0), (0.5, 4.0), (0.99, 7.92)])
def test_jitter_draws_between_the_floor_and_the_wait(draw, expected):
    assert Backoff().delay(3, lambda: draw) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["base", "factor", "cap", "floor"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 10**400, True, "2", None], ids=repr)
def test_a_backoff_that_makes_no_sense(name, value):
    with pytest.raises(ConfigurationError, match=name):
        Backoff(**{name: value})


class Flaky(ConnectionError):
    pass


ONCE, NEVER = Backoff(base=1), None
RULES = {ConnectionError: ONCE, OSError: NEVER}

NEAREST = {
    "the class itself": (ConnectionError(), ONCE),
    "its nearest base": (Flaky(), ONCE),
    "a base further up": (FileNotFoundError(), NEVER),
    "none of them": (ValueError(), DEFAULT_BACKOFF),
}


@pytest.mark.parametrize(("error", "expected"), NEAREST.values(), ids=NEAREST)
def test_the_rule_of_the_nearest_class(error, expected):
    assert rule_for(error, RULES, DEFAULT_BACKOFF) is expected


@pytest.mark.parametrize("rules", [None, {}])
def test_without_rules_the_tasks_own(rules):
    assert rule_for(ValueError(), rules, ONCE) is ONCE


LAST = {
    "attempts left": (STEADY, 1, 3, 2.0),
    "one left": (STEADY, 2, 3, 4.0),
    "none left": (STEADY, 3, 3, None),
    "more than there were": (STEADY, 4, 3, None),
    "not to be retried": (None, 1, 3, None),
    "a floor beyond a year": (Backoff(floor=1e12), 1, 3, MAX_DELAY),
}


@pytest.mark.parametrize(("rule", "attempt", "most", "expected"), LAST.values(), ids=LAST)
def test_the_delay_or_the_end(rule, attempt, most, expected):
    assert retry_delay(rule, attempt, most) == expected


@pytest.mark.parametrize("delay", [math.nan, math.inf, -1, None, "soon"], ids=repr)
def test_a_rule_that_misbehaves_falls_back_to_the_default(delay):
    class Broken:
        def delay(self, attempt, draw):
            return delay

    assert retry_delay(Broken(), 2, 9, lambda: 0.5) == DEFAULT_BACKOFF.delay(2, lambda: 0.5)


def test_a_job_may_carry_its_own():
    assert backoff_from_options({"backoff": {"base": 1, "jitter": False}}) == Backoff(base=1, jitter=False)
    assert backoff_from_options({"timeout": 3}) is None


DURATIONS = {
    "int": (90, 90.0),
    "float": (0.5, 0.5),
    "zero": (0, 0.0),
    "timedelta": (dt.timedelta(minutes=1, milliseconds=5), 60.005),
    "seconds": ("90s", 90.0),
    "bare number": ("90", 90.0),
    "milliseconds": ("500ms", 0.5),
    "hours and minutes": ("1h30m", 5400.0),
    "days, with spaces": (" 2d 1h ", 176_400.0),
    "weeks": ("1w", 604_800.0),
    "fraction": ("1.5h", 5400.0),
    "capitals": ("5M", 300.0),
}


@pytest.mark.parametrize(("value", "expected"), DURATIONS.values(), ids=DURATIONS)
def test_a_duration_in_seconds(value, expected):
    assert seconds(value) == expected


NO_NUMBERS = [-1, math.nan, math.inf, 10**400, True, None, Decimal(1), b"5s", dt.timedelta(-1)]
NO_TEXTS = ["", "  ", "soon", "5x", "-5s", "1..5s", "s", "5s!", "²s", "٣s", "1e3", "nan", "inf", "9" * 400]


@pytest.mark.parametrize("value", [*NO_NUMBERS, *NO_TEXTS], ids=lambda value: repr(value)[:12])
def test_what_is_no_duration(value):
    with pytest.raises(OptionError, match=r"^delay: "):
        seconds(value, "delay")


@pytest.mark.parametrize(
    "signal", [lambda delay: Retry(delay=delay), lambda delay: Snooze(delay)], ids=["retry", "snooze"]
)
def test_signals_take_durations(signal):
    assert signal("1m").delay == 60.0
    with pytest.raises(OptionError):
        signal("soon")

"""Backoff: bounded for all settings and attempts, and never shorter after more attempts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiplock.core.errors import OptionError
from skiplock.core.outcome import seconds
from skiplock.core.retry import MAX_DELAY, Backoff, retry_delay

AMOUNT = st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**308)
ATTEMPT = st.integers(-10, 100) | st.integers(min_value=0)
DRAW = st.floats(0, 1, exclude_max=True)
BACKOFFS = st.builds(Backoff, base=AMOUNT, factor=AMOUNT, cap=AMOUNT, floor=AMOUNT, jitter=st.booleans())


@given(BACKOFFS, ATTEMPT, DRAW)
def test_the_wait_lies_between_floor_and_ceiling(backoff, attempt, draw):
    top = backoff.ceiling(attempt)
    assert 0 <= top <= min(backoff.cap, MAX_DELAY)
    assert backoff.floor <= backoff.delay(attempt, lambda: draw) <= max(backoff.floor, top)


@given(BACKOFFS.filter(lambda backoff: backoff.factor >= 1), st.integers(1, 5000), st.integers(1, 5000))
def test_the_ceiling_never_sinks(backoff, attempt, more):
    assert backoff.ceiling(attempt) <= backoff.ceiling(attempt + more)


@given(st.none() | BACKOFFS, ATTEMPT, ATTEMPT, DRAW)
def test_the_delay_is_usable_or_the_job_is_dead(rule, attempt, most, draw):
    delay = retry_delay(rule, attempt, most, lambda: draw)
    assert (delay is None) is (rule is None or attempt >= most)
    if delay is not None:
        assert type(delay) is float
        assert 0 <= delay <= MAX_DELAY


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 100), st.integers(0, 100))
def test_written_durations_add_up(days, hours, minutes, secs):
    assert seconds(f"{days}d{hours}h{minutes}m{secs}s") == days * 86400 + hours * 3600 + minutes * 60 + secs


@given(st.text() | st.floats() | st.integers() | st.timedeltas() | st.none() | st.booleans())
def test_a_duration_is_usable_or_refused(value):
    try:
        result = seconds(value)
    except OptionError:
        return
    assert math.isfinite(result)
    assert result >= 0


@given(st.text(max_size=20))
def test_the_refusal_names_the_option(text):
    try:
        seconds(text, "delay")
    except OptionError as error:
        assert str(error).startswith("delay: ")
    else:
        assert seconds(text) == pytest.approx(seconds(text.strip()))

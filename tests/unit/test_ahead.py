"""How many jobs a worker claims ahead of its free slots."""

from __future__ import annotations

import pytest

from skiplock.core.ahead import claim_ahead, smoothed

# concurrency, mean seconds of a handler, round trip, limit → jobs
AHEAD = {
    "unknown yet": (50, None, 0.005, 1000, 0),
    "ten minutes": (50, 600.0, 0.005, 1000, 0),
    "one second": (50, 1.0, 0.005, 1000, 0),
    "as long as a round trip": (50, 0.005, 0.005, 1000, 150),
    "a no-op": (50, 0.00001, 0.005, 1000, 1000),
    "nothing measurable": (50, 0.0, 0.005, 1000, 1000),
    "one slot": (1, 0.005, 0.005, 1000, 3),
    "a slow network": (10, 0.1, 0.1, 1000, 30),
    "no network at all": (50, 0.001, 0.0, 1000, 0),
    "never above the limit": (10_000, 0.001, 1.0, 7, 7),
    "none wanted": (50, 0.00001, 0.005, 0, 0),
}


@pytest.mark.parametrize(("concurrency", "mean", "round_trip", "limit", "jobs"), AHEAD.values(), ids=AHEAD)
def test_ahead(concurrency: int, mean: float | None, round_trip: float, limit: int, jobs: int) -> None:
    assert claim_ahead(concurrency, mean, round_trip, limit) == jobs


def test_the_slower_the_handlers_the_fewer_are_held() -> None:
    held = [claim_ahead(50, seconds / 1000, 0.005, 1000) for seconds in range(1, 2000)]
    assert held == sorted(held, reverse=True)
    assert held[-1] == 0


@pytest.mark.parametrize(
    ("old", "new", "weight", "mean"), [(None, 3.0, 0.1, 3.0), (1.0, 2.0, 0.25, 1.25), (1.0, 2.0, 1.0, 2.0)]
)
def test_smoothed(old: float | None, new: float, weight: float, mean: float) -> None:
    assert smoothed(old, new, weight) == mean

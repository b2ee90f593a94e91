"""How many jobs to claim ahead of free slots.

Enough that the slots stay busy while the next claim is on its way, and no more: a no-op job is fetched hundreds at a
time, a ten-minute job never waits behind a busy worker.
"""

from __future__ import annotations

LEAD = 3.0  # round trips' worth of work to hold


def claim_ahead(concurrency: int, mean_seconds: float | None, round_trip: float, limit: int) -> int:
    """Jobs to hold beyond the free slots. `mean_seconds` is a handler's mean run time, None while unknown.

    >>> claim_ahead(50, 600.0, 0.005, 1000)
    0
    >>> claim_ahead(50, 0.00001, 0.005, 1000)
    1000
    """
    if mean_seconds is None:
        return 0
    return min(limit, int(concurrency * LEAD * round_trip / max(mean_seconds, 1e-6)))


def smoothed(old: float | None, new: float, weight: float) -> float:
    """Exponentially weighted mean."""
    return new if old is None else old + weight * (new - old)

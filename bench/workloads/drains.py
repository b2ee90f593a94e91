"""W3: draining a full queue, with one, two and four worker processes."""

from __future__ import annotations

from functools import partial

from bench.contender import Contender
from bench.workloads.base import Bench, Figures, Results, fresh_drain


def drain(bench: Bench) -> Results:
    """W3: one worker process drains a full queue."""
    return bench.alternate(partial(_once, bench, 1))


def drain_two(bench: Bench) -> Results:
    """W3x2: two worker processes drain it."""
    return bench.alternate(partial(_once, bench, 2))


def drain_four(bench: Bench) -> Results:
    """W3x4: four worker processes drain it (reference and skiplock)."""
    return bench.alternate(partial(_once, bench, 4), (bench.reference, bench.skiplock))


def _once(bench: Bench, workers: int, contender: Contender) -> Figures:
    return fresh_drain(bench, contender, bench.jobs(contender, bench.scale.drain), workers=workers)

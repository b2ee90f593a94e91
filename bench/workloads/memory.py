"""W15: does a worker's memory grow with the number of jobs it has run?"""

from __future__ import annotations

import time

from bench.contender import BenchError, Contender
from bench.meter import memory_of
from bench.workloads.base import CHUNK, Bench, Figures, Results, fill

WARM = 500_000  # jobs until which memory may grow: pools, caches, the allocator's reserves
POINTS = (10, 50, 100)  # per cent of the jobs
SAMPLE_EVERY = 0.5  # seconds
MEBIBYTE = 1 << 20
PATIENCE = 3_000.0  # jobs a second below which something is wrong


def memory(bench: Bench) -> Results:
    """W15: memory of one worker over many jobs, flat after the first 500,000 (or half, if there are fewer)."""
    return {bench.skiplock.label: [_once(bench, bench.skiplock)]}


def _once(bench: Bench, contender: Contender) -> Figures:
    jobs = bench.scale.memory
    contender.reset(jobs)
    for first in range(0, jobs, CHUNK):
        bench.say(f"queueing {jobs:,} jobs: {first / jobs:.0%}")
        fill(contender, first, min(CHUNK, jobs - first))
    contender.settle()
    contender.start()
    curve = _follow(bench, contender, jobs)
    contender.stop()
    if len(curve) < 4:
        raise BenchError("too few samples of the worker's memory: take more jobs (--memory)")
    return {"jobs": jobs, "curve": curve, **_figures(curve, jobs)}


def _follow(bench: Bench, contender: Contender, jobs: int) -> list[tuple[int, float]]:
    """Pairs of jobs started and MiB, until all have started."""
    curve: list[tuple[int, float]] = []
    begun, deadline = 0, time.monotonic() + 60 + jobs / PATIENCE
    while begun < jobs:
        begun = _next(contender, begun, jobs)
        used = memory_of(contender.pids[0])
        if used is None:
            raise BenchError("this system does not tell the memory of a process: no /proc")
        if begun:
            curve.append((begun, used / MEBIBYTE))
            bench.say(f"{begun:,} of {jobs:,} jobs, {used / MEBIBYTE:.1f} MiB")
        if time.monotonic() > deadline:
            raise BenchError(f"{contender.label}: {begun:,} of {jobs:,} jobs in time")
        time.sleep(SAMPLE_EVERY)
    return curve


def _next(contender: Contender, n: int, jobs: int) -> int:
    """The first job from `n` on that has not started; jobs start nearly in order."""
    marks = contender.marks
    while n < jobs and marks.is_started(n):
        n += 1
    return n


def _figures(curve: list[tuple[int, float]], jobs: int) -> Figures:
    warm_jobs = min(WARM, jobs // 2)
    warm, growth = _at(curve, warm_jobs), curve[-1][1] - _at(curve, warm_jobs)
    points = {f"mib_at_{point}": _at(curve, jobs * point // 100) for point in POINTS}
    slope = growth / (jobs - warm_jobs) * 1e6
    return {**points, "warm_jobs": warm_jobs, "warm_mib": warm, "growth_mib": growth, "mib_per_million": slope}


def _at(curve: list[tuple[int, float]], jobs: int) -> float:
    return next((mib for begun, mib in curve if begun >= jobs), curve[-1][1])

"""W4, W4half: how soon a job starts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.contender import BenchError, Contender
from bench.workloads.base import Bench, Figures, Results, fresh_drain, pause_until

WARM = 30  # jobs before those that count
BATCH = 50  # W4half: jobs enqueued at a time
PER_PRODUCER = 5_000  # W4half: jobs a second that one producer process is asked for at most
WARM_SECONDS = 1  # W4half
LATE_MS, LESS, TRIALS = 250.0, 0.7, 4  # W4half: a producer later than that cannot keep up; then so much less, so often


def latency(bench: Bench) -> Results:
    """W4: milliseconds from just before the enqueue to the handler's start, 50 jobs/s, open loop."""
    scale = bench.scale
    jobs = scale.rate * scale.load_seconds

    def once(contender: Contender) -> Figures:
        contender.reset(WARM + jobs)
        contender.start()
        contender.produce("load", 0, WARM, scale.rate)
        lag = contender.produce("load", WARM, jobs, scale.rate)["lag"]
        pause_until(lambda: contender.marks.started(0, WARM + jobs) >= WARM + jobs, 10)
        contender.stop()
        return {**_delays(contender, WARM, jobs), "lag_ms": lag * 1e3}

    return bench.alternate(once, bench.unhurried)


def half_load(bench: Bench) -> Results:
    """W4half: the same at half the rate that one worker drains at, enqueued 50 at a time."""
    full_rate = _full_rate(bench)
    load = _load(bench.skiplock, full_rate / 2)

    def once(contender: Contender) -> Figures:
        return {"full_rate": full_rate, **_flood(contender, load, bench.scale.load_seconds)}

    return bench.alternate(once, [bench.skiplock])


def _full_rate(bench: Bench) -> float:
    bench.say("first, how fast one worker drains")
    return statistics.median(_drained(bench) for _ in range(2))


def _drained(bench: Bench) -> float:
    return float(fresh_drain(bench, bench.skiplock, bench.scale.drain)["jobs_s"])


@dataclass(frozen=True, slots=True)
class _Load:
    """So many producers at once, each enqueuing at this rate."""

    producers: int
    rate: int


def _load(contender: Contender, wanted: float) -> _Load:
    """As many jobs a second as wanted; less if producers, which share the machine with the worker, cannot keep up."""
    load = _spread(wanted)
    for _ in range(TRIALS):
        if _flood(contender, load, 1)["lag_ms"] < LATE_MS:
            break
        wanted *= LESS
        load = _spread(wanted)
    return load


def _spread(rate: float) -> _Load:
    producers = max(1, math.ceil(rate / PER_PRODUCER))
    return _Load(producers, max(BATCH, round(rate / producers)))


def _flood(contender: Contender, load: _Load, seconds: int) -> Figures:
    """All producers at once, each with jobs of its own."""
    warm, jobs = load.rate * WARM_SECONDS, load.rate * seconds
    count = load.producers * jobs
    contender.reset(warm + count)
    contender.start()
    contender.produce("load", 0, warm, load.rate, BATCH)

    def produce(nth: int) -> dict[str, float]:
        return contender.produce("load", warm + nth * jobs, jobs, load.rate, BATCH)

    with ThreadPoolExecutor(load.producers) as pool:
        answers = list(pool.map(produce, range(load.producers)))
    pause_until(lambda: contender.marks.started(warm, count) >= count, 10, every=0.2)
    contender.stop()
    sent = sum(jobs / answer["seconds"] for answer in answers)
    lag = max(answer["lag"] for answer in answers)
    return {
        **_delays(contender, warm, count),
        "lag_ms": lag * 1e3,
        "sent_s": sent,
        "asked_s": load.rate * load.producers,
    }


def _delays(contender: Contender, first: int, jobs: int) -> Figures:
    delays = contender.marks.delays(first, jobs)
    if not delays:
        raise BenchError(f"{contender.label}: no job started")
    figures: Figures = {f"p{p}": percentile(delays, p) for p in (50, 95, 99)}
    lost = jobs - len(delays)
    return {**figures, "max": delays[-1], "lost": lost, "twice": contender.marks.repeated(first, jobs)}


def percentile(ordered: Sequence[float], p: int) -> float:
    """Of sorted values."""
    return ordered[min(len(ordered) - 1, len(ordered) * p // 100)]
